"""The progress bar of a call.

One bar per call, at most ten updates a second. Hidden for a single prompt, when the caller says so,
and where nobody looks (neither terminal nor notebook): then a line goes to the log every 30
seconds.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from .errors import InvalidRequestError

logger = logging.getLogger("minimax_m31")

UPDATE_S = 0.1
LOG_S = 30.0


def _in_notebook() -> bool:
    """A kernel that can show widgets; IPython is only asked when the program already loaded it."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _someone_looks() -> bool:
    stream = sys.stderr
    try:
        return _in_notebook() or (stream is not None and stream.isatty())
    except (ValueError, AttributeError):  # a closed or replaced stream
        return False


class Progress:
    """`use_tqdm`: True, False, or a callable that takes the place of the bar class."""

    def __init__(
        self, total: int, use_tqdm: bool | Callable[..., Any], what: str = "Prompts"
    ) -> None:
        if not isinstance(use_tqdm, bool) and not callable(use_tqdm):
            raise InvalidRequestError(
                f"use_tqdm={use_tqdm!r}: True, False or a bar class is needed",
                param="use_tqdm",
                value=use_tqdm,
            )
        self._started = self._shown = self._logged = time.monotonic()
        self._total = total
        self._what = what
        self._done = self._pending = 0
        self._prompt_tokens = self._output_tokens = 0
        self._bar: Any = None
        self._make: Callable[..., Any] | None = None
        if callable(use_tqdm) and not isinstance(use_tqdm, bool):
            self._make = use_tqdm
            self._open()
        elif use_tqdm and _someone_looks():
            self._make = _tqdm
            if total > 1:
                self._open()

    def _open(self) -> None:
        assert self._make is not None
        self._bar = self._make(
            total=self._total, desc=self._what, dynamic_ncols=True, unit="prompt"
        )

    def finished(self, prompt_tokens: int, output_tokens: int) -> None:
        """One prompt is done."""
        self._done += 1
        self._pending += 1
        self._prompt_tokens += prompt_tokens
        self._output_tokens += output_tokens

    def tick(self, stats: Callable[[], dict[str, float]], live_tokens: int = 0) -> None:
        """Called as often as is convenient; shows something at most ten times a second."""
        now = time.monotonic()
        if self._bar is None:
            if self._make is not None and now - self._started > 2.0:
                self._open()  # a single prompt that takes its time
            elif now - self._logged >= LOG_S:
                self._logged = now
                logger.info(
                    "%s: %d of %d done, %s",
                    self._what,
                    self._done,
                    self._total,
                    self._rates(now, stats()),
                )
            return
        if now - self._shown >= UPDATE_S:
            self._shown = now
            self._show(now, stats())

    def _rates(self, now: float, stats: dict[str, float]) -> str:
        seconds = max(1e-9, now - self._started)
        hits = stats["n_cached_token"] / stats["n_prompt_token"] if stats["n_prompt_token"] else 0.0
        return (
            f"in {self._prompt_tokens / seconds:.0f} tok/s, out "
            f"{self._output_tokens / seconds:.0f} tok/s, "
            f"running {stats['n_running']:.0f}, queued {stats['n_waiting']:.0f}, cache hits "
            f"{100 * hits:.0f} %"
        )

    def _show(self, now: float, stats: dict[str, float]) -> None:
        if self._pending:
            self._bar.update(self._pending)
            self._pending = 0
        set_postfix = getattr(self._bar, "set_postfix_str", None)
        if set_postfix is not None:
            set_postfix(self._rates(now, stats), refresh=True)

    def close(self) -> None:
        if self._bar is None:
            return
        if self._pending:
            self._bar.update(self._pending)
        self._bar.close()
        self._bar = None


def _tqdm(**kwargs: Any) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a notebook without widgets: plain text is fine
        from tqdm.auto import tqdm
    return tqdm(**kwargs)

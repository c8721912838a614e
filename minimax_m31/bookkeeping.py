"""What an LLM remembers about its requests: ids, seeds, active calls, token rates, log lines."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from . import _core
from .dispatch import Dispatcher
from .engine_args import EngineArgs
from .errors import EngineForkedError
from .params import SamplingParams
from .seeds import MASK, derive_seed, fresh_seed

if TYPE_CHECKING:
    from .calls import BaseCall, Job
    from .handle import RequestHandle

logger = logging.getLogger("minimax_m31")


class Bookkeeping:
    """Base of LLM, for the modules that run its calls. Safe from any thread."""

    _args: EngineArgs
    _core: _core.Engine

    def _open_books(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards what follows
        self._ordinal = itertools.count()
        self._request_number = itertools.count()
        self._active: dict[str, tuple[BaseCall[Any], Job]] = {}
        self._calls: set[BaseCall[Any]] = set()
        self._rates: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._warned_capped = False
        self._is_paused = False
        self._enqueued: list[RequestHandle] = []
        self._dispatcher = Dispatcher(self._core)
        self._left_traces: list[tuple[_core.Waiter, int]] = []  # interrupted, maybe still running

    def check_process(self) -> None:
        """In a forked child nothing may be touched: another thread of the parent may hold the locks
        that were copied with it.
        """
        if os.getpid() != self._pid:
            raise EngineForkedError(
                f"the engine was opened in process {self._pid}, this is {os.getpid()}: open an "
                "engine of your own after a fork"
            )

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    def _encode_threads(self, count: int) -> int | None:
        """None lets the library use what it has; a single short text is not worth a thread."""
        return 1 if count == 1 else self._args.tokenizer_threads

    def _new_request_id(self) -> str:
        return str(next(self._request_number))

    def _seed_of(self, params: SamplingParams) -> int:
        """The request's own seed, else one derived from the engine's, else entropy."""
        if params.seed is not None and params.seed != -1:
            return params.seed & MASK
        if self._args.seed is not None and self._args.seed != -1:
            return derive_seed(self._args.seed & MASK, next(self._ordinal) + 1)
        return fresh_seed()

    def _remember(self, request_id: str, call: BaseCall[Any], job: Job) -> None:
        with self._lock:
            self._active[request_id] = (call, job)
            call.names.add(request_id)
            self._calls.add(call)

    def _forget_job(self, request_id: str, job: Job) -> None:
        with self._lock:
            entry = self._active.get(request_id)
            if entry is not None and entry[1] is job:
                del self._active[request_id]
                entry[0].names.discard(request_id)

    def _forget(self, call: BaseCall[Any]) -> None:
        with self._lock:
            self._calls.discard(call)
            for name in call.names:
                if self._active[name][0] is call:
                    del self._active[name]
            call.names.clear()

    def _warn_capped(self, max_tokens: int) -> None:
        if not self._warned_capped:
            self._warned_capped = True
            logger.warning(
                "a request ended after %d tokens, the engine's default_max_tokens: set "
                "SamplingParams(max_tokens=) or "
                "LLM(default_max_tokens=)",
                max_tokens,
            )

    def _note_rates(self, core: dict[str, float] | None = None) -> tuple[float, float]:
        """Tokens per second over the last ten seconds, from the snapshots that were taken
        meanwhile.
        """
        now = time.monotonic()
        if core is None:
            core = self._core.stats()
        here = (now, int(core["n_prompt_token"]), int(core["n_output_token"]))
        with self._lock:
            while len(self._rates) > 1 and now - self._rates[1][0] >= 10.0:
                self._rates.popleft()
            first = self._rates[0] if self._rates else here
            if not self._rates or now - self._rates[-1][0] >= 0.2:
                self._rates.append(here)
        seconds = max(1e-3, now - first[0])
        return (here[1] - first[1]) / seconds, (here[2] - first[2]) / seconds

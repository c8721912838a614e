"""Where the lines of the logger "minimax_m31" go, and how MM_* variables decide that.

A library leaves logging to the program. But whoever sets a variable that asks for output, or sets
one wrongly, is at a terminal and may run a program that configures nothing: then, and while neither
this logger nor the root has a handler, lines go to standard error.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping

from . import _core

logger = logging.getLogger("minimax_m31")

TALKING = ("MM_LOG", "MM_CHECK", "MM_PROFILE", "MM_PROBE")  # variables whose purpose is output


def variables() -> dict[str, str]:
    """Those that are set and can be read, as the core understood them."""
    return {name: value for name, value, _ in _core.env_table() if value}


def wrong_library(text: str, found: Mapping[str, str]) -> str:
    """What is wrong with the library that MM_CUDA_SO names, from the line of the backend "cuda"; ""
    when it is right, or none is named. A library of another build can only say so itself.
    """
    if text.startswith("MM_CUDA_SO"):
        return text
    if "MM_CUDA_SO" in found and "the CUDA library is of version" in text:
        return f"MM_CUDA_SO={found['MM_CUDA_SO']}: {text}, or unset MM_CUDA_SO"
    return ""


def wants_output() -> bool:
    """Whether the environment asks for lines, or holds what must be told."""
    found = variables()
    return any(found.get(name, "0") != "0" for name in TALKING) or bool(_core.env_problems())


def is_heard() -> bool:
    """Whether the program has a handler for our lines."""
    handlers = list(logger.handlers)
    if logger.propagate:
        handlers += logging.getLogger().handlers
    return any(not isinstance(h, (logging.NullHandler, StderrHandler)) for h in handlers)


class StderrHandler(logging.Handler):
    """Writes to what `sys.stderr` is at the time; silent once the program has a handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if is_heard() or sys.stderr is None:
            return
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def begin_logging(level: int) -> None:
    """Called before an engine opens. MM_LOG wins over `level`, the argument's: whoever sets it may
    not be able to change the program.
    """
    name = variables().get("MM_LOG")
    logger.setLevel(level if name is None else int(getattr(logging, name.upper())))
    if wants_output() and not any(isinstance(h, StderrHandler) for h in logger.handlers):
        handler = StderrHandler()
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
        logger.addHandler(handler)


def drain_log() -> None:
    """Passes on what the core has to say."""
    for level, text in _core.log_drain():
        logger.log(level, "%s", text)


def close_engine(engine: _core.Engine, pid: int) -> None:
    """Closes an engine that process `pid` opened, and passes on what closing had to say: the tables
    of MM_PROFILE. In a forked child the core does nothing, and the log is left alone: a thread of
    the parent may have held its lock.
    """
    engine.close()
    if os.getpid() == pid:
        drain_log()

"""Which engines are open in this process, and opening another when memory is short.

An engine that nobody refers to any more, but that sits in a reference cycle, is found by the
garbage collector; one that somebody refers to is theirs to close, so the error says how.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import TYPE_CHECKING, Any

from .engine_args import EngineArgs
from .errors import OutOfDeviceMemoryError
from .opening import Opened, open_engine

if TYPE_CHECKING:
    from .llm import LLM

_alive: weakref.WeakSet[LLM] = weakref.WeakSet()


def note_open(llm: LLM) -> None:
    _alive.add(llm)


def note_closed(llm: LLM) -> None:
    _alive.discard(llm)


def live_engines() -> list[LLM]:
    """The engines of this process that were not shut down."""
    return [llm for llm in list(_alive) if not llm.closed]


def shutdown_all() -> None:
    """Shuts down every engine of this process."""
    for llm in live_engines():
        llm.shutdown()


def open_or_make_room(args: EngineArgs) -> Opened:
    """Opens an engine; when memory is short, those that nobody holds any more are closed first."""
    before = len(live_engines())
    try:
        return open_engine(args)
    except OutOfDeviceMemoryError as error:
        problem = error
    gc.collect()
    if len(live_engines()) < before:
        try:
            return open_engine(args)
        except OutOfDeviceMemoryError as error:
            problem = error
    others = live_engines()
    if not others:
        raise problem
    lines = " or ".join(f"`{name_of(llm)}.shutdown()`" for llm in others[:4])
    raise OutOfDeviceMemoryError(
        f"{problem}; {len(others)} other engine(s) of this process hold memory: free it with "
        f"{lines}, or replace them with LLM(..., replace=True)",
        plan=problem.plan,
    ) from problem


def name_of(llm: LLM) -> str:
    """What the main program calls it."""
    main: dict[str, Any] = vars(sys.modules.get("__main__", sys))
    for name, value in list(main.items()):
        if value is llm and not name.startswith("_"):
            return name
    return "minimax_m31.live_engines()[0]"

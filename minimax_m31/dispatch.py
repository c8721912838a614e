"""The dispatcher: one thread and one mailbox for every request that was submitted without waiting.

The thread notes what the engine says (masks of constrained requests are made here) and wakes those
who look at the request; they read what they want in threads of their own. Functions of the caller
(`on_token`, done callbacks) run on a second thread, so that one that is slow, or waits for another
request, holds nothing up. Both threads start when they are needed and end when they are not.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .calls import is_exiting
from .diagnostics import drain_log
from .errors import EngineClosedError, Mm31Error

if TYPE_CHECKING:
    from ._core import Engine, Waiter

logger = logging.getLogger("minimax_m31")

IDLE_S = 2.0  # a thread without work ends after that long
WAIT_S = 0.5


class Receiver(Protocol):
    """Whoever owns a request of the core."""

    def deliver(self, core_id: int) -> None:
        """There is news of it."""

    def fail(self, error: BaseException) -> None:
        """There will be none any more."""


class Dispatcher:
    """The mailbox of all handles of an engine. Refers to the core alone: an LLM that nobody holds
    any more can be closed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.lock = threading.Lock()  # held while a request is submitted and entered here
        self._receivers: dict[int, Receiver] = {}
        self._waiter: Waiter | None = None
        self._thread: threading.Thread | None = None
        self.callbacks = Callbacks()

    def waiter(self) -> Waiter:
        with self.lock:
            if self._waiter is None:
                self._waiter = self._engine.waiter()
            return self._waiter

    def enter(self, core_id: int, receiver: Receiver) -> None:
        """Called with `lock` held."""
        self._receivers[core_id] = receiver
        if self._thread is None:
            assert self._waiter is not None
            self._thread = threading.Thread(
                target=self._run, args=(self._waiter,), name="minimax_m31-dispatch", daemon=True
            )
            self._thread.start()

    def leave(self, core_id: int) -> None:
        with self.lock:
            self._receivers.pop(core_id, None)

    def _run(self, waiter: Waiter) -> None:
        busy = time.monotonic()
        while True:
            try:
                ids = waiter.wait(WAIT_S, cap=4096)
            except Mm31Error as error:
                self._end(error)
                return
            now = time.monotonic()
            if ids:
                busy = now
                self._deliver(ids)
            drain_log()
            if now - busy >= IDLE_S:
                with self.lock:
                    if not self._receivers:
                        self._thread = None
                        return

    def _deliver(self, ids: list[int]) -> None:
        """Apart from the loop: nothing of a request is referred to while the thread waits."""
        with self.lock:
            news = [(core_id, self._receivers.get(core_id)) for core_id in ids]
        for core_id, receiver in news:
            if receiver is None:  # whoever submitted it was interrupted before it was entered here
                self._engine.release(core_id)
                continue
            try:
                receiver.deliver(core_id)
            except Exception as error:
                if not isinstance(error, EngineClosedError):
                    logger.exception("request %d could not be followed", core_id)
                receiver.fail(error)

    def _end(self, error: Mm31Error) -> None:
        """The engine is gone: everybody who waits is told, unless the whole process ends."""
        with self.lock:
            receivers, self._receivers = self._receivers, {}
            self._thread = self._waiter = None
        if is_exiting():
            return
        for receiver in dict.fromkeys(receivers.values()):
            receiver.fail(error)


class Callbacks:
    """Runs functions one after the other, on a thread of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, function: Callable[[], None]) -> None:
        with self._lock:
            self._queue.put(function)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="minimax_m31-callbacks", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while self._run_one():
            pass

    def _run_one(self) -> bool:
        try:
            function = self._queue.get(timeout=IDLE_S)
        except queue.Empty:
            with self._lock:
                if not self._queue.empty():
                    return True
                self._thread = None
                return False
        try:
            function()
        except EngineClosedError:
            if not is_exiting():
                logger.exception("a callback failed")
        except Exception:
            logger.exception("a callback failed")
        return True

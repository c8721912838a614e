"""RequestHandle: one request that was submitted without waiting.

A handle has a mailbox of its own. Whoever calls `result` waits on it in their own thread;
callbacks, `on_token` and `await` are served by one dispatcher thread per handle that is started
when first needed, never by the engine's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from .outputs import RequestOutput
from .streams import StreamCall

if TYPE_CHECKING:
    import asyncio

    from .llm import LLM

logger = logging.getLogger("minimax_m31")


class RequestHandle:
    """`.result()`, `.done()`, `.partial()`, `.abort()`, `.stream()`, `await`,
    `.add_done_callback()`.
    """

    def __init__(
        self,
        llm: LLM,
        call: StreamCall,
        request_id: str,
        on_token: Callable[[RequestOutput], None] | None,
    ) -> None:
        self.request_id = request_id
        self._llm = llm
        self._call = call
        self._pieces = iter(call)
        self._on_token = on_token
        self._lock = threading.Lock()  # who reads the mailbox
        self._state = threading.Condition()  # guards everything below
        self._last: RequestOutput | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._callbacks: list[Callable[[RequestHandle], None]] = []
        self._thread: threading.Thread | None = None
        try:
            call._fill()  # submits at once; errors of the request are raised here
        except BaseException:
            call.close()
            raise
        if on_token is not None or call._constraints:  # masks must come, whoever waits
            self._serve()

    # -- the mailbox -------------------------------------------------------------------------------

    def _advance(self) -> bool:
        """Reads one piece; False at the end. Called with `_lock` held."""
        try:
            _, piece = next(self._pieces)
        except StopIteration:
            self._finish(None)
            return False
        except BaseException as error:
            self._finish(error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return False
        with self._state:
            self._last = piece
            self._state.notify_all()
        if self._on_token is not None:
            try:
                self._on_token(piece)
            except Exception:
                logger.exception("on_token of request %s failed", self.request_id)
        return True

    def _finish(self, error: BaseException | None) -> None:
        with self._state:
            if self._ended:
                return
            self._ended, self._error = True, error
            callbacks, self._callbacks = self._callbacks, []
            self._state.notify_all()
        for callback in callbacks:
            self._run(callback)

    def _run(self, callback: Callable[[RequestHandle], None]) -> None:
        try:
            callback(self)
        except Exception:
            logger.exception("callback of request %s failed", self.request_id)

    def _serve(self) -> None:
        """Starts the dispatcher thread, once."""
        with self._state:
            if self._thread is not None or self._ended:
                return
            self._thread = threading.Thread(
                target=self._drive, name=f"minimax_m31-{self.request_id}", daemon=True
            )
        self._thread.start()

    def _drive(self) -> None:
        with self._lock:
            while self._advance():
                pass

    # -- for callers -------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> RequestOutput:
        """The finished output. TimeoutError after `timeout` seconds; the request goes on."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done():
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"request {self.request_id} is not finished after {timeout} s")
            if timeout is None and self._lock.acquire(blocking=False):
                try:
                    while self._advance():
                        pass
                finally:
                    self._lock.release()
            else:
                self._serve()
                with self._state:
                    if not self._ended:
                        self._state.wait(0.1 if left is None else min(left, 0.1))
        if self._error is not None:
            raise self._error
        assert self._last is not None
        return self._last

    def done(self) -> bool:
        with self._state:
            return self._ended

    def partial(self) -> RequestOutput | None:
        """What there is so far; None before the first token."""
        self._serve()
        with self._state:
            return self._last

    def abort(self) -> bool:
        """Ends the request with what it has. False when it had ended."""
        return self._llm.abort([self.request_id]) > 0

    def stream(self) -> Iterator[RequestOutput]:
        """Cumulative outputs as they come; the last one is finished."""
        seen: RequestOutput | None = None
        self._serve()
        while True:
            with self._state:
                while self._last is seen and not self._ended:
                    self._state.wait(0.1)
                last, ended = self._last, self._ended
            if last is not None and last is not seen:
                seen = last
                yield last
            elif ended:
                if self._error is not None:
                    raise self._error
                return

    def add_done_callback(self, callback: Callable[[RequestHandle], None]) -> None:
        """Calls `callback(handle)` from the dispatcher thread when the request has ended, or now if
        it has.
        """
        with self._state:
            if not self._ended:
                self._callbacks.append(callback)
                callback_now = None
            else:
                callback_now = callback
        if callback_now is not None:
            self._run(callback_now)
        else:
            self._serve()

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[RequestOutput] = loop.create_future()

        def settle() -> None:
            if future.done():
                return
            if self._error is not None:
                future.set_exception(self._error)
            else:
                assert self._last is not None
                future.set_result(self._last)

        def tell(_: RequestHandle) -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
                logger.debug("request %s ended after its event loop", self.request_id)

        self.add_done_callback(tell)
        return future.__await__()

    def __repr__(self) -> str:
        return f"RequestHandle({self.request_id!r}, {'done' if self.done() else 'running'})"

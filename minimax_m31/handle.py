"""RequestHandle: one request that was submitted without waiting.

The dispatcher (dispatch.py) notes when a sample ends and wakes whoever looks; what has been
generated is read by the one who asks, in their own thread, from where they stopped. So a reader
that is slow sees larger pieces and holds nobody up, and a handle that nobody reads costs nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

from .calls import Job
from .errors import EngineClosedError, Mm31Error
from .outputs import RequestOutput
from .params import RequestOutputKind
from .params_check import as_float
from .results import dead_end, exception_of
from .streams import Growth, StreamCall, first_needed, tail

if TYPE_CHECKING:
    import asyncio

    from .llm import LLM

logger = logging.getLogger("minimax_m31")

Listener = Callable[[], None]
_HEADER_ONLY = (1 << 31) - 1  # no token is that far: a read from there copies none


class HandleCall(StreamCall):
    """The request behind a handle: all samples of one prompt. Everything below `changed` is guarded
    by it. A listener is called without it, must not wait, and is called again for later news: every
    `interval` tokens from when somebody began to watch the request to its end, else only when a
    sample has ended.
    """

    def __init__(self, llm: LLM, *args: Any, interval: int = 1, **kwargs: Any) -> None:
        self._dispatcher = llm._dispatcher
        super().__init__(llm, 1, *args, waiter=self._dispatcher.waiter(), **kwargs)
        self._interval = interval
        self.changed = threading.Condition()
        self.job: Job | None = None
        self.error: BaseException | None = None
        self.ended = False
        self._final: RequestOutput | None = None
        self._listeners: list[Listener] = []

    def start(self) -> None:
        """Submits; an error of the request is raised here."""
        try:
            with self.changed:
                self._encode(1)
                self.job = self._queue[0]
                self._fill()
        except BaseException:
            for core_id in self._flying:
                self._dispatcher.leave(core_id)
            self.close()
            raise

    def _submit_next(self, job: Job) -> None:
        with self._dispatcher.lock:
            super()._submit_next(job)
            self._dispatcher.enter(job.core_ids[-1], self)

    # -- called by the dispatcher ------------------------------------------------------------------

    def deliver(self, core_id: int) -> None:
        with self.changed:
            if self.ended:
                return
            self._feed_mask(core_id)
            self._collect(core_id)
            self._fill()
            if self.job is not None and self.job.is_done:
                self._end(None)
            self.changed.notify_all()
            listeners = list(self._listeners)
        self._call(listeners)

    def fail(self, error: BaseException) -> None:
        with self.changed:
            if not self.ended:
                self._end(error)
            listeners = list(self._listeners)
        self._call(listeners)

    def _call(self, listeners: list[Listener]) -> None:
        for listener in listeners:
            try:
                listener()
            except RuntimeError:  # its event loop was closed meanwhile: nobody waits any more
                logger.debug("a reader of request %s is gone", self.request_id)

    @property
    def request_id(self) -> str:
        return "" if self.job is None else self.job.request_id

    def _collect(self, core_id: int) -> None:
        entry = self._flying.get(core_id)
        if entry is None or self.engine.read(core_id, _HEADER_ONLY)["finish"] == "none":
            return
        job, sample = entry
        core = self.engine.read(core_id)
        if job.plan.grammar is not None:
            dead_end(core, job.grammar_problem)
        del self._flying[core_id]
        self._dispatcher.leave(core_id)
        self.engine.release(core_id)
        job.samples[sample] = core
        if core["finish"] == "error" and self.error is None:
            self.error = exception_of(core["error"], job.index)

    def _end_early(self, job: Job) -> None:
        """Aborted before all samples began: those that did are the result."""
        job.drop_unsubmitted()

    def _end(self, error: BaseException | None) -> None:
        self.ended = True
        if error is not None:
            self.error = error
        for core_id in list(self._flying):
            self._dispatcher.leave(core_id)
        self.close()
        self.changed.notify_all()

    # -- for readers -------------------------------------------------------------------------------

    def watch(self) -> None:
        """From now on listeners hear of tokens too. Without it nobody is woken for them."""
        with self.changed:
            if self._notify == 0 and not self.ended:
                for core_id in self._flying:
                    self.engine.notify(core_id, self._interval)
                self._notify = self._interval  # of samples to come

    def listen(self, listener: Listener) -> None:
        with self.changed:
            self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        with self.changed:
            self._listeners.remove(listener)

    def abort(self) -> bool:
        """Ends the request with what it has. False when it had ended, or never began."""
        if self.ended or self.job is None:
            return False
        try:
            return self.llm.abort([self.request_id]) > 0
        except EngineClosedError:
            return False

    def wait(self, timeout: float) -> bool:
        """True once the request has ended."""
        with self.changed:
            return self.changed.wait_for(lambda: self.ended, timeout)

    def final(self) -> RequestOutput:
        """The whole result of a request that has ended, or its error."""
        if self.error is not None:
            raise self.error
        with self.changed:
            if self._final is None:
                assert self.job is not None
                self._final = self._result(self.job)
            return self._final

    def so_far(self) -> RequestOutput | None:
        """All samples as they are now; None before the first token."""
        with self.changed:
            if self.ended and self.error is None:
                return self.final()
            job = self.job
            if job is None or self.engine.closed:
                return None
            kept = list(job.samples)
            try:
                for core_id, (_, sample) in self._flying.items():
                    core = self.engine.read(core_id)
                    if core["n_token"] > 0:
                        job.samples[sample] = core
                if not any(core is not None and core["n_token"] > 0 for core in job.samples):
                    return None
                out = self._result(job)
            finally:
                job.samples[:] = kept
            out.finished = self.ended
            return out


class Reader:
    """Looks at a request again and again; `read` gives what there is to see since the last time."""

    def __init__(self, call: HandleCall, kind: RequestOutputKind) -> None:
        self._call = call
        self._kind = kind
        self._growing: dict[int, Growth] = {}
        self._ended: set[int] = set()  # samples whose last piece was handed out
        self.is_over = False

    def read(self) -> list[RequestOutput]:
        """The pieces, at most one for each sample. Raises the request's error once, at its end."""
        call = self._call
        with call.changed:
            if self._kind is RequestOutputKind.FINAL_ONLY or call.error is not None:
                if not call.ended or self.is_over:
                    return []
                self.is_over = True
                return [call.final()]
            pieces = []
            job = call.job
            assert job is not None
            for sample in range(len(job.samples)):
                piece = self._read_sample(job, sample)
                if piece is not None:
                    pieces.append(piece)
            self.is_over = call.ended
            return pieces

    def _read_sample(self, job: Job, sample: int) -> RequestOutput | None:
        call = self._call
        if sample in self._ended or sample >= job.submitted:
            return None
        growth = self._growing.get(sample)
        if growth is None:
            growth = self._growing[sample] = call._growth(job)
        cumulative = self._kind is RequestOutputKind.CUMULATIVE
        start = first_needed(job.plan, growth, cumulative)
        whole = job.samples[sample]
        if whole is None:
            core_id = job.core_ids[sample]
            if call.engine.read(core_id, _HEADER_ONLY)["n_token"] == growth.sent:
                return None
            core = call.engine.read(core_id, start)
            if core["finish"] != "none":  # ended just now: the dispatcher is on its way
                return None
            return call._piece(job, sample, growth, core, core, start, cumulative, False)
        self._ended.add(sample)
        finished = call.ended and len(self._ended) == len(job.samples)
        core = tail(whole, start)
        return call._piece(job, sample, growth, core, whole, start, cumulative, finished)


class RequestHandle:
    """`.result()`, `.done()`, `.partial()`, `.abort()`, `.stream()`, `await`,
    `.add_done_callback()`. Safe from any thread.
    """

    def __init__(
        self,
        llm: LLM,
        call: HandleCall,
        on_token: Callable[[RequestOutput], None] | None = None,
    ) -> None:
        self._llm = llm
        self._call = call
        self._on_token = on_token
        if on_token is not None:
            call.watch()
        self._reader = Reader(call, RequestOutputKind.CUMULATIVE)  # of on_token
        self._lock = threading.Lock()  # guards what follows
        self._is_queued = False
        self._callbacks: list[Callable[[RequestHandle], None]] = []
        self._is_over = False  # done callbacks were taken
        self.callback_errors: list[Exception] = []  # what the caller's own functions raised
        call.listen(self._news)
        call.start()
        self.request_id = call.request_id

    # -- functions of the caller -------------------------------------------------------------------

    def _news(self) -> None:
        """On the dispatcher's thread: has the callbacks run, once for any amount of news."""
        with self._lock:
            wanted = self._on_token is not None or (self._call.ended and self._callbacks)
            if self._is_queued or not wanted:
                return
            self._is_queued = True
        self._llm._dispatcher.callbacks.put(self._run_callbacks)

    def _run_callbacks(self) -> None:
        with self._lock:
            self._is_queued = False
        ended = self._call.ended  # before the last look, which then sees everything
        if self._on_token is not None and not self._reader.is_over:
            try:
                for piece in self._reader.read():
                    self._on_token(piece)
            except Mm31Error as error:  # the request's own: `result` raises it
                logger.debug("request %s ended with an error: %s", self.request_id, error)
            except Exception as error:
                self.callback_errors.append(error)
                logger.exception("on_token of request %s failed", self.request_id)
        if ended:
            with self._lock:
                callbacks, self._callbacks = self._callbacks, []
                self._is_over = True
            for callback in callbacks:
                self._run(callback)

    def _run(self, callback: Callable[[RequestHandle], None]) -> None:
        try:
            callback(self)
        except Exception as error:
            self.callback_errors.append(error)
            logger.exception("callback of request %s failed", self.request_id)

    def add_done_callback(self, callback: Callable[[RequestHandle], None]) -> None:
        """Calls `callback(handle)` from a thread for callbacks when the request has ended, or at
        once in this one if it has.
        """
        with self._lock:
            nothing_before = self._on_token is None and not self._callbacks
            now = self._is_over or (self._call.ended and nothing_before)
            if not now:
                self._callbacks.append(callback)
        if now:
            self._run(callback)
        elif self._call.ended:
            self._news()  # it ended between the two

    # -- for callers -------------------------------------------------------------------------------

    def result(self, timeout: float | None = None) -> RequestOutput:
        """The finished output. TimeoutError after `timeout` seconds; the request goes on."""
        end = None if timeout is None else time.monotonic() + as_float("timeout", timeout)
        call = self._call
        self._llm.check_process()
        with call.changed:
            while not call.ended:
                left = 3600.0 if end is None else end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"request {self.request_id} is not finished after {timeout} s"
                    )
                call.changed.wait(left)
        return call.final()

    def done(self) -> bool:
        return self._call.ended

    def partial(self) -> RequestOutput | None:
        """What there is so far; None before the first token."""
        self._llm.check_process()
        return self._call.so_far()

    def abort(self) -> bool:
        """Ends the request with what it has. False when it had ended."""
        return self._call.abort()

    def stream(
        self, output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    ) -> Iterator[RequestOutput]:
        """Outputs as they come, one sample in each; the last one is finished. Every call begins at
        the first token.
        """
        call, reader = self._call, Reader(self._call, output_kind)
        self._llm.check_process()
        if output_kind is not RequestOutputKind.FINAL_ONLY:
            call.watch()
        while True:
            with call.changed:
                pieces = reader.read()
                if not pieces and not reader.is_over:
                    call.changed.wait(3600.0)
            yield from pieces
            if reader.is_over:
                return

    def __await__(self) -> Generator[Any, None, RequestOutput]:
        return self._wait().__await__()

    async def _wait(self) -> RequestOutput:
        import asyncio

        call = self._call
        self._llm.check_process()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not future.done():
                future.set_result(None)

        def tell() -> None:
            if call.ended:
                loop.call_soon_threadsafe(settle)

        call.listen(tell)
        try:
            if not call.ended:
                await future
        finally:
            call.unlisten(tell)
        return call.final()

    def __repr__(self) -> str:
        return f"RequestHandle({self.request_id!r}, {'done' if self.done() else 'running'})"

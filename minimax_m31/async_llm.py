"""AsyncLLM: the engine for asyncio.

Nothing here owns, starts or patches an event loop: a request is submitted from whatever loop runs,
news comes by `call_soon_threadsafe`, and the waiting coroutine reads what is there. So it works in
a notebook cell, in several loops at once, and with any implementation of loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from .engine_args import EngineArgs
from .handle import HandleCall, Reader
from .llm import LLM
from .outputs import RequestOutput
from .params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from .scores import EngineStats
    from .tokenizer import Tokenizer

LONG_TEXT = 1 << 14  # characters; a longer prompt is encoded off the loop's thread


class AsyncLLM:
    """`AsyncLLM("path/to/checkpoint")`, arguments as of LLM; or `LLM(...).as_async()`, which shares
    a loaded model.
    """

    def __init__(self, model: Any = "nano", **kwargs: Any) -> None:
        self.llm = LLM(model, **kwargs)

    @classmethod
    def of(cls, llm: LLM) -> AsyncLLM:
        """The asynchronous face of an engine that is open."""
        self = cls.__new__(cls)
        self.llm = llm
        return self

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> AsyncLLM:
        return cls.of(LLM.from_engine_args(args))

    # -- requests ----------------------------------------------------------------------------------

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs while they grow: everything so far in each, unless `output_kind` says otherwise.
        The last one is finished. Leaving the loop, or cancelling the task, aborts the request.
        """
        kind = RequestOutputKind.CUMULATIVE
        if isinstance(sampling_params, SamplingParams) and sampling_params.output_kind is not None:
            kind = sampling_params.output_kind
        watched = kind is not RequestOutputKind.FINAL_ONLY
        call = await self._call(prompt, sampling_params, request_id, priority, watched)
        reader = Reader(call, kind)
        with _Bell(call) as bell:
            while True:
                for piece in reader.read():
                    yield piece
                if reader.is_over:
                    return
                await bell.wait()

    async def generate_one(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> RequestOutput:
        """The finished output. Cancelling the task aborts the request."""
        call = await self._call(prompt, sampling_params, request_id, priority, False)
        return await self._result_of(call)

    async def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | None = None,
        **chat_args: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation or several, as `LLM.chat`. Keywords as there, about the template
        and `parse`. Cancelling the task aborts what it asked for.
        """
        calls = self.llm._chat_calls(messages, sampling_params, **chat_args)
        try:
            for call in calls:
                call.start()
                await asyncio.sleep(0)  # rendering takes its time: others may run in between
            return [await self._result_of(call) for call in calls]
        finally:
            for call in calls:
                call.abort()

    async def _result_of(self, call: HandleCall) -> RequestOutput:
        with _Bell(call) as bell:
            while not call.ended:
                await bell.wait()
        return call.final()

    async def _call(
        self,
        prompt: Any,
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
        is_watched: bool,
    ) -> HandleCall:
        call = self.llm._handle_call(prompt, params, request_id, priority)
        if is_watched:
            call.watch()
        if _is_long(prompt):
            started = asyncio.ensure_future(asyncio.to_thread(call.start))
            try:
                await asyncio.shield(started)
            except asyncio.CancelledError:
                started.add_done_callback(lambda _: call.abort())
                raise
        else:
            call.start()
        return call

    async def abort(self, request_id: str | list[str]) -> int:
        """Ends these requests with what they have; returns how many were running."""
        return self.llm.abort(request_id)

    # -- the engine --------------------------------------------------------------------------------

    async def pause_generation(
        self, mode: str = "abort", *, clear_cache: bool | None = None
    ) -> None:
        """See LLM.pause_generation; other tasks go on meanwhile."""
        await asyncio.to_thread(self.llm.pause_generation, mode, clear_cache=clear_cache)

    async def resume_generation(self) -> None:
        self.llm.resume_generation()

    async def is_paused(self) -> bool:
        return self.llm.is_paused

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return await asyncio.to_thread(self.llm.reset_prefix_cache, reset_running_requests)

    async def get_tokenizer(self) -> Tokenizer:
        return self.llm.get_tokenizer()

    def stats(self) -> EngineStats:
        return self.llm.stats()

    def shutdown(self, timeout: float = 30.0) -> None:
        """Closes the engine, also for the LLM that it was made from."""
        self.llm.shutdown(timeout)

    close = shutdown

    @property
    def closed(self) -> bool:
        return self.llm.closed

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.shutdown)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an AsyncLLM cannot be pickled or copied: construct it inside the worker that uses it"
        )

    def __repr__(self) -> str:
        return f"Async{self.llm!r}"

    def _repr_html_(self) -> str:
        return self.llm._repr_html_()


class _Bell:
    """Rung by the dispatcher, awaited in the loop. On the way out the request is aborted."""

    def __init__(self, call: HandleCall) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_rung = False  # one message is on its way: more would say the same
        self._ring: Callable[[], None] = self._on_news

    def _on_news(self) -> None:
        """On the dispatcher's thread."""
        if self._loop.is_closed():  # with the task that waits: nobody will read the rest
            self._call.abort()
        elif not self._is_rung:
            self._is_rung = True
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        if not self._call.ended:
            await self._event.wait()
        self._event.clear()
        self._is_rung = False

    def __enter__(self) -> _Bell:
        self._call.listen(self._ring)
        return self

    def __exit__(self, *_: object) -> None:
        self._call.unlisten(self._ring)
        self._call.abort()


def _is_long(prompt: Any) -> bool:
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return isinstance(text, str) and len(text) > LONG_TEXT

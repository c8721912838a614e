"""The part of LLM that does not wait: handles, aborting, pausing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from .bookkeeping import Bookkeeping
from .calls import plans_source
from .core_params import stream_interval
from .errors import InvalidRequestError
from .handle import HandleCall, RequestHandle
from .outputs import RequestOutput
from .params import RequestOutputKind, SamplingParams, per_prompt
from .params_check import bad
from .prompts import split_call

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .llm import LLM

_PAUSES = {"abort": "drain", "wait": "drain", "keep": "freeze"}  # what the core calls them


class SubmitFace(Bookkeeping):
    """Base of LLM: what returns at once."""

    def submit(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        on_token: Callable[[RequestOutput], None] | None = None,
    ) -> RequestHandle:
        """Starts a request and returns at once. `on_token(output)` is called with what there is so
        far, from a thread for callbacks. A handle that is dropped does not end its request:
        `abort()` it.
        """
        if on_token is not None and not callable(on_token):
            raise bad("on_token", on_token, "a function of one RequestOutput is needed")
        if (
            isinstance(sampling_params, SamplingParams)
            and sampling_params.output_kind is RequestOutputKind.DELTA
        ):
            raise bad(
                "output_kind",
                sampling_params.output_kind,
                "a handle holds whole outputs (CUMULATIVE or FINAL_ONLY); its stream() and "
                "generate_stream give what is new",
            )
        call = self._handle_call(prompt, sampling_params, request_id, priority)
        return RequestHandle(cast("LLM", self), call, on_token)

    def _handle_call(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None,
        request_id: str | None,
        priority: int,
    ) -> HandleCall:
        """A request that is checked, and not yet submitted."""
        llm = cast("LLM", self)
        items, plans = llm._plans(prompt, sampling_params)
        if len(items) != 1:
            raise InvalidRequestError(
                f"one prompt is taken at a time, not {len(items)}", param="prompt", value=prompt
            )
        name = self._new_request_id() if request_id is None else request_id
        return HandleCall(
            llm,
            plans_source(items, plans),
            interval=stream_interval(plans),
            **llm._common(1, priority or None, [name], "raise", None),
        )

    def enqueue(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] | None = None,
        use_tqdm: Any = True,
    ) -> list[str]:
        """Submits prompts, returns their request ids; `wait_for_completion` gives the outputs."""
        del use_tqdm  # there is nothing to wait for
        llm = cast("LLM", self)
        items, _ = split_call(prompts)
        each = per_prompt(sampling_params, len(items), llm._default_params)
        ranks = llm._common(len(items), priority, None, "raise", None)["priority"]
        handles: list[RequestHandle] = []
        try:
            for i, item in enumerate(items):
                try:
                    urgent = 0 if ranks is None else ranks[i]
                    handles.append(self.submit([item], each[i], priority=urgent))
                except InvalidRequestError as error:
                    error.index = i
                    raise
        except BaseException:
            for handle in handles:
                handle.abort()
            raise
        with self._lock:
            self._enqueued += handles
        return [handle.request_id for handle in handles]

    def wait_for_completion(self, *, use_tqdm: Any = True) -> list[RequestOutput]:
        """The outputs of everything that was enqueued, in that order, when all have ended."""
        from .progress import Progress

        with self._lock:
            handles, self._enqueued = self._enqueued, []
        progress = Progress(len(handles), use_tqdm)
        outputs = []
        try:
            for i, handle in enumerate(handles):
                while not handle._call.wait(0.1):
                    progress.tick(self._core.stats)
                output = handle.result()
                output.index = i
                outputs.append(output)
                progress.finished(
                    len(output.prompt_token_ids), output.metrics.num_generation_tokens
                )
        except BaseException:
            for handle in handles:
                handle.abort()
            raise
        finally:
            progress.close()
        return outputs

    # -- ending and holding ------------------------------------------------------------------------

    def abort(self, request_ids: str | Sequence[str]) -> int:
        """Ends these requests with what they have; returns how many were running. Unknown ids are
        ignored.
        """
        names = request_names("request_ids", request_ids)
        self.check_process()
        count = 0
        for name in names:
            with self._lock:
                entry = self._active.get(name)
                waiting = list(self._calls) if entry is None else []
            for call in waiting:
                call.abort_waiting(name)
            if waiting:  # it may have begun meanwhile
                with self._lock:
                    entry = self._active.get(name)
            if entry is not None:
                _, job = entry
                job.aborted = True
                count += cast("LLM", self)._engine().abort(list(job.core_ids)) > 0
        return count

    def abort_all(self) -> int:
        """Ends everything that runs and everything that waits; returns how many requests were
        alive.
        """
        self.check_process()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.expire()
        return cast("LLM", self)._engine().abort(None)

    def pause_generation(self, mode: str = "abort", *, clear_cache: bool | None = None) -> None:
        """Returns when nothing is computed any more; requests that are submitted later wait for
        `resume_generation`.

        "abort": what runs ends with what it has. "wait": it runs to its end. "keep": it is frozen
        and goes on afterwards. `clear_cache=True` also drops the prefix cache.
        """
        if mode not in _PAUSES:
            raise bad("mode", mode, f"it is one of {', '.join(map(repr, _PAUSES))}")
        engine = cast("LLM", self)._engine()
        how = _PAUSES[mode]
        try:
            engine.pause(how)
            self._is_paused = True
            if mode == "abort":
                self.abort_all()
            while not engine.pause(how, 0.1):
                pass
        except BaseException:
            if not engine.closed:
                self.resume_generation()
            raise
        if clear_cache:
            engine.reset_prefix_cache()

    def resume_generation(self) -> None:
        """Ends a pause; does nothing when there is none."""
        cast("LLM", self)._engine().pause("none")
        self._is_paused = False

    continue_generation = resume_generation

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def as_async(self) -> AsyncLLM:
        """The same engine for asyncio; closing either closes both."""
        from .async_llm import AsyncLLM

        return AsyncLLM.of(cast("LLM", self))


def request_names(param: str, value: Any) -> list[str]:
    """Request ids of a call, checked."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable) or isinstance(names, (bytes, Mapping)):
        raise bad(param, value, "a string or a list of strings is needed")
    names = list(names)
    for name in names:
        if not isinstance(name, str) or not name:
            raise bad(param, name, "a request id is a string that is not empty")
    return names

"""LLM: the synchronous face of the engine.

Everything heavy lives elsewhere: opening.py loads, calls.py drives requests through the engine,
results.py turns what comes back into outputs. An LLM may be used from several threads at once.
`shutdown()` (or `with`) frees everything, whatever still refers to the object; a forgotten one is
closed by a finaliser and at interpreter exit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _core
from .calls import BaseCall, Call, leave_at_exit, plans_source, watch_exit
from .chat_face import ChatFace
from .core_params import Plan, make_plan, stream_interval, truncation_changes
from .describe import engine_html, engine_text
from .engine_args import EngineArgs, check_names, log_level
from .errors import EngineClosedError, InvalidRequestError
from .handle import RequestHandle
from .opening import Opened, open_engine
from .outputs import RequestOutput
from .params import RequestOutputKind, SamplingParams, per_prompt
from .params_check import as_float, as_int, bad
from .progress import Progress
from .prompts import IdArray, check_kind, need_tokenizer, split_call
from .scores import EngineStats, MemoryReport, TokenScores, Trace
from .scoring import PARTS, prompt_ids, run_trace, score_tokens
from .shims import EngineShim, ModelConfigShim
from .streams import StreamCall
from .text import TextTable

if TYPE_CHECKING:
    from .structured import Grammars
    from .tokenizer import Tokenizer

logger = logging.getLogger("minimax_m31")

UseTqdm = bool | Callable[..., Any]
_alive: weakref.WeakSet[LLM] = weakref.WeakSet()


def live_engines() -> list[LLM]:
    """The engines of this process that were not shut down."""
    return [llm for llm in list(_alive) if not llm.closed]


def shutdown_all() -> None:
    """Shuts down every engine of this process."""
    for llm in live_engines():
        llm.shutdown()


class LLM(ChatFace):
    """An engine with its tokenizer: `LLM("path/to/checkpoint")`.

    Arguments: see EngineArgs. An unknown one is a TypeError that names the nearest valid ones.
    """

    def __init__(self, model: Any = "nano", **kwargs: Any) -> None:
        check_names("LLM", kwargs)
        args = EngineArgs(model=model, **kwargs)
        args.check()
        logger.setLevel(log_level(args.log_level))
        if args.replace:
            shutdown_all()
        opened: Opened = open_engine(args)
        self._args = args
        self._core = opened.engine
        self._closer = weakref.finalize(self, _close_engine, opened.engine)
        watch_exit()
        self._config = opened.checkpoint.config
        self._raw_config = opened.checkpoint.raw_config
        self._tokenizer: Tokenizer | None = opened.tokenizer
        self._table = None if opened.tokenizer is None else TextTable.of(opened.tokenizer)
        self._facts = opened.facts
        self._info = opened.info
        self._default_params = opened.default_params
        self._model_name = opened.model_name
        self._load_seconds = opened.load_seconds
        self._quantization = opened.checkpoint.quantization
        self._memory: list[tuple[str, str, int]] = opened.engine.memory()
        self._grammars_made: Grammars | None = None
        self._open_books()
        self.last_partial: list[RequestOutput | None] | None = None
        self._drain_log()
        self._note_rates()
        _alive.add(self)

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLM:
        values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
        return cls(values.pop("model"), **values)

    # -- text and tokens ---------------------------------------------------------------------------

    def generate(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        priority: int | Sequence[int] | None = None,
        request_ids: Sequence[str] | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
        lora_request: None = None,
    ) -> list[RequestOutput]:
        """Continues every prompt; outputs are in the order of the prompts.

        A prompt is a string, a list (or 1-D array) of token ids, or a dict {"prompt": ...} /
        {"prompt_token_ids": ...}; `prompts` is one of them or a sequence. `on_error="return"` puts
        a prompt's error into its output. After `timeout` seconds everything ends with what it has,
        finish_reason "abort".
        """
        call = self._call(
            prompts,
            sampling_params,
            use_tqdm,
            priority,
            request_ids,
            on_error,
            timeout,
            tokenization_kwargs,
            lora_request,
        )
        return self._gather(call)

    def generate_iter(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        priority: int | Sequence[int] | None = None,
        request_ids: Sequence[str] | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
        tokenization_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """As `generate`, but yields (index, output) as prompts finish and keeps none. Closing it
        aborts the rest.
        """
        call = self._call(
            prompts,
            sampling_params,
            use_tqdm,
            priority,
            request_ids,
            on_error,
            timeout,
            tokenization_kwargs,
            None,
        )
        return self._iterate(call)

    def generate_stream(
        self,
        prompts: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        output_kind: RequestOutputKind | None = None,
        priority: int | Sequence[int] | None = None,
        request_ids: Sequence[str] | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
    ) -> Iterator[RequestOutput]:
        """Outputs while they grow, those of several prompts interleaved. DELTA: each holds what is
        new.
        """
        items, plans = self._plans(prompts, sampling_params, may_be_empty=on_error == "return")
        kind = (
            output_kind or plans[0].params.output_kind or RequestOutputKind.DELTA
            if plans
            else RequestOutputKind.DELTA
        )
        call = StreamCall(
            self,
            len(items),
            plans_source(items, plans),
            output_kind=kind,
            **self._common(len(items), priority, request_ids, on_error, timeout),
            notify=stream_interval(plans),
        )
        return self._stream(call)

    def _call(
        self,
        prompts: Any,
        sampling_params: Any,
        use_tqdm: UseTqdm,
        priority: Any,
        request_ids: Any,
        on_error: str,
        timeout: float | None,
        tokenization_kwargs: dict[str, Any] | None,
        lora_request: Any,
    ) -> Call:
        if lora_request is not None:
            raise InvalidRequestError(
                "lora_request: LoRA adapters are not supported", param="lora_request"
            )
        items, plans = self._plans(
            prompts,
            sampling_params,
            truncation_changes(tokenization_kwargs),
            may_be_empty=on_error == "return",
        )
        common = self._common(len(items), priority, request_ids, on_error, timeout)
        return Call(
            self,
            len(items),
            plans_source(items, plans),
            progress=Progress(len(items), use_tqdm),
            **common,
        )

    def _plans(
        self,
        prompts: Any,
        params: Any,
        changes: dict[str, Any] | None = None,
        *,
        may_be_empty: bool = False,
    ) -> tuple[Sequence[Any], list[Plan]]:
        """The prompts, checked for their kind, and one plan for all of them or one for each.
        `may_be_empty`: an empty prompt is an error of its own output, not of the call.
        """
        self._engine()
        items, single = split_call(prompts)
        try:
            for i, item in enumerate(items):
                check_kind(item, i, may_be_empty=may_be_empty)
            each = per_prompt(params, len(items), self._default_params)
            made: dict[int, Plan] = {}
            for i, item in enumerate(each):
                if id(item) not in made:
                    try:
                        made[id(item)] = make_plan(
                            item.replace(**changes) if changes else item,
                            self._facts,
                            self._tokenizer,
                            grammars=self._grammars,
                        )
                    except InvalidRequestError as error:
                        error.index = i
                        raise
        except InvalidRequestError as error:
            if single or len(items) <= 1:
                error.index = None
            raise
        if len(made) == 1:
            return items, list(made.values())
        return items, [made[id(item)] for item in each]

    def _grammars(self, param: str = "structured_outputs") -> Grammars:
        """Compiled grammars of this engine's vocabulary, made when first needed."""
        from .structured import Grammars

        if self._grammars_made is None:
            tokenizer = need_tokenizer(self._tokenizer, "constrained decoding", param)
            self._grammars_made = Grammars(
                tokenizer, self._facts.n_vocab, self._facts.eos_token_ids
            )
        return self._grammars_made

    def _common(
        self, count: int, priority: Any, request_ids: Any, on_error: str, timeout: float | None
    ) -> dict[str, Any]:
        """Arguments that every kind of call takes, checked."""
        if on_error not in ("raise", "return"):
            raise InvalidRequestError(
                f"on_error={on_error!r}: expected 'raise' or 'return'",
                param="on_error",
                value=on_error,
            )
        if priority is not None:
            values = list(priority) if isinstance(priority, (list, tuple)) else [priority] * count
            if len(values) != count:
                raise InvalidRequestError(
                    f"priority has {len(values)} entries for {count} prompt(s)", param="priority"
                )
            values = [as_int("priority", value) for value in values]
            if any(values) and not self._facts.has_priority:
                raise InvalidRequestError(
                    "priority has no effect with scheduling_policy='fcfs': "
                    "LLM(scheduling_policy='priority')",
                    param="priority",
                    value=priority,
                )
            priority = values
        if request_ids is not None:
            request_ids = _request_names("request_ids", request_ids)
            if len(request_ids) != count or len(set(request_ids)) != count:
                raise InvalidRequestError(
                    f"request_ids must be {count} different strings", param="request_ids"
                )
            taken = [name for name in request_ids if name in self._active]
            if taken:
                raise InvalidRequestError(
                    f"request_ids: {taken[0]!r} is running", param="request_ids", value=taken[0]
                )
        if timeout is not None and not as_float("timeout", timeout) > 0:
            raise bad("timeout", timeout, "it must be above 0")
        return {
            "priority": priority,
            "request_ids": request_ids,
            "raise_errors": on_error == "raise",
            "timeout": timeout,
        }

    # -- without waiting ---------------------------------------------------------------------------

    def submit(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        on_token: Callable[[RequestOutput], None] | None = None,
    ) -> RequestHandle:
        """Starts a request and returns at once. `on_token(output)` is called from a thread of the
        handle's own. A handle that is dropped does not end its request: `abort()` it.
        """
        if on_token is not None and not callable(on_token):
            raise bad("on_token", on_token, "a function of one RequestOutput is needed")
        items, plans = self._plans(prompt, sampling_params)
        if len(items) != 1:
            raise InvalidRequestError(
                f"submit takes one prompt, not {len(items)}", param="prompt", value=prompt
            )
        name = self._new_request_id() if request_id is None else request_id
        params = plans[0].params
        if params.n > 1:
            raise InvalidRequestError(
                "submit takes n=1: submit the prompt several times", param="n", value=params.n
            )
        if params.output_kind is RequestOutputKind.DELTA:
            raise bad(
                "output_kind",
                params.output_kind,
                "a handle holds whole outputs (CUMULATIVE or FINAL_ONLY); generate_stream gives "
                "what is new",
            )
        call = StreamCall(
            self,
            1,
            plans_source(items, plans),
            output_kind=params.output_kind or RequestOutputKind.CUMULATIVE,
            notify=stream_interval(plans),
            **self._common(1, priority or None, [name], "raise", None),
        )
        return RequestHandle(self, call, name, on_token)

    def abort(self, request_ids: str | Sequence[str]) -> int:
        """Ends these requests with what they have; returns how many were running. Unknown ids are
        ignored.
        """
        names = _request_names("request_ids", request_ids)
        count = 0
        for name in names:
            with self._lock:
                entry = self._active.get(name)
            if entry is not None:
                _, job = entry
                job.aborted = True
                count += self._engine().abort(list(job.core_ids)) > 0
        return count

    def abort_all(self) -> int:
        """Ends everything that runs and everything that waits; returns how many requests were
        alive.
        """
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.expire()
        return self._engine().abort(None)

    # -- forward passes ----------------------------------------------------------------------------

    def score_tokens(
        self,
        prompts: Any,
        *,
        start: int = 1,
        top_k: int = 0,
        token_ids: Sequence[int] | None = None,
        temperature: float = 1.0,
        use_tqdm: UseTqdm = True,
    ) -> list[TokenScores]:
        """log p of the prompts' own tokens from position `start` on, with ranks and the `top_k`
        best beside them.

        Nothing is sampled, so a prompt may fill the whole context. Positions before `start` may
        come from the cache.
        """
        self._engine()
        return score_tokens(
            self,
            prompts,
            start=start,
            top_k=top_k,
            token_ids=token_ids,
            temperature=temperature,
            use_tqdm=use_tqdm,
        )

    def compute_logits(self, token_ids: Any) -> Any:
        """float32 [L, vocabulary]: the logits at every position. No prefix cache."""
        return self.trace(token_ids, what=("logits",)).logits

    def trace(
        self,
        token_ids: Any,
        *,
        what: str | Sequence[str] = PARTS,
        force_blocks: Sequence[Any] | None = None,
        force_experts: Sequence[Any] | None = None,
    ) -> Trace:
        """One forward pass, with what the layers computed at all positions (see Trace).

        `force_blocks`, `force_experts`: choices to take instead of the model's, one array per layer
        or None.
        """
        ids: IdArray = prompt_ids(self, token_ids)
        if not isinstance(what, Iterable):
            raise bad("what", what, f"the parts are {', '.join(map(repr, PARTS))}")
        parts = (what,) if isinstance(what, str) else tuple(what)
        return run_trace(
            self, ids, parts=parts, force_blocks=force_blocks, force_experts=force_experts
        )

    # -- what it is and does -----------------------------------------------------------------------

    def get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequestError(
                "this engine has no tokenizer: LLM(tokenizer=folder)", param="tokenizer"
            )
        return self._tokenizer

    def get_vocab_size(self) -> int:
        """Rows of the embedding: token ids are below it, with or without a tokenizer."""
        return self._facts.n_vocab

    def get_default_sampling_params(self) -> SamplingParams:
        """A copy of what a call without sampling_params uses; `describe()` says which fields the
        checkpoint set.
        """
        return self._default_params.clone()

    def stats(self) -> EngineStats:
        """Counters of the engine."""
        core = self._engine().stats()
        prompt_rate, output_rate = self._note_rates(core)
        return EngineStats.of(core, prompt_rate, output_rate)

    def get_metrics(self) -> list[tuple[str, Any]]:
        """`stats()` as (name, value) pairs."""
        return list(self.stats())

    def memory_report(self) -> MemoryReport:
        """What the engine holds, by purpose."""
        return MemoryReport(self._engine().memory())

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Drops every cached page that no running request uses. With True, running requests are
        aborted first.
        """
        engine = self._engine()
        if reset_running_requests:
            self.abort_all()
        engine.reset_prefix_cache()
        return True

    @property
    def model_config(self) -> ModelConfigShim:
        return ModelConfigShim(self._facts.max_model_len, self._raw_config, self._model_name)

    @property
    def llm_engine(self) -> EngineShim:
        """The few attributes that evaluation harnesses reach for."""
        return EngineShim(self)

    # -- lifetime ----------------------------------------------------------------------------------

    def shutdown(self, timeout: float = 30.0) -> None:
        """Ends what runs, joins all threads, frees all memory. Idempotent; later calls raise
        EngineClosedError.
        """
        del timeout  # the core ends its running step and stops: there is nothing to wait longer for
        if self._core.closed:
            return
        with contextlib.suppress(Exception):
            self._drain_log()
        self._closer()
        _alive.discard(self)

    close = shutdown

    @property
    def closed(self) -> bool:
        return bool(self._core.closed)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "an LLM cannot be pickled or copied: construct it inside the worker or actor that uses "
            "it"
        )

    def __repr__(self) -> str:
        return engine_text(self)

    def _repr_html_(self) -> str:
        return engine_html(self)

    # -- for the modules around --------------------------------------------------------------------

    def _engine(self) -> _core.Engine:
        if self._core.closed:
            error = EngineClosedError("this LLM was shut down: construct a new one")
            leave_at_exit(error)
            raise error
        return self._core

    def _gather(self, call: Call) -> list[RequestOutput]:
        """All outputs of a call in order. When it is cut short, what there is goes to
        `last_partial`.
        """
        outputs: list[RequestOutput | None] = [None] * call.count
        pieces = iter(call)
        try:
            for index, output in pieces:
                outputs[index] = output
        except BaseException as error:
            self._keep_partial(call, outputs, error)
            raise
        finally:
            pieces.close()
            if call._progress is not None:
                call._progress.close()
        return [output for output in outputs if output is not None]

    def _keep_partial(
        self,
        call: BaseCall[RequestOutput],
        outputs: list[RequestOutput | None],
        error: BaseException,
    ) -> None:
        call.stop()
        call.close()
        for index, output in call.partial.items():
            if outputs[index] is None:
                outputs[index] = output
        self.last_partial = outputs
        if isinstance(error, InvalidRequestError):
            error.outputs = outputs
            if call.count == 1:
                error.index = None

    def _iterate(self, call: Call) -> Iterator[tuple[int, RequestOutput]]:
        pieces = iter(call)
        try:
            yield from pieces
        except Exception as error:
            self._keep_partial(call, [None] * call.count, error)
            raise
        except KeyboardInterrupt as error:
            self._keep_partial(call, [None] * call.count, error)
            raise
        finally:
            pieces.close()
            if call._progress is not None:
                call._progress.close()

    def _stream(self, call: StreamCall) -> Iterator[RequestOutput]:
        pieces = iter(call)
        try:
            for _, output in pieces:
                yield output
        except (Exception, KeyboardInterrupt) as error:
            self._keep_partial(call, [None] * call.count, error)
            raise
        finally:
            pieces.close()


def _request_names(param: str, value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable) or isinstance(names, (bytes, Mapping)):
        raise bad(param, value, "a string or a list of strings is needed")
    names = list(names)
    for name in names:
        if not isinstance(name, str) or not name:
            raise bad(param, name, "a request id is a string that is not empty")
    return names


def _close_engine(engine: _core.Engine) -> None:
    """Called by shutdown, by the finaliser, or at exit: must not refer to the LLM. Does nothing in
    a forked child.
    """
    engine.close()

"""LLM: the synchronous face of the engine.

Everything heavy lives elsewhere: opening.py loads, calls.py drives requests through the engine,
results.py turns what comes back into outputs. An LLM may be used from several threads at once.
`shutdown()` (or `with`) frees everything, whatever still refers to the object; a forgotten one is
closed by a finaliser and at interpreter exit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _core
from .calls import BaseCall, Call, leave_at_exit, plans_source, watch_exit
from .chat_face import ChatFace
from .core_params import Plan, make_plan, stream_interval, truncation_changes
from .describe import engine_html, engine_text, fingerprint
from .diagnostics import begin_logging, close_engine, drain_log
from .engine_args import EngineArgs, check_names, log_level
from .errors import EngineClosedError, InvalidRequestError
from .lifetime import live_engines, note_closed, note_open, open_or_make_room, shutdown_all
from .opening import Opened
from .outputs import RequestOutput
from .params import RequestOutputKind, SamplingParams, per_prompt
from .params_check import as_float, as_int, bad
from .progress import Progress
from .prompts import check_kind, need_tokenizer, split_call
from .score_face import ScoreFace
from .scores import EngineStats, MemoryReport
from .seeds import fresh_seed
from .shims import EngineShim, ModelConfigShim
from .streams import StreamCall
from .submit_face import SubmitFace, request_names
from .text import TextTable

if TYPE_CHECKING:
    from .plan import MemoryPlan
    from .structured import Grammars
    from .tokenizer import Tokenizer

__all__ = ["LLM", "live_engines", "shutdown_all"]

UseTqdm = bool | Callable[..., Any]


class LLM(ChatFace, ScoreFace, SubmitFace):
    """An engine with its tokenizer: `LLM("path/to/checkpoint")`.

    Arguments: see EngineArgs. An unknown one is a TypeError that names the nearest valid ones.
    """

    def __init__(self, model: Any = "nano", **kwargs: Any) -> None:
        check_names("LLM", kwargs)
        args = EngineArgs(model=model, **kwargs)
        args.check()
        begin_logging(log_level(args.log_level))
        if args.replace:
            shutdown_all()
        try:
            opened: Opened = open_or_make_room(args)
        finally:
            drain_log()
        self._args = args
        self._core = opened.engine
        # called by shutdown, by the garbage collector or at exit: it does not refer to this object
        self._closer = weakref.finalize(self, close_engine, opened.engine, os.getpid())
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
        self._note_rates()
        note_open(self)

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLM:
        values = {field.name: getattr(args, field.name) for field in dataclasses.fields(args)}
        return cls(values.pop("model"), **values)

    @staticmethod
    def plan(
        model_or_config: Any = "nano",
        *,
        gpu: str | int | None = None,
        n_gpu: int | None = None,
        host_memory: str | int | None = None,
        **engine_args: Any,
    ) -> MemoryPlan:
        """What an engine with these arguments would take of a machine's memory, to the byte, and
        what fits: needs no weights and no GPU.

        `model_or_config`: a folder, a config.json or its dict, "nano", "M3.1-Flash" (the release's
        numbers). `gpu`: a name ("H200", "8x H200"), bytes ("80GB"), "cpu"; None is this machine.
        """
        from .plan import make_plan

        return make_plan(
            model_or_config, gpu=gpu, n_gpu=n_gpu, host_memory=host_memory, **engine_args
        )

    def fingerprint(self) -> dict[str, Any]:
        """What decides the tokens of this engine beside the request (build, config, types, mode,
        vocabulary and template), for a report; "id" is a hash of it, the same in every process.
        """
        return fingerprint(self)

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
        refuse_lora(lora_request)
        call = self._call(
            prompts,
            sampling_params,
            use_tqdm,
            tokenization_kwargs,
            priority=priority,
            request_ids=request_ids,
            on_error=on_error,
            timeout=timeout,
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
        min_finished: int | None = None,
    ) -> Iterator[tuple[int, RequestOutput]]:
        """As `generate`, but yields (index, output) as prompts finish and keeps none. Closing it
        aborts the rest. An iterator of prompts is read to its end first: a bad prompt is refused
        before any runs.

        `min_finished`: once that many prompts have finished (with all their samples) the others
        end with what they have, finish_reason "abort".
        """
        if min_finished is not None and as_int("min_finished", min_finished) < 1:
            raise bad("min_finished", min_finished, "it must be at least 1")
        call = self._call(
            prompts,
            sampling_params,
            use_tqdm,
            tokenization_kwargs,
            priority=priority,
            request_ids=request_ids,
            on_error=on_error,
            timeout=timeout,
        )
        call._enough = min_finished
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
        tokenization_kwargs: dict[str, Any] | None,
        **common: Any,
    ) -> Call:
        items, plans = self._plans(
            prompts,
            sampling_params,
            truncation_changes(tokenization_kwargs),
            may_be_empty=common["on_error"] == "return",
        )
        return Call(
            self,
            len(items),
            plans_source(items, plans),
            progress=Progress(len(items), use_tqdm),
            **self._common(len(items), **common),
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
            request_ids = request_names("request_ids", request_ids)
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
        return EngineStats.of(core, prompt_rate, output_rate, self._memory)

    def get_metrics(self) -> list[tuple[str, Any]]:
        """`stats()` as (name, value) pairs."""
        return list(self.stats())

    def memory_report(self) -> MemoryReport:
        """What the engine holds, by purpose."""
        return MemoryReport(self._engine().memory())

    def warmup(
        self, batch_sizes: Sequence[int] | None = None, lengths: Sequence[int] | None = None
    ) -> None:
        """Runs made-up requests of these batch sizes and prompt lengths, so that a measurement does
        not meet cold memory. Their pages are found by no other request.
        """
        sizes = (1, self._facts.max_num_seqs) if batch_sizes is None else batch_sizes
        if lengths is None:
            lengths = (min(128, self._facts.max_model_len - 1),)
        sizes, lengths = _counts("batch_sizes", sizes), _counts("lengths", lengths)
        params = SamplingParams(
            temperature=0.0, max_tokens=2, ignore_eos=True, detokenize=False, seed=0
        )
        for size in sizes:
            for length in lengths:
                ids = [i % min(self._facts.n_vocab, 1000) for i in range(length)]
                prompt = {"prompt_token_ids": ids, "cache_salt": f"warmup {fresh_seed()}"}
                self.generate([prompt] * size, params, use_tqdm=False)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Drops every cached page that no running request uses. With True, running requests are
        aborted first.
        """
        engine = self._engine()
        if reset_running_requests:
            self.abort_all()
        engine.reset_prefix_cache()
        return True

    def reset_mm_cache(self) -> None:
        """Does nothing: no media are taken, so none are cached."""
        self._engine()

    reset_encoder_cache = reset_mm_cache

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
            drain_log()
        self._closer()
        note_closed(self)

    close = shutdown

    @property
    def closed(self) -> bool:
        return bool(self._core.closed)

    def __enter__(self) -> LLM:
        self._engine()
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
        self.check_process()
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


def _counts(param: str, value: Any) -> list[int]:
    """A list of numbers of 1 and more."""
    if not isinstance(value, (list, tuple, range)):
        raise bad(param, value, "a list of integers is needed")
    out = [as_int(param, one) for one in value]
    for one in out:
        if one < 1:
            raise bad(param, one, "it must be 1 or more")
    return out


def refuse_lora(request: Any) -> None:
    if request is not None:
        raise InvalidRequestError(
            "lora_request: LoRA adapters are not supported", param="lora_request"
        )

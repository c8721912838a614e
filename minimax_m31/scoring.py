"""Forward passes without sampling: log-probabilities of given tokens, logits, traces."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .calls import BaseCall, Job, Source, leave_at_exit
from .core_params import Plan, make_plan
from .diagnostics import drain_log
from .errors import InvalidRequestError
from .params import SamplingParams
from .params_check import as_float, as_float32, as_int, bad, id_list
from .progress import Progress
from .prompts import IdArray, Prompt, check_kind, need_tokenizer, read_prompt, split_call, to_ids
from .results import exception_of
from .score_face import PARTS
from .scores import TokenScores, Trace

if TYPE_CHECKING:
    from ._core import Engine
    from .llm import LLM

MIN_TEMPERATURE = 1e-5  # below it the core takes a temperature for 0
_NONE32: IdArray = np.zeros(0, dtype=np.int32)


class _ScoreCall(BaseCall[TokenScores]):
    """Keeps the core's rows as they are: scores need no text and no dicts."""

    top = 0
    wanted: list[int] | None = None

    def _result(self, job: Job) -> TokenScores:
        core = job.samples[0]
        ids = job.ids.tolist()
        if core is None or core["prompt_logprob"] is None:
            return TokenScores(
                ids, len(ids), np.zeros(0, dtype=np.float32), _NONE32, index=job.index
            )
        values, tokens = core["prompt_logprob"], core["prompt_id"]
        out = TokenScores(
            prompt_token_ids=ids,
            start=len(ids) - core["n_prompt_row"],
            logprobs=np.ascontiguousarray(values[:, 0]),
            ranks=np.ascontiguousarray(core["prompt_rank"][:, 0]),
            num_cached_tokens=core["n_cached"],
            index=job.index,
        )
        k = self.top
        if k:
            out.top_ids = np.ascontiguousarray(tokens[:, 1 : 1 + k])
            out.top_logprobs = np.ascontiguousarray(values[:, 1 : 1 + k])
        if self.wanted is not None:
            out.token_ids = np.asarray(self.wanted, dtype=np.int32)
            out.token_id_logprobs = np.ascontiguousarray(values[:, 1 + k :])
        return out


def score_tokens(
    llm: LLM,
    prompts: Any,
    *,
    start: int,
    top_k: int,
    token_ids: Sequence[int] | None,
    temperature: float,
    use_tqdm: bool | Callable[..., Any],
) -> list[TokenScores]:
    """See LLM.score_tokens."""
    items, _ = split_call(prompts)
    for i, item in enumerate(items):
        check_kind(item, i)
    if as_int("start", start) < 1:
        raise InvalidRequestError(
            f"start={start}: position 0 has no predecessor, so 1 is the first",
            param="start",
            value=start,
        )
    if as_int("top_k", top_k) < -1:
        raise InvalidRequestError(
            f"top_k={top_k}: it must be 0 or more, -1 for all", param="top_k", value=top_k
        )
    heat = as_float32(as_float("temperature", temperature))
    if not as_float32(MIN_TEMPERATURE) <= heat < float("inf"):
        raise bad("temperature", temperature, "it must lie in 1e-5 .. 3.4e38")
    wanted = None if token_ids is None else list(dict.fromkeys(id_list("token_ids", token_ids)))
    params = SamplingParams(
        max_tokens=0,
        prompt_logprobs=top_k,
        prompt_logprob_start=start,
        prompt_logprob_token_ids=wanted,
        detokenize=False,
    )
    plan = make_plan(params, llm._facts, llm._tokenizer)
    plan = _at_temperature(plan, temperature)

    def source(index: int) -> tuple[Prompt, Plan, str | None]:
        return read_prompt(items[index], index), plan, None

    return _run_scores(llm, len(items), source, plan, wanted, use_tqdm, "Scoring")


class Scored(NamedTuple):
    """Token ids whose positions from `start` on are scored."""

    ids: IdArray
    start: int


def score(
    llm: LLM, wanted: Sequence[Scored], use_tqdm: bool | Callable[..., Any], what: str
) -> list[TokenScores]:
    """The sampled-nothing half of likelihoods: each prompt has a start of its own."""
    params = SamplingParams(max_tokens=0, prompt_logprobs=0, detokenize=False)
    plan = make_plan(params, llm._facts, llm._tokenizer)
    starts: dict[int, Plan] = {}

    def source(index: int) -> tuple[Prompt, Plan, str | None]:
        one = wanted[index]
        if one.start not in starts:
            mine = copy.copy(plan.params)
            mine.prompt_logprob_start = one.start
            starts[one.start] = dataclasses.replace(plan, params=mine)
        return Prompt(None, one.ids), starts[one.start], None

    return _run_scores(llm, len(wanted), source, plan, None, use_tqdm, what)


def _at_temperature(plan: Plan, temperature: float) -> Plan:
    """log_softmax(logits / temperature) in place of the raw log-probabilities."""
    if temperature == 1.0:
        return plan
    core = {**plan.core, "temperature": float(temperature), "prompt_logprob_mode": "tempered"}
    return dataclasses.replace(plan, core=core)


def _run_scores(
    llm: LLM,
    count: int,
    source: Source,
    plan: Plan,
    wanted: list[int] | None,
    use_tqdm: bool | Callable[..., Any],
    what: str,
) -> list[TokenScores]:
    progress = Progress(count, use_tqdm, what)
    try:
        call = _ScoreCall(llm, count, source, progress=progress)
        call.top, call.wanted = plan.prompt_top or 0, wanted
        out = dict(call)
    finally:
        progress.close()
    return [out[i] for i in range(count)]


def prompt_ids(llm: LLM, prompt: Any, index: int = 0) -> IdArray:
    """Token ids of one prompt of any kind."""
    check_kind(prompt, index)
    read = read_prompt(prompt, index)
    if read.ids is not None:
        return to_ids(read.ids, index, llm._facts.n_vocab)
    tokenizer = need_tokenizer(llm._tokenizer, "a text prompt", "prompt", index)
    assert read.text is not None
    return to_ids(tokenizer.encode(read.text), index, llm._facts.n_vocab)


def _forced(
    value: Any, name: str, layers: int, shapes: list[tuple[int, ...] | None]
) -> list[Any] | None:
    """The caller's choices as contiguous int16 arrays, one per layer,
    None where the model chooses."""
    if value is None:
        return None
    if isinstance(value, np.ndarray) or not isinstance(value, Sequence) or len(value) != layers:
        raise InvalidRequestError(
            f"{name} must be a list with one entry per layer ({layers})", param=name
        )
    out: list[Any] = []
    for i, item in enumerate(value):
        if item is None:
            out.append(None)
            continue
        shape = shapes[i]
        if shape is None:
            raise InvalidRequestError(
                f"{name}[{i}]: layer {i} chooses nothing, so it must be None", param=name, index=i
            )
        try:
            given = np.asarray(item)
        except ValueError as error:
            raise InvalidRequestError(
                f"{name}[{i}]: an array of integers is needed ({error})", param=name, index=i
            ) from None
        if given.shape != shape:
            raise InvalidRequestError(
                f"{name}[{i}] has shape {given.shape}, expected {shape}", param=name, index=i
            )
        if given.dtype.kind not in "iu":
            raise InvalidRequestError(
                f"{name}[{i}]: an array of integers is needed, not of {given.dtype}",
                param=name,
                value=item,
                index=i,
            )
        if given.size and (given.min() < -1 or given.max() > np.iinfo(np.int16).max):
            wrong = given.min() if given.min() < -1 else given.max()
            raise InvalidRequestError(
                f"{name}[{i}] holds {wrong}, which names nothing: see Trace for what it may hold",
                param=name,
                value=int(wrong),
                index=i,
            )
        out.append(np.ascontiguousarray(given, dtype=np.int16))
    return out


def run_trace(
    llm: LLM,
    ids: IdArray,
    *,
    parts: Sequence[str],
    force_blocks: Any = None,
    force_experts: Any = None,
) -> Trace:
    """One forward pass over `ids` whose rows are written into new arrays. No prefix cache."""
    for part in parts:
        if part not in PARTS:
            raise InvalidRequestError(
                f"what={part!r}: the parts are {', '.join(map(repr, PARTS))}",
                param="what",
                value=part,
            )
    config, length = llm._config, len(ids)
    layers = range(config["n_layer"])
    width = min(config["n_top_block"], -(-length // 128))
    sparse = [bool(flag) for flag in config["layer_is_sparse"]]
    moe = [bool(flag) for flag in config["layer_is_moe"]]
    block_shape = (config["n_index_head"], length, width)
    expert_shape = (length, config["n_expert_used"])
    trace = Trace(ids)

    def arrays(flags: list[bool], shape: tuple[int, ...], dtype: npt.DTypeLike) -> list[Any]:
        return [np.empty(shape, dtype=dtype) if flags[i] else None for i in layers]

    if "hidden" in parts:
        trace.hidden = [np.empty((length, config["d_model"]), dtype=np.float32) for _ in layers]
    if "blocks" in parts:
        trace.blocks = arrays(sparse, block_shape, np.int16)
    if "experts" in parts:
        trace.experts = arrays(moe, expert_shape, np.int16)
        trace.expert_weights = arrays(moe, expert_shape, np.float32)
    if "logits" in parts:
        trace.logits = np.empty((length, config["n_vocab"]), dtype=np.float32)
    n = config["n_layer"]
    blocks = _forced(
        force_blocks, "force_blocks", n, [block_shape if flag else None for flag in sparse]
    )
    experts = _forced(
        force_experts, "force_experts", n, [expert_shape if flag else None for flag in moe]
    )
    core = _run(
        llm,
        ids,
        {
            "logits": trace.logits,
            "hidden": trace.hidden,
            "blocks": trace.blocks,
            "experts": trace.experts,
            "expert_weights": trace.expert_weights,
            "force_blocks": blocks,
            "force_experts": experts,
            "blocks_width": width,
        },
    )
    if core["error"] is not None:
        raise exception_of(core["error"], 0)
    return trace


def _run(llm: LLM, ids: IdArray, arrays: dict[str, Any]) -> dict[str, Any]:
    """Submits a trace and waits for it.

    When the wait is interrupted a step may still be writing into the arrays, so the request is left
    to end by itself; the next trace releases it, and with it the arrays.
    """
    engine = llm._engine()
    _release_left(llm, engine)
    waiter = engine.waiter()
    try:
        request = engine.submit_trace(waiter, ids, **arrays)
    except BaseException:
        waiter.close()
        raise
    try:
        while True:
            waiter.wait(0.5)
            core = engine.read(request)
            if core["finish"] != "none":
                break
    except BaseException as error:
        leave_at_exit(error)
        if not engine.closed:
            engine.abort([request])
            llm._left_traces.append((waiter, request))
        raise
    engine.release(request)
    waiter.close()
    drain_log()
    return core


def _release_left(llm: LLM, engine: Engine) -> None:
    for entry in list(llm._left_traces):
        waiter, request = entry
        if engine.read(request)["finish"] != "none":
            llm._left_traces.remove(entry)
            engine.release(request)
            waiter.close()

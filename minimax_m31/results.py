"""What the core reports about requests -> RequestOutput, and core errors -> exceptions."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from . import errors
from .core_params import Plan
from .errors import InvalidRequestError
from .logprobs import FlatLogprobs, LogprobRows, flatten
from .outputs import (
    CompletionOutput,
    LogprobList,
    RequestError,
    RequestMetrics,
    RequestOutput,
    SpecMetrics,
)
from .text import Cut, TextTable, last_token_cut, view

# Class of each status name that a request can end with.
_CLASSES: dict[str, type[Exception]] = {
    "invalid": InvalidRequestError,
    "shape": InvalidRequestError,
    "too_long": errors.PromptTooLongError,
    "grammar": errors.GrammarError,
    "grammar_dead_end": errors.GrammarError,
    "config": errors.ConfigError,
    "format": errors.ConfigError,
    "closed": errors.EngineClosedError,
    "dead": errors.EngineDeadError,
    "device": errors.EngineDeadError,
    "comm": errors.EngineDeadError,
    "nomem": errors.OutOfDeviceMemoryError,
    "unsupported": NotImplementedError,
}


def exception_of(error: tuple[str, str, str | None, int | None], index: int) -> Exception:
    """The exception of a request that the core ended with an error."""
    status, message, param, _ = error
    cls = _CLASSES.get(status, errors.EngineDeadError)
    made = (
        cls(message, param=param, index=index)
        if issubclass(cls, InvalidRequestError)
        else cls(message)
    )
    made.code = status  # type: ignore[attr-defined]
    return made


def dead_end(core: dict[str, Any], problem: str) -> None:
    """Names the error of a constrained sequence whose grammar and masks left no token. `problem`:
    what its grammar met, "" when it only allows nothing.
    """
    if core["finish"] == "error" and core["error"][0] == "invalid":
        _, message, _, index = core["error"]
        if problem:
            message = f"the grammar could not be followed: {problem}; simplify it"
        core["error"] = ("grammar_dead_end", message, "structured_outputs", index)


def error_record(error: Exception) -> RequestError:
    """`RequestOutput.error` of an exception."""
    named = (name for name, cls in _CLASSES.items() if type(error) is cls)
    code = getattr(error, "code", None) or next(named, "invalid")
    return RequestError(code, str(error), getattr(error, "param", None))


def unstarted_output(
    error: Exception | None, *, request_id: str, index: int, prompt: str | None, ids: list[int]
) -> RequestOutput:
    """The output of a prompt that never ran: refused with an error, or left when time was up
    (None).
    """
    now = time.monotonic()
    return RequestOutput(
        request_id=request_id,
        index=index,
        prompt=prompt,
        prompt_token_ids=ids,
        outputs=[CompletionOutput(finish_reason="abort" if error is None else "error")],
        finished=True,
        metrics=RequestMetrics(
            arrival_time=now, queued_ts=now, finished_ts=now, num_prompt_tokens=len(ids)
        ),
        error=None if error is None else error_record(error),
    )


def stop_reason(core: dict[str, Any], plan: Plan) -> int | str | None:
    kind = core["stop"]
    if kind == "token":
        return int(core["stop_index"])
    if kind == "string":
        return plan.stop_texts[int(core["stop_index"])]
    named = {"repetition": "repetition", "max_tokens": "max_tokens", "model_len": "max_model_len"}
    return named.get(str(kind))


def text_cut(core: dict[str, Any], table: TextTable, tokens: list[int]) -> Cut | None:
    """Where the text of a sequence that ended by a stop is cut; None when all of it is shown."""
    if core["stop"] == "string":
        return Cut(int(core["stop_begin"]), int(core["stop_end"]))
    if core["stop"] in ("token", "eos") and tokens:
        return last_token_cut(table, tokens)
    return None


def logprob_rows(core: dict[str, Any], plan: Plan, table: TextTable | None) -> LogprobList | None:
    if plan.top is None or core["logprob"] is None:
        return None
    flat = flatten(core["logprob_id"], core["logprob"], core["logprob_rank"], plan.top, table=table)
    return flat if plan.params.flat_logprobs else LogprobRows(flat)


def prompt_rows(core: dict[str, Any], plan: Plan, table: TextTable | None) -> LogprobList | None:
    """One row per prompt token; those before the first scored one are None."""
    if plan.prompt_top is None:
        return None
    missing = core["n_prompt"] - core["n_prompt_row"]
    if core["prompt_logprob"] is None:  # nothing scored: one token, or ended before
        empty = np.zeros(core["n_prompt"], dtype=np.int64)
        none32 = np.zeros(0, dtype=np.int32)
        flat = FlatLogprobs(empty, empty, none32, np.zeros(0, dtype=np.float32), none32, table)
        missing = core["n_prompt"]
    else:
        flat = flatten(
            core["prompt_id"],
            core["prompt_logprob"],
            core["prompt_rank"],
            plan.prompt_top,
            none_rows=missing,
            table=table,
        )
    return flat if plan.params.flat_logprobs else LogprobRows(flat, missing)


def completion(
    core: dict[str, Any],
    plan: Plan,
    table: TextTable | None,
    *,
    index: int,
    seed: int,
    raw_text: bool = False,
) -> CompletionOutput:
    """One sample. `raw_text`: special tokens are kept whatever the parameters say (chat: `text`
    keeps everything).
    """
    p = plan.params
    tokens: list[int] = core["token"].tolist()
    finish = None if core["finish"] == "none" else core["finish"]
    out = CompletionOutput(index=index, token_ids=tokens, finish_reason=finish, seed=seed)
    if finish is not None:
        out.stop_reason = stop_reason(core, plan)
    include = p.include_stop_str_in_output
    if table is not None:
        cut = text_cut(core, table, tokens)
        shown = view(
            table,
            tokens,
            cut,
            skip_special=p.skip_special_tokens and not raw_text,
            include_stop=include,
        )
        out.num_text_tokens = shown.num_text_tokens
        if p.detokenize:
            out.text = shown.text
    else:
        out.num_text_tokens = len(tokens) - (core["stop"] in ("token", "eos") and not include)
    if plan.top is not None and core["logprob"] is not None:
        out.token_logprobs = np.ascontiguousarray(core["logprob"][:, 0])
        out.cumulative_logprob = float(out.token_logprobs.sum(dtype=np.float64))
        out.logprobs = logprob_rows(core, plan, table)
    out.sampling_logprobs = core["sampling_logprob"]
    out.num_preempted = core["n_preempted"]
    if tokens:
        out.weight_versions = [(0, core["weight_version"])]
    return out


def metrics(samples: list[dict[str, Any]]) -> RequestMetrics:
    """Of all samples of a request together: first in, last out."""

    def earliest(name: str) -> float:
        return min((core[name] for core in samples if core[name] > 0), default=0.0)

    def latest(name: str) -> float:
        return max((core[name] for core in samples), default=0.0)

    def total(name: str) -> int:
        return sum(core[name] for core in samples)

    arrival = earliest("t_submit")
    return RequestMetrics(
        arrival_time=arrival,
        queued_ts=arrival,
        scheduled_ts=earliest("t_scheduled"),
        first_token_ts=earliest("t_first"),
        last_token_ts=latest("t_last"),
        finished_ts=latest("t_done") if all(core["t_done"] > 0 for core in samples) else 0.0,
        num_prompt_tokens=samples[0]["n_prompt"] if samples else 0,
        num_generation_tokens=total("n_token"),
        num_preemptions=total("n_preempted"),
        num_thinking_tokens=total("n_think_token"),
        spec=SpecMetrics(total("n_draft"), total("n_draft_accepted"), total("n_verify")),
    )

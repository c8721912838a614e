"""SamplingParams -> the dict that the core takes (fields of mm_request_params by name).

What depends on the parameters alone is made once per distinct object of a call (`Plan`); a request
adds its own lengths, seed and group. Nothing here draws a conclusion about values that the core
does not check again.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequestError
from .params import SamplingParams
from .params_check import LOGPROB_MODES, bad, check_against_engine, logprob_count, repetition
from .prompts import need_tokenizer

if TYPE_CHECKING:
    from .structured import Grammar, Grammars
    from .tokenizer import Tokenizer


logger = logging.getLogger("minimax_m31")


@dataclasses.dataclass(frozen=True)
class EngineFacts:
    """What requests need to know about the engine they go to."""

    n_vocab: int
    max_model_len: int
    max_num_seqs: int
    max_logprobs: int  # -1: no limit
    default_max_tokens: int
    logprobs_mode: str
    has_priority: bool
    eos_token_ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Plan:
    """A snapshot of one SamplingParams, checked, with its part of the core's dict."""

    params: SamplingParams
    core: dict[str, Any]
    stops: tuple[bytes, ...]
    stop_texts: tuple[str, ...]
    end_ids: frozenset[int]  # ids that end the sequence
    top: int | None  # log-probability entries beside the sampled token
    prompt_top: int | None
    grammar: Grammar | None = None

    def constrained(self, grammar: Grammar) -> Plan:
        """The same with a grammar that every token must follow."""
        return dataclasses.replace(self, core={**self.core, "want_mask": 1}, grammar=grammar)


def _unique(ids: Any) -> list[int]:
    return list(dict.fromkeys(int(i) for i in ids))


def bad_word_ids(tokenizer: Tokenizer, words: list[str]) -> list[list[int]]:
    """Each word as it is and with a leading space, every encoding once."""
    out: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, " " + word.lstrip()):
            ids = tuple(tokenizer.encode(text))
            if ids:
                out[ids] = None
    return [list(ids) for ids in out]


def make_plan(
    params: SamplingParams,
    facts: EngineFacts,
    tokenizer: Tokenizer | None,
    *,
    think_start: str | None = None,
    grammars: Callable[[str], Grammars] | None = None,
) -> Plan:
    """Checks a snapshot against the engine. `think_start`: state at the generation boundary; None
    outside chat. `grammars`: where structured_outputs are compiled.
    """
    p = params.clone()
    p.validate()
    check_against_engine(p, facts.n_vocab, facts.max_logprobs)
    top, prompt_top = logprob_count(p.logprobs), logprob_count(p.prompt_logprobs)
    if top is None and p.logprob_token_ids:
        top = 0
    if prompt_top is None and p.prompt_logprob_token_ids:
        prompt_top = 0
    top = facts.n_vocab if top == -1 else None if top is None else min(top, facts.n_vocab)
    prompt_top = (
        facts.n_vocab
        if prompt_top == -1
        else None
        if prompt_top is None
        else min(prompt_top, facts.n_vocab)
    )
    mode = p.logprobs_mode or facts.logprobs_mode
    if top is not None and mode == "processed_logprobs" and (p.top_p < 1 or p.top_k > 0):
        _warn_processed()
    core: dict[str, Any] = {
        "min_tokens": p.min_tokens,
        "temperature": float(p.temperature),
        "top_k": max(0, p.top_k),
        "top_p": float(p.top_p),
        "min_p": float(p.min_p),
        "repetition_penalty": float(p.repetition_penalty),
        "frequency_penalty": float(p.frequency_penalty),
        "presence_penalty": float(p.presence_penalty),
        "ignore_eos": int(p.ignore_eos),
        "skip_prefix_read": int(bool(p.skip_reading_prefix_cache)),
        "n_logprob": -1 if top is None else top,
        "logprob_mode": LOGPROB_MODES[mode],
        "want_sampling_logprob": int(p.return_sampling_logprob),
    }
    if p.logit_bias:
        core["bias_token"] = [int(token) for token in p.logit_bias]
        core["bias_value"] = [float(value) for value in p.logit_bias.values()]
    if p.allowed_token_ids is not None:
        core["allowed_token"] = _unique(p.allowed_token_ids)
    if p.stop_token_ids:
        core["stop_token"] = _unique(p.stop_token_ids)
    if p.logprob_token_ids:
        core["logprob_token"] = _unique(p.logprob_token_ids)
    if p.prompt_logprob_token_ids:
        core["prompt_logprob_token"] = _unique(p.prompt_logprob_token_ids)
    if p.trace_decode_token_ids:
        core["forced_token"] = [int(token) for token in p.trace_decode_token_ids]
    if p.bad_words:
        core["bad_words"] = bad_word_ids(
            need_tokenizer(tokenizer, "bad_words", "bad_words"), p.bad_words
        )
    stop_texts = tuple(p.stop_strings())
    if stop_texts:
        need_tokenizer(tokenizer, "stop", "stop")
        core["stop"] = [text.encode("utf-8", "replace") for text in stop_texts]
    loop = repetition(p)
    if loop is not None:
        core["rep_min_size"], core["rep_max_size"], core["rep_min_count"] = loop
    _add_thinking(core, p, tokenizer, think_start)
    ends = set(p.stop_token_ids or ())
    if not p.ignore_eos:
        ends.update(facts.eos_token_ids)
    plan = Plan(p, core, tuple(core.get("stop", ())), stop_texts, frozenset(ends), top, prompt_top)
    if p.structured_outputs is None or grammars is None:
        return plan
    return plan.constrained(grammars("structured_outputs").of_params(p.structured_outputs))


@functools.cache
def _warn_processed() -> None:
    logger.warning(
        "logprobs_mode='processed_logprobs' with top_p or top_k: the values are renormalised over "
        "the tokens that were kept, so a recomputation over the whole vocabulary differs by the "
        "log of the kept mass; 'tempered_logprobs' is what a trainer recomputes"
    )


def _add_thinking(
    core: dict[str, Any], p: SamplingParams, tokenizer: Tokenizer | None, start: str | None
) -> None:
    """The thinking span is followed in chat, and wherever a parameter speaks of it."""
    budget = p.thinking_token_budget
    limited = budget is not None and budget >= 0
    scope = p.stop_scope or ("all" if start is None else "content")
    if start is None and not limited and p.stop_scope != "content":
        core["stop_in_thinking"] = 1
        return
    if tokenizer is None:
        if not limited and p.stop_scope is None:
            return
        need_tokenizer(
            tokenizer,
            "following the thinking span",
            "thinking_token_budget" if limited else "stop_scope",
        )
    assert tokenizer is not None
    from .chat.marks import THINK_CLOSE, THINK_OPEN  # late: the chat package loads jinja2

    core["think_start"] = start or "adaptive"
    core["think_open"] = THINK_OPEN.encode()
    core["think_close"] = THINK_CLOSE.encode()
    core["think_close_token"] = tokenizer.token_id(THINK_CLOSE)
    core["stop_in_thinking"] = int(scope == "all")
    if limited:
        core["think_budget"] = budget


def prompt_logprob_start(p: SamplingParams, n_prompt: int) -> int:
    """First scored position: 1 unless asked for, and never past the end."""
    return min(max(1, p.prompt_logprob_start or 1), n_prompt)


def stream_interval(plans: list[Plan]) -> int:
    return min((plan.params.stream_interval or 1 for plan in plans), default=1)


def truncation_changes(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """`tokenization_kwargs` that other engines take: truncation, and add_special_tokens=False
    (always so here).
    """
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise bad("tokenization_kwargs", kwargs, "a dict is needed")
    out: dict[str, Any] = {}
    for name, value in (kwargs or {}).items():
        if name in ("truncate_prompt_tokens", "truncation_side"):
            out[name] = value
        elif name != "add_special_tokens" or value:
            raise InvalidRequestError(
                f"tokenization_kwargs: {name}={value!r} is not possible; truncate_prompt_tokens, "
                "truncation_side and "
                "add_special_tokens=False are",
                param="tokenization_kwargs",
                value=kwargs,
            )
    return out

"""Log-likelihoods and perplexities as evaluation harnesses define them, on top of score_tokens.

A pair is scored in one forward pass over context + continuation; only positions from the split on
are scored, so contexts that begin alike share their pages. A document is cut into windows in which
every token is predicted exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import InvalidRequestError, PromptTooLongError
from .params_check import as_int, bad
from .prompts import IdArray, need_tokenizer, split_call, to_ids
from .scores import PerplexityResult, TokenScores
from .scoring import Scored, score

if TYPE_CHECKING:
    from .llm import LLM

logger = logging.getLogger("minimax_m31")


class Pair(NamedTuple):
    """Token ids, the first `n_context` of which are only read."""

    ids: IdArray
    n_context: int


def prefix_id(llm: LLM, given: int | None) -> int:
    """The token that stands for an empty context."""
    if given is not None:
        wanted = as_int("prefix_token_id", given)
        if not 0 <= wanted < llm._facts.n_vocab:
            raise bad("prefix_token_id", given, f"token ids lie in 0 .. {llm._facts.n_vocab - 1}")
        return wanted
    return need_tokenizer(
        llm._tokenizer, "the token that opens a document", "prefix_token_id"
    ).document_start_id


def split_texts(context: str, continuation: str) -> tuple[str, str]:
    """Blanks at the end of the context go to the continuation: tokens begin with them."""
    kept = context.rstrip()
    return kept, context[len(kept) :] + continuation


def _pairs(
    llm: LLM, contexts: Sequence[Any], continuations: Sequence[Any], prefix: Callable[[], int]
) -> list[Pair]:
    """The token ids of every pair. Texts are encoded together, then split where the context's own
    encoding ends.
    """
    texts: list[str] = []
    split: list[tuple[str, str] | None] = []
    for i, (context, continuation) in enumerate(zip(contexts, continuations, strict=True)):
        if isinstance(context, str) and isinstance(continuation, str):
            one = split_texts(context, continuation)
            split.append(one)
            texts += [one[0], one[0] + one[1]]
        elif isinstance(context, str) or isinstance(continuation, str):
            raise InvalidRequestError(
                f"contexts[{i}] and continuations[{i}] must both be texts, or both token ids",
                param="continuations",
                index=i,
            )
        else:
            split.append(None)
    encoded = iter(())  # type: Any
    if texts:
        tokenizer = need_tokenizer(llm._tokenizer, "a text", "contexts")
        encoded = iter(tokenizer.batch_encode(texts, num_threads=llm._encode_threads(len(texts))))
    out = []
    for i, one_split in enumerate(split):
        if one_split is not None:
            n_context, whole = len(next(encoded)), list(next(encoded))
        else:
            whole = [*contexts[i], *continuations[i]]
            n_context = len(contexts[i])
        if n_context == 0 and len(whole) > 0:
            # A continuation that begins with the prefix itself brings its context along.
            first = prefix()
            whole = whole if whole[0] == first and len(whole) > 1 else [first, *whole]
            n_context = 1
        out.append(Pair(to_ids(whole, i, llm._facts.n_vocab) if whole else _NO_IDS, n_context))
    return out


_NO_IDS: IdArray = np.zeros(0, dtype=np.int32)


def loglikelihood(
    llm: LLM,
    contexts: Sequence[Any],
    continuations: Sequence[Any],
    prefix_token_id: int | None,
    use_tqdm: bool | Callable[..., Any],
) -> list[tuple[float, bool]]:
    """See LLM.loglikelihood."""
    for name, value in (("contexts", contexts), ("continuations", continuations)):
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise bad(name, value, "a list is needed, one entry for each pair")
    if len(contexts) != len(continuations):
        raise InvalidRequestError(
            f"{len(contexts)} contexts and {len(continuations)} continuations: as many are needed",
            param="continuations",
        )
    known: list[int] = []

    def prefix() -> int:
        if not known:
            known.append(prefix_id(llm, prefix_token_id))
        return known[0]

    if prefix_token_id is not None:
        prefix()
    most = llm._facts.max_model_len
    wanted: list[Scored] = []
    owner: list[int] = []
    n_cut = 0
    for i, pair in enumerate(_pairs(llm, contexts, continuations, prefix)):
        length = len(pair.ids)
        if length <= pair.n_context:
            continue  # nothing to predict: probability 1
        cut = max(0, length - most)
        if cut >= pair.n_context:
            raise PromptTooLongError(
                f"continuations[{i}] has {length - pair.n_context} tokens: with a context of at "
                f"least one, {most - 1} fit (max_model_len)",
                param="continuations",
                index=i,
            )
        n_cut += cut > 0
        wanted.append(Scored(pair.ids[cut:], pair.n_context - cut))
        owner.append(i)
    if n_cut:
        logger.warning("%d contexts were longer than the model length and lost their start", n_cut)
    out: list[tuple[float, bool]] = [(0.0, True)] * len(contexts)
    for i, scores in zip(owner, score(llm, wanted, use_tqdm, "Pairs"), strict=True):
        out[i] = (scores.sum, bool(scores.is_greedy.all()))
    return out


def windows(n_token: int, max_length: int, stride: int) -> list[tuple[int, int, int]]:
    """(begin, first, end) of each window over positions 0 (the prefix) .. n_token: positions
    [first, end] are predicted from [begin, end).
    """
    out = []
    done = 0
    while done < n_token:
        end = min(n_token, done + (max_length if done == 0 else stride))
        out.append((max(0, end - max_length), done + 1, end))
        done = end
    return out


def perplexity(
    llm: LLM,
    texts: Any,
    max_length: int | None,
    stride: int | None,
    prefix_token_id: int | None,
    use_tqdm: bool | Callable[..., Any],
) -> list[PerplexityResult]:
    """See LLM.perplexity."""
    most = llm._facts.max_model_len - 1  # of the input: the last token is only predicted
    length = most if max_length is None else as_int("max_length", max_length)
    if not 1 <= length <= most:
        raise bad("max_length", max_length, f"it must lie in 1 .. {most} (max_model_len - 1)")
    step = length if stride is None else as_int("stride", stride)
    if not 1 <= step <= length:
        raise bad("stride", stride, f"it must lie in 1 .. max_length ({length})")
    items, _ = split_call(texts)
    prefix = prefix_id(llm, prefix_token_id)
    plain = [item for item in items if isinstance(item, str)]
    encoded: Any = iter(())
    if plain:
        tokenizer = need_tokenizer(llm._tokenizer, "a text", "texts")
        encoded = iter(tokenizer.batch_encode(plain, num_threads=llm._encode_threads(len(plain))))
    wanted: list[Scored] = []
    counts: list[int] = []
    for i, item in enumerate(items):
        ids = next(encoded) if isinstance(item, str) else list(item)
        all_ids = to_ids([prefix, *ids], i, llm._facts.n_vocab)
        parts = windows(len(ids), length, step)
        counts.append(len(parts))
        wanted += [Scored(all_ids[begin : end + 1], first - begin) for begin, first, end in parts]
    scores = iter(score(llm, wanted, use_tqdm, "Windows"))
    return [
        _joined([next(scores) for _ in range(count)], item)
        for count, item in zip(counts, items, strict=True)
    ]


def _joined(parts: list[TokenScores], item: Any) -> PerplexityResult:
    empty = np.zeros(0, dtype=np.float32)
    return PerplexityResult(
        token_logprobs=np.concatenate([part.logprobs for part in parts]) if parts else empty,
        num_bytes=len(item.encode()) if isinstance(item, str) else None,
        num_windows=len(parts),
    )

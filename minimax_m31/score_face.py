"""The part of LLM that samples nothing: log-probabilities of given texts, logits, traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .bookkeeping import Bookkeeping
from .params_check import bad
from .scores import PerplexityResult, TokenScores, Trace

if TYPE_CHECKING:
    from .llm import LLM

PARTS = ("hidden", "blocks", "experts", "logits")


class ScoreFace(Bookkeeping):
    """Base of LLM: forward passes."""

    def score_tokens(
        self,
        prompts: Any,
        *,
        start: int = 1,
        top_k: int = 0,
        token_ids: Sequence[int] | None = None,
        temperature: float = 1.0,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[TokenScores]:
        """log p of the prompts' own tokens from position `start` on, with ranks and the `top_k`
        best beside them.

        Nothing is sampled, so a prompt may fill the whole context. Positions before `start` may
        come from the cache.
        """
        from .scoring import score_tokens

        llm = cast("LLM", self)
        llm._engine()
        return score_tokens(
            llm,
            prompts,
            start=start,
            top_k=top_k,
            token_ids=token_ids,
            temperature=temperature,
            use_tqdm=use_tqdm,
        )

    def loglikelihood(
        self,
        contexts: Sequence[Any],
        continuations: Sequence[Any],
        *,
        prefix_token_id: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[tuple[float, bool]]:
        """(log p of the continuation after its context, whether greedy decoding would give it) for
        each pair of texts (or of lists of token ids).

        Blanks at the end of a context belong to its continuation. An empty context stands for
        `prefix_token_id`; None is the token that opens a document. Contexts that are too long lose
        their beginning, with a warning.
        """
        from .likelihood import loglikelihood

        llm = cast("LLM", self)
        llm._engine()
        return loglikelihood(llm, contexts, continuations, prefix_token_id, use_tqdm)

    def perplexity(
        self,
        texts: Any,
        *,
        max_length: int | None = None,
        stride: int | None = None,
        prefix_token_id: int | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
    ) -> list[PerplexityResult]:
        """How well each text (or list of token ids) is predicted, every token once.

        A text is read in windows of at most `max_length` tokens of input (None: what the engine
        takes), each predicting `stride` new ones (None: as many as fit); the first window begins
        with the prefix token of `loglikelihood`.
        """
        from .likelihood import perplexity

        llm = cast("LLM", self)
        llm._engine()
        return perplexity(llm, texts, max_length, stride, prefix_token_id, use_tqdm)

    def compute_logits(self, token_ids: Any) -> Any:
        """float32 [L, vocabulary]: the logits at every position. No prefix cache. A list of prompts
        gives a list of arrays.
        """
        traced = self.trace(token_ids, what=("logits",))
        return [one.logits for one in traced] if isinstance(traced, list) else traced.logits

    def trace(
        self,
        token_ids: Any,
        *,
        what: str | Sequence[str] = PARTS,
        force_blocks: Sequence[Any] | None = None,
        force_experts: Sequence[Any] | None = None,
    ) -> Any:
        """One forward pass, with what the layers computed at all positions: a Trace. A list of
        prompts gives a list of them.

        `force_blocks`, `force_experts`: choices to take instead of the model's, one array per layer
        or None; for several prompts a list of such lists.
        """
        from .prompts import split_call
        from .scoring import prompt_ids, run_trace

        llm = cast("LLM", self)
        if not isinstance(what, Iterable):
            raise bad("what", what, f"the parts are {', '.join(map(repr, PARTS))}")
        parts = (what,) if isinstance(what, str) else tuple(what)
        items, single = split_call(token_ids) if not _is_empty(token_ids) else ([token_ids], True)
        ids = [prompt_ids(llm, item, i) for i, item in enumerate(items)]
        forced: list[list[Any]] = []
        for name, value in (("force_blocks", force_blocks), ("force_experts", force_experts)):
            each = [value] if single else [None] * len(ids) if value is None else list(value)
            if len(each) != len(ids):
                raise bad(name, f"{len(each)} entries", f"one for each of {len(ids)} prompts")
            forced.append(each)
        out: list[Trace] = [
            run_trace(llm, one, parts=parts, force_blocks=blocks, force_experts=experts)
            for one, blocks, experts in zip(ids, *forced, strict=True)
        ]
        return out[0] if single else out


def _is_empty(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 0

"""Forward passes without sampling: likelihoods and perplexities against the logits they come from,
temperatures, long prompts in bounded memory, traces of several prompts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from api_models import ids_llm, rss_bytes, text_llm

from minimax_m31 import LLM, InvalidRequestError, PromptTooLongError, SamplingParams
from minimax_m31.likelihood import split_texts, windows

PROMPT = [5, 17, 3, 200, 44, 9, 5, 17]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with ids_llm() as engine:
        yield engine


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with text_llm(tmp_path_factory.mktemp("scores") / "model") as engine:
        yield engine


def reference(llm: LLM, ids: list[int], temperature: float = 1.0) -> tuple[Any, Any]:
    """(log p of position i + 1 at i, the arg-max at i) in double precision from the logits."""
    logits = llm.compute_logits(ids).astype(np.float64) / temperature
    top = logits.max(axis=1, keepdims=True)
    logp = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return logp, logits.argmax(axis=1)


# ---------------------------------------------------------------- likelihoods


def pair_by_hand(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """The rule of the harnesses, step by step."""
    encode = llm.get_tokenizer().encode
    while context and context[-1].isspace():
        context, continuation = context[:-1], context[-1] + continuation
    whole, n = list(encode(context + continuation)), len(encode(context))
    if n == 0:
        whole, n = [llm.get_tokenizer().document_start_id, *whole], 1
    logp, best = reference(llm, whole)
    rows = range(n - 1, len(whole) - 1)
    return (
        sum(float(logp[i, whole[i + 1]]) for i in rows),
        all(int(best[i]) == whole[i + 1] for i in rows),
    )


def test_loglikelihood_of_texts(text: LLM) -> None:
    pairs = [
        ("The capital of France is", " Paris"),
        ("The capital of France is ", "Paris"),
        ("The capital of France is   ", "London and Paris"),
        ("", "A text that begins"),
        ("  ", "blanks only"),
        ("Question: 2 + 2\nAnswer:", " 4"),
        ("x", ""),
    ]
    got = text.loglikelihood([c for c, _ in pairs], [t for _, t in pairs], use_tqdm=False)
    for (context, continuation), (value, greedy) in zip(pairs, got, strict=True):
        want, want_greedy = pair_by_hand(text, context, continuation)
        assert value == pytest.approx(want, abs=1e-4)
        assert greedy == want_greedy
    assert got[1] == got[0]  # blanks belong to the continuation
    assert got[-1] == (0.0, True)
    assert split_texts("a \n", "b") == ("a", " \nb")


def test_loglikelihood_is_greedy(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    best = llm.generate(PROMPT, params)[0].outputs[0].token_ids
    other = [*best[:-1], (best[-1] + 1) % 256]
    got = llm.loglikelihood([PROMPT] * 2, [best, other], use_tqdm=False)
    assert [greedy for _, greedy in got] == [True, False]
    logp, _ = reference(llm, PROMPT + other)
    n = len(PROMPT)
    want = sum(float(logp[n - 1 + i, token]) for i, token in enumerate(other))
    assert got[1][0] == pytest.approx(want, abs=1e-4)


def test_loglikelihood_shares_the_context(llm: LLM) -> None:
    context = [i % 200 for i in range(512)]
    pairs = [[7], [8], [9, 10]]
    alone = [llm.loglikelihood([context], [one], use_tqdm=False)[0] for one in pairs]
    before = llm.stats().num_cached_tokens
    assert llm.loglikelihood([context] * 3, pairs, use_tqdm=False) == alone
    assert llm.stats().num_cached_tokens - before >= 3 * 384


def test_loglikelihood_fills_the_context_and_cuts_its_start(caplog: Any) -> None:
    with ids_llm(max_model_len=128) as llm:
        context = [i % 200 for i in range(200)]
        full = llm.loglikelihood([context[-126:]], [[5, 6]], use_tqdm=False)
        assert llm.loglikelihood([context], [[5, 6]], use_tqdm=False) == full
        assert "lost their start" in caplog.text
        with pytest.raises(PromptTooLongError, match="127 fit"):
            llm.loglikelihood([[1]], [[2] * 128], use_tqdm=False)


def test_loglikelihood_arguments(llm: LLM, text: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prefix_token_id|tokenizer"):
        llm.loglikelihood([[]], [[1, 2]])
    got = llm.loglikelihood([[], [9]], [[1, 2], [1, 2]], prefix_token_id=9, use_tqdm=False)
    assert got[0] == got[1]
    assert llm.loglikelihood([], []) == []
    for contexts, continuations, word in (
        (["a"], [], "as many"),
        ("a", ["b"], "contexts"),
        (["a"], [[1]], "both"),
    ):
        with pytest.raises(InvalidRequestError, match=word):
            text.loglikelihood(contexts, continuations)
    with pytest.raises(InvalidRequestError, match="prefix_token_id"):
        llm.loglikelihood([[]], [[1]], prefix_token_id=256)


@pytest.mark.parametrize("n", [1, 2, 9, 10, 11, 25, 40])
@pytest.mark.parametrize("length,stride", [(10, 10), (10, 3), (1, 1), (64, 64)])
def test_windows_predict_every_token_once(n: int, length: int, stride: int) -> None:
    seen: list[int] = []
    for i, (begin, first, end) in enumerate(windows(n, length, stride)):
        assert 0 <= begin < first <= end <= n
        assert end - begin <= length  # tokens that are fed
        assert i == 0 or begin == end - length  # as much context as there is room for
        seen += range(first, end + 1)
    assert seen == list(range(1, n + 1))


def test_perplexity(llm: LLM, text: LLM) -> None:
    rng = random.Random(3)
    ids = [rng.randrange(256) for _ in range(50)]
    one = llm.perplexity([ids], prefix_token_id=1, use_tqdm=False)[0]
    logp, _ = reference(llm, [1, *ids])
    want = [float(logp[i, token]) for i, token in enumerate(ids)]
    assert one.num_tokens == 50
    assert one.num_windows == 1
    assert np.allclose(one.token_logprobs, want, atol=1e-4)
    assert one.perplexity == pytest.approx(math.exp(-sum(want) / 50), rel=1e-4)
    cut = llm.perplexity([ids], max_length=20, stride=5, prefix_token_id=1, use_tqdm=False)[0]
    assert cut.num_tokens == 50
    assert cut.num_windows == 1 + 6
    assert np.allclose(cut.token_logprobs[:20], want[:20], atol=1e-4)
    last, _ = reference(llm, ids[29:])  # the last window: 20 tokens in, 5 of them predicted
    assert cut.token_logprobs[-1] == pytest.approx(float(last[-2, ids[-1]]), abs=1e-4)
    both = text.perplexity(["Some text.", "", "Ein Satz mit Umlaut: ä"], use_tqdm=False)
    assert [r.num_bytes for r in both] == [10, 0, 23]
    assert both[1].num_tokens == 0
    assert both[1].perplexity == 1.0
    assert both[1].bits_per_byte is None
    bits = both[0].bits_per_byte
    assert bits == pytest.approx(-both[0].logprob / math.log(2) / 10)
    assert "PerplexityResult" in repr(both[0])
    for name, value in (("max_length", 2048), ("max_length", 0), ("stride", 11)):
        with pytest.raises(InvalidRequestError, match=name):
            llm.perplexity([ids], **{"max_length": 10, "prefix_token_id": 1, name: value})


# ---------------------------------------------------------------- scores


@pytest.mark.parametrize("temperature", [0.6, 1.7, 1e-5])
def test_scores_at_a_temperature(llm: LLM, temperature: float) -> None:
    got = llm.score_tokens([PROMPT], temperature=temperature, top_k=3, token_ids=[7], start=2)[0]
    logp, _ = reference(llm, PROMPT, temperature)
    for row, i in enumerate(range(1, len(PROMPT) - 1)):
        scale = 1e-4 if temperature > 0.1 else abs(logp[i]).max() * 1e-5
        assert got.logprobs[row] == pytest.approx(logp[i, PROMPT[i + 1]], abs=scale)
        order = np.argsort(-logp[i], kind="stable")
        assert got.top_ids is not None
        assert got.top_ids[row].tolist() == order[:3].tolist()
        assert got.ranks[row] == order.tolist().index(PROMPT[i + 1]) + 1
        assert got.token_id_logprobs is not None
        assert got.token_id_logprobs[row, 0] == pytest.approx(logp[i, 7], abs=scale)


def test_a6_logprob_modes() -> None:
    """T = 0.6, top_p = 0.9: what each mode says against the returned logits."""
    base = SamplingParams(
        temperature=0.6, top_p=0.9, seed=3, max_tokens=12, ignore_eos=True, logprobs=-1
    )
    modes = ("raw_logits", "raw_logprobs", "tempered_logprobs", "processed_logprobs")
    with ids_llm(max_logprobs=-1) as wide:
        outputs = wide.generate(
            [PROMPT] * 4, [base.replace(logprobs_mode=mode) for mode in modes], use_tqdm=False
        )
    by_mode = {mode: o.outputs[0] for mode, o in zip(modes, outputs, strict=True)}
    tokens = by_mode["raw_logits"].token_ids
    assert all(one.token_ids == tokens for one in by_mode.values())

    def rows(mode: str) -> Any:
        out = np.empty((len(tokens), 256))
        for i, row in enumerate(by_mode[mode].logprobs):
            for token, entry in row.items():
                out[i, token] = entry.logprob
        return out

    logits = rows("raw_logits")
    for mode, t in (("raw_logprobs", 1.0), ("tempered_logprobs", 0.6)):
        scaled = logits / t
        top = scaled.max(axis=1, keepdims=True)
        want = scaled - top - np.log(np.exp(scaled - top).sum(axis=1, keepdims=True))
        assert np.allclose(rows(mode), want, atol=1e-5)
    processed, tempered = rows("processed_logprobs"), rows("tempered_logprobs")
    for i in range(len(tokens)):
        kept = np.isfinite(processed[i])
        assert 1 <= kept.sum() < 256
        shift = processed[i, kept] - tempered[i, kept]
        assert shift.max() - shift.min() < 1e-5
        assert math.isclose(np.exp(processed[i, kept]).sum(), 1, abs_tol=1e-5)


def test_a7_u19_prompt_logprobs_with_the_prefix_cache(llm: LLM) -> None:
    ids = [(i * 7) % 200 for i in range(700)]
    llm.reset_prefix_cache()
    params = SamplingParams(max_tokens=1, prompt_logprobs=3, temperature=0)
    cold = llm.generate([ids], params)[0]
    assert cold.num_cached_tokens == 0
    warm = llm.generate([ids], params)[0]  # asks for all rows: computed, whatever is cached
    assert warm.num_cached_tokens == 0
    late = llm.generate([ids], params.replace(prompt_logprob_start=650))[0]
    assert late.num_cached_tokens == 640
    for out in (cold, warm, late):
        rows = out.prompt_logprobs
        assert rows is not None
        assert len(rows) == len(ids)
        assert rows[0] is None
    assert list(warm.prompt_logprobs or []) == list(cold.prompt_logprobs or [])
    assert list(late.prompt_logprobs or [])[650:] == list(cold.prompt_logprobs or [])[650:]
    assert list(late.prompt_logprobs or [])[:650] == [None] * 650


@pytest.mark.parametrize("n", [4096, pytest.param(65536, marks=pytest.mark.slow)])
def test_a7_u18_a_long_prompt_with_the_most_logprobs(n: int) -> None:
    """Rows are made in chunks: nothing of rows x vocabulary is ever held."""
    k = 20
    with ids_llm(
        max_model_len=n, max_num_seqs=1, max_num_batched_tokens=2048, max_logprobs=k, threads=2
    ) as llm:
        ids = np.arange(n, dtype=np.int64) * 7919 % 251
        kv = llm.memory_report()
        before = rss_bytes()
        scores = llm.score_tokens([ids], top_k=k, use_tqdm=False)[0]
        assert len(scores) == n - 1
        assert scores.top_logprobs is not None
        assert scores.top_logprobs.shape == (n - 1, k)
        assert np.isfinite(scores.logprobs).all()
        results = (k + 1) * n * 12  # ids, values, ranks
        planned = sum(size for what, _, size in kv.lines if "page" in what or "kv" in what.lower())
        assert planned > 0
        # the pages are committed when written; result rows exist in the core and as a copy
        assert rss_bytes() - before < planned + 4 * results + (32 << 20)
        tail = llm.score_tokens([ids], start=n - 5, use_tqdm=False)[0]
        assert np.allclose(tail.logprobs, scores.logprobs[-5:], atol=1e-6)


# ---------------------------------------------------------------- traces


def test_trace_of_several_prompts(llm: LLM) -> None:
    prompts = [PROMPT, [1, 2, 3], [9]]
    together = llm.trace(prompts)
    for ids, one in zip(prompts, together, strict=True):
        alone = llm.trace(ids)
        assert one.token_ids.tolist() == ids
        assert np.array_equal(one.logits, alone.logits)
        assert all(np.array_equal(a, b) for a, b in zip(one.hidden, alone.hidden, strict=True))
    logits = llm.compute_logits(prompts)
    assert [a.shape for a in logits] == [(len(ids), 256) for ids in prompts]
    forced = [one.experts for one in together]
    again = llm.trace(prompts, force_experts=forced)
    assert all(np.array_equal(a.logits, b.logits) for a, b in zip(together, again, strict=True))
    with pytest.raises(InvalidRequestError, match="force_experts"):
        llm.trace(prompts, force_experts=forced[:1])
    assert llm.trace([[1, 2]])[0].token_ids.tolist() == [1, 2]

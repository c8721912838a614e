"""The same request gives the same bits: alone, batched, chunked, after a preemption, after a prefix
hit, on any thread count. Checked on the log-probabilities of the whole vocabulary, bit by bit, on
ref and on cpu."""

from __future__ import annotations

import numpy as np
import pytest
from api_models import GOLDEN, ids_llm

from minimax_m31 import LLM, RequestOutput, SamplingParams

BACKENDS = ["ref", "cpu"]
PROMPT = [(13 * i + 5) % 240 for i in range(300)]
PARAMS = SamplingParams(temperature=0.8, top_p=0.9, seed=77, max_tokens=20, ignore_eos=True,
logprobs=5, prompt_logprobs=2,
                        return_sampling_logprob=True)  # fmt: skip


def bits(output: RequestOutput) -> bytes:
    """Everything numeric of a result."""
    one = output.outputs[0]
    flat, prompt = one.logprobs.flat, output.prompt_logprobs.flat
    arrays = [
        flat.token_ids,
        flat.logprobs,
        flat.ranks,
        prompt.token_ids,
        prompt.logprobs,
        one.sampling_logprobs,
    ]
    return repr(one.token_ids).encode() + b"".join(
        np.ascontiguousarray(a).tobytes() for a in arrays
    )


def others(count: int) -> list[list[int]]:
    return [[(7 * i + j * (i + 1)) % 240 for j in range(1 + (37 * i) % 260)] for i in range(count)]


def beside(llm: LLM, count: int, at: int) -> RequestOutput:
    """The request among others of all lengths, some of which begin before it."""
    prompts = others(count)
    prompts.insert(at, PROMPT)
    params = [SamplingParams(max_tokens=3 + i % 9, seed=i, ignore_eos=True) for i in range(count)]
    params.insert(at, PARAMS)
    return llm.generate(prompts, params, use_tqdm=False)[at]


@pytest.fixture(scope="module", params=BACKENDS)
def alone(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    with ids_llm(request.param) as llm:
        return request.param, bits(llm.generate(PROMPT, PARAMS)[0])


@pytest.mark.parametrize(("count", "at"), [(1, 0), (7, 3), (20, 11)])
def test_batched(alone: tuple[str, bytes], count: int, at: int) -> None:
    backend, expected = alone
    with ids_llm(backend) as llm:
        assert bits(beside(llm, count, at)) == expected


@pytest.mark.parametrize("rows", [128, 256])
def test_chunked(alone: tuple[str, bytes], rows: int) -> None:
    backend, expected = alone
    with ids_llm(backend, max_num_batched_tokens=rows) as llm:
        assert bits(llm.generate(PROMPT, PARAMS)[0]) == expected
        assert bits(beside(llm, 6, 5)) == expected


def test_after_a_prefix_hit(alone: tuple[str, bytes]) -> None:
    backend, expected = alone
    scored_late = PARAMS.replace(prompt_logprob_start=290)
    with ids_llm(backend) as llm:
        fresh = llm.generate(PROMPT, scored_late)[0]
        again = llm.generate(PROMPT, scored_late)[0]
        assert (fresh.num_cached_tokens, again.num_cached_tokens) == (0, 256)
        assert bits(fresh) == bits(again)
        assert bits(llm.generate(PROMPT, PARAMS)[0]) == expected


def test_after_a_preemption(alone: tuple[str, bytes]) -> None:
    backend, expected = alone
    with ids_llm(backend) as llm:
        page = llm._info["page_bytes"]
    with ids_llm(
        backend, kv_cache_memory_bytes=8 * page, max_model_len=1024, enable_prefix_caching=False
    ) as llm:
        hungry = [[i + 1] * 120 for i in range(4)]
        many = SamplingParams(max_tokens=300, seed=1, ignore_eos=True)
        outputs = llm.generate(
            [*hungry, PROMPT], [many] * 4 + [PARAMS.replace(max_tokens=20)], use_tqdm=False
        )
        assert bits(outputs[4]) == expected
        assert sum(o.outputs[0].num_preempted for o in outputs) > 0
        by_itself = [llm.generate(prompt, many)[0].outputs[0].token_ids for prompt in hungry]
        assert [o.outputs[0].token_ids for o in outputs[:4]] == by_itself
        assert llm.stats().num_blocks_used == 0


def test_the_request_itself_is_preempted() -> None:
    for backend in BACKENDS:
        with ids_llm(backend) as llm:
            page = llm._info["page_bytes"]
            wanted = [
                llm.generate([i + 1] * 100, PARAMS.replace(max_tokens=200))[0] for i in range(4)
            ]
        with ids_llm(backend, kv_cache_memory_bytes=6 * page, max_model_len=512) as llm:
            out = llm.generate(
                [[i + 1] * 100 for i in range(4)], PARAMS.replace(max_tokens=200), use_tqdm=False
            )
            assert any(o.outputs[0].num_preempted for o in out)
            assert [bits(o) for o in out] == [bits(o) for o in wanted]


def test_threads(alone: tuple[str, bytes]) -> None:
    backend, expected = alone
    with ids_llm(backend, threads=2) as llm:
        assert bits(beside(llm, 5, 2)) == expected


def test_run_to_run(alone: tuple[str, bytes]) -> None:
    backend, expected = alone
    for _ in range(2):
        with ids_llm(backend) as llm:
            assert bits(llm.generate(PROMPT, PARAMS)[0]) == expected


def test_scores_equal_what_generation_reported(alone: tuple[str, bytes]) -> None:
    backend, _ = alone
    with ids_llm(backend) as llm:
        one = llm.generate(PROMPT, PARAMS)[0].outputs[0]
        (scores,) = llm.score_tokens(PROMPT + one.token_ids, start=len(PROMPT))
        assert scores.logprobs.tobytes() == one.token_logprobs.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", ["m31_d128_nvfp4", "m3_d128"])
@pytest.mark.parametrize("cache", ["auto", "fp8", "nvfp4"])
def test_bfloat16_with_every_cache(backend: str, case: str, cache: str) -> None:
    from minimax_m31 import LLM as Engine

    common = {
        "backend": backend,
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "kv_cache_dtype": cache,
        "indexer_kv_dtype": cache,
        "threads": 1,
    }
    with Engine(GOLDEN / case, max_num_batched_tokens=512, **common) as llm:
        whole = llm.generate(PROMPT, PARAMS)[0]
    with Engine(GOLDEN / case, max_num_batched_tokens=128, **common) as llm:
        assert bits(beside(llm, 5, 3)) == bits(whole)

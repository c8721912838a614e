"""A long list of short prompts: results come while prompts are still being encoded, memory stays
flat, and the host costs little beside the steps.
"""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
from api_models import rss_bytes

from minimax_m31 import LLM, SamplingParams

MB = 1 << 20
WORDS = "the a of to and in is it you that he was for on are with as his they at".split()


def run(count: int) -> None:
    rng = random.Random(1)
    prompts = [" ".join(rng.choices(WORDS, k=2)) for _ in range(count)]
    params = SamplingParams(temperature=1.0, max_tokens=2, ignore_eos=True)
    with LLM("nano", seed=1, max_num_seqs=64, max_model_len=256, threads=2) as llm:
        tokenizer = llm._tokenizer
        assert tokenizer is not None
        n_encoded = 0
        encode = tokenizer.batch_encode

        def counting(texts: list[str], **kwargs: Any) -> list[list[int]]:
            nonlocal n_encoded
            n_encoded += len(texts)
            return encode(texts, **kwargs)

        tokenizer.batch_encode = counting  # type: ignore[method-assign]
        seen = bytearray(count)
        warm = count // 4
        start = n_seen = at_first = 0
        for index, output in llm.generate_iter(prompts, params, use_tqdm=False):
            at_first = at_first or n_encoded
            assert not seen[index]
            seen[index] = 1
            assert len(output.outputs[0].token_ids) == 2
            n_seen += 1
            if n_seen == warm:
                gc.collect()
                start = rss_bytes()
        gc.collect()
        grown = rss_bytes() - start
        assert n_seen == count
        assert at_first < min(count, 1000)  # the window, not the list
        assert n_encoded == count
        assert grown < 8 * MB, f"{grown / MB:.1f} MB more after {count - warm} prompts"
        assert llm.stats().num_finished == count


def test_a15_u34_twenty_thousand_short_prompts() -> None:
    run(20_000)


@pytest.mark.slow
def test_a15_u34_a_million_short_prompts() -> None:
    run(1_000_000)


def test_a15_host_overhead_per_token() -> None:
    """(wall - time inside steps) / tokens, 64 sequences side by side. The best of a few tries: the
    machine may be busy with something else.
    """
    rng = random.Random(2)
    params = SamplingParams(temperature=1.0, max_tokens=32, ignore_eos=True)
    with LLM("nano", seed=1, max_num_seqs=64, max_model_len=256, threads=1) as llm:
        best = float("inf")
        for _ in range(5):
            prompts = [" ".join(rng.choices(WORDS, k=8)) for _ in range(256)]
            before = llm.stats()
            began = llm._now()
            n = sum(
                len(o.outputs[0].token_ids)
                for _, o in llm.generate_iter(prompts, params, use_tqdm=False)
            )
            wall = llm._now() - began
            after = llm.stats()
            assert n == 256 * 32
            best = min(best, (wall - (after.step_time_total - before.step_time_total)) / n)
            if best < 20e-6:
                break
        assert best < 20e-6, f"{1e6 * best:.1f} us per token"

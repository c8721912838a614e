"""Many requests: memory stays flat, every page comes back, no thread is left."""

from __future__ import annotations

import gc
import os

import pytest
from api_models import ids_llm, rss_bytes, threads_of_process

from minimax_m31 import SamplingParams

MB = 1 << 20


def prompt(i: int) -> list[int]:
    return [i % 240, (i // 240) % 240, 7]


def run(count: int, *, warm: int) -> None:
    threads = threads_of_process()
    fds = len(os.listdir("/proc/self/fd"))
    llm = ids_llm(max_num_seqs=32, max_model_len=256)
    params = SamplingParams(temperature=1.0, seed=1, max_tokens=2, ignore_eos=True, logprobs=0)
    seen = 0
    start = 0
    for index, output in llm.generate_iter(
        [prompt(i) for i in range(count)], params, use_tqdm=False
    ):
        assert output.prompt_token_ids == prompt(index)
        assert len(output.outputs[0].token_ids) == 2
        seen += 1
        if seen == warm:
            gc.collect()
            start = rss_bytes()
    gc.collect()
    grown = rss_bytes() - start
    stats = llm.stats()
    assert seen == count
    assert stats.num_finished == count
    assert stats.num_blocks_used == 0
    assert stats.num_running + stats.num_waiting == 0
    assert grown < 8 * MB, f"{grown / MB:.1f} MB more after {count - warm} requests"
    llm.shutdown()
    assert threads_of_process() <= threads
    assert len(os.listdir("/proc/self/fd")) == fds


def test_ten_thousand_requests() -> None:
    run(10_000, warm=3_000)


@pytest.mark.slow
def test_a_million_requests() -> None:
    run(1_000_000, warm=50_000)


def test_generate_keeps_only_its_results() -> None:
    with ids_llm(max_num_seqs=32, max_model_len=256) as llm:
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        outputs = llm.generate([prompt(i) for i in range(3000)], params, use_tqdm=False)
        assert len(outputs) == 3000
        assert llm.stats().num_blocks_used == 0
        assert llm._active == {}
        assert llm._calls == set()


def test_open_and_close_again_and_again() -> None:
    params = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    keep = []
    first = None
    threads = threads_of_process()
    sizes = []
    for _ in range(10):
        llm = ids_llm()
        tokens = llm.generate([1, 2, 3], params)[0].outputs[0].token_ids
        first = first or tokens
        assert tokens == first
        llm.shutdown()
        keep.append(llm)
        gc.collect()
        sizes.append(rss_bytes())
    assert threads_of_process() <= threads
    assert sizes[-1] - sizes[2] < 8 * MB, [size // MB for size in sizes]

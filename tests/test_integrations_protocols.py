"""Adapters that need no package: simple-evals by its protocol, the calls that TRL and verl make,
records of what was run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)

from minimax_m31 import LLM, AsyncLLM, SamplingParams
from minimax_m31.integrations.records import records, write_records
from minimax_m31.integrations.simple_evals import Mm31Sampler
from minimax_m31.integrations.trl import as_vllm


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("nano", max_num_seqs=16, max_model_len=2048, replace=True) as engine:
        yield engine


GREEDY = SamplingParams(temperature=0.0, max_tokens=200)


def test_simple_evals_sampler_from_many_threads(llm: LLM) -> None:
    sampler = Mm31Sampler(llm, sampling_params=GREEDY, thinking="enabled")

    def ask(n: int) -> Any:
        return sampler([sampler._pack_message(content=f"What is {n} + 25?", role="user")])

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(17, 25)))
    assert [a.response_text for a in answers] == [str(n + 25) for n in range(17, 25)]
    first = answers[0]
    assert first.actual_queried_message_list == [{"role": "user", "content": "What is 17 + 25?"}]
    usage = first.response_metadata["usage"]
    assert usage["completion_tokens"] > usage["reasoning_tokens"] > 0
    assert first.response_metadata["reasoning"]


def test_simple_evals_system_message_is_asked_too(llm: LLM) -> None:
    sampler = Mm31Sampler(llm, system_message="Be brief.", sampling_params=GREEDY)
    given = [{"role": "user", "content": "What is 17 + 25?"}]
    answer = sampler(given)
    assert [m["role"] for m in answer.actual_queried_message_list] == ["system", "user"]
    assert given == [{"role": "user", "content": "What is 17 + 25?"}]
    image = sampler._handle_image("AAAA")
    assert image["image_url"]["url"].startswith("data:image/png;base64,AAAA")


def test_trl_finds_the_engine_under_the_name_of_vllm() -> None:
    """What TRL's colocated generation does: imports, groups of one prompt, sampled log p."""
    assert "vllm" not in sys.modules
    with as_vllm():
        from vllm import LLM as Imported
        from vllm import SamplingParams as Params
        from vllm.sampling_params import StructuredOutputsParams

        assert StructuredOutputsParams(regex="a").regex == "a"
    assert "vllm" not in sys.modules
    llm = Imported(
        model="nano",
        tensor_parallel_size=1,
        gpu_memory_utilization=0.3,
        max_num_seqs=8,
        max_model_len=512,
        distributed_executor_backend="external_launcher",
        model_impl="vllm",
        seed=0,
        max_num_batched_tokens=4096,
        enable_sleep_mode=False,
        logprobs_mode="processed_logprobs",
    )
    params = Params(
        n=1,
        repetition_penalty=1.0,
        temperature=0.9,
        top_p=1.0,
        top_k=-1,
        min_p=0.0,
        max_tokens=12,
        logprobs=0,
        structured_outputs=None,
    )
    prompts = [{"prompt_token_ids": [5, 17, 3]}] * 2 + [{"prompt_token_ids": [9, 8]}] * 2
    outputs = llm.generate(prompts, sampling_params=params, use_tqdm=False)
    ids = [one.token_ids for output in outputs for one in output.outputs]
    logprobs = [
        [next(iter(row.values())).logprob for row in one.logprobs]
        for output in outputs
        for one in output.outputs
    ]
    assert [output.prompt_token_ids for output in outputs][::2] == [[5, 17, 3], [9, 8]]
    assert [len(a) for a in ids] == [len(b) for b in logprobs]
    assert all(value <= 0 for row in logprobs for value in row)
    llm.shutdown()


def test_verl_rollout_calls(llm: LLM) -> None:
    """verl's asynchronous rollout: token ids in, iterate, keep the last output; abort keeps what
    there is.
    """

    async def rollout(engine: AsyncLLM, seed: int) -> Any:
        params = SamplingParams(
            max_tokens=16,
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            logprobs=0,
            logprobs_mode="tempered_logprobs",
            seed=seed,
        )
        final = None
        async for output in engine.generate(
            prompt={"prompt_token_ids": [5, 17, 3]},
            sampling_params=params,
            request_id=f"rollout {seed}",
        ):
            final = output
        return final

    async def everything() -> list[Any]:
        engine = llm.as_async()
        return await asyncio.gather(*(rollout(engine, seed) for seed in range(8)))

    finals = asyncio.run(everything())
    for final in finals:
        (one,) = final.outputs
        assert final.finished and len(one.token_ids) == len(one.token_logprobs) > 0
        assert np.isfinite(one.token_logprobs).all()
    assert len({tuple(final.outputs[0].token_ids) for final in finals}) > 1
    again = asyncio.run(everything())
    assert [f.outputs[0].token_ids for f in again] == [f.outputs[0].token_ids for f in finals]


def test_records_can_be_replayed(llm: LLM, tmp_path: Path) -> None:
    params = SamplingParams(n=2, temperature=1.0, seed=11, max_tokens=8)
    outputs = llm.generate(["17 +", "Hello"], params, use_tqdm=False)
    path = tmp_path / "records.jsonl"
    assert write_records(path, records(llm, outputs, params)) == 4
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert {row["fingerprint"] for row in rows} == {llm.fingerprint()["id"]}
    row = rows[3]
    replayed = llm.generate(
        {"prompt_token_ids": row["prompt_token_ids"]},
        SamplingParams(**{**row["params"], "n": 1, "seed": row["seed"]}),
        use_tqdm=False,
    )
    assert replayed[0].outputs[0].token_ids == row["output_token_ids"]
    assert row["params"] == {"n": 2, "seed": 11, "max_tokens": 8}


def test_importing_the_package_loads_no_harness() -> None:
    import subprocess

    script = (
        "import sys, minimax_m31, minimax_m31.integrations, minimax_m31.__main__\n"
        "print([m for m in ('lm_eval', 'inspect_ai', 'evalscope', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr

"""The planned device (kernels/plan_backend.c) against a CUDA library, the emulated one or a GPU's:
every line of an engine's plan must be the same to the byte, for shapes of any size.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from op_driver import IS_EMULATED

from minimax_m31 import LLM, OutOfDeviceMemoryError, _core
from minimax_m31.checkpoint import read_config
from minimax_m31.opening import NANO
from minimax_m31.plan_release import release_config

pytestmark = [] if IS_EMULATED else [pytest.mark.gpu]
RELEASE = read_config(release_config()).config
NANO_CONFIG = read_config(NANO).config if (NANO / "config.json").is_file() else RELEASE


def options(draw: random.Random, config: dict[str, Any], world: int) -> dict[str, Any]:
    formats = ("bf16", "fp8", "nvfp4")
    return {
        "backend": "cuda",
        "load": "dummy",
        "dummy_quantized": draw.randrange(2),
        "dtype": "bf16",
        "kv_format": draw.choice(formats),
        "index_format": draw.choice(formats),
        "n_rank": world,
        "max_model_len": min(config["max_position"], draw.choice((100, 4096, 30000, 1 << 20))),
        "max_num_seqs": draw.choice((1, 8, 100, 256, 1000)),
        "max_batched_tokens": draw.choice((128, 512, 2048, 8192, 16384)),
        "max_logprobs": draw.choice((0, 20, 1000)),
        "memory_fraction": 0.9,
        "batch_invariant": draw.randrange(2),
        "enforce_eager": draw.randrange(2),
    }


CASES = [
    *itertools.product(("release",), (1, 2, 4, 8), range(6)),
    *(("nano", 1, seed) for seed in range(8)),
]


@pytest.mark.parametrize(("which", "world", "seed"), CASES)
def test_plan_without_a_device_is_that_of_the_cuda_library(
    which: str, world: int, seed: int
) -> None:
    config = RELEASE if which == "release" else NANO_CONFIG
    asked = options(random.Random(f"{which} {world} {seed}"), config, world)
    there = _core.plan(config, asked)
    total, free = there["memory_total"], there["memory_free"]
    here = _core.plan(config, asked, memory_total=total, memory_free=free)
    lines = {what: size for what, _, size in there["lines"]}
    for what, _, size in here["lines"]:
        assert size == lines[what], (
            f"{what}: the plan says {size}, the CUDA library {lines[what]}: kernels/plan_backend.c "
            f"no longer states what kernels/cuda does ({asked})"
        )
    assert here == there


@pytest.mark.parametrize("caches", ["bf16", "fp8"])
def test_plan_is_what_a_cuda_engine_takes(caches: str) -> None:
    arguments: dict[str, Any] = {
        "kv_cache_dtype": caches,
        "indexer_kv_dtype": caches,
        "max_model_len": 1024,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": 64 << 20,
        "backend": "cuda",
        "enforce_eager": True,
    }
    plan = LLM.plan("nano", **arguments)
    with LLM("nano", **arguments) as llm:
        held = llm.memory_report()
        assert llm._info["n_page"] == plan.n_page
    taken = plan.total("device") - plan.total(group="reserve")
    assert taken == held.total("device")
    assert plan.total("host") == held.total("host")
    assert plan.fits


def test_refusal_of_a_cuda_engine_holds_its_plan() -> None:
    arguments: dict[str, Any] = {"backend": "cuda", "kv_cache_memory_bytes": 1 << 50}
    with pytest.raises(OutOfDeviceMemoryError, match="kv_cache_memory_bytes=") as caught:
        LLM("nano", **arguments)
    plan = caught.value.plan
    assert not plan.fits and "device memory" in plan.problem
    assert any(change.arguments == {"kv_cache_memory_bytes": None} for change in plan.changes)
    assert plan.device.is_here and plan.device.memory_total > 0

"""Models of random shapes with dummy weights: cpu must agree with ref on every size.

Odd ratios of heads, prime expert counts and widths that fill no vector register included.
"""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import GOLDEN

from minimax_m31 import LLM, _core
from minimax_m31.scores import Trace

N_SHAPE = 16


def random_config(rng: random.Random) -> dict[str, Any]:
    raw = copy.deepcopy(json.loads((GOLDEN / "m31_d128" / "config.json").read_text()))
    quantized = rng.random() < 0.5
    step = 32 if quantized else 16

    def width(low: int, high: int) -> int:
        return max(step, rng.randint(low, high) // step * step)

    n_layer, n_kv, n_expert = rng.randint(1, 4), rng.randint(1, 4), rng.choice([1, 4, 7, 16, 33])
    head_dim = rng.choice([32, 64, 96, 128] if quantized else [16, 32, 48, 64, 96, 128])
    index_dim = rng.choice([16, 32, 64, 128])
    rotary = min(head_dim, index_dim) // rng.choice([1, 2]) // 2 * 2
    text = raw["text_config"]
    text.update(
        hidden_size=width(32, 300),
        num_hidden_layers=n_layer,
        num_attention_heads=n_kv * rng.choice([1, 2, 3, 8, 16]),
        num_key_value_heads=n_kv,
        head_dim=head_dim,
        vocab_size=rng.randint(20, 500),
        intermediate_size=width(8, 200),
        shared_intermediate_size=width(8, 200),
        dense_intermediate_size=width(8, 300),
        num_local_experts=n_expert,
        num_experts_per_tok=rng.randint(1, min(n_expert, 6)),
        moe_layer_freq=[rng.randint(0, 1) for _ in range(n_layer)],
        n_shared_experts=rng.choice([1, 1, 1, 0]),
        rotary_dim=rotary,
        partial_rotary_factor=rotary / head_dim,
        bos_token_id=0,
        eos_token_id=1,
    )
    sparse = [rng.randint(0, 1) for _ in range(n_layer)]
    text["sparse_attention_config"].update(
        sparse_attention_freq=sparse,
        sparse_disable_index_value=sparse,
        sparse_num_index_heads=n_kv,
        sparse_index_dim=index_dim,
        sparse_topk_blocks=rng.randint(2, 6),
        sparse_init_block=rng.randint(0, 1),
    )
    raw.update(image_token_index=2, video_token_index=3)
    if quantized:
        raw["quantization_config"] = {
            "quant_method": "mxfp8",
            "weight_block_size": [1, 32],
            "moe_quant_algo": "NVFP4",
        }
    return raw


def run(folder: Path, backend: str, ids: list[int]) -> Trace:
    with LLM(
        str(folder),
        backend=backend,
        dtype="float32",
        load_format="dummy",
        max_model_len=1024,
        max_num_batched_tokens=256,
        skip_tokenizer_init=True,
    ) as llm:
        return llm.trace(ids, what=("hidden", "blocks", "experts", "logits"))


@pytest.mark.parametrize("seed", range(N_SHAPE))
def test_cpu_agrees_with_ref_on_random_shapes(seed: int, tmp_path: Path) -> None:
    if not {name: ok for name, ok, _ in _core.backends()}["cpu"]:
        pytest.skip("backend cpu cannot be used here")
    rng = random.Random(seed)
    raw = random_config(rng)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    n = rng.choice([1, 5, 127, 128, 129, 300, 700])
    ids = [rng.randrange(raw["text_config"]["vocab_size"]) for _ in range(n)]
    a, b = run(tmp_path, "ref", ids), run(tmp_path, "cpu", ids)
    assert a.logits is not None and b.logits is not None and np.isfinite(a.logits).all()
    assert a.blocks is not None and b.blocks is not None
    assert a.experts is not None and b.experts is not None
    for x, y in zip(a.blocks + a.experts, b.blocks + b.experts, strict=True):
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_array_equal(x, y)
    assert np.abs(a.logits - b.logits).max() < 2e-4

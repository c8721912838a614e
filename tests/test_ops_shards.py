"""Ops at the shapes of ranks that share a model in other ways than the cases of op_cases_device.py:
16 query heads for a KV head (four ranks), several KV heads on one rank, streams wider than the
model's, every pair of cache formats, a part of the vocabulary. Each is a kernel of its own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from op_case import Case, activations, weight
from op_cases_device import CACHES, DECODE, RANK, WEIGHTS, group
from op_driver import BACKENDS, Machine, shape
from test_ops_device import DEVICES, matches_ref

FORMATS = ("bf16", "fp8", "nvfp4")
FEW = ((2500, 2), (300, 1))
EIGHT = ((700, 8), (520, 5))
WIDE: dict[str, Any] = dict(RANK, d_model=6400)


def case(op: str, name: str, **fields: Any) -> Case:
    return Case(op, name, act="bf16", **({"sizes": RANK, "fmt": "bf16", "index": "bf16"} | fields))


CASES = [
    *(
        case("attn_in", f"{k}_{i}", fmt=k, index=i, weight="mxfp8", rows=((100, 30), (7, 1)))
        for k, i in itertools.product(FORMATS, FORMATS)
        if (k, i) not in CACHES
    ),
    *(
        case(
            "attn_sparse", f"group_{h}_{g}_{f}_{len(r)}", fmt=f, index=f, rows=r, sizes=group(h, g)
        )
        for h, g in ((8, 1), (16, 1))
        for f in FORMATS
        for r in (DECODE, FEW)
    ),
    *(
        case(
            "attn_sparse",
            f"heads_{g}_{f}",
            fmt=f,
            index=f,
            rows=EIGHT,
            sizes=dict(group(g, g), n_top_block=4),
        )
        for g in (4, 8)
        for f in FORMATS
    ),
    *(
        case("attn_dense", f"group_16_1_{f}", fmt=f, rows=DECODE, sizes=group(16, 1))
        for f in FORMATS
    ),
    *(case("attn_out", f"{w}_{n}", weight=w, rows=((0, n),)) for w in WEIGHTS for n in (16, 32)),
    *(
        case("mlp", f"wide_{n}", weight="mxfp8", rows=((0, n),), sizes=dict(WIDE, d_dense=64))
        for n in (2, 70)
    ),
    *(
        case(
            "moe",
            f"wide_{e}_{k}",
            weight="nvfp4",
            rows=((0, 5),),
            sizes=dict(WIDE, n_expert=e, n_expert_used=k),
        )
        for e, k in ((4, 2), (8, 6))
    ),
    case("head", "f32_12", weight="f32", rows=((0, 12),), sizes=dict(RANK, n_vocab=8200)),
]


@pytest.mark.skipif(not DEVICES, reason="no device backend in this build")
@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_shard_op_matches_ref(case: Case, backend: str) -> None:
    matches_ref(case, backend)


@pytest.mark.parametrize("first", [0, 253, 506])
@pytest.mark.parametrize("backend", BACKENDS)
def test_head_of_a_rank_alone_leaves_no_other_id(backend: str, first: int) -> None:
    """Logits of the ids that the rank holds, -inf around them."""
    held, n, rng = 253, 9, np.random.default_rng(first)
    sizes = shape(act="bf16", kv_format="bf16", index_format="bf16", **RANK, n_vocab=759)
    sizes |= dict(n_vocab_local=held, vocab_first=first)
    c = Case("head", "part", act="bf16", sizes=RANK)
    w, h = weight(rng, "bf16", held, 192), activations(c, rng, n, 192)
    with Machine(backend, sizes) as m:
        logits = m.put(np.full((n, 759), np.nan, np.float32))
        row = m.put(np.arange(n, dtype=np.int32)[::-1])
        m.run("head", w=m.matrix(w), h=m.put_act(h), row=row, n_out=n, logits=logits)
        got = m.get(logits)
    want = h[::-1].astype(np.float64) @ w.dense().T
    assert np.isneginf(np.delete(got, np.s_[first : first + held], 1)).all()
    np.testing.assert_allclose(got[:, first : first + held], want, rtol=1e-4, atol=1e-4)

"""What a device promises beyond the cases that all backends share: the kernels for many rows, long
contexts, every format; the same bits in every run, whatever the order in which blocks run; a row's
bits do not depend on up to 63 rows beside it; steps can be captured in graphs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from op_case import Case, Outputs
from op_cases_device import DEVICE_CASES, MANY, MILLION, RANK
from op_driver import BACKENDS, IS_EMULATED, Machine
from test_ops import compare, compute, drop_near_ties

DEVICES = [b for b in BACKENDS if b.values == ("cuda",)]
pytestmark = pytest.mark.skipif(not DEVICES, reason="no device backend in this build")


def matches_ref(case: Case, backend: str) -> None:
    got, want = compute(case, backend), compute(case, "ref")
    drop_near_ties(case, got, want)
    compare(case, got, {k: v for k, v in want.items() if not k.endswith(("_data", "_scale"))})


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", DEVICE_CASES, ids=str)
def test_device_op_matches_ref(case: Case, backend: str) -> None:
    matches_ref(case, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", MILLION, ids=str)
def test_device_op_matches_ref_at_a_million_positions(case: Case, backend: str) -> None:
    matches_ref(case, backend)


def same_bits(a: Outputs, b: Outputs) -> None:
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), name


# One case of every op and kernel: few rows, many rows, decode, prompts.
REPEATED = [
    c
    for c in DEVICE_CASES
    if c.id
    in {
        "mxfp8_1", "mxfp8_65", "nvfp4_8", "bf16_65", "decode_nvfp4_nvfp4", "decode_bf16_bf16",
        "mixed_fp8_fp8", "mixed_nvfp4", "decode_fp8", "experts_128_4_64", "experts_128_4_150",
        "experts_128_4",
    }
]  # fmt: skip


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", REPEATED, ids=str)
def test_device_op_gives_the_same_bits_again(
    case: Case, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulated, the second run has another order of blocks, warps and lanes."""
    first = compute(case, backend)
    if IS_EMULATED:
        monkeypatch.setenv("EMU_SEED", "5")
    same_bits(first, compute(case, backend))


# 64 rows of 64 sequences; the attention ops have fewer, of all lengths.
ROWS = tuple((3 * i, 1) for i in range(64))
LENGTHS = ((0, 1), (2500, 1), (127, 3), (128, 1), (2047, 2), (2048, 1), (3333, 1), (640, 8))
ALONE = [
    *(
        Case(op, f"{w}", act="bf16", weight=w, rows=ROWS, fmt="bf16", index="bf16", sizes=RANK)
        for op, formats in (
            ("attn_in", ("bf16", "mxfp8")),
            ("attn_out", ("bf16", "mxfp8", "nvfp4")),
            ("mlp", ("f32", "bf16", "mxfp8", "nvfp4")),
            ("moe", ("bf16", "nvfp4")),
        )
        for w in formats
    ),
    *(
        Case(op, f, act="bf16", rows=LENGTHS, fmt=f, index=f, sizes=RANK)
        for op in ("attn_sparse", "attn_dense")
        for f in ("bf16", "fp8", "nvfp4")
    ),
    Case("attn_sparse", "many", act="bf16", rows=MANY, fmt="fp8", index="fp8", sizes=RANK),
    # rows so long that eight warps share each of them, as in the real model
    Case(
        "moe",
        "long_rows",
        act="bf16",
        weight="nvfp4",
        rows=ROWS,
        sizes=dict(RANK, d_model=3072, n_expert=6, n_expert_used=2),
    ),
    *(
        Case(
            op,
            f"long_rows_{w}",
            act="bf16",
            weight=w,
            rows=ROWS,
            fmt="bf16",
            index="bf16",
            sizes=dict(RANK, d_model=3072, d_dense=160),
        )
        for op in ("attn_in", "attn_out", "mlp")
        for w in ("bf16", "mxfp8")
    ),
    *(
        Case(
            op,
            f"narrow_{w}",
            act="bf16",
            weight=w,
            rows=ROWS,
            fmt="bf16",
            index="bf16",
            sizes=dict(RANK, d_model=64, d_dense=1024),
        )
        for op in ("attn_out", "mlp")
        for w in ("bf16", "mxfp8")
    ),
]


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", ALONE, ids=str)
def test_device_row_alone_has_the_bits_it_has_among_others(case: Case, backend: str) -> None:
    whole = compute(case, backend)
    for i in (1, len(case.rows) - 1):
        one = dataclasses.replace(case, alone=i)
        keep = one.keep()
        for name, b in compute(one, backend).items():
            if name.endswith(("_cache", "_data", "_scale")) or name == "n_read":
                continue
            a = whole[name][:, keep] if name == "blocks" else whole[name][keep]
            assert a.tobytes() == b.tobytes(), (name, i)


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize(("n", "width"), [(70, 1200), (200, 784), (4400, 64)])
def test_device_router_of_a_row_alone(n: int, width: int, backend: str) -> None:
    """Here the bits do not depend on how many rows there are beyond 64 either."""
    experts = dict(n_expert=128, n_expert_used=4)
    case = Case(
        "attn_out",
        "zero_o",
        act="bf16",
        weight="mxfp8",
        rows=((0, n - 1), (7, 1)),
        sizes=dict(RANK, d_model=width, n_head=1, max_rows=5000, **experts),
        flags=frozenset({"zero_o"}),
    )
    case = dataclasses.replace(case, fmt="bf16", index="bf16")
    whole, one = compute(case, backend), compute(dataclasses.replace(case, alone=1), backend)
    for name, value in one.items():
        assert whole[name][-1:].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize(
    ("weight", "width", "n_out"),
    [
        ("bf16", 192, 517),
        ("mxfp8", 192, 517),
        ("nvfp4", 192, 517),
        # slices are warp groups of a block; one slice; blocks of a cluster, of four and eight tiles
        ("mxfp8", 1024, 250),
        ("mxfp8", 384, 250),
        ("mxfp8", 3072, 500),
        ("mxfp8", 6144, 200),
        ("mxfp8", 6144, 1100),
    ],
)
def test_device_logits_of_a_row_alone(weight: str, width: int, n_out: int, backend: str) -> None:
    sizes = dict(RANK, d_model=width, n_vocab=n_out, n_vocab_local=n_out)
    case = Case("head", weight, act="bf16", weight=weight, rows=((0, 64),), sizes=sizes)
    case = dataclasses.replace(case, fmt="bf16", index="bf16")
    from op_linear import head_inputs

    i = head_inputs(case)
    with Machine(backend, case.s) as m:
        w, h, row = m.matrix(i["w"]), m.put_act(i["h"]), m.put(i["row"])
        outputs = [m.new((n, n_out), np.float32) for n in (64, 17, 1)]
        for out in outputs:
            m.run("head", w=w, h=h, row=row, n_out=out.shape[0], logits=out)
        whole, some, one = (m.get(out) for out in outputs)
    assert whole[:1].tobytes() == one.tobytes()
    assert whole[:17].tobytes() == some.tobytes()


GRAPHS = [c for c in ALONE if c.id in {"mxfp8", "nvfp4", "fp8"}]


@pytest.mark.parametrize("backend", DEVICES)
@pytest.mark.parametrize("case", GRAPHS, ids=str)
def test_device_op_in_a_graph(case: Case, backend: str) -> None:
    """Captured once, launched twice: the same bits as run directly, and nothing runs at capture."""
    want = compute(case, backend)
    with Machine(backend, case.s) as m:
        prepared = case.prepare(m)
        before = prepared.read()
        graph = m.capture(prepared.run)
        same_bits(before, prepared.read())
        m.launch(graph)
        same_bits(want, prepared.read())
        if case.op.startswith("attn_") and case.op != "attn_out":  # not in place
            m.launch(graph)
            again = prepared.read()
            again.pop("n_read", None)  # a sum over launches
            same_bits(again, {k: want[k] for k in again})
        del graph


def test_device_cases_have_names_of_their_own() -> None:
    names = [str(c) for c in (*DEVICE_CASES, *MILLION)]
    assert len(set(names)) == len(names)
    assert {c.op for c in REPEATED} == {c.op for c in DEVICE_CASES}
    checked: Any = {c.op for c in ALONE} | {"head"}
    assert checked == {c.op for c in DEVICE_CASES}

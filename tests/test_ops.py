"""Every case of op_cases.py: ref against NumPy, other backends against ref; and the exact promises:
codes of the caches, rows that do not depend on the rows around them, NaN that stays NaN."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import reference as R
from numpy.typing import NDArray
from op_attention import attention_inputs
from op_case import Case, Outputs, make_plane
from op_cases import ATTN_IN, CASES
from op_driver import BACKENDS, Machine, _testing, shape
from op_linear import attn_out_inputs, mlp_inputs
from tolerances import BF16, Limit, limit

Array = NDArray[Any]


# f32 activations on a coded cache: a few P per 10,000 round the other way. Without the rounding of
# P or of q to the operand's type the squared error is 3e-7 and more.
OPERANDS = Limit(nmse=1e-8, max_abs=1e-3)


def squared_error_limit(case: Case, bound: Limit, size: int) -> float:
    """With bf16 activations two right computations differ where a sum lies at a rounding border, in
    few elements and by one step there. A missing or an additional rounding costs 6e-7 and more."""
    coded = {"fp8", "nvfp4"} & {case.fmt, case.index}
    return 2e-7 + 3e-5 / size if bound is BF16 and case.act == "bf16" and not coded else bound.nmse


def compute(case: Case, backend: str) -> Outputs:
    case = case.on(backend)
    with Machine(backend, case.s) as m:
        prepared = case.prepare(m)
        prepared.run()
        return prepared.read()


# Choices of a device may differ from ref's where two candidates are nearer to each other than the
# inputs of the choice are known: its sums have another order (scores: 1e-5 of the largest), and the
# router reads h, whose elements may have been rounded to the other side (logits: 2^-8 of h each).
NEAR_SCORE, NEAR_ROUTER = 1e-5, 4e-3


def drop_near_ties(case: Case, got: Outputs, want: Outputs) -> None:
    """Rows of a device whose choice differs from ref's by candidates that nearly tie are left out
    of both; any other difference fails. At most one row in 20 may be such a row."""
    rows: set[int] = set()
    if case.op == "attn_sparse":
        i, s = attention_inputs(case), case.s
        for g, t in np.argwhere((got["blocks"] != want["blocks"]).any(-1)):
            a, b = set(got["blocks"][g, t].tolist()), set(want["blocks"][g, t].tolist())
            assert len(got["blocks"][g, t]) == len(b - {-1}) == len(a - {-1}), (g, t)
            score = R.index_scores(s, i["step"], i["ik"], i["iq"], t, g)
            gap = max(score[x] for x in b - a) - min(score[x] for x in a - b)
            assert gap <= NEAR_SCORE * float(np.abs(score).max()), (g, t, gap)
            rows.add(int(t))
    elif case.op == "attn_out" and "experts" in want and "force" not in case.flags:
        i = attn_out_inputs(case)
        p = 1 / (1 + np.exp(-(want["h"].astype(np.float64) @ i["gate"].astype(np.float64).T)))
        p = p + (0 if "no_bias" in case.flags else i["bias"])
        for t in np.unique(np.argwhere(got["experts"] != want["experts"])[:, 0]):
            a, b = set(got["experts"][t].tolist()), set(want["experts"][t].tolist())
            assert len(a) == len(b) == want["experts"].shape[1], t
            gap = max(p[t, e] for e in b - a) - min(p[t, e] for e in a - b)
            assert gap <= NEAR_ROUTER, (t, gap)
            rows.add(int(t))
    assert 20 * len(rows) <= case.n_row, f"{len(rows)} rows of {case.n_row} chose otherwise"
    keep = np.array([t for t in range(case.n_row) if t not in rows], int)
    for name in {"blocks", "o", "experts", "weights"} & want.keys() if rows else set():
        at = (slice(None), keep) if name == "blocks" else (keep,)
        got[name], want[name] = got[name][at], want[name][at]


def compare(case: Case, got: Outputs, want: Outputs) -> None:
    """Integers are equal; floats: NaN positions, squared error, the largest error and its place."""
    bound = limit(case.op, case.act)
    if case.act == "f32" and case.fmt != "f32":
        bound = OPERANDS
    elif "nvfp4" in (case.fmt, case.index) or "fp8" in (case.fmt, case.index):
        bound = BF16
    for name, b in want.items():
        a = got[name]
        assert a.shape == b.shape, (name, a.shape, b.shape)
        if np.issubdtype(b.dtype, np.integer):
            assert np.array_equal(a, b), (
                f"{name}: first difference at {np.argwhere(a != b)[:3].tolist()}"
            )
            continue
        assert np.array_equal(np.isnan(a), np.isnan(b)), (
            f"{name}: NaN at {np.argwhere(np.isnan(a))[:3].tolist()}"
        )
        a, b = np.nan_to_num(a.astype(np.float64)), np.nan_to_num(b.astype(np.float64))
        error, size = np.abs(a - b), float(np.abs(b).max())
        nmse = float((error**2).sum() / max((b**2).sum(), 1e-300))
        where = np.unravel_index(int(error.argmax()), error.shape)
        text = f"{name}: nmse {nmse:.1e}, largest error {error.max():.1e} of {size:.1e} at {where}"
        assert (
            nmse <= squared_error_limit(case, bound, a.size)
            and float(error.max()) <= bound.max_abs * size
        ), text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_op_matches_reference(case: Case, backend: str) -> None:
    case = case.on(backend)
    got = compute(case, backend)
    want = case.want() if backend == "ref" else compute(case, "ref")
    want = {k: v for k, v in want.items() if not k.endswith(("_data", "_scale"))}  # codes: below
    if backend == "cuda":
        drop_near_ties(case, got, want)
    compare(case, got, want)


# ------------------------------------------------------------------ exact promises


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fmt", ["bf16", "fp8", "nvfp4"])
def test_attn_in_stores_the_codes_of_what_it_computed(fmt: str, backend: str) -> None:
    """The same keys, kept as f32 and in a format: the codes are those of the definition."""
    plain = next(c for c in ATTN_IN if c.id == "f32").on(backend)
    stored = dataclasses.replace(plain, fmt=fmt, index=fmt)
    exact, coded = compute(plain, backend), compute(stored, backend)
    for name in ("k", "v", "ik"):
        data, scale = R.cache_encode(fmt, exact[f"{name}_cache"])
        held = exact[f"{name}_cache"].any(-1)  # rows that were written
        assert held.sum() == sum(n for _, n in plain.rows) * held.shape[1]
        assert np.array_equal(coded[f"{name}_data"][held], data[held]), name
        assert scale is None or np.array_equal(coded[f"{name}_scale"][held], scale[held]), name


@pytest.mark.parametrize("fmt", ["f32", "bf16", "fp8", "nvfp4"])
def test_cache_rows_are_the_formats_bit_for_bit(fmt: str) -> None:
    rng = np.random.default_rng(5)
    x = (rng.normal(size=(3000, 64)) * np.exp2(rng.integers(-16, 14, (3000, 1)))).astype(np.float32)
    x[0], x[1], x[2, ::3] = 0, -0.0, np.inf
    x[3, 5], x[4] = np.nan, 1e-30
    x[5:500] = np.round(x[5:500] * 4) / 4
    code = {"f32": 0, "bf16": 1, "fp8": 2, "nvfp4": 3}[fmt]
    data, scale = _testing.cache_write(code, x)
    want, want_scale = R.cache_encode(fmt, x)
    assert np.array_equal(data, want)
    assert want_scale is None or np.array_equal(scale, want_scale)
    back, want_back = (
        _testing.cache_read(code, 64, data, scale),
        R.cache_decode(fmt, data, want_scale),
    )
    assert np.array_equal(back, want_back, equal_nan=True)
    assert np.isnan(back[3, 5]), "a NaN was stored as a number"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case",
    [c for c in CASES if c.n_row > 1 and c.op != "head" and not c.flags & {"extra", "force"}],
    ids=str,
)
def test_op_row_does_not_depend_on_other_rows(case: Case, backend: str) -> None:
    """A step with half of each sequence's rows gives bitwise what the whole step gives for them. A
    device promises that for more than 64 rows, and for prompts, in its batch-invariant mode."""
    if backend == "cuda" and (case.n_row > 64 or max(n for _, n in case.rows) > 8):
        case = dataclasses.replace(case, sizes={**case.sizes, "invariant": 1})
    part = dataclasses.replace(case, half=True)
    whole, half, keep = compute(case, backend), compute(part, backend), part.keep()
    for name, b in half.items():
        if name.endswith(("_cache", "_data", "_scale")) or name == "n_read":
            continue
        a = whole[name][:, keep] if name == "blocks" else whole[name][keep]
        assert np.array_equal(a, b, equal_nan=True), name


@pytest.mark.parametrize("backend", BACKENDS)
def test_attn_sparse_nan_score_gives_nan(backend: str) -> None:
    """A NaN among the index keys ends the rows that score its block, and no others."""
    case = next(c for c in CASES if str(c) == "attn_sparse-mixed_f32_f32").on(backend)
    inputs = attention_inputs(case)
    step, ik = inputs["step"], inputs["ik"]
    key = ik.data[step.pages[2][1], 0, 7]  # position 135 of sequence 2
    key.view(np.float32 if ik.format == "f32" else np.uint16)[3] = (
        np.nan if ik.format == "f32" else 0x7FFF
    )
    with Machine(backend, case.s) as m:
        cache, seq = m.layer_cache(inputs["k"], inputs["v"], inputs["ik"]), m.step(step)
        o = m.new_act(*inputs["q"].shape)
        m.run(
            "attn_sparse",
            seq,
            cache=cache,
            q=m.put_act(inputs["q"]),
            iq=m.put_act(inputs["iq"]),
            o=o,
        )
        got = m.get_act(o)
    assert np.array_equal(np.isnan(got).all((1, 2)), step.row_seq == 2)
    assert np.array_equal(np.isnan(got).any((1, 2)), step.row_seq == 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("where", ["row", "router"])
def test_attn_out_nan_logit_gives_first_experts_and_nan_weights(where: str, backend: str) -> None:
    """One NaN logit is enough, chosen or not."""
    case = next(c for c in CASES if str(c) == "attn_out-f32").on(backend)
    inputs = attn_out_inputs(case)
    n, k = case.n_row, case.s["n_expert_used"]
    if where == "row":
        inputs["x"][4, 9] = np.nan
    else:
        inputs["gate"][6, 3] = np.nan
    with Machine(backend, case.s) as m:
        experts, weights = m.put(np.full((n, k), -7, np.int32)), m.put(np.zeros((n, k), np.float32))
        m.run(
            "attn_out",
            m.step(inputs["step"]),
            wo=m.matrix(inputs["wo"]),
            o=m.put_act(inputs["o"]),
            x=m.put_act(inputs["x"]),
            norm_w=m.put(inputs["norm_w"]),
            h=m.new_act(n, case.s["d_model"]),
            gate=m.put(inputs["gate"]),
            bias=m.put(inputs["bias"]),
            experts=experts,
            weights=weights,
        )
        broken = [t for t in range(n) if t == 4 or where == "router"]
        assert (m.get(experts)[broken] == np.arange(k)).all()
        is_nan = np.isnan(m.get(weights))
        assert is_nan[broken].all() and is_nan.any(1).sum() == len(broken)


@pytest.mark.parametrize("backend", BACKENDS)
def test_mlp_does_not_lose_a_nan(backend: str) -> None:
    """The clamps of the SwiGLU must pass a NaN of a weight on."""
    case = next(c for c in CASES if str(c) == "mlp-f32").on(backend)
    inputs = mlp_inputs(case)
    inputs["gate"].data.view(np.float32)[5, 3] = np.nan
    with Machine(backend, case.s) as m:
        h_out = m.new_act(*inputs["h"].shape)
        m.run(
            "mlp",
            m.step(inputs["step"]),
            h=m.put_act(inputs["h"]),
            x=m.put_act(inputs["x"]),
            h_out=h_out,
            norm_w=m.put(inputs["norm_w"]),
            down=m.matrix(inputs["down"]),
            **m.joined("GATE_UP", "gate_up", {k: inputs[k] for k in ("gate", "up")}),
        )
        assert np.isnan(m.get_act(h_out)).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fmt", ["f32", "bf16", "fp8", "nvfp4"])
def test_copy_pages_copies_a_prefix_of_every_plane(fmt: str, backend: str) -> None:
    if backend == "cuda" and fmt == "f32":
        pytest.skip("cuda has no f32 caches")
    rng = np.random.default_rng(3)
    sizes = shape(act="bf16", kv_format=fmt, index_format=fmt)
    dim = 128 if backend == "cuda" else 32
    with Machine(backend, sizes) as m:
        planes = [[make_plane(rng, fmt, 6, g, dim) for g in (2, 2, 1)] for _ in range(2)]
        caches = [
            m.layer_cache(planes[0][0], planes[0][1], planes[0][2]),
            m.layer_cache(*planes[1][:2]),
        ]
        layers = (type(caches[0]) * 2)(*caches)
        pairs = [(1, 4, 128), (2, 0, 1), (3, 5, 77)]
        src, dst, n_tok = (m.put(np.array(x, np.int32)) for x in zip(*pairs, strict=True))
        m.run("copy_pages", layer=layers, n_layer=2, n_copy=3, src=src, dst=dst, n_tok=n_tok)
        for cache, layer in zip(caches, planes, strict=True):
            for device, plane in zip(cache.planes, layer, strict=True):
                if device.data is None:
                    continue
                got = m.get_plane(device, plane)
                for a, b in ((got.data, plane.data), (got.scale, plane.scale)):
                    if a is None or b is None:
                        assert a is b
                        continue
                    for s, d, n in pairs:
                        b[d, :, :n] = b[s, :, :n]
                    assert np.array_equal(a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gather_rows(backend: str) -> None:
    rng = np.random.default_rng(4)
    x, row = rng.integers(0, 256, (9, 48)).astype(np.uint8), np.array([3, 3, 0, 8], np.int32)
    with Machine(backend, shape()) as m:
        out = m.put(np.zeros((4, 48), np.uint8))
        m.run("gather_rows", **{"in": m.put(x)}, row=m.put(row), n_row=4, n_bytes=48, out=out)
        assert np.array_equal(m.get(out), x[row])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"head_dim": 24}, "head_dim"),
        ({"d_model": 100}, "d_model"),
        ({"n_head": 3}, "query heads"),
        ({"n_rotary": 34}, "rotary"),
        ({"n_expert_used": 9}, "experts"),
        ({"d_expert": 40}, "d_expert"),
    ],
)
def test_ref_refuses_shapes_it_cannot_take(change: dict[str, Any], name: str) -> None:
    with pytest.raises(RuntimeError, match=f"unsupported: ref: .*{name}"):
        Machine("ref", shape(**change))

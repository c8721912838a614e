"""Products of few rows, the output projection with its router, the dense MLP, lm_head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import reference as R
from bench_cuda_ops import (
    Array,
    Bench,
    Prepare,
    Run,
    copies_for,
    decode_step,
    packed,
    weight_bytes,
)
from op_driver import Machine


def act(m: Machine, seed: int, *size: int) -> Any:
    """Normal values; many rows repeat the first ones, turned."""
    n = min(int(np.prod(size)), (1 << 20) + 7)
    x = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    return m.put(np.resize(R.bf16_bits(x), size))


def head(fmt: str, n_out: int, n_in: int, rows: int) -> Prepare:
    """A bare product: `head` is one, with rows taken by index and f32 results."""

    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        h = act(m, 1, rows, n_in)
        row = m.put(np.arange(rows, dtype=np.int32))
        logits = m.put(np.full((rows, n_out), np.nan, np.float32))
        runs: list[Run] = []
        for i in range(copies_for(weight_bytes(fmt, n_out, n_in))):
            args = dict(w=packed(m, fmt, n_out, n_in, seed=i), h=h, row=row, n_out=rows)
            runs.append(lambda a=args: m.run("head", logits=logits, **a))  # type: ignore[misc]
        return runs, lambda: m.get(logits)

    return prepare


def attn_out(rows: int) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        s, rng = m.sizes, np.random.default_rng(2)
        d, width = s["d_model"], s["n_head"] * s["head_dim"]
        x, h, o = act(m, 3, rows, d), m.new_act(rows, d), act(m, 4, rows, width)
        seq, norm_w = decode_step(m, rows), m.put(np.zeros(d, np.float32))
        bias = m.put(np.zeros(s["n_expert"], np.float32))
        experts = m.put(np.zeros((rows, s["n_expert_used"]), np.int32))
        weights = m.put(np.full((rows, s["n_expert_used"]), np.nan, np.float32))
        runs: list[Run] = []
        gate = (rng.normal(size=(s["n_expert"], d)) / np.sqrt(d)).astype(np.float32)
        for i in range(copies_for(weight_bytes("mxfp8", d, width) + 4 * d * s["n_expert"])):
            args = dict(
                wo=packed(m, "mxfp8", d, width, seed=i),
                gate=m.put(np.roll(gate, i, axis=0)),
                o=o,
                x=x,
                h=h,
                norm_w=norm_w,
                bias=bias,
                experts=experts,
                weights=weights,
            )
            runs.append(lambda a=args: m.run("attn_out", seq, **a))  # type: ignore[misc]
        return runs, lambda: m.get(weights)

    return prepare


def mlp(rows: int) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        d, f = m.sizes["d_model"], m.sizes["d_dense"]
        x, h, h_out = act(m, 3, rows, d), act(m, 4, rows, d), m.new_act(rows, d)
        seq, norm_w = decode_step(m, rows), m.put(np.zeros(d, np.float32))
        runs: list[Run] = []
        for i in range(copies_for(3 * weight_bytes("mxfp8", d, f))):
            args = dict(
                gate_up=packed(m, "mxfp8", 2 * f, d, seed=i),
                down=packed(m, "mxfp8", d, f, seed=i),
                x=x,
                h=h,
                h_out=h_out,
                norm_w=norm_w,
            )
            runs.append(lambda a=args: m.run("mlp", seq, **a))  # type: ignore[misc]
        return runs, lambda: m.get_act(h_out)

    return prepare


# (rows of W, columns, format, what it is in a TP8 layer, best public kernel by rows in us)
MATRICES: list[tuple[int, int, str, str, dict[int, float]]] = [
    (1536, 6144, "mxfp8", "qkv and index", {1: 9.6, 8: 9.7, 64: 10.2}),
    (6144, 1024, "mxfp8", "o", {1: 5.8, 8: 5.8, 64: 6.1}),
    (768, 6144, "mxfp8", "shared gate-up", {1: 7.7, 8: 7.7, 64: 8.0}),
    (6144, 384, "mxfp8", "shared down", {1: 4.0, 8: 4.0, 64: 4.2}),
    (1536, 6144, "bf16", "qkv and index in bf16", {1: 9.9, 8: 9.8, 64: 10.2}),
]
LM_HEAD_PEER = {1: 83.4, 8: 85.2, 64: 81.3}


def benches(quick: bool) -> Iterator[Bench]:
    rows = (1, 8, 64) if quick else (1, 2, 4, 8, 16, 32, 64)
    for n_out, n_in, fmt, what, peer in MATRICES[: 2 if quick else None]:
        for n in rows:
            sizes = dict(d_model=n_in, n_vocab=n_out, max_logit_rows=64)
            n_bytes = weight_bytes(fmt, n_out, n_in) + 2 * n * n_in + 4 * n * n_out
            name = f"{fmt} {n_out}x{n_in} rows {n}"
            yield Bench(
                "linear",
                name,
                sizes,
                head(fmt, n_out, n_in, n),
                n_bytes,
                peer.get(n, 0.0),
                what,
            )
    for n in rows:
        n_bytes = weight_bytes("mxfp8", 6144, 1024) + 4 * 128 * 6144 + 8.0 * n * 6144
        yield Bench("attn_out", f"tp8 rows {n}", {}, attn_out(n), n_bytes, 0.0, "o, norm, router")
    for n in rows:
        yield Bench("mlp", f"tp8 rows {n}", {}, mlp(n), 3 * weight_bytes("mxfp8", 6144, 1536))
    for n in LM_HEAD_PEER:
        sizes = dict(n_vocab=25008, max_logit_rows=64)
        n_bytes = weight_bytes("bf16", 25008, 6144) + 4.0 * n * 25008
        yield Bench(
            "lm_head",
            f"tp8 bf16 25008x6144 rows {n}",
            sizes,
            head("bf16", 25008, 6144, n),
            n_bytes,
            LM_HEAD_PEER[n],
        )

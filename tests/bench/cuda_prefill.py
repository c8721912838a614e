"""A prefill chunk of 8192 new tokens, one TP8 rank: the experts, the products, attention behind a
context (scores, choice of blocks and sparse attention; the same with blocks given; dense)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import reference as R
from bench_cuda_ops import Array, Bench, fill, packed, weight_bytes
from cuda_linear import act
from cuda_moe import N_ROUTING, moe, routing
from op_driver import CACHE, PAGE, Machine

NEW = 8192
ROW_BYTES = {"bf16": 256, "fp8": 128, "nvfp4": 72}
# us of the better of the public kernels: scores, choice and attention
PEER = {
    ("bf16", 8192): 1019.0,
    ("bf16", 65536): 1907.0,
    ("bf16", 262144): 4702.0,
    ("fp8", 8192): 1740.0,
}


def plane(m: Machine, fmt: str, n_page: int, seed: int) -> Any:
    """Normal values in a format: the codes of some rows, repeated over all pages."""
    rng = np.random.default_rng(seed)
    codes, scales = R.cache_encode(fmt, rng.normal(size=(8192, 128)).astype(np.float32))
    data = m.new((n_page * PAGE * codes.shape[-1],), np.uint8)
    fill(m, data, codes.view(np.uint8).reshape(-1))
    values: dict[str, Any] = dict(format=CACHE[fmt], n_head=1, dim=128, n_page=n_page, data=data)
    if scales is not None:
        values["scale"] = m.new((n_page * PAGE * scales.shape[-1],), np.uint8)
        fill(m, values["scale"], scales.reshape(-1))
    return m.struct("mm_plane", **values)


def prefill(
    fmt: str, context: int, kind: str
) -> Callable[[Machine], tuple[list[Callable[[], None]], Callable[[], Array]]]:
    def prepare(m: Machine) -> tuple[list[Callable[[], None]], Callable[[], Array]]:
        s, first = m.sizes, context - NEW
        n_page = context // PAGE + 1
        seq = m.step(R.Step([NEW], [first], [0], [list(range(1, n_page))]))
        planes = {x: plane(m, fmt, n_page, i) for i, x in enumerate(("k", "v", "ik"))}
        args: dict[str, Any] = dict(
            cache=m.struct("mm_layer_cache", **planes), q=act(m, 1, NEW, s["n_head"], 128)
        )
        args["o"] = o = m.new_act(NEW, s["n_head"], 128)
        if kind == "dense":
            args["window"] = 0
        else:
            args["iq"] = act(m, 2, NEW, s["n_index_head"], 128)
            blocks = m.put(np.full((s["n_index_head"], NEW, s["n_top_block"]), -1, np.int16))
            args |= dict(blocks=blocks, force=False)
        op = "attn_dense" if kind == "dense" else "attn_sparse"
        if kind == "attend":
            m.run(op, seq, **args)  # chooses the blocks that are then given
            args["force"] = True
        return [lambda: m.run(op, seq, **args)], lambda: m.get_act(o)

    return prepare


def work(fmt: str, context: int, kind: str) -> tuple[float, float]:
    """(bytes read and written once, operations of its products) of one call."""
    row, position = ROW_BYTES[fmt], np.arange(context - NEW, context)
    n_byte = context * 2.0 * row + NEW * 2 * 8 * 256.0
    if kind == "dense":
        return n_byte, float((position + 1).sum()) * 4 * 8 * 128
    local = position // PAGE
    keys = np.minimum(local, 15) * PAGE + position % PAGE + 1
    attend = float(keys.sum()) * 4 * 8 * 128
    score = float(np.where(local + 1 > 16, local * PAGE, 0).sum()) * 2 * 128
    return n_byte + (context * row if kind == "msa" else 0), attend + (
        score if kind == "msa" else 0
    )


def bench(name: str, fmt: str, context: int, kind: str) -> Bench:
    n_byte, n_op = work(fmt, context, kind)
    sizes = dict(
        kv_format=fmt,
        index_format=fmt,
        max_rows=NEW,
        max_seqs=1,
        max_model_len=context,
        max_logit_rows=1,
    )
    peer = PEER.get((fmt, context), 0.0) if kind == "msa" else 0.0
    params = f"tp8 {fmt} new {NEW} context {context // 1024}K"
    return Bench(name, params, sizes, prefill(fmt, context, kind), n_byte, peer, n_op=n_op)


# us of the better of the public kernels: experts without the shared one; o with add and norm;
# gate-up and down of the dense MLP
EXPERTS_PEER = {256: 251.5, 2048: 463.3, 8192: 1394.6}
OUT_PEER, MLP_PEER = {8192: 235.7}, {8192: 563.7}


def experts(rows: int) -> Bench:
    d, width = 6144, 384
    distinct = float(np.mean([len(np.unique(routing(rows, i))) for i in range(N_ROUTING)]))
    n_byte = 3 * (distinct * weight_bytes("nvfp4", d, width) + weight_bytes("mxfp8", d, width))
    return Bench(
        "moe_experts",
        f"tp8 nvfp4 rows {rows}",
        dict(max_rows=rows, max_seqs=rows),
        moe(rows),
        n_byte + rows * d * 8.0,
        EXPERTS_PEER.get(rows, 0.0),
        f"{distinct:.1f} experts, shared expert, end of branch",
        6.0 * rows * 5 * d * width,
    )


def product(kind: str, rows: int) -> Bench:
    """attn_out without a router (o, add, norm), or the dense MLP, over rows of one sequence."""

    def prepare(m: Machine) -> tuple[list[Callable[[], None]], Callable[[], Array]]:
        d, f = m.sizes["d_model"], m.sizes["d_dense"]
        seq = m.step(R.Step([rows], [0], [0], [list(range(1, rows // PAGE + 2))]))
        x, h, out = act(m, 3, rows, d), act(m, 4, rows, d), m.new_act(rows, d)
        norm_w = m.put(np.zeros(d, np.float32))
        if kind == "attn_out":
            args = dict(wo=packed(m, "mxfp8", d, 1024), o=act(m, 5, rows, 1024), x=x, h=out)
        else:
            args = dict(gate_up=packed(m, "mxfp8", 2 * f, d), down=packed(m, "mxfp8", d, f), x=x)
            args |= dict(h=h, h_out=out)
        return [lambda: m.run(kind, seq, norm_w=norm_w, **args)], lambda: m.get_act(out)

    n_weight, inner = (1024, 1024) if kind == "attn_out" else (3 * 1536, 0)
    n_byte = weight_bytes("mxfp8", 6144, n_weight) + rows * 2.0 * (3 * 6144 + inner)
    peer = (OUT_PEER if kind == "attn_out" else MLP_PEER).get(rows, 0.0)
    sizes = dict(max_rows=rows, max_seqs=1)
    note = "o, add, norm" if kind == "attn_out" else "dense MLP, add, norm"
    return Bench(
        "linear",
        f"tp8 mxfp8 {kind} rows {rows}",
        sizes,
        prepare,
        n_byte,
        peer,
        note,
        2.0 * rows * 6144 * n_weight,
    )


def benches(quick: bool) -> Iterator[Bench]:
    for rows in (8192,) if quick else (256, 2048, 8192):
        yield experts(rows)
        yield product("attn_out", rows)
        yield product("mlp", rows)
    for fmt in ("fp8", "bf16") if quick else ("fp8", "bf16", "nvfp4"):
        for context in (8192, 65536, 262144):
            if quick and (fmt, context) == ("bf16", 262144):
                continue
            yield bench("msa_prefill", fmt, context, "msa")
            if fmt == "fp8" or not quick:
                yield bench("msa_prefill_attend", fmt, context, "attend")
    for context in (8192,) if quick else (8192, 65536):
        yield bench("dense_prefill", "fp8", context, "dense")

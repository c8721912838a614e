"""A prefill chunk of 8192 new tokens, one TP8 rank: the experts, the products, attention behind a
context (scores, choice of blocks and sparse attention; the same with blocks given; dense)."""

from __future__ import annotations

import functools
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
    fill,
    packed,
    pieces,
    weight_bytes,
)
from c_structs import make
from cuda_linear import act
from cuda_moe import experts
from op_driver import CACHE, PAGE, WEIGHT, Buffer, Machine, _testing

NEW = 8192
ROW_BYTES = {"bf16": 256, "fp8": 128, "nvfp4": 72}
# us of the better of the public kernels: scores, choice and attention
PEER = {
    ("bf16", 8192): 1019.0,
    ("bf16", 65536): 1907.0,
    ("bf16", 262144): 4702.0,
    ("fp8", 8192): 1735.0,
}


@functools.cache
def some_rows(fmt: str, seed: int) -> list[tuple[int, Array]]:
    """Codes, and scales if there are any, of 8192 cache rows of normal values: the bytes of a row,
    and a tile for `fill`."""
    x = np.random.default_rng(seed).normal(size=(8192, 128)).astype(np.float32)
    parts = [y.view(np.uint8) for y in R.cache_encode(fmt, x) if y is not None]
    return [(y.shape[1], pieces(y.reshape(-1))) for y in parts]


# Memory of planes by format and seed, and how many pages it holds: filling it takes longer than the
# timing, so it stays for the benches that follow.
_kept: dict[tuple[str, int], tuple[int, list[Buffer]]] = {}


def kept_buffers(m: Machine, fmt: str, n_page: int, seed: int) -> list[Buffer]:
    """Bytes of codes, and of scales if there are any, of at least n_page pages."""
    have, buffers = _kept.get((fmt, seed), (0, []))
    if have < n_page:
        for x in buffers:
            _testing.free(m.backend, x.address)
        buffers = []
        for row_bytes, tile in some_rows(fmt, seed):
            size = n_page * PAGE * row_bytes
            address = _testing.alloc(m.backend, size)
            buffers.append(Buffer(address, (size,), np.dtype(np.uint8)))
            fill(m, buffers[-1], tile)
        _kept[fmt, seed] = n_page, buffers
    return buffers


def plane(m: Machine, fmt: str, n_page: int, seed: int) -> Any:
    """Normal values in a format: the codes of some rows, repeated over all pages. Benches share
    them: only for ops that do not write keys."""
    buffers = kept_buffers(m, fmt, n_page, seed)
    values = dict(zip(("data", "scale"), buffers, strict=False))
    return m.struct("mm_plane", format=CACHE[fmt], n_head=1, dim=128, n_page=n_page, **values)


def empty_plane(m: Machine, fmt: str, n_page: int) -> Any:
    """For an op that writes keys."""
    if fmt == "nvfp4":
        raise ValueError("empty_plane: nvfp4 has scales too; fp8 or bf16")
    data = m.new((n_page * PAGE * ROW_BYTES[fmt],), np.uint8)
    return m.struct("mm_plane", format=CACHE[fmt], n_head=1, dim=128, n_page=n_page, data=data)


def prefill(fmt: str, context: int, kind: str) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
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


# us of the better of the public kernels, and what they do
PRODUCT_PEER = {
    "attn_in": ({8192: 213.0}, "peer: product 184, norm with rotation and insert 29"),
    "attn_out": ({8192: 235.7}, "peer: product 136, add and norm 99.6"),
    "mlp": ({8192: 563.7}, "peer: the two products, without activation, add and norm"),
}
PRODUCT = {
    "attn_in": "qkv and index, norm, rotation, insert",
    "attn_out": "o, add, norm",
    "mlp": "dense MLP, add, norm",
}
N_QKV = 12 * 128  # rows of the matrix: 8 query heads, K, V, and the two of the index


def attn_in_args(m: Machine, weights: Any, n_page: int, rows: int) -> dict[str, Any]:
    """Of the op attn_in, with planes of its own, which it writes."""
    s, zeros = m.sizes, m.put(np.zeros(128, np.float32))
    planes = {x: empty_plane(m, "fp8", n_page) for x in ("k", "v", "ik")}
    w = m.struct(
        "mm_attn_weights",
        qkv=weights,
        iq=make("mm_weight", format=WEIGHT["mxfp8"], n_out=128, n_in=s["d_model"]),
        **{f"{x}_norm": zeros for x in ("q", "k", "iq", "ik")},
    )
    return dict(
        cache=m.struct("mm_layer_cache", **planes),
        w=w,
        q=m.new_act(rows, s["n_head"], 128),
        iq=m.new_act(rows, s["n_index_head"], 128),
    )


def product(kind: str, rows: int) -> Bench:
    """Over rows of one sequence: attn_in, attn_out without a router, or the dense MLP."""

    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        d, f, n_page = m.sizes["d_model"], m.sizes["d_dense"], rows // PAGE + 1
        seq = m.step(R.Step([rows], [0], [0], [list(range(1, n_page + 1))]))
        h, o, x = (act(m, 3 + i, rows, n) for i, n in enumerate((d, 1024, d)))
        out, norm_w = m.new_act(rows, d), m.put(np.zeros(d, np.float32))
        runs: list[Run] = []
        for i in range(copies_for(n_byte)):
            if kind == "attn_in":
                w = packed(m, "mxfp8", N_QKV, d, seed=i)
                args = dict(h=h, **attn_in_args(m, w, n_page + 1, rows))
                out = args["q"]
            elif kind == "attn_out":
                wo = packed(m, "mxfp8", d, 1024, seed=i)
                args = dict(wo=wo, o=o, x=x, h=out, norm_w=norm_w)
            else:
                args = dict(x=x, h=h, h_out=out, norm_w=norm_w)
                args["gate_up"] = packed(m, "mxfp8", 2 * f, d, seed=i)
                args["down"] = packed(m, "mxfp8", d, f, seed=i)
            runs.append(lambda a=args: m.run(kind, seq, **a))  # type: ignore[misc]
        return runs, lambda: m.get_act(out)

    n_weight = {"attn_in": N_QKV, "attn_out": 1024, "mlp": 3 * 1536}[kind]
    # values of a row: activations in and out; the MLP reads h too, and attn_in writes FP8 keys
    moved = {"attn_in": 6144 + 9 * 128 + 1.5 * 128, "attn_out": 3 * 6144 + 1024, "mlp": 4 * 6144}
    n_byte = weight_bytes("mxfp8", 6144, n_weight) + rows * 2.0 * moved[kind]
    peer, peer_has = PRODUCT_PEER[kind]
    return Bench(
        "linear",
        f"tp8 mxfp8 {kind} rows {rows}",
        dict(max_rows=rows, max_seqs=1, max_model_len=max(rows, 4096)),
        prepare,
        n_byte,
        peer.get(rows, 0.0),
        PRODUCT[kind] + (f"; {peer_has}" if rows in peer else ""),
        2.0 * rows * 6144 * n_weight,
    )


def benches(quick: bool) -> Iterator[Bench]:
    for rows in (256, 1024, 2048, 8192):
        if rows != 1024 or not quick:
            yield experts(rows, dict(max_rows=rows, max_seqs=rows))
        if rows != 2048 or not quick:
            for kind in PRODUCT:
                yield product(kind, rows)
    for fmt in ("fp8", "bf16", "nvfp4"):
        for context in (8192, 65536, 262144):
            yield bench("msa_prefill", fmt, context, "msa")
            if fmt == "fp8" or not quick:
                yield bench("msa_prefill_attend", fmt, context, "attend")
    for context in (8192,) if quick else (8192, 65536):
        yield bench("dense_prefill", "fp8", context, "dense")

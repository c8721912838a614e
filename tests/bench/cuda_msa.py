"""Attention of decode steps, one TP8 rank: the projections with norm, rotation and the pages;
scores, choice of blocks and sparse attention (msa_decode); attention alone (msa_attend: blocks are
given), and what scores and choice add to it (index_score: msa_decode less msa_attend, for the op
has no way to score without attending); a dense layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import reference as R
from bench_cuda_ops import L2_BYTES, Array, Bench, Prepare, Run, copies_for, packed, weight_bytes
from cuda_linear import act
from cuda_prefill import N_QKV, ROW_BYTES, attn_in_args, plane
from op_driver import PAGE, Machine

# Of a plane: longer contexts use them again, long after they have left L2.
MOST_PAGES = 65536
MOST_STEPS = 128  # of a bench: at short contexts that many are needed to leave L2
# us of the better of the public kernels at the same shapes: scores, choice and attention
PEER = {
    "fp8": {
        1: (14.2, 17.5, 27.0, 58.1),
        8: (18.4, 35.2, 84.4, 277.0),
        64: (50.2, 160.0, 524.0, 1966.0),
    },
    "bf16": {
        1: (14.5, 18.8, 32.0, 84.0),
        8: (21.8, 48.6, 143.0, 513.0),
        64: (63.9, 277.0, 1007.0, 3886.0),
    },
}
CONTEXTS = (8 << 10, 64 << 10, 256 << 10, 1 << 20)


def steps(m: Machine, rows: int, context: int, copies: int) -> tuple[list[Any], int]:
    """Decode steps of `rows` sequences at the last position of a context, each in other pages, and
    the number of pages."""
    each = context // PAGE
    n_page = min(MOST_PAGES, copies * rows * each)
    order = np.random.default_rng(1).permutation(n_page) + 1
    out = []
    for i in range(copies):
        first = [(i * rows + j) * each for j in range(rows)]
        pages = [order[np.arange(f, f + each) % n_page].tolist() for f in first]
        out.append(m.step(R.Step([1] * rows, [context - 1] * rows, list(range(rows)), pages)))
    return out, n_page + 1


def moved(kind: str, fmt: str, rows: int, context: int) -> float:
    """Bytes that a call must read."""
    row, n_block = ROW_BYTES[fmt], context // PAGE
    scan = 0 if kind in ("msa_attend", "dense_decode") else (n_block - 1) * PAGE * row
    n_read = {"dense_decode": n_block, "index_score": 0}.get(kind, 16)
    return float(rows * (scan + n_read * 2 * PAGE * row))


def attention(kind: str, fmt: str, rows: int, context: int) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        s = m.sizes
        n_bytes = moved(kind, fmt, rows, context)
        copies = min(MOST_STEPS, max(2, int(3 * L2_BYTES / n_bytes) + 1))
        seqs, n_page = steps(m, rows, context, copies)
        planes = {x: plane(m, fmt, n_page, i) for i, x in enumerate(("k", "v", "ik"))}
        o = m.new_act(rows, s["n_head"], 128)
        args: dict[str, Any] = dict(
            cache=m.struct("mm_layer_cache", **planes), q=act(m, 1, rows, s["n_head"], 128), o=o
        )
        op = "attn_dense" if kind == "dense_decode" else "attn_sparse"
        if op == "attn_sparse":
            args["iq"] = act(m, 2, rows, s["n_index_head"], 128)
        if kind == "msa_attend":
            rng, local = np.random.default_rng(3), context // PAGE - 1
            k = min(s["n_top_block"], local + 1)
            chosen = [
                sorted(rng.permutation(local)[: k - 1].tolist()) + [local] for _ in range(rows)
            ]
            args |= dict(blocks=m.put(np.array([chosen], np.int16)), force=True)
        runs: list[Run] = []
        for seq in seqs:
            runs.append(lambda q=seq: m.run(op, q, **args))  # type: ignore[misc]
        return runs, lambda: m.get_act(o)

    return prepare


def bench(kind: str, fmt: str, rows: int, context: int) -> Bench:
    sizes = dict(
        kv_format=fmt,
        index_format=fmt,
        max_model_len=context,
        max_rows=rows,
        max_seqs=rows,
    )
    peers = PEER.get(fmt, {}).get(rows, ()) if kind == "msa_decode" else ()
    peer = peers[CONTEXTS.index(context)] if peers else 0.0
    params = f"tp8 {fmt} batch {rows} context {context // 1024}K"
    n_bytes = moved(kind, fmt, rows, context)
    if kind != "index_score":
        return Bench(kind, params, sizes, attention(kind, fmt, rows, context), n_bytes, peer)
    whole, part = (attention(x, fmt, rows, context) for x in ("msa_decode", "msa_attend"))
    note = "msa_decode less msa_attend: what scores and choice add"
    return Bench(kind, params, sizes, whole, n_bytes, peer, note, less=part)


def attn_in(rows: int) -> Bench:
    n_in = 6144

    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        seqs, n_page = steps(m, rows, 1024, 1)
        h = act(m, 1, rows, n_in)
        runs: list[Run] = []
        for i in range(copies_for(weight_bytes("mxfp8", N_QKV, n_in))):
            args = attn_in_args(m, packed(m, "mxfp8", N_QKV, n_in, seed=i), n_page, rows)
            q = args["q"]
            runs.append(lambda a=args: m.run("attn_in", seqs[0], h=h, **a))  # type: ignore[misc]
        return runs, lambda: m.get_act(q)

    sizes = dict(max_model_len=1024, max_rows=rows, max_seqs=rows)
    n_bytes = weight_bytes("mxfp8", N_QKV, n_in) + rows * (n_in * 2.0 + 12 * 256)
    return Bench("attn_in", f"tp8 mxfp8 batch {rows}", sizes, prepare, n_bytes)


def benches(quick: bool) -> Iterator[Bench]:
    for rows in (1, 8, 64):
        yield attn_in(rows)
    for fmt in ("fp8", "bf16", "nvfp4"):
        for rows in (1, 8, 64):
            for context in CONTEXTS:
                yield bench("msa_decode", fmt, rows, context)
                if fmt == "fp8":
                    yield bench("index_score", fmt, rows, context)
            yield bench("msa_attend", fmt, rows, 64 << 10)
    for rows in (1, 8) if quick else (1, 8, 64):
        for context in (8 << 10, 64 << 10) if quick else CONTEXTS[:3]:
            yield bench("dense_decode", "fp8", rows, context)

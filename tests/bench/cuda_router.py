"""The router: end of the attention branch (residual add and norm), logits of 128 experts in f32,
choice of four and their weights. It is a part of attn_out, which begins with the output projection:
of one head here, 128 columns, so that the rest is what takes the time."""

from __future__ import annotations

from collections.abc import Iterator

from bench_cuda_ops import SHARD, Bench, weight_bytes
from cuda_linear import attn_out

ONE_HEAD = dict(n_head=1, n_kv_head=1, n_kv_head_total=1, n_index_head=1)
# us of the better of the public kernels: add and norm, logits in f32, choice
PEER = {1: 6.95, 8: 8.25, 16: 9.7, 32: 13.0, 64: 21.7, 8192: 507.5}


def benches(quick: bool) -> Iterator[Bench]:
    d, n_expert = SHARD["d_model"], SHARD["n_expert"]
    for rows in (1, 8, 64, 8192) if quick else (1, 2, 4, 8, 16, 32, 64, 256, 2048, 8192):
        yield Bench(
            "router",
            f"{n_expert} experts of {d}, rows {rows}",
            dict(ONE_HEAD, max_rows=max(rows, 64), max_seqs=max(rows, 64)),
            attn_out(rows),
            weight_bytes("mxfp8", d, 128) + 4.0 * n_expert * d + rows * (3 * 2.0 * d + 2 * 128),
            PEER.get(rows, 0.0),
            "add, norm, logits, choice; o of one head",
            2.0 * rows * d * (n_expert + 128),
        )

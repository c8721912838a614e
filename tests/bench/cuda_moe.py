"""The experts of a layer: routed NVFP4 and shared MXFP8, to the end of the branch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench_cuda_ops import Array, Bench, Prepare, Run, decode_step, packed, weight_bytes
from cuda_linear import act
from op_driver import Machine

N_ROUTING = 12  # different choices of experts that a graph cycles through
N_SHARED = 24  # copies of the shared expert, 7.3 MB each


def routing(rows: int, seed: int) -> Array:
    rng = np.random.default_rng([rows, seed])
    all_experts = np.tile(np.arange(128), (rows, 1))
    return np.sort(rng.permuted(all_experts, axis=1)[:, :4], -1).astype(np.int32)


def moe(rows: int) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        s = m.sizes
        d, f, fs, n = s["d_model"], s["d_expert"], s["d_shared"], s["n_expert"]
        w13, w2 = packed(m, "nvfp4", 2 * f, d, n), packed(m, "nvfp4", d, f, n, seed=1)
        shared = [
            (packed(m, "mxfp8", 2 * fs, d, seed=i), packed(m, "mxfp8", d, fs, seed=i))
            for i in range(N_SHARED)
        ]
        x, h, h_out = act(m, 3, rows, d), act(m, 4, rows, d), m.new_act(rows, d)
        seq, norm_w = decode_step(m, rows), m.put(np.zeros(d, np.float32))
        weights = m.put(np.full((rows, s["n_expert_used"]), 0.25, np.float32))
        acc = m.put(np.zeros((rows, d), np.float32))
        experts = [m.put(routing(rows, i)) for i in range(N_ROUTING)]
        runs: list[Run] = []
        for i in range(N_SHARED):
            w: Any = m.struct(
                "mm_expert_weights",
                packed_w13=w13,
                packed_w2=w2,
                shared_gate_up=shared[i][0],
                shared_down=shared[i][1],
            )
            args = dict(
                w=w,
                first=0,
                last=n,
                with_shared=True,
                accumulate=False,
                finish=True,
                h=h,
                experts=experts[i % N_ROUTING],
                weights=weights,
                acc=acc,
                x=x,
                norm_w=norm_w,
                h_out=h_out,
            )
            runs.append(lambda a=args: m.run("moe", seq, **a))  # type: ignore[misc]
        return runs, lambda: m.get_act(h_out)

    return prepare


# us of the better of the public kernels for the routed experts: align, gate and up, activation,
# down, sum. No shared expert, no end of the branch.
PEER = {1: 33.6, 4: 45.6, 8: 64.5, 16: 93.8, 64: 175.0, 256: 251.5, 2048: 463.3, 8192: 1394.6}
PEER_HAS = "peer: routed experts alone, without shared expert and end of branch"


def experts(rows: int, sizes: dict[str, Any]) -> Bench:
    d, width = 6144, 384
    distinct = float(np.mean([len(np.unique(routing(rows, i))) for i in range(N_ROUTING)]))
    n_bytes = 3 * (distinct * weight_bytes("nvfp4", d, width) + weight_bytes("mxfp8", d, width))
    note = f"{distinct:.1f} experts, shared expert, end of branch"
    return Bench(
        "moe_experts",
        f"tp8 nvfp4 rows {rows}",
        sizes,
        moe(rows),
        n_bytes + rows * d * 8.0,  # h and x are read, x and h_out written
        PEER.get(rows, 0.0),
        f"{note}; {PEER_HAS}" if rows in PEER else note,
        6.0 * rows * 5 * d * width,
    )


def benches(quick: bool) -> Iterator[Bench]:
    for rows in (1, 4, 8, 16, 64) if quick else (1, 2, 4, 8, 16, 32, 64):
        yield experts(rows, {})

"""Times ops of the CUDA backend one at a time on one GPU, at the shapes of a tensor-parallel shard.

    python tests/bench/bench_cuda_ops.py                     all families: cuda_*.py beside this
    python tests/bench/bench_cuda_ops.py moe linear --quick  some of them, few sizes
    python tests/bench/bench_cuda_ops.py --list
    python tests/bench/bench_cuda_ops.py --once              every op once: nothing is timed

An op is captured many times in one graph, cycling through copies of its weights or through other
choices so that no copy is found in the L2 cache; the time of one is the difference of two graphs of
different length, divided by the difference of their lengths, so that it holds the gaps between
launches but not the launch of the graph. Floor: bytes moved once at the larger of the read and the
copy bandwidth, or operations at the rate of matrix products, all measured first
(device_ceiling.py). Needs the test extension (MM_DEV=1).
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchlib import Row, add_rows
from device_ceiling import Ceilings, look_at_device
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import reference as R  # noqa: E402
from c_structs import make  # noqa: E402
from op_driver import WEIGHT, Machine, _testing, shape  # noqa: E402

# Of a million positions it takes seconds, and it is the same for every bench of that length.
setattr(R, "rope_table", functools.cache(R.rope_table))  # noqa: B010

Array = NDArray[Any]
Run = Callable[[], None]
# calls that do the same work on other memory (at least one), and what to check after them: an array
# that must hold no NaN
Prepare = Callable[[Machine], tuple[list[Run], Callable[[], Array]]]
LAYOUT_BACKEND = 1
FRAG_COLS = {"f32": 16, "bf16": 16, "mxfp8": 32, "nvfp4": 64}
FRAG_SCALES = {"f32": 0, "bf16": 0, "mxfp8": 16, "nvfp4": 64}
L2_BYTES = 60e6

# One TP8 rank of MiniMax-M3.1-Flash.
SHARD: dict[str, Any] = dict(
    act="bf16",
    kv_format="fp8",
    index_format="fp8",
    d_model=6144,
    n_head=8,
    n_kv_head=1,
    n_kv_head_total=4,
    n_index_head=1,
    head_dim=128,
    index_dim=128,
    n_rotary=64,
    n_top_block=16,
    n_expert=128,
    n_expert_used=4,
    d_expert=384,
    d_shared=384,
    d_dense=1536,
    max_rows=64,
    max_seqs=64,
    max_logit_rows=64,
)


@dataclass
class Bench:
    name: str
    params: str
    sizes: dict[str, Any]
    prepare: Prepare
    n_bytes: float  # that one call must move
    peer_us: float = 0.0
    note: str = ""
    n_op: float = 0.0  # operations of its products, where they may take longer than the bytes
    less: Prepare | None = None  # a part whose time is taken off: what it adds to this part is told


def machine_of(bench: Bench) -> Machine:
    return Machine("cuda", shape(**{**SHARD, **bench.sizes}))


# ------------------------------------------------------------------ inputs


def weight_bytes(fmt: str, n_out: int, n_in: int) -> float:
    return n_out * n_in * {"f32": 4.0, "bf16": 2.0, "mxfp8": 1.03125, "nvfp4": 0.5625}[fmt]


def copies_for(n_bytes: float) -> int:
    """Copies of weights so that one is gone from L2 before its turn comes again."""
    return max(4, int(np.ceil(3 * L2_BYTES / n_bytes)))


PIECE = 8 << 20  # bytes of an upload
TURN = 16 * 1021  # a multiple of 16: codes and scales keep their places in a row


def pieces(tile: Array) -> Array:
    """For `fill`: a tile repeated over a piece, turned each time, and all of that once more, so
    that a piece may begin anywhere in the first half without being put together."""
    count = -(-PIECE // tile.shape[0])
    return np.tile(np.concatenate([np.roll(tile, -i * TURN) for i in range(count)]), 2)


@functools.cache
def noise(fmt: str) -> Array:
    """Codes of a format, for `fill`."""
    rng = np.random.default_rng(0)
    if fmt in ("bf16", "f32"):  # f32 is packed as parts in bf16
        x = rng.normal(size=PIECE // 2).astype(np.float32) * np.float32(0.0128)
        return pieces(R.bf16_bits(x).view(np.uint8))
    out: Array = rng.integers(0, 256, PIECE, np.uint8)
    if fmt == "mxfp8":
        out[(out & 0x7F) == 0x7F] -= 1
    return pieces(out)


@functools.cache
def scale_noise(fmt: str) -> Array:
    low, high = (112, 115) if fmt == "mxfp8" else (64, 80)
    return pieces(np.random.default_rng(1).integers(low, high, PIECE, np.uint8))


def packed(m: Machine, fmt: str, n_out: int, n_in: int, n_matrix: int = 1, seed: int = 0) -> Any:
    """A packed matrix of random values (kernels/cuda/frag.h), or n_matrix of them one after the
    other; made on the device's side of `pack`, which would need the checkpoint's order first."""
    n_frag = -(-n_in // FRAG_COLS[fmt]) * (3 if fmt == "f32" else 1)
    n_tile = -(-n_out // 16) * n_matrix
    data = m.new((n_tile * n_frag * 512,), np.uint8)
    fill(m, data, noise(fmt), seed)
    values: dict[str, Any] = {}
    if FRAG_SCALES[fmt]:
        scale = m.new((n_tile * n_frag * FRAG_SCALES[fmt],), np.uint8)
        fill(m, scale, scale_noise(fmt), seed)
        values = dict(scale=scale.address, scale_stride=n_frag * FRAG_SCALES[fmt])
    if fmt == "nvfp4":
        values |= dict(
            global_scale=0.5,
            global_scales=m.put(np.full(2 * n_matrix, 2.0, np.float32)).address,
        )
    return make(
        "mm_weight",
        format=WEIGHT[fmt],
        layout=LAYOUT_BACKEND,
        n_out=n_out * n_matrix,
        n_in=n_in,
        data=data.address,
        data_stride=n_frag * 512,
        **{"global_scale": 1.0, **values},
    )


def fill(m: Machine, buffer: Any, tile: Array, seed: int = 0) -> None:
    """Repeats a tile of `pieces` over a buffer, beginning somewhere in it, turned a little each
    time so that no two pieces of the buffer are equal in place."""
    n, at, size = buffer.shape[0], 0, tile.shape[0] // 2
    turn = seed * 64 * TURN % size
    while at < n:
        piece = tile[turn : turn + min(size, n - at)]
        _testing.upload(m.context, buffer.address + at, piece)
        at, turn = at + piece.shape[0], (turn + TURN) % size


def decode_step(m: Machine, n: int) -> Any:
    """n sequences with one row each."""
    return m.step(R.Step([1] * n, [0] * n, list(range(n)), [[i + 1] for i in range(n)]))


# ------------------------------------------------------------------ timing


def seconds_of(m: Machine, graph: Any, repeats: int = 9) -> float:
    best = float("inf")
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        m.launch(graph)
        best = min(best, time.perf_counter() - begin)
    return best


def time_us(m: Machine, runs: list[Run], n: int) -> float:
    n = max(n, len(runs))

    def many(count: int) -> Run:
        def call() -> None:
            for i in range(count):
                runs[i % len(runs)]()

        return call

    runs[0]()  # loads the kernels before anything is captured
    one = seconds_of(m, m.capture(many(1)), 1)
    n = min(n, max(2, int(10e-3 / one)))  # an op of a chunk takes milliseconds
    short, long = m.capture(many(n)), m.capture(many(4 * n))
    return (seconds_of(m, long) - seconds_of(m, short)) / (3 * n) * 1e6


def checked(bench: Bench, check: Callable[[], Array]) -> None:
    if np.isnan(check()).any():
        raise SystemExit(f"{bench.name} {bench.params}: NaN in the result")


def once(bench: Bench) -> None:
    """Runs each call of a bench, and one as a graph."""
    with machine_of(bench) as m:
        for prepare in (bench.prepare, bench.less):
            if prepare is not None:
                runs, check = prepare(m)
                for run in runs:
                    run()
                m.launch(m.capture(runs[0]))
                checked(bench, check)


def measure(bench: Bench, device: Ceilings, n: int) -> Row:
    with machine_of(bench) as m:
        runs, check = bench.prepare(m)
        us = time_us(m, runs, n)
        checked(bench, check)
        if bench.less is not None:
            runs, check = bench.less(m)
            us -= time_us(m, runs, n)
            checked(bench, check)
    bytes_us, op_us = bench.n_bytes / device.bandwidth * 1e6, bench.n_op / device.products * 1e6
    floor = max(bytes_us, op_us)
    share = f"{bench.n_bytes / 1e6:.1f} MB, {100 * bytes_us / us:.0f} % of {device.text()}"
    if bench.n_op:
        share += f", {bench.n_op / 1e9:.0f} GFLOP, {100 * op_us / us:.0f} % of the matrix rate"
    return Row(
        bench.name,
        bench.params,
        f"{us:.2f}",
        "us",
        f"{floor:.2f}",
        f"{bench.peer_us:.1f}" if bench.peer_us else "",
        "; ".join(x for x in (share, bench.note) if x),
    )


# ------------------------------------------------------------------ families


def families() -> dict[str, Callable[[bool], Iterator[Bench]]]:
    """name -> benches(quick) of every file cuda_<name>.py beside this one."""
    names = sorted(p.stem for p in HERE.glob("cuda_*.py"))
    return {n.removeprefix("cuda_"): importlib.import_module(n).benches for n in names}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = families()
    parser.add_argument("family", nargs="*", help=f"of {', '.join(known)}; default: all")
    parser.add_argument("--quick", action="store_true", help="few sizes")
    parser.add_argument("--only", default="", help="benches whose name and parameters hold this")
    parser.add_argument("--calls", type=int, default=48, help="ops in the shorter graph")
    parser.add_argument("--list", action="store_true", help="print the benches and stop")
    parser.add_argument("--out", type=Path, help="CSV to add to; default: the device's")
    parser.add_argument("--once", action="store_true", help="run every op once, time nothing")
    parser.add_argument("--dry-run", action="store_true", help="print the results, write no file")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.family) - set(known))
    if unknown:
        parser.error(f"unknown family {', '.join(unknown)}: there are {', '.join(known)}")
    benches = [b for f in args.family or known for b in known[f](args.quick)]
    benches = [b for b in benches if args.only in f"{b.name} {b.params}"]
    if args.list:
        for b in benches:
            print(f"{b.name:18} {b.params:44} {b.n_bytes / 1e6:9.2f} MB")
        return
    if args.once:
        for b in benches:
            once(b)
            print(f"{b.name:18} {b.params:44} ran", flush=True)
        return
    began = time.perf_counter()
    device = look_at_device()
    rows = device.rows()
    for row in rows:
        print(f"{row.name} {row.params}: {row.value} {row.unit} {row.note}")
    print(f"floors at {device.text()}, {device.products / 1e12:.0f} TFLOP/s", flush=True)
    try:
        for b in benches:
            row = measure(b, device, args.calls)
            print(
                f"{row.name:18} {row.params:44} {row.value:>9} us  floor {row.floor:>8}  "
                f"peer {row.peer:>6}  {row.note}",
                flush=True,
            )
            rows.append(row)
        print(f"{len(benches)} benches in {time.perf_counter() - began:.0f} s")
    finally:  # what was measured before a failure stays
        if not args.dry_run:
            print(add_rows(rows, args.out, device.device))


if __name__ == "__main__":
    assert ctypes.sizeof(ctypes.c_void_p) == 8
    main(sys.argv[1:])

"""Times the cpu backend on this machine and adds the results to tests/bench/results.

    python tests/bench/bench_ops.py                      everything, on all cores
    python tests/bench/bench_ops.py gemv model --tier avx2 --threads 1

The work is done by bench_cpu.c, which is compiled here with the core: it compares every result with
ref before it believes a time, and measures the ceilings (streaming read, f32 multiply-adds) in the
same run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchlib import ROOT, Row, add_rows, machine

BENCHES = ["gemv", "gemm", "model", "sample"]
TIERS = ["scalar", "avx2", "avx512", "avx512_bf16"]
FLAGS = ["-std=gnu2x", "-O3", "-pthread", "-ffp-contract=off", f"-I{ROOT}"]
SOURCES = ["csrc/base/*.c", "csrc/tensor.c", "kernels/*.c", "kernels/ref/*.c", "kernels/cpu/*.c"]


def build(folder: Path) -> Path:
    """The runner, from the sources as they are now."""
    runner = folder / "bench_cpu"
    names = sorted(str(p) for pattern in SOURCES for p in ROOT.glob(pattern))
    cc = os.environ.get("CC", "cc")
    command = [
        cc,
        *FLAGS,
        str(ROOT / "tests/bench/bench_cpu.c"),
        *names,
        "-o",
        str(runner),
        "-lm",
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return runner


def run(runner: Path, bench: str, tier: str, threads: int) -> list[Row]:
    """One bench; lines that it printed as rows. A difference from ref ends the script."""
    done = subprocess.run(
        [str(runner), bench, tier, str(threads)], stdout=subprocess.PIPE, text=True
    )
    rows = [Row(*line.split("|")) for line in done.stdout.splitlines()]
    if done.returncode != 0:
        raise SystemExit(
            f"bench_ops: {bench} on tier {tier} with {threads} threads failed ({done.returncode})"
        )
    return rows


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bench", nargs="*", help=f"of {', '.join(BENCHES)}; default: all")
    parser.add_argument(
        "--tier", choices=TIERS, default=TIERS[-1], help="at most this tier (default: the best)"
    )
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: all cores"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the results, write no file")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.bench) - set(BENCHES))
    if unknown:
        parser.error(f"unknown bench {', '.join(unknown)}: there are {', '.join(BENCHES)}")
    if args.threads < 1:
        parser.error(f"--threads is {args.threads}, it must be at least 1")
    load = f"load {os.getloadavg()[0]:.1f}"
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder))
        print(machine(), load)
        for bench in args.bench or BENCHES:
            for row in run(runner, bench, args.tier, args.threads):
                numbers = f"{row.value:>9} {row.unit:8} floor {row.floor:>8} peer {row.peer:>8}"
                print(f"{row.name:18} {numbers}  {row.params}  {row.note}")
                rows.append(replace(row, note=f"{row.note}; {load}"))
    if not args.dry_run:
        print(add_rows(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

"""How the host's time of a decode step varies while nothing changes: one engine, runs in a row.

    python tests/bench/host_times.py [--batch 64] [--context 8192] [--runs plain pin:2 watched busy]

A table, no rows. plain: as it comes. pin:N: the engine's thread on core N. watched: every token is
awaited. busy: a thread of Python runs beside it. After each run of 200 steps: the mean, the mean of
each quarter of a second, and what the system says of the engine's thread: the cores it was on, how
often it waited or was switched out, its share of a core, and the time that was stolen from the
machine, in hundredths of a second.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from bench_cuda_step import host_times, open_llm, submit, write_model

STEPS = 200
CORES = os.sched_getaffinity(0)


class Task(NamedTuple):
    """A thread of this process. Hundredths of a second on a core; the last core; switches."""

    ticks: int
    core: int
    waited: int
    switched_out: int


def tasks() -> dict[int, Task]:
    found = {}
    for folder in Path("/proc/self/task").iterdir():
        try:
            stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            lines = (folder / "status").read_text().splitlines()
        except OSError:  # it has ended
            continue
        switches = [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
        found[int(folder.name)] = Task(int(stat[11]) + int(stat[12]), int(stat[36]), *switches)
    return found


def stolen() -> int:
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8])


def busiest(before: dict[int, Task], now: dict[int, Task]) -> int:
    """The thread that spins: the engine's."""
    return max(now, key=lambda t: now[t].ticks - before[t].ticks if t in before else 0)


def work_until(is_over: threading.Event) -> None:
    while not is_over.is_set():
        sum(range(1000))


def run(llm: Any, options: argparse.Namespace, kind: str) -> None:
    batch, context = options.batch[0], options.context[0]
    handles = submit(llm, batch, context, STEPS, is_watched=kind == "watched")
    is_over = threading.Event()
    if kind == "busy":
        threading.Thread(target=work_until, args=(is_over,)).start()
    before, steal, began = tasks(), stolen(), time.monotonic()
    seen, cores = [llm._engine().stats()], set()
    llm.resume_generation()
    while not all(handle.done() for handle in handles):
        time.sleep(0.25)
        seen.append(llm._engine().stats())
        now = tasks()
        thread = busiest(before, now)
        cores.add(now[thread].core)
        wanted = {int(kind[4:])} if kind.startswith("pin:") else CORES
        if os.sched_getaffinity(thread) != wanted:
            os.sched_setaffinity(thread, wanted)
    is_over.set()
    now, seconds = tasks(), time.monotonic() - began
    thread = busiest(before, now)
    old = before.get(thread, Task(0, 0, 0, 0))
    mean = host_times([seen[0], seen[-1]])[0]
    print(
        f"{kind:8} {1e6 * mean:5.1f} us | {' '.join(f'{1e6 * t:.0f}' for t in host_times(seen))} | "
        f"cores {sorted(cores)}, waited {now[thread].waited - old.waited}, switched out "
        f"{now[thread].switched_out - old.switched_out}, on a core "
        f"{now[thread].ticks - old.ticks} of {100 * seconds:.0f}, stolen {stolen() - steal}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", nargs=1, type=int, default=[64])
    parser.add_argument("--context", nargs=1, type=int, default=[8192])
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--small", action="store_true", help="a narrow model: tries the script")
    usual = ["plain", "plain", "plain", "pin:2", "plain", "watched", "busy", "plain"]
    parser.add_argument("--runs", nargs="+", default=usual)
    options = parser.parse_args()
    vars(options).update(long=[], shard=[0, 8], chunk=0, eager=False, invariant=False)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), options)
        with open_llm(Path(folder), options) as llm:
            for kind in options.runs:
                run(llm, options, kind)


if __name__ == "__main__":
    main()

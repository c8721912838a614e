"""What benchmarks share: the machine's name, and the file of results.

One CSV per machine, `results/<machine>.csv`, rows are only ever added. Columns: date, commit,
machine, name, params, value, unit, floor (the ceiling of the hardware for this work, measured in
the same run, same unit), peer (another implementation of the same work on this machine, same unit),
note.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Row:
    """One result. Empty text: not measured."""

    name: str
    params: str
    value: str
    unit: str
    floor: str = ""
    peer: str = ""
    note: str = ""


COLUMNS = ["date", "commit", "machine", *(f.name for f in fields(Row))]


def cpu_model() -> str:
    """The processor's name as the system gives it, without decoration."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next(
        (line.split(":", 1)[1] for line in lines if line.startswith("model name")), "unknown cpu"
    )
    return " ".join(re.sub(r"\((R|TM)\)|CPU|Processor|@.*", " ", name).split())


def machine() -> str:
    """Processor and the cores this process may use."""
    return f"{cpu_model()} {len(os.sched_getaffinity(0))} cores"


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def commit() -> str:
    """Short id of the measured commit; `+` when files differ from it, `none` without one. Where a
    copy of a tree is measured, git there may not know it: MM_BENCH_COMMIT says what it is."""

    def git(*args: str) -> str | None:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "--short=10", "HEAD")
    is_exact = head is not None and not git("status", "--porcelain")
    given = os.environ.get("MM_BENCH_COMMIT", "")
    if given and not is_exact:
        return given
    return "none" if head is None else head + ("" if is_exact else "+")


def add_rows(rows: list[Row], path: Path | None = None, name: str | None = None) -> Path:
    """Appends rows to the file of this machine (or of the device `name`) and returns its path."""
    name = name or machine()
    path = path or RESULTS / f"{slug(name)}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    common = [datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), commit(), name]
    with path.open("a", newline="") as f:
        writer = csv.writer(f, lineterminator="\n")
        if is_new:
            writer.writerow(COLUMNS)
        for row in rows:
            writer.writerow([*common, *(getattr(row, c.name) for c in fields(Row))])
    return path

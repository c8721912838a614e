"""The last run of nano in one command with a deadline: training, then the draft and both evaluations beside each other.

    python run.py --init ck --draft ck/draft.pt --out ck-new --seconds 570

Everything lands in --out as it is made: weights, log, draft, and the logs, tables and dumps of the evaluations in results.tar.gz. What is not done at the
deadline is ended, and what it had printed is kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Job:
    """One script of this folder with its output in a file."""

    def __init__(self, work: Path, name: str, *args: str) -> None:
        self.name, self.log, self.began = name, work / f"{name}.log", time.time()
        self.file = self.log.open("w")
        command = [sys.executable, "-u", str(HERE / args[0]), *args[1:]]
        self.process = subprocess.Popen(command, stdout=self.file, stderr=subprocess.STDOUT)

    def wait(self, until: float) -> int:
        try:
            code = self.process.wait(max(1.0, until - time.time()))
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                code = self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                code = self.process.wait()
        self.file.close()
        print(f"--- {self.name}: exit {code} after {time.time() - self.began:.0f} s")
        print(self.log.read_text()[-3500:], flush=True)
        return code


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--init", type=Path, required=True)
    a.add_argument("--draft", type=Path, help="weights the draft starts from")
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--work", type=Path, default=Path("/tmp/nano-run"))
    a.add_argument("--seconds", type=float, default=570)
    a.add_argument("--train-share", type=float, default=0.69)
    a.add_argument("--draft-seconds", type=float, default=80)
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--train", nargs=argparse.REMAINDER, default=[], help="more flags of train.py")
    o = a.parse_args()
    start = time.time()
    end = start + o.seconds
    o.out.mkdir(parents=True, exist_ok=True)
    o.work.mkdir(parents=True, exist_ok=True)
    until = start + o.train_share * o.seconds
    flags = ["--long-lr", str(o.lr), "--long-every", "3", "--long-seconds", "600", *o.train]
    job = Job(
        o.work,
        "train",
        "train.py",
        "--init",
        str(o.init),
        "--out",
        str(o.out),
        "--until",
        str(until),
        *flags,
    )
    code = job.wait(until + 0.1 * o.seconds)
    init = str(o.out if (o.out / "state.json").exists() else o.init)
    small = [x for x in ("--device", "cpu") if "cpu" in o.train]
    table, resume = (
        [
            "evaluate.py",
            "--init",
            init,
            "--needles",
            "4000",
            "8000",
            "12000",
            "16000",
            "--full",
            *small,
        ],
        ["--resume", str(o.draft)] if o.draft else [],
    )
    if small:
        table += ["--limit-records", "40"]
    jobs = [
        Job(
            o.work,
            "draft",
            "draft.py",
            "--init",
            init,
            "--out",
            str(o.out / "draft.pt"),
            "--seconds",
            str(o.draft_seconds),
            "--workers",
            "8",
            *resume,
            *small,
        ),
        Job(
            o.work,
            "quantised",
            *table,
            "--quant",
            "--out",
            str(o.work / "quantised.json"),
            "--dump",
            str(o.work / "quantised.jsonl"),
        ),
        Job(
            o.work,
            "bf16",
            *table,
            "--out",
            str(o.work / "bf16.json"),
            "--dump",
            str(o.work / "bf16.jsonl"),
        ),
    ]
    code |= max(abs(j.wait(end - 4)) for j in jobs)
    with tarfile.open(o.out / "results.tar.gz", "w:gz") as t:
        for f in sorted(o.work.iterdir()):
            t.add(f, f.name)
    print(f"all done in {time.time() - start:.0f} s, exit {code}")
    raise SystemExit(1 if code else 0)


if __name__ == "__main__":
    main()

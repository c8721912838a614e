"""The last run of nano in one command with a deadline: training, then the draft and both evaluations beside each other.

    python run.py --init ck --draft ck/draft.pt --out results --seconds 570

The data processes start first, before anything loads PyTorch, and feed the training and then the draft, which waits, loaded, for the weights. --out gets one
archive, results.tar, cut into pieces of 15 MB (cat results/* | tar x): the checkpoint with log.jsonl, draft.pt and draft.json, and what the programs printed.
It is written when the training ends, and again at the end. What is not done at the deadline is ended, and what it had printed is kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import generate

HERE = Path(__file__).resolve().parent
PIECE = 15_000_000


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


def pack(work: Path, out: Path) -> None:
    """Files of the run, but no data shards, as pieces of one archive."""
    whole = work / "whole.tar"
    with tarfile.open(whole, "w") as t:
        for f in sorted((*work.glob("*.log"), *work.glob("*.json*"), *(work / "ck").iterdir())):
            if not f.name.endswith(".tmp"):
                t.add(f, f.name)
    with whole.open("rb") as src:
        number = 0
        while piece := src.read(PIECE):
            (out / f"results.tar.{number}").write_bytes(piece)
            number += 1
    print(f"{whole.stat().st_size / 1e6:.1f} MB in {number} pieces", flush=True)


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--init", type=Path, required=True)
    a.add_argument("--draft", type=Path, help="weights the draft starts from")
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--work", type=Path, default=Path("/tmp/nano-run"))
    a.add_argument("--seconds", type=float, default=570, help="for everything")
    a.add_argument("--train-share", type=float, default=0.69, help="of it, with the evaluations")
    a.add_argument("--draft-seconds", type=float, default=80)
    a.add_argument("--draft-measure", type=int, default=8, help="every n-th held-out prompt")
    a.add_argument("--no-evaluate", action="store_true", help="train until the draft must start")
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--workers", type=int, default=14)
    a.add_argument("--train", nargs=argparse.REMAINDER, default=[], help="more flags of train.py")
    o = a.parse_args()
    start = time.time()
    end = start + o.seconds
    ck, data, trained = o.work / "ck", o.work / "data", o.work / "trained"
    o.out.mkdir(parents=True, exist_ok=True)
    ck.mkdir(parents=True, exist_ok=True)
    trained.unlink(missing_ok=True)
    shutil.rmtree(data, ignore_errors=True)  # shards of another run
    if o.init.resolve() != ck.resolve():
        (ck / "state.json").unlink(missing_ok=True)
    feeders = generate.start_both(o.seed, o.workers, data)
    until = start + o.train_share * o.seconds
    if o.no_evaluate:
        until = end - o.draft_seconds - 20  # loading, saving, measuring, packing
    small = ["--device", "cpu"] if "cpu" in o.train else []
    feed = ["--workers", "0", "--data", str(data)]
    flags = ["--long-lr", str(o.lr), "--long-every", "3", "--sparse-from", "0.6"]
    flags += ["--seed", str(o.seed), "--long-seconds", "600", "--save-every", "60", *feed]
    where = ["--init", str(o.init), "--out", str(ck), "--until", str(until)]
    train = Job(o.work, "train", "train.py", *where, *flags, *o.train)
    then = ["--init", str(ck), "--out", str(ck / "draft.pt"), "--when", str(trained), *feed]
    then += ["--seconds", str(o.draft_seconds), *(["--resume", str(o.draft)] if o.draft else [])]
    then += ["--measure", str(o.draft_measure)]
    jobs = [Job(o.work, "draft", "draft.py", *then, *small)]
    code = train.wait(end - o.draft_seconds - 10)
    if not (ck / "state.json").exists():
        for q in (jobs[0].process, *feeders):
            q.terminate()
        raise SystemExit("the training left no weights")
    trained.touch()
    pack(o.work, o.out)
    if not o.no_evaluate:
        table = ["evaluate.py", "--init", str(ck), "--full", *small]
        table += ["--needles", "4000", "8000", "12000", "16000"]
        table += ["--limit-records", "40"] if small else []
        for name, more in (("quantised", ["--quant"]), ("bf16", [])):
            kept = ["--out", str(o.work / f"{name}.json"), "--dump", str(o.work / f"{name}.jsonl")]
            jobs.append(Job(o.work, name, *table, *more, *kept))
    code |= max(abs(j.wait(end - 3)) for j in jobs)
    for f in feeders:
        f.terminate()
    pack(o.work, o.out)
    print(f"all done in {time.time() - start:.0f} s, exit {code}")
    raise SystemExit(1 if code else 0)


if __name__ == "__main__":
    main()

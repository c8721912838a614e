"""Packs conversations into rows of token ids and writes shards, in several processes beside the trainer.

A shard is a uint16 array [rows, length]; bit 15 marks tokens to predict; the document start token separates conversations. Workers keep
a bounded number of shards ahead. The stream of worker w is fixed by (seed, w, shard number). Workers are programs of their own, so that they
write before the trainer has loaded PyTorch, and at low priority, so that they leave the cores to its compiler.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import mix
import numpy as np
from render import encode_conversation, tokenizer

SHORT, LONG = 2048, 16384


def _close(parts: list[np.ndarray], length: int, pad: int) -> np.ndarray:
    row = np.full(length, pad, dtype=np.uint16)
    a = np.concatenate(parts)
    row[: len(a)] = a
    return row


def short_rows(rng: random.Random, n: int, length: int = SHORT, open_rows: int = 12) -> np.ndarray:
    """Best-fit packing of whole conversations."""
    pad = tokenizer().token_to_id("]!p~[")
    done: list[np.ndarray] = []
    rows: list[tuple[int, list[np.ndarray]]] = []
    while len(done) < n:
        a = encode_conversation(mix.conversation(rng))
        if len(a) > length:
            continue
        fits = [
            (length - used - len(a), i)
            for i, (used, _) in enumerate(rows)
            if used + len(a) <= length
        ]
        if fits:
            i = min(fits)[1]
            rows[i] = (rows[i][0] + len(a), [*rows[i][1], a])
            if length - rows[i][0] < 80:
                done.append(_close(rows.pop(i)[1], length, pad))
        else:
            if len(rows) >= open_rows:
                i = max(range(len(rows)), key=lambda j: rows[j][0])
                done.append(_close(rows.pop(i)[1], length, pad))
            rows.append((len(a), [a]))
    return np.stack(done[:n])


def long_rows(rng: random.Random, n: int, length: int = LONG) -> np.ndarray:
    """A long look-up at the start of each row, short conversations behind it."""
    pad = tokenizer().token_to_id("]!p~[")
    out = []
    while len(out) < n:
        want = rng.choice([rng.uniform(0.7, 1.0), rng.uniform(0.15, 1.0)]) * length
        chars = want * 2.0
        for _ in range(6):
            a = encode_conversation(mix.long_conversation(rng, int(chars)))
            if len(a) <= length and len(a) > 0.5 * want:
                break
            chars *= 0.92 * want / len(a)
        else:
            continue
        parts, used = [a], len(a)
        misses = 0
        while misses < 3:
            b = encode_conversation(mix.conversation(rng))
            if used + len(b) <= length:
                parts.append(b)
                used += len(b)
            else:
                misses += 1
        out.append(_close(parts, length, pad))
    return np.stack(out)


def worker(kind: str, seed: int, w: int, folder: Path, rows: int, ahead: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.nice(10)
    number, parent = 0, os.getppid()
    while os.getppid() == parent:
        rng = random.Random(f"{kind}-{seed}-{w}-{number}")
        a = short_rows(rng, rows) if kind == "short" else long_rows(rng, rows)
        tmp = folder / f"tmp-{kind}-{w}.npy"
        np.save(tmp, a)
        tmp.rename(folder / f"{kind}-{number:05d}-{w:03d}.npy")
        number += 1
        while len(list(folder.glob(f"{kind}-*-{w:03d}.npy"))) >= ahead and os.getppid() == parent:
            time.sleep(0.05)


def start(
    kind: str, seed: int, workers: int, folder: Path, rows: int, ahead: int = 6
) -> list[subprocess.Popen[bytes]]:
    folder.mkdir(parents=True, exist_ok=True)
    own = [sys.executable, __file__, "--kind", kind, "--seed", str(seed), "--rows", str(rows)]
    serve = [*own, "--out", str(folder), "--ahead", str(ahead), "--serve"]
    return [subprocess.Popen([*serve, str(w)]) for w in range(workers)]


def start_both(
    seed: int, workers: int, folder: Path, long: bool = True
) -> list[subprocess.Popen[bytes]]:
    """Workers for a training run: four of nine write long rows."""
    far = max(1, workers * 4 // 9) if long else 0
    procs = start("short", seed, max(1, workers - far), folder, 64, 24)
    return procs + (start("long", seed, far, folder, 8, 12) if far else [])


class Shards:
    """Rows in shard order; takes each shard away once read, and re-reads old rows only when the generator lags."""

    def __init__(self, kind: str, folder: Path, keep: int = 40) -> None:
        self.kind, self.folder, self.keep = kind, folder, keep
        self.rows = np.zeros((0, 0), np.uint16)
        self.old: list[np.ndarray] = []
        self.reused = 0
        self.rng = random.Random(0)

    def take(self, n: int) -> np.ndarray:
        while len(self.rows) < n:
            files = sorted(self.folder.glob(f"{self.kind}-*.npy"))
            if files:
                a = np.load(files[0])
                files[0].unlink()
                self.old = [*self.old[-self.keep :], a]
            elif self.old:
                a = self.rng.choice(self.old)
                self.reused += len(a)
            else:
                time.sleep(0.05)
                continue
            self.rows = a if not self.rows.size else np.concatenate([self.rows, a])
        out, self.rows = self.rows[:n], self.rows[n:]
        return out


def main() -> None:
    p = argparse.ArgumentParser(description="write a few shards and print their statistics")
    p.add_argument("--kind", choices=["short", "long"], default="short")
    p.add_argument("--rows", type=int, default=64)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--out", type=Path, help="file, or the folder of --serve")
    p.add_argument("--serve", type=int, help="be worker number N until the parent ends")
    p.add_argument("--ahead", type=int, default=6, help="shards that a worker keeps ahead")
    a = p.parse_args()
    if a.serve is not None:
        worker(a.kind, a.seed, a.serve, a.out, a.rows, a.ahead)
        return
    t = time.time()
    x = (short_rows if a.kind == "short" else long_rows)(
        random.Random(f"{a.kind}-{a.seed}-0-0"), a.rows
    )
    pad = tokenizer().token_to_id("]!p~[")
    print(
        f"{x.size} tokens, {(x >= 0x8000).mean():.3f} targets, {(x == pad).mean():.3f} padding, {x.size / (time.time() - t):.0f} tokens/s"
    )
    if a.out:
        np.save(a.out, x)


if __name__ == "__main__":
    main()

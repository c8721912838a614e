"""Draws the loss curve: python plot.py log.jsonl [log.jsonl ...] (needs matplotlib)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402


def main() -> None:
    step, x = 0, []
    loss: list[float] = []
    extra: dict[str, tuple[list[int], list[float]]] = {"long": ([], []), "index": ([], [])}
    ends = []
    for f in sys.argv[1:]:
        last = 0
        for line in Path(f).read_text().splitlines():
            r = json.loads(line)
            last = r["step"]
            x.append(step + last)
            loss.append(r["loss"])
            for k, (a, b) in extra.items():
                if k in r:
                    a.append(step + last)
                    b.append(r[k])
        step += last
        ends.append(step)
    fig, ax = plt.subplots(figsize=(8, 4), dpi=120)
    ax.plot(x, loss, lw=0.8, label="short rows: cross entropy on the assistant's tokens")
    ax.plot(*extra["long"], lw=0.8, label="16K rows: cross entropy")
    ax.plot(*extra["index"], lw=0.8, label="16K rows: index KL")
    for e in ends[:-1]:
        ax.axvline(e, color="0.7", lw=0.8)
    ax.set_yscale("log")
    ax.set_xlabel("step (65,536 tokens of short rows each)")
    ax.set_ylabel("nats")
    ax.legend(frameon=False, fontsize=8)
    ax.grid(alpha=0.25)
    fig.tight_layout()
    fig.savefig(Path(__file__).with_name("loss.png"))


if __name__ == "__main__":
    main()

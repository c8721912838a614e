"""From logits to tokens, as in a step of which nobody wants log-probabilities; and those, of what
was drawn. Floors: the logits read once (a filtered row is read four times, from L2 where rows are
few)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from bench_cuda_ops import L2_BYTES, Array, Bench, Prepare, Run
from c_structs import CONSTANTS
from op_driver import Machine, Slots, out_view, params_rows

GREEDY, UNFILTERED, ANY = (CONSTANTS[f"MM_DRAW_{n}"] for n in ("GREEDY", "UNFILTERED", "ANY"))
# settings, and what the engine knows of them
SETTINGS: dict[str, tuple[dict[str, Any], int]] = {
    "greedy": (dict(temperature=0.0), GREEDY),
    "greedy among others": (dict(temperature=0.0), ANY),
    "temperature": (dict(temperature=0.9), UNFILTERED),
    "top_k 50, top_p 0.95": (dict(temperature=0.9, top_k=50, top_p=0.95), ANY),
    "top_p 0.9": (dict(temperature=1.0, top_p=0.9), ANY),
    "top_p 0.95, flat": (dict(temperature=6.0, top_p=0.95), ANY),  # most ids stay
    "penalties, greedy": (
        dict(temperature=0.0, presence_penalty=0.5, repetition_penalty=1.1),
        GREEDY,
    ),
}


@functools.cache
def some_logits(rows: int, n_vocab: int) -> Array:
    """A broad hill with a few ids far above it."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, n_vocab), np.float32) * np.float32(2.5)
    for row in x:
        row[rng.integers(0, n_vocab, 40)] += rng.exponential(5.0, 40).astype(np.float32)
    return x


def copies_of(m: Machine, rows: int, n_vocab: int) -> list[Any]:
    """Logits of steps; a small row is in L2 as it is after lm_head, 64 long ones are not."""
    n = 5 if 4.0 * rows * n_vocab > L2_BYTES / 4 else 2
    return [m.put(np.roll(some_logits(rows, n_vocab), 1021 * i, axis=1)) for i in range(n)]


def slots_of(m: Machine, rows: int, settings: dict[str, Any]) -> Slots:
    many = [dict(settings, seed=i) for i in range(rows)]
    return m.slots(rows, params=params_rows(many))


def sample(rows: int, n_vocab: int, settings: dict[str, Any], draw: int) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        slots, out = slots_of(m, rows, settings), out_view(m, rows)
        args: dict[str, Any]
        work = m.new((rows, n_vocab), np.float32)
        token = m.put(np.full(rows, -1, np.int32))
        flag = m.put(np.zeros(rows, np.uint8))
        args = dict(work=work, slots=slots.struct, out=out, first=0, n=rows, commit=False)
        args |= dict(draw=draw, work_ends=True)
        runs: list[Run] = []
        for logits in copies_of(m, rows, n_vocab):
            runs.append(
                lambda x=logits: m.run("sample", logits=x, token=token, flag=flag, **args)  # type: ignore[misc]
            )

        def check() -> Array:
            ids = m.get(token)
            return np.where((ids >= 0) & (ids < n_vocab), ids, np.nan)

        return runs, check

    return prepare


def logprobs(rows: int, n_vocab: int, n_top: int) -> Prepare:
    def prepare(m: Machine) -> tuple[list[Run], Callable[[], Array]]:
        slots, width = slots_of(m, rows, {}), 1 + n_top
        out = out_view(m, rows, n_top=n_top, entry=np.arange(rows) * width)
        token = m.put(np.random.default_rng(2).integers(0, n_vocab, rows).astype(np.int32))
        ids, rank = (m.put(np.zeros(rows * width, np.int32)) for _ in range(2))
        value = m.put(np.full(rows * width, np.nan, np.float32))
        flag = m.put(np.zeros(rows, np.uint8))
        args = dict(slots=slots.struct, out=out, first=0, n=rows, token=token, flag=flag)
        outputs = dict(out_id=ids, out_rank=rank, out_value=value)
        runs: list[Run] = []
        for logits in copies_of(m, rows, n_vocab):
            runs.append(
                lambda x=logits: m.run("logprobs", logits=x, **args, **outputs)  # type: ignore[misc]
            )
        return runs, lambda: m.get(value)

    return prepare


def benches(quick: bool) -> Iterator[Bench]:
    vocabularies = (200064,) if quick else (25008, 200064)
    for n_vocab in vocabularies:
        for rows in (1, 64) if quick else (1, 8, 64):
            sizes = dict(n_vocab=n_vocab, n_vocab_local=n_vocab)
            for name, (settings, draw) in SETTINGS.items():
                yield Bench(
                    "sample",
                    f"{name}, V {n_vocab} rows {rows}",
                    sizes,
                    sample(rows, n_vocab, settings, draw),
                    4.0 * rows * n_vocab,
                )
            for n_top in (0, 20):
                yield Bench(
                    "logprobs",
                    f"top {n_top}, V {n_vocab} rows {rows}",
                    sizes,
                    logprobs(rows, n_vocab, n_top),
                    4.0 * rows * n_vocab,
                )

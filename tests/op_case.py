"""What a case of an op is, and the random inputs that cases share. The ops themselves are in
op_linear.py and op_attention.py: for each its inputs, how a machine runs it, what NumPy says.

A case makes its inputs from its seed; `prepare` puts them on a machine and returns how to run and
read it; `want` is what NumPy says. Activations in inputs are already rounded to the case's type."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import reference as R
from numpy.typing import NDArray
from op_driver import PAGE, Machine, device_shape, shape

Array = NDArray[Any]
Outputs = dict[str, Array]


@dataclass
class Prepared:
    run: Callable[[], None]
    read: Callable[[], Outputs]


PREPARE: dict[str, Callable[[Case, Machine], Prepared]] = {}
WANT: dict[str, Callable[[Case], Outputs]] = {}


@dataclass(frozen=True)
class Case:
    """`rows`: (position of the first row, rows) of each sequence. `fmt`: format of K and V,
    `index` of index keys, `weight` of the matrices."""

    op: str
    id: str
    act: str = "f32"
    rows: tuple[tuple[int, int], ...] = ((0, 5),)
    sizes: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)
    fmt: str = "f32"
    index: str = "f32"
    weight: str = "f32"
    flags: frozenset[str] = frozenset()
    window: int = 0
    seed: int = 0
    half: bool = False  # the step carries the first half of each sequence's rows
    alone: int = -1  # the step carries this sequence only

    def __str__(self) -> str:
        return f"{self.op}-{self.id}"

    @functools.cached_property
    def s(self) -> dict[str, Any]:
        return shape(act=self.act, kv_format=self.fmt, index_format=self.index, **self.sizes)

    def rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, *self.id.encode()])

    def step(self, rng: np.random.Generator) -> R.Step:
        """Sequences in slots and pages that are not in order."""
        need = [-(-(p + n) // PAGE) for p, n in self.rows]
        pages = rng.permutation(sum(need)) + 1
        if "alias" in self.flags:  # a long context of few pages, each many times
            pages = pages % 509 + 1
        ends = np.cumsum(need)
        lists = [pages[e - n : e].tolist() for e, n in zip(ends, need, strict=True)]
        slot = rng.permutation(len(self.rows)).tolist()
        return R.Step([n for _, n in self.rows], [p for p, _ in self.rows], slot, lists)

    @property
    def n_row(self) -> int:
        return sum(n for _, n in self.rows)

    def on(self, backend: str) -> Case:
        """The case as the backend takes it: cuda has bf16 activations and heads of 128."""
        if backend != "cuda":
            return self
        changed = device_shape(self.s)
        sizes = {k: v for k, v in changed.items() if k in self.sizes or v != self.s[k]}
        fmt, index = sizes.pop("kv_format", self.fmt), sizes.pop("index_format", self.index)
        sizes.pop("act", None)
        return dataclasses.replace(self, act="bf16", fmt=fmt, index=index, sizes=sizes)

    def carried(self) -> list[int]:
        """Rows of each sequence that the step carries."""
        n_rows = [(n + 1) // 2 if self.half else n for _, n in self.rows]
        return [n if self.alone in (-1, i) else 0 for i, n in enumerate(n_rows)]

    def keep(self) -> Array:
        """Rows of the whole step that this step carries."""
        pairs = zip(self.rows, self.carried(), strict=True)
        return np.concatenate([np.arange(n) < kept for (_, n), kept in pairs])

    def prepare(self, m: Machine) -> Prepared:
        return PREPARE[self.op](self, m)

    def want(self) -> Outputs:
        return WANT[self.op](self)


# ------------------------------------------------------------------ inputs

Inputs = Callable[[Case], dict[str, Any]]
ROW_INPUTS = {"h", "x", "o", "q", "iq", "extra_k", "extra_v", "row_media", "forced", "weights"}


def rows_of_step(inputs: Inputs) -> Inputs:
    """Cuts the rows out that the step does not carry."""

    @functools.wraps(inputs)
    def cut(c: Case) -> dict[str, Any]:
        out = inputs(c)
        if c.half or c.alone >= 0:
            keep, step, carried = c.keep(), out["step"], c.carried()
            at = [i for i, n in enumerate(carried) if n > 0]
            arrays = [n for n in ROW_INPUTS if isinstance(out.get(n), np.ndarray)]
            out |= {name: out[name][keep] for name in arrays}
            lists = ([x[i] for i in at] for x in (carried, step.pos0, step.slot, step.pages))
            out["step"] = R.Step(*lists, step.token[keep])
        return out

    return cut


def activations(c: Case, rng: np.random.Generator, *size: int, gain: float = 1.0) -> Array:
    return np.asarray(R.rounder(c.act)(rng.normal(size=size) * gain))


def norm_weight(rng: np.random.Generator, n: int) -> Array:
    return rng.normal(size=n).astype(np.float32) * np.float32(0.3)


def weight(
    rng: np.random.Generator, fmt: str, n_out: int, n_in: int, gain: float = 1.0, view: bool = False
) -> R.Weight:
    """Random codes of about gain / sqrt(n_in); view: 64 columns inside rows that are 192 wider."""
    wide = n_in + 192 if view else n_in
    first = 64 if view else 0
    std = gain / np.sqrt(n_in)
    w = (rng.normal(size=(n_out, wide)) * std).astype(np.float32)
    if fmt == "f32":
        return R.Weight(fmt, n_out, n_in, w.view(np.uint8), first_byte=4 * first)
    if fmt == "bf16":
        return R.Weight(fmt, n_out, n_in, R.bf16_bits(w).view(np.uint8), first_byte=2 * first)
    if fmt == "mxfp8":
        scale = rng.integers(118, 124, (n_out, wide // 32)).astype(np.uint8)
        code = R.e4m3_encode(w / np.repeat(np.exp2(scale.astype(np.float64) - 127), 32, -1))
        return R.Weight(fmt, n_out, n_in, code, scale, 1.0, first, first // 32)
    scale = rng.integers(0x30, 0x50, (n_out, wide // 16)).astype(np.uint8)  # 0.5 .. 7.5
    data = rng.integers(0, 256, (n_out, wide // 2)).astype(np.uint8)
    return R.Weight(
        fmt, n_out, n_in, data, scale, float(np.float32(8.3 / std)), first // 2, first // 16
    )


def make_plane(
    rng: np.random.Generator, fmt: str, n_page: int, n_head: int, dim: int, exact: bool = False
) -> R.Plane:
    """exact: small integers, so that sums have no rounding and many scores tie."""
    size = (n_page, n_head, PAGE, dim)
    x = rng.integers(-1, 2, size).astype(np.float64) if exact else rng.normal(size=size)
    return R.Plane.of(fmt, x.astype(np.float32))


def n_pages(step: R.Step) -> int:
    return max(max(p) for p in step.pages) + 1

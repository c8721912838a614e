"""An independent reading of ops.h in NumPy: what ref is tested against. Sums are float64; values
are rounded where the contracts say so and nowhere else. Number formats come from their definitions
(nearest value of a table, ties to the even code), not from half.h."""

# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PAGE = 128

# ------------------------------------------------------------------ number formats


def bf16_bits(x: Array) -> Array:
    x = np.ascontiguousarray(x, np.float32)
    u = x.view(np.uint32).astype(np.uint64)
    out = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FFF), out)


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16(x: Array) -> Array:
    return from_bf16(bf16_bits(x))


def rounder(act: str) -> Any:
    return bf16 if act == "bf16" else lambda x: np.asarray(x, np.float32)


def _e4m3(code: int) -> float:
    e, m = code >> 3 & 15, code & 7
    return math.ldexp(m, -9) if e == 0 else math.ldexp(8 + m, e - 10)


E4M3 = np.array([_e4m3(c) for c in range(127)])  # magnitudes; 127 is NaN
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(values: Array, a: Array) -> Array:
    """Index of the nearest of the ascending values, ties to the even index, saturating."""
    low = np.clip(np.searchsorted(values, a, "right") - 1, 0, len(values) - 1)
    high = np.minimum(low + 1, len(values) - 1)
    below, above = a - values[low], values[high] - a
    return np.where((above < below) | ((above == below) & (low % 2 == 1)), high, low)


def e4m3_encode(x: Array) -> Array:
    x = np.asarray(x, np.float64)
    code = nearest(E4M3, np.abs(np.nan_to_num(x, nan=0.0, posinf=1e9, neginf=-1e9))) | (
        np.signbit(x) << 7
    )
    return np.where(np.isnan(x), 0x7F, code).astype(np.uint8)


def e4m3_decode(code: Array) -> Array:
    table = np.concatenate([E4M3, [np.nan], -E4M3, [np.nan]]).astype(np.float32)
    return table[code]


def e2m1_decode(code: Array) -> Array:
    return np.concatenate([E2M1, -E2M1]).astype(np.float32)[code]


def unpack_pairs(data: Array) -> Array:
    return np.stack([data & 15, data >> 4], -1).reshape(*data.shape[:-1], -1)


def pack_pairs(code: Array) -> Array:
    pairs = code.reshape(*code.shape[:-1], -1, 2)
    return (pairs[..., 0] | pairs[..., 1] << 4).astype(np.uint8)


def kv4_encode(x: Array) -> tuple[Array, Array]:
    """Rows of bf16 values [..., dim] -> packed codes [..., dim / 2], scales [..., dim / 16]."""
    b = x.astype(np.float32).reshape(*x.shape[:-1], -1, 16)
    amax = np.maximum(np.abs(np.nan_to_num(b, nan=0.0)).max(-1), np.float32(1e-12))
    scale = e4m3_encode(np.maximum(amax / np.float32(6), np.float32(2**-9)))
    q = b / e4m3_decode(scale)[..., None]
    code = nearest(E2M1, np.abs(np.nan_to_num(q)).astype(np.float64))
    code = np.where(code == 0, 0, code | (np.signbit(q) << 3)).astype(np.uint8)
    broken: Array = np.asarray(np.isnan(b).any(-1))
    scale = np.where(broken, np.uint8(0x7F), scale)
    code = np.where(broken[..., None], np.uint8(0), code)
    return pack_pairs(code.reshape(x.shape)), scale


def cache_encode(fmt: str, x: Array) -> tuple[Array, Array | None]:
    """Rows [..., dim] as bytes of a cache format and its scales."""
    if fmt == "f32":
        return np.ascontiguousarray(x, np.float32).view(np.uint8), None
    if fmt == "bf16":
        return np.ascontiguousarray(bf16_bits(x)).view(np.uint8), None
    if fmt == "fp8":
        return e4m3_encode(bf16(x)), None
    return kv4_encode(bf16(x))


def cache_decode(fmt: str, data: Array, scale: Array | None) -> Array:
    """What attention multiplies with."""
    data = np.ascontiguousarray(data)
    if fmt == "f32":
        return data.view(np.float32)
    if fmt == "bf16":
        return from_bf16(data.view(np.uint16))
    if fmt == "fp8":
        return e4m3_decode(data)
    assert scale is not None
    product = e2m1_decode(unpack_pairs(data)) * np.repeat(e4m3_decode(scale), 16, -1)
    return e4m3_decode(e4m3_encode(product))


def e4m3(x: Array) -> Array:
    return e4m3_decode(e4m3_encode(x))


def query_operand(fmt: str, q: Array) -> Array:
    return {"f32": lambda x: x, "bf16": bf16, "fp8": bf16, "nvfp4": lambda x: e4m3(bf16(x))}[fmt](q)


def index_query_operand(fmt: str, q: Array) -> Array:
    return {"f32": lambda x: x, "bf16": bf16}.get(fmt, lambda x: e4m3(bf16(x)))(q)


# ------------------------------------------------------------------ weights, caches, steps


@dataclass
class Weight:
    """A matrix as stored; first_byte and first_scale make it a view into wider rows."""

    format: str
    n_out: int
    n_in: int
    data: Array  # [rows, bytes]
    scale: Array | None = None
    global_scale: float = 1.0
    first_byte: int = 0
    first_scale: int = 0

    def dense(self) -> Array:
        """[n_out, n_in] float64."""
        n = {
            "f32": 4 * self.n_in,
            "bf16": 2 * self.n_in,
            "mxfp8": self.n_in,
            "nvfp4": self.n_in // 2,
        }[self.format]
        data = np.ascontiguousarray(self.data[: self.n_out, self.first_byte : self.first_byte + n])
        if self.format == "f32":
            return data.view(np.float32).astype(np.float64)
        if self.format == "bf16":
            return from_bf16(data.view(np.uint16)).astype(np.float64)
        assert self.scale is not None
        step = 32 if self.format == "mxfp8" else 16
        scale = self.scale[: self.n_out, self.first_scale : self.first_scale + self.n_in // step]
        if self.format == "mxfp8":
            return e4m3_decode(data).astype(np.float64) * np.repeat(
                np.exp2(scale.astype(np.float64) - 127), 32, -1
            )
        w = e2m1_decode(unpack_pairs(data)).astype(np.float64) * np.repeat(
            e4m3_decode(scale), 16, -1
        )
        return w / np.float64(np.float32(self.global_scale))


@dataclass
class Plane:
    format: str
    n_head: int
    dim: int
    data: Array  # [n_page, n_head, PAGE, bytes]
    scale: Array | None

    @staticmethod
    def of(fmt: str, x: Array) -> Plane:
        """x [n_page, n_head, PAGE, dim]"""
        data, scale = cache_encode(fmt, x)
        return Plane(fmt, x.shape[1], x.shape[3], data, scale)

    @functools.cached_property
    def operands(self) -> Array:
        return cache_decode(self.format, self.data, self.scale)


@dataclass
class Step:
    """Sequences of a step: rows of sequence i stand at pos0[i] .. pos0[i] + n_rows[i] - 1."""

    n_rows: list[int]
    pos0: list[int]
    slot: list[int]
    pages: list[list[int]]
    token: Array = field(default_factory=lambda: np.zeros(0, np.int32))

    def __post_init__(self) -> None:
        if len(self.token) == 0:
            self.token = np.zeros(self.n_row, np.int32)

    @property
    def n_row(self) -> int:
        return sum(self.n_rows)

    @property
    def row_start(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.n_rows)]).astype(np.int32)

    @property
    def row_seq(self) -> Array:
        return np.repeat(np.arange(len(self.n_rows)), self.n_rows).astype(np.int32)

    @property
    def pos(self) -> Array:
        parts = [np.arange(p, p + n) for p, n in zip(self.pos0, self.n_rows, strict=True)]
        return np.concatenate(parts).astype(np.int32)

    def keys(self, plane: Plane, i_seq: int, head: int, n: int) -> Array:
        """Operands of positions 0 .. n - 1 of a sequence, [n, dim]."""
        pages = self.pages[i_seq][: -(-n // PAGE)]
        return plane.operands[pages, head].reshape(-1, plane.dim)[:n]


# ------------------------------------------------------------------ the model's pieces


def rope_table(n_pos: int, n_rotary: int, theta: float = 5e6) -> Array:
    angle = np.arange(n_pos)[:, None] * theta ** (-np.arange(0, n_rotary, 2) / n_rotary)
    return np.concatenate([np.cos(angle), np.sin(angle)], -1).astype(np.float32)


def norm(v: Array, w: Array, eps: float) -> Array:
    v = v.astype(np.float64)
    return v / np.sqrt((v * v).mean(-1, keepdims=True) + eps) * (1 + w.astype(np.float64))


def rotate(v: Array, rope: Array) -> Array:
    """[T, heads, dim] by the rows [T, n_rotary] of the table."""
    half = rope.shape[1] // 2
    cos, sin = rope[:, None, :half].astype(np.float64), rope[:, None, half:].astype(np.float64)
    a, b = v[..., :half], v[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, v[..., 2 * half :]], -1)


def project(
    s: dict[str, Any], h: Array, w: Weight, norm_w: Array | None, dim: int, pos: Array
) -> Array:
    r = rounder(s["act"])
    y = r(h.astype(np.float64) @ w.dense().T).reshape(len(h), -1, dim)
    if norm_w is None:
        return y
    return r(rotate(norm(y, norm_w, s["eps"]), rope_table(s["max_model_len"], s["n_rotary"])[pos]))


def branch_end(s: dict[str, Any], y: Array, x: Array, norm_w: Array) -> tuple[Array, Array]:
    """(x, h) after a branch with f32 result y."""
    r = rounder(s["act"])
    total = x.astype(np.float64) + r(y)
    return r(total), r(norm(total, norm_w, s["eps"]))


def router(s: dict[str, Any], h: Array, gate: Array, bias: Array | None) -> tuple[Array, Array]:
    p = 1 / (1 + np.exp(-(h.astype(np.float64) @ gate.astype(np.float64).T)))
    score = p + (0 if bias is None else bias)
    experts = np.sort(np.argsort(-score, -1, kind="stable")[:, : s["n_expert_used"]], -1)
    return experts, expert_weights(p, experts)


def expert_weights(p: Array, experts: Array) -> Array:
    w = np.take_along_axis(p, experts, 1)
    return w / w.sum(-1, keepdims=True)


def mlp(s: dict[str, Any], h: Array, gate: Weight, up: Weight, down: Weight) -> Array:
    h, limit = h.astype(np.float64), s["swiglu_limit"]
    g = np.minimum(h @ gate.dense().T, limit)
    u = np.clip(h @ up.dense().T, -limit, limit)
    a = rounder(s["act"])((u + s["swiglu_beta"]) * g / (1 + np.exp(-s["swiglu_alpha"] * g)))
    return a.astype(np.float64) @ down.dense().T


# ------------------------------------------------------------------ attention


def choose_blocks(s: dict[str, Any], score: Array, local: int) -> list[int]:
    """Blocks of a row in block `local` from the scores of the blocks below it."""
    k = s["n_top_block"]
    if local + 1 <= k:
        return list(range(local + 1))
    free = score[:local].astype(np.float64).copy()
    free[: s["n_init_block"]] = np.inf
    return sorted(np.argsort(-free, kind="stable")[: k - 1].tolist()) + [local]


def index_scores(s: dict[str, Any], step: Step, ik: Plane, iq: Array, t: int, g: int) -> Array:
    i, local = int(step.row_seq[t]), int(step.pos[t]) // PAGE
    keys = step.keys(ik, i, 0, local * PAGE).astype(np.float64)
    q = index_query_operand(ik.format, iq[t, g]).astype(np.float64)
    return (keys @ q).reshape(local, PAGE).max(-1) if local else np.zeros(0)


def attend(fmt: str, q: Array, k: Array, v: Array, pages: list[Array]) -> Array:
    """One head vector over lists of key indices, one partial for each list, merged in order."""
    q = query_operand(fmt, q).astype(np.float64)
    top, den, acc = -np.inf, 0.0, np.zeros(len(q))
    for index in pages:
        if len(index) == 0:
            continue
        score = (k[index].astype(np.float64) @ q).astype(np.float32) * np.float32(
            1 / math.sqrt(len(q))
        )
        m = float(score.max())
        p = np.exp(score.astype(np.float64) - m).astype(np.float32)
        if fmt == "nvfp4":
            p = np.float32(448) * p
        operand = {"f32": lambda x: x, "nvfp4": e4m3}.get(fmt, bf16)(p)
        part_den, part = float(p.sum(dtype=np.float64)), operand.astype(np.float64) @ v[index]
        new = max(top, m)
        den = den * math.exp(top - new) + part_den * math.exp(m - new)
        acc = acc * math.exp(top - new) + part * math.exp(m - new)
        top = new
    return acc / (max(den, 1.0) if fmt == "nvfp4" else den or 1.0)


def attn_sparse(
    s: dict[str, Any], step: Step, k: Plane, v: Plane, q: Array, blocks: Array
) -> Array:
    """o [T, H, d] for given blocks [I, T, k]."""
    out = np.zeros(q.shape)
    group = s["n_head"] // s["n_kv_head"]
    for t in range(step.n_row):
        i, p = int(step.row_seq[t]), int(step.pos[t])
        for g in range(s["n_kv_head"]):
            kk, vv = step.keys(k, i, g, p + 1), step.keys(v, i, g, p + 1)
            chosen = [
                np.arange(b * PAGE, min(p + 1, (b + 1) * PAGE)) for b in blocks[g, t] if b >= 0
            ]
            for a in range(g * group, (g + 1) * group):
                out[t, a] = attend(k.format, q[t, a], kk, vv, chosen)
    return np.asarray(rounder(s["act"])(out))


def attn_dense(
    s: dict[str, Any],
    step: Step,
    k: Plane,
    v: Plane,
    q: Array,
    window: int = 0,
    extra: tuple[Array, Array] | None = None,
    n_ctx: Array | None = None,
) -> Array:
    out = np.zeros(q.shape)
    group = s["n_head"] // s["n_kv_head"]
    for t in range(step.n_row):
        i, p = int(step.row_seq[t]), int(step.pos[t])
        held = p + 1 if n_ctx is None else int(n_ctx[i])
        low = max(0, p - window + 1) if window else 0
        rows = slice(step.row_start[i], step.row_start[i + 1])
        for g in range(s["n_kv_head"]):
            kk, vv = step.keys(k, i, g, held), step.keys(v, i, g, held)
            lists = [np.arange(max(low, b), min(held, b + PAGE)) for b in range(0, held, PAGE)]
            if extra is not None:
                more = [cache_decode(k.format, *cache_encode(k.format, e[rows, g])) for e in extra]
                kk, vv = np.concatenate([kk, more[0]]), np.concatenate([vv, more[1]])
                seen = np.nonzero(step.pos[rows] >= low)[0]
                lists.append(held + seen)
            for a in range(g * group, (g + 1) * group):
                out[t, a] = attend(k.format, q[t, a], kk, vv, lists)
    return np.asarray(rounder(s["act"])(out))


# ------------------------------------------------------------------ sampling


@dataclass
class SampleRow:
    """Settings and history of one row; the names of SamplingParams."""

    logits: Array
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_tokens: int = 0
    seed: int = 0
    bias: dict[int, float] = field(default_factory=dict)
    allowed: Array | None = None  # bool [V]
    never: list[int] = field(default_factory=list)
    ban: list[int] = field(default_factory=list)
    bad_words: list[list[int]] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    history: list[int] = field(default_factory=list)  # tokens emitted by the slot
    lane_tokens: list[int] = field(default_factory=list)  # accepted so far in this step
    forced: int = -1

    def processed(self) -> Array:
        """Logits after masks, bias and penalties, before the temperature; -inf where masked."""
        x = self.logits.astype(np.float64).copy()
        seen = self.history + self.lane_tokens
        masked = np.zeros(len(x), bool) if self.allowed is None else ~self.allowed
        masked[self.never] = True
        if len(seen) < self.min_tokens:
            masked[self.ban] = True
        for word in self.bad_words:
            if word[:-1] == (seen[-len(word) + 1 :] if len(word) > 1 else []):
                masked[word[-1]] = True
        if self.forced >= 0:
            masked[self.forced] = False
        x[masked] = -np.inf
        for token, value in self.bias.items():
            if token != self.forced or value != -np.inf:
                x[token] += value
        count = np.bincount(np.array(seen, np.int64), minlength=len(x))
        known = count > 0
        known[self.prompt] = True
        r = self.repetition_penalty
        x = np.where(known, np.where(x > 0, x / r, x * r), x)
        return np.asarray(x - self.frequency_penalty * count - self.presence_penalty * (count > 0))

    def distribution(self) -> Array:
        """Probabilities that the token is drawn from, [V]; all zero when nothing is allowed."""
        x = self.processed()
        if not (x > -np.inf).any():
            return np.zeros(len(x))
        if self.temperature < 1e-5:
            return np.asarray(np.arange(len(x)) == x.argmax(), np.float64)
        x = x / self.temperature
        p = np.exp(x - x.max())
        p[p < self.min_p * p.max()] = 0
        order = np.argsort(-np.where(p > 0, x, -np.inf), kind="stable")
        if 0 < self.top_k < len(x):
            p[x < x[order[self.top_k - 1]]] = (
                0 if p[order[self.top_k - 1]] > 0 else p[x < x[order[self.top_k - 1]]]
            )
        mass = np.cumsum(p[order])
        n = int(np.searchsorted(mass, self.top_p * mass[-1])) + 1 if self.top_p < 1 else len(x)
        p[order[n:]] = 0
        return np.asarray(p / p.sum())


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    k, c = list(key), list(counter)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & 0xFFFFFFFF, a >> 32 ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0], c[1], c[2], c[3]


def uniform(seed: int, n_emitted: int, lane: int, stream: int) -> float:
    key = (seed & 0xFFFFFFFF, seed >> 32)
    return (philox(key, (n_emitted & 0xFFFFFFFF, n_emitted >> 32, lane, stream))[0] + 0.5) / 2**32

"""Random settings and histories for the sampler, and the slots that carry them."""

# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from typing import Any

import numpy as np
from c_structs import CONSTANTS
from numpy.typing import NDArray
from op_driver import Machine, Slots, out_view, params_rows
from reference import SampleRow

Array = NDArray[Any]
MAX_LIST = CONSTANTS["MM_MAX_LIST"]


def bits(ids: Any, n_vocab: int) -> Array:
    """Words with a bit for each id."""
    flags = np.zeros(-(-n_vocab // 32) * 32, bool)
    flags[np.asarray(list(ids), np.int64)] = True
    return (flags.reshape(-1, 32) << np.arange(32, dtype=np.uint64)).sum(-1).astype(np.uint32)


def random_row(rng: np.random.Generator, n_vocab: int) -> SampleRow:
    """Every feature is on in some rows, off in most; half of the logits tie."""

    def sometimes(p: float = 0.3) -> bool:
        return bool(rng.random() < p)

    def ids(n: int) -> list[int]:
        return rng.integers(0, n_vocab, n).tolist()

    logits = rng.normal(size=n_vocab) * rng.choice([0.5, 3.0])
    row = SampleRow((np.round(logits * 4) / 4 if sometimes(0.5) else logits).astype(np.float32))
    row.seed = int(rng.integers(0, 2**63)) * 2 + int(rng.integers(2))
    row.temperature = float(np.float32(rng.choice([0.0, 0.2, 0.7, 1.0, 1.9])))
    row.history = ids(int(rng.integers(0, 90)) if sometimes(0.7) else 0)
    if sometimes():
        row.top_k = int(rng.integers(1, n_vocab + 3))
    if sometimes():
        row.top_p = float(np.float32(rng.uniform(0.05, 0.999)))
    if sometimes():
        row.min_p = float(np.float32(rng.uniform(0.001, 0.6)))
    if sometimes():
        row.repetition_penalty, row.prompt = float(np.float32(rng.uniform(0.6, 1.9))), ids(9)
    if sometimes():
        row.frequency_penalty = float(np.float32(rng.uniform(-2, 2)))
    if sometimes():
        row.presence_penalty = float(np.float32(rng.uniform(-2, 2)))
    if sometimes():
        values = rng.choice([-np.inf, -3.5, 0.25, 6.0], 3)
        row.bias = dict(zip(ids(3), values.tolist(), strict=True))
    if sometimes():
        row.allowed = rng.random(n_vocab) < rng.choice([0.02, 0.5, 0.98])
    if sometimes():
        row.never = ids(2)
    if sometimes():
        row.min_tokens, row.ban = int(rng.integers(0, 100)), ids(4)
    if sometimes():
        tail = row.history[-int(rng.integers(1, 6)) :] if row.history else []
        row.bad_words = [
            [*tail, *ids(1)],
            ids(1),
            [*ids(2)],
            [*tail[-1:], int(row.logits.argmax())],
        ]
    if sometimes(0.15):
        row.forced = ids(1)[0]
    if sometimes(0.2):
        row.lane_tokens = ids(int(rng.integers(1, 8)))
        if row.bad_words:
            row.bad_words.append([*row.history[-2:], *row.lane_tokens, int(row.logits.argmax())])
    return row


def slots_of(m: Machine, rows: list[SampleRow], mask_lanes: int = 1) -> Slots:
    """Row i as the state of slot i. All rows share the shape's never_token list."""
    n, v = len(rows), m.sizes["n_vocab"]
    a: dict[str, Array] = {
        "n_emitted": np.zeros(n),
        "last_token": np.zeros(n),
        "recent": np.zeros((n, CONSTANTS["MM_MAX_BAD_LEN"])),
        "bias_token": np.zeros((n, MAX_LIST)),
        "bias_value": np.zeros((n, MAX_LIST)),
        "ban_token": np.zeros((n, MAX_LIST)),
        "bad_offset": np.zeros((n, MAX_LIST + 1)),
        "bad_token": np.zeros((n, CONSTANTS["MM_MAX_BAD_TOKENS"])),
        "mask": np.zeros((n, mask_lanes, -(-v // 32)), np.uint32),
        "in_prompt": np.zeros((n, -(-v // 32)), np.uint32),
        "n_out": np.zeros((n, v)),
    }
    for i, r in enumerate(rows):
        a["n_emitted"][i] = len(r.history)
        for k, token in enumerate(r.history):
            a["recent"][i, k % 64] = token
        a["last_token"][i] = r.history[-1] if r.history else 0
        a["bias_token"][i, : len(r.bias)] = list(r.bias)
        a["bias_value"][i, : len(r.bias)] = list(r.bias.values())
        a["ban_token"][i, : len(r.ban)] = r.ban
        a["bad_offset"][i, 1 : len(r.bad_words) + 1] = np.cumsum([len(w) for w in r.bad_words])
        flat = [t for w in r.bad_words for t in w]
        a["bad_token"][i, : len(flat)] = flat
        if r.allowed is not None:
            a["mask"][i, :] = bits(np.nonzero(r.allowed)[0], v)
        a["in_prompt"][i] = bits(r.prompt, v)
        a["n_out"][i] = np.bincount(np.array(r.history, np.int64), minlength=v)
    a["params"] = params_rows(
        [
            dict(
                seed=r.seed,
                temperature=r.temperature,
                top_p=r.top_p,
                min_p=r.min_p,
                repetition_penalty=r.repetition_penalty,
                frequency_penalty=r.frequency_penalty,
                presence_penalty=r.presence_penalty,
                top_k=r.top_k,
                min_tokens=r.min_tokens,
                n_bias=len(r.bias),
                n_ban=len(r.ban),
                n_bad=len(r.bad_words),
                has_mask=r.allowed is not None,
            )
            for r in rows
        ]
    )
    return m.slots(n, mask_lanes=mask_lanes, **a)


def sample(
    m: Machine, rows: list[SampleRow], slots: Slots | None = None, **how: Any
) -> tuple[Array, Array, Array]:
    """Token, flag and processed logits of every row; the lanes before a row are output rows
    of their own, dropped here. how: `draw`, `work_ends`."""
    slots = slots or slots_of(m, rows)
    row_slot, lane, row_token, logits, last = [], [], [], [], []
    for i, r in enumerate(rows):
        seen = [r.history[-1] if r.history else 0, *r.lane_tokens]
        row_slot += [i] * len(seen)
        lane += list(range(len(seen)))
        row_token += seen
        logits += [np.zeros(len(r.logits), np.float32)] * (len(seen) - 1) + [r.logits]
        last.append(len(lane) - 1)
    forced = np.full(len(lane), -1)
    forced[last] = [r.forced for r in rows]
    n = len(lane)
    out = out_view(m, n, row_slot=row_slot, lane=lane, row_token=row_token, token=forced)
    x = m.put(np.stack(logits).astype(np.float32))
    work = m.put(np.full((n, m.sizes["n_vocab"]), np.nan, np.float32))
    token, flag = m.put(np.full(n, -7, np.int32)), m.put(np.full(n, 9, np.uint8))
    m.run(
        "sample",
        logits=x,
        work=work,
        slots=slots.struct,
        out=out,
        first=0,
        n=n,
        commit=False,
        token=token,
        flag=flag,
        **how,
    )
    return m.get(token)[last], m.get(flag)[last], m.get(work)[last]

"""Log-probabilities: values of every mode, ranks with ties, lists of the slot and of the batch,
rows without entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from c_structs import CONSTANTS
from numpy.typing import NDArray
from op_driver import BACKENDS, Machine, out_view, params_rows, shape
from tolerances import limit

Array = NDArray[Any]
MODES = {
    name: CONSTANTS[f"MM_{name}"]
    for name in (
        "LOGPROB_RAW",
        "LOGPROB_TEMPERED",
        "LOGPROB_PROCESSED",
        "LOGIT_RAW",
        "LOGIT_PROCESSED",
    )
}
SAMPLE, SCORE, TRACE = (CONSTANTS[f"MM_OUT_{x}"] for x in ("SAMPLE", "SCORE", "TRACE"))


def log_softmax(x: Array) -> Array:
    x = x.astype(np.float64)
    return np.asarray(x - x.max() - np.log(np.exp(x - x.max()).sum()))


def values(mode: str, logits: Array, work: Array, temperature: float) -> Array:
    if mode.startswith("LOGIT"):
        return logits if mode == "LOGIT_RAW" else work
    if mode == "LOGPROB_PROCESSED":
        return log_softmax(work)
    tempered = mode == "LOGPROB_TEMPERED" and temperature >= 1e-5
    return log_softmax(logits / np.float32(temperature) if tempered else logits)


def ranks(x: Array) -> Array:
    order = np.argsort(-x.astype(np.float64), kind="stable")
    out = np.empty(len(x), np.int64)
    out[order] = np.arange(len(x)) + 1
    return out


def close(got: Array, want: Array) -> None:
    assert np.array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    assert (
        np.abs(got[finite] - want[finite]).max(initial=0) <= limit("logprobs", "f32").max_abs * 20
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_logprobs_values_and_ranks(mode: str, temperature: float, backend: str) -> None:
    rng = np.random.default_rng(2)
    n, v, n_top = 6, 700, 5
    logits = (np.round(rng.normal(size=(n, v)) * 6) / 4).astype(np.float32)  # many ties
    work = np.where(rng.random((n, v)) < 0.7, -np.inf, logits / max(temperature, 0.5)).astype(
        np.float32
    )
    token = np.array([int(w.argmax()) for w in work])
    lists = [[3, 600, 3, int(token[i])] for i in range(n)]
    width = 1 + n_top + 4
    with Machine(backend, shape(n_vocab=v)) as m:
        slot_list = np.zeros((n, CONSTANTS["MM_MAX_LIST"]), np.int32)
        slot_list[:, :4] = lists
        rows = [dict(temperature=temperature, n_logprob_token=4)] * n
        slots = m.slots(n, params=params_rows(rows), logprob_token=slot_list)
        # the last two rows are prompt rows: token from the view, list from the batch
        blob = m.put(np.array([0] * 4 + lists[4] + lists[5], np.int32))
        out = out_view(
            m,
            n,
            blob=blob,
            kind=[SAMPLE] * 4 + [SCORE] * 2,
            token=[-1] * 4 + token[4:].tolist(),
            mode=MODES[mode],
            n_top=n_top,
            n_list=4,
            entry=np.arange(n)[::-1] * width,
            list=[-1] * 4 + [16, 32],
        )
        ids, rank = (m.put(np.full(n * width, -7, np.int32)) for _ in range(2))
        value, chosen = m.put(np.zeros(n * width, np.float32)), m.put(np.full(n, 9, np.float32))
        drawn, flag = (
            m.put(np.where(np.arange(n) < 4, token, -1).astype(np.int32)),
            m.put(np.full(n, 9, np.uint8)),
        )
        m.run(
            "logprobs",
            logits=m.put(logits),
            work=m.put(work),
            slots=slots.struct,
            out=out,
            first=0,
            n=n,
            token=drawn,
            flag=flag,
            out_id=ids,
            out_rank=rank,
            out_value=value,
            chosen=chosen,
        )
        got = [m.get(x).reshape(n, width)[::-1] for x in (ids, rank, value)]
        got_chosen, got_flag = m.get(chosen), m.get(flag)
    assert got_flag.tolist() == [9] * 4 + [0] * 2, "flags of SAMPLE rows are the sampler's"
    for i in range(n):
        x = values(mode, logits[i], work[i], temperature)
        by_rank = np.argsort(
            -(work if "PROCESSED" in mode else logits)[i].astype(np.float64), kind="stable"
        )
        want = [int(token[i]), *by_rank[:n_top].tolist(), *lists[i]]
        assert got[0][i].tolist() == want
        assert (
            got[1][i].tolist() == ranks((work if "PROCESSED" in mode else logits)[i])[want].tolist()
        )
        close(got[2][i], x[want])
    close(got_chosen[:4], np.array([log_softmax(work[i])[token[i]] for i in range(4)]))
    assert (got_chosen[4:] == 9).all(), "prompt rows have no sampling distribution"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("v", [33, 5003])
def test_logprobs_of_all_ids_and_of_none(v: int, backend: str) -> None:
    logits = np.random.default_rng(1).normal(size=(3, v)).astype(np.float32)
    with Machine(backend, shape(n_vocab=v)) as m:
        slots = m.slots(3, params=params_rows([{}] * 3))
        out = out_view(m, 3, kind=SCORE, token=[5, 6, 7], n_top=[v, -1, 0], entry=[0, 0, 1 + v])
        ids, rank = (m.put(np.full(v + 3, -7, np.int32)) for _ in range(2))
        value, flag = m.put(np.zeros(v + 3, np.float32)), m.put(np.full(3, 9, np.uint8))
        m.run(
            "logprobs",
            logits=m.put(logits),
            slots=slots.struct,
            out=out,
            first=0,
            n=3,
            token=m.put(np.zeros(3, np.int32)),
            flag=flag,
            out_id=ids,
            out_rank=rank,
            out_value=value,
        )
        got, got_rank, got_value = m.get(ids), m.get(rank), m.get(value)
    assert got[1 : v + 1].tolist() == np.argsort(-logits[0], kind="stable").tolist()
    assert got_rank[1 : v + 1].tolist() == list(range(1, v + 1))
    assert got[[0, v + 1, v + 2]].tolist() == [5, 7, -7] and got_rank[v + 1] == ranks(logits[2])[7]
    close(got_value[[0, v + 1]], np.array([log_softmax(logits[0])[5], log_softmax(logits[2])[7]]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_kept", [1, 3, 12])
@pytest.mark.parametrize("n_vocab", [40, 9001])
def test_logprobs_of_filtered_rows_go_on_with_the_lowest_ids(
    n_vocab: int, n_kept: int, backend: str
) -> None:
    """Fewer ids stay than are asked for: the filtered ones follow in id order, at -inf."""
    rng, n_top = np.random.default_rng(n_kept), 12
    work = np.full((1, n_vocab), -np.inf, np.float32)
    ids = rng.choice(n_vocab, n_kept, replace=False)
    ids[0] = 2
    work[0, ids] = np.round(rng.normal(size=n_kept) * 2)
    token = int(ids[-1])
    with Machine(backend, shape(n_vocab=n_vocab)) as m:
        slots = m.slots(1, params=params_rows([{}]))
        out = out_view(m, 1, mode=MODES["LOGPROB_PROCESSED"], n_top=n_top, entry=0)
        ids_out, rank = (m.put(np.full(1 + n_top, -7, np.int32)) for _ in range(2))
        value = m.put(np.zeros(1 + n_top, np.float32))
        m.run(
            "logprobs",
            logits=m.put(np.zeros((1, n_vocab), np.float32)),
            work=m.put(work),
            slots=slots.struct,
            out=out,
            first=0,
            n=1,
            token=m.put(np.array([token], np.int32)),
            flag=m.put(np.zeros(1, np.uint8)),
            out_id=ids_out,
            out_rank=rank,
            out_value=value,
        )
        got, got_rank, got_value = m.get(ids_out), m.get(rank), m.get(value)
    best = np.argsort(-work[0].astype(np.float64), kind="stable")[:n_top]
    assert got.tolist() == [token, *best.tolist()]
    assert got_rank.tolist() == [ranks(work[0])[token], *range(1, n_top + 1)]
    close(got_value, log_softmax(work[0])[got])


@pytest.mark.parametrize("backend", BACKENDS)
def test_logprobs_flags_nan_in_score_and_trace_rows(backend: str) -> None:
    logits = np.zeros((4, 20), np.float32)
    logits[1:3, 13] = np.nan
    with Machine(backend, shape(n_vocab=20)) as m:
        slots = m.slots(4, params=params_rows([{}] * 4))
        # rows 2 and 3 of a longer step: the logits start at output row `first`
        out = out_view(
            m,
            6,
            kind=[SAMPLE, SAMPLE, SCORE, SCORE, TRACE, TRACE],
            token=[-1, -1, 1, 1, -1, -1],
            row_slot=0,
            n_top=[-1, -1, 0, 0, -1, -1],
            entry=[0, 0, 0, 1, 0, 0],
        )
        ids, rank = (m.put(np.full(2, -7, np.int32)) for _ in range(2))
        value, flag = m.put(np.zeros(2, np.float32)), m.put(np.full(6, 9, np.uint8))
        m.run(
            "logprobs",
            logits=m.put(logits),
            slots=slots.struct,
            out=out,
            first=2,
            n=4,
            token=m.put(np.zeros(6, np.int32)),
            flag=flag,
            out_id=ids,
            out_rank=rank,
            out_value=value,
        )
        assert m.get(flag).tolist() == [9, 9, 0, 1, 1, 0]
        assert m.get(ids)[0] == 1 and abs(m.get(value)[0] + np.log(20)) < 1e-6

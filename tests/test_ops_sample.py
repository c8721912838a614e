"""The sampler against an independent reading of the normative order: the same set of ids survives,
probabilities are equal, the drawn id is where the random number falls; then rule by rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference as R
from c_structs import CONSTANTS
from numpy.typing import NDArray
from op_driver import BACKENDS, HEAVY_BACKENDS, Machine, Slots, _testing, out_view, shape
from reference import SampleRow
from sample_cases import random_row, sample, slots_of

Array = NDArray[Any]
OK, NAN, EMPTY = 0, 1, 2


def probabilities(work: Array) -> Array:
    with np.errstate(invalid="ignore"):
        p = np.exp(work.astype(np.float64) - work.max())
    return np.asarray(p / p.sum())


def check_row(r: SampleRow, token: int, flag: int, work: Array) -> None:
    want = r.distribution()
    if not want.any():
        assert (token, flag) == (-1, EMPTY)
        return
    assert flag == OK
    p = probabilities(work)
    assert np.array_equal(p > 0, want > 0) or np.array_equal(work > -np.inf, want > 0), r
    assert np.abs(p - want).max() <= 1e-5, r
    if r.forced >= 0:
        assert token == r.forced
    elif r.temperature < 1e-5:
        assert token == want.argmax() and work[token] == 0
    else:
        assert want[token] > 0
        u = R.uniform(r.seed, len(r.history), len(r.lane_tokens), 0)
        below, upto = want[:token].sum(), want[: token + 1].sum()
        assert below - 1e-5 <= u <= upto + 1e-5, (r, u, below, upto)


def check_random_rows(backend: str, n_case: int, n_vocab: int) -> None:
    rng = np.random.default_rng([n_case, n_vocab])
    n_batch = 50
    for _ in range(n_case // n_batch):
        rows = [random_row(rng, n_vocab) for _ in range(n_batch)]
        never = rng.integers(0, n_vocab, 2).tolist() if rng.random() < 0.5 else []
        for r in rows:
            r.never = never
        sizes = shape(
            n_vocab=n_vocab, never_token=never + [-1] * (16 - len(never)), max_logit_rows=500
        )
        with Machine(backend, sizes) as m:
            for r, token, flag, work in zip(rows, *sample(m, rows), strict=True):
                check_row(r, int(token), int(flag), work)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("n_case", "n_vocab"), [(1400, 37), (600, 2600)])
def test_sample_random_cases(n_case: int, n_vocab: int, backend: str) -> None:
    check_random_rows(backend, n_case, n_vocab)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("n_case", "n_vocab"), [(7000, 61), (3000, 5000)])
def test_sample_ten_thousand_random_cases(n_case: int, n_vocab: int, backend: str) -> None:
    check_random_rows(backend, n_case, n_vocab)


def kept_and_drawn(backend: str, rows: list[SampleRow]) -> tuple[Array, Array, Array]:
    sizes = shape(n_vocab=len(rows[0].logits), max_logit_rows=400)
    with Machine(backend, sizes) as m:
        token, flag, work = sample(m, rows)
    return token, flag, work > -np.inf


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_agrees_with_ref_over_long_rows(backend: str) -> None:
    """A vocabulary of several parts: the ids that stay are ref's, and so are the drawn ones,
    unless a sum ends within rounding of the random number."""
    rng = np.random.default_rng(17)
    rows = [random_row(rng, 9001) for _ in range(30)]
    for r in rows:
        r.never, r.temperature = [], max(r.temperature, 0.2)
    want, got = kept_and_drawn("ref", rows), kept_and_drawn(backend, rows)
    assert np.array_equal(want[1], got[1])
    differs = (want[2] != got[2]).sum(-1)
    assert (differs <= 1).all() and (differs > 0).sum() <= 1, differs
    assert (want[0] != got[0]).sum() <= 1


def make_plain(row: SampleRow) -> None:
    """Nothing but temperature and the filters."""
    row.allowed, row.bias, row.ban, row.bad_words = None, {}, [], []
    row.repetition_penalty, row.frequency_penalty, row.presence_penalty = 1.0, 0.0, 0.0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("draw", ["ANY", "UNFILTERED", "GREEDY"])
def test_sample_saves_work_but_changes_nothing(draw: str, backend: str) -> None:
    """What is known of the rows, and that nobody reads `work`, may only save time: plain rows and
    others, forced ids among those that are never generated, NaN, nothing allowed."""
    rng = np.random.default_rng(len(draw))
    rows = [random_row(rng, 9001) for _ in range(36)]
    never = [8999, 4100, int(np.argmax(rows[1].logits))]
    for i, r in enumerate(rows):
        r.never = never
        r.temperature = 0.0 if draw == "GREEDY" else max(r.temperature, 0.3)
        if draw == "UNFILTERED":
            r.top_k, r.top_p = -1, 1.0
        if i % 3 > 0:
            make_plain(r)
    rows[4].forced, rows[7].forced = never[0], never[1]
    rows[5].logits = rows[5].logits.copy()
    rows[5].logits[8000] = np.nan
    rows[8].logits = np.full(9001, -np.inf, np.float32)
    for r in rows[10:14]:  # flat: thousands of ids at the cut
        r.logits = np.zeros(9001, np.float32)
    sizes = shape(n_vocab=9001, never_token=never + [-1] * 13, max_logit_rows=400)
    with Machine(backend, sizes) as m:
        usual = sample(m, rows)
        known = sample(m, rows, draw=CONSTANTS[f"MM_DRAW_{draw}"])
        ends = sample(m, rows, draw=CONSTANTS[f"MM_DRAW_{draw}"], work_ends=True)
        alone = sample(m, rows[6:7], draw=CONSTANTS[f"MM_DRAW_{draw}"], work_ends=True)
    assert {OK, NAN, EMPTY} == set(usual[1].tolist())
    for got in (known, ends):
        assert np.array_equal(usual[0], got[0]) and np.array_equal(usual[1], got[1])
    assert np.array_equal(usual[2], known[2], equal_nan=True)
    assert alone[0][0] == usual[0][6]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "settings",
    [
        dict(top_p=0.5001),
        dict(top_k=7000),
        dict(top_k=6000, top_p=0.7003),
        dict(top_k=20, top_p=0.31),
        dict(min_p=0.3, top_p=0.45),
        dict(top_p=0.9999),
    ],
    ids=str,
)
@pytest.mark.parametrize("n_level", [1, 2, 5])
def test_sample_filters_thousands_of_equal_values(
    n_level: int, settings: dict[str, Any], backend: str
) -> None:
    """More ids at the cut than any shortlist holds: ties stay in id order."""
    logits = np.random.default_rng(n_level).integers(0, n_level, 9001).astype(np.float32)
    row = SampleRow(logits, temperature=0.8, seed=5, **settings)
    _, _, want = kept_and_drawn("ref", [row])
    token, _, got = kept_and_drawn(backend, [row])
    assert np.array_equal(want, got) and got[0, token[0]]


# ------------------------------------------------------------------ rule by rule


def kept(backend: str, logits: Any, **settings: Any) -> list[int]:
    """Ids that survive."""
    r = SampleRow(np.asarray(logits, np.float32), **settings)
    with Machine(backend, shape(n_vocab=len(r.logits))) as m:
        _, _, work = sample(m, [r])
    return np.nonzero(work[0] > -np.inf)[0].tolist()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("logits", "settings", "want"),
    [
        ([1, 3, 3, 2], dict(temperature=0.0), [1]),  # greedy: lowest of the ties
        ([-0.0, 0.0, -1], dict(temperature=0.0), [0]),  # -0 equals +0
        ([1, 3, 2, 3, 2], dict(top_k=3), [1, 2, 3, 4]),  # every value >= the third largest
        ([1, 3, 2], dict(top_k=3), [0, 1, 2]),
        ([1, 3, 2], dict(top_k=9), [0, 1, 2]),
        ([0, 0, 0, 0], dict(top_p=0.5), [0, 1]),  # reaches 0.5 with two; ties by id
        ([0, 0, 0, 0], dict(top_p=0.51), [0, 1, 2]),
        ([0, 9, 0], dict(top_p=1e-6), [1]),  # at least one
        ([0, 0, -1], dict(min_p=1.0), [0, 1]),
        ([0, -0.6, -0.8], dict(min_p=0.5), [0, 1]),  # exp(-0.6) = 0.549, exp(-0.8) = 0.449
        ([0, -1.2, -1.6], dict(min_p=0.5, temperature=2.0), [0, 1]),  # after the temperature
        ([5, 4, 3, -9], dict(min_p=0.3, top_p=0.72), [0]),  # renormalised after min_p: 0.731 of two
        ([5, 4, 3, 2], dict(top_p=0.72), [0, 1]),  # the same without min_p: 0.644, 0.881
        ([5, 4, 3, 2], dict(top_k=2, top_p=0.72), [0]),
        ([2, 1, 0], dict(bias={0: -np.inf}), [1, 2]),
        ([2, 1, 0], dict(bias={0: -np.inf}, forced=0), [0, 1, 2]),
        ([2, 1, 0], dict(allowed=np.array([False, True, True]), forced=0), [0, 1, 2]),
        ([4, 3, 2], dict(temperature=0.0, repetition_penalty=1.5, history=[0]), [1]),  # 4 / 1.5
        (
            [-1, -1.4, -5],
            dict(temperature=0.0, repetition_penalty=1.5, prompt=[0]),
            [1],
        ),  # -1 * 1.5
        (
            [-1, -1.4, -5],
            dict(temperature=0.0, repetition_penalty=1.3, history=[0, 0]),
            [0],
        ),  # once
        ([4, 3, 2], dict(temperature=0.0, frequency_penalty=0.6, history=[0, 0]), [1]),
        ([4, 3, 2], dict(temperature=0.0, presence_penalty=0.6, history=[0, 0]), [0]),
        (
            [4, 3, 2],
            dict(temperature=0.0, frequency_penalty=2.0, prompt=[0]),
            [0],
        ),  # never the prompt
        (
            [4, 3, 2],
            dict(temperature=0.0, frequency_penalty=0.6, history=[0], lane_tokens=[0]),
            [1],
        ),
        ([4, 3, 2], dict(temperature=0.0, min_tokens=2, ban=[0], history=[1]), [1]),
        ([4, 3, 2], dict(temperature=0.0, min_tokens=1, ban=[0], history=[1]), [0]),
        (
            [4, 3, 2],
            dict(temperature=0.0, min_tokens=2, ban=[0], history=[1], lane_tokens=[1]),
            [0],
        ),
        ([4, 3, 2], dict(temperature=0.0, bad_words=[[0]]), [1]),
        ([4, 3, 2], dict(temperature=0.0, bad_words=[[2, 1, 0]], history=[2, 1]), [1]),
        ([4, 3, 2], dict(temperature=0.0, bad_words=[[2, 1, 0]], history=[1]), [0]),  # too short
        (
            [4, 3, 2],
            dict(temperature=0.0, bad_words=[[2, 1, 0]], history=[2], lane_tokens=[1]),
            [1],
        ),
        (
            [4, 3, 2],
            dict(temperature=0.0, bad_words=[[1] * 63 + [0]], history=[1] * 70),
            [1],
        ),  # the longest
        ([4, 3, 2], dict(temperature=0.0, bad_words=[[1] * 63 + [0]], history=[2] + [1] * 62), [0]),
    ],
)
def test_sample_rule(logits: Any, settings: dict[str, Any], want: list[int], backend: str) -> None:
    assert kept(backend, logits, **settings) == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_flags_nan_and_nothing_allowed(backend: str) -> None:
    good, broken, shut = (SampleRow(np.zeros(9, np.float32)) for _ in range(3))
    broken.logits[4] = np.nan
    shut.allowed = np.zeros(9, bool)
    both = SampleRow(broken.logits, allowed=np.zeros(9, bool), forced=3)
    with Machine(backend, shape(n_vocab=9)) as m:
        token, flag, _ = sample(m, [good, broken, shut, both])
    assert flag.tolist() == [OK, NAN, EMPTY, NAN] and token[0] >= 0 and (token[1:] == -1).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_reads_the_mask_of_its_lane(backend: str) -> None:
    rows = [SampleRow(np.zeros(40, np.float32), temperature=0.0, allowed=np.ones(40, bool))]
    with Machine(backend, shape(n_vocab=40)) as m:
        slots = slots_of(m, rows, mask_lanes=8)
        masks = np.zeros((1, 8, 2), np.uint32)
        for lane in range(8):
            masks[0, lane, lane // 4] = 1 << lane
        slots.buffers["mask"] = m.put(masks)
        slots.struct.mask = slots.buffers["mask"].address
        out = out_view(m, 8, row_slot=0, lane=np.arange(8))
        token, flag = m.put(np.zeros(8, np.int32)), m.put(np.zeros(8, np.uint8))
        zero = m.put(np.zeros((8, 40), np.float32))
        work = m.put(np.zeros((8, 40), np.float32))
        args = dict(slots=slots.struct, out=out, commit=False, token=token, flag=flag)
        m.run("sample", logits=zero, work=work, first=0, n=8, **args)
        assert m.get(token).tolist() == [lane + 32 * (lane // 4) for lane in range(8)]


# ------------------------------------------------------------------ random numbers


@pytest.mark.parametrize(
    ("key", "counter", "want"),
    [  # the published vectors of philox4x32-10
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(key: Any, counter: Any, want: Any) -> None:
    assert _testing.philox(key, counter) == want
    assert R.philox(key, counter) == want


def test_uniform_uses_every_part_of_its_counter() -> None:
    base = (2**40 + 7, 3, 0, 0)
    for args in [
        base,
        (base[0] + 2**33, 3, 0, 0),
        (base[0], 4, 0, 0),
        (base[0], 3 + 2**32, 0, 0),
        (*base[:2], 1, 0),
        (*base[:3], 1),
    ]:
        u = _testing.uniform(*args)
        assert u == R.uniform(*args) and 0 < u < 1
        assert args == base or u != _testing.uniform(*base)


def test_draw_never_takes_an_id_without_weight() -> None:
    rng = np.random.default_rng(1)
    u = np.concatenate([[2.0**-33, 1 - 2.0**-33], rng.random(500)])
    for n in (1, 31, 1023, 1024, 1025, 5000):
        weight = np.where(rng.random(n) < 0.1, rng.random(n), 0).astype(np.float32)
        weight[rng.integers(n)] = 1
        ids = _testing.draw(weight, u)
        assert (weight[ids] > 0).all()
        assert ids[0] == np.nonzero(weight)[0][0] and ids[1] == np.nonzero(weight)[0][-1]


@pytest.mark.parametrize("backend", HEAVY_BACKENDS)
def test_sample_frequencies_are_those_of_the_distribution(backend: str) -> None:
    """Chi-square of 20,000 draws over seeds and positions, with top_k and top_p on."""
    n_draw, n_slot = 20_000, 400
    logits = np.array([1.0, 0.5, 0.0, -0.5, 2.0, -1.0, 0.3, -3.0, 1.5, 0.9], np.float32)
    row = SampleRow(logits, top_k=9, top_p=0.97, temperature=1.3)
    want, count = row.distribution(), np.zeros(10)
    with Machine(backend, shape(n_vocab=10, max_logit_rows=n_slot)) as m:
        rows = [
            SampleRow(logits, top_k=9, top_p=0.97, temperature=1.3, seed=s) for s in range(n_slot)
        ]
        slots = slots_of(m, rows)
        for n in range(n_draw // n_slot):
            slots.buffers["n_emitted"] = m.put(np.full(n_slot, n, np.int32))
            slots.struct.n_emitted = slots.buffers["n_emitted"].address
            count += np.bincount(sample(m, rows, slots)[0], minlength=10)
    assert (count[want == 0] == 0).all() and (want == 0).any()
    expected = want[want > 0] * n_draw
    chi, k = float(((count[want > 0] - expected) ** 2 / expected).sum()), len(expected) - 1
    limit = k * (1 - 2 / (9 * k) + 3.7 * (2 / (9 * k)) ** 0.5) ** 3  # Wilson-Hilferty at 1e-4
    assert chi < limit, (chi, limit)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_does_not_depend_on_slot_or_batch(backend: str) -> None:
    rng = np.random.default_rng(8)
    rows = [random_row(rng, 300) for _ in range(40)]
    for r in rows:
        r.never = []
    with Machine(backend, shape(n_vocab=300, max_logit_rows=400)) as m:
        many = sample(m, rows)
        for i in (0, 7, 39):
            alone = sample(m, [rows[i]])
            assert many[0][i] == alone[0][0] and many[1][i] == alone[1][0]
            assert np.array_equal(many[2][i], alone[2][0], equal_nan=True)


def test_slots_helper_reads_back() -> None:
    with Machine("ref", shape(n_vocab=40)) as m:
        slots: Slots = slots_of(m, [SampleRow(np.zeros(40, np.float32), history=[3, 5], top_k=4)])
        assert slots.get("n_emitted").tolist() == [2] and slots.get("recent")[0, :2].tolist() == [
            3,
            5,
        ]
        assert slots.get_params(0).top_k == 4

"""`begin`, `expand` and the commit of `sample`: a batch blob written here, applied by a backend,
read back array by array; given, or found in a ring as captured steps do it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from c_structs import CONSTANTS, TYPES, make
from numpy.typing import NDArray
from op_driver import BACKENDS, OUT_FIELDS, Buffer, Machine, Slots, shape
from sample_cases import bits

Array = NDArray[Any]
SAMPLE, SCORE = CONSTANTS["MM_OUT_SAMPLE"], CONSTANTS["MM_OUT_SCORE"]


class Blob:
    """A batch: `add` appends an array at a multiple of 16 and returns its offset."""

    def __init__(self) -> None:
        self.data = bytearray(ctypes.sizeof(TYPES["mm_batch"]))
        self.header: dict[str, Any] = {"row_media": -1}

    def add(self, array: Any, dtype: Any = np.int32) -> int:
        self.data += bytes(-len(self.data) % 16)
        at = len(self.data)
        self.data += array if isinstance(array, bytes) else np.asarray(array, dtype).tobytes()
        return at

    def structs(self, name: str, rows: list[dict[str, Any]]) -> None:
        kind = name.removeprefix("mm_batch_")
        self.header |= {
            f"n_{kind}": len(rows),
            kind: self.add(b"".join(bytes(make(name, **r)) for r in rows)),
        }

    def finish(self) -> bytes:
        head = make("mm_batch", n_bytes=len(self.data), **self.header)
        self.data[: ctypes.sizeof(head)] = bytes(head)
        return bytes(self.data)


class Ring:
    """Places in host memory in which captured steps find their batches (mm_ring)."""

    def __init__(self, m: Machine, n: int, n_bytes: int = 1 << 16) -> None:
        self.m, self.n_bytes = m, n_bytes
        self.batch = [m.new_host(n_bytes) for _ in range(n)]
        self.result = [16 * (i + 1) for i in range(n)]  # nothing is sent to them here
        self.turn = m.put(np.zeros(1, np.int32))
        self.result_at = m.put(np.zeros(1, np.int64))
        self.struct = m.struct(
            "mm_ring",
            n=n,
            batch=self.batch,
            result=self.result,
            n_bytes=n_bytes,
            turn=self.turn,
            result_at=self.result_at,
        )

    def build(self, i: int, blob: bytes) -> None:
        """What was there before stays behind it."""
        assert len(blob) <= self.n_bytes
        ctypes.memmove(self.batch[i], blob, len(blob))

    def next(self) -> int:
        return int(self.m.get(self.turn)[0])

    def sent_to(self) -> int:
        """The place whose results the last captured step sends."""
        return self.result.index(int(self.m.get(self.result_at)[0]))


class Views:
    """Views of a step, their arrays, and what `begin` and `expand` make of a batch."""

    def __init__(self, m: Machine, slots: Slots, ring: Ring | None = None) -> None:
        self.m, self.slots, self.ring = m, slots, ring
        rows, seqs = m.sizes["max_rows"], m.sizes["max_seqs"]
        of_seqs = {"row_start": seqs + 1, "slot": seqs}
        self.seq_arrays = {
            k: m.new((of_seqs.get(k, rows),), np.int32)
            for k in ("row_start", "slot", "row_seq", "pos", "token")
        }
        self.out_arrays = {k: m.new((rows,), d) for k, d in OUT_FIELDS.items()}
        self.seq = m.struct("mm_seq_view", slots=slots.struct, **self.seq_arrays)
        self.out = m.struct("mm_out_view", **self.out_arrays)
        self.n_read = m.put(np.array([5, 7]))

    def size(self, n_seq: int, n_row: int, n_out: int) -> None:
        self.seq.n_seq, self.seq.n_row, self.out.n_out = n_seq, n_row, n_out

    def begin(self, blob: bytes) -> tuple[Any, Buffer]:
        plan = make("mm_batch")
        ctypes.memmove(ctypes.addressof(plan), blob, ctypes.sizeof(plan))
        sent = self.m.put(np.frombuffer(blob, np.uint8))
        self.m.run("begin", plan=plan, blob=sent, slots=self.slots.struct)
        return plan, sent

    def expand(self, **given: Any) -> None:
        ring = None if self.ring is None else self.ring.struct
        views = dict(seq=self.seq, out=self.out, slots=self.slots.struct, n_read=self.n_read)
        self.m.run("expand", ring=ring, **views, **given)

    def start(self, blob: bytes, i_ring: int = 0) -> Views:
        """A step that is not captured."""
        plan, sent = self.begin(blob)
        self.size(plan.n_seq, plan.n_row, plan.n_out)
        self.out.blob = sent.address
        self.expand(plan=plan, blob=sent, i_ring=i_ring)
        return self

    def capture(self, n_seq: int, n_row: int, n_out: int) -> Callable[[], None]:
        """A step of this size, to be run as often as one likes: a graph where there are some."""
        self.size(n_seq, n_row, n_out)
        if not self.m.has_graph:
            return self.expand
        graph = self.m.capture(self.expand)
        return lambda: self.m.launch(graph)

    def seq_of(self, name: str) -> list[int]:
        n = {"row_start": self.seq.n_seq + 1, "slot": self.seq.n_seq}.get(name, self.seq.n_row)
        return self.m.get(self.seq_arrays[name])[:n].tolist()  # type: ignore[no-any-return]

    def out_of(self, name: str) -> list[int]:
        return self.m.get(self.out_arrays[name])[: self.out.n_out].tolist()  # type: ignore[no-any-return]

    def all(self) -> list[list[int]]:
        return [self.seq_of(k) for k in self.seq_arrays] + [self.out_of(k) for k in self.out_arrays]


def empty_slots(m: Machine, n_slot: int, **arrays: Any) -> Slots:
    return m.slots(n_slot, page_table=np.full((n_slot, 6), 9, np.int32), **arrays)


def plain_slot(slot: int, **changes: Any) -> dict[str, Any]:
    usual = dict(
        slot=slot,
        temperature=0.0,
        top_p=1.0,
        repetition_penalty=1.0,
        mask=-1,
        prompt=-1,
        history=-1,
    )
    return (
        usual
        | {
            k: -1
            for k in (
                "bias_token",
                "bias_value",
                "ban_token",
                "bad_offset",
                "bad_token",
                "logprob_token",
            )
        }
        | changes
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_captured", [False, True])
def test_begin_applies_slots_pages_masks(is_captured: bool, backend: str) -> None:
    """A captured step has pages only: slots and masks go before it."""
    v, b = 100, Blob()
    history = list(range(20, 90))
    b.structs(
        "mm_batch_slot",
        [
            plain_slot(
                2,
                seed=2**63 + 5,
                temperature=0.75,
                top_p=0.5,
                min_p=0.25,
                repetition_penalty=1.5,
                frequency_penalty=-1.0,
                presence_penalty=0.125,
                top_k=7,
                min_tokens=3,
                n_emitted=73,
                n_bias=2,
                bias_token=b.add([5, 6]),
                bias_value=b.add([1.5, -np.inf], np.float32),
                n_ban=1,
                ban_token=b.add([9]),
                n_bad=2,
                bad_offset=b.add([0, 1, 3]),
                bad_token=b.add([11, 12, 13]),
                n_logprob_token=3,
                logprob_token=b.add([1, 2, 3]),
                mask=b.add(bits([0, 33], v), np.uint32),
                n_prompt_seen=3,
                prompt=b.add([64, 3, 64]),
                n_history=70,
                history=b.add(history),
                keeps_counts=1,
            ),
            plain_slot(0, top_k=-1),
        ],
    )
    pages = [(2, 0, 4), (2, 1, 3), (0, 5, 1)]
    b.structs("mm_batch_page", [dict(slot=s, block=k, page=p) for s, k, p in pages])
    b.structs("mm_batch_mask", [dict(slot=0, lane=0, mask=b.add(bits([99], v), np.uint32))])
    b.structs("mm_batch_seq", [dict(slot=2, row_start=0, n_row=1, pos=0, n_ctx_after=1)])
    b.structs("mm_batch_out", [])
    b.header |= dict(n_row=1, token=b.add([8]), max_pos=1)
    with Machine(backend, shape(n_vocab=v)) as m:
        dirty = {
            "in_prompt": np.full((3, 4), 0xFFFFFFFF),
            "n_out": np.full((3, v), 7),
            "last_token": np.array([50, 51, 52]),
        }
        slots = empty_slots(m, 3, **dirty)
        x = Views(m, slots, Ring(m, 1) if is_captured else None)
        if x.ring is not None:
            step = x.capture(1, 1, 1)
            x.ring.build(0, b.finish())
            x.begin(b.finish())
            step()
        else:
            x.start(b.finish())
        assert x.seq_of("token") == [8] and x.seq_of("slot") == [2] and x.seq_of("pos") == [0]
        p = slots.get_params(2)
        assert (p.seed, p.temperature, p.top_p, p.min_p) == (2**63 + 5, 0.75, 0.5, 0.25)
        assert (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) == (1.5, -1.0, 0.125)
        assert (
            p.top_k,
            p.min_tokens,
            p.n_bias,
            p.n_ban,
            p.n_bad,
            p.n_logprob_token,
            p.has_mask,
        ) == (7, 3, 2, 1, 2, 3, 1)
        assert slots.get_params(0).has_mask == 1 and slots.get_params(0).top_k == -1
        assert (
            slots.get("bias_token")[2, :2].tolist() == [5, 6]
            and slots.get("bias_value")[2, 1] == -np.inf
        )
        assert slots.get("ban_token")[2, 0] == 9 and slots.get("logprob_token")[2, :3].tolist() == [
            1,
            2,
            3,
        ]
        assert slots.get("bad_offset")[2, :3].tolist() == [0, 1, 3] and slots.get("bad_token")[
            2, :3
        ].tolist() == [11, 12, 13]
        assert slots.get("mask")[2, 0].tolist() == [1, 2, 0, 0] and slots.get("mask")[
            0, 0
        ].tolist() == [0, 0, 0, 8]
        assert slots.get("in_prompt")[2].tolist() == [8, 0, 1, 0], "old marks are gone"
        assert slots.get("n_out")[2].tolist() == [1 if 20 <= t < 90 else 0 for t in range(v)]
        recent = slots.get("recent")[2]
        assert [recent[(3 + i) % 64] for i in range(6, 70)] == history[6:]
        assert slots.get("n_emitted").tolist() == [0, 0, 73] and slots.get(
            "last_token"
        ).tolist() == [0, 51, 89]
        assert slots.get("page_table").tolist() == [[9, 9, 9, 9, 9, 1], [9] * 6, [4, 3, 9, 9, 9, 9]]


@pytest.mark.parametrize("backend", BACKENDS)
def test_begin_expands_rows_and_outputs(backend: str) -> None:
    b = Blob()
    b.structs("mm_batch_slot", [])
    b.structs("mm_batch_page", [])
    b.structs("mm_batch_mask", [])
    b.structs(
        "mm_batch_seq",
        [
            dict(slot=3, row_start=0, n_row=3, pos=126, n_ctx_after=129),
            dict(slot=1, row_start=3, n_row=3, pos=-1, n_ctx_after=-1),
            dict(slot=0, row_start=6, n_row=1, pos=7, n_ctx_after=-1),
        ],
    )
    score = dict(
        row=1,
        seq=0,
        kind=SCORE,
        token=77,
        mode=1,
        n_top=4,
        n_list=2,
        list=b.add([5, 6]),
        entry=2**33,
    )
    lanes = [
        dict(row=3 + j, seq=1, kind=SAMPLE, lane=j, token=-1, n_top=-1, list=-1) for j in range(3)
    ]
    b.structs(
        "mm_batch_out", [score, *lanes, dict(row=6, seq=2, kind=SAMPLE, token=12, n_top=0, list=-1)]
    )
    b.header |= dict(n_row=7, token=b.add([10, 11, 12, -1, -2, -3, 60]), max_pos=200, is_decode=1)
    with Machine(backend, shape(n_vocab=100)) as m:
        draft = np.zeros((4, 7), np.int32)
        draft[1, :2] = [41, 42]
        slots = empty_slots(
            m,
            4,
            n_ctx=np.array([0, 150, 0, 0]),
            last_token=np.array([1, 40, 3, 4]),
            draft_token=draft,
        )
        x = Views(m, slots).start(b.finish())
        assert x.seq_of("row_start") == [0, 3, 6, 7] and x.seq_of("slot") == [3, 1, 0]
        assert x.seq_of("row_seq") == [0, 0, 0, 1, 1, 1, 2]
        assert x.seq_of("pos") == [126, 127, 128, 150, 151, 152, 7]
        assert x.seq_of("token")[:3] == [10, 11, 12] and x.seq_of("token")[6] == 60
        assert x.out_of("row") == [1, 3, 4, 5, 6] and x.out_of("row_slot") == [3, 1, 1, 1, 0]
        assert x.out_of("lane") == [0, 0, 1, 2, 0] and x.out_of("kind") == [SCORE] + [SAMPLE] * 4
        assert x.out_of("token") == [77, -1, -1, -1, 12]
        assert x.out_of("row_token") == [11, 40, 41, 42, 60], "last and draft tokens are resolved"
        assert (
            x.out_of("n_top") == [4, -1, -1, -1, 0]
            and x.out_of("n_list")[0] == 2
            and x.out_of("mode")[0] == 1
        )
        assert x.out_of("entry")[0] == 2**33 and x.out_of("list")[0] == score["list"]
        assert slots.get("n_ctx").tolist() == [0, 150, 0, 129]
        # embeddings of the same rows: -1 and -1 - i are the slot's tokens
        d = m.sizes["d_model"]
        table = np.arange(100, dtype=np.float32)[:, None] * np.ones(d, np.float32)
        weight = m.struct(
            "mm_weight",
            format=CONSTANTS["MM_WEIGHT_F32"],
            n_out=100,
            n_in=d,
            data=m.put(table),
            data_stride=4 * d,
        )
        rows, h = m.new_act(7, d), m.new_act(7, d)
        m.run("embed", x.seq, embed=weight, norm_w=m.put(np.zeros(d, np.float32)), x=rows, h=h)
        assert m.get_act(rows)[:, 0].tolist() == [10, 11, 12, 40, 41, 42, 60]


def decode_step(
    n_rows: list[int],
    n_out: int,
    pages: list[dict[str, Any]] | None = None,
    outs: list[dict[str, Any]] | None = None,
) -> bytes:
    """Sequence i in slot i at position 100 * (i + 1); outputs are the last rows of the first
    n_out sequences, or `outs`."""
    b, end = Blob(), np.cumsum(n_rows).tolist()
    b.structs("mm_batch_page", pages or [])
    for name in ("slot", "mask"):
        b.structs(f"mm_batch_{name}", [])
    pos = [100 * (i + 1) for i in range(len(n_rows))]
    seqs = [
        dict(slot=i, row_start=end[i] - n, n_row=n, pos=pos[i], n_ctx_after=pos[i] + n)
        for i, n in enumerate(n_rows)
    ]
    b.structs("mm_batch_seq", seqs)
    rows = [
        dict(row=end[i] - 1, seq=i, kind=SAMPLE, token=5 + i, n_top=2, n_list=1, list=-1, entry=9)
        for i in range(n_out)
    ]
    b.structs("mm_batch_out", rows if outs is None else outs)
    b.header |= dict(n_row=end[-1], token=b.add(range(20, 20 + end[-1])), max_pos=777, is_decode=1)
    return b.finish()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_rows", [[1], [2, 2, 2], [1] * 8])
@pytest.mark.parametrize("n_page", [0, 50])
def test_expand_finds_a_batch_as_it_takes_one(n_page: int, n_rows: list[int], backend: str) -> None:
    """The same arrays in both forms, with more new pages than sequences too; the step's counters
    begin at 0."""
    made = []
    pages = [dict(slot=i // 6, block=i % 6, page=100 + i) for i in range(n_page)]
    blob = decode_step(n_rows, len(n_rows), pages)
    with Machine(backend, shape(n_vocab=100)) as m:
        for is_captured in (False, True):
            slots = empty_slots(m, 9)
            x = Views(m, slots, Ring(m, 1))
            assert x.ring is not None
            if is_captured:
                step = x.capture(len(n_rows), sum(n_rows), len(n_rows))
                x.ring.build(0, blob)
                step()
                assert x.ring.sent_to() == 0
            else:
                x.start(blob)
            made.append([*x.all(), *(slots.get(k).tolist() for k in ("n_ctx", "page_table"))])
            assert m.get(x.n_read).tolist() == [0, 0]
    assert made[0] == made[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_expand_fills_up_a_captured_step(backend: str) -> None:
    with Machine(backend, shape(n_vocab=100)) as m:
        slots = empty_slots(m, 5)
        x = Views(m, slots, ring := Ring(m, 1))
        step = x.capture(4, 8, 4)
        ring.build(0, decode_step([2] * 4, 4))  # a larger batch was there before
        ring.build(0, decode_step([2, 2], 2))
        step()
        assert x.seq_of("row_start") == [0, 2, 4, 6, 8] and x.seq_of("slot") == [0, 1, 4, 4]
        assert x.seq_of("row_seq") == [0, 0, 1, 1, 2, 2, 3, 3]
        assert x.seq_of("pos") == [100, 101, 200, 201, 0, 1, 0, 1]
        assert x.seq_of("token") == [20, 21, 22, 23, 0, 0, 0, 0]
        assert x.out_of("row") == [1, 3, 5, 7] and x.out_of("row_slot") == [0, 1, 4, 4]
        assert x.out_of("kind") == [SAMPLE] * 4 and x.out_of("lane") == [0] * 4
        assert x.out_of("token") == [5, 6, -1, -1] and x.out_of("row_token") == [21, 23, 0, 0]
        assert x.out_of("n_top") == [2, 2, -1, -1] and x.out_of("n_list") == [1, 1, 0, 0]
        assert x.out_of("list") == [-1] * 4 and x.out_of("entry") == [9, 9, 0, 0]
        assert slots.get("n_ctx").tolist() == [102, 202, 0, 0, 0]
        # the graph is full
        ring.build(0, decode_step([2] * 4, 4))
        step()
        assert x.seq_of("slot") == [0, 1, 2, 3] and x.out_of("token") == [5, 6, 7, 8]


@pytest.mark.parametrize("backend", BACKENDS)
def test_expand_of_outputs_that_are_not_one_for_each_sequence(backend: str) -> None:
    """Steps whose draws are not in the graph: more outputs than sequences, or fewer."""
    with Machine(backend, shape(n_vocab=100)) as m:
        x = Views(m, empty_slots(m, 5), ring := Ring(m, 1))
        step = x.capture(3, 6, 6)
        ring.build(0, decode_step([2, 2], 1))
        step()
        assert x.out_of("row")[0] == 1 and x.out_of("row_token")[0] == 21
        assert x.seq_of("slot") == [0, 1, 4] and x.seq_of("pos")[4:] == [0, 1]
        outs = [dict(row=i, seq=i // 2, kind=SCORE, token=30 + i, n_top=0) for i in range(4)]
        ring.build(0, decode_step([2, 2], 0, outs=outs))
        step()
        assert x.out_of("row")[:4] == [0, 1, 2, 3] and x.out_of("kind")[:4] == [SCORE] * 4
        assert x.out_of("token")[:4] == [30, 31, 32, 33]
        assert max(x.out_of("row")) < 6


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_place", [1, 2, 4])
def test_captured_steps_take_their_places_in_turn(n_place: int, backend: str) -> None:
    """Graphs of two sizes and steps that are not captured share the ring; each step reads the
    batch of its own place, whatever lies in the others."""
    with Machine(backend, shape(n_vocab=100)) as m:
        slots = empty_slots(m, 9, n_ctx=np.arange(9), last_token=np.arange(30, 39))
        x = Views(m, slots, ring := Ring(m, n_place))
        graphs = {n: x.capture(n, n, n) for n in (2, 8)}
        for k in range(12):
            b = Blob()
            for name in ("slot", "mask", "page"):
                b.structs(f"mm_batch_{name}", [])
            seqs = [dict(slot=s, row_start=i, n_row=1, pos=-1, n_ctx_after=50 * k + s)
                    for i, s in enumerate((k % 8, (k + 1) % 8))]  # fmt: skip
            b.structs("mm_batch_seq", seqs)
            outs = [dict(row=i, seq=i, kind=SAMPLE, token=k, n_top=-1, list=-1) for i in range(2)]
            b.structs("mm_batch_out", outs)
            b.header |= dict(n_row=2, token=b.add([k, -1]), max_pos=600, is_decode=1)
            before = slots.get("n_ctx").tolist()
            assert ring.next() == k % n_place
            if k % 3 == 2:
                x.start(b.finish(), i_ring=k % n_place)
            else:
                ring.build(k % n_place, b.finish())
                n = (2, 8)[k % 2]
                x.size(n, n, n)
                graphs[n]()
                assert ring.sent_to() == k % n_place
            of = [k % 8, (k + 1) % 8]
            assert x.seq_of("slot")[:2] == of and x.seq_of("token")[:2] == [k, -1]
            assert x.seq_of("pos")[:2] == [before[s] for s in of], "before n_ctx moves on"
            assert slots.get("n_ctx")[of].tolist() == [50 * k + s for s in of]
            assert x.out_of("token")[:2] == [k, k] and x.out_of("row_token")[:2] == [k, 30 + of[1]]
        assert ring.next() == 12 % n_place


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_seq", [353, 354])
def test_expand_of_many_sequences(n_seq: int, backend: str) -> None:
    """As many as are read at once, and more; every sequence has a new page."""
    with Machine(backend, shape(n_vocab=40, max_seqs=355)) as m:
        slots = empty_slots(m, 356)
        x = Views(m, slots, ring := Ring(m, 2, 1 << 17))
        step = x.capture(n_seq + 1, n_seq + 1, n_seq + 1)
        pages = [dict(slot=i, block=i % 6, page=i + 1) for i in range(n_seq)]
        ring.build(0, decode_step([1] * n_seq, n_seq, pages))
        step()
        assert x.seq_of("slot") == [*range(n_seq), 355]
        assert x.seq_of("row_start") == x.seq_of("row_seq") + [n_seq + 1]
        assert x.seq_of("pos") == [100 * (i + 1) for i in range(n_seq)] + [0]
        assert x.out_of("token") == [*range(5, 5 + n_seq), -1]
        assert x.out_of("row_token") == [*range(20, 20 + n_seq), 0]
        table = slots.get("page_table")
        assert table[np.arange(n_seq), np.arange(n_seq) % 6].tolist() == [*range(1, n_seq + 1)]
        assert (table == 9).sum() == 356 * 6 - n_seq + (n_seq > 8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_expand_refuses_what_is_not_a_step(backend: str) -> None:
    with Machine(backend, shape(n_vocab=100, max_rows=40)) as m:
        slots = empty_slots(m, 9)
        x = Views(m, slots, ring := Ring(m, 2))
        for size in ((0, 0, 0), (9, 9, 9), (2, 3, 2), (4, 2, 2), (8, 48, 8), (8, 8, 41)):
            x.size(*size)
            n, rows, out = size
            text = f"captured step of {n} sequences, {rows} rows and {out} outputs.*8 .max_seqs.*40"
            with pytest.raises(RuntimeError, match=text):
                x.expand()
        x.size(1, 1, 1)
        with pytest.raises(RuntimeError, match="give both or neither"):
            x.expand(plan=make("mm_batch"))
        plan, blob = x.begin(decode_step([1, 1], 2))
        with pytest.raises(RuntimeError, match="1 sequences, 1 rows and 1 outputs.*2, 2 and 2"):
            x.expand(plan=plan, blob=blob)
        with pytest.raises(RuntimeError, match="place 2 of a ring of 2"):
            x.expand(plan=plan, blob=blob, i_ring=2)
        with pytest.raises(RuntimeError, match="neither a batch nor a ring"):
            Views(m, slots).expand()
        assert ring.next() == 0 and not slots.get("n_ctx").any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_commit_moves_the_slots_on(backend: str) -> None:
    """Plain decoding: three slots draw for 70 steps; positions, counts and the ring follow."""
    v, n_step = 50, 70
    with Machine(backend, shape(n_vocab=v)) as m:
        slots = empty_slots(m, 4, n_ctx=np.array([0, 10, 0, 0]))
        b = Blob()
        b.structs(
            "mm_batch_slot",
            [
                plain_slot(0),
                plain_slot(1, presence_penalty=0.5, keeps_counts=1),
                plain_slot(3, top_k=1, temperature=1.0),
            ],
        )
        for step in range(n_step):
            if step > 0:
                b = Blob()
                b.structs("mm_batch_slot", [])
            b.structs("mm_batch_page", [])
            b.structs("mm_batch_mask", [])
            after = [-1, -1, step + 1]  # slot 3: the plan knows
            b.structs(
                "mm_batch_seq",
                [
                    dict(slot=s, row_start=i, n_row=1, pos=-1, n_ctx_after=after[i])
                    for i, s in enumerate((0, 1, 3))
                ],
            )
            b.structs(
                "mm_batch_out",
                [dict(row=i, seq=i, kind=SAMPLE, token=-1, n_top=-1, list=-1) for i in range(3)],
            )
            b.header |= dict(n_row=3, token=b.add([-1] * 3), max_pos=step + 11, is_decode=1)
            x = Views(m, slots).start(b.finish())
            assert x.seq_of("pos") == [step, 10 + step, step]
            logits = np.zeros((3, v), np.float32)
            logits[:, step % v] = 3
            work, token, flag = (
                m.put(logits),
                m.put(np.zeros(3, np.int32)),
                m.put(np.zeros(3, np.uint8)),
            )
            m.run(
                "sample",
                logits=m.put(logits),
                work=work,
                slots=slots.struct,
                out=x.out,
                first=0,
                n=3,
                commit=True,
                token=token,
                flag=flag,
            )
            assert (
                m.get(token).tolist() == [step % v] * 3
                and slots.get("last_token")[[0, 1, 3]].tolist() == [step % v] * 3
            )
        assert slots.get("n_emitted").tolist() == [n_step, n_step, 0, n_step]
        assert slots.get("n_ctx").tolist() == [n_step, 10 + n_step, 0, n_step]
        ring = slots.get("recent")
        assert all(ring[s, i % 64] == i % v for s in (0, 1, 3) for i in range(n_step - 64, n_step))
        assert slots.get("n_out")[1].tolist() == [2 if t < n_step - v else 1 for t in range(v)]
        assert not slots.get("n_out")[[0, 2, 3]].any(), (
            "counts are kept only where a penalty needs them"
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_commit_of_a_broken_row_stays_in_bounds(backend: str) -> None:
    b = Blob()
    for name in ("slot", "page", "mask"):
        b.structs(f"mm_batch_{name}", [])
    b.structs("mm_batch_seq", [dict(slot=0, row_start=0, n_row=1, pos=4, n_ctx_after=-1)])
    b.structs("mm_batch_out", [dict(row=0, seq=0, kind=SAMPLE, token=-1, n_top=-1, list=-1)])
    b.header |= dict(n_row=1, token=b.add([3]), max_pos=5, is_decode=1)
    with Machine(backend, shape(n_vocab=40)) as m:
        slots = empty_slots(
            m, 2, n_ctx=np.array([4, 0]), last_token=np.array([33, 0]), n_emitted=np.array([2, 0])
        )
        x = Views(m, slots).start(b.finish())
        logits = m.put(np.full((1, 40), np.nan, np.float32))
        token, flag = m.put(np.zeros(1, np.int32)), m.put(np.zeros(1, np.uint8))
        m.run(
            "sample",
            logits=logits,
            work=m.put(np.zeros((1, 40), np.float32)),
            slots=slots.struct,
            out=x.out,
            first=0,
            n=1,
            commit=True,
            token=token,
            flag=flag,
        )
        assert m.get(token)[0] == -1 and m.get(flag)[0] == 1
        assert slots.get("last_token")[0] == 0 and slots.get("n_ctx")[0] == 5

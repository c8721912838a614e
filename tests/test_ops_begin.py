"""`begin` and the commit of `sample`: a batch blob written here, applied by a backend, read back
array by array."""

from __future__ import annotations

import ctypes
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


class Started:
    """The views of a begun step."""

    def __init__(
        self, m: Machine, blob: bytes, slots: Slots, pad_seqs: int = 0, on_host: bool = False
    ) -> None:
        self.m, plan = m, make("mm_batch")
        ctypes.memmove(ctypes.addressof(plan), blob, ctypes.sizeof(plan))
        s = m.sizes
        rows, seqs = s["max_rows"], s["max_seqs"]
        self.seq_arrays = {
            k: m.new((n,), np.int32)
            for k, n in (
                ("row_start", seqs + 1),
                ("slot", seqs),
                ("row_seq", rows),
                ("pos", rows),
                ("token", rows),
            )
        }
        self.out_arrays = {k: m.new((rows,), d) for k, d in OUT_FIELDS.items()}
        self.seq = m.struct("mm_seq_view", slots=slots.struct, **self.seq_arrays)
        self.out = m.struct("mm_out_view", **self.out_arrays)
        self.blob: Buffer = m.put(np.frombuffer(blob, np.uint8))
        self.n_read = m.put(np.array([5, 7]))
        views = dict(seq=self.seq, out=self.out, slots=slots.struct, n_read=self.n_read)
        if on_host:  # where a batch is built, and stays if it is small
            whole = (ctypes.c_int64 * -(-len(blob) // 8)).from_buffer_copy(blob + bytes(7))
            m.run("begin", plan=whole, blob=whole, pad_seqs=pad_seqs, **views)
        else:
            m.run("begin", plan=plan, blob=self.blob, pad_seqs=pad_seqs, **views)
        self.n_seq, self.n_row, self.n_out = self.seq.n_seq, self.seq.n_row, self.out.n_out

    def seq_of(self, name: str) -> list[int]:
        n = {"row_start": self.n_seq + 1, "slot": self.n_seq}.get(name, self.n_row)
        return self.m.get(self.seq_arrays[name])[:n].tolist()  # type: ignore[no-any-return]

    def out_of(self, name: str) -> list[int]:
        return self.m.get(self.out_arrays[name])[: self.n_out].tolist()  # type: ignore[no-any-return]


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
def test_begin_applies_slots_pages_masks(backend: str) -> None:
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
        Started(m, b.finish(), slots)
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
        x = Started(m, b.finish(), slots)
        assert x.seq_of("row_start") == [0, 3, 6, 7] and x.seq_of("slot") == [3, 1, 0]
        assert x.seq_of("row_seq") == [0, 0, 0, 1, 1, 1, 2]
        assert x.seq_of("pos") == [126, 127, 128, 150, 151, 152, 7]
        assert x.seq_of("token")[:3] == [10, 11, 12] and x.seq_of("token")[6] == 60
        assert (x.seq.n_seq, x.seq.n_row, x.seq.max_pos, x.seq.is_decode) == (3, 7, 200, True)
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
    n_rows: list[int], n_out: int, pages: list[dict[str, Any]] | None = None, **header: Any
) -> bytes:
    """Sequence i in slot i at position 100 * (i + 1); outputs are the last rows of the first
    n_out sequences."""
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
    b.structs("mm_batch_out", rows)
    usual = dict(n_row=end[-1], token=b.add(range(20, 20 + end[-1])), max_pos=777, is_decode=1)
    b.header |= usual | header
    return b.finish()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_rows", [[1], [2, 1, 5], [1] * 8])
@pytest.mark.parametrize("n_page", [0, 50])
def test_begin_takes_a_batch_from_the_host(n_page: int, n_rows: list[int], backend: str) -> None:
    """The same arrays wherever the batch is; the step's counters begin at 0."""
    made = []
    pages = [dict(slot=i // 6, block=i % 6, page=100 + i) for i in range(n_page)]
    with Machine(backend, shape(n_vocab=100)) as m:
        for on_host in (False, True):
            slots = empty_slots(m, 9)
            x = Started(m, decode_step(n_rows, len(n_rows), pages), slots, on_host=on_host)
            made.append(
                [x.seq_of(k) for k in x.seq_arrays]
                + [x.out_of(k) for k in x.out_arrays]
                + [slots.get(k).tolist() for k in ("n_ctx", "page_table")]
            )
            assert m.get(x.n_read).tolist() == [0, 0]
    assert made[0] == made[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_begin_pads_a_decode_step_where_graphs_are(backend: str) -> None:
    with Machine(backend, shape(n_vocab=100)) as m:
        slots = empty_slots(m, 5)
        if backend != "cuda":
            with pytest.raises(RuntimeError, match="pad_seqs is 4.*must be 0"):
                Started(m, decode_step([2, 2], 2), slots, pad_seqs=4)
            return
        x = Started(m, decode_step([2, 2], 2), slots, pad_seqs=4)
        assert (x.n_seq, x.n_row, x.n_out) == (4, 8, 4)
        assert (x.seq.max_pos, x.seq.is_decode) == (777, True)
        assert x.seq_of("row_start") == [0, 2, 4, 6, 8] and x.seq_of("slot") == [0, 1, 4, 4]
        assert x.seq_of("row_seq") == [0, 0, 1, 1, 2, 2, 3, 3]
        assert x.seq_of("pos") == [100, 101, 200, 201, 0, 1, 0, 1]
        assert x.seq_of("token") == [20, 21, 22, 23, 0, 0, 0, 0]
        assert x.out_of("row") == [1, 3, 5, 7] and x.out_of("row_slot") == [0, 1, 4, 4]
        assert x.out_of("kind") == [SAMPLE] * 4 and x.out_of("lane") == [0] * 4
        assert x.out_of("token") == [5, 6, -1, -1] and x.out_of("row_token") == [21, 23, 0, 0]
        assert x.out_of("n_top") == [2, 2, -1, -1] and x.out_of("n_list") == [1, 1, 0, 0]
        assert slots.get("n_ctx").tolist() == [102, 202, 0, 0, 0]
        # nothing to fill up, and outputs that are not one for each sequence
        assert Started(m, decode_step([1, 1, 1], 3), slots, pad_seqs=3).n_seq == 3
        y = Started(m, decode_step([1, 1, 1], 2), slots, pad_seqs=8)
        assert (y.n_seq, y.n_row, y.n_out) == (8, 8, 2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("n_rows", "pad", "header", "text"),
    [
        ([1, 1, 1], 2, {}, "pad_seqs is 2.*3 .sequences of the step"),
        ([1], 9, {}, "pad_seqs is 9.*8 .max_seqs"),
        ([1, 2], 4, {}, "2 sequences and 3 rows cannot be padded to 4"),
        ([1, 1], 4, {"is_decode": 0}, "with prompt rows cannot be padded"),
        ([8, 8], 8, {}, "pad_seqs 8 makes 64 rows; max_rows is 40"),
    ],
)
def test_begin_refuses_padding_that_makes_no_graph(
    n_rows: list[int], pad: int, header: dict[str, Any], text: str, backend: str
) -> None:
    text = text if backend == "cuda" else f"pad_seqs is {pad}.*must be 0"
    with Machine(backend, shape(n_vocab=100, max_rows=40)) as m:
        slots = empty_slots(m, 9)
        with pytest.raises(RuntimeError, match=text):
            Started(m, decode_step(n_rows, 1, **header), slots, pad_seqs=pad)


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
            x = Started(m, b.finish(), slots)
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
        x = Started(m, b.finish(), slots)
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

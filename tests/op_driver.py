"""Runs ops of a backend on NumPy arrays: device memory, contexts, and the structs that ops.h takes.

A `Machine` is one opened backend with one shape. Arrays go in with `put`, come back with `get`;
bf16 is uint16 bits. Everything is freed when the machine is closed (use it with `with`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import pytest
import reference as R
from c_structs import CONSTANTS, make
from numpy.typing import NDArray

_testing = pytest.importorskip("minimax_m31._testing", reason="built with MM_DEV=1 only")

Array = NDArray[Any]
PAGE = CONSTANTS["MM_PAGE"]
ACT = {"f32": CONSTANTS["MM_DTYPE_F32"], "bf16": CONSTANTS["MM_DTYPE_BF16"]}
CACHE = {name: CONSTANTS[f"MM_CACHE_{name.upper()}"] for name in ("f32", "bf16", "fp8", "nvfp4")}
WEIGHT = {
    name: CONSTANTS[f"MM_WEIGHT_{name.upper()}"] for name in ("f32", "bf16", "mxfp8", "nvfp4")
}

SHAPE: dict[str, Any] = dict(
    d_model=64,
    n_head=4,
    n_kv_head=2,
    head_dim=32,
    n_rotary=16,
    n_index_head=2,
    index_dim=32,
    kv_head_first=0,
    n_kv_head_total=2,
    n_top_block=4,
    n_init_block=0,
    n_expert=8,
    n_expert_used=3,
    d_expert=64,
    d_shared=96,
    d_dense=128,
    n_vocab=517,
    n_vocab_local=517,
    vocab_first=0,
    eps=1e-6,
    swiglu_alpha=1.702,
    swiglu_beta=1.0,
    swiglu_limit=7.0,
    routed_scale=2.0,
    max_rows=1024,
    max_seqs=8,
    max_model_len=4096,
    max_logit_rows=64,
)


def shape(**changes: Any) -> dict[str, Any]:
    """The small model of the tests with some sizes changed."""
    out = dict(SHAPE, act="f32", kv_format="f32", index_format="f32", never_token=[-1] * 16)
    out.update(changes)
    if "n_vocab" in changes and "n_vocab_local" not in changes:
        out["n_vocab_local"] = out["n_vocab"]
    return out


@functools.cache
def backend(name: str) -> Any:
    return _testing.open(name, 2)


# The CUDA library that MM_CUDA_SO names may be the one of tests/emu, which needs no GPU.
IS_EMULATED = any(n == "cuda" and ok and "emulated" in text for n, ok, text in _testing.backends())


def usable_backends(is_heavy: bool = False) -> list[Any]:
    """Test parameters: the host backends of this build, and cuda, whose tests need a GPU and are
    skipped with the reason where it cannot be used (conftest.py). is_heavy: slow when emulated."""
    names = [name for name, usable, _ in _testing.backends() if usable or name == "cuda"]
    order = [n for n in ("ref", "cpu", "cuda") if n in names]
    slow = (pytest.mark.slow,) if is_heavy else ()
    marks = slow if IS_EMULATED else (pytest.mark.gpu,)
    return [pytest.param(n, marks=marks if n == "cuda" else ()) for n in order]


BACKENDS, HEAVY_BACKENDS = usable_backends(), usable_backends(is_heavy=True)


# Sizes that the kernels of cuda are made for, in place of the small model's.
DEVICE_SIZES: dict[str, Any] = dict(d_model=128, head_dim=128, index_dim=128, n_rotary=64)


def device_shape(sizes: dict[str, Any]) -> dict[str, Any]:
    """A shape as cuda takes it: bf16 activations, heads of 128, no f32 caches."""
    out = dict(sizes, act="bf16")
    if out["head_dim"] != 128 or out["index_dim"] != 128:
        out |= {k: v for k, v in DEVICE_SIZES.items() if out[k] == SHAPE[k]}
    for name in ("kv_format", "index_format"):
        out[name] = "bf16" if out[name] == "f32" else out[name]
    return out


@dataclass(frozen=True)
class Buffer:
    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class Machine:
    def __init__(self, name: str, sizes: dict[str, Any]) -> None:
        if name == "cuda":
            sizes = device_shape(sizes)
        self.name, self.sizes, self.backend = name, sizes, backend(name)
        self.packs: bool = _testing.packs(self.backend)
        self.has_graph: bool = _testing.props(self.backend)["has_graph"]
        self.act: str = sizes["act"]
        self.held: list[int] = []
        self.held_host: list[int] = []
        self.keep: list[Any] = []  # host structs that args point to
        self.is_capturing = False
        values = dict(sizes, act=ACT[self.act])
        values |= {k: CACHE[sizes[k]] for k in ("kv_format", "index_format")}
        self.shape = make("mm_op_shape", **values)
        try:
            self.context = _testing.context(self.backend, bytes(self.shape), 0)
        except RuntimeError as e:
            if not str(e).startswith("unsupported") or name == "ref":
                raise
            pytest.skip(f"{name} does not take this shape: {e}")
        table = R.rope_table(sizes["max_model_len"], sizes["n_rotary"])
        rope = self.put(table)  # needs a context for its stream, and the context needs its address
        self.context = _testing.context(self.backend, bytes(self.shape), rope.address)

    def __enter__(self) -> Machine:
        return self

    def __exit__(
        self, kind: type | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        for address in self.held:
            _testing.free(self.backend, address)
        for address in self.held_host:
            _testing.free_host(self.backend, address)
        self.held, self.held_host = [], []

    # ------------------------------------------------------------ memory

    def put(self, array: Array) -> Buffer:
        array = np.ascontiguousarray(array)
        out = self.new(array.shape, array.dtype)
        if array.nbytes:
            _testing.upload(self.context, out.address, array.view(np.uint8).reshape(-1))
        return out

    def new(self, size: tuple[int, ...], dtype: Any) -> Buffer:
        n = int(np.prod(size)) * np.dtype(dtype).itemsize
        address = _testing.alloc(self.backend, max(n, 1))
        self.held.append(address)
        return Buffer(address, tuple(size), np.dtype(dtype))

    def new_host(self, n_bytes: int) -> int:
        """Host memory that ops can read; its address."""
        self.held_host.append(_testing.alloc_host(self.backend, n_bytes))
        return self.held_host[-1]

    def get(self, buffer: Buffer) -> Array:
        out = np.empty(buffer.shape, buffer.dtype)
        if out.nbytes:
            _testing.download(self.context, buffer.address, out.view(np.uint8).reshape(-1))
        return out

    def put_act(self, x: Array) -> Buffer:
        return self.put(R.bf16_bits(x) if self.act == "bf16" else x.astype(np.float32))

    def new_act(self, *size: int) -> Buffer:
        """Filled with NaN, so that what an op forgets to write is seen."""
        return self.put_act(np.full(size, np.nan, np.float32))

    def get_act(self, buffer: Buffer) -> Array:
        x = self.get(buffer)
        return R.from_bf16(x) if x.dtype == np.uint16 else x

    # ------------------------------------------------------------ structs

    def struct(self, name: str, **values: Any) -> Any:
        """A host struct; buffers become addresses, structs for pointers their own addresses."""
        plain: dict[str, Any] = {}
        for key, value in values.items():
            if isinstance(value, Buffer):
                value = value.address
            elif isinstance(value, ctypes.Array):
                self.keep.append(value)
                value = ctypes.addressof(value)
            field = dict(_fields(name))[key]
            if isinstance(value, ctypes.Structure) and field is ctypes.c_void_p:
                self.keep.append(value)
                value = ctypes.addressof(value)
            plain[key] = value
        return make(name, **plain)

    def run(self, op: str, view: Any = None, /, **args: Any) -> None:
        kind = {"logprobs": "mm_logprob_args", "gather_rows": "mm_gather_args"}.get(
            op, f"mm_{op}_args"
        )
        a = self.struct(kind, **args)
        where = ctypes.addressof(view) if view is not None else 0
        size = ctypes.sizeof(a)
        _testing.run(self.context, op, ctypes.addressof(a), size, where, not self.is_capturing)

    def capture(self, run: Callable[[], None]) -> Any:
        """What `run` launches, as a graph; nothing has run yet."""
        _testing.graph_begin(self.context)
        self.is_capturing = True
        try:
            run()
        finally:
            self.is_capturing = False
            graph = _testing.graph_end(self.context)
        return graph

    def launch(self, graph: Any) -> None:
        _testing.graph_launch(graph)

    # ------------------------------------------------------------ weights

    def weight(self, w: R.Weight | None) -> Any:
        """mm_weight in checkpoint order with its memory on the device; an unused one for None."""
        if w is None:
            return make("mm_weight")
        scale = self.put(w.scale) if w.scale is not None else None
        return self._weight(w, self.put(w.data).address, scale.address if scale else None)

    def host_weight(self, w: R.Weight) -> Any:
        """mm_weight in host memory: what `pack` reads."""
        data = np.ascontiguousarray(w.data)
        scale = np.ascontiguousarray(w.scale) if w.scale is not None else None
        self.keep += [data, scale]
        return self._weight(w, data.ctypes.data, scale.ctypes.data if scale is not None else None)

    def _weight(self, w: R.Weight, data: int, scale: int | None) -> Any:
        return self.struct(
            "mm_weight",
            format=WEIGHT[w.format],
            n_out=w.n_out,
            n_in=w.n_in,
            data=data + w.first_byte,
            data_stride=w.data.shape[1],
            scale=scale + w.first_scale if scale is not None else None,
            scale_stride=w.scale.shape[1] if w.scale is not None else 0,
            global_scale=w.global_scale,
        )

    def array(self, structs: list[Any]) -> Any:
        out = (type(structs[0]) * len(structs))(*structs)
        self.keep.append(out)
        return out

    def pack(self, kind: str, many: list[R.Weight]) -> Any:
        """mm_weight of the backend's own order, made by its `pack`."""
        sources = bytes(self.array([self.host_weight(w) for w in many]))
        code = CONSTANTS[f"MM_PACK_{kind}"]
        n = _testing.pack_bytes(self.context, code, sources)
        dst = self.new((n,), np.uint8)
        out = _testing.pack(self.context, code, sources, dst.address)
        return type(make("mm_weight")).from_buffer_copy(out)

    def sizes_only(self, w: R.Weight) -> Any:
        """What stays of a matrix whose packing replaced it."""
        return make("mm_weight", format=WEIGHT[w.format], n_out=w.n_out, n_in=w.n_in)

    def matrix(self, w: R.Weight) -> Any:
        """A matrix that is multiplied alone (o, down, head): packed where the backend packs."""
        return self.pack("LINEAR", [w]) if self.packs else self.weight(w)

    def joined(self, kind: str, field: str, parts: dict[str, R.Weight]) -> dict[str, Any]:
        """Fields of a struct: each part, and where the backend packs all of them as `field`."""
        if not self.packs:
            return {name: self.weight(w) for name, w in parts.items()}
        out = {name: self.sizes_only(w) for name, w in parts.items()}
        return out | {field: self.pack(kind, list(parts.values()))}

    def experts(self, w1: list[R.Weight], w3: list[R.Weight], w2: list[R.Weight]) -> dict[str, Any]:
        """The routed experts' fields of mm_expert_weights."""
        place = self.sizes_only if self.packs else self.weight
        lists = {"w1": w1, "w3": w3, "w2": w2}
        out = {name: self.array([place(w) for w in many]) for name, many in lists.items()}
        if self.packs:
            pairs = [w for pair in zip(w1, w3, strict=True) for w in pair]
            out["packed_w13"] = self.pack("EXPERTS_W13", pairs)
            out["packed_w2"] = self.pack("EXPERTS_W2", w2)
        return out

    # ------------------------------------------------------------ slots, steps, caches

    def slots(self, n_slot: int, *, mask_lanes: int = 1, **arrays: Array) -> Slots:
        return Slots(self, n_slot, mask_lanes, arrays)

    def step(self, plan: R.Step, slots: Slots | None = None) -> Any:
        """mm_seq_view of a plan whose page table it fills in."""
        n_slot = max(plan.slot) + 2
        if slots is None:
            stride = max(len(p) for p in plan.pages)
            table = np.zeros((n_slot, stride), np.int32)
            for slot, pages in zip(plan.slot, plan.pages, strict=True):
                table[slot, : len(pages)] = pages
            slots = self.slots(n_slot, page_table=table)
        return self.struct(
            "mm_seq_view",
            n_seq=len(plan.slot),
            n_row=plan.n_row,
            max_pos=int(plan.pos.max()) + 1,
            is_decode=max(plan.n_rows) <= 8,
            row_start=self.put(plan.row_start),
            slot=self.put(np.array(plan.slot, np.int32)),
            row_seq=self.put(plan.row_seq),
            pos=self.put(plan.pos),
            token=self.put(plan.token),
            slots=slots.struct,
        )

    def plane(self, p: R.Plane | None) -> Any:
        if p is None:
            return make("mm_plane")
        data = self.put(p.data)
        scale = self.put(p.scale) if p.scale is not None else None
        out = self.struct(
            "mm_plane",
            format=CACHE[p.format],
            n_head=p.n_head,
            dim=p.dim,
            n_page=p.data.shape[0],
            data=data,
            scale=scale,
        )
        out.buffers = (data, scale)
        return out

    def layer_cache(self, k: R.Plane, v: R.Plane, ik: R.Plane | None = None) -> Any:
        planes = [self.plane(p) for p in (k, v, ik)]
        out = make("mm_layer_cache", k=planes[0], v=planes[1], ik=planes[2])
        out.planes = planes
        return out

    def get_plane(self, plane: Any, like: R.Plane) -> R.Plane:
        data, scale = plane.buffers
        return R.Plane(
            like.format, like.n_head, like.dim, self.get(data), self.get(scale) if scale else None
        )


def _fields(name: str) -> Any:
    return type(make(name))._fields_


class Slots:
    """mm_slots in device memory; `arrays` by field name, the rest zero; `get` reads one back."""

    def __init__(self, m: Machine, n_slot: int, mask_lanes: int, arrays: dict[str, Array]) -> None:
        c, v = CONSTANTS, m.sizes["n_vocab"]
        words = -(-v // 32)
        sizes: dict[str, tuple[tuple[int, ...], Any]] = {
            "page_table": ((1,), np.int32),
            "n_ctx": ((), np.int32),
            "n_emitted": ((), np.int32),
            "last_token": ((), np.int32),
            "draft_token": ((c["MM_MAX_DECODE_ROWS"] - 1,), np.int32),
            "n_draft": ((), np.int32),
            "recent": ((c["MM_MAX_BAD_LEN"],), np.int32),
            "bias_token": ((c["MM_MAX_LIST"],), np.int32),
            "bias_value": ((c["MM_MAX_LIST"],), np.float32),
            "ban_token": ((c["MM_MAX_LIST"],), np.int32),
            "bad_offset": ((c["MM_MAX_LIST"] + 1,), np.int32),
            "bad_token": ((c["MM_MAX_BAD_TOKENS"],), np.int32),
            "logprob_token": ((c["MM_MAX_LIST"],), np.int32),
            "mask": ((mask_lanes, words), np.uint32),
            "in_prompt": ((words,), np.uint32),
            "n_out": ((v,), np.uint16),
        }
        self.machine, self.buffers = m, {}
        for name, (row, dtype) in sizes.items():
            given = arrays.get(name)
            if given is not None and name != "page_table":
                assert given.shape == (n_slot, *row), (name, given.shape)
            array = np.zeros((n_slot, *row), dtype) if given is None else given.astype(dtype)
            self.buffers[name] = m.put(array)
        params = arrays.get("params")
        size = ctypes.sizeof(make("mm_slot_params"))
        raw = np.zeros((n_slot, size), np.uint8) if params is None else params
        self.buffers["params"] = m.put(raw)
        stride = self.buffers["page_table"].shape[1]
        self.struct = m.struct(
            "mm_slots",
            n_slot=n_slot,
            page_stride=stride,
            mask_words=words,
            mask_lanes=mask_lanes,
            **self.buffers,
        )

    def get(self, name: str) -> Array:
        return self.machine.get(self.buffers[name])

    def get_params(self, slot: int) -> Any:
        return type(make("mm_slot_params")).from_buffer_copy(self.get("params")[slot].tobytes())


def params_rows(rows: list[dict[str, Any]]) -> Array:
    """mm_slot_params of each slot as bytes; what is not given is neutral."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
    packed = [bytes(make("mm_slot_params", **{**neutral, **row})) for row in rows]
    return np.frombuffer(b"".join(packed), np.uint8).reshape(len(rows), -1)


OUT_FIELDS = {
    "row": np.int32,
    "row_slot": np.int32,
    "lane": np.int32,
    "kind": np.int32,
    "token": np.int32,
    "row_token": np.int32,
    "mode": np.int32,
    "n_top": np.int32,
    "n_list": np.int32,
    "entry": np.int64,
    "list": np.int64,
}


def out_view(m: Machine, n: int, blob: Buffer | None = None, **arrays: Any) -> Any:
    """mm_out_view of n rows: SAMPLE rows of slots 0..n-1 without entries, or as `arrays` say."""
    usual = {
        "row": np.arange(n),
        "row_slot": np.arange(n),
        "lane": 0,
        "kind": CONSTANTS["MM_OUT_SAMPLE"],
        "token": -1,
        "row_token": 0,
        "mode": 0,
        "n_top": -1,
        "n_list": 0,
        "entry": 0,
        "list": -1,
    }
    values = {
        k: m.put(
            np.ascontiguousarray(np.broadcast_to(np.asarray(arrays.get(k, usual[k]), d), (n,)))
        )
        for k, d in OUT_FIELDS.items()
    }
    return m.struct("mm_out_view", n_out=n, blob=blob, **values)

"""Packed weights of cuda: the bytes are those that kernels/cuda/frag.h describes, for every format
and kind; and what cannot be multiplied exactly is refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import reference as R
from numpy.typing import NDArray
from op_case import weight
from op_driver import CONSTANTS, Machine, shape, usable_backends

Array = NDArray[Any]
CUDA = [p for p in usable_backends() if p.values[0] == "cuda"]
COLS = {"f32": 16, "bf16": 16, "mxfp8": 32, "nvfp4": 64}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def machine() -> Machine:
    return Machine("cuda", shape(d_model=128))


def packed_bytes(m: Machine, w: Any, n_tile: int) -> tuple[Array, Array | None]:
    """Fragments [n_tile, n_frag, 32, 16] and scales [n_tile, n_frag, -1] of a packed mm_weight."""

    def read(address: int, n: int) -> Array:
        out = np.empty(n, np.uint8)
        from op_driver import _testing

        _testing.download(m.context, address, out)
        return out

    n_frag = w.data_stride // 512
    frag = read(w.data, n_tile * w.data_stride).reshape(n_tile, n_frag, 32, 16)
    if not w.scale:
        return frag, None
    return frag, read(w.scale, n_tile * w.scale_stride).reshape(n_tile, n_frag, -1)


def element(lane: int, i: int, j: int) -> tuple[int, int]:
    """Row of the tile and column of the step of element j of a[i]."""
    return lane // 4 + 8 * (i & 1), 2 * (lane % 4) + j + 8 * (i >> 1)


def unpack_tile(fmt: str, frag: Array, scale: Array | None) -> Array:
    """[16, columns] values of a row tile; NVFP4 times 2^8, without the global scale."""
    n_frag = frag.shape[0] // (3 if fmt == "f32" else 1)
    out = np.zeros((16, n_frag * COLS[fmt]))
    for f in range(n_frag):
        for lane in range(32):
            for i in range(4):
                for j in range(2):
                    row, col = element(lane, i, j)
                    at = f * COLS[fmt] + col
                    if fmt == "bf16":
                        out[row, at] = R.from_bf16(frag[f, lane].view(np.uint16))[2 * i + j]
                    elif fmt == "f32":
                        parts = [
                            R.from_bf16(frag[3 * f + p, lane].view(np.uint16))[2 * i + j]
                            for p in range(3)
                        ]
                        out[row, at] = np.sum(np.array(parts, np.float64))
                    elif fmt == "mxfp8":
                        assert scale is not None
                        for s in range(2):
                            word = int(frag[f, lane].view(np.uint32)[2 * s + i // 2])
                            value = R.e4m3_decode(np.array([mxfp8(word, i, j)], np.uint8))[0]
                            out[row, at + 16 * s] = value * 2.0 ** (int(scale[f, row]) - 127)
                    else:
                        assert scale is not None
                        for s in range(4):
                            word = int(frag[f, lane].view(np.uint32)[s])
                            out[row, at + 16 * s] = nvfp4(
                                word, i, j, int(scale[f, nv_scale(row, s)])
                            )
    return out


def nv_scale(row: int, step: int) -> int:
    return 8 * (row % 8) + 4 * (row // 8) + step


def mxfp8(word: int, i: int, j: int) -> int:
    half = word >> 16 * j
    if i % 2 == 0:
        return half >> 8 & 0x80 | half >> 4 & 0x7F
    return half >> 4 & 0x80 | half >> 8 & 0x70 | half & 0x0F


def nvfp4(word: int, i: int, j: int, scale: int) -> float:
    half, other = word >> 16 * j, word >> 16 * (1 - j)
    sign = half >> (15, 11, 5, 9)[i] & 1
    code = (half >> 6, half >> 2, other >> 12, (half >> 10 & 1) << 2 | half & 3)[i] & 7
    value = float(E2M1[code]) * (1 + (scale & 7) / 8) * 2.0 ** ((scale >> 3) - 10)
    return -value if sign else value


def plain(w: R.Weight) -> Array:
    """Values without the division by the global scale."""
    return np.asarray(dataclasses.replace(w, global_scale=1.0).dense())


@pytest.mark.parametrize("backend", CUDA)
@pytest.mark.parametrize(("fmt", "view"), [(f, v) for f in COLS for v in (False, True)])
def test_pack_linear_is_the_matrix_in_fragments(fmt: str, view: bool, backend: str) -> None:
    rng = np.random.default_rng(7)
    n_out, n_in = 37, 96 if fmt == "mxfp8" else 80
    w = weight(rng, fmt, n_out, n_in, view=view)
    if fmt == "nvfp4":  # every kind of scale: zero, subnormal, the largest
        assert w.scale is not None
        w.scale[:16] = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 15, 0x38, 0x7E, 0, 0x40, 0x77, 9])[
            :, None
        ]
    with machine() as m:
        out = m.pack("LINEAR", [w])
        frag, scale = packed_bytes(m, out, 3)
    assert (out.n_out, out.n_in) == (n_out, n_in)
    want = np.zeros((48, frag.shape[1] * COLS[fmt] // (3 if fmt == "f32" else 1)))
    want[:n_out, :n_in] = plain(w)
    got = np.concatenate(
        [unpack_tile(fmt, frag[t], None if scale is None else scale[t]) for t in range(3)]
    )
    assert np.array_equal(got, want)
    if fmt == "nvfp4":
        assert out.global_scale == np.float32(w.global_scale) / 256


@pytest.mark.parametrize("backend", CUDA)
@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp8", "bf16"])
def test_pack_experts_interleave_gate_and_up(fmt: str, backend: str) -> None:
    rng = np.random.default_rng(8)
    n, f, d = 3, 24, 64
    many = [weight(rng, fmt, f, d) for _ in range(2 * n)]
    for i, w in enumerate(many):
        w.global_scale *= i + 1
    with machine() as m:
        out = m.pack("EXPERTS_W13", many)
        tiles = f // 8
        frag, scale = packed_bytes(m, out, n * tiles)
        factors = None
        if fmt == "nvfp4":
            factors = np.empty(2 * n, np.float32)
            from op_driver import _testing

            _testing.download(m.context, out.global_scales, factors.view(np.uint8))
    assert out.n_out == n * tiles * 16
    for e in range(n):
        for t in range(tiles):
            at = e * tiles + t
            got = unpack_tile(fmt, frag[at], None if scale is None else scale[at])
            rows = slice(8 * t, 8 * t + 8)
            assert np.array_equal(got[:8, :d], plain(many[2 * e])[rows])
            assert np.array_equal(got[8:, :d], plain(many[2 * e + 1])[rows])
    if factors is not None:
        want = [256 / np.float32(w.global_scale) for w in many]
        assert np.allclose(factors, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("backend", CUDA)
def test_pack_qkv_puts_the_rows_one_after_the_other(backend: str) -> None:
    rng = np.random.default_rng(9)
    many = [weight(rng, "mxfp8", n, 64) for n in (32, 16, 16, 16, 16)]
    with machine() as m:
        out = m.pack("QKV", many)
        frag, scale = packed_bytes(m, out, 6)
    assert scale is not None and out.n_out == 96
    got = np.concatenate([unpack_tile("mxfp8", frag[t], scale[t]) for t in range(6)])
    assert np.array_equal(got, np.concatenate([plain(w) for w in many]))


@pytest.mark.parametrize("backend", CUDA)
@pytest.mark.parametrize(
    ("fmt", "where", "value", "text"),
    [
        ("mxfp8", "data", 0x7F, "NaN code"),
        ("mxfp8", "data", 0xFF, "NaN code"),
        ("mxfp8", "scale", 255, "NaN block scale"),
        ("mxfp8", "scale", 135, "block scale above 2\\^7"),
        ("nvfp4", "scale", 0x7F, "NaN block scale"),
        ("nvfp4", "scale", 0xFF, "NaN block scale"),
        ("nvfp4", "scale", 0x81, "negative block scale"),
    ],
)
def test_pack_refuses_what_is_damaged(
    fmt: str, where: str, value: int, text: str, backend: str
) -> None:
    w = weight(np.random.default_rng(10), fmt, 40, 128)
    array = w.data if where == "data" else w.scale
    assert array is not None
    array[39, -1] = value
    with machine() as m:
        with pytest.raises(RuntimeError, match=text):
            m.pack("LINEAR", [w])
        array[39, -1] = 1
        m.pack("LINEAR", [w])  # the flags do not stay


@pytest.mark.parametrize("backend", CUDA)
def test_pack_refuses_matrices_that_do_not_fit_together(backend: str) -> None:
    rng = np.random.default_rng(11)
    with machine() as m:
        with pytest.raises(RuntimeError, match="differ"):
            m.pack("GATE_UP", [weight(rng, "bf16", 32, 64), weight(rng, "mxfp8", 32, 64)])
        with pytest.raises(RuntimeError, match="multiple of 16"):
            m.pack("QKV", [weight(rng, "bf16", 24, 64), weight(rng, "bf16", 16, 64)])
    assert CONSTANTS["MM_PACK_QKV"] == 0

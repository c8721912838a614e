"""Golden checkpoints as arrays, and safetensors files made by tests."""

from __future__ import annotations

import json
import struct
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from minimax_m31.safetensors import read_header

GOLDEN = Path(__file__).parent / "golden"
SINGLE = "model.safetensors"

# name -> (dtype, shape, bytes)
RawTensors = dict[str, tuple[str, list[int], bytes]]
Array = npt.NDArray[Any]

_NUMPY = {"F32": np.float32, "I32": np.int32, "I16": np.int16, "U8": np.uint8}


@cache
def golden(case: str) -> dict[str, Array]:
    """Inputs and expected results of a case."""
    raw = read_raw(GOLDEN / case / "golden.safetensors")
    return {
        name: np.frombuffer(data, _NUMPY[dtype]).reshape(shape)
        for name, (dtype, shape, data) in raw.items()
    }


def read_raw(path: Path) -> RawTensors:
    data = path.read_bytes()
    return {
        t.name: (t.dtype, list(t.shape), data[t.offset : t.offset + t.n_bytes])
        for t in read_header(path)
    }


def write_safetensors(path: Path, tensors: RawTensors) -> None:
    header: dict[str, Any] = {}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [offset, offset + len(data)],
        }
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def modelopt_spelling(tensors: RawTensors) -> RawTensors:
    """A released NVFP4 + MXFP8 checkpoint under ModelOpt's names: the same codes, decode scales."""
    renamed = {
        ".weight_packed": ".weight",
        ".input_global_scale": ".input_scale",
        ".weight_scale_inv": ".weight_scale",
    }
    out: RawTensors = {}
    for name, (dtype, shape, data) in tensors.items():
        if name.endswith(".weight_global_scale"):
            decode = np.float32(1) / np.frombuffer(data, np.float32)
            out[name.replace("weight_global_scale", "weight_scale_2")] = (
                "F32",
                [],
                decode.tobytes(),
            )
            continue
        for old, new in renamed.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
                break
        out[name] = (dtype, shape, data)
    return out

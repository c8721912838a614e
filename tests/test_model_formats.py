"""Formats that no golden checkpoint has: the same numbers stored another way are the same model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import (
    GOLDEN,
    SINGLE,
    Array,
    RawTensors,
    golden,
    modelopt_spelling,
    read_raw,
    write_safetensors,
)
from reference import E4M3, bf16_bits, e4m3_encode, from_bf16
from tolerances import GOLDEN_LOGITS_ABS

from minimax_m31 import LLM, _core

N = 700


def logits(folder: Path, backend: str, **kwargs: Any) -> Array:
    usable = {name: ok for name, ok, _ in _core.backends()}
    if not usable[backend]:
        pytest.skip(f"backend {backend} cannot be used here")
    ids = golden("m31_d128")[f"len{N}.input_ids"]
    with LLM(
        str(folder),
        backend=backend,
        dtype="float32",
        max_model_len=768,
        skip_tokenizer_init=True,
        **kwargs,
    ) as llm:
        return llm.compute_logits(ids)


def write(folder: Path, tensors: RawTensors, case: str = "m31_d128", **quantization: Any) -> Path:
    folder.mkdir()
    config = json.loads((GOLDEN / case / "config.json").read_text())
    config.pop("quantization_config", None)
    if quantization:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / SINGLE, tensors)
    return folder


def m31_bf16() -> RawTensors:
    out: RawTensors = {}
    for path in sorted((GOLDEN / "m31_d128").glob("model-*.safetensors")):
        out.update(read_raw(path))
    return out


def is_matrix(name: str) -> bool:
    return name.startswith("language_model.") and "_proj.weight" in name or ".experts." in name


def split_mxfp8(data: bytes, shape: list[int]) -> tuple[bytes, bytes, bytes]:
    """bf16 values -> e4m3 codes, e8m0 scales (rounded up), and the decoded values as bf16."""
    x = from_bf16(np.frombuffer(data, np.uint16)).astype(np.float64).reshape(shape[0], -1, 32)
    top = np.maximum(np.abs(x).max(-1, keepdims=True), 1e-30)
    exponent = np.ceil(np.log2(top / 448.0))
    code = e4m3_encode(x / 2.0**exponent)
    value = E4M3[code & 127] * np.where(code & 128, -1.0, 1.0) * 2.0**exponent
    decoded = bf16_bits(value.astype(np.float32))
    np.testing.assert_array_equal(
        from_bf16(decoded), value
    )  # exact, so the two files are one model
    return code.tobytes(), (exponent + 127).astype(np.uint8).tobytes(), decoded.tobytes()


@pytest.mark.parametrize("suffix", [".weight_scale_inv", ".weight_scale"])
@pytest.mark.parametrize("backend", ["ref", "cpu"])
def test_mxfp8_everywhere_equals_its_decoded_values(
    tmp_path: Path, backend: str, suffix: str
) -> None:
    stored: RawTensors = {}
    decoded: RawTensors = {}
    for name, (dtype, shape, data) in m31_bf16().items():
        if not is_matrix(name):
            stored[name] = decoded[name] = (dtype, shape, data)
            continue
        code, scale, value = split_mxfp8(data, shape)
        stored[name] = ("F8_E4M3", shape, code)
        stored[name.removesuffix(".weight") + suffix] = ("U8", [shape[0], shape[1] // 32], scale)
        decoded[name] = ("BF16", shape, value)
    a = write(tmp_path / "stored", stored, quant_method="mxfp8", weight_block_size=[1, 32])
    b = write(tmp_path / "decoded", decoded)
    want = logits(b, backend)
    assert np.abs(logits(a, backend) - want).max() < GOLDEN_LOGITS_ABS
    original = golden("m31_d128")
    at = original[f"len{N}.positions"]
    assert np.abs(want[at] - original[f"len{N}.logits"]).max() > 0.01, "nothing was quantised"


@pytest.mark.parametrize("backend", ["ref", "cpu"])
def test_f32_matrices_equal_bf16_ones(tmp_path: Path, backend: str) -> None:
    wide: RawTensors = {}
    for name, (dtype, shape, data) in m31_bf16().items():
        if name.startswith("language_model.") and dtype == "BF16":
            value = from_bf16(np.frombuffer(data, np.uint16))
            wide[name] = ("F32", shape, value.astype(np.float32).tobytes())
        else:
            wide[name] = (dtype, shape, data)
    got = logits(write(tmp_path / "f32", wide), backend)
    g = golden("m31_d128")
    assert np.abs(got[g[f"len{N}.positions"]] - g[f"len{N}.logits"]).max() < GOLDEN_LOGITS_ABS


@pytest.mark.parametrize("backend", ["ref", "cpu"])
@pytest.mark.parametrize("spell", [modelopt_spelling, dict], ids=["modelopt", "released"])
def test_nvfp4_spellings_are_one_model(
    tmp_path: Path, backend: str, spell: Callable[[RawTensors], RawTensors]
) -> None:
    case = "m31_d128_nvfp4"
    raw = read_raw(GOLDEN / case / SINGLE)
    folder = write(tmp_path / "spelled", spell(raw), case, quant_method="modelopt")
    g = golden(case)
    with LLM(
        str(folder), backend=backend, dtype="float32", max_model_len=768, skip_tokenizer_init=True
    ) as llm:
        got = llm.compute_logits(g[f"len{N}.input_ids"])
    assert np.abs(got[g[f"len{N}.positions"]] - g[f"len{N}.logits"]).max() < GOLDEN_LOGITS_ABS


@pytest.mark.parametrize("quantization", ["bf16", "released"])
def test_dummy_weights_run_and_are_sensible(quantization: str) -> None:
    case = "m31_d128" if quantization == "bf16" else "m31_d128_nvfp4"
    rows = [
        logits(GOLDEN / case, backend, load_format="dummy", seed=3)[:8]
        for backend in ("ref", "cpu")
    ]
    assert np.isfinite(rows[0]).all() and 0.3 < rows[0].std() < 3.0
    assert np.abs(rows[0] - rows[1]).max() < GOLDEN_LOGITS_ABS

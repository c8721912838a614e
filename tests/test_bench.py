"""The benchmarks of a GPU as far as they can be tested without one: the checkpoint that
load_cuda.py writes is one, quick runs are parts of full ones, what MM_PROFILE logs is read, and
floors divide by the larger bandwidth."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "bench"))

import load_cuda
from device_ceiling import NOMINAL_BANDWIDTH, Ceilings


def test_the_written_checkpoint_can_be_opened(tmp_path: Path) -> None:
    config = load_cuda.config_of(1, small=True)
    total = load_cuda.write_checkpoint(tmp_path, config)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 2  # a layer, and the rest
    assert 0 < sum(f.stat().st_size for f in files) - total < 1 << 20  # headers
    _, tokens = load_cuda.open_once(tmp_path, "auto", "cpu")
    assert len(tokens) == 4
    assert load_cuda.open_once(tmp_path, "auto", "cpu")[1] == tokens


def test_the_layout_is_the_released_one() -> None:
    text = load_cuda.config_of(1, small=False)["text_config"]
    sizes = {name: (dtype, shape) for name, dtype, shape in load_cuda.layer_tensors(text, 0)}
    expert = "language_model.model.layers.0.block_sparse_moe.experts.127.w2"
    assert sizes[f"{expert}.weight_packed"] == ("U8", (6144, 1536))
    assert sizes[f"{expert}.weight_scale"] == ("F8_E4M3", (6144, 192))
    n_byte = sum(load_cuda.ITEM[d] * _product(s) for d, s in sizes.values())
    assert 4.1e9 < n_byte < 4.3e9


def _product(shape: tuple[int, ...]) -> int:
    out = 1
    for n in shape:
        out *= n
    return out


def test_no_noise_is_nan() -> None:
    block = load_cuda.Noise(1 << 16).block
    for name in ("F8_E4M3", "weight_scale"):
        assert not ((block[name] & 0x7F) == 0x7F).any()
    assert len(set(block["F8_E4M3"].tolist())) == 254  # every other code is there


def test_what_a_profile_logs_becomes_fields() -> None:
    code = (
        "from api_models import ids_llm\n"
        "import bench_cuda_step as b\n"
        "llm = ids_llm()\n"
        "llm.generate([[1, 7, 9]], use_tqdm=False)\n"
        "lines = b.profile_lines(llm)\n"
        "print(sorted({line['name'] for line in lines}), all(float(x['us']) > 0 for x in lines))"
    )
    paths = [Path(__file__).parent, Path(__file__).parent / "bench", *map(Path, sys.path)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "MM_PROFILE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "'attn_in'" in done.stdout and done.stdout.endswith(" True\n"), done.stdout


def test_floors_divide_by_the_larger_bandwidth() -> None:
    assert Ceilings("x", copy=4.0e12, read=4.5e12).bandwidth == 4.5e12
    assert Ceilings("x", copy=4.0e12).bandwidth == 4.0e12
    assert Ceilings("x").bandwidth == NOMINAL_BANDWIDTH
    assert "nominal" in Ceilings("x").text()
    names = [row.name for row in Ceilings("x", 4.0e12, 4.5e12, 7e14, "dot").rows()]
    assert names == ["copy_bandwidth", "read_bandwidth", "matrix_rate"]
    assert [row.name for row in Ceilings("x", copy=4.0e12).rows()] == ["copy_bandwidth"]


def test_a_quick_run_is_a_part_of_the_full_one() -> None:
    pytest.importorskip("minimax_m31._testing", reason="built with MM_DEV=1 only")
    import bench_cuda_ops

    for family, benches in bench_cuda_ops.families().items():
        quick, full = ([f"{b.name} {b.params}" for b in benches(q)] for q in (True, False))
        assert len(set(full)) == len(full), family
        assert set(quick) <= set(full), family

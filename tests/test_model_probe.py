"""MM_CHECK, MM_PROBE and MM_DUMP on a golden checkpoint.

The variables are read once per process, so each run is a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from minimax_m31 import _core

CASE = Path(__file__).parent / "golden" / "m31_d128_nvfp4"

SCRIPT = """
import json, logging, sys
lines = []
class Keep(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("minimax_m31").addHandler(Keep())
logging.getLogger("minimax_m31").setLevel(logging.DEBUG)
from minimax_m31 import LLM, SamplingParams, _core
backend, folder, out, dtype, cache = [*sys.argv[1:], "auto"][:5]
args = dict(dtype=dtype, max_model_len=512, skip_tokenizer_init=True)
if cache != "auto":
    args |= dict(kv_cache_dtype=cache, indexer_kv_dtype=cache)
with LLM(folder, backend=backend, **args) as llm:
    trace = llm.trace([t * 5 % 300 for t in range(150)], what=("hidden", "logits"))
    prompt = {"prompt_token_ids": [1, 2, 3]}
    llm.generate([prompt], SamplingParams(max_tokens=3, temperature=0), use_tqdm=False)
lines += [text for _, text in _core.log_drain()]
import numpy as np
np.savez(out, logits=trace.logits, **{f"hidden{i}": h for i, h in enumerate(trace.hidden)})
print(json.dumps(lines))
"""


def run(
    tmp_path: Path, backend: str, dtype: str = "float32", cache: str = "auto", **variables: str
) -> tuple[list[str], dict[str, np.ndarray]]:
    usable = {name: ok for name, ok, _ in _core.backends()}
    if not usable[backend]:
        pytest.skip(f"backend {backend} cannot be used here")
    out = tmp_path / "arrays.npz"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, backend, str(CASE), str(out), dtype, cache],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), dict(np.load(out))


@pytest.mark.parametrize(
    ("dtype", "cache"),
    [("float32", "auto"), *(("bfloat16", cache) for cache in ("bf16", "fp8", "nvfp4"))],
)
def test_check_finds_nothing_on_cpu(tmp_path: Path, dtype: str, cache: str) -> None:
    lines, _ = run(tmp_path, "cpu", dtype, cache, MM_CHECK="1", MM_LOG="info")
    assert any("MM_CHECK=1" in line for line in lines)
    assert [line for line in lines if "differs from ref" in line] == []
    # embed, four sparse layers, two of them with experts, logits: of a prompt and three steps
    n = 2 + 4 * (3 + 8) + 2 * 2 + 1
    (found,) = [line for line in lines if line.startswith("check: ")]
    compared, differ = re.findall(r"\d+", found)
    assert int(compared) >= 4 * n + 3 * 2 and differ == "0", found


def test_dump_holds_the_streams_of_the_trace(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    _, arrays = run(tmp_path, "ref", MM_DUMP=str(folder))
    files = sorted(folder.iterdir())
    assert len({f.name[:6] for f in files}) == len(files), "every file has its own number"
    for i in range(4):
        first = next(f for f in files if f.name.endswith(f"layer{i:02d}_hidden.npy"))
        np.testing.assert_array_equal(np.load(first), arrays[f"hidden{i}"])
    names = {f.stem.split("_", 2)[2] for f in files}
    assert {"embed", "attn_q", "attn_iq", "attn_o", "attn_x", "expert_weights", "final"} <= names


def test_probe_logs_statistics_of_one_layer(tmp_path: Path) -> None:
    lines, arrays = run(tmp_path, "ref", MM_PROBE="hidden,2")
    probes = [line for line in lines if line.startswith("probe ")]
    assert probes and all(line.startswith("probe hidden layer 2:") for line in probes)
    words = probes[0].split()
    assert float(words[words.index("max") + 1]) == pytest.approx(arrays["hidden2"].max(), rel=1e-5)
    assert words[words.index("finite") + 1] == "0"


def test_wrong_probe_layer_is_an_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "ref", str(CASE), str(tmp_path / "x.npz"), "float32"],
        env={**os.environ, "MM_PROBE": "hidden,9", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    assert "ConfigError" in done.stderr and "MM_PROBE=hidden,9" in done.stderr


def refusal(tmp_path: Path, **variables: str) -> str:
    """Of an engine that does not open."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "ref", str(CASE), str(tmp_path / "x.npz"), "float32"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


def test_unknown_probe_is_an_error_that_names_all_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    run(tmp_path, "ref", MM_DUMP=str(folder))
    names = {f.stem.split("_", 2)[2] for f in folder.iterdir()}
    for value in ("nosuch", "attn", "hidden2,1", ",1", "embed embed"):
        text = refusal(tmp_path, MM_PROBE=value)
        assert f"ConfigError: MM_PROBE={value}: no intermediate has that name" in text
        assert names == set(text.split("there are ")[1].split(", "))


def test_probe_that_matches_nothing_says_so(tmp_path: Path) -> None:
    lines, _ = run(tmp_path, "ref", MM_PROBE="embed,1")
    (said,) = [line for line in lines if "matched nothing" in line]
    assert said.startswith("MM_PROBE=embed,1 ")
    lines, _ = run(tmp_path, "ref", MM_PROBE="embed")
    assert not [line for line in lines if "matched nothing" in line]


def test_dump_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """When the engine opens, not at its first request."""
    file = tmp_path / "file"
    file.write_text("")
    for folder, says in (
        ("/dev/null", "is no folder"),
        (str(file), "is no folder"),
        (str(tmp_path / "not" / "there"), "cannot make the folder: No such file or directory"),
        ("/proc", "no file can be made in it"),  # for nobody, root included
        ("/" + "d" * 300, "cannot make the folder: File name too long"),
    ):
        text = refusal(tmp_path, MM_DUMP=folder)
        assert f"ConfigError: MM_DUMP={folder}" in text and says in text, text
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file"]
    run(tmp_path, "ref", MM_DUMP=str(tmp_path / "good"))
    assert all(f.suffix == ".npy" for f in (tmp_path / "good").iterdir())


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MM_BACKEND", "ref cpu", "one of ref cpu cuda; correct or unset it"),
        ("MM_LOG", "debug info", "one of debug info warning error; correct or unset it"),
        ("MM_TIER", "scalar avx2", "one of scalar avx2 avx512 generic; correct or unset it"),
        ("MM_TIER", "genric", "one of scalar avx2 avx512 generic; correct or unset it"),
        ("MM_SYNC", "yes", "a number from 0 to 1"),
        ("MM_CHECK", "2", "a number from 0 to 1"),
        ("MM_PROFILE", "-1", "a number from 0 to 2"),
    ],
)
def test_a_variable_that_cannot_be_read_opens_no_engine(
    tmp_path: Path, name: str, value: str, says: str
) -> None:
    """Ignored, it would leave an engine that runs otherwise than was asked for."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "ref", str(CASE), str(tmp_path / "x.npz"), "float32"],
        env={**os.environ, name: value, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert f"ConfigError: {name}={value}: it must be {says}" in done.stderr, done.stderr[-800:]

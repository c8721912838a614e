"""python -m minimax_m31: what each command prints and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from api_models import BACKEND, GOLDEN, IDS_MODEL, ids_llm

import minimax_m31
from minimax_m31 import SamplingParams
from minimax_m31.__main__ import main
from minimax_m31.opening import NANO

HOME = str(Path(minimax_m31.__path__[0]).parent)
SMALL = ["--backend", BACKEND, "--max-model-len", "512", "--threads", "1"]


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "minimax_m31", *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={**os.environ, "PYTHONPATH": HOME},
    )


def test_info() -> None:
    done = run("info", "--json", "--model", str(GOLDEN / "m31_d128_nvfp4"))
    assert (done.returncode, done.stderr) == (0, "")
    info = json.loads(done.stdout)
    assert {"cpu", "ref", "cuda"} <= set(info["backends"])
    assert info["checkpoint"]["formats"] == "nvfp4 experts, mxfp8 linears"
    plain = run("info")
    assert plain.returncode == 0
    assert plain.stdout.startswith("minimax_m31 ")


def test_generate_by_ids(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", str(IDS_MODEL), "--ids", "1,2,3", "--temperature", "0"]
    assert main([*command, "--max-tokens", "5", "--json", *SMALL]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    output = json.loads(line)
    assert output["prompt_token_ids"] == [1, 2, 3]
    # The command's model keeps its media placeholders, so the ids are only compared up to those.
    with ids_llm(dtype="auto", hf_overrides=None, max_model_len=512) as llm:
        (same,) = llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=5))
    assert output["outputs"][0]["token_ids"] == same.outputs[0].token_ids


def test_errors_are_one_line_and_exit_code_1() -> None:
    for command in (
        ["generate", "--model", "/nonexistent", "x"],
        ["generate", "--model", str(IDS_MODEL), *SMALL, "text"],
        ["info", "--model", "/nonexistent"],
    ):
        done = run(*command)
        assert done.returncode == 1, command
        assert len(done.stderr.splitlines()) == 1
        assert "Traceback" not in done.stderr


def test_unknown_command() -> None:
    assert run("serve").returncode == 2


def test_demo_by_ids(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(GOLDEN / "m31_d128_nvfp4")
    assert main(["demo", "--model", model, "--backend", BACKEND, "--max-model-len", "1024"]) == 0
    assert "640 of 700 ids came from the cache" in capsys.readouterr().out


@pytest.mark.skipif(not (NANO / "config.json").exists(), reason="this build has no nano checkpoint")
def test_demo_by_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--max-tokens", "48"]) == 0
    assert "model: 42" in capsys.readouterr().out

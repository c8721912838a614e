"""python -m minimax_m31: what each command prints and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from api_models import BACKEND, GOLDEN, IDS_MODEL, ids_llm

import minimax_m31
from minimax_m31 import LLM, SamplingParams, demo
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


@pytest.mark.skipif(not (NANO / "config.json").is_file(), reason="no trained checkpoint")
def test_chat_puts_the_answer_on_standard_output() -> None:
    """And the thinking beside it, so that a pipe gets the answer alone."""
    greedy = ["--temperature", "0", "--thinking", "enabled", *SMALL]
    done = run("chat", "What is 17 + 25?", *greedy)
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert done.stderr.startswith("[thinking] ") and done.stderr.endswith("\n\n")
    lines = run("chat", *greedy, stdin="What is 17 + 25?\n\nWhat is 8 * 7?\n")
    assert lines.returncode == 0 and lines.stdout.splitlines()[0] == "42"
    assert len(lines.stdout.splitlines()) == 2
    plain = run("chat", "--json", "What is 17 + 25?", *greedy)
    (line,) = plain.stdout.splitlines()
    assert json.loads(line)["outputs"][0]["message"]["content"] == "42"
    many = run("chat", "-n", "3", "a", *greedy)
    assert many.returncode == 1 and "-n 3" in many.stderr


def test_a_missing_package_is_one_line() -> None:
    code = (
        "import sys; sys.modules['lm_eval'] = None; "
        "from minimax_m31.__main__ import main; sys.exit(main(['lm-eval', '--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert 'pip install "minimax-m31[lm-eval]"' in done.stderr


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


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


needs_nano = pytest.mark.skipif(
    not (NANO / "config.json").exists(), reason="this build has no nano checkpoint"
)


@needs_nano
def test_demo_by_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert "\033" not in shown  # piped: words only
    on, _, off = shown.partition("Two efforts")[0].partition("thinking='disabled'")
    assert "thinks  47*36" in on and "1692  right" in on
    assert "thinks" not in off and "says" in off
    assert shown.index("reasoning_effort='low'") < shown.index("reasoning_effort='max'")
    for part in (
        'calls  get_weather {"city": "Lisbon"}',
        'calls  get_weather {"city": "Oslo"}',
        'tool  {"sky": "cloudy", "temperature": 11}',
        "7042  right",
        "tokens were in the cache",
    ):
        assert part in shown, part
    blocks = re.search(r"attention read ([\d,]+) of ([\d,]+) held", shown)
    assert blocks is not None
    read, held = (int(n.replace(",", "")) for n in blocks.groups())
    assert 0 < read < held


@needs_nano
def test_demo_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with LLM("nano", max_model_len=1024, max_num_seqs=8, backend=BACKEND) as llm:
        demo.show_chat(llm, 300, 0.1, stream)
    shown = stream.getvalue()
    assert "\033[1mThinking\033[0m \033[1mon\033[0m" in shown
    plain = re.sub(r"\033\[\d+m", "", shown)
    assert max(map(len, plain.splitlines())) <= 60
    assert "left out: --max-model-len is too short for it" in plain


def test_screen_wraps_words() -> None:
    stream = Terminal()
    screen = demo.Screen(stream)
    screen.width, screen.colour = 40, False
    screen.label("says")
    for piece in ("one two three four ", "five six sev", "en eight nine\nten"):
        screen.write(piece)
    screen.line()
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 40 for line in lines) and lines[-1] == " " * 9 + "ten"
    assert " ".join("".join(lines).split()).startswith("says one two three four five six")

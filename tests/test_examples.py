"""The examples run as they stand, on the checkpoint of the package, and stay short."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
MOST_LINES = 60


def run_example(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def sources(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"]]


def test_generate_example() -> None:
    out = run_example("01_generate.py")
    assert re.search(r"^sample 2:", out, re.MULTILINE) and "stream: " in out


def test_chat_example() -> None:
    out = run_example("02_chat.py")
    assert re.search(r"^enabled: '.+' -> '42'$", out, re.MULTILINE)
    assert "disabled: None -> " in out
    tokens = {m[1]: int(m[2]) for m in re.finditer(r"^effort (\w+): (\d+) tokens", out, re.M)}
    assert list(tokens) == ["low", "medium", "high", "xhigh", "max"]
    assert tokens["low"] < tokens["high"] < tokens["max"]
    assert out.rstrip().endswith("Ruth"), out  # the second turn knows the first


def test_tools_example() -> None:
    out = run_example("04_tools.py")
    assert 'call: get_weather {"city": "Paris"}' in out
    assert "sunny" in out.split("answer: ")[1].splitlines()[0]
    assert [line.split(":")[0] for line in out.splitlines()[-4:]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_batch_example_resumes(tmp_path: Path) -> None:
    pytest.importorskip("llguidance")
    path = tmp_path / "answers.jsonl"
    out = run_example("05_batch.py", str(path))
    assert "0 done, 30 left" in out
    lines = path.read_text().splitlines()
    assert len(lines) == 30 and int(re.findall(r"(\d+) right", out)[0]) >= 25
    path.write_text("\n".join(lines[:12]) + "\n" + lines[12][:9])  # interrupted in a line
    out = run_example("05_batch.py", str(path))
    assert "12 done, 18 left" in out and "30 answers" in out
    assert sorted(path.read_text().splitlines()) == sorted(lines)


def test_evaluate_example() -> None:
    out = run_example("06_evaluate.py")
    assert re.search(r"^log p\('42'\) = -0\.\d+  <- greedy$", out, re.MULTILINE), out
    assert out.count("<- greedy") == 1
    assert re.search(r"^lm-eval: (exact match 1\.0|not installed: pip install .+)$", out, re.M), out


def test_rollouts_example() -> None:
    out = run_example("07_rollouts.py")
    steps = re.findall(r"^step (\d): reward ([+-][\d.]+), .* ([\d.e+-]+)$", out, re.MULTILINE)
    assert [step for step, _, _ in steps] == ["0", "1"], out
    for _, reward, ratio in steps:
        assert float(reward) > 0 and float(ratio) < 1e-4  # the trainer's log p is the sampler's


def test_long_context_example(tmp_path: Path) -> None:
    out = run_example("08_long_context.py")
    for line in ("silver rocket: 7042", "golden statue: 3318", "old clock: 9205"):
        assert line in out
    read, cached = map(int, re.findall(r"prompt tokens (\d+), from the cache (\d+)", out)[0])
    assert cached > read // 2  # two of three questions found the text in the cache
    blocks, experts = out.split("blocks of 128")[1].split("tokens of each expert")
    pictures = [re.findall(r"layer .\d \|(.*)\|", part) for part in (blocks, experts)]
    assert [len(picture) for picture in pictures] == [8, 7]
    for row in pictures[0]:  # sparse: not every block is read, the last one always is
        assert " " in row and row[-1] != " "
    assert {len(row) for row in pictures[1]} == {16}


def test_stream_notebook() -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "03_stream.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    results = [cell.get("outputs", ()) for cell in notebook.cells]
    printed = ["".join(out.get("text", "") for out in outs) for outs in results]
    values = [out["data"]["text/plain"] for outs in results for out in outs if "data" in out]
    assert any("[thinking] 17+25" in text and text.endswith("42\n") for text in printed), printed
    assert "'42'" in values


def test_notebooks_hold_no_outputs() -> None:
    found = sorted(EXAMPLES.glob("*.ipynb"))
    assert found
    for path in found:
        for cell in json.loads(path.read_text())["cells"]:
            assert not cell.get("outputs") and cell.get("execution_count") is None, path.name


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("0*")), ids=lambda p: p.name)
def test_examples_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(sources(json.loads(text)))
    assert len(text.splitlines()) <= MOST_LINES

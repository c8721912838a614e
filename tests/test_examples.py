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


def run_example(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=300
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

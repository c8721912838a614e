"""The READMEs are true: their example runs as printed, their commands and files exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "csrc/README.md", "kernels/README.md", "tests/README.md")
# Named although they need not exist in every build.
NO_PATH = {"cuda/"}  # comes with the CUDA kernels


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", page("README.md"), re.DOTALL)
SHOWN = (("42",), ("[thinking] Task: 17+25", "[calls get_weather]", '{"answer": 42}'))


@pytest.mark.parametrize("index", range(len(SHOWN)))
def test_readme_examples_run_as_printed(index: int) -> None:
    pytest.importorskip(
        "minimax_m31._core", reason="the extension is not built", exc_type=ImportError
    )
    if not (ROOT / "minimax_m31/nano/config.json").is_file():
        pytest.skip("this build has no trained checkpoint (minimax_m31/nano)")
    if "StructuredOutputsParams" in EXAMPLES[index]:
        pytest.importorskip("llguidance")
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES[index]], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for words in SHOWN[index]:
        assert words in done.stdout


def test_readme_examples_are_short() -> None:
    assert [len(example.splitlines()) <= 30 for example in EXAMPLES] == [True] * len(SHOWN)
    assert len(EXAMPLES[0].splitlines()) <= 14


def test_readme_commands_exist_and_come_first() -> None:
    first = re.findall(r"```\n(.*?)```", page("README.md"), re.DOTALL)[0]
    commands = [line.split()[0] for line in first.splitlines()]
    assert commands == [".ci/demo", ".ci/test"]
    for name in (*commands, ".ci/setup", ".ci/run", ".ci/format"):
        assert os.access(ROOT / name, os.X_OK), name
    assert '"$(dirname "$0")/test"' in page(".ci/run")


@pytest.mark.parametrize("name", PAGES)
def test_readme_names_files_that_exist(name: str) -> None:
    """Every `word` with a slash or a source suffix is a file, from the root or from the page."""
    here = (ROOT / name).parent
    words = re.findall(r"`([\w./*-]+)`", re.sub(r"```.*?```", "", page(name), flags=re.DOTALL))
    paths = {w for w in words if "/" in w or re.search(r"\.(c|h|py|md|cu|json)$", w)} - NO_PATH
    folders = (ROOT, here, *(p for p in (ROOT / "csrc").iterdir() if p.is_dir()))
    missing = [p for p in paths if not any(list(f.glob(p.rstrip("/"))) for f in folders)]
    assert missing == []

"""The API reference is what the docstrings say, and its pages name files and calls that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
ROOT = DOCS.parent
PAGES = sorted(path for path in DOCS.glob("*.md") if path.name != "README.md")


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "make_reference.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_changed_docstring_is_noticed(tmp_path: Path) -> None:
    """The check can fail: on a copy with another docstring, and with a name on no page."""
    import shutil

    for name in ("minimax_m31", "docs"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("nano", "*.so", "__pycache__"),
        )
    check = [sys.executable, str(tmp_path / "docs/make_reference.py"), "--check"]
    assert subprocess.run(check, capture_output=True).returncode == 0
    errors = tmp_path / "minimax_m31/errors.py"
    errors.write_text(errors.read_text().replace("The engine was shut down.", "It is closed."))
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 1 and "errors.md" in done.stderr
    init = tmp_path / "minimax_m31/__init__.py"
    init.write_text(init.read_text().replace("__all__ = [\n", '__all__ = [\n    "NewName",\n'))
    done = subprocess.run(check, capture_output=True, text=True)
    assert done.returncode == 1 and "NewName" in done.stderr


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_class_and_function_says_what_it_is(path: Path) -> None:
    for part in path.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        before_methods = re.sub(r"```.*?```", "", rest.split("\n### ")[0], flags=re.DOTALL)
        assert before_methods.strip(), f"{path.name}: {title} has no docstring"


def test_the_guide_names_what_exists() -> None:
    text = (DOCS / "README.md").read_text(encoding="utf-8")
    for word in re.findall(r"`((?:docs|examples)/[\w./]+)`", text):
        assert (ROOT / word).is_file(), word
    reference = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    for name in re.findall(r"`LLM\.(\w+)", text):
        assert f"### `{name}`" in reference or name == "last_partial", name
    assert {path.name for path in PAGES} == set(re.findall(r"`docs/(\w+\.md)`", text))


def test_the_table_of_tests_is_complete() -> None:
    """tests/README.md: every test named after a behaviour is in its row, and every test exists."""
    tests = ROOT / "tests"
    rows = dict(
        re.findall(r"^\| ([UAN]\d+) \| .* \| (.*) \|$", (tests / "README.md").read_text(), re.M)
    )
    later = {"U24", "U25", "U26", "A10", "A11"}
    wanted = {f"U{i:02d}" for i in range(1, 35)} | {f"A{i}" for i in range(1, 16)}
    wanted |= {f"N{i}" for i in range(1, 21)}
    assert set(rows) >= wanted - later
    sources = {path.stem: path.read_text(encoding="utf-8") for path in tests.glob("test_*.py")}
    for name, cell in rows.items():
        for file, test in re.findall(r"`(\w+)::(\w+)`", cell):
            assert f"def {test}(" in sources[file], f"{name}: {file}::{test} does not exist"
    for file, text in sources.items():
        for test, names in re.findall(r"^(?:async )?def (test_((?:[uan]\d+_)+)\w+)\(", text, re.M):
            for name in names.strip("_").upper().split("_"):
                assert f"`{file}::{test}`" in rows[name], f"add {file}::{test} to {name}"

"""The types that the package promises: mypy --strict on a user's program, and the stub of the
extension against what was built.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

TESTS = Path(__file__).resolve().parent
CONFIG = TESTS.parent / "pyproject.toml"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of mypy, on the package that this process imports (an editable install is found by
    a hook of the import system, which mypy does not ask).
    """
    spec = importlib.util.find_spec("minimax_m31")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent.parent
    env = dict(os.environ)
    if folder.name != "site-packages":
        env["MYPYPATH"] = str(folder)
    return subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, cwd=TESTS, env=env
    )


def strict(program: Path) -> subprocess.CompletedProcess[str]:
    return run("mypy", "--strict", "--config-file", str(CONFIG), str(program))


def test_a_users_program_is_accepted() -> None:
    done = strict(TESTS / "typing_sample.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_wrong_programs_are_refused(tmp_path: Path) -> None:
    """So that the check above means something: the names are not all Any."""
    wrong = {
        "text: int = llm.generate('a')[0].outputs[0].text": "Incompatible types in assignment",
        "llm.submit('a').result('soon')": "Argument 1",
        "llm.generat('a')": 'no attribute "generat"',
        "ids: list[str] = llm.generate('a')[0].outputs[0].token_ids": "Incompatible types",
        "SamplingParams(temperature='hot')": 'Argument "temperature"',
    }
    program = tmp_path / "wrong.py"
    body = "\n".join(f"    {line}" for line in wrong)
    program.write_text(
        f"from minimax_m31 import LLM, SamplingParams\n\ndef f(llm: LLM) -> None:\n{body}\n"
    )
    done = strict(program)
    assert done.returncode == 1
    for line, (text, message) in enumerate(wrong.items(), 4):
        found = [row for row in done.stdout.splitlines() if f"wrong.py:{line}:" in row]
        assert any(message in row for row in found), (text, done.stdout)


def test_the_stub_is_what_was_built() -> None:
    pytest.importorskip(
        "minimax_m31._core", reason="the extension is not built", exc_type=ImportError
    )
    allowed = str(TESTS / "stubtest_allowed.txt")
    done = run(
        "mypy.stubtest", "minimax_m31._core", "--mypy-config-file", str(CONFIG),
        "--allowlist", allowed,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

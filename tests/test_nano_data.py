"""The held-out sets of examples/nano are written again by their scripts, and training avoids them.

The scripts run in a copy of their folder: they must not need anything beside them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers")

ROOT = Path(__file__).resolve().parent.parent
NANO = ROOT / "examples" / "nano"
WORDS = Path(os.environ.get("NANO_WORDS", "/usr/share/dict/american-english-small"))
FILES = {
    "make_heldout.py": ("heldout.jsonl", 747),
    "make_free.py": ("heldout_free.jsonl", 50),
    "make_blind.py": ("heldout_blind.jsonl", 40),
    "make_fresh.py": ("heldout_fresh.jsonl", 40),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(
        NANO, tmp_path / "examples" / "nano", ignore=shutil.ignore_patterns("__pycache__")
    )
    return tmp_path / "examples" / "nano"


def python(folder: Path, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, *args], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("script", FILES)
def test_scripts_write_the_committed_files(folder: Path, script: str) -> None:
    name, count = FILES[script]
    (folder / name).write_text("")
    python(folder, script)
    assert (folder / name).read_bytes() == (NANO / name).read_bytes()
    assert len(records(folder / name)) == count


def test_a_new_draw_needs_a_folder(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "make_heldout.py", "--draw", "3"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2 and "go together" in done.stderr


def test_records_are_whole() -> None:
    seen: set[int] = set()
    for name, _ in FILES.values():
        for r in records(NANO / name):
            assert r["id"] not in seen
            seen.add(r["id"])
            tools = {t["name"]: t["parameters"] for t in r.get("tools", ())}
            for call in r["grade"].get("calls", ()):
                schema = tools[call["name"]]
                assert (
                    set(schema["required"]) <= set(call["arguments"]) <= set(schema["properties"])
                )


SAMPLE = """
import json, random
import mix
rng = random.Random(5)
names, texts, calls = set(), set(), 0
for _ in range(1500):
    c = mix.tool_conversation(rng)
    names |= {t["name"].lower().replace("_", "").replace("-", "").replace(".", "") for t in c.tools}
    schemas = {t["name"]: t["parameters"]["properties"] for t in c.tools}
    for m in c.messages:
        if m["role"] == "user":
            texts.add(m["content"])
        for call in m.get("tool_calls", ()):
            f = call["function"]
            assert set(f["arguments"]) <= set(schemas[f["name"]])
            calls += 1
print(json.dumps([sorted(names), sorted(texts), calls]))
"""


@pytest.mark.skipif(not WORDS.is_file(), reason=f"no word list {WORDS}: install wamerican-small")
def test_training_keeps_clear_of_held_out_tools() -> None:
    names, texts, calls = json.loads(python(NANO, "-B", "-c", SAMPLE))
    assert calls > 1500
    held_out = (
        r
        for name in ("heldout", "heldout_blind", "heldout_fresh")
        for r in records(NANO / f"{name}.jsonl")
    )
    for r in held_out:
        for tool in r.get("tools", ()):
            assert tool["name"].lower().replace("_", "") not in names
        for message in r.get("messages", ()):
            if "tools" in r and message["role"] == "user":
                assert message["content"] not in texts

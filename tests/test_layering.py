"""The rules that keep the layers apart, read from the sources themselves.

A file may include its own layer and what the table below allows it, never a higher one; the only
include root is the repository, so a path names the layer. Some words have one home: Python.h,
CUDA headers, getenv, stderr, inline PTX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {".c", ".h", ".cu"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)

BASE, PARTS, STEP, SEAM, MODEL, ENGINE = "base", "parts", "step", "seam", "model", "engine"
# Layer -> the layers it may include. csrc/mm.h is open to all. "step" is csrc/model/batch.h, plain
# data that everybody above base sees; "seam" is kernels/*.h.
ALLOWED = {
    "api": set(),
    BASE: {BASE},
    PARTS: {BASE, PARTS},
    STEP: {BASE},
    SEAM: {BASE, PARTS, STEP, SEAM},
    "ref": {BASE, PARTS, STEP, SEAM, "ref"},
    "cpu": {BASE, PARTS, STEP, SEAM, "ref", "cpu"},  # cpu starts as a copy of ref's table
    "cuda": {BASE, PARTS, STEP, SEAM, "cuda"},
    MODEL: {BASE, PARTS, STEP, SEAM, MODEL},
    ENGINE: {BASE, PARTS, STEP, SEAM, MODEL, ENGINE},
    "py": {"py"},
    "tests": {BASE, PARTS, STEP, SEAM, "ref", "cpu", MODEL, ENGINE, "tests"},
}
LAYER_OF_FOLDER = {
    "csrc/base": BASE,
    "csrc/text": PARTS,
    "csrc/media": PARTS,
    "csrc/model": MODEL,
    "csrc/engine": ENGINE,
    "csrc/py": "py",
    "kernels": SEAM,
    "kernels/ref": "ref",
    "kernels/cpu": "cpu",
    "kernels/cuda": "cuda",
    "tests/c": "tests",
}
LAYER_OF_FILE = {
    "csrc/mm.h": "api",
    "csrc/tensor.h": PARTS,
    "csrc/tensor.c": PARTS,
    "csrc/model/batch.h": STEP,
}
# Inline PTX; and what stands in for it where kernels are built for the emulator (tests/emu is then
# searched first).
PTX = ("kernels/cuda/ptx.h", "kernels/cuda/wgmma.h")
EMULATED = {"emu_ptx.h", "emu_launch.h"}
# Policy: these engine files hold no tensors, so they see nothing of the model or of kernels.
POLICY = ("csrc/engine/kv_pool", "csrc/engine/scheduler", "csrc/engine/request")


def files() -> list[str]:
    found = (p for top in ("csrc", "kernels", "tests/c") for p in (ROOT / top).rglob("*"))
    return sorted(p.relative_to(ROOT).as_posix() for p in found if p.suffix in SUFFIXES)


def layer(name: str) -> str:
    if name in LAYER_OF_FILE:
        return LAYER_OF_FILE[name]
    folder = name.rpartition("/")[0]
    assert folder in LAYER_OF_FOLDER, f"{name}: this folder belongs to no layer"
    return LAYER_OF_FOLDER[folder]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def code_of(name: str) -> str:
    """The text without comments and string literals, lines kept."""
    pattern = re.compile(r'"(?:\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', re.DOTALL)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text_of(name))


def includes(name: str) -> Iterator[tuple[str, bool]]:
    """(path, is it one of ours) of every include."""
    for ours, system in INCLUDE.findall(text_of(name)):
        yield (ours or system, bool(ours))


def target(name: str, path: str) -> str | None:
    """The file of the repository that `path` means, seen from `name`."""
    if (ROOT / path).is_file():
        return path
    beside = f"{name.rpartition('/')[0]}/{path}"
    return beside if (ROOT / beside).is_file() else None


@pytest.mark.parametrize("name", files())
def test_layering_includes_point_down(name: str) -> None:
    mine = layer(name)
    for path, ours in includes(name):
        if not ours or (mine == "cuda" and path in EMULATED):
            continue
        found = target(name, path)
        assert found is not None, f'{name}: #include "{path}" is no file below the repository'
        assert found == path or mine == "tests", f"{name}: write the whole path, {found}"
        if found == "csrc/mm.h":
            continue
        assert layer(found) in ALLOWED[mine], f"{name} ({mine}) may not include {found}"
        if name.startswith(POLICY):
            assert layer(found) not in (MODEL, SEAM), f"{name} knows batches, not {found}"


def test_layering_public_header_stands_alone() -> None:
    assert sorted(path for path, _ in includes("csrc/mm.h")) == ["stddef.h", "stdint.h"]


@pytest.mark.parametrize("name", files())
def test_layering_foreign_headers_stay_home(name: str) -> None:
    for path, _ in includes(name):
        if path == "Python.h" or path.startswith("numpy/"):
            at_home = name.startswith("csrc/py/") or name == "tests/c/testing_ext.c"
            assert at_home, f"{name}: Python is known in csrc/py only"
        if re.match(r"(cuda|cublas|nccl|mma\.h|cooperative_groups)", path):
            at_home = name.startswith("kernels/cuda/")
            assert at_home, f"{name}: CUDA is known in kernels/cuda only"


@pytest.mark.parametrize("name", [n for n in files() if not n.startswith("tests/")])
def test_layering_words_with_one_home(name: str) -> None:
    code = code_of(name)
    if name != "csrc/base/env.c":
        assert not re.search(r"\b(secure_)?getenv\b|\benviron\b", code), f"{name}: getenv"
    if name != "csrc/base/log.c":
        found = re.search(r"\bstderr\b|\bstdout\b|\b(v?printf|puts|putchar|perror)\s*\(", code)
        assert not found, f"{name}: {found and found.group()}: messages go through mm_log"
    if name != "csrc/base/status.c":
        found = re.search(r"(?<![.>])\b(abort|exit|_exit|quick_exit)\s*\(", code)
        assert not found, f"{name}: {found and found.group()}: failures are an mm_status"
    if name.startswith("kernels/cuda/") and name not in PTX:
        assert not re.search(r"\basm\b", code), f"{name}: inline PTX lives in {PTX}"


@pytest.mark.parametrize("name", files())
def test_layering_files_stay_small(name: str) -> None:
    n_line = text_of(name).count("\n")
    assert n_line <= 700, f"{name} has {n_line} lines: split it by concept"


def test_layering_checks_see_what_they_forbid() -> None:
    """The patterns above must not be blind: they find the words where these are allowed."""
    assert re.search(r"\bgetenv\b", code_of("csrc/base/env.c"))
    assert re.search(r"\bstderr\b", code_of("csrc/base/log.c"))
    assert re.search(r"\babort\s*\(", code_of("csrc/base/status.c"))
    assert ("csrc/base/base.h", True) in set(includes("csrc/base/status.c"))
    assert MODEL not in ALLOWED[SEAM] and ENGINE not in ALLOWED[MODEL]

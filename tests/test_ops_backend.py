"""Opening backends, their memory, and that the tests see the structs that the compiler sees."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from c_structs import TYPES
from op_driver import BACKENDS, Machine, _testing, backend, shape


def test_structs_have_the_compilers_sizes() -> None:
    sizes = _testing.sizes()
    assert len(sizes) == 14
    assert {name: ctypes.sizeof(TYPES[name]) for name in sizes} == sizes


def test_open_unknown_backend_says_what_exists() -> None:
    with pytest.raises(
        RuntimeError, match='config: backend="tpu": it must be "auto", "cuda", "cpu" or "ref"'
    ):
        _testing.open("tpu")


def test_backend_list_names_all_with_a_reason() -> None:
    lines = {name: (usable, text) for name, usable, text in _testing.backends()}
    assert list(lines) == ["cuda", "cpu", "ref"]
    assert lines["ref"][0] == 1 and "scalar" in lines["ref"][1]
    assert all(text for _, text in lines.values())


def run_python(code: str, **env: str | None) -> str:
    """Output of a program in this environment with some variables changed (None: unset)."""
    paths = os.pathsep.join(p for p in sys.path if p)
    changed: dict[str, str | None] = {**os.environ, "PYTHONPATH": paths, **env}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={k: v for k, v in changed.items() if v is not None},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


OPEN_CUDA = """
import importlib.util
spec = importlib.util.spec_from_file_location("minimax_m31._testing", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    print(module.props(module.open({name!r}))["name"])
except RuntimeError as e:
    print(e)
"""


def test_cuda_library_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "no.so")
    text = run_python(OPEN_CUDA.format(path=_testing.__file__, name="cuda"), MM_CUDA_SO=missing)
    assert text.startswith("unsupported:") and f"MM_CUDA_SO={missing} cannot be read" in text


def test_cuda_library_of_something_else_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "libother.so"
    source = tmp_path / "other.c"
    source.write_text("int other(void) { return 1; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(other), str(source)], check=True)
    text = run_python(OPEN_CUDA.format(path=_testing.__file__, name="cuda"), MM_CUDA_SO=str(other))
    assert text.startswith("unsupported:") and "does not export mm_cuda_backend" in text
    assert f"MM_CUDA_SO={other} " in text and "unset it" in text
    for junk in ("junk", "junk" * 100):
        source.write_text(junk)
        text = run_python(
            OPEN_CUDA.format(path=_testing.__file__, name="cuda"), MM_CUDA_SO=str(source)
        )
        assert f"MM_CUDA_SO={source} is no shared library" in text


def test_cuda_library_whose_path_is_too_long_is_not_forgotten() -> None:
    long = "/" + "a" * 1023
    text = run_python(OPEN_CUDA.format(path=_testing.__file__, name="cuda"), MM_CUDA_SO=long)
    assert "MM_CUDA_SO is longer than 1023 characters" in text


def test_missing_cuda_library_says_how_to_build_it(tmp_path: Path) -> None:
    """A copy of the extension alone in a folder has no library beside it."""
    copy = tmp_path / "_testing.so"
    copy.write_bytes(Path(_testing.__file__).read_bytes())
    text = run_python(OPEN_CUDA.format(path=str(copy), name="cuda"), MM_CUDA_SO=None)
    assert (
        "no CUDA library was built" in text
        and "MM_CUDA=1 pip install" in text
        and str(tmp_path) in text
    )


def test_auto_follows_the_variable(tmp_path: Path) -> None:
    code = OPEN_CUDA.format(path=_testing.__file__, name="auto")
    assert run_python(code, MM_BACKEND="ref").strip() == "ref"
    text = run_python(code, MM_BACKEND="cuda", MM_CUDA_SO=str(tmp_path / "no.so"))
    assert text.startswith('unsupported: MM_BACKEND=cuda: backend "cuda": MM_CUDA_SO=')


@pytest.mark.skipif(
    not any(n == "cpu" and ok for n, ok, _ in _testing.backends()),
    reason="no cpu backend in this build",
)
def test_auto_falls_back_to_cpu(tmp_path: Path) -> None:
    """Where no library was built; not where one was named that cannot be used."""
    copy = tmp_path / "_testing.so"
    copy.write_bytes(Path(_testing.__file__).read_bytes())
    code = OPEN_CUDA.format(path=str(copy), name="auto")
    assert run_python(code, MM_CUDA_SO=None, MM_BACKEND=None).strip() == "cpu"
    missing = str(tmp_path / "no.so")
    assert f"MM_CUDA_SO={missing} cannot be read" in run_python(code, MM_CUDA_SO=missing)


@pytest.mark.parametrize("name", BACKENDS)
def test_backend_memory_is_zeroed_and_aligned(name: str) -> None:
    with Machine(name, shape()) as m:
        buffers = [m.new((n,), np.uint8) for n in (1, 255, 256, 70_000)]
        assert all(b.address % 256 == 0 for b in buffers)
        assert not any(m.get(b).any() for b in buffers)
        m.put(np.full(70_000, 3, np.uint8))
    assert _testing.props(backend(name))["name"] == name


def test_backend_out_of_memory_says_how_much() -> None:
    with pytest.raises(RuntimeError, match=r"nomem: .*4611686018427387904 bytes.* free"):
        _testing.alloc(backend("ref"), 2**62)

"""The build itself: what setup.py takes as sources, what its switches do, what the binary needs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """setup.py as a module; it builds only when it is the program."""
    spec = importlib.util.spec_from_file_location("mm_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_build_takes_every_source_of_the_core(build: ModuleType) -> None:
    names = set(build.core_sources())
    for path in (ROOT / "csrc").rglob("*.c"):
        name = path.relative_to(ROOT).as_posix()
        assert (name in names) == (not name.startswith("csrc/py/")), name
    for folder in ("kernels", "kernels/ref", "kernels/cpu"):
        for path in (ROOT / folder).glob("*.c"):
            assert path.relative_to(ROOT).as_posix() in names
    assert not any(name.startswith(("tests/", "kernels/cuda/")) for name in names)


def test_build_lists_no_file_by_name() -> None:
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 200
    assert set(re.findall(r'"[\w/]+/\w+\.cu?"', text)) <= {'"tests/c/testing_ext.c"'}


def test_build_mm_cuda_switch(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MM_CUDA", "0")
    assert build.find_nvcc() is None
    monkeypatch.setenv("MM_CUDA", "yes")
    with pytest.raises(SystemExit, match="MM_CUDA=yes: it must be auto, 0 or 1"):
        build.find_nvcc()


def test_build_says_why_there_is_no_cuda_library(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CUDA_HOME", "/nonexistent")  # given: the only place besides PATH
    monkeypatch.setenv("MM_CUDA", "auto")
    assert build.find_nvcc() is None
    assert capsys.readouterr().out.count("\n") == 1
    monkeypatch.setenv("MM_CUDA", "1")
    with pytest.raises(SystemExit, match="MM_CUDA=1, but nvcc was not found"):
        build.find_nvcc()


def test_build_objects_follow_their_headers(build: ModuleType, tmp_path: Path) -> None:
    obj, deps, header = tmp_path / "a.o", tmp_path / "a.d", tmp_path / "a.h"
    assert not build.is_current(obj)
    header.write_text("")
    obj.write_text("")
    deps.write_text(f"{obj}: \\\n {header}\n")
    os.utime(header, (1000, 1000))
    os.utime(obj, (2000, 2000))
    assert build.is_current(obj)
    os.utime(header, (3000, 3000))
    assert not build.is_current(obj)
    header.unlink()
    assert not build.is_current(obj)


def extension() -> Path:
    core = pytest.importorskip(
        "minimax_m31._core", reason="the extension is not built", exc_type=ImportError
    )
    return Path(core.__file__)


def tool(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip(f"{command[0]} (binutils) is not installed")


def test_build_extension_needs_the_c_library_only() -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", tool("readelf", "-d", str(extension()))))
    sanitizers = {n for n in needed if re.match(r"lib(a|t|ub)san\.", n)}
    allowed = re.compile(r"(libc|libm|libdl|libpthread|ld-linux-[\w-]+)\.so\.\d")
    assert {n for n in needed - sanitizers if not allowed.fullmatch(n)} == set()


def test_build_extension_exports_its_init_function_only() -> None:
    defined = tool("nm", "-D", "--defined-only", str(extension())).split("\n")
    names = {line.split()[-1] for line in defined if line and not line.split()[-1].startswith("_")}
    assert names == {"PyInit__core"}


def test_build_cuda_library_needs_the_c_library_only_and_exports_one_function() -> None:
    path = extension().with_name("libmm_cuda.so")
    if not path.exists():
        pytest.skip("no CUDA library was built")
    needed = set(re.findall(r"\(NEEDED\).*\[(.+?)\]", tool("readelf", "-d", str(path))))
    allowed = re.compile(r"(libc|libm|libdl|librt|libpthread|ld-linux-[\w-]+)\.so\.\d")
    assert {n for n in needed if not allowed.fullmatch(n)} == set()
    defined = tool("nm", "-D", "--defined-only", str(path)).split("\n")
    assert {line.split()[-1] for line in defined if line} == {"mm_cuda_backend"}


def test_build_import_starts_no_gpu_and_no_thread() -> None:
    extension()
    code = (
        "import threading, minimax_m31\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libcuda' not in maps and 'libmm_cuda' not in maps, maps\n"
        "assert threading.active_count() == 1\n"
        "import os; assert len(os.listdir('/proc/self/task')) == 1, os.listdir('/proc/self/task')\n"
    )
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # NumPy's own pool is not ours to count
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env=env)

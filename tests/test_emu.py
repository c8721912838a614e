"""The emulator of tests/emu: what it computes, and that it notices what it says it notices."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLAGS = "-std=c++17 -O1 -g -ffp-contract=off -fno-strict-aliasing -DMM_EMU=1 -Itests/emu -I. -x c++"
FLAGS += " -Werror -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-parameter -Wno-unused-function"
SOURCES = [
    "tests/emu/selftest.cu",
    "tests/emu/emu.cpp",
    "tests/emu/emu_copy.cpp",
    "tests/emu/emu_host.cpp",
]


@pytest.fixture(scope="module")
def selftest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cxx = os.environ.get("CXX") or "g++"
    if shutil.which(cxx) is None or os.uname().machine != "x86_64":
        pytest.skip("the emulator needs g++ and x86-64")
    out = tmp_path_factory.mktemp("emu") / "selftest"
    command = [cxx, *FLAGS.split(), "-include", "cuda_runtime.h", *SOURCES, "-o", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def run(program: Path, *args: str, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(program), *args], env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("seed", ["", "1", "2", "3"])
def test_emulator_computes_what_loops_compute(selftest: Path, seed: str) -> None:
    assert run(selftest, EMU_SEED=seed) == (0, "ok\n")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("stuck", "no thread can go on"),
        ("no_pdl", "no thread called mm_pdl_wait"),
        ("bounds", "segmentation fault at address"),
        ("counter", "counter 2 is 1 after the kernel"),
        ("early", "s[4 * threadIdx.x] == in[4 * threadIdx.x]"),
        ("mbarrier", "no mbarrier was initialised"),
        ("lanes", "mma by lanes 0000ffff"),
        ("align", "is not a multiple of 16"),
        ("cluster", "barrier of the cluster: ffffffff"),
    ],
)
def test_emulator_notices(selftest: Path, how: str, says: str) -> None:
    code, text = run(selftest, how)
    assert code != 0 and says in text and "kernel wrong, block (0, 0, 0)" in text, text


def test_emulator_says_what_a_stuck_block_waits_for(selftest: Path) -> None:
    _, text = run(selftest, "stuck")
    assert "warp  0: running lanes ffffffff, barrier 0: ffffffff" in text
    assert "warp  1: running lanes ffffffff, __shfl_sync of mask ffffffff: 00000100 arrived" in text

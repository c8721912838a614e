"""What all tests share: GPU tests are skipped, with the reason, where no GPU can be used."""

from __future__ import annotations

import functools
import signal

import pytest

# A shell starts background jobs with Ctrl-C ignored, and Python then installs no handler for it.
# The tests of interrupts need it, in this process and in those it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@functools.cache
def cuda_problem() -> str | None:
    """Why CUDA cannot be used here; None when it can."""
    try:
        from minimax_m31 import _core
    except ImportError as e:
        return f"the extension is not built: {e}"
    for name, usable, text in _core.backends():
        if name == "cuda" and usable and "emulated" in text:
            return "MM_CUDA_SO names the emulated library"
        if name == "cuda":
            return None if usable else text
    return "this build has no cuda backend"


@functools.cache
def gpu_count() -> int:
    """GPUs that the driver shows to this process."""
    import subprocess

    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "gpu" not in item.keywords and "multigpu" not in item.keywords:
            continue
        problem = cuda_problem()
        if problem is None and "multigpu" in item.keywords and gpu_count() < 2:
            problem = f"two GPUs are needed, {gpu_count()} found"
        if problem is not None:
            item.add_marker(pytest.mark.skip(reason=f"no GPU: {problem}"))

"""What this build and this machine are: for `info`,
and for reports of problems. Opens no device."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from . import __version__, _core
from .diagnostics import variables


def build_info() -> dict[str, Any]:
    """Versions of the package and of its parts."""
    folder = Path(__file__).resolve().parent
    return {
        "version": __version__,
        "abi": _core.ABI,
        "page": _core.PAGE,
        "cuda_library": (folder / "libmm_cuda.so").is_file(),
        "nano": (folder / "nano" / "config.json").is_file(),
    }


def cuda_available(probe: bool = False) -> bool:
    """True when a CUDA engine could be opened. Without `probe`: whether the library was built into
    this package.
    """
    if not probe:
        return bool(build_info()["cuda_library"])
    return any(name == "cuda" and usable for name, usable, _ in _core.backends())


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def collect_env() -> dict[str, Any]:
    """Everything a report of a problem should hold."""
    return {
        **build_info(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "backends": {name: text for name, _, text in _core.backends()},
        "packages": {
            name: _version(name)
            for name in ("numpy", "tokenizers", "jinja2", "tqdm", "pillow", "llguidance")
        },
        "variables": variables(),
        "variable_problems": [text for _, text, _ in _core.env_problems()],
    }

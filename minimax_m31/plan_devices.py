"""Where an engine may run: the devices that a plan knows by name, and sizes written as text.

Bytes are what a driver reports to programs (less than what is printed on the box), rounded down;
a device that is here is asked itself. `cc` decides the caches' default format, as in an engine.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from typing import Any

from .errors import ConfigError
from .suggest import nearest

GIB = 1 << 30
CONTEXT = 640 << 20  # a process on a device: context, modules, the library's own memory


@dataclass(frozen=True)
class Device:
    """One device, real or imagined. `kind`: "cuda" or "host"."""

    name: str
    kind: str
    memory_total: int
    memory_free: int
    cc: int = 90  # compute capability, 90 = 9.0
    is_here: bool = False


# name: (GiB that programs see, compute capability)
_KNOWN = {
    "A100-40GB": (39.3, 80),
    "A100": (79.1, 80),
    "H100": (79.1, 90),
    "H100-NVL": (93.0, 90),
    "H200": (139.7, 90),
    "H20": (95.0, 90),
    "GH200": (94.5, 90),
    "B200": (178.3, 100),
    "GB200": (184.0, 100),
    "B300": (267.0, 103),
    "GB300": (275.0, 103),
    "L4": (22.0, 89),
    "L40S": (44.3, 89),
    "RTX 3090": (23.5, 86),
    "RTX 4090": (23.5, 89),
    "RTX 5090": (31.3, 120),
    "RTX A6000": (47.3, 86),
    "RTX 6000 Ada": (47.3, 89),
    "RTX PRO 6000": (94.9, 120),
}
_ALIASES = {"H100-80GB": "H100", "A100-80GB": "A100", "4090": "RTX 4090", "5090": "RTX 5090",
            "3090": "RTX 3090", "A6000": "RTX A6000", "H200-SXM": "H200", "H100-SXM": "H100",
            "H100-SXM5": "H100", "RTX 6000 PRO": "RTX PRO 6000"}  # fmt: skip
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
          "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}  # fmt: skip


def known_devices() -> list[str]:
    return sorted(_KNOWN)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+|nvidia|geforce", "", name.lower())


def parse_size(value: Any, what: str) -> int:
    """Bytes of 80_000_000_000, "80GB", "74.5 GiB"."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
        if found is None or found[2].lower() not in _UNITS:
            raise ConfigError(
                f"{what}={value!r}: a number of bytes, or text such as '80GB' or '74.5GiB' is "
                "needed"
            )
        size = float(found[1]) * _UNITS[found[2].lower()]
        number = int(size) if math.isfinite(size) else 0
    else:
        try:
            number = operator.index(value)
        except TypeError:
            number = int(value) if isinstance(value, float) and math.isfinite(value) else 0
        if isinstance(value, bool):
            number = 0
    if not 0 < number < 1 << 60:
        raise ConfigError(f"{what}={value!r}: a positive number of bytes below 2**60 is needed")
    return number


def split_count(gpu: Any) -> tuple[Any, int | None]:
    """The text 8x H200 as ("H200", 8)."""
    if isinstance(gpu, str):
        found = re.fullmatch(r"\s*(\d+)\s*[x\u00d7*]\s*(.+)", gpu)
        if found is not None:
            return found[2].strip(), int(found[1])
    return gpu, None


def device_of(gpu: Any) -> Device:
    """A device by name ("H200") or by its bytes (80e9, "80GB")."""
    if isinstance(gpu, Device):
        return gpu
    if isinstance(gpu, str):
        names = {_plain(name): name for name in _KNOWN}
        names |= {_plain(alias): name for alias, name in _ALIASES.items()}
        name = names.get(_plain(gpu))
        if name is not None:
            size, cc = _KNOWN[name]
            total = int(size * GIB)
            return Device(name, "cuda", total, total - CONTEXT, cc)
        if not re.match(r"\s*\d", gpu):
            near = nearest(gpu, [*_KNOWN, *_ALIASES, "cpu"])
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
            raise ConfigError(
                f"gpu={gpu!r}: no device of this name is known{hint} Known: "
                f"{', '.join(known_devices())}, 'cpu'; or give its memory: gpu='80GB'"
            )
    total = parse_size(gpu, "gpu")
    if total < 1 << 30:
        raise ConfigError(
            f"gpu={gpu!r}: {total} bytes are less than a GiB: give the memory in bytes, or as "
            f"text: gpu='{total}GB'"
        )
    return Device(f"{total / 1e9:.1f} GB device", "cuda", total, total - CONTEXT)

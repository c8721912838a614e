"""Headers of safetensors files. Only headers are read here: the core maps the files.

A file is 8 bytes (length N of the header, little endian), N bytes of JSON, then data. The format
allows no holes: sorted by offset, every tensor begins where the one before it ends, and the last
ends where the file does.
"""

from __future__ import annotations

import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .strict_json import parse_object

MAX_HEADER = 100_000_000
MAX_RANK = 5

# bits of an element
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file; `offset` counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


def read_header(path: str | Path) -> list[Tensor]:
    """All tensors of the file in order of offset. ConfigError lists all that is wrong with it."""
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        raise ConfigError(f"{path}: not a regular file")
    size = info.st_size
    if size < 8:
        raise ConfigError(
            f"{path}: {size} bytes, too short for a safetensors file: truncated, fetch it again"
        )
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        if n > MAX_HEADER:
            raise ConfigError(
                f"{path}: header of {n} bytes, more than {MAX_HEADER}: not a safetensors file"
            )
        if n < 2 or 8 + n > size:
            raise ConfigError(
                f"{path}: header of {n} bytes in a file of {size}: truncated, fetch it again"
            )
        text = f.read(n)
    if not text.startswith(b"{"):
        raise ConfigError(f"{path}: the header does not begin with '{{': not a safetensors file")
    header = parse_object(text, f"{path}: header")
    problems: list[str] = []
    tensors = _tensors(header, 8 + n, problems)
    if not problems:
        _check_extent(tensors, 8 + n, size, problems)
    if problems:
        raise ConfigError(_report(str(path), problems))
    return tensors


def _report(what: str, problems: list[str], limit: int = 20) -> str:
    lines = problems[:limit]
    if len(problems) > limit:
        lines.append(f"and {len(problems) - limit} more")
    return f"{what}: " + "\n  ".join(lines)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _tensors(header: dict[str, Any], start: int, problems: list[str]) -> list[Tensor]:
    out: list[Tensor] = []
    for name, entry in header.items():
        if name == "__metadata__":
            if not isinstance(entry, dict) or not all(isinstance(v, str) for v in entry.values()):
                problems.append("__metadata__ is not a map from text to text")
            continue
        tensor = _tensor(name, entry, start, problems)
        if tensor is not None:
            out.append(tensor)
    out.sort(key=lambda t: (t.offset, t.n_bytes))
    return out


def _tensor(name: str, entry: Any, start: int, problems: list[str]) -> Tensor | None:
    if not name or len(name) > 512 or "\0" in name or not _encodable(name):
        problems.append(f"tensor name {name[:80]!r} is not usable")
        return None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        problems.append(f"{name}: expected exactly dtype, shape and data_offsets")
        return None
    dtype, shape, span = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        problems.append(f"{name}: unknown dtype {str(dtype)[:40]!r}")
        return None
    if not isinstance(shape, list) or len(shape) > MAX_RANK or not all(_is_count(d) for d in shape):
        problems.append(
            f"{name}: shape {str(shape)[:80]} is not a list of at most {MAX_RANK} counts"
        )
        return None
    if (
        not isinstance(span, list)
        or len(span) != 2
        or not all(_is_count(d) for d in span)
        or span[0] > span[1]
    ):
        problems.append(f"{name}: data_offsets {str(span)[:80]} are not [begin, end]")
        return None
    want = DTYPE_BITS[dtype] // 8
    for d in shape:
        want *= d
    if want != span[1] - span[0]:
        problems.append(f"{name}: {span[1] - span[0]} bytes, expected {want} for {dtype} {shape}")
        return None
    if start + span[1] >= 2**63:
        problems.append(f"{name}: data_offsets {span} are beyond any file")
        return None
    return Tensor(name, dtype, tuple(shape), start + span[0], want)


def _encodable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # lone surrogates come through JSON escapes
        return False
    return True


def _check_extent(tensors: list[Tensor], start: int, size: int, problems: list[str]) -> None:
    end, before = start, "the header"
    for t in tensors:
        if t.offset < end:
            problems.append(
                f"{t.name} overlaps {before}: begins at byte {t.offset}, expected {end}"
            )
        elif t.offset > end:
            problems.append(f"hole of {t.offset - end} bytes between {before} and {t.name}")
        end, before = max(end, t.offset + t.n_bytes), t.name
    if end > size:
        problems.append(
            f"{before} ends at byte {end} of a file of {size}: truncated, fetch it again"
        )
    elif end < size:
        problems.append(f"{size - end} bytes after the last tensor {before}")

"""The structs of the seams as ctypes classes, read from the C headers themselves, so that a changed
field is a changed field here. Only what plain data needs: scalars, enums, pointers, fixed arrays,
nested structs; a struct with function pointers is skipped. test_ops_backend.py compares the sizes
with the compiler's."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADERS = ("csrc/mm.h", "csrc/tensor.h", "csrc/model/batch.h", "kernels/ops.h")

SCALARS: dict[str, Any] = {
    "int8_t": ctypes.c_int8,
    "uint8_t": ctypes.c_uint8,
    "int16_t": ctypes.c_int16,
    "uint16_t": ctypes.c_uint16,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "bool": ctypes.c_bool,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
}


def strip(text: str) -> str:
    """Without comments and preprocessor lines (continued ones included)."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    text = re.sub(r"//[^\n]*", " ", text)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)


def constants(text: str) -> dict[str, int]:
    """Macros and enumerators with plain integer values."""
    macro = r"#define (MM_\w+)[ \\\n]+(0x[0-9a-fA-F]+|\d+)\b"  # or on the next line
    found = {n: int(v, 0) for n, v in re.findall(macro, text)}
    for body in re.findall(r"\benum\b[^{;]*\{(.*?)\}", strip(text), flags=re.S):
        value = -1
        for item in filter(None, (part.strip() for part in body.split(","))):
            name, _, given = (part.strip() for part in item.partition("="))
            value = int(given, 0) if given else value + 1
            found[name] = value
    return found


def declarators(line: str, types: dict[str, Any], known: dict[str, int]) -> list[tuple[str, Any]]:
    """`const T *a, *b` or `T c[4], d`: field names with their ctypes."""
    match = re.match(r"(?:const\s+)?(?:struct\s+)?(\w+)\b(?:\s+const)?\s*(.*)$", line.strip(), re.S)
    assert match, line
    base, rest = match.groups()
    fields = []
    for part in rest.split(","):
        name = re.search(r"(\w+)\s*((?:\[[^\]]*\])*)\s*$", part)
        assert name, line
        kind = ctypes.c_void_p if "*" in part or base not in types else types[base]
        assert "*" in part or base in types, f"unknown type in: {line}"
        for size in reversed(re.findall(r"\[([^\]]*)\]", name[2])):
            kind = kind * eval(size, {}, known)
        fields.append((name[1], kind))
    return fields


def load() -> tuple[dict[str, Any], dict[str, int]]:
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in HEADERS)
    known = constants(text)
    types = dict(SCALARS)
    plain = strip(text)
    for name in re.findall(r"\}\s*(mm_\w+)\s*;", plain) + re.findall(r"enum\s+(mm_\w+)", plain):
        types.setdefault(name, ctypes.c_int32)  # enums; structs are replaced below, in order
    for name, body in re.findall(r"\bstruct\s+(mm_\w+)\s*\{([^{}]*)\}", plain):
        types.pop(name, None)
        if "(*" in body:
            continue
        fields = [
            f for line in body.split(";") if line.strip() for f in declarators(line, types, known)
        ]
        types[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    return types, known


TYPES, CONSTANTS = load()


def make(name: str, **values: Any) -> Any:
    """A struct with these fields set; what is not named is zero. Arrays take lists."""
    out = TYPES[name]()
    for key, value in values.items():
        assert hasattr(out, key), f"{name} has no field {key}"
        if isinstance(value, list):
            getattr(out, key)[: len(value)] = value
        else:
            setattr(out, key, value)
    return out

"""Number formats, bit for bit, against tests/golden/fp_formats.json: every vector of every group.

The C functions are reached through the small program tests/c/tool_formats.c, built here.
"""

from __future__ import annotations

import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
VECTORS: list[dict[str, Any]] = json.loads(
    (ROOT / "tests/golden/fp_formats.json").read_text(encoding="utf-8")
)["vectors"]
GROUPS = {
    "e2m1_encode": 18,
    "e4m3_encode": 22,
    "e4m3_decode": 12,
    "e8m0_decode": 7,
    "e8m0_encode": 9,
    "bf16_encode": 10,
    "kv4_quantize_block": 8,
    "nvfp4_quantize_block": 5,
    "mxfp8_quantize_block": 12,
    "nvfp4_to_e4m3_table": 1,
    "swizzle_128x4_offset": 1,
    "v_scale_swizzle_offset": 1,
    "e2m1_pack": 1,
}


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program; -ffp-contract=off as in every build of the core."""
    program = tmp_path_factory.mktemp("formats") / "tool_formats"
    source = ROOT / "tests/c/tool_formats.c"
    flags = ["-std=gnu2x", "-O2", "-ffp-contract=off", "-Wall", "-Werror", f"-I{ROOT}"]
    subprocess.run(["cc", *flags, str(source), "-o", str(program), "-lm"], check=True)
    return program


def ask(tool: Path, op: str, words: list[list[int]]) -> list[list[str]]:
    """One answer (its words) per list of words."""
    text = "".join(f"{op} {' '.join(f'{w:x}' for w in line)}\n" for line in words)
    done = subprocess.run([tool], input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1:]
    return [line.split() for line in done.stdout.splitlines()]


def bits(number: dict[str, str]) -> int:
    return int(number["bits"], 16)


def same_f32(got: str, want: int) -> bool:
    """Equal bits; any NaN equals any NaN (their payload is no part of a format)."""
    value = int(got, 16)
    is_nan = (value & 0x7FFFFFFF) > 0x7F800000, (want & 0x7FFFFFFF) > 0x7F800000
    return is_nan == (True, True) or value == want


def f32_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def check_floats(got: list[str], want: list[dict[str, str]]) -> None:
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert same_f32(g, bits(w)), f"element {i}: {g}, expected {w}"


def check_block(answer: list[str], v: dict[str, Any], scale: int, codes: str) -> None:
    assert int(answer[0], 16) == scale
    assert answer[1] == codes
    check_floats(answer[2:], v["dequantized"])


def check_vector(tool: Path, v: dict[str, Any]) -> None:
    op = v["op"]
    if op == "e2m1_encode":
        code, value = ask(tool, op, [[bits(v["in"])]])[0]
        assert int(code, 16) == int(v["code"], 16)
        assert same_f32(value, f32_bits(v["value"]))
    elif op == "e4m3_encode":  # the non-saturating column is a cast that nothing here uses
        assert ask(tool, op, [[bits(v["in"])]]) == [[v["satfinite"][2:]]]
    elif op in ("e4m3_decode", "e8m0_decode"):
        byte = int(v["code"], 16) if isinstance(v["code"], str) else int(v["code"])
        check_floats(ask(tool, op, [[byte]])[0], [v["value"]])
    elif op == "e8m0_encode":
        assert [int(w, 16) for w in ask(tool, op, [[bits(v["in"])]])[0]] == [v["ceil"], v["floor"]]
    elif op == "bf16_encode":
        assert ask(tool, op, [[bits(v["in"])]]) == [[v["code"][2:]]]
    elif op == "kv4_quantize_block":
        answer = ask(tool, op, [[bits(x) for x in v["in"]]])[0]
        check_block(answer, v, int(v["scale"], 16), v["packed"])
        check_operands(tool, bytes.fromhex(v["packed"]), int(v["scale"], 16), v["as_e4m3"])
    elif op == "nvfp4_quantize_block":
        words = [bits(v["global_decode_scale"]), *(bits(x) for x in v["in"])]
        check_block(ask(tool, op, [words])[0], v, int(v["scale"], 16), v["packed"])
    elif op == "mxfp8_quantize_block":
        words = [{"ceil": 0, "ocp": 1}[v["rule"]], *(bits(x) for x in v["in"])]
        check_block(ask(tool, op, [words])[0], v, v["scale"], v["codes"])
    elif op == "nvfp4_to_e4m3_table":
        assert len(v["rows"]) == 127
        for scale, row in v["rows"].items():
            packed = bytes(range(0x10, 0x100, 0x22))  # 0x10 0x32 ... : codes 0, 1, 2, ... 15
            check_operands(tool, packed, int(scale, 16), row)
    elif op in ("swizzle_128x4_offset", "v_scale_swizzle_offset"):
        size = v["columns"] if op == "swizzle_128x4_offset" else v["groups"]
        for a, b, offset in v["cases"]:
            assert [int(w, 16) for w in ask(tool, op, [[a, b, size]])[0]] == [offset]
    elif op == "e2m1_pack":
        assert ask(tool, op, [[int(c, 16) for c in v["codes"]]]) == [[v["packed"]]]
    else:
        raise AssertionError(f"no check for {op}")


def check_operands(tool: Path, packed: bytes, scale: int, as_e4m3: str) -> None:
    """kv4_operand of all 16 codes equals the e4m3 codes of the table, decoded."""
    codes = [c for byte in packed for c in (byte & 15, byte >> 4)]
    got = ask(tool, "kv4_operand", [[code, scale] for code in codes])
    want = ask(tool, "e4m3_decode", [[c] for c in bytes.fromhex(as_e4m3)])
    assert got == want


def test_formats_golden_file_is_complete() -> None:
    counted = {op: sum(v["op"] == op for v in VECTORS) for op in {v["op"] for v in VECTORS}}
    assert counted == GROUPS


@pytest.mark.parametrize("op", GROUPS)
def test_formats_match_golden(tool: Path, op: str) -> None:
    for v in VECTORS:
        if v["op"] == op:
            check_vector(tool, v)

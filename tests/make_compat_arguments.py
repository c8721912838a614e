"""Makes minimax_m31/compat/vllm/arguments.json, the table behind the drop-in, from
golden/vllm_arguments.json (every argument of vLLM's public offline calls, with a verdict).

    python tests/make_compat_arguments.py           writes it
    python tests/make_compat_arguments.py --check   exits 1 when it is not what this would write

The golden file says in words which values are accepted beside the default (`also`) and names some
defaults by the expression that makes them; here both become values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden" / "vllm_arguments.json"
TABLE = HERE.parent / "minimax_m31" / "compat" / "vllm" / "arguments.json"
CALLS = {"LLM(**kwargs) = EngineArgs": "EngineArgs"}  # names of the groups that change

# `also` in words -> {"values": accepted ones} or {"keys": key -> accepted values, null: any}.
ALSO: dict[str, dict[str, Any]] = {
    '"auto", "generate"': {"values": ["generate"]},
    '"auto", "none"': {"values": ["none"]},
    '"auto", "hf"': {"values": ["hf"]},
    '"auto", "openai"': {"values": ["openai"]},
    '"auto"': {},
    "1": {},
    '{"backend": "auto" | "guidance"}': {"keys": {"backend": ["auto", "guidance"]}},
    '{"indexer_kv_dtype": ...}': {"keys": {"indexer_kv_dtype": None}},
    '{"cudagraph_capture_sizes": [...]}': {"keys": {"cudagraph_capture_sizes": None}},
    '"mp", "uni" (no effect), "external_launcher"': {"values": ["mp", "uni", "external_launcher"]},
    "truncate_prompt_tokens, truncation_side, add_special_tokens=False": {
        "keys": {
            "truncate_prompt_tokens": None,
            "truncation_side": None,
            "add_special_tokens": [False],
        }
    },
}
# Defaults that are expressions: the plain values that mean the same.
EXPRESSIONS: dict[str, list[Any]] = {
    "OptimizationLevel.O2": [2],
    "MambaBackendEnum.TRITON": ["triton"],
    "lambda: ['original/**/*']()": [["original/**/*"]],
    "MultiModalDummyOptions()": [{}],
    "DEFAULT_SAFETENSORS_PREFETCH_NUM_THREADS": [],
    "DEFAULT_SAFETENSORS_PREFETCH_BLOCK_SIZE": [],
    "RequestOutputKind.CUMULATIVE": [],
    "required": [],
}
# Values that ask for nothing else than what this engine is, and that trainers write.
NOTHING_ELSE = {"model_impl": ["vllm"]}


def entry_of(call: str, name: str, told: dict[str, Any]) -> dict[str, Any]:
    unknown = set(told) - {"default", "verdict", "also", "why", "note"}
    if unknown:
        raise SystemExit(f"{call}.{name}: the golden file has new fields {sorted(unknown)}")
    entry: dict[str, Any] = {"default": told["default"], "verdict": told["verdict"]}
    values: list[Any] = []
    default = told["default"]
    is_config = isinstance(default, str) and default.endswith("Config()")
    if is_config or (isinstance(default, str) and default in EXPRESSIONS):
        entry["default"] = None
        if default == "required":
            entry["required"] = True
        values += [] if is_config else EXPRESSIONS[default]
    also = ALSO[told["also"]] if "also" in told else {}
    values += also.get("values", [])
    values += NOTHING_ELSE.get(name, [])
    if values and told["verdict"] == "default":
        entry["values"] = values
    if "keys" in also:
        entry["keys"] = also["keys"]
    if str(told.get("note", "")).startswith("any value, no effect"):
        entry["ignored"] = True
    if "why" in told:
        entry["why"] = told["why"]
    return entry


def made() -> str:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    groups = []
    for call, arguments in golden["arguments"].items():
        name = CALLS.get(call, call)
        lines = [
            f"  {json.dumps(argument)}: {json.dumps(entry_of(name, argument, told))}"
            for argument, told in arguments.items()
        ]
        groups.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    version = f' "version": {json.dumps(golden["vllm"])},\n'
    return "{\n" + version + ",\n".join(groups) + "\n}\n"


def main(arguments: list[str]) -> int:
    text = made()
    if arguments == ["--check"]:
        if TABLE.read_text(encoding="utf-8") == text:
            return 0
        print(f"{TABLE} is not up to date: python {Path(__file__).name}", file=sys.stderr)
        return 1
    TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""python -m minimax_m31 plan: the memory of an engine before there is one."""

from __future__ import annotations

import argparse
import json
from typing import Any

_PLAIN = (
    ("--dtype", str, "bfloat16 or float32 (cpu)"),
    ("--kv-cache-dtype", str, "auto, bf16, fp8 or nvfp4"),
    ("--indexer-kv-dtype", str, "auto, bf16, fp8 or nvfp4"),
    ("--max-num-seqs", int, "sequences at once"),
    ("--max-num-batched-tokens", int, "rows of one step"),
    ("--gpu-memory-utilization", float, "share of a GPU that the engine may use"),
    ("--kv-cache-memory-bytes", int, "exact size of the caches on each GPU"),
    ("--max-logprobs", int, "log-probabilities of a token at most"),
    ("--cpu-offload-gb", float, "experts kept in host memory, for each GPU"),
)


def _length(value: str) -> int | str:
    """Tokens; 128K and 1M are powers of two."""
    if value == "auto":
        return value
    unit = {"K": 1 << 10, "M": 1 << 20}.get(value[-1:].upper(), 1)
    digits = value[:-1] if unit > 1 else value
    if not digits.isdigit() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"{value!r}: tokens (131072), 128K, 1M or auto")
    return int(digits) * unit


def add_to(commands: Any) -> None:
    plan = commands.add_parser("plan", help=run_plan.__doc__)
    plan.add_argument(
        "model",
        nargs="?",
        default="nano",
        help="checkpoint folder, config.json, nano, or M3.1-Flash: the released model's numbers",
    )
    plan.add_argument("--gpu", help='H200, "8x H200", B200, 80GB, cpu, ...; default: what is here')
    plan.add_argument("--n-gpu", type=int)
    plan.add_argument("--host-memory", help="of the machine, such as 512GB")
    plan.add_argument("--tensor-parallel-size", "--tp", type=int)
    plan.add_argument("--max-model-len", type=_length, help="131072, 128K, 1M or auto")
    for name, kind, text in _PLAIN:
        plan.add_argument(name, type=kind, help=text)
    plan.add_argument("--backend", choices=("auto", "cpu", "ref", "cuda"))
    plan.add_argument("--enforce-eager", action="store_true", default=None)
    plan.add_argument("--json", action="store_true", help="everything as one JSON object")
    plan.set_defaults(run=run_plan)


def run_plan(options: argparse.Namespace) -> int:
    """What an engine takes of a machine's memory, what fits, what to change; 1 if nothing fits."""
    from .plan import make_plan

    named = "gpu n_gpu host_memory tensor_parallel_size max_model_len backend enforce_eager".split()
    named += [name[2:].replace("-", "_") for name, _, _ in _PLAIN]
    given = {name: getattr(options, name) for name in named}
    plan = make_plan(options.model, **{k: v for k, v in given.items() if v is not None})
    print(json.dumps(plan.to_dict(), indent=2) if options.json else str(plan))
    return 0 if plan.fits else 1

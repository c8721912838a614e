"""TRL's colocated generation as the installed TRL writes it: the arguments it gives to vLLM's
classes and its own reading of the outputs, taken from its source (`pip install --no-deps trl` is
enough; its trainer would need torch and a model that torch can train).
"""

from __future__ import annotations

import ast
import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)
pytestmark = pytest.mark.slow

from minimax_m31.integrations.trl import as_vllm  # noqa: E402

# What the names in its calls stand for in a small run on one device.
VALUES: dict[str, Any] = {
    "model": "nano",
    "tensor_parallel_size": 1,
    "gpu_memory_utilization": 0.3,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "enable_sleep_mode": False,
    "model_impl": "vllm",
    "seed": 0,
    "quantization": None,
    "trust_remote_code": False,
    "repetition_penalty": 1.0,
    "temperature": 0.9,
    "top_p": 0.95,
    "top_k": 0,
    "min_p": 0.0,
    "max_tokens": 12,
    "logprobs": 0,
}


def source() -> ast.Module:
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None:
        pytest.skip("TRL is not installed: pip install --no-deps trl")
    path = Path(spec.origin).parent / "generation" / "vllm_generation.py"
    if not path.is_file():
        pytest.skip(f"this TRL has no {path.name}")
    return ast.parse(path.read_text(encoding="utf-8"))


def value_of(name: str, node: ast.expr) -> Any:
    return ast.literal_eval(node) if isinstance(node, ast.Constant) else VALUES[name]


def test_trl_generates_with_this_engine() -> None:
    tree = source()
    with as_vllm():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                exec(compile(ast.Module([node], []), "trl", "exec"), names := {})
                VALUES.update({f"class {name}": value for name, value in names.items()})
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "LLM"]
    assert len(calls) == 1
    opened = {k.arg: value_of(k.arg, k.value) for k in calls[0].keywords if k.arg is not None}
    assert opened["distributed_executor_backend"] == "external_launcher"
    asked = [
        {ast.literal_eval(k): value_of(ast.literal_eval(k), v)
         for k, v in zip(node.value.keys, node.value.values, strict=True) if k is not None}
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "generation_kwargs"
        and isinstance(node.value, ast.Dict)
    ]  # fmt: skip
    assert len(asked) == 1 and asked[0]["n"] == 1
    (reading,) = (
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "extract_logprobs"
    )
    space: dict[str, Any] = {"math": math, "RequestOutput": VALUES["class RequestOutput"]}
    exec(compile(ast.Module([reading], []), "trl", "exec"), space)

    with VALUES["class LLM"](**opened) as llm:
        params = VALUES["class SamplingParams"](**asked[0])
        prompts = [{"prompt_token_ids": [5, 17, 3]}] * 2 + [{"prompt_token_ids": [9, 8]}] * 2
        outputs = llm.generate(prompts, sampling_params=params, use_tqdm=False)
        llm.reset_prefix_cache()
    logprobs, token_ids = space["extract_logprobs"](outputs)
    sampled = [output.outputs[0].token_ids for output in outputs]
    assert [[row[0] for row in one] for one in token_ids] == sampled
    assert all(row[0] <= 0 for one in logprobs for row in one)
    constraint = VALUES["class StructuredOutputsParams"](regex="a+")
    assert VALUES["class SamplingParams"](structured_outputs=constraint).structured_outputs

"""TRL with this engine making the rollouts.

TRL's colocated generation as the installed TRL writes it: the arguments it gives to vLLM's classes
and its own reading of the outputs, taken from its source (`pip install --no-deps trl` is enough).

A step of its GRPO trainer in torch, on the trained model with its weights decoded (needs `trl` with
torch and a transformers that knows MiniMax-M3, in an environment of their own).
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoint_files import GOLDEN

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)
from minimax_m31 import LLM, ConfigError, InvalidRequestError, SamplingParams  # noqa: E402
from minimax_m31.integrations.trl import Rollouts, as_vllm, params_of  # noqa: E402
from minimax_m31.model_config import read_model_config  # noqa: E402
from minimax_m31.opening import NANO  # noqa: E402

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


@pytest.mark.slow
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


# ---------------------------------------------------------------- rollouts


@pytest.mark.skipif(not (NANO / "config.json").is_file(), reason="no trained checkpoint")
def test_rollouts_are_samples_of_the_trainers_distribution() -> None:
    """By TRL's protocol alone: prompts in, one completion each, with tempered log-probabilities."""
    args = SimpleNamespace(
        max_completion_length=6, temperature=1.4, top_p=0.95, top_k=None, min_p=None,
        repetition_penalty=1.0, generation_kwargs={"seed": 4, "ignore_eos": True},
    )  # fmt: skip
    assert params_of(args).changed() == {
        "max_tokens": 6, "temperature": 1.4, "top_p": 0.95, "seed": 4, "ignore_eos": True
    }  # fmt: skip
    talk = [{"role": "user", "content": "What is 17 + 25?"}]
    prompts = [talk, talk, talk, [5, 17, 3], "one text", "one text"]
    with LLM("nano", backend="cpu", max_model_len=512, max_num_seqs=8, threads=1) as llm:
        made = Rollouts(llm, thinking="disabled")(prompts, SimpleNamespace(args=args))
        rendered = llm.apply_chat_template(talk, thinking="disabled")
        assert made["prompt_ids"][:3] == [rendered] * 3 and made["prompt_ids"][3] == [5, 17, 3]
        assert [len(ids) for ids in made["completion_ids"]] == [6] * 6
        assert len({tuple(ids) for ids in made["completion_ids"][:3]}) > 1  # samples, not copies
        for prompt, ids, logprobs in zip(*made.values(), strict=True):
            scores = llm.score_tokens(
                [prompt + ids], start=len(prompt), temperature=1.4, use_tqdm=False
            )[0]
            np.testing.assert_allclose(logprobs, scores.logprobs, atol=1e-5)
        greedy = Rollouts(llm, SamplingParams(temperature=0, max_tokens=3))
        again = greedy([[5, 17, 3]] * 2, SimpleNamespace(args=args))
        assert again["completion_ids"][0] == again["completion_ids"][1]
        with pytest.raises(InvalidRequestError, match="sampling_params"):
            Rollouts(llm, {"temperature": 1})  # type: ignore[arg-type]


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def write_decoded(folder: Path, torch: Any) -> None:
    """The trained model with float32 weights, as transformers reads it: nothing is quantised."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    codes = torch.tensor(E2M1)
    weights = {}
    with safe_open(str(NANO / "model.safetensors"), "pt") as file:
        names = set(file.keys())
        for name in names:
            data = file.get_tensor(name)
            if name.endswith(".weight_packed"):  # two codes a byte, a scale for 16, one for all
                base = name.removesuffix("_packed")
                scale = file.get_tensor(f"{base}_scale").float()
                scale = scale / file.get_tensor(f"{base}_global_scale")
                low_high = torch.stack([data & 15, data >> 4], -1).long()
                values = codes[low_high].reshape(*scale.shape, 16) * scale[..., None]
                weights[base] = values.reshape(data.shape[0], -1)
            elif f"{name}_scale_inv" in names:  # a power of two for 32
                exponent = file.get_tensor(f"{name}_scale_inv").int() - 127
                blocks = data.float().reshape(*exponent.shape, 32)
                weights[name] = torch.ldexp(blocks, exponent[..., None]).reshape(data.shape)
            elif not name.endswith(("_scale", "_scale_inv")):
                weights[name] = data.float()
    config = json.loads((NANO / "config.json").read_text())
    config.pop("quantization_config")
    # no images are used; without these numbers transformers would build a large vision tower
    other = json.loads((GOLDEN / "m31_d128" / "config.json").read_text())
    config = {**other, **config}
    config["vision_config"]["text_hidden_size"] = config["text_config"]["hidden_size"]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(NANO / name, folder / name)
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors")


def test_a_config_that_transformers_wrote() -> None:
    """`save_pretrained` says the same in other fields: the same numbers, the same model."""
    released = json.loads((GOLDEN / "m31_d128" / "config.json").read_text())
    text = dict(released["text_config"])
    freq = text.pop("moe_layer_freq")
    sparse = text.pop("sparse_attention_config")
    own = {
        **text,
        "model_type": "minimax_m3_vl_text",
        "hidden_act": "silu",
        "mlp_layer_types": ["sparse" if moe else "dense" for moe in freq],
        "layer_types": ["minimax_m3_sparse"] * len(freq),
        "index_n_heads": sparse["sparse_num_index_heads"],
        "index_head_dim": sparse["sparse_index_dim"],
        "index_block_size": sparse["sparse_block_size"],
        "index_topk_blocks": sparse["sparse_topk_blocks"],
        "index_local_blocks": sparse["sparse_local_block"],
        "rope_parameters": {"rope_type": "default", "rope_theta": text.pop("rope_theta"),
                            "partial_rotary_factor": text.pop("partial_rotary_factor")},
    }  # fmt: skip
    for name in ("rope_theta", "partial_rotary_factor"):
        own.pop(name)
    written = {**released, "text_config": own}
    assert read_model_config(written).core == read_model_config(released).core
    for changes, message in (
        ({"layer_types": ["sliding_attention"] * len(freq)}, "sparse_attention_freq"),
        ({"index_block_size": 64}, "sparse_block_size"),
        ({"index_local_blocks": 2}, "sparse_local_block is 2"),
        ({"mlp_layer_types": ["moe"] * len(freq)}, "moe_layer_freq"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"mlp_layer_types": None}, "moe_layer_freq is missing"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_model_config({**written, "text_config": {**own, **changes}})


@pytest.mark.slow
def test_a_step_of_grpo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts of the engine, a gradient step of TRL's trainer in torch; what the engine reports is
    what torch recomputes, and the model that was saved afterwards opens with the new weights.
    """
    for name in ("torch", "datasets", "accelerate", "trl"):
        pytest.importorskip(name)
    import torch
    import transformers
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    kind = getattr(transformers, "MiniMaxM3SparseForConditionalGeneration", None)
    if kind is None:
        pytest.skip(f"transformers {transformers.__version__} has no MiniMax-M3")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    folder = tmp_path / "decoded"
    write_decoded(folder, torch)
    model = kind.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    size: dict[str, Any] = {
        "backend": "cpu", "dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "threads": 1,
        "seed": 1,
    }  # fmt: skip
    args = GRPOConfig(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=8, num_generations=4,
        max_completion_length=10, temperature=2.0, max_steps=1, learning_rate=1e-3, use_cpu=True,
        bf16=False, report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True, seed=1,
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": f"What is {a} + 25?"}]} for a in (17, 30)]
    made: list[dict[str, Any]] = []
    rewards: list[list[float]] = []

    def reward(completions: list[Any], completion_ids: list[list[int]], **_: Any) -> list[float]:
        assert completion_ids == made[-1]["completion_ids"]
        rewards.append([sum(t % 7 for t in ids) / len(ids) for ids in completion_ids])
        return rewards[-1]

    start = {name: value.clone() for name, value in model.state_dict().items()}
    with LLM(folder, **size) as llm:
        rollouts = Rollouts(llm, thinking="disabled")

        def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
            made.append(rollouts(prompts, trainer))
            return made[-1]

        trainer = GRPOTrainer(
            model=model, reward_funcs=reward, args=args, train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer, rollout_func=rollout,
        )  # fmt: skip
        trainer.train()
    log = trainer.state.log_history[0]
    assert math.isfinite(log["loss"]) and log["grad_norm"] > 0
    assert log["reward"] == pytest.approx(np.mean(rewards[0]), rel=1e-4) and len(made) == 1
    assert log["reward_std"] > 0
    stepped = {name: value.clone() for name, value in model.state_dict().items()}
    moved = [name for name, value in stepped.items() if not torch.equal(value, start[name])]
    assert len(moved) > 50

    def logits(ids: list[int]) -> Any:
        with torch.no_grad():
            return model.eval()(input_ids=torch.tensor([ids])).logits[0]

    model.load_state_dict(start)
    for prompt, ids, logprobs in zip(*made[0].values(), strict=True):
        rows_of = logits(prompt + ids)[len(prompt) - 1 : -1] / args.temperature
        want = torch.log_softmax(rows_of.double(), -1)[torch.arange(len(ids)), torch.tensor(ids)]
        np.testing.assert_allclose(logprobs, want.numpy(), atol=2e-4)

    model.load_state_dict(stepped)
    saved = tmp_path / "saved"
    model.save_pretrained(saved)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(
            folder / name, saved / name
        )  # the config as released, not as transformers has it
    ids = made[0]["prompt_ids"][0]
    with LLM(saved, **size) as llm:
        new = llm.compute_logits(ids)
    np.testing.assert_allclose(new, logits(ids).numpy(), atol=5e-4)
    model.load_state_dict(start)
    assert np.abs(new - logits(ids).numpy()).max() > 0.01  # the step is visible

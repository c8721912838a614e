"""Writes the checkpoint folder minimax_m31/nano in the released layout: MXFP8 linears, NVFP4 experts, BF16 embedding, head and norms, F32 router.

    python export.py --init ck [--draft ck/draft.pt]
    python export.py --init ck --bf16 --out DIR       # the same weights before the file formats

Names, dtypes and config nesting are those of the released checkpoint, text part only. The numbers come from quant.py, the same functions
that the training ran its weights through; nothing is fitted again here.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import model as M
import quant
import torch
from render import NANO, tokenizer
from safetensors.torch import save_file
from torch import Tensor

P = "language_model.model."
INPUT_SCALE = {
    "w1": 64.0,
    "w3": 64.0,
    "w2": 48.0,
}  # encode scales of a W4A4 path: 2688 over an upper bound of the input


def plain_tensors(name: str, w: Tensor, which: str = "") -> dict[str, Tensor]:
    return {f"{name}.weight": w.bfloat16()}


def mxfp8_tensors(name: str, w: Tensor) -> dict[str, Tensor]:
    c, b = quant.mxfp8_parts(w)
    return {
        f"{name}.weight": c.reshape(w.shape).to(torch.float8_e4m3fn),
        f"{name}.weight_scale_inv": (b[..., 0] + 127).to(torch.uint8),
    }


def nvfp4_tensors(name: str, w: Tensor, which: str) -> dict[str, Tensor]:
    code, s, d = quant.nvfp4_parts(w)
    code = code.reshape(w.shape)
    return {
        f"{name}.weight_packed": (code[..., 0::2] | code[..., 1::2] << 4).to(torch.uint8),
        f"{name}.weight_scale": s[..., 0].to(torch.float8_e4m3fn),
        f"{name}.weight_global_scale": (1.0 / d).reshape(1).float(),
        f"{name}.input_global_scale": torch.tensor([INPUT_SCALE[which]]),
    }


def attention(
    out: dict[str, Tensor],
    base: str,
    p: M.Params,
    i: int,
    index: bool,
    linear: Callable[[str, Tensor], dict[str, Tensor]] = mxfp8_tensors,
) -> None:
    names = {"wq": "q_proj", "wk": "k_proj", "wv": "v_proj", "wo": "o_proj"} | (
        {"wiq": "index_q_proj", "wik": "index_k_proj"} if index else {}
    )
    for k, n in names.items():
        out.update(linear(f"{base}self_attn.{n}", p[k][i]))
    norms = {"qn": "q_norm", "kn": "k_norm"} | (
        {"iqn": "index_q_norm", "ikn": "index_k_norm"} if index else {}
    )
    for k, n in norms.items():
        out[f"{base}self_attn.{n}.weight"] = p[k][i].bfloat16()
    out[f"{base}input_layernorm.weight"] = p["ln1"][i].bfloat16()
    out[f"{base}post_attention_layernorm.weight"] = p["ln2"][i].bfloat16()


def target_tensors(p: M.Params, c: M.Config, plain: bool = False) -> dict[str, Tensor]:
    linear, expert = (plain_tensors, plain_tensors) if plain else (mxfp8_tensors, nvfp4_tensors)
    out = {
        f"{P}embed_tokens.weight": p["embed"].bfloat16(),
        f"{P}norm.weight": p["norm"].bfloat16(),
        "language_model.lm_head.weight": p["head"].bfloat16(),
    }
    for i in range(c.layers):
        base = f"{P}layers.{i}."
        attention(out, base, p, i, True, linear)
        if i < c.dense_layers:
            for k, n in (("dg", "gate_proj"), ("du", "up_proj"), ("dd", "down_proj")):
                out.update(linear(f"{base}mlp.{n}", p[k][i]))
            continue
        j, moe = i - c.dense_layers, f"{base}block_sparse_moe."
        out[f"{moe}gate.weight"], out[f"{moe}e_score_correction_bias"] = (
            p["gate"][j].float(),
            p["bias"][j].float(),
        )
        for k, n in (("sg", "gate_proj"), ("su", "up_proj"), ("sd", "down_proj")):
            out.update(linear(f"{moe}shared_experts.{n}", p[k][j]))
        for e in range(c.experts):
            for w in ("w1", "w2", "w3"):
                out.update(expert(f"{moe}experts.{e}.{w}", p[w][j, e], w))
    return out


def draft_tensors(p: M.Params, layers: int) -> dict[str, Tensor]:
    d = f"{P}dspark."
    out = {
        f"{d}{n}": p[k].bfloat16()
        for k, n in (
            ("fc", "fc.weight"),
            ("hn", "hidden_norm.weight"),
            ("fn", "final_norm.weight"),
            ("m1", "markov_head.markov_w1.weight"),
            ("m2", "markov_head.markov_w2.weight"),
            ("cw", "confidence_head.proj.weight"),
            ("cb", "confidence_head.proj.bias"),
        )
    }
    for i in range(layers):
        base = f"{d}layers.{i}.decoder_layer."
        attention(out, base, p, i, False)
        for k, n in (("dg", "gate_proj"), ("du", "up_proj"), ("dd", "down_proj")):
            out.update(mxfp8_tensors(f"{base}mlp.{n}", p[k][i]))
    return out


def text_config(c: M.Config) -> dict[str, Any]:
    t = tokenizer()
    return {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "model_type": "minimax_m2",
        "torch_dtype": "bfloat16",
        "hidden_size": c.hidden,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab,
        "intermediate_size": c.expert,
        "shared_intermediate_size": c.expert,
        "dense_intermediate_size": c.dense,
        "num_local_experts": c.experts,
        "num_experts_per_tok": c.top_k,
        "n_shared_experts": 1,
        "moe_layer_freq": [0] * c.dense_layers + [1] * (c.layers - c.dense_layers),
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": c.routed_scale,
        "hidden_act": "swigluoai",
        "swiglu_alpha": c.alpha,
        "swiglu_limit": c.limit,
        "rms_norm_eps": c.eps,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "attention_output_gate": False,
        "rope_theta": c.theta,
        "rotary_dim": c.rotary,
        "partial_rotary_factor": c.rotary / c.head_dim,
        "max_position_embeddings": 32768,
        "num_mtp_modules": 0,
        "bos_token_id": t.token_to_id("]~b]"),
        "eos_token_id": t.token_to_id("[e~["),
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_index_dim": c.head_dim,
            "sparse_num_index_heads": c.kv_heads,
            "sparse_topk_blocks": c.top_blocks,
            "sparse_block_size": c.block,
            "sparse_disable_index_value": [1] * c.layers,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
            "sparse_attention_freq": [1] * c.layers,
        },
    }


def draft_config(c: M.Config, d: dict[str, Any]) -> dict[str, Any]:
    kinds = ["sliding_attention"] * d["layers"]
    text = text_config(c) | {
        "num_hidden_layers": d["layers"],
        "dense_intermediate_size": d["ffn"],
        "moe_layer_freq": [0] * d["layers"],
        "sparse_attention_config": None,
        "layer_types": kinds,
        "sliding_window": d["window"],
        "dspark_block_size": d["block"],
        "dspark_noise_token_id": d["noise"],
        "dspark_markov_rank": d["rank"],
        "dspark_markov_head_type": "vanilla",
        "dspark_target_layer_ids": list(d["taps"]),
        "dspark_use_dense_ffn": True,
        "dspark_ffn_hidden_size": d["ffn"],
        "dspark_hybrid_context_fusion": False,
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "dspark_config": {
            "use_dense_ffn": True,
            "ffn_hidden_size": d["ffn"],
            "hybrid_context_fusion": False,
        },
        "dflash_config": {
            "num_hidden_layers": d["layers"],
            "num_target_layers": c.layers,
            "target_layer_ids": list(d["taps"]),
            "layer_types": kinds,
        },
    }
    return {
        "architectures": ["DSparkMiniMaxDraftModel"],
        "model_type": "minimax_m3_vl",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "quantization_config": {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
    }


def write_json(path: Path, x: Any) -> None:
    path.write_text(json.dumps(x, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--init", type=Path, required=True)
    a.add_argument("--draft", type=Path)
    a.add_argument("--out", type=Path, default=NANO)
    a.add_argument("--bf16", action="store_true", help="no file formats, to compare (needs --out)")
    o = a.parse_args()
    if o.bf16 and o.out == NANO:
        a.error("--bf16 makes a folder to compare with, not the one that ships: give --out FOLDER")
    from train import load

    p, c, _ = load(o.init, "cpu")
    p = {k: v.detach() for k, v in p.items()}
    t = tokenizer()
    o.out.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.contiguous() for k, v in target_tensors(p, c, o.bf16).items()},
        o.out / "model.safetensors",
        {"format": "pt"},
    )
    (o.out / "model.safetensors").chmod(0o644)
    config: dict[str, Any] = {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "image_token_index": t.token_to_id("]<]image[>["),
        "video_token_index": t.token_to_id("]<]video[>["),
        "text_config": text_config(c),
    }
    if not o.bf16:
        config["quantization_config"] = {
            "quant_method": "mxfp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [1, 32],
            "moe_quant_algo": "NVFP4",
            "moe_quant_format": "nvfp4-pack-quantized",
        }
    write_json(o.out / "config.json", config)
    if o.out != NANO:
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(NANO / name, o.out / name)
    write_json(
        o.out / "generation_config.json",
        {
            "bos_token_id": t.token_to_id("]~b]"),
            "eos_token_id": t.token_to_id("[e~["),
            "do_sample": False,
            "temperature": 0.0,
        },
    )
    if o.draft:
        d = torch.load(o.draft, map_location="cpu", weights_only=True)
        (o.out / "dspark").mkdir(exist_ok=True)
        save_file(
            {
                k: v.contiguous()
                for k, v in draft_tensors(d["params"], d["config"]["layers"]).items()
            },
            o.out / "dspark" / "model.safetensors",
            {"format": "pt"},
        )
        (o.out / "dspark" / "model.safetensors").chmod(0o644)
        write_json(o.out / "dspark" / "config.json", draft_config(c, d["config"]))
    total = sum(f.stat().st_size for f in o.out.rglob("*") if f.is_file())
    print(f"{total / 1e6:.2f} MB in {o.out}")
    if total > 16_000_000 and not o.bf16:
        raise SystemExit("the checkpoint is larger than 16 MB")


if __name__ == "__main__":
    main()

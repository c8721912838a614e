"""The numbers of the released model, MiniMaxAI/MiniMax-M3.1-Flash, so that it can be planned for
before anything is downloaded: as public engines describe it. Once the checkpoint is here, its own
config.json decides (LLM.plan(folder)). What a plan does not look at is left out.
"""

from __future__ import annotations

from typing import Any

HUB_ID = "MiniMaxAI/MiniMax-M3.1-Flash"
_NAMES = {HUB_ID.lower(), "minimax-m3.1-flash", "m3.1-flash", "m31-flash", "flash"}
_LAYERS, _DENSE = 60, 3


def is_release(name: Any) -> bool:
    return isinstance(name, str) and name.lower() in _NAMES


def release_config() -> dict[str, Any]:
    """A config.json of the released model."""
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "image_token_index": 200025,
        "video_token_index": 200026,
        "text_config": {
            "hidden_size": 6144,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 200064,
            "intermediate_size": 3072,
            "shared_intermediate_size": 3072,
            "dense_intermediate_size": 12288,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "moe_layer_freq": [0] * _DENSE + [1] * (_LAYERS - _DENSE),
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "hidden_act": "swigluoai",
            "rope_theta": 5000000.0,
            "rotary_dim": 64,
            "max_position_embeddings": 1048576,
            "bos_token_id": 200034,
            "eos_token_id": 200020,
            "sparse_attention_config": {
                "use_sparse_attention": True,
                "sparse_index_dim": 128,
                "sparse_num_index_heads": 4,
                "sparse_topk_blocks": 16,
                "sparse_block_size": 128,
                "sparse_score_type": "max",
                "sparse_disable_index_value": [1] * _LAYERS,
                "sparse_attention_freq": [1] * _LAYERS,
            },
        },
        "quantization_config": {
            "quant_method": "mxfp8",
            "moe_quant_algo": "NVFP4",
            "moe_quant_format": "nvfp4-pack-quantized",
        },
    }

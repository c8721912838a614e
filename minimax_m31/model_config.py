"""config.json -> the numbers of the model, by the names of the core's mm_config.

The text model's fields may be nested (`text_config`, as released) or flat, or as transformers
writes them. Spellings that say the
same are accepted, missing fields take the published default where there is one, and everything that
the forward pass does differently is refused by the field's name. All problems are collected before
anything is raised.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ConfigError
from .values import plain_tree

PAGE = 128
I32_MAX = 2**31 - 1
DEFAULT_EOS = 200020

_TEXT_FIELDS = (
    "hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "vocab_size intermediate_size shared_intermediate_size dense_intermediate_size "
    "num_local_experts num_experts_per_tok n_shared_experts moe_layer_freq scoring_func "
    "use_routing_bias routed_scaling_factor hidden_act swiglu_alpha swiglu_beta swiglu_limit "
    "rms_norm_eps use_gemma_norm use_qk_norm qk_norm_type attention_output_gate rope_theta "
    "rope_scaling rope_parameters rotary_dim partial_rotary_factor max_position_embeddings "
    "num_mtp_modules bos_token_id eos_token_id pad_token_id tie_word_embeddings "
    "sparse_attention_config"
).split()
_SPARSE_FIELDS = (
    "use_sparse_attention sparse_attention_freq sparse_disable_index_value "
    "sparse_num_index_heads sparse_index_dim sparse_block_size sparse_topk_blocks "
    "sparse_local_block sparse_init_block sparse_score_type sparse_init_tokens "
    "sparse_local_tokens"
).split()
_TOP_FIELDS = (
    "image_token_index video_token_index image_token_id video_token_id text_config "
    "vision_config quantization_config architectures model_type"
).split()


@dataclass
class ModelConfig:
    """`core`: fields of mm_config. Token ids outside the vocabulary are dropped."""

    core: dict[str, Any]
    eos_token_ids: list[int]
    bos_token_id: int | None
    max_model_len: int
    raw: dict[str, Any]
    dropped_token_ids: dict[str, list[int]] = field(default_factory=dict)  # by field


class _Reader:
    """Fields of one object with defaults; problems go to a shared list."""

    def __init__(self, obj: Mapping[str, Any], problems: list[str], path: str = "") -> None:
        self.obj = obj
        self.problems = problems
        self.path = path  # of the object, for messages: "rope_scaling."

    def bad(self, name: str, expected: str) -> None:
        self.problems.append(
            f"{self.path}{name} is {repr(self.obj.get(name))[:80]}, expected {expected}"
        )

    def has(self, name: str) -> bool:
        return self.obj.get(name) is not None

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.obj.get(name)
        if value is None and default is not None:
            return default
        if type(value) is float and value.is_integer():
            value = int(value)
        if value is None:
            self.problems.append(f"{self.path}{name} is missing")
        elif type(value) is not int:
            self.bad(name, "an integer")
        elif not -I32_MAX <= value <= I32_MAX:
            self.bad(name, f"an integer in {-I32_MAX} .. {I32_MAX}")
        else:
            return value
        return 0

    def real(self, name: str, default: float) -> float:
        value = self.obj.get(name)
        if value is None:
            return default
        if type(value) not in (int, float):
            self.bad(name, "a number")
            return default
        if not abs(value) < 1e300:
            self.bad(name, "a finite number in -1e300 .. 1e300")
            return default
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.obj.get(name)
        if value is None:
            return default
        if type(value) is int and value in (0, 1):
            return bool(value)
        if type(value) is not bool:
            self.bad(name, "true or false")
            return default
        return value

    def flags(self, name: str, n: int) -> list[int]:
        value = self.obj.get(name)
        if value is None:
            self.problems.append(f"{self.path}{name} is missing")
        elif not isinstance(value, list) or not all(
            v is True or v is False or v in (0, 1) for v in value
        ):
            self.bad(name, "a list of 0 and 1")
        elif len(value) != n:
            self.problems.append(f"{name} has {len(value)} entries for num_hidden_layers {n}")
        else:
            return [int(v) for v in value]
        return [0] * max(0, min(n, 4096))

    def only(self, name: str, allowed: tuple[Any, ...], why: str) -> None:
        """Absent, null or one of the allowed values."""
        value = self.obj.get(name)
        if value is not None and not any(
            value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed
        ):
            self.bad(name, " or ".join(repr(a) for a in allowed) + f" ({why})")

    def child(self, name: str) -> _Reader:
        value = self.obj.get(name)
        if value is not None and not isinstance(value, dict):
            self.bad(name, "an object")
            value = None
        path = "" if name == "text_config" else f"{self.path}{name}."
        return _Reader(value if value is not None else {}, self.problems, path)


def apply_overrides(raw: Mapping[str, Any], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of the config with fields replaced where they stand.

    `{"num_hidden_layers": 4}` reaches into text_config, `{"sparse_topk_blocks": 8}` into its
    sparse_attention_config; objects are merged. Unknown names are errors.
    """
    out: dict[str, Any] = plain_tree(dict(raw))
    problems: list[str] = []
    for name, value in (overrides or {}).items():
        _override(out, str(name), plain_tree(value), problems)
    if problems:
        raise ConfigError("hf_overrides: " + "; ".join(problems))
    _cut_layers(out, overrides or {})
    return out


def _cut_layers(out: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Fewer layers: lists with one entry per layer keep the first ones."""
    text = out["text_config"] if isinstance(out.get("text_config"), dict) else out
    n = text.get("num_hidden_layers")
    if "num_hidden_layers" not in overrides or type(n) is not int or n < 1:
        return
    sparse = text.get("sparse_attention_config")
    for owner in (text, sparse if isinstance(sparse, dict) else {}):
        for name in ("moe_layer_freq", "sparse_attention_freq", "sparse_disable_index_value"):
            if isinstance(owner.get(name), list) and name not in overrides:
                owner[name] = owner[name][:n]


def _override(out: dict[str, Any], name: str, value: Any, problems: list[str]) -> None:
    text = out["text_config"] if isinstance(out.get("text_config"), dict) else out
    sparse = text.get("sparse_attention_config")
    if name in out or (name in _TOP_FIELDS and name not in _TEXT_FIELDS):
        home = out
        if name in text and text is not out and not isinstance(value, Mapping):
            text[name] = value  # said twice in the file (tie_word_embeddings): both
    elif name in _TEXT_FIELDS or name in text:
        home = text
    elif name in _SPARSE_FIELDS and (sparse is None or isinstance(sparse, dict)):
        home = text.setdefault("sparse_attention_config", {}) if sparse is None else sparse
        if sparse is None:
            text["sparse_attention_config"] = home = {}
    else:
        problems.append(f"{name!r} is no field of config.json")
        return
    if isinstance(value, Mapping) and isinstance(home.get(name), dict):
        for key, inner in value.items():
            if name in ("text_config", "sparse_attention_config"):
                known = _TEXT_FIELDS if name == "text_config" else _SPARSE_FIELDS
                if key not in home[name] and key not in known:
                    problems.append(f"{name}.{key} is no field of config.json")
                    continue
            if isinstance(inner, Mapping) and isinstance(home[name].get(key), dict):
                home[name][key].update(inner)
            else:
                home[name][key] = copy.deepcopy(inner)
    else:
        home[name] = copy.deepcopy(value)


def read_model_config(
    raw: Mapping[str, Any], generation: Mapping[str, Any] | None = None, what: str = "config.json"
) -> ModelConfig:
    """ConfigError lists every field that is missing, malformed or beyond the forward pass."""
    problems: list[str] = []
    top = _Reader(raw, problems)
    _check_kind(top)
    text = top.child("text_config") if top.has("text_config") else top
    if text.obj.get("model_type") == "minimax_m3_vl_text":
        text = _Reader(_as_released(text.obj), problems)
    core = _core(top, text)
    _check_forward(top, text)
    _check_quantization(
        top.child("quantization_config")
        if top.has("quantization_config")
        else text.child("quantization_config")
    )
    eos, bos, dropped = _token_ids(text, _Reader(generation or {}, problems), core["n_vocab"])
    if problems:
        raise ConfigError(f"{what}: " + "\n  ".join(problems))
    return ModelConfig(
        core=core,
        eos_token_ids=eos,
        bos_token_id=bos,
        max_model_len=core["max_position"],
        raw=dict(raw),
        dropped_token_ids=dropped,
    )


def _check_kind(top: _Reader) -> None:
    kinds = [top.obj.get("model_type"), *_as_list(top.obj.get("architectures"))]
    named = [k for k in kinds if isinstance(k, str)]
    if named and not any(k.lower().replace("_", "").startswith("minimaxm3") for k in named):
        top.problems.append(
            f"model_type / architectures are {named}, expected a MiniMax-M3 or M3.1 checkpoint"
        )


def _as_released(obj: Mapping[str, Any]) -> dict[str, Any]:
    """A text config in the form that transformers writes (`save_pretrained`), with the names of the
    release. Its `hidden_act` is of the gate alone; the clamp is part of its model class.
    """
    out = dict(obj)
    if obj.get("hidden_act") == "silu":
        out["hidden_act"] = "swigluoai"

    def layers(name: str, kinds: Mapping[str, int]) -> Any:
        """1 and 0 for the kinds of layers; what is none of them is left for the reader to name."""
        value = obj.get(name)
        if not isinstance(value, list):
            return value
        return [kinds.get(kind, kind) if isinstance(kind, str) else kind for kind in value]

    if obj.get("moe_layer_freq") is None:
        out["moe_layer_freq"] = layers("mlp_layer_types", {"sparse": 1, "dense": 0})
    if obj.get("sparse_attention_config") is None and obj.get("layer_types") is not None:
        out["sparse_attention_config"] = {
            "sparse_attention_freq": layers(
                "layer_types", {"minimax_m3_sparse": 1, "full_attention": 0}
            ),
            "sparse_num_index_heads": obj.get("index_n_heads"),
            "sparse_index_dim": obj.get("index_head_dim"),
            "sparse_block_size": obj.get("index_block_size"),
            "sparse_topk_blocks": obj.get("index_topk_blocks"),
            "sparse_local_block": obj.get("index_local_blocks"),
        }
    return out


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _core(top: _Reader, text: _Reader) -> dict[str, Any]:
    n_layer = text.whole("num_hidden_layers")
    n_head, d_model = text.whole("num_attention_heads"), text.whole("hidden_size")
    head_dim = text.whole(
        "head_dim", d_model // n_head if n_head > 0 and d_model % n_head == 0 else None
    )
    n_vocab = text.whole("vocab_size")
    is_moe = text.flags("moe_layer_freq", n_layer)
    d_expert = text.whole("intermediate_size", None if any(is_moe) else 0)
    n_shared = text.whole("n_shared_experts", 1)
    core: dict[str, Any] = {
        "n_layer": n_layer,
        "n_vocab": n_vocab,
        "d_model": d_model,
        "n_head": n_head,
        "n_kv_head": text.whole("num_key_value_heads"),
        "head_dim": head_dim,
        "n_rotary": _rotary(text, head_dim),
        "n_expert": text.whole("num_local_experts", None if any(is_moe) else 0),
        "n_expert_used": text.whole("num_experts_per_tok", None if any(is_moe) else 0),
        "d_expert": d_expert,
        "d_shared": 0
        if n_shared == 0
        else text.whole("shared_intermediate_size", min(d_expert * n_shared, I32_MAX)),
        "d_dense": text.whole("dense_intermediate_size", None if not all(is_moe) else 0),
        "max_position": text.whole("max_position_embeddings"),
        "has_routing_bias": int(text.flag("use_routing_bias", True)),
        "rope_theta": _rope(text).real("rope_theta", 5e6),
        "rms_eps": text.real("rms_norm_eps", 1e-6),
        "swiglu_alpha": text.real("swiglu_alpha", 1.702),
        "swiglu_beta": text.real("swiglu_beta", 1.0),
        "swiglu_limit": text.real("swiglu_limit", 7.0),
        "routed_scale": text.real("routed_scaling_factor", 2.0),
        "layer_is_moe": is_moe,
    }
    core.update(_sparse(text, n_layer))
    core["never_token"] = _placeholders(top, text, n_vocab)
    return core


def _rope(text: _Reader) -> _Reader:
    """Theta and the partial factor stand in the text config, or in its rope_parameters."""
    if not text.has("rope_parameters"):
        return text
    inner = text.child("rope_parameters")
    return _Reader(
        {**inner.obj, **{k: v for k, v in text.obj.items() if v is not None}}, text.problems
    )


def _rotary(text: _Reader, head_dim: int) -> int:
    rope = _rope(text)
    by_factor = None
    if rope.has("partial_rotary_factor"):
        exact = rope.real("partial_rotary_factor", 1.0) * head_dim
        by_factor = round(exact) if abs(exact) < I32_MAX else 0
    n = rope.whole("rotary_dim", by_factor if by_factor is not None else max(head_dim, 1))
    if by_factor is not None and rope.has("rotary_dim") and by_factor != n:
        text.problems.append(
            f"rotary_dim is {n}, but partial_rotary_factor gives {by_factor} of head_dim {head_dim}"
        )
    return n


def _sparse(text: _Reader, n_layer: int) -> dict[str, Any]:
    off = {
        "layer_is_sparse": [0] * max(0, min(n_layer, 4096)),
        "n_index_head": 0, "index_dim": 0, "n_top_block": 0, "n_init_block": 0,
    }  # fmt: skip
    if not text.has("sparse_attention_config"):
        return off
    s = text.child("sparse_attention_config")
    if not s.flag("use_sparse_attention", True):
        return off
    is_sparse = s.flags("sparse_attention_freq", n_layer)
    if not any(is_sparse):
        return {**off, "layer_is_sparse": is_sparse}
    s.only("sparse_block_size", (PAGE,), "a KV page is one attention block")
    s.only("sparse_score_type", ("max",), "block scores are maxima")
    if s.has("sparse_disable_index_value"):
        no_value = s.flags("sparse_disable_index_value", n_layer)
        if any(a and not b for a, b in zip(is_sparse, no_value, strict=False)):
            s.problems.append(
                "sparse_disable_index_value is 0 in a sparse layer: index values are not supported"
            )
    # older files count tokens: forced ones at the start, and local ones beside the running block
    init = s.whole("sparse_init_block", -(-s.whole("sparse_init_tokens", 0) // PAGE))
    local = s.whole("sparse_local_block", -(-s.whole("sparse_local_tokens", 0) // PAGE) + 1)
    if local != 1:
        s.problems.append(
            f"sparse_local_block is {local}, expected 1 (the running block is the forced one)"
        )
    return {
        "layer_is_sparse": is_sparse,
        "n_index_head": s.whole("sparse_num_index_heads"),
        "index_dim": s.whole("sparse_index_dim"),
        "n_top_block": s.whole("sparse_topk_blocks"),
        "n_init_block": init,
    }


def _placeholders(top: _Reader, text: _Reader, n_vocab: int) -> list[int]:
    out: list[int] = []
    for name in ("image_token_index", "video_token_index", "image_token_id", "video_token_id"):
        reader = top if top.has(name) else text
        if reader.has(name):
            value = reader.whole(name)
            if 0 <= value < n_vocab and value not in out:
                out.append(value)
    return sorted(out)


def _check_forward(top: _Reader, text: _Reader) -> None:
    """Switches of the published configuration that would change the maths."""
    text.only("hidden_act", ("swigluoai",), "the clamped SwiGLU is the only activation")
    text.only("scoring_func", ("sigmoid",), "the router is sigmoid")
    text.only("use_gemma_norm", (True,), "norm weights are zero-centred")
    text.only("use_qk_norm", (True,), "q and k are normed per head")
    text.only("qk_norm_type", ("per_head",), "q and k are normed per head")
    text.only("attention_output_gate", (False,), "there is no output gate")
    for reader in (top, text) if text is not top else (top,):
        reader.only("tie_word_embeddings", (False,), "lm_head is a tensor of its own")
    for name in ("attention_bias", "mlp_bias", "use_bias"):
        text.only(name, (False,), "linear layers have no bias")
    for name in ("n_group", "topk_group"):
        text.only(name, (0, 1), "experts are chosen without groups")
    text.only("norm_topk_prob", (True,), "weights of the chosen experts are renormalised")
    for name in ("rope_scaling", "rope_parameters"):
        if text.has(name):
            inner = text.child(name)
            for key in ("type", "rope_type"):
                inner.only(key, ("default",), "positions are not scaled")
            if inner.has("factor") and inner.obj["factor"] != 1:
                inner.bad("factor", "1 (positions are not scaled)")


def _check_quantization(q: _Reader) -> None:
    """Formats are read off the tensors; refused are schemes that give them another meaning."""
    method = q.obj.get("quant_method", q.obj.get("quant_algo"))
    if method is None:
        return
    if not isinstance(method, str) or method.lower() not in (
        "mxfp8",
        "modelopt",
        "modelopt_mixed",
        "modelopt_fp4",
        "mixed_precision",
        "nvfp4",
        "compressed-tensors",
    ):
        q.problems.append(
            f"quantization_config.quant_method is {str(method)[:60]!r}, expected 'mxfp8' "
            "(MXFP8, NVFP4 experts) or 'modelopt'"
        )
        return
    if method.lower() == "mxfp8":
        q.only("weight_block_size", ([1, 32],), "a scale covers 32 columns")
    q.only("activation_scheme", ("dynamic",), "there are no activation scales")
    q.only("moe_quant_algo", ("NVFP4",), "experts are NVFP4, MXFP8 or BF16")
    q.only("moe_quant_format", ("nvfp4-pack-quantized",), "the format of the release")
    if q.has("group_size"):
        q.only("group_size", (16,), "an NVFP4 scale covers 16 columns")


def _id_list(reader: _Reader, name: str) -> list[int]:
    value = reader.obj.get(name)
    items = _as_list(value) if value is not None else []
    if not all(type(v) is int and 0 <= v <= I32_MAX for v in items):
        reader.bad(name, f"a token id (0 .. {I32_MAX}) or a list of them")
        return []
    return list(dict.fromkeys(items))


def _token_ids(
    text: _Reader, generation: _Reader, n_vocab: int
) -> tuple[list[int], int | None, dict[str, list[int]]]:
    eos = _id_list(generation, "eos_token_id") or _id_list(text, "eos_token_id") or [DEFAULT_EOS]
    bos = (_id_list(generation, "bos_token_id") or _id_list(text, "bos_token_id"))[:1]
    beyond = {
        name: [t for t in ids if t >= n_vocab]
        for name, ids in (("eos_token_id", eos), ("bos_token_id", bos))
    }
    dropped = {name: ids for name, ids in beyond.items() if ids}
    bos = [t for t in bos if t < n_vocab]
    return [t for t in eos if t < n_vocab], bos[0] if bos else None, dropped

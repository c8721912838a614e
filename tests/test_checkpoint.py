"""Reading checkpoints: what is accepted, and that everything else ends as one of our errors."""

from __future__ import annotations

import copy
import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    GOLDEN,
    RawTensors,
    modelopt_spelling,
    read_raw,
    write_safetensors,
)

from minimax_m31 import _core
from minimax_m31.checkpoint import (
    INDEX,
    SINGLE,
    CheckpointInfo,
    is_other_part,
    read_checkpoint,
    read_config,
)
from minimax_m31.errors import ConfigError, Mm31Error
from minimax_m31.strict_json import parse_object

CASES = ["m31_d128", "m3_d128", "m31_d128_nvfp4", "m31_dspark", "text_d32"]
# Every mutation ends as one of these, or the checkpoint still opens.
OURS = (ConfigError, OSError, Mm31Error)


def open_engine(info: CheckpointInfo) -> None:
    """Opens the real core on what was read, and closes it."""
    options = {
        "backend": "ref",
        "load": "files",
        "dtype": "f32",
        "kv_format": "f32",
        "index_format": "f32",
        "max_model_len": min(256, info.max_model_len),
        "max_num_seqs": 2,
        "max_batched_tokens": 128,
        "n_thread": 1,
        "max_logprobs": 0,
    }
    engine = _core.Engine(
        config=info.config,
        options=options,
        files=info.files,
        tensors=info.tensors,
        eos_token_ids=info.eos_token_ids,
    )
    engine.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A writable copy of the smallest case."""
    out = tmp_path / "checkpoint"
    out.mkdir()
    for name in ("config.json", "generation_config.json", SINGLE):
        shutil.copyfile(GOLDEN / "text_d32" / name, out / name)
    return out


def edit_config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


# ---------------------------------------------------------------- good ones


@pytest.mark.parametrize("case", CASES)
def test_golden_checkpoints_are_read(case: str) -> None:
    info = read_checkpoint(GOLDEN / case)
    raw = json.loads((GOLDEN / case / "config.json").read_text())
    text = raw["text_config"]
    assert info.config["n_layer"] == text["num_hidden_layers"]
    assert info.config["d_shared"] == text["shared_intermediate_size"]
    assert info.config["n_rotary"] == text["rotary_dim"]
    assert info.config["swiglu_beta"] == 1.0
    sparse = text["sparse_attention_config"]
    assert info.config["layer_is_sparse"] == sparse["sparse_attention_freq"]
    assert info.eos_token_ids == [text["eos_token_id"]]
    assert info.max_model_len == text["max_position_embeddings"]
    assert [e[0] for e in info.tensors] == sorted(e[0] for e in info.tensors)
    assert info.config["never_token"] == [raw["image_token_index"], raw["video_token_index"]]
    quantized = case in ("m31_d128_nvfp4", "m31_dspark")
    expected = "nvfp4 experts, mxfp8 linears" if quantized else "bf16 experts, bf16 linears"
    assert info.quantization == expected
    assert all(is_other_part(name) for name in info.unused)
    assert bool(info.unused) == (case != "text_d32")
    assert (info.draft_folder is not None) == (case == "m31_dspark")
    _core.config_check(info.config)
    open_engine(info)


def test_shards_and_one_file_are_the_same_checkpoint(tmp_path: Path) -> None:
    whole = read_checkpoint(GOLDEN / "m31_d128")
    merged: RawTensors = {}
    for file in whole.files:
        merged.update(read_raw(Path(file)))
    shutil.copyfile(GOLDEN / "m31_d128" / "config.json", tmp_path / "config.json")
    write_safetensors(tmp_path / SINGLE, merged)
    one = read_checkpoint(tmp_path)
    assert [(e[0], e[2], e[3], e[5]) for e in one.tensors] == [
        (e[0], e[2], e[3], e[5]) for e in whole.tensors
    ]
    open_engine(one)


def test_symlinked_files_are_followed(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "snapshot"
    link.mkdir()
    for file in folder.iterdir():
        (link / file.name).symlink_to(file)
    open_engine(read_checkpoint(link))


def test_prefix_is_optional(folder: Path) -> None:
    tensors = read_raw(folder / SINGLE)
    plain = {name.removeprefix("language_model."): value for name, value in tensors.items()}
    write_safetensors(folder / SINGLE, plain)
    open_engine(read_checkpoint(folder))


def test_flat_config_and_other_spellings(folder: Path) -> None:
    def flatten(c: dict[str, Any]) -> None:
        text = c.pop("text_config")
        c.update(text)
        c["image_token_id"] = c.pop("image_token_index")
        c["rope_parameters"] = {
            "rope_theta": c.pop("rope_theta"),
            "partial_rotary_factor": c.pop("partial_rotary_factor"),
            "rope_type": "default",
        }
        del c["rotary_dim"], c["shared_intermediate_size"]
        sparse = c["sparse_attention_config"]
        del sparse["sparse_init_block"], sparse["sparse_local_block"]
        sparse["sparse_init_tokens"], sparse["sparse_local_tokens"] = 129, 0

    before = read_checkpoint(folder).config
    edit_config(folder, flatten)
    after = read_checkpoint(folder).config
    assert after.pop("n_init_block") == 2 and before.pop("n_init_block") == 0
    assert after == before


def test_modelopt_spelling_opens(tmp_path: Path) -> None:
    source = GOLDEN / "m31_d128_nvfp4"
    out = modelopt_spelling(read_raw(source / SINGLE))
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    write_safetensors(tmp_path / SINGLE, out)
    info = read_checkpoint(tmp_path)
    assert info.quantization == "nvfp4 experts, mxfp8 linears"
    open_engine(info)


def test_eos_of_generation_config_then_config_then_the_published_one(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9, 7], "bos_token_id": 5}')
    info = read_checkpoint(folder)
    assert info.eos_token_ids == [7, 9] and info.bos_token_id == 5
    (folder / "generation_config.json").unlink()
    info = read_checkpoint(folder)
    assert info.eos_token_ids == [249] and info.bos_token_id == 248

    def forget(c: dict[str, Any]) -> None:
        del c["text_config"]["eos_token_id"], c["text_config"]["bos_token_id"]
        c["text_config"]["vocab_size"] = 200064

    edit_config(folder, forget)
    assert read_checkpoint(folder).eos_token_ids == [200020]
    assert read_checkpoint(folder).bos_token_id is None


def test_overrides_reach_nested_fields() -> None:
    info = read_config(
        GOLDEN / "text_d32",
        hf_overrides={
            "num_hidden_layers": 1,
            "moe_layer_freq": [1],
            "sparse_attention_config": {"sparse_attention_freq": [1]},
            "sparse_disable_index_value": [1],
            "sparse_topk_blocks": 2,
        },
    )
    assert info.config["n_layer"] == 1 and info.config["n_top_block"] == 2
    assert info.config["n_index_head"] == 2 and info.files == []
    with pytest.raises(ConfigError, match="'num_layers' is no field"):
        read_config(GOLDEN / "text_d32", hf_overrides={"num_layers": 1})


def test_dummy_needs_only_a_config() -> None:
    raw = json.loads((GOLDEN / "m31_d128" / "config.json").read_text())
    before = copy.deepcopy(raw)
    info = read_config(raw, hf_overrides={"hidden_size": 256})
    assert info.folder is None and info.config["d_model"] == 256
    assert raw == before


# ---------------------------------------------------------------- bad ones


def refuse(folder: Path, *words: str) -> None:
    with pytest.raises(ConfigError) as e:
        open_engine(read_checkpoint(folder))
    for word in words:
        assert word in str(e.value), str(e.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "silu"),
        ("scoring_func", "softmax"),
        ("use_gemma_norm", False),
        ("use_qk_norm", False),
        ("qk_norm_type", "per_layer"),
        ("attention_output_gate", True),
        ("tie_word_embeddings", True),
        ("attention_bias", True),
        ("rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("num_hidden_layers", 2),
        ("num_hidden_layers", 2**40),
        ("num_hidden_layers", None),
        ("moe_layer_freq", [0, 1, 2]),
        ("moe_layer_freq", "all"),
        ("hidden_size", "128"),
        ("hidden_size", 127.5),
        ("rotary_dim", 8),
        ("rotary_dim", 15),
        ("num_key_value_heads", 3),
        ("num_experts_per_tok", 9),
        ("rms_norm_eps", -1.0),
        ("eos_token_id", "</s>"),
    ],
)
def test_config_field_is_refused_by_name(folder: Path, field: str, value: Any) -> None:
    (folder / "generation_config.json").unlink()
    edit_config(folder, lambda c: c["text_config"].update({field: value}))
    refuse(folder, "sparse_attention_freq" if value == 2 else field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sparse_block_size", 64),
        ("sparse_score_type", "lse"),
        ("sparse_local_block", 2),
        ("sparse_init_block", 4),
        ("sparse_topk_blocks", 0),
        ("sparse_num_index_heads", 1),
        ("sparse_index_dim", 8),
        ("sparse_disable_index_value", [0, 0, 0]),
        ("sparse_attention_freq", [1, 0]),
    ],
)
def test_sparse_field_is_refused_by_name(folder: Path, field: str, value: Any) -> None:
    edit_config(
        folder, lambda c: c["text_config"]["sparse_attention_config"].update({field: value})
    )
    refuse(folder, field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quant_method", "gptq"),
        ("weight_block_size", [128, 128]),
        ("activation_scheme", "static"),
        ("moe_quant_algo", "INT4"),
        ("group_size", 32),
    ],
)
def test_quantization_is_refused_by_name(folder: Path, field: str, value: Any) -> None:
    edit_config(
        folder, lambda c: c.update({"quantization_config": {"quant_method": "mxfp8", field: value}})
    )
    refuse(folder, field)


def test_all_config_problems_at_once(folder: Path) -> None:
    edit_config(
        folder, lambda c: c["text_config"].update(hidden_act="gelu", scoring_func="softmax")
    )
    refuse(folder, "hidden_act", "scoring_func", "config.json")


def test_other_models_are_refused(folder: Path) -> None:
    def other(c: dict[str, Any]) -> None:
        c["architectures"], c["model_type"] = ["LlamaForCausalLM"], "llama"

    edit_config(folder, other)
    refuse(folder, "LlamaForCausalLM", "MiniMax-M3")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": {"b": 1, "b": 1}}', "twice"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "overflows"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[" * 100000, "nested"),
        (b"[1]", "object"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"{", "JSON"),
        (b"", "JSON"),
    ],
)
def test_json_is_read_strictly(text: bytes, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_object(text, "config.json")


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + n]), data[8 + n :]


def put_header(path: Path, header: dict[str, Any], body: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


NORM = "language_model.model.norm.weight"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"dtype": "F32"}, "expected 512"),
        ({"dtype": "F7"}, "unknown dtype"),
        ({"shape": [127]}, "expected 254"),
        ({"shape": [-128]}, "shape"),
        ({"shape": [128.0]}, "shape"),
        ({"shape": [True, 128]}, "shape"),
        ({"shape": [2**62, 2**62]}, "expected"),
        ({"shape": [1, 1, 1, 1, 1, 128]}, "at most 5"),
        ({"data_offsets": [0, 256]}, "overlaps"),
        ({"data_offsets": [5, 1]}, "data_offsets"),
        ({"data_offsets": [2**63, 2**63 + 256]}, "data_offsets"),
        ({"data_offsets": [0]}, "data_offsets"),
        ({"extra": 1}, "exactly"),
    ],
)
def test_header_entry_is_refused(folder: Path, change: dict[str, Any], word: str) -> None:
    header, body = header_of(folder / SINGLE)
    header[NORM].update(change)
    put_header(folder / SINGLE, header, body)
    refuse(folder, word, SINGLE)


def test_holes_and_tails_are_refused(folder: Path) -> None:
    header, body = header_of(folder / SINGLE)
    last = max(header, key=lambda n: header[n]["data_offsets"][1] if n != "__metadata__" else -1)
    moved = copy.deepcopy(header)
    moved[last]["data_offsets"] = [o + 8 for o in header[last]["data_offsets"]]
    put_header(folder / SINGLE, moved, body + bytes(8))
    refuse(folder, "hole of 8 bytes", last)
    put_header(folder / SINGLE, header, body + b"x")
    refuse(folder, "1 bytes after the last tensor", last)
    put_header(folder / SINGLE, header, body[:-1])
    refuse(folder, "truncated", last)


@pytest.mark.parametrize("n", [0, 7, 8, 9, 100, 5000])
def test_short_files_are_truncated(folder: Path, n: int) -> None:
    data = (folder / SINGLE).read_bytes()
    (folder / SINGLE).write_bytes(data[:n])
    refuse(folder, "truncated", SINGLE)


def test_header_length_is_bounded(folder: Path) -> None:
    data = (folder / SINGLE).read_bytes()
    for n in (2**64 - 1, 2**63, 100_000_001):
        (folder / SINGLE).write_bytes(struct.pack("<Q", n) + data[8:])
        refuse(folder, "header of")


def test_missing_pieces_are_named(folder: Path, tmp_path: Path) -> None:
    (folder / SINGLE).unlink()
    refuse(folder, SINGLE)
    (folder / "config.json").unlink()
    refuse(folder, "config.json")
    refuse(tmp_path / "nowhere", "nowhere", "no such folder")


def test_index_must_match_the_shards(tmp_path: Path) -> None:
    out = tmp_path / "sharded"
    shutil.copytree(GOLDEN / "m31_d128", out)
    index = json.loads((out / INDEX).read_text())
    name = next(iter(index["weight_map"]))
    good = index["weight_map"][name]

    def put(file: Any) -> None:
        index["weight_map"][name] = file
        (out / INDEX).write_text(json.dumps(index))

    put("model-00001-of-00003.safetensors")
    assert good != "model-00001-of-00003.safetensors"
    refuse(out, name, "the index says model-00001")
    for file in ("../x.safetensors", "/etc/passwd", 3, "", "a\0b"):
        put(file)
        refuse(out, name, "expected a file in the folder")
    put("model-00009-of-00003.safetensors")
    refuse(out, "model-00009", "missing")
    put(good)
    index["weight_map"]["model.extra"] = good
    (out / INDEX).write_text(json.dumps(index))
    refuse(out, "model.extra should be in")
    del index["weight_map"]["model.extra"], index["weight_map"][name]
    (out / INDEX).write_text(json.dumps(index))
    refuse(out, name, "the index says nothing")
    (out / INDEX).write_text("{}")
    refuse(out, "weight_map")
    shutil.copyfile(GOLDEN / "m31_d128" / INDEX, out / INDEX)
    (out / "model-00002-of-00003.safetensors").unlink()
    refuse(out, "1 of 3 shards are missing", "model-00002")


def test_tensor_errors_name_file_tensor_found_and_expected(folder: Path) -> None:
    tensors = read_raw(folder / SINGLE)
    dtype, shape, data = tensors[NORM]
    write_safetensors(folder / SINGLE, {**tensors, NORM: (dtype, [64], data[:128])})
    refuse(folder, SINGLE, NORM, "[64]", "[128]", "config.json")
    missing = {k: v for k, v in tensors.items() if k != NORM}
    write_safetensors(folder / SINGLE, missing)
    refuse(folder, "model.norm.weight", "missing", "[128]")
    write_safetensors(folder / SINGLE, {**tensors, "model.layers.9.x": ("F32", [1], bytes(4))})
    refuse(folder, "model.layers.9.x", "unknown")
    write_safetensors(folder / SINGLE, {**tensors, "model.norm.weight": tensors[NORM]})
    refuse(folder, "model.norm.weight", "twice")
    write_safetensors(folder / SINGLE, {**tensors, NORM: ("F64", [128], bytes(1024))})
    refuse(folder, NORM, "F64")


def test_nan_scale_is_refused(tmp_path: Path) -> None:
    source = GOLDEN / "m31_d128_nvfp4"
    shutil.copyfile(source / "config.json", tmp_path / "config.json")
    tensors = read_raw(source / SINGLE)
    for suffix, byte, word in (
        ("self_attn.q_proj.weight_scale_inv", 255, "0xFF"),
        ("experts.3.w2.weight_scale", 0x7F, "0x7F"),
    ):
        name = next(n for n in tensors if n.endswith(suffix))
        dtype, shape, data = tensors[name]
        bad = bytes([*data[:5], byte, *data[6:]])
        write_safetensors(tmp_path / SINGLE, {**tensors, name: (dtype, shape, bad)})
        refuse(tmp_path, name.removeprefix("language_model.").rpartition(".")[0], word, "NaN")


# ---------------------------------------------------------------- mutations

NASTY: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 64, 127, 128, 129, 1024, 2**15, 2**31 - 1, 2**31, 2**32,
    2**63, 2**64, -(2**31), 10**30, 0.0, -0.5, 1.5, 1e-300, 1e300, "", "x", "128", "\0", "é" * 300,
    [], [0], [1, 1, 1], [None], [[1]], {}, {"a": 1}, {"": {}},
]  # fmt: skip
TEXT_JUNK = [
    b"NaN",
    b"Infinity",
    b"1e999",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\0",
    b"\xff",
]


def mutate_value(rng: random.Random, root: Any) -> None:
    """Replaces, removes, renames or copies one value somewhere in the tree."""
    spots: list[tuple[Any, Any]] = []
    stack = [root]
    while stack:
        at = stack.pop()
        for key in list(at) if isinstance(at, dict) else range(len(at)):
            spots.append((at, key))
            if isinstance(at[key], (dict, list)):
                stack.append(at[key])
    at, key = rng.choice(spots)
    kind = rng.randrange(6)
    if kind <= 2:
        at[key] = copy.deepcopy(rng.choice(NASTY))
    elif kind == 3 and type(at[key]) in (int, float):
        at[key] += rng.choice([-1, 1, 2, 128, -at[key], at[key]])
    elif kind == 4:
        del at[key]
    elif isinstance(at, dict):
        at[rng.choice(["x", str(key) + "2", str(key)[:-1], *map(str, at)])] = at.pop(key)
    else:
        at.append(copy.deepcopy(at[key]))


def mutate_bytes(rng: random.Random, text: bytes) -> bytes:
    out = bytearray(text)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        i = rng.randrange(len(out) + 1)
        kind = rng.randrange(5)
        if kind == 0 and out:
            out[min(i, len(out) - 1)] = rng.randrange(256)
        elif kind == 1:
            del out[i : i + rng.randrange(1, 40)]
        elif kind == 2:
            out[i:i] = rng.choice(TEXT_JUNK)
        elif kind == 3:
            j = rng.randrange(len(out) + 1)
            out[i:i] = out[j : j + rng.randrange(1, 60)]
        else:
            del out[i:]
    return bytes(out)


def mutate_json(rng: random.Random, text: bytes) -> bytes:
    if rng.random() < 0.4:
        return mutate_bytes(rng, text)
    tree = json.loads(text)
    for _ in range(rng.choice([1, 1, 2, 3])):
        mutate_value(rng, tree)
    return json.dumps(tree).encode()


def mutate_file(rng: random.Random, data: bytes) -> bytes:
    """A shard: its header, the header's length, its end, or its data."""
    (n,) = struct.unpack("<Q", data[:8])
    kind = rng.randrange(10)
    if kind < 7:
        text = mutate_json(rng, data[8 : 8 + n])
        length = (
            len(text) if rng.random() < 0.9 else rng.choice([0, 1, n + 1, n - 1, 2**40, 2**64 - 1])
        )
        return struct.pack("<Q", length) + text + data[8 + n :]
    if kind == 7:
        return data[: rng.randrange(len(data))]
    if kind == 8:
        return data + bytes(rng.randrange(1, 100))
    out = bytearray(data)
    for _ in range(rng.randrange(1, 200)):
        out[rng.randrange(8 + n, len(out))] = rng.choice([0, 0x7F, 0xFF, rng.randrange(256)])
    return bytes(out)


N_MUTATION = 2200


@pytest.mark.parametrize("case", ["text_d32", "m31_d128_nvfp4", "m31_d128"])
def test_mutated_checkpoints_end_as_our_errors(case: str, tmp_path: Path) -> None:
    """Never a crash, never another exception. Some mutations are harmless and must still open."""
    rng = random.Random(f"mutations of {case}")
    out = tmp_path / case
    out.mkdir()
    names = [
        f.name for f in (GOLDEN / case).iterdir() if f.name != "golden.safetensors" and f.is_file()
    ]
    good = {name: (GOLDEN / case / name).read_bytes() for name in sorted(names)}
    for name, data in good.items():
        (out / name).write_bytes(data)
    n_opened = n_refused = 0
    for _ in range(N_MUTATION // 3 + 1):
        name = rng.choice(["config.json", *good])
        data = good[name]
        is_shard = name.endswith(".safetensors")
        (out / name).write_bytes(mutate_file(rng, data) if is_shard else mutate_json(rng, data))
        try:
            open_engine(read_checkpoint(out))
            n_opened += 1
        except OURS as e:
            assert str(e), "an error without words"
            n_refused += 1
        (out / name).write_bytes(data)
    assert n_refused > 300 and n_opened > 20, (n_opened, n_refused)
    open_engine(read_checkpoint(out))

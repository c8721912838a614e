"""A checkpoint folder -> what the core needs to open it: config, files, tensor table.

Only config.json, generation_config.json, the index and the headers of the shards are read. Every
stage (config, files, headers) reports all its problems in one ConfigError; the core then checks
names and shapes against the model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from .errors import ConfigError
from .model_config import ModelConfig, apply_overrides, read_model_config
from .safetensors import Tensor, read_header
from .strict_json import parse_object

log = logging.getLogger("minimax_m31")

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_JSON = 256 << 20

# (name, file index, dtype, shape, offset in the file, bytes)
TensorEntry = tuple[str, int, str, tuple[int, ...], int, int]

# Parts of a released checkpoint that the text model does not read.
_OTHER_PARTS = ("vision_tower.", "multi_modal_projector.", "patch_merge_mlp.", "mtp.", "dspark.")
_CORE_DTYPES = {"F32", "BF16", "F8_E4M3", "U8", "I16", "I32", "I64", "F16"}


@dataclass
class CheckpointInfo:
    """`config`, `files` and `tensors` go to the core as they are; the rest is for callers."""

    folder: Path | None
    files: list[str]
    tensors: list[TensorEntry]
    config: dict[str, Any]
    raw_config: dict[str, Any]
    generation_config: dict[str, Any]
    eos_token_ids: list[int]
    bos_token_id: int | None
    max_model_len: int
    quantization: str
    unused: list[str] = field(default_factory=list)
    draft_folder: Path | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t[5] for t in self.tensors)


def read_checkpoint(
    folder: str | os.PathLike[str], *, hf_overrides: Mapping[str, Any] | None = None
) -> CheckpointInfo:
    """Reads everything but the weights of a local checkpoint folder."""
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(
            f"{root}: no such folder; give a folder with config.json and model.safetensors"
        )
    model, generation = _read_configs(root, hf_overrides)
    files, headers = _read_shards(root)
    tensors, unused = _table(files, headers)
    draft = root / "dspark"
    return _info(
        model,
        generation,
        folder=root,
        files=files,
        tensors=tensors,
        quantization=describe_formats(tensors),
        unused=unused,
        draft_folder=draft if (draft / "config.json").is_file() else None,
    )


def read_config(
    source: str | os.PathLike[str] | Mapping[str, Any],
    *,
    hf_overrides: Mapping[str, Any] | None = None,
) -> CheckpointInfo:
    """Only the config, for `load_format="dummy"`: a folder, or what a config.json holds."""
    if isinstance(source, Mapping):
        model = _model_config(source, None, hf_overrides, "config")
        return _info(model, {}, folder=None, files=[], tensors=[], quantization="dummy")
    root = Path(source)
    if not root.is_dir():
        raise ConfigError(f"{root}: no such folder; give a folder with config.json")
    model, generation = _read_configs(root, hf_overrides)
    return _info(model, generation, folder=root, files=[], tensors=[], quantization="dummy")


def _info(model: ModelConfig, generation: dict[str, Any], **rest: Any) -> CheckpointInfo:
    return CheckpointInfo(
        config=model.core,
        raw_config=model.raw,
        generation_config=generation,
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
        max_model_len=model.max_model_len,
        **rest,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; the checkpoint is incomplete, fetch it again")
    if path.stat().st_size > MAX_JSON:
        raise ConfigError(f"{path}: {path.stat().st_size} bytes, too large for this file")
    return parse_object(path.read_bytes(), str(path))


def _read_configs(
    root: Path, overrides: Mapping[str, Any] | None
) -> tuple[ModelConfig, dict[str, Any]]:
    raw = _read_json(root / "config.json")
    path = root / "generation_config.json"
    generation = _read_json(path) if path.exists() else {}
    return _model_config(raw, generation, overrides, str(root / "config.json")), generation


def _model_config(
    raw: Mapping[str, Any],
    generation: Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None,
    what: str,
) -> ModelConfig:
    model = read_model_config(apply_overrides(raw, overrides), generation, what)
    if model.dropped_token_ids:
        log.warning(
            "%s: %s outside vocab_size %d ignored%s",
            what,
            " and ".join(f"{name} {ids}" for name, ids in model.dropped_token_ids.items()),
            model.core["n_vocab"],
            "" if model.eos_token_ids else "; no end token is left: only limits and stops end text",
        )
    return model


# ---------------------------------------------------------------- shards


def _read_shards(root: Path) -> tuple[list[str], list[list[Tensor]]]:
    index = root / INDEX
    if not index.exists():
        if not (root / SINGLE).exists():
            raise ConfigError(
                f"{root}: neither {SINGLE} nor {INDEX} is there; fetch the checkpoint again"
            )
        return [str(root / SINGLE)], [read_header(root / SINGLE)]
    where = _weight_map(index)
    names = sorted(set(where.values()))
    if (root / SINGLE).exists() and SINGLE not in names:
        raise ConfigError(
            f"{root}: both {SINGLE} and {INDEX} are there, which do not match; remove one"
        )
    missing = [n for n in names if not (root / n).is_file()]
    if missing:
        raise ConfigError(
            f"{root}: {len(missing)} of {len(names)} shards are missing: "
            f"{_some(missing)}; fetch them"
        )
    problems: list[str] = []
    headers: list[list[Tensor]] = []
    for name in names:
        try:
            headers.append(read_header(root / name))
        except ConfigError as e:
            problems.append(str(e))
    if problems:
        raise ConfigError("\n".join(problems))
    _match_index(index, where, names, headers)
    return [str(root / n) for n in names], headers


def _some(names: list[str], limit: int = 10) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _weight_map(index: Path) -> dict[str, str]:
    where = _read_json(index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ConfigError(f"{index}: weight_map is missing or empty; fetch the file again")
    for name, file in where.items():
        if not isinstance(file, str) or not _is_inside(file):
            raise ConfigError(
                f"{index}: {name} is in {str(file)[:80]!r}, expected a file in the folder"
            )
    return where


def _is_inside(file: str) -> bool:
    path = PurePosixPath(file)
    return (
        bool(file)
        and "\0" not in file
        and len(file) < 256
        and not path.is_absolute()
        and ".." not in path.parts
        and file.isprintable()
    )


def _match_index(
    index: Path, where: dict[str, str], names: list[str], headers: list[list[Tensor]]
) -> None:
    problems: list[str] = []
    found: dict[str, str] = {}
    for file, header in zip(names, headers, strict=True):
        for t in header:
            if t.name in found:
                problems.append(f"{t.name} is in both {found[t.name]} and {file}")
            elif where.get(t.name) != file:
                problems.append(
                    f"{t.name} is in {file}, the index says {where.get(t.name, 'nothing')}"
                )
            found[t.name] = file
    problems += [
        f"{name} should be in {file} and is not"
        for name, file in where.items()
        if name not in found
    ]
    if problems:
        raise ConfigError(
            f"{index} does not match the shards: "
            + "\n  ".join([*problems[:20], *(["..."] if len(problems) > 20 else [])])
        )


# ---------------------------------------------------------------- table


def is_other_part(name: str) -> bool:
    """True for tensors of the vision tower, the draft and MTP layers."""
    return any(part in name for part in _OTHER_PARTS) or name.endswith(".rotary_emb.inv_freq")


def _table(files: list[str], headers: list[list[Tensor]]) -> tuple[list[TensorEntry], list[str]]:
    tensors: list[TensorEntry] = []
    unused: list[str] = []
    problems: list[str] = []
    for i, header in enumerate(headers):
        for t in header:
            other = is_other_part(t.name)
            if other:
                unused.append(t.name)
            dtype = (
                "U8" if t.dtype == "F8_E8M0" else t.dtype
            )  # scales of 8 exponent bits, by either name
            if dtype in _CORE_DTYPES:
                tensors.append((t.name, i, dtype, t.shape, t.offset, t.n_bytes))
            elif not other:
                problems.append(
                    f"{files[i]}: {t.name} is {t.dtype}, expected BF16, F32, F8_E4M3 or U8"
                )
    if problems:
        raise ConfigError("\n".join(problems[:20]))
    if not tensors:
        raise ConfigError(f"{_some(files)}: no tensors; fetch the checkpoint again")
    tensors.sort(key=lambda e: e[0].encode())
    return tensors, sorted(unused)


def describe_formats(tensors: list[TensorEntry]) -> str:
    """What the text model's matrices are stored as, e.g. "nvfp4 experts, mxfp8 linears"."""
    names = {e[0]: e[2] for e in tensors if not is_other_part(e[0])}
    kinds: dict[str, set[str]] = {"experts": set(), "linears": set()}
    for name, dtype in names.items():
        base, _, last = name.rpartition(".")
        if (
            last not in ("weight", "weight_packed")
            or "proj" not in base
            and ".experts." not in base
        ):
            continue
        where = "experts" if ".block_sparse_moe.experts." in base else "linears"
        if last == "weight_packed" or dtype == "U8":
            kinds[where].add("nvfp4")
        else:
            kinds[where].add("mxfp8" if dtype == "F8_E4M3" else dtype.lower())
    return ", ".join(f"{'/'.join(sorted(v))} {k}" for k, v in kinds.items() if v)

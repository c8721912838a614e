"""Small checkpoints that the API tests open: the golden ones by token ids, and a dummy one with a
tokenizer.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from minimax_m31 import LLM

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "tests" / "golden"
IDS_MODEL = GOLDEN / "text_d32"  # 256 ids, no tokenizer, trained by nobody: random weights
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
BACKEND = os.environ.get("MM_TEST_BACKEND", "cpu")  # what tests use that do not compare backends
SMALL: dict[str, Any] = {
    "max_model_len": 2048,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "threads": 1,
}


def ids_llm(backend: str = BACKEND, **kwargs: Any) -> LLM:
    """By token ids. The media placeholders of the config are taken out: golden runs may draw those
    ids.
    """
    no_media = {"image_token_index": None, "video_token_index": None}
    return LLM(
        IDS_MODEL,
        **{"backend": backend, "dtype": "float32", "hf_overrides": no_media, **SMALL, **kwargs},
    )


def make_text_model(folder: Path, source: Path = ROOT / "minimax_m31" / "nano") -> Path:
    """A folder with a real tokenizer and chat template, and a config for dummy weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, folder / name)
    config = json.loads((IDS_MODEL / "config.json").read_text())
    added = {
        token["content"]: token["id"]
        for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    }
    config["text_config"]["vocab_size"] = max(added.values()) + 1
    config["image_token_index"], config["video_token_index"] = (
        added["]<]image[>["],
        added["]<]video[>["],
    )
    eos = added["[e~["]
    config["text_config"]["eos_token_id"] = eos
    config["text_config"]["bos_token_id"] = added["]~b]"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": eos, "temperature": 0.7, "top_k": 40})
    )
    return folder


def text_llm(folder: Path, backend: str = BACKEND, **kwargs: Any) -> LLM:
    if not (folder / "config.json").exists():
        make_text_model(folder)
    return LLM(
        folder,
        **{
            "backend": backend,
            "load_format": "dummy",
            "dtype": "float32",
            "seed": 3,
            **SMALL,
            **kwargs,
        },
    )


def threads_of_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def rss_bytes() -> int:
    """Anonymous resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")

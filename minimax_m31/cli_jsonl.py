"""generate -o out.jsonl: one JSON line per prompt, written as soon as it has finished: a run that
ends early has lost nothing. --resume continues such a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    from .llm import LLM
    from .params import SamplingParams


def add_flags(parser: Any) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, help="write JSON lines here as prompts finish (index: which)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="with -o: leave out the prompts that are in the file"
    )


def check_path(path: Path, resume: bool) -> None:
    """Before anything is loaded: may this file be written?"""
    if not path.parent.is_dir():
        raise ConfigError(f"-o {path}: the folder {path.parent} is missing; make it")
    if path.is_dir():
        raise ConfigError(f"-o {path}: it is a folder; give a file's name")
    if path.exists() and path.stat().st_size > 0 and not resume:
        raise ConfigError(f"-o {path}: the file exists; --resume continues it, or remove it")


def _done(path: Path, prompts: list[Any]) -> set[int]:
    """Indices that the file holds. A line cut short by a crash is taken off."""
    found: set[int] = set()
    if not path.exists():
        return found
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            output = json.loads(line)
            index, prompt = output["index"], output["prompt"]
            ids = output["prompt_token_ids"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"-o {path}: line {number} is no output of generate; give another file"
            ) from None
        known = isinstance(index, int) and 0 <= index < len(prompts)
        if not known or prompts[index] not in (prompt, ids):
            raise ConfigError(
                f"-o {path}: line {number} belongs to another prompt (index {index}); --resume "
                "needs the same prompts in the same order"
            )
        found.add(index)
    if len(whole) < len(data):
        path.write_bytes(whole)
    return found


def write_outputs(
    llm: LLM, prompts: list[Any], params: SamplingParams, path: Path, resume: bool
) -> int:
    """Runs what is not in the file yet; returns how many that were."""
    done = _done(path, prompts) if resume else set()
    left = [i for i in range(len(prompts)) if i not in done]
    with open(path, "a" if resume else "w", encoding="utf-8") as file:
        for at, output in llm.generate_iter([prompts[i] for i in left], params):
            output.index = left[at]
            file.write(output.to_json() + "\n")
            file.flush()
    return len(left)

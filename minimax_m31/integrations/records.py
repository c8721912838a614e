"""What was run, for the report of an evaluation: one JSON line for each sample."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..llm import LLM
from ..outputs import RequestOutput
from ..params import SamplingParams


@dataclasses.dataclass
class EvalRecord:
    """Enough to replay a sample, and to say with what it was made."""

    request_id: str
    index: int
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    seed: int | None  # of this sample: n=1 with it repeats the sample
    params: dict[str, Any]  # the fields that differ from their defaults
    weight_version: int | None
    fingerprint: str

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, allow_nan=False)


def records(
    llm: LLM, outputs: Iterable[RequestOutput], params: SamplingParams
) -> Iterator[EvalRecord]:
    """One record for each sample of these outputs."""
    mark = str(llm.fingerprint()["id"])
    changed = {name: _plain(value) for name, value in params.changed().items()}
    for output in outputs:
        for one in output.outputs:
            yield EvalRecord(
                request_id=output.request_id,
                index=output.index,
                prompt_token_ids=list(output.prompt_token_ids),
                output_token_ids=list(one.token_ids),
                text=one.text,
                finish_reason=one.finish_reason,
                stop_reason=one.stop_reason,
                seed=one.seed,
                params=changed,
                weight_version=output.weight_version,
                fingerprint=mark,
            )


def write_records(path: str | Path, found: Iterable[EvalRecord]) -> int:
    """Appends them to a file of JSON lines; returns how many."""
    count = 0
    with open(path, "a", encoding="utf-8") as file:
        for record in found:
            file.write(record.to_json() + "\n")
            count += 1
    return count


def _plain(value: Any) -> Any:
    """JSON-able: dataclasses become dicts, everything else that JSON does not know its text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, (str, int, float, bool, type(None), list, dict)):
        return value
    return str(value)

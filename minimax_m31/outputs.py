"""Results: RequestOutput and what hangs from it.

Plain data: picklable, no reference to the engine, a short repr whatever the size. Token ids are
real lists, as the core produced them; arrays are NumPy's. `to_dict` gives plain JSON-able data in
which no number is infinite.
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .logprobs import FlatLogprobs, Logprob, LogprobRows

if TYPE_CHECKING:
    from .chat.types import Delta, Message

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]
LogprobList = FlatLogprobs | LogprobRows

__all__ = [
    "CompletionOutput",
    "FlatLogprobs",
    "Logprob",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "SpecMetrics",
]


def short(text: str | None, limit: int = 80) -> str:
    """A repr that does not grow with the text."""
    if text is None:
        return "None"
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"


def _short_ids(ids: Sequence[int]) -> str:
    if len(ids) <= 8:
        return repr(list(ids))
    return f"[{', '.join(map(str, ids[:6]))}, ... {len(ids)} ids]"


def finite(value: float, nonfinite: float | None) -> float | None:
    return float(value) if math.isfinite(value) else nonfinite


def _logprobs_plain(rows: LogprobList | None, nonfinite: float | None) -> list[Any] | None:
    if rows is None:
        return None
    out: list[Any] = []
    for row in rows:
        if row is None:
            out.append(None)
            continue
        out.append(
            {
                str(token): {
                    "logprob": finite(entry.logprob, nonfinite),
                    "rank": entry.rank,
                    "decoded_token": entry.decoded_token,
                }
                for token, entry in row.items()
            }
        )
    return out


@dataclasses.dataclass
class RequestError:
    """Why a request ended with finish_reason "error", or was refused (`on_error="return"`)."""

    code: str
    message: str
    param: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass
class SpecMetrics:
    """Speculative decoding of one request; all 0 without it."""

    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_verify_steps: int = 0

    @property
    def mean_accept_len(self) -> float:
        """Tokens emitted per verified step."""
        steps = self.num_verify_steps
        return (self.num_accepted_tokens + steps) / steps if steps else 0.0


@dataclasses.dataclass
class RequestMetrics:
    """Times in seconds of one monotonic clock; 0 where the request never got there."""

    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    finished_ts: float = 0.0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_thinking_tokens: int = 0
    spec: SpecMetrics = dataclasses.field(default_factory=SpecMetrics)

    @property
    def queue_time(self) -> float:
        return max(0.0, self.scheduled_ts - self.arrival_time) if self.scheduled_ts else 0.0

    @property
    def ttft(self) -> float:
        """Arrival to first token."""
        return max(0.0, self.first_token_ts - self.arrival_time) if self.first_token_ts else 0.0

    @property
    def tpot(self) -> float:
        """Time per token after the first."""
        more = self.num_generation_tokens - 1
        return (self.last_token_ts - self.first_token_ts) / more if more > 0 else 0.0

    @property
    def e2e(self) -> float:
        return max(0.0, self.finished_ts - self.arrival_time) if self.finished_ts else 0.0

    def to_dict(self) -> dict[str, Any]:
        out = dataclasses.asdict(self)
        out["spec"]["mean_accept_len"] = self.spec.mean_accept_len
        return out | {
            "queue_time": self.queue_time,
            "ttft": self.ttft,
            "tpot": self.tpot,
            "e2e": self.e2e,
        }


@dataclasses.dataclass(repr=False)
class CompletionOutput:
    """One sample. `text` is a view of `token_ids`; the ids are never trimmed or re-encoded."""

    index: int = 0
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: LogprobList | None = None
    finish_reason: str | None = None  # "stop", "length", "abort", "error"; None while running
    stop_reason: int | str | None = None
    num_text_tokens: int = 0  # leading tokens whose text lies wholly before a stop cut
    token_logprobs: FloatArray | None = None  # of the sampled tokens, in the chosen mode
    sampling_logprobs: FloatArray | None = None  # under the distribution drawn from
    message: Message | None = None  # chat with parse=True
    deltas: list[Delta] | None = None  # chat streams: what this piece adds to the message
    seed: int | None = None  # of this sample
    num_preempted: int = 0
    weight_versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    routed_experts: Any = None

    @property
    def token_ids_np(self) -> IntArray:
        return np.asarray(self.token_ids, dtype=np.int32)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompletionOutput):
            return NotImplemented
        for field in dataclasses.fields(self):
            a, b = getattr(self, field.name), getattr(other, field.name)
            same = (
                np.array_equal(a, b, equal_nan=True)
                if isinstance(a, np.ndarray) and b is not None
                else a == b
            )
            if not same:
                return False
        return True

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self, nonfinite: float | None = None) -> dict[str, Any]:
        """Plain data; numbers that are not finite become `nonfinite` (None, or for example
        -9999.0).
        """

        def plain(values: FloatArray | None) -> list[float | None] | None:
            return None if values is None else [finite(v, nonfinite) for v in values.tolist()]

        total = self.cumulative_logprob
        return {
            "index": self.index,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "stop_reason": self.stop_reason,
            "num_text_tokens": self.num_text_tokens,
            "cumulative_logprob": None if total is None else finite(total, nonfinite),
            "logprobs": _logprobs_plain(self.logprobs, nonfinite),
            "token_logprobs": plain(self.token_logprobs),
            "sampling_logprobs": plain(self.sampling_logprobs),
            "message": None if self.message is None else self.message.to_dict(),
            "seed": self.seed,
            "num_preempted": self.num_preempted,
            "weight_versions": [list(pair) for pair in self.weight_versions],
        }

    def to_json(self, nonfinite: float | None = None) -> str:
        return json.dumps(self.to_dict(nonfinite), ensure_ascii=False, allow_nan=False)

    def __repr__(self) -> str:
        parts = [f"index={self.index}"]
        if self.message is not None:
            parts.append(f"message={self.message!r}")
        parts += [
            f"text={short(self.text)}",
            f"token_ids={_short_ids(self.token_ids)}",
            f"finish_reason={self.finish_reason!r}",
        ]
        if self.stop_reason is not None:
            parts.append(f"stop_reason={self.stop_reason!r}")
        if self.logprobs is not None:
            parts.append(f"logprobs={self.logprobs!r}")
        return f"CompletionOutput({', '.join(parts)})"

    def _repr_html_(self) -> str:
        if self.message is None:
            return (
                f"<pre>{html.escape(self.text)}</pre><small>{html.escape(self._ending())}</small>"
            )
        thought = self.message.reasoning_content
        fold = (
            ""
            if not thought
            else f"<details><summary>thinking</summary><pre>{html.escape(thought)}</pre></details>"
        )
        calls = "".join(
            f"<pre>{html.escape(f'{call.function.name}({call.function.arguments})')}</pre>"
            for call in self.message.tool_calls
        )
        ending = f"<small>{html.escape(self._ending())}</small>"
        return f"{fold}<pre>{html.escape(self.message.content)}</pre>{calls}{ending}"

    def _ending(self) -> str:
        reason = "" if self.stop_reason is None else f" ({self.stop_reason!r})"
        return f"{len(self.token_ids)} tokens, {self.finish_reason or 'running'}{reason}"


@dataclasses.dataclass(repr=False)
class RequestOutput:
    """Everything about one prompt. `index` is its position in the call."""

    request_id: str = ""
    index: int = 0
    prompt: str | None = None
    prompt_token_ids: list[int] = dataclasses.field(default_factory=list)
    prompt_logprobs: LogprobList | None = None
    outputs: list[CompletionOutput] = dataclasses.field(default_factory=list)
    finished: bool = False
    num_cached_tokens: int = 0
    num_truncated_tokens: int = 0
    metrics: RequestMetrics = dataclasses.field(default_factory=RequestMetrics)
    seed: int | None = None
    weight_version: int = 0
    error: RequestError | None = None
    extra_args: dict[str, Any] | None = None

    # Attributes of other engines that have no counterpart here.
    kv_transfer_params = None
    lora_request = None
    encoder_prompt = None
    encoder_prompt_token_ids = None

    def to_dict(self, nonfinite: float | None = None) -> dict[str, Any]:
        """Plain data; numbers that are not finite become `nonfinite` (None, or for example
        -9999.0).
        """
        return {
            "request_id": self.request_id,
            "index": self.index,
            "prompt": self.prompt,
            "prompt_token_ids": list(self.prompt_token_ids),
            "prompt_logprobs": _logprobs_plain(self.prompt_logprobs, nonfinite),
            "outputs": [output.to_dict(nonfinite) for output in self.outputs],
            "finished": self.finished,
            "num_cached_tokens": self.num_cached_tokens,
            "num_truncated_tokens": self.num_truncated_tokens,
            "metrics": self.metrics.to_dict(),
            "seed": self.seed,
            "weight_version": self.weight_version,
            "error": None if self.error is None else self.error.to_dict(),
        }

    def to_json(self, nonfinite: float | None = None) -> str:
        return json.dumps(self.to_dict(nonfinite), ensure_ascii=False, allow_nan=False)

    def to_pandas(self) -> Any:
        """A data frame with one row per sample; needs pandas."""
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from error
        rows = []
        for output in self.outputs:
            row = output.to_dict()
            del row["logprobs"]
            rows.append({"request_id": self.request_id, "prompt": self.prompt, **row})
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        parts = [f"request_id={self.request_id!r}"]
        if self.prompt is not None:
            parts.append(f"prompt={short(self.prompt)}")
        parts.append(f"prompt_token_ids={_short_ids(self.prompt_token_ids)}")
        if self.error is not None:
            parts.append(f"error={self.error.code!r}: {short(self.error.message)}")
        head = f"RequestOutput({', '.join(parts)}, finished={self.finished}"
        lines = [f"    {output!r}" for output in self.outputs[:6]]
        if len(self.outputs) > 6:
            lines.append(f"    ... {len(self.outputs)} outputs")
        return "\n".join([head + ", outputs=[", *lines, "])"]) if lines else head + ", outputs=[])"

    def _repr_html_(self) -> str:
        head = f"<b>{html.escape(self.request_id)}</b>"
        if self.prompt is not None:
            head += f" <code>{html.escape(short(self.prompt, 200))}</code>"
        if self.error is not None:
            head += f"<p>{html.escape(self.error.code)}: {html.escape(self.error.message)}</p>"
        return head + "".join(output._repr_html_() for output in self.outputs[:16])

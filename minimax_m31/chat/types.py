"""Result types of chat: Message, ToolCall, Delta, ParseError.

Plain data, picklable, no reference to an engine. `to_dict()` gives the shape of OpenAI's chat
completions.
"""

from __future__ import annotations

import dataclasses
import json
import secrets
from typing import Any, NamedTuple


class Span(NamedTuple):
    """A run of characters (code points) of the raw text; equal to the plain tuple (kind, start,
    end).
    """

    kind: str  # "reasoning", "content", "call" or "dropped"
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class ParseError:
    """What was malformed in a model's output. `more` holds the later ones; the first is the object
    itself.
    """

    code: str
    span: tuple[int, int]
    more: tuple[ParseError, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "span": list(self.span),
            "more": [error.to_dict() for error in self.more],
        }


def new_call_id() -> str:
    """`call_` and 24 hexadecimal digits from the system's random source, so forks do not repeat
    ids.
    """
    return "call_" + secrets.token_hex(12)


@dataclasses.dataclass
class FunctionCall:
    name: str
    arguments: str  # a JSON object as text

    def __getitem__(self, key: str) -> str:
        if key not in ("name", "arguments"):
            raise KeyError(key)
        return str(getattr(self, key))

    def to_dict(self) -> dict[str, str]:
        return {"name": self.name, "arguments": self.arguments}


@dataclasses.dataclass
class ToolCall:
    id: str
    function: FunctionCall
    type: str = "function"

    def parsed_arguments(self) -> dict[str, Any]:
        """The arguments as a dict (a new one each time)."""
        value = json.loads(self.function.arguments or "{}")
        if not isinstance(value, dict):
            raise ValueError(f"arguments of {self.function.name!r} are not a JSON object")
        return value

    def __getitem__(self, key: str) -> Any:
        if key not in ("id", "type", "function"):
            raise KeyError(key)
        return getattr(self, key)

    def to_dict(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": self.function.to_dict()}


@dataclasses.dataclass
class Message:
    """One parsed assistant message.

    `content` is "" when there is none, `reasoning_content` None. `raw_spans` partitions the
    characters of the raw text: the "reasoning" and "content" runs joined are those two fields.
    """

    role: str = "assistant"
    content: str = ""
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] = dataclasses.field(default_factory=list)
    parse_error: ParseError | None = None
    raw_spans: list[Span] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's shape; absent parts are left out. Fit to be appended to `messages` of the next
        call.
        """
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning_content is not None:
            out["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            out["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return out

    def __repr__(self) -> str:
        parts = [f"role={self.role!r}"]
        if self.reasoning_content is not None:
            parts.append(f"reasoning_content={_short(self.reasoning_content)}")
        parts.append(f"content={_short(self.content)}")
        if self.tool_calls:
            names = ", ".join(call.function.name for call in self.tool_calls[:8])
            parts.append(f"tool_calls=[{names}{', ...' if len(self.tool_calls) > 8 else ''}]")
        if self.parse_error is not None:
            parts.append(f"parse_error={self.parse_error.code!r}")
        if self.finish_reason is not None:
            parts.append(f"finish_reason={self.finish_reason!r}")
        return f"Message({', '.join(parts)})"


@dataclasses.dataclass
class Delta:
    """What one piece of a stream adds. Absent parts are None; a tool call arrives whole, in one
    delta.
    """

    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None

    def to_dict(self) -> dict[str, Any]:
        fields = ("reasoning_content", "content", "tool_calls")
        return {name: value for name in fields if (value := getattr(self, name)) is not None}


def finish_reason_of(
    calls: list[ToolCall], finish_reason: str | None, stop_reason: int | str | None = None
) -> str | None:
    """The message's finish reason: "tool_calls" when calls exist and the stop was the end token.

    `finish_reason` and `stop_reason` are those of the generated sequence; a stop at the end token
    is ("stop", None).
    """
    if calls and finish_reason == "stop" and stop_reason is None:
        return "tool_calls"
    return finish_reason


def _short(text: str, limit: int = 60) -> str:
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}... ({len(text)} characters)"

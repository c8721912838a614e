"""Golden chat cases, and what two parses must agree in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from minimax_m31.chat import Message, ParseError, StreamParser, ToolCall

GOLDEN = Path(__file__).parent / "golden" / "chat"
TOKENIZER = GOLDEN / "tiny_tokenizer"
NS = "]<]minimax[>["


def load(name: str) -> list[dict[str, Any]]:
    return list(json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8")))


def ids(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


def arguments(case: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `render` in a golden case."""
    return {key: case[key] for key in case if key not in ("name", "kind", "expected")}


def tools_of(case: dict[str, Any]) -> list[Any] | None:
    return None if case.get("tool_choice") == "none" else case.get("tools")


def calls_of(calls: list[ToolCall]) -> list[dict[str, str]]:
    return [{"name": call.function.name, "arguments": call.function.arguments} for call in calls]


def errors_of(error: ParseError | None) -> list[tuple[str, tuple[int, int]]]:
    if error is None:
        return []
    return [(one.code, one.span) for one in (error, *error.more)]


def view(message: Message) -> tuple[Any, ...]:
    """Everything of a message but the random call ids."""
    return (
        message.reasoning_content,
        message.content,
        calls_of(message.tool_calls),
        errors_of(message.parse_error),
        message.raw_spans,
    )


def stream(pieces: list[str], start: str, tools: list[Any] | None) -> tuple[Message, Message]:
    """(what the parser says at the end, what its deltas add up to)."""
    parser = StreamParser(start, tools)
    total = Message()
    indices = []
    for piece in [*pieces, None]:
        for delta in parser.finish() if piece is None else parser.feed(piece):
            total.content += delta.content or ""
            if delta.reasoning_content is not None:
                total.reasoning_content = (total.reasoning_content or "") + delta.reasoning_content
            for call in delta.tool_calls or ():
                indices.append(call["index"])
                total.tool_calls.append(
                    ToolCall(
                        call["id"],
                        type(parser.message().tool_calls[0].function)(**call["function"]),
                    )
                )
    assert indices == list(range(len(indices)))
    return parser.message(), total


def check_spans(text: str, message: Message) -> None:
    """raw_spans are maximal runs that partition the text, and hold the fields."""
    at = 0
    for i, (kind, start, end) in enumerate(message.raw_spans):
        assert start == at < end
        assert kind in ("reasoning", "content", "call", "dropped")
        assert i == 0 or message.raw_spans[i - 1].kind != kind
        at = end
    assert at == len(text)

    def joined(kind: str) -> str:
        return "".join(text[start:end] for k, start, end in message.raw_spans if k == kind)

    assert joined("reasoning") == (message.reasoning_content or "")
    assert joined("content") == message.content
    assert bool(joined("call")) == bool(message.tool_calls)

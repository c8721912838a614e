"""`display_stream`: show a chat stream as it arrives, in a terminal or a notebook, and return the
whole of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO

from .types import Delta, FunctionCall, Message, ToolCall

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


def display_stream(
    stream: Iterable[Any], file: TextIO | None = None, show_reasoning: bool = True
) -> Message:
    """Print reasoning, text and calls while they come; returns the message that they add up to.

    `stream` yields `Delta`s, or the pieces of `chat_stream` (their first sample's `deltas`).
    """
    out = file if file is not None else sys.stdout
    colour = bool(getattr(out, "isatty", lambda: False)())
    reasoning: list[str] = []
    content: list[str] = []
    calls: list[ToolCall] = []
    channel = ""
    for delta in _deltas(stream):
        if delta.reasoning_content:
            reasoning.append(delta.reasoning_content)
            if show_reasoning:
                if channel != "reasoning":
                    out.write(_DIM if colour else "[thinking] ")
                    channel = "reasoning"
                out.write(delta.reasoning_content)
        if delta.content:
            channel = _leave(out, channel, colour)
            content.append(delta.content)
            out.write(delta.content)
        for call in delta.tool_calls or ():
            channel = _leave(out, channel, colour)
            function = call["function"]
            calls.append(
                ToolCall(call["id"], FunctionCall(function["name"], function["arguments"]))
            )
            out.write(f"\n[call] {function['name']}({function['arguments']})\n")
        out.flush()
    _leave(out, channel, colour)
    out.write("\n")
    out.flush()
    return Message(
        content="".join(content), reasoning_content="".join(reasoning) or None, tool_calls=calls
    )


def _leave(out: TextIO, channel: str, colour: bool) -> str:
    if channel == "reasoning":
        out.write((_PLAIN if colour else "") + "\n\n")
    return ""


def _deltas(stream: Iterable[Any]) -> Iterable[Delta]:
    for item in stream:
        if isinstance(item, Delta):
            yield item
        else:
            yield from item.outputs[0].deltas or ()

"""Chat: everything between messages and token ids, and between generated text and messages. No
engine needed.

    render(messages, ...)                -> Rendered: prompt, template variables, where the parser
    starts parse(text, start, tools)            -> Message: reasoning, content, tool calls
    StreamParser(start, tools)           -> the same in pieces: feed(piece), finish()

The checkpoint's own template is authoritative; the built-in one ("m3") is a fallback for use
without a checkpoint.
"""

from __future__ import annotations

from .parser import StreamParser, parse, parse_output, parse_tool_calls
from .reasoning import split_reasoning
from .render import Rendered, render
from .thinking import resolve_thinking
from .types import Delta, FunctionCall, Message, ParseError, ToolCall

__all__ = [
    "Delta",
    "FunctionCall",
    "Message",
    "ParseError",
    "Rendered",
    "StreamParser",
    "ToolCall",
    "parse",
    "parse_output",
    "parse_tool_calls",
    "render",
    "resolve_thinking",
    "split_reasoning",
]

"""Trusted and untrusted text: special tokens are recognised only where the template wrote them.

A prompt is one string, and a user can spell `[e~[` or an image placeholder in it. Untrusted strings
are wrapped in two noncharacters and the template is rendered a second time; where deleting them
gives the first rendering again, they mark the untrusted stretches exactly, with any template.
Encoding then cuts the prompt at the added tokens outside those stretches only, and encodes the
pieces between without any added tokens.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .marks import REQUIRED_TOKENS

OPEN, CLOSE = "\ufdd0", "\ufdd1"
_STRIP = str.maketrans("", "", OPEN + CLOSE)

# Words that templates compare (`tool.type == "function"`, a schema's `type`): wrapping them would
# change the output, and no added token can be spelled with them.
_KEYWORDS = frozenset(
    (
        "function",
        "string",
        "number",
        "integer",
        "boolean",
        "object",
        "array",
        "null",
        "text",
        "image",
        "video",
    )
)

TextSpan = tuple[int, int]


def clean(text: str) -> str:
    return text.translate(_STRIP)


def _wrap(text: str) -> str:
    return f"{OPEN}{text}{CLOSE}" if text else text


def map_untrusted(
    messages: Sequence[Mapping[str, Any]], change: Callable[[str], str]
) -> list[dict[str, Any]]:
    """Copies of normalised messages with every untrusted string replaced by `change(string)`."""
    out = []
    for message in messages:
        copy = dict(message)
        content = copy["content"]
        if isinstance(content, str):
            copy["content"] = change(content)
        else:
            copy["content"] = [
                {**part, "text": change(part["text"])} if part["type"] == "text" else part
                for part in content
            ]
        for name in ("reasoning_content", "name"):
            if name in copy:
                copy[name] = change(copy[name])
        if "tool_calls" in copy:
            copy["tool_calls"] = [
                {
                    **call,
                    "function": {
                        "name": _change_name(call["function"]["name"], change),
                        "arguments": _change_value(call["function"]["arguments"], change),
                    },
                }
                for call in copy["tool_calls"]
            ]
        out.append(copy)
    return out


def map_tools(tools: Sequence[Mapping[str, Any]], change: Callable[[str], str]) -> list[Any]:
    return [_change_value(tool, change) for tool in tools]


def _change_value(value: Any, change: Callable[[str], str], key: Any = None) -> Any:
    if isinstance(value, str):
        return value if key in ("type", "role") and value in _KEYWORDS else change(value)
    if isinstance(value, Mapping):
        return {_change_name(k, change): _change_value(v, change, k) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_change_value(item, change, key) for item in value]
    return value


def _change_name(name: Any, change: Callable[[str], str]) -> Any:
    """Keys and names stay as they are unless they could spell a token: templates look values up by
    them.
    """
    if isinstance(name, str) and re.search("[\\[\\]<>\ufdd0\ufdd1]", name):
        return change(name)
    return name


def clean_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return map_untrusted(messages, clean)


def clean_tools(tools: Sequence[Mapping[str, Any]]) -> list[Any]:
    return map_tools(tools, clean)


def find_spans(
    plain: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    render: Callable[[list[dict[str, Any]], list[Any]], str],
    added_tokens: Sequence[str] = tuple(REQUIRED_TOKENS),
) -> tuple[list[TextSpan], str | None]:
    """(untrusted spans of `plain` in order, the marked rendering or None where the template refused
    it).
    """
    marked: str | None
    try:
        marked = render(map_untrusted(messages, _wrap), map_tools(tools, _wrap))
    except ValueError:  # the template compares or parses what it prints
        marked = None
    if marked is not None:
        spans = _read_marks(marked)
        if spans is not None and clean(marked) == plain:
            return spans, marked
    warnings.warn(
        "this chat template changes the text it prints, so special tokens spelled in messages can "
        "be told from the template's own only where a message stands whole in the prompt",
        stacklevel=3,
    )
    return _weak_spans(plain, messages, tools, added_tokens), marked


def all_printed(
    marked: str | None, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the marked rendering holds as many wrapped strings as there are."""
    if marked is None:
        return False
    count = 0

    def tally(text: str) -> str:
        nonlocal count
        count += bool(text)
        return text

    map_untrusted(messages, tally)
    map_tools(tools, tally)
    return marked.count(OPEN) >= count


def _read_marks(marked: str) -> list[TextSpan] | None:
    spans: list[TextSpan] = []
    at = 0
    depth = 0
    start = 0
    position = 0
    for found in re.finditer(f"[{OPEN}{CLOSE}]", marked):
        position += found.start() - at
        at = found.end()
        if found[0] == OPEN:
            if depth == 0:
                start = position
            depth += 1
        else:
            depth -= 1
            if depth < 0:
                return None
            if depth == 0 and position > start:
                spans.append((start, position))
    return spans if depth == 0 else None


def _weak_spans(
    plain: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    added_tokens: Sequence[str],
) -> list[TextSpan]:
    texts: set[str] = set()

    def collect(text: str) -> str:
        if any(token in text for token in added_tokens):
            texts.add(text.strip())
        return text

    map_untrusted(messages, collect)
    map_tools(tools, collect)
    found: list[TextSpan] = []
    for text in texts:
        at = plain.find(text)
        while at >= 0:
            found.append((at, at + len(text)))
            at = plain.find(text, at + 1)
    return merge_spans(found)


def merge_spans(spans: Sequence[TextSpan]) -> list[TextSpan]:
    out: list[TextSpan] = []
    for start, end in sorted(spans):
        if out and start < out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > start:
            out.append((start, end))
    return out


def cut_at_tokens(
    prompt: str, spans: Sequence[TextSpan], tokens: re.Pattern[str]
) -> list[tuple[str, str | None]]:
    """[(text before, added token or None at the end)]: the tokens that lie wholly outside every
    span.

    Each stretch between spans is searched by itself; the texts between tokens run across span
    borders, so harmless text is encoded exactly as without protection.
    """
    pieces: list[tuple[str, str | None]] = []
    begin = 0
    at = 0
    for start, end in [*spans, (len(prompt), len(prompt))]:
        for found in tokens.finditer(prompt[at:start]):
            pieces.append((prompt[begin : at + found.start()], found[0]))
            begin = at + found.end()
        at = end
    pieces.append((prompt[begin:], None))
    return pieces

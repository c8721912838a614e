"""Lexer of the tool-call format: reads what follows a namespace mark.

Only marked tags are structure; a bare `<x>` is text. Given a buffer that begins with the mark,
`lex` answers with one of the kinds below, or None when more text could still change the answer.
Every run it looks at is bounded, so feeding a stream character by character costs no more than a
constant per character.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .marks import NAMESPACE

BLOCK_OPEN, BLOCK_CLOSE = "block_open", "block_close"
INVOKE_OPEN, INVOKE_CLOSE = "invoke_open", "invoke_close"
OPEN, CLOSE = "open", "close"
LONE = "lone"  # the mark alone; what follows is text

_MAX_NAME = 1024  # characters of a tag name, and of blanks between the mark and "<"
_MAX_HEADER = 4096  # characters of an invoke tag

_BLANKS = re.compile(r"\s*")
_TAG = re.compile(r"<(/?)([^<>/\s][^<>\s]*)>")
_TAG_BEGINNING = re.compile(r"<(/?)([^<>/\s][^<>\s]*)?")
_INVOKE = re.compile(r"<invoke\s")
_BARE_INVOKE = re.compile(r"invoke\s+name\s*=")
_BARE_BEGINNING = re.compile(r"i(n(v(o(k(e(\s+(n(a(m(e(\s*)?)?)?)?)?)?)?)?)?)?)?")
_NAME = re.compile(r"""\sname\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


class Mark(NamedTuple):
    kind: str
    length: int  # characters from the beginning of the namespace mark
    name: str = ""  # of a tag, or of the function; "" for an invoke without a name
    bare: bool = False  # an invoke whose "<" is missing


def lex(buf: str, final: bool) -> Mark | None:
    """`buf` begins with the namespace mark. `final`: no more text will come; None then means cut
    inside a mark.
    """
    begin = len(NAMESPACE)
    at = _BLANKS.match(buf, begin).end()  # type: ignore[union-attr]
    if at - begin > _MAX_NAME:
        return Mark(LONE, begin)
    if at == len(buf):
        return None
    if buf[at] == "<":
        return _lex_tag(buf, at, final)
    if buf[at] == "i":
        found = _BARE_INVOKE.match(buf, at)
        if found:
            return _lex_header(buf, at + len("invoke"), final, bare=True)
        if len(buf) - at <= _MAX_NAME and _BARE_BEGINNING.fullmatch(buf, at):
            return None
    return Mark(LONE, begin)


def _lex_tag(buf: str, at: int, final: bool) -> Mark | None:
    found = _TAG.match(buf, at)
    if found and len(found[2]) <= _MAX_NAME:
        closing, name = bool(found[1]), found[2]
        length = found.end()
        if name == "tool_call":
            return Mark(BLOCK_CLOSE if closing else BLOCK_OPEN, length, name)
        if name == "invoke":
            return Mark(INVOKE_CLOSE, length, name) if closing else Mark(INVOKE_OPEN, length)
        return Mark(CLOSE if closing else OPEN, length, name)
    if _INVOKE.match(buf, at):
        return _lex_header(buf, at + len("<invoke"), final, bare=False)
    if len(buf) - at <= _MAX_NAME + 2 and _TAG_BEGINNING.fullmatch(buf, at):
        return None
    return Mark(LONE, len(NAMESPACE))


def _lex_header(buf: str, attributes: int, final: bool, bare: bool) -> Mark | None:
    """The invoke tag ends at its `>`; a namespace mark before that means the header is broken: no
    name.
    """
    end = buf.find(">", attributes, attributes + _MAX_HEADER)
    if end < 0:
        return None if len(buf) - attributes < _MAX_HEADER else Mark(LONE, len(NAMESPACE))
    mark_start = end - (len(NAMESPACE) - 2)
    if mark_start >= attributes and buf.startswith(NAMESPACE[:-1], mark_start):
        if len(buf) == end + 1 and not final:
            return None
        if buf.startswith(NAMESPACE, mark_start):
            return Mark(INVOKE_OPEN, mark_start, "", bare)
    found = _NAME.match(buf, attributes, end) or _NAME.search(buf, attributes, end)
    name = next((group for group in found.groups() if group is not None), "") if found else ""
    return Mark(INVOKE_OPEN, end + 1, name.strip(), bare)

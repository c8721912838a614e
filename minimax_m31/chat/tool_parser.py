"""Tool-call layer of the parser: splits content into text and whole calls, and repairs what can be
repaired.

One incremental machine serves whole texts and streams. Text goes out at once; a block is held until
its first call is read (then every call goes out the moment it ends) or until it is known to hold
none (then it stays text, verbatim). A call that was cut off is never returned. Nothing here raises,
and one bad block never disables the next.

    OUTSIDE  text                          OPENED  after a block mark, until an invoke follows
    BLOCK    between the invokes           INVOKE  inside an invoke: elements on a stack
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from . import lexer
from .lexer import Mark, lex
from .marks import NAMESPACE, held_suffix
from .schema import (
    UNTYPED,
    Schema,
    alternatives,
    can_contain,
    declared_property,
    item_schema,
    property_schema,
)
from .types import FunctionCall, ToolCall, new_call_id
from .values import Element, arguments_json

OUTSIDE, OPENED, BLOCK, INVOKE = "outside", "opened", "block", "invoke"

_MAX_DEPTH = (
    64  # nested elements; a deeper tag is text. Keeps conversion far from Python's recursion limit
)


class ToolSink(Protocol):
    """Receiver of the parsed content. Offsets are characters of the content fed."""

    def on_text(self, text: str) -> None: ...

    def on_call(self, call: ToolCall) -> None: ...

    def on_span(self, kind: str, start: int, end: int) -> None: ...

    def on_mark(self, code: str, start: int) -> list[int]:
        """Record a malformation; the returned [start, end] may still be extended by its owner."""
        ...


class ToolSchemas:
    """Parameter schemas by function name."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._schemas: dict[str, Schema] = {}
        for tool in tools:
            function = tool["function"]
            parameters = function.get("parameters") or {}
            self._schemas[function["name"]] = Schema(parameters, parameters)

    def get(self, name: str) -> Schema | None:
        return self._schemas.get(name)


class ToolCallParser:
    """Feed content with `push`, end with `end`."""

    def __init__(self, schemas: ToolSchemas, sink: ToolSink) -> None:
        self._schemas = schemas
        self._sink = sink
        self.state = OUTSIDE
        self._buf = ""
        self._at = 0  # content offset of _buf[0]

        # Text outside blocks. Blanks wait in _held until text follows in the same piece.
        self._in_piece = False
        self._held: list[tuple[str, int]] = []
        self._any_call = False
        self._false_start = False

        # The block that is open. While it has no call, its text is kept and its spans wait.
        self._block_start = 0
        self._opener = 0  # length of its mark
        self._has_block_mark = False
        self._block_has_call = False
        self._raw: list[str] | None = None
        self._waiting: list[tuple[str, int, int]] = []
        self._blanks: tuple[int, int] | None = None  # between invokes: fate decided by what follows
        self._junk: list[int] | None = None  # mark of the running stretch of skipped text
        self._run_start = 0  # where the text since the last mark began

        # The invoke that is open.
        self._invoke_start = 0
        self._name = ""
        self._root = Element("", UNTYPED)
        self._stack: list[Element] = []
        self._orphan: list[str] | None = None  # text after a lone mark at parameter level
        self._orphan_start = 0

    def push(self, text: str) -> None:
        self._buf += text
        self._run(final=False)

    def end(self) -> None:
        self._run(final=True)
        if self.state == OPENED:
            self._release_false_start("no_invoke")
        if self.state == INVOKE:
            self._mark("cut", self._invoke_start, self._at)
            self._drop_unit(self._invoke_start, self._at)
            self.state = BLOCK
        if self.state == BLOCK:
            self._close_block(self._at)
        if not self._any_call:
            self._release_held()
        for text, at in self._held:
            self._sink.on_span("dropped", at, at + len(text))
        self._held = []

    # -- the loop: alternate text and marks ----------------------------------------------------

    def _run(self, final: bool) -> None:
        while self._buf:
            at = self._buf.find(NAMESPACE)
            if at < 0:
                held = held_suffix(self._buf, (NAMESPACE,))
                at = len(self._buf) - held
                if at == 0:
                    if final:
                        self._cut(self._buf)
                    return
            if at > 0:
                self._text(self._buf[:at])
                continue
            mark = lex(self._buf, final)
            if mark is None:
                if final:
                    self._cut(self._buf)
                return
            self._on_mark(mark, self._buf[: mark.length])

    def _consume(self, size: int) -> tuple[int, int]:
        """Take `size` characters; returns their content offsets."""
        start = self._at
        if self._raw is not None:
            self._raw.append(self._buf[:size])
        self._buf = self._buf[size:]
        self._at = start + size
        return start, self._at

    def _cut(self, text: str) -> None:
        """The text ends inside a mark."""
        if self.state == OPENED:
            self._release_false_start("cut")
        start, end = self._consume(len(text))
        if self.state == OUTSIDE:
            self._out_text(text, start)
        elif self.state == BLOCK:
            self._mark("cut", start, end)
            self._drop_unit(start, end)

    # -- text ----------------------------------------------------------------------------------

    def _text(self, text: str) -> None:
        if self.state == OPENED:
            if text.isspace():
                self._consume(len(text))
                return
            self._release_false_start("no_invoke")
        start, end = self._consume(len(text))
        if self.state == OUTSIDE:
            self._out_text(text, start)
        elif self.state == BLOCK:
            self._skip_text(text, start, end)
        elif self._stack:
            self._stack[-1].tail.append(text)
        elif self._orphan is not None:
            self._orphan.append(text)
        elif self._junk is not None:
            self._junk[1] = end
        elif not text.isspace():
            self._junk = self._mark("stray_text", self._run_start, end)

    def _skip_text(self, text: str, start: int, end: int) -> None:
        if self._junk is not None:
            self._junk[1] = end
            self._span("dropped", start, end)
        elif text.isspace():
            self._blanks = (self._blanks[0] if self._blanks else start, end)
        else:
            begin = self._blanks[0] if self._blanks else start
            self._junk = self._mark("stray_text", begin, end)
            self._drop_unit(start, end)

    def _out_text(self, text: str, start: int) -> None:
        if not self._in_piece:
            if text.isspace():
                self._held.append((text, start))
                return
            self._release_held()
            self._in_piece = True
        self._sink.on_text(text)
        self._sink.on_span("content", start, start + len(text))

    def _release_held(self) -> None:
        for text, at in self._held:
            self._sink.on_text(text)
            self._sink.on_span("content", at, at + len(text))
        self._held = []

    # -- marks ---------------------------------------------------------------------------------

    def _on_mark(self, mark: Mark, text: str) -> None:
        if self.state == OPENED:
            if mark.kind == lexer.INVOKE_OPEN:
                self.state = BLOCK
                self._waiting.append(("call", self._block_start, self._block_start + self._opener))
                if self._at > self._block_start + self._opener:
                    self._blanks = (self._block_start + self._opener, self._at)
            else:
                self._release_false_start("no_invoke")
        if self.state == OUTSIDE:
            self._mark_outside(mark, text)
        elif self.state == BLOCK:
            self._mark_in_block(mark)
        else:
            self._mark_in_invoke(mark)

    def _mark_outside(self, mark: Mark, text: str) -> None:
        if mark.kind == lexer.BLOCK_OPEN:
            self._open_block(block_mark=True)
            self._consume(mark.length)
            self._opener = mark.length
            self.state = OPENED
        elif mark.kind == lexer.INVOKE_OPEN:
            self._open_block(block_mark=False)
            self._mark("no_block", self._at, self._at + mark.length)
            self._start_invoke(mark)
        elif mark.kind in (lexer.BLOCK_CLOSE, lexer.INVOKE_CLOSE) and not self._false_start:
            start, end = self._consume(mark.length)
            self._mark("lone_closer", start, end)
            self._sink.on_span("dropped", start, end)
        else:
            start, _ = self._consume(mark.length)
            self._out_text(text, start)

    def _open_block(self, block_mark: bool) -> None:
        self._block_start = self._at
        self._has_block_mark = block_mark
        self._block_has_call = False
        self._raw = []
        self._waiting = []
        self._blanks = None
        self._junk = None

    def _release_false_start(self, code: str) -> None:
        """No invoke follows the block mark: it is text, and so are the blanks behind it."""
        self._mark(code, self._block_start, self._block_start + self._opener)
        self._false_start = True
        self.state = OUTSIDE
        text = "".join(self._raw or ())
        self._raw = None
        self._out_text(text, self._block_start)

    def _mark_in_block(self, mark: Mark) -> None:
        self._junk = None
        if mark.kind == lexer.INVOKE_OPEN:
            self._start_invoke(mark)
            return
        start, end = self._consume(mark.length)
        if mark.kind == lexer.BLOCK_CLOSE:
            self._take_blanks("call")
            self._span("call", start, end)
            self._close_block(end)
            return
        codes = {
            lexer.BLOCK_OPEN: "nested_block",
            lexer.OPEN: "stray_text",
            lexer.LONE: "stray_mark",
        }
        self._mark(codes.get(mark.kind, "stray_closer"), start, end)
        self._drop_unit(start, end)

    def _close_block(self, end: int) -> None:
        """The block is over, by its closer or by the end of the text."""
        if self._block_has_call:
            self._take_blanks("call")
        else:
            self._mark("no_call", self._block_start, end)
            text = "".join(self._raw or ())
            self._raw = None
            self._waiting = []
            self._blanks = None
            self._out_text(text, self._block_start)
        self.state = OUTSIDE

    # -- an invoke -----------------------------------------------------------------------------

    def _start_invoke(self, mark: Mark) -> None:
        start, _ = self._consume(mark.length)
        self._invoke_start = start
        self._name = mark.name
        schema = self._schemas.get(mark.name)
        if not mark.name:
            self._mark("no_name", start, self._at)
        elif schema is None:
            self._mark("unknown_tool", start, self._at)
        self._root = Element("", schema or UNTYPED)
        self._stack = []
        self._orphan = None
        self._junk = None
        self._run_start = self._at
        self.state = INVOKE

    def _mark_in_invoke(self, mark: Mark) -> None:
        if mark.kind == lexer.INVOKE_OPEN and mark.bare and self._stack:
            mark = Mark(lexer.LONE, len(NAMESPACE))  # inside a value a bare word is text
        if mark.kind == lexer.OPEN and len(self._stack) >= _MAX_DEPTH:
            mark = Mark(lexer.LONE, len(NAMESPACE))
        self._junk = None
        if mark.kind == lexer.LONE:
            self._lone_mark()
            return
        self._bare_closer(mark)
        if self._orphan is not None and not self._adopt_orphan(mark):
            return
        if mark.kind == lexer.INVOKE_OPEN:
            self._mark("invoke_open", self._invoke_start, self._at)
            self._finish_invoke(self._at)
            if not self._has_block_mark:
                self._close_blockless()
                self._mark_outside(mark, "")
            else:
                self._start_invoke(mark)
            return
        start, end = self._consume(mark.length)
        self._run_start = end
        if mark.kind == lexer.OPEN:
            self._open_element(mark.name, start, end)
        elif mark.kind == lexer.CLOSE:
            self._close_element(mark.name, start, end)
        elif mark.kind == lexer.BLOCK_OPEN:
            self._mark("nested_block", start, end)
            while self._stack:
                self._close_top()
        else:
            if mark.kind == lexer.BLOCK_CLOSE:
                self._mark("invoke_open", self._invoke_start, start)
            self._finish_invoke(end, open_until=start)
            if mark.kind == lexer.BLOCK_CLOSE and self._has_block_mark:
                self._close_block(end)
            elif not self._has_block_mark:
                self._close_blockless()

    def _lone_mark(self) -> None:
        start, end = self._consume(len(NAMESPACE))
        if self._stack or self._orphan is not None:
            self._mark("stray_mark", start, end)  # removed; the text around it joins
        else:
            self._orphan = []
            self._orphan_start = start

    def _adopt_orphan(self, mark: Mark) -> bool:
        """A lone mark and text at parameter level: with a closer behind it, a parameter without its
        opener.

        Returns False when `mark` was used up by that.
        """
        text = "".join(self._orphan or ())
        self._orphan = None
        if mark.kind == lexer.CLOSE:
            _, end = self._consume(mark.length)
            self._mark("opener_missing", self._orphan_start, end)
            element = Element(mark.name, property_schema(self._root.schema, mark.name))
            element.tail.append(text)
            self._root.add_child(element)
            self._run_start = end
            return False
        self._mark("stray_text" if text.strip() else "stray_mark", self._orphan_start, self._at)
        return True

    def _bare_closer(self, mark: Mark) -> None:
        """A value that ends with a plain `</tag>` of its own tag, where its own marked closer does
        not follow.
        """
        if not self._stack:
            return
        top = self._stack[-1]
        if mark.kind == lexer.CLOSE and mark.name == top.tag:
            return
        text = "".join(top.tail)
        closer = f"</{top.tag}>"
        stripped = text.rstrip()
        if stripped.endswith(closer):
            self._mark("bare_closer", self._at - len(text) + len(stripped) - len(closer), self._at)
            top.tail = [stripped[: -len(closer)]]
            self._close_top()
        else:
            top.tail = [text]

    def _open_element(self, tag: str, start: int, end: int) -> None:
        parent = self._stack[-1] if self._stack else None
        if parent is not None and not can_contain(parent.schema, tag):
            # Close what cannot hold the tag, down to the nearest outer object that declares it (or
            # list of it).
            outer = [self._root, *self._stack[:-1]]
            for keep in range(len(outer) - 1, -1, -1):
                same_item = self._stack[keep].tag == tag and "array" in _kinds(outer[keep].schema)
                if same_item or declared_property(outer[keep].schema, tag) is not None:
                    self._mark("element_open", start, end)
                    while len(self._stack) > keep:
                        self._close_top()
                    break
        holder = self._stack[-1] if self._stack else self._root
        self._stack.append(Element(tag, _child_schema(holder, tag)))

    def _close_element(self, tag: str, start: int, end: int) -> None:
        for depth in range(len(self._stack) - 1, -1, -1):
            if self._stack[depth].tag == tag:
                if depth < len(self._stack) - 1:
                    self._mark("element_open", start, end)
                while len(self._stack) > depth:
                    self._close_top()
                return
        self._mark("stray_closer", start, end)

    def _close_top(self) -> None:
        element = self._stack.pop()
        (self._stack[-1] if self._stack else self._root).add_child(element)

    def _finish_invoke(self, end: int, open_until: int | None = None) -> None:
        if self._stack:
            at = end if open_until is None else open_until
            self._mark("element_open", at, end)
            while self._stack:
                self._close_top()
        self.state = BLOCK
        self._junk = None
        if not self._name:
            self._drop_unit(self._invoke_start, end)
            return
        arguments, lost = arguments_json(self._root)
        if lost:
            self._mark("stray_text", self._invoke_start, end)
        self._take_blanks("call")
        self._span("call", self._invoke_start, end)
        self._commit_block()
        self._sink.on_call(ToolCall(new_call_id(), FunctionCall(self._name, arguments)))
        self._root = Element("", UNTYPED)

    def _commit_block(self) -> None:
        """The block has a call: its text is not content, blanks held before it are dropped."""
        if self._block_has_call:
            return
        self._block_has_call = self._any_call = True
        for text, at in self._held:
            self._sink.on_span("dropped", at, at + len(text))
        self._held = []
        self._in_piece = False
        for kind, start, end in self._waiting:
            self._sink.on_span(kind, start, end)
        self._waiting = []
        self._raw = None

    def _close_blockless(self) -> None:
        if self._block_has_call:
            self.state = OUTSIDE
        else:
            self._close_block(self._at)

    # -- spans and marks of the open block -----------------------------------------------------

    def _span(self, kind: str, start: int, end: int) -> None:
        if self._block_has_call:
            self._sink.on_span(kind, start, end)
        else:
            self._waiting.append((kind, start, end))

    def _take_blanks(self, kind: str) -> None:
        if self._blanks is not None:
            self._span(kind, *self._blanks)
            self._blanks = None

    def _drop_unit(self, start: int, end: int) -> None:
        """Drop a stretch of the block, with the blanks before it."""
        self._take_blanks("dropped")
        self._span("dropped", start, end)

    def _mark(self, code: str, start: int, end: int) -> list[int]:
        span = self._sink.on_mark(code, start)
        span[1] = end
        return span


def _child_schema(holder: Element, tag: str) -> Schema:
    """Schema of a new child, as far as it is known while reading (repeats are settled at
    conversion).
    """
    declared = declared_property(holder.schema, tag)
    if declared is not None:
        return declared
    kinds = _kinds(holder.schema)
    if "array" in kinds and "object" not in kinds:
        return item_schema(holder.schema, len(holder.children))
    return property_schema(holder.schema, tag)


def _kinds(schema: Schema) -> set[str]:
    return {alternative.kind for alternative in alternatives(schema)}

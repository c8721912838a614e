"""Reasoning layer of the parser: splits generated text into reasoning and content.

One incremental machine serves whole texts and streams. It passes on everything except the longest
suffix that may still become a mark of its state, so no decision depends on how the text was cut.
States:

    LEAD     start "adaptive" or "disabled": blanks and closers are noise, an opener enters THINK,
             anything else CONTENT
    LEAD_IN  start "enabled": one repeated opener is noise, everything else is already reasoning
    THINK    up to the first closer; with tools, a tool block ends reasoning too
    AFTER    further closers are noise
    CONTENT  text before a late opener is content; with tools, a tool block ends the search for
    marks DONE     everything is content: one block per response, marks inside tool calls are opaque
"""

from __future__ import annotations

from typing import Protocol

from ..errors import InvalidRequestError
from .marks import CALL_OPEN, THINK_CLOSE, THINK_OPEN, held_suffix

LEAD, LEAD_IN, THINK, AFTER, CONTENT, DONE = "lead", "lead_in", "think", "after", "content", "done"
START_STATES = {"adaptive": LEAD, "disabled": LEAD, "enabled": LEAD_IN}


class ReasoningSink(Protocol):
    """Receiver of the split text. Offsets are code points of the raw text; calls come in ascending
    order.
    """

    def on_reasoning(self, text: str, start: int) -> None: ...

    def on_content(self, text: str, start: int) -> None: ...

    def on_dropped(self, start: int, end: int) -> None: ...


class ReasoningSplitter:
    """Feed text with `push`, end with `end`. `state` is one of the names above."""

    def __init__(self, start: str, tools_active: bool, sink: ReasoningSink) -> None:
        if start not in START_STATES:
            raise InvalidRequestError(
                f"start={start!r}: expected 'adaptive', 'enabled' or 'disabled'",
                param="start",
                value=start,
            )
        self.state = START_STATES[start]
        self._tools = tools_active
        self._sink = sink
        self._buf = ""
        self._at = 0  # raw offset of the held blanks, else of _buf[0]
        self._blanks: list[str] = []  # held before _buf in LEAD, LEAD_IN and AFTER
        self._blanks_len = 0

    @property
    def thinking_ended(self) -> bool:
        return self.state in (AFTER, CONTENT, DONE)

    def push(self, text: str) -> None:
        self._buf += text
        while self._step():
            pass

    def end(self) -> None:
        """Emit what is held, in the channel of the current state."""
        rest = self._take_blanks() + self._buf
        start = self._at
        self._at += len(rest)
        self._buf = ""
        if not rest:
            return
        if self.state in (LEAD_IN, THINK):
            self._sink.on_reasoning(rest, start)
        else:
            self._sink.on_content(rest, start)

    # -- one step: True when something was consumed and more may follow ------------------------

    def _step(self) -> bool:
        if not self._buf:
            return False
        if self.state in (LEAD, LEAD_IN, AFTER):
            return self._lead()
        if self.state == DONE:
            self._emit_content(len(self._buf))
            return False
        return self._search()

    def _lead(self) -> bool:
        stripped = self._buf.lstrip()
        if len(stripped) < len(self._buf):
            blanks = self._buf[: len(self._buf) - len(stripped)]
            self._blanks.append(blanks)
            self._blanks_len += len(blanks)
            self._buf = stripped
            if not stripped:
                return False
        marks = {LEAD: (THINK_CLOSE, THINK_OPEN), LEAD_IN: (THINK_OPEN,), AFTER: (THINK_CLOSE,)}[
            self.state
        ]
        for mark in marks:
            if self._buf.startswith(mark):
                end = self._at + self._blanks_len + len(mark)
                self._sink.on_dropped(self._at, end)
                self._blanks, self._blanks_len = [], 0
                self._buf, self._at = self._buf[len(mark) :], end
                if mark == THINK_OPEN:
                    self.state = THINK
                return True
        if any(mark.startswith(self._buf) for mark in marks):
            return False
        self.state = {LEAD: CONTENT, LEAD_IN: THINK, AFTER: DONE}[self.state]
        self._buf = self._take_blanks() + self._buf
        return True

    def _search(self) -> bool:
        thinking = self.state == THINK
        marks = [THINK_CLOSE if thinking else THINK_OPEN]
        if self._tools:
            marks.append(CALL_OPEN)
        found = [(at, mark) for mark in marks if (at := self._buf.find(mark)) >= 0]
        if not found:
            ready = len(self._buf) - held_suffix(self._buf, marks)
            if thinking:
                self._emit_reasoning(ready)
            else:
                self._emit_content(ready)
            return False
        at, mark = min(found)
        if thinking:
            self._emit_reasoning(at)
        else:
            self._emit_content(at)
        if mark == CALL_OPEN:
            self.state = DONE
            return True
        self._sink.on_dropped(self._at, self._at + len(mark))
        self._buf, self._at = self._buf[len(mark) :], self._at + len(mark)
        self.state = AFTER if thinking else THINK
        return True

    def _emit_reasoning(self, size: int) -> None:
        if size:
            text, at = self._buf[:size], self._at
            self._buf, self._at = self._buf[size:], at + size
            self._sink.on_reasoning(text, at)

    def _emit_content(self, size: int) -> None:
        if size:
            text, at = self._buf[:size], self._at
            self._buf, self._at = self._buf[size:], at + size
            self._sink.on_content(text, at)

    def _take_blanks(self) -> str:
        text = "".join(self._blanks)
        self._blanks, self._blanks_len = [], 0
        return text


class _Collect:
    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.content: list[str] = []

    def on_reasoning(self, text: str, start: int) -> None:
        self.reasoning.append(text)

    def on_content(self, text: str, start: int) -> None:
        self.content.append(text)

    def on_dropped(self, start: int, end: int) -> None:
        pass


def split_reasoning(
    text: str, start: str = "adaptive", tools_active: bool = False
) -> tuple[str | None, str]:
    """Split a whole text: (reasoning_content or None, content).

    `text` is what the model generated, special tokens kept, without the final end token. `start` is
    the state at the generation boundary (`Rendered.parser_start`).
    """
    sink = _Collect()
    splitter = ReasoningSplitter(start, tools_active, sink)
    splitter.push(text)
    splitter.end()
    return "".join(sink.reasoning) or None, "".join(sink.content)

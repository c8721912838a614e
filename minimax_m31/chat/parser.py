"""The parser of generated text: reasoning, content and tool calls, whole or streaming, by one state
machine.

    text -> ReasoningSplitter -> content -> ToolCallParser -> deltas, raw_spans, parse_error

`parse` feeds a `StreamParser` once; a stream feeds it in pieces. Every cutting of the text gives
the same message.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..errors import InvalidRequestError
from .marks import TURN_END
from .reasoning import ReasoningSplitter
from .tool_parser import ToolCallParser, ToolSchemas
from .tools import normalise_tools
from .types import Delta, Message, ParseError, Span, ToolCall, finish_reason_of


class StreamParser:
    """Incremental parser: `feed(piece)` and `finish()` return the deltas that the piece decided.

    `start` is the state at the generation boundary (`Rendered.parser_start`); `tools` are those of
    the request, or None (also for tool_choice="none"), and then tool markup is ordinary text.
    `message` is complete after `finish`.
    """

    def __init__(self, start: str = "adaptive", tools: Iterable[Any] | None = None) -> None:
        definitions = normalise_tools(tools)
        self._splitter = ReasoningSplitter(start, bool(definitions), self)
        self._calls = ToolCallParser(ToolSchemas(definitions), self) if definitions else None
        self._finished = False
        self._out: list[Delta] = []
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._tool_calls: list[ToolCall] = []
        self._spans: list[Span] = []
        self._marks: list[tuple[str, list[int]]] = []
        # Content is the raw text minus thinking: segment i begins at content offset _from[i], raw
        # offset _to[i].
        self._content_length = 0
        self._from: list[int] = []
        self._to: list[int] = []

    @property
    def state(self) -> str:
        """State of the reasoning layer: lead, lead_in, think, after, content or done."""
        return self._splitter.state

    @property
    def thinking_ended(self) -> bool:
        return self._splitter.thinking_ended

    def feed(self, piece: str) -> list[Delta]:
        if self._finished:
            raise RuntimeError(
                "StreamParser.feed() after finish(): make a new parser for each response"
            )
        self._splitter.push(piece)
        return self._flush()

    def feed_content(self, text: str) -> list[Delta]:
        """Feed text that has no reasoning layer (already split), and finish."""
        self._finished = True
        self.on_content(text, 0)
        if self._calls is not None:
            self._calls.end()
        return self._flush()

    def finish(self) -> list[Delta]:
        """The text is complete: release what was held. A second call returns nothing."""
        if self._finished:
            return []
        self._finished = True
        self._splitter.end()
        if self._calls is not None:
            self._calls.end()
        return self._flush()

    def message(
        self, finish_reason: str | None = None, stop_reason: int | str | None = None
    ) -> Message:
        """The message so far. With the reasons of the generated sequence given, `finish_reason` is
        filled in.
        """
        # Joined once: a stream that asks at every piece does not join all of them each time.
        self._content = ["".join(self._content)]
        self._reasoning = ["".join(self._reasoning)]
        return Message(
            content=self._content[0],
            reasoning_content=self._reasoning[0] or None,
            tool_calls=list(self._tool_calls),
            parse_error=self._parse_error(),
            raw_spans=_merge(self._spans),
            finish_reason=finish_reason_of(self._tool_calls, finish_reason, stop_reason),
        )

    # -- receiver of the reasoning layer (raw offsets) -----------------------------------------

    def on_reasoning(self, text: str, start: int) -> None:
        self._span("reasoning", start, start + len(text))
        self._reasoning.append(text)
        delta = self._delta("reasoning_content")
        delta.reasoning_content = (delta.reasoning_content or "") + text

    def on_dropped(self, start: int, end: int) -> None:
        self._span("dropped", start, end)

    def on_content(self, text: str, start: int) -> None:
        if self._calls is None:
            self._span("content", start, start + len(text))
            self.on_text(text)
            return
        if not self._to or self._to[-1] + (self._content_length - self._from[-1]) != start:
            self._from.append(self._content_length)
            self._to.append(start)
        self._content_length += len(text)
        self._calls.push(text)

    # -- receiver of the tool layer (content offsets) ------------------------------------------

    def on_text(self, text: str) -> None:
        self._content.append(text)
        delta = self._delta("content")
        delta.content = (delta.content or "") + text

    def on_call(self, call: ToolCall) -> None:
        entry = {"index": len(self._tool_calls), **call.to_dict()}
        self._tool_calls.append(call)
        delta = self._delta("tool_calls")
        delta.tool_calls = [*(delta.tool_calls or ()), entry]

    def on_span(self, kind: str, start: int, end: int) -> None:
        while start < end:
            i = bisect.bisect_right(self._from, start) - 1
            stop = min(end, self._from[i + 1]) if i + 1 < len(self._from) else end
            shift = self._to[i] - self._from[i]
            self._span(kind, start + shift, stop + shift)
            start = stop

    def on_mark(self, code: str, start: int) -> list[int]:
        span = [start, start]
        self._marks.append((code, span))
        return span

    # ------------------------------------------------------------------------------------------

    def _delta(self, field: str) -> Delta:
        """The delta under construction: one kind each, so the order of text and calls is kept."""
        if not self._out or getattr(self._out[-1], field) is None:
            self._out.append(Delta())
        return self._out[-1]

    def _span(self, kind: str, start: int, end: int) -> None:
        """Spans mostly come in order; joined at once, a stream of many pieces keeps few of them."""
        last = self._spans[-1] if self._spans else None
        if last is not None and last.kind == kind and last.end == start:
            self._spans[-1] = Span(kind, last.start, end)
        else:
            self._spans.append(Span(kind, start, end))

    def _flush(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _parse_error(self) -> ParseError | None:
        errors = [
            ParseError(code, (self._raw(span[0]), self._raw_end(span[1])))
            for code, span in self._marks
        ]
        if not errors:
            return None
        return ParseError(errors[0].code, errors[0].span, tuple(errors[1:]))

    def _raw(self, offset: int) -> int:
        i = bisect.bisect_right(self._from, offset) - 1
        return offset + self._to[i] - self._from[i] if i >= 0 else offset

    def _raw_end(self, offset: int) -> int:
        return self._raw(offset - 1) + 1 if offset else 0


def _merge(spans: list[Span]) -> list[Span]:
    """Maximal runs in text order."""
    out: list[Span] = []
    for span in sorted(spans, key=lambda span: span.start):
        if out and out[-1].kind == span.kind and out[-1].end == span.start:
            out[-1] = Span(span.kind, out[-1].start, span.end)
        elif span.end > span.start:
            out.append(span)
    return out


def parse(
    text: str,
    start: str = "adaptive",
    tools: Iterable[Any] | None = None,
    *,
    finish_reason: str | None = None,
    stop_reason: int | str | None = None,
) -> Message:
    """Parse a whole generated text (special tokens kept, without the final end token)."""
    parser = StreamParser(start, tools)
    parser.feed(text)
    parser.finish()
    return parser.message(finish_reason, stop_reason)


def parse_tool_calls(
    text: str, tools: Iterable[Any] | None
) -> tuple[str, list[ToolCall], ParseError | None]:
    """Parse what `split_reasoning` leaves for tool calls: (content, calls, parse_error)."""
    definitions = normalise_tools(tools)
    if not definitions:
        return text, [], None
    parser = StreamParser("adaptive", definitions)
    parser.feed_content(text)
    message = parser.message()
    return message.content, message.tool_calls, message.parse_error


class _Decoder(Protocol):
    def decode(self, ids: Sequence[int], skip_special_tokens: bool = ...) -> str: ...

    @property
    def eos_token_id(self) -> int | None: ...


def parse_output(
    text_or_token_ids: str | Sequence[int],
    *,
    start: str,
    tools: Iterable[Any] | None = None,
    tokenizer: _Decoder | None = None,
) -> Message:
    """The same parser for a stored output: text, or token ids with the tokenizer that made them.

    Ids are decoded with special tokens kept; one final end token is taken off in either form.
    """
    if isinstance(text_or_token_ids, str):
        text = text_or_token_ids.removesuffix(TURN_END)
    else:
        if tokenizer is None:
            raise InvalidRequestError(
                "parse_output got token ids: pass tokenizer=, or the decoded text (special tokens "
                "kept)",
                param="tokenizer",
            )
        if not isinstance(text_or_token_ids, Iterable):
            raise InvalidRequestError(
                f"text_or_token_ids={text_or_token_ids!r}: text or a list of token ids is needed",
                param="text_or_token_ids",
                value=text_or_token_ids,
            )
        ids = [int(i) for i in text_or_token_ids]
        if ids and ids[-1] == tokenizer.eos_token_id:
            ids.pop()
        text = tokenizer.decode(ids, skip_special_tokens=False)
    return parse(text, start, tools)


def reasoning_token_count(
    spans: Sequence[tuple[str, int, int]], token_lengths: Sequence[int]
) -> int:
    """How many tokens contributed text to reasoning. `token_lengths`: characters of raw text per
    token.

    Marks count for neither side; a token that holds the end of the reasoning and the mark counts
    once.
    """
    runs = [(start, end) for kind, start, end in spans if kind == "reasoning"]
    count = at = 0
    for length in token_lengths:
        count += any(at < end and at + length > start for start, end in runs)
        at += length
    return count

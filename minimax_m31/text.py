"""Text as a view of token ids.

Every token stands for bytes; a text is the concatenation of them, decoded once, bytes that are no
UTF-8 becoming U+FFFD. Stop strings are matched by the core on the bytes of all tokens, special ones
included, so a cut is a byte position in that stream; which tokens are shown (`skip_special_tokens`)
is decided afterwards. Nothing here ever changes the ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class TextTable:
    """id -> bytes of a vocabulary, and which ids are special."""

    def __init__(self, token_bytes: Sequence[bytes], special: Iterable[int]) -> None:
        self.token_bytes = token_bytes
        self.special = frozenset(special)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TextTable:
        return cls(tokenizer.token_bytes(), tokenizer.special_ids())

    def bytes_of(self, token: int) -> bytes:
        """Bytes of one id; ids without a token (padding rows of the embedding) have none."""
        return self.token_bytes[token] if 0 <= token < len(self.token_bytes) else b""

    def decode_one(self, token: int) -> str:
        return self.bytes_of(token).decode("utf-8", "replace")

    def join(self, tokens: Iterable[int], *, skip_special: bool) -> bytes:
        special = self.special if skip_special else frozenset()
        return b"".join([self.bytes_of(token) for token in tokens if token not in special])


class TextView(NamedTuple):
    text: str
    num_text_tokens: int  # leading tokens whose bytes lie wholly before the cut


class Cut(NamedTuple):
    """Where the shown text ends: before byte `begin` of the stream, or at `end` when the stop is
    included.
    """

    begin: int
    end: int


def view(
    table: TextTable,
    tokens: Sequence[int],
    cut: Cut | None,
    *,
    skip_special: bool,
    include_stop: bool,
) -> TextView:
    """The text of `tokens`, and how many of them lie wholly in it."""
    if cut is None:
        return TextView(
            table.join(tokens, skip_special=skip_special).decode("utf-8", "replace"), len(tokens)
        )
    limit = cut.end if include_stop else cut.begin
    parts: list[bytes] = []
    at = whole = 0
    for token in tokens:
        data = table.bytes_of(token)
        end = at + len(data)
        if at >= limit and not (at == end == limit):
            break
        if not (skip_special and token in table.special):
            parts.append(data[: limit - at])
        if end <= limit:
            whole += 1
        at = end
    return TextView(b"".join(parts).decode("utf-8", "replace"), whole)


def last_token_cut(table: TextTable, tokens: Sequence[int]) -> Cut:
    """The cut of a stop by token id: the last token's bytes."""
    end = sum(len(table.bytes_of(token)) for token in tokens)
    return Cut(end - len(table.bytes_of(tokens[-1])), end)


class IncrementalText:
    """Text of a growing sequence of tokens, handed out as soon as it can no longer change.

    Held back: the beginning of a character, the longest end that may become a stop string, and a
    token that may be the one that ends the sequence. `push` returns what is new; `finish` takes the
    last tokens and the cut, and returns the rest.
    """

    def __init__(
        self,
        table: TextTable,
        *,
        skip_special: bool,
        stops: Iterable[bytes] = (),
        end_ids: Iterable[int] = (),
        include_stop: bool = False,
    ) -> None:
        self._table = table
        self._skip = skip_special
        self._stops = [] if include_stop else [stop for stop in stops if stop]
        self._end_ids = frozenset() if include_stop else frozenset(end_ids)
        self._include = include_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tail = b""  # last bytes of the stream, as many as the longest stop string may need
        self._keep = max((len(stop) for stop in self._stops), default=1) - 1
        self._end = 0  # bytes of all tokens so far
        self._held: list[
            tuple[int, bytes, bool]
        ] = []  # (position, bytes, shown) not yet handed out

    def push(self, tokens: Iterable[int]) -> str:
        """More tokens of a sequence that goes on."""
        last = self._append(tokens)
        safe = self._end - self._possible_stop()
        if self._held and last in self._end_ids:
            safe = min(safe, self._held[-1][0])
        return self._decoder.decode(self._take(safe))

    def finish(self, tokens: Iterable[int], cut: Cut | None) -> str:
        """The last tokens; `cut` as in `view`."""
        self._append(tokens)
        limit = self._end
        if cut is not None:
            limit = cut.end if self._include else cut.begin
        return self._decoder.decode(self._take(limit), final=True)

    def _append(self, tokens: Iterable[int]) -> int:
        last = -1
        for token in tokens:
            data = self._table.bytes_of(token)
            self._held.append((self._end, data, not (self._skip and token in self._table.special)))
            self._end += len(data)
            self._tail = (self._tail + data)[-self._keep :] if self._keep else b""
            last = token
        return last

    def _possible_stop(self) -> int:
        """Length of the longest end of the stream that is a proper beginning of a stop string."""
        longest = 0
        for stop in self._stops:
            for size in range(min(len(stop) - 1, len(self._tail)), longest, -1):
                if self._tail.endswith(stop[:size]):
                    longest = size
                    break
        return longest

    def _take(self, limit: int) -> bytes:
        parts: list[bytes] = []
        n = 0
        for at, data, shown in self._held:
            if at >= limit:
                break
            if at + len(data) > limit:
                if shown:
                    parts.append(data[: limit - at])
                self._held[n] = (limit, data[limit - at :], shown)
                break
            if shown:
                parts.append(data)
            n += 1
        del self._held[:n]
        return b"".join(parts)

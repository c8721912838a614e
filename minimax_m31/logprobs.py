"""Containers of log-probabilities: flat arrays, and list-of-dict views that are built on demand.

A million tokens with twenty entries each stay four arrays. `FlatLogprobs` is those arrays;
`LogprobRows` looks like the list of dicts that other engines return and makes each dict when it is
asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .text import TextTable

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]


@dataclasses.dataclass(slots=True)
class Logprob:
    """One entry: `rank` is 1-based, ties by id; `decoded_token` is None without a tokenizer."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class FlatLogprobs(Sequence[dict[int, Logprob]]):
    """Entries of row i are [start_indices[i], end_indices[i]): the row's own token first, then by
    rank, then the requested ids. Rows without entries (the first prompt token) are empty. Indexing
    gives dicts, slicing another FlatLogprobs. `decoded_tokens` is made on demand."""

    __slots__ = (
        "_table",
        "_texts",
        "end_indices",
        "logprobs",
        "ranks",
        "start_indices",
        "token_ids",
    )

    def __init__(
        self,
        start_indices: npt.NDArray[np.int64],
        end_indices: npt.NDArray[np.int64],
        token_ids: IntArray,
        logprobs: FloatArray,
        ranks: IntArray,
        table: TextTable | None = None,
        texts: Mapping[int, str] | None = None,
    ) -> None:
        self.start_indices = start_indices
        self.end_indices = end_indices
        self.token_ids = token_ids
        self.logprobs = logprobs
        self.ranks = ranks
        self._table = table
        self._texts = texts

    @property
    def decoded_tokens(self) -> list[str | None]:
        return [self._decode(int(token)) for token in self.token_ids]

    def _decode(self, token: int) -> str | None:
        if self._texts is not None:
            return self._texts.get(token)
        return None if self._table is None else self._table.decode_one(token)

    def row(self, i: int) -> dict[int, Logprob]:
        begin, end = int(self.start_indices[i]), int(self.end_indices[i])
        ids, values, ranks = (
            self.token_ids[begin:end],
            self.logprobs[begin:end],
            self.ranks[begin:end],
        )
        return {
            token: Logprob(value, rank, self._decode(token))
            for token, value, rank in zip(
                ids.tolist(), values.tolist(), ranks.tolist(), strict=True
            )
        }

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, i: int) -> dict[int, Logprob]: ...
    @overload
    def __getitem__(self, i: slice) -> FlatLogprobs: ...
    def __getitem__(self, i: int | slice) -> dict[int, Logprob] | FlatLogprobs:
        if isinstance(i, slice):
            return FlatLogprobs(
                self.start_indices[i],
                self.end_indices[i],
                self.token_ids,
                self.logprobs,
                self.ranks,
                self._table,
                self._texts,
            )
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        return self.row(i)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FlatLogprobs):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=name == "logprobs")
            for name in ("start_indices", "end_indices", "token_ids", "logprobs", "ranks")
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        """The vocabulary stays behind: only the texts of the ids that occur travel."""
        texts = self._texts
        if texts is None and self._table is not None:
            texts = {
                token: self._table.decode_one(token) for token in np.unique(self.token_ids).tolist()
            }
        arrays = (self.start_indices, self.end_indices, self.token_ids, self.logprobs, self.ranks)
        return (FlatLogprobs, (*arrays, None, texts))

    def __repr__(self) -> str:
        return f"FlatLogprobs({len(self)} rows, {len(self.token_ids)} entries)"


class LogprobRows(Sequence["dict[int, Logprob] | None"]):
    """A list of dicts to look at, arrays underneath (`.flat`). `None` in rows that were not scored
    (prompts).
    """

    __slots__ = ("_none_rows", "flat")

    def __init__(self, flat: FlatLogprobs, none_rows: int = 0) -> None:
        self.flat = flat
        self._none_rows = none_rows

    def __len__(self) -> int:
        return len(self.flat)

    @overload
    def __getitem__(self, i: int) -> dict[int, Logprob] | None: ...
    @overload
    def __getitem__(self, i: slice) -> list[dict[int, Logprob] | None]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"row {i} of {len(self)}")
        i %= len(self)
        return None if i < self._none_rows else self.flat.row(i)

    def __iter__(self) -> Iterator[dict[int, Logprob] | None]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LogprobRows):
            return self._none_rows == other._none_rows and self.flat == other.flat
        if isinstance(other, list):
            return list(self) == other
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return (LogprobRows, (self.flat, self._none_rows))

    def __repr__(self) -> str:
        return f"<{len(self)} rows of log-probabilities, {len(self.flat.token_ids)} entries>"


def flatten(
    ids: IntArray,
    values: FloatArray,
    ranks: IntArray,
    k: int,
    *,
    none_rows: int = 0,
    table: TextTable | None = None,
) -> FlatLogprobs:
    """Rows of the core (own token, top k by rank, requested ids) -> entries without repetition.

    An id of the top k is repeated when it is the row's own token, which then has rank <= k; a
    requested id when it is that token or has rank <= k. `none_rows` empty rows are put in front.
    """
    rows, width = ids.shape
    keep = np.ones((rows, width), dtype=bool)
    keep[:, 1 : 1 + k] = ids[:, 1 : 1 + k] != ids[:, :1]
    keep[:, 1 + k :] = (ids[:, 1 + k :] != ids[:, :1]) & (ranks[:, 1 + k :] > k)
    counts = np.concatenate([np.zeros(none_rows, dtype=np.int64), keep.sum(axis=1, dtype=np.int64)])
    ends = np.cumsum(counts)
    return FlatLogprobs(ends - counts, ends, ids[keep], values[keep], ranks[keep], table)

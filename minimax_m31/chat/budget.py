"""Limits of one template render: loop iterations, calls, characters built and written, time,
nesting.

A template comes with a checkpoint and is not trusted to end. Whatever makes something big, many or
slow in a template passes one of these checks before it happens (sizes) or at every step (loops,
calls, the clock).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_OUTPUT = 4 << 20  # characters, plus 4 per character of input
MAX_ITERATIONS = 1_000_000  # loop iterations and calls together; at least 8 per character of input
MAX_RANGE = 100_000
ELEMENT = 16  # characters that an element of a container counts as
MAX_SECONDS = 10.0
MAX_CALL_DEPTH = 64
MAX_INT_BITS = 4096
MAX_TEMPLATE = 1 << 20


class LimitExceeded(SecurityError):
    """A template hit a limit."""


@dataclasses.dataclass
class Limits:
    """Limits of one render; `for_input` scales them with the size of what is rendered."""

    output: int = MAX_OUTPUT
    iterations: int = MAX_ITERATIONS
    seconds: float = MAX_SECONDS

    @classmethod
    def for_input(cls, size: int) -> Limits:
        return cls(output=MAX_OUTPUT + 4 * size, iterations=max(MAX_ITERATIONS, 8 * size))


class Budget:
    """What is left of the limits during one render."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.cap = limits.output
        self._iterations = limits.iterations
        self._written = 16 * limits.output  # macros and blocks write the same text several times
        self._built = 64 * limits.output
        self._clock = clock
        self._seconds = limits.seconds
        self._deadline = clock() + limits.seconds
        self.depth = 0

    def tick(self) -> None:
        """One loop iteration, call or filter."""
        self._iterations -= 1
        if self._iterations < 0:
            raise LimitExceeded("the template runs too many loop iterations or calls")
        if self._iterations & 63 == 0:
            self.check_clock()

    def check_clock(self) -> None:
        if self._clock() > self._deadline:
            raise LimitExceeded(f"the template took longer than {self._seconds:g} s")

    def size(self, characters: int) -> None:
        """Something of this many characters or elements is about to be built."""
        if characters > self.cap:
            raise LimitExceeded(f"the template builds a value of more than {self.cap} characters")

    def build(self, characters: int) -> None:
        self.size(characters)
        self._built -= characters
        if self._built < 0:
            raise LimitExceeded("the template builds too much text")

    def write(self, characters: int) -> None:
        self._written -= characters
        if self._written < 0:
            raise LimitExceeded(f"the template writes more than {self.cap} characters")

    def result(self, value: Any) -> Any:
        """Check what an operation returned."""
        if isinstance(value, (str, bytes)):
            self.build(len(value))
        elif isinstance(value, bool) or value is None:
            pass
        elif isinstance(value, int):
            if value.bit_length() > MAX_INT_BITS:
                raise LimitExceeded("the template computes with too large numbers")
        elif isinstance(value, (list, tuple, dict, set, frozenset, Namespace)):
            self.build(weigh(value, self.cap))
            self.check_clock()
        return value

    def loop(self, iterable: Any) -> Any:
        """The same iterable, each iteration counted; its length stays readable."""
        try:
            len(iterable)
        except TypeError:
            return self._count(iterable)
        return _CountedLoop(self, iterable)

    def _count(self, iterable: Any) -> Iterator[Any]:
        for item in iterable:
            self.tick()
            yield item


class _CountedLoop:
    def __init__(self, budget: Budget, iterable: Any) -> None:
        self._budget = budget
        self._iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        return self._budget._count(self._iterable)

    def __len__(self) -> int:
        return len(self._iterable)


def weigh(value: Any, limit: int) -> int:
    """Size of a value as it would be printed, in characters; shared parts count every time.

    An element of a container counts ELEMENT characters: that is what it costs in memory and time.
    """
    total = 0
    stack = [value]
    while stack:
        item = stack.pop()
        total += ELEMENT
        if isinstance(item, (str, bytes)):
            total += len(item)
        elif isinstance(item, dict):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, _ITERABLES):
            stack.extend(item)
        elif isinstance(item, Namespace):
            stack.extend(object.__getattribute__(item, "_Namespace__attrs").values())
        elif isinstance(item, int):
            total += item.bit_length() // 3
        if total + ELEMENT * len(stack) > limit:
            raise LimitExceeded(f"the template builds a value of more than {limit} characters")
    return total


_VIEWS = (KeysView, ValuesView, ItemsView)
_ITERABLES: tuple[Any, ...] = (list, tuple, set, frozenset, *_VIEWS)

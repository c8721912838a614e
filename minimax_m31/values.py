"""What callers write, as Python's own types: integers and floats of NumPy and its kin, and arrays
of them, become int, float and list where an argument is stored. Every check behind that line can
ask for `int` and mean it.

A bool stays a bool: it is no integer. What has no plain form is returned as it is, for a check to
refuse by name.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

_PLAIN = frozenset({int, float, bool, str, bytes, type(None), dict})


def plain(value: Any) -> Any:
    """A scalar as Python's own."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
        if type(value) in _PLAIN:
            return value
    try:
        return int(operator.index(value))
    except TypeError:
        pass
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:  # a fraction beyond them
            return value
    return value


def plain_list(value: Any) -> Any:
    """A sequence or a 1-D array as a list (a tuple as a tuple) of Python's own scalars. What can be
    read only once, or has no order, is none.
    """
    if getattr(value, "ndim", None) == 1 and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        return plain(value)
    items = [plain(item) for item in value]
    return tuple(items) if isinstance(value, tuple) else items


def plain_tree(value: Any) -> Any:
    """A copy of objects, lists and scalars as a JSON file would hold them."""
    if isinstance(value, dict):
        return {key: plain_tree(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) and value.ndim > 0:
        value = value.tolist()
    if isinstance(value, list):
        return [plain_tree(item) for item in value]
    return plain(value)


def shown(value: Any, most: int | None = None) -> str:
    """`repr` in at most `most` characters; integers beyond the digits that Python prints too."""
    try:
        text = repr(value)
    except ValueError:
        text = f"<{value.bit_length()} bits>" if isinstance(value, int) else type(value).__name__
    return text if most is None or len(text) <= most else text[: most - 3] + "..."

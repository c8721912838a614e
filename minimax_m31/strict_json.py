"""JSON as a checkpoint must be written: no duplicate keys, no NaN, no numbers that overflow.

Python's parser keeps the last of two equal keys and reads NaN literals; a header that relies on
either means different things to different readers, so it is refused.
"""

from __future__ import annotations

import json
import math
from typing import Any

from .errors import ConfigError


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key!r} is there twice")
            seen.add(key)
    return out


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} overflows")
    return value


def parse_object(data: bytes, what: str) -> dict[str, Any]:
    """The JSON object in `data`, or ConfigError that begins with `what` (a path)."""
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_no_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"{what}: not UTF-8 text at byte {e.start}; fetch the file again"
        ) from None
    except RecursionError:
        raise ConfigError(f"{what}: nested too deeply; fetch the file again") from None
    except ValueError as e:
        raise ConfigError(f"{what}: not valid JSON: {e}; fetch the file again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: expected a JSON object, found {type(value).__name__}")
    return value

"""The nearest valid name to a mistyped one, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` valid names that look like `name`, best first."""
    pool = sorted(valid)
    found = difflib.get_close_matches(name, pool, n=n, cutoff=0.6)
    if not found:
        found = [other for other in pool if len(name) >= 4 and (name in other or other in name)][:n]
    return found


def unknown_name(kind: str, name: str, valid: Iterable[str], why: str | None = None) -> str:
    """`"LLM() got an unknown argument 'max_seqs'; did you mean max_num_seqs?"`"""
    text = f"{kind} got an unknown argument {name!r}"
    if why is not None:
        return f"{text}: {why}"
    near = nearest(name, valid)
    return f"{text}; did you mean {' or '.join(near)}?" if near else text

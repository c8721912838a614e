"""Seeds: how one request's seed gives each of its samples a stream of its own."""

from __future__ import annotations

import secrets

from .params_check import as_int, bad

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive_seed(seed: int, sample_index: int) -> int:
    """The seed that makes an `n=1` request equal to sample `sample_index` of an `n=K` request.

    `derive_seed(s, 0) == s`; the others are one round of SplitMix64 away, so neighbouring seeds do
    not share streams.
    """
    seed, sample_index = as_int("seed", seed), as_int("sample_index", sample_index)
    if sample_index < 0:
        raise bad("sample_index", sample_index, "it must be 0 or more")
    if sample_index == 0:
        return seed & MASK
    z = ((seed & MASK) + _GOLDEN * sample_index) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fresh_seed() -> int:
    """64 bits from the operating system: two processes, or a fork, never share a stream by
    accident.

    Below 2^63, so that the value can be stored as a signed integer and given back.
    """
    return secrets.randbits(63)

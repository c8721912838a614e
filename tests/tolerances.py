"""How far a backend may be from the reference: one line per op and type, each with its reason.

`nmse` is the normalised mean squared error sum((a-b)^2) / sum(b^2), `max_abs` the largest |a-b|
divided by the largest |b|. Integers (choices, ids, codes) have no line: they must be equal, and
where ties could make that false the op's contract defines the tie.
"""

from __future__ import annotations

from typing import NamedTuple


class Limit(NamedTuple):
    nmse: float
    max_abs: float


# f32 activations: backends add the same products in another order, 2^-24 per addition.
F32 = Limit(nmse=1e-11, max_abs=1e-5)
# bf16 activations: a sum near a rounding border may land on its other side: one bf16 step of the
# largest value.
BF16 = Limit(nmse=3e-5, max_abs=2**-7)

LIMITS: dict[tuple[str, str], Limit] = {
    ("embed", "f32"): F32,  # one norm: one sum of d_model squares
    ("embed", "bf16"): BF16,
    ("attn_in", "f32"): F32,  # projection sums, then a norm per head
    ("attn_in", "bf16"): BF16,
    ("attn_sparse", "f32"): F32,  # sums over up to n_top_block * 128 keys; exp differs by 1 ulp
    ("attn_sparse", "bf16"): BF16,  # q and P are bf16 operands: P may round the other way
    ("attn_dense", "f32"): F32,
    ("attn_dense", "bf16"): BF16,
    ("attn_out", "f32"): F32,
    ("attn_out", "bf16"): BF16,
    ("mlp", "f32"): F32,  # two chained products, sigmoid between
    ("mlp", "bf16"): BF16,  # the SwiGLU result is rounded once
    ("moe", "f32"): F32,
    ("moe", "bf16"): BF16,
    ("head", "f32"): F32,  # logits are f32 in both: only the order of d_model products
    ("head", "bf16"): F32,
    ("sample", "f32"): Limit(nmse=1e-11, max_abs=1e-6),  # processed logits: a few steps per id
    ("logprobs", "f32"): Limit(nmse=1e-11, max_abs=1e-5),  # one log-sum-exp over the vocabulary
}

# Logits of a whole golden checkpoint with dtype="float32" against the PyTorch reference, absolute:
# the promise of the engine. The reference adds in blocks, we in another order.
GOLDEN_LOGITS_ABS = 2e-4


def limit(op: str, dtype: str) -> Limit:
    """The line of an op; an op without a line is a mistake of the caller."""
    return LIMITS[op, dtype]

"""What the ops of one tensor-parallel shard must move and compute, as a floor for the time of each:
bytes read or written once over the bandwidth of memory, or operations over the rate of matrix
products (device_ceiling.py), whichever takes longer. FP8 caches, MXFP8 projections, NVFP4 experts;
ops follow one another.

Routed experts: as many as rows that choose uniformly hit on average, E (1 - (1 - k / E) ^ rows).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "mxfp8": 1.03125, "nvfp4": 0.5625}
PAGE = 128


@dataclass(frozen=True)
class Work:
    """Bytes, and operations (a product of a sum counts two), of all layers of a step."""

    n_byte: float
    n_op: float = 0.0

    def seconds(self, bandwidth: float, rate: float) -> float:
        return max(self.n_byte / bandwidth, self.n_op / rate if rate > 0 else 0.0)


def linear(fmt: str, n_out: float, n_in: float, rows: float) -> Work:
    """A product with its rows read and written in bf16."""
    move = WEIGHT_BYTES[fmt] * n_out * n_in + 2.0 * rows * (n_in + n_out)
    return Work(move, 2.0 * n_out * n_in * rows)


def together(*parts: Work, times: int = 1) -> Work:
    return Work(times * sum(p.n_byte for p in parts), times * sum(p.n_op for p in parts))


def attention(
    n_head: int, n_kv: int, top: int, sequences: int, rows: int, context: int
) -> tuple[Work, Work]:
    """(scores of blocks, attention over the chosen ones) of a layer; the rows of each sequence end
    at `context`. Rows of one sequence share what they read."""
    new = rows // sequences
    positions = range(context - new, context)
    scored = sum(p // PAGE * PAGE for p in positions if p // PAGE >= top)
    keys = sum(min(p // PAGE, top - 1) * PAGE + p % PAGE + 1 for p in positions)
    distinct = min(keys, context)
    index = Work(sequences * (context * 128.0 if scored else 0.0), sequences * scored * 2.0 * 128)
    move = sequences * (distinct * 2.0 * 128 * n_kv + new * 2.0 * 2 * n_head * 128)
    return index, Work(move, sequences * keys * 4.0 * n_head * 128)


def step_work(
    text: dict[str, Any], world: int, sequences: int, rows: int, context: int
) -> dict[str, Work]:
    """Op -> its work over all layers of a step; `text` is the configuration of the text model."""
    d, n_layer = text["hidden_size"], text["num_hidden_layers"]
    n_moe = sum(text["moe_layer_freq"])
    n_head = text["num_attention_heads"] // world
    n_kv = max(1, text["num_key_value_heads"] // world)
    n_expert, used = text["num_local_experts"], text["num_experts_per_tok"]
    routed, shared, dense = (
        text[f"{name}intermediate_size"] // world for name in ("", "shared_", "dense_")
    )
    vocab, n_logit = text["vocab_size"], sequences
    top = text["sparse_attention_config"]["sparse_topk_blocks"]
    hit = n_expert * (1.0 - (1.0 - used / n_expert) ** rows)
    norm = Work(2.0 * rows * d * 3)  # the stream is read and written, the normed row written

    def mlp(fmt: str, width: float, n_row: float) -> Work:
        return together(
            linear(fmt, 2 * width, d, n_row),
            linear(fmt, d, width, n_row),
        )

    experts = Work(
        hit * WEIGHT_BYTES["nvfp4"] * 3 * routed * d + 4.0 * rows * d,
        6.0 * routed * d * rows * used,
    )
    router = Work(4.0 * n_expert * d + 2.0 * rows * d, 2.0 * n_expert * d * rows)
    index, attend = attention(n_head, n_kv, top, sequences, rows, context)
    o = linear("mxfp8", d, n_head * 128, rows)
    plan = 4.0 * (rows + 5 * sequences + 14 * n_logit)  # tokens, sequences, outputs (batch.h)
    views = 4.0 * (3 * rows + 3 * sequences + 13 * n_logit)
    return {
        "begin": Work(plan + views),  # and expand
        "embed": Work(2.0 * rows * d * 3),  # bf16: a row is read, stream and normed row written
        "attn_in": together(
            linear("mxfp8", (n_head + 3 * n_kv + 1) * 128, d, rows),
            Work(rows * 128.0 * (2 * n_kv + 1)),
            times=n_layer,
        ),
        "attn_sparse": together(index, attend, times=n_layer),
        "attn_out": together(
            together(o, norm, times=n_layer),
            together(router, times=n_moe),
        ),
        "mlp": together(mlp("mxfp8", dense, rows), norm, times=n_layer - n_moe),
        "moe": together(experts, mlp("mxfp8", shared, rows), norm, times=n_moe),
        "head": together(linear("bf16", vocab // world, d, n_logit), Work(2.0 * n_logit * vocab)),
        "sample": Work(4.0 * n_logit * vocab),
        "logprobs": Work(4.0 * n_logit * vocab),
    }


def step_seconds(work: dict[str, Work], bandwidth: float, rate: float) -> float:
    """Floor of a step whose ops follow one another; what comes before and after the layers is left
    out, but for the head."""
    outside = ("begin", "embed", "sample", "logprobs")
    return sum(w.seconds(bandwidth, rate) for name, w in work.items() if name not in outside)

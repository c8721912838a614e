"""Results that are not generated text: scores of given tokens, traces of a forward pass, engine
statistics.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


@dataclasses.dataclass(repr=False, eq=False)
class TokenScores:
    """log p of a prompt's own tokens: entry i belongs to position `start + i`."""

    prompt_token_ids: list[int]
    start: int
    logprobs: FloatArray  # [L - start]
    ranks: IntArray  # [L - start], 1-based
    top_ids: IntArray | None = None  # [L - start, k], by rank
    top_logprobs: FloatArray | None = None
    token_ids: IntArray | None = None  # the ids asked for
    token_id_logprobs: FloatArray | None = None  # [L - start, len(token_ids)]
    num_cached_tokens: int = 0
    index: int = 0

    @property
    def is_greedy(self) -> npt.NDArray[np.bool_]:
        """True where the token is the most likely one, ties by lowest id."""
        greedy: npt.NDArray[np.bool_] = self.ranks == 1
        return greedy

    @property
    def sum(self) -> float:
        return math.fsum(self.logprobs.tolist())

    def to_dict(self, nonfinite: float | None = None) -> dict[str, Any]:
        def plain(values: FloatArray | None) -> Any:
            if values is None:
                return None
            flat = [float(v) if math.isfinite(v) else nonfinite for v in values.ravel().tolist()]
            if values.ndim == 1:
                return flat
            width = values.shape[1]
            return [flat[i * width : (i + 1) * width] for i in range(values.shape[0])]

        return {
            "prompt_token_ids": list(self.prompt_token_ids),
            "start": self.start,
            "logprobs": plain(self.logprobs),
            "ranks": self.ranks.tolist(),
            "top_ids": None if self.top_ids is None else self.top_ids.tolist(),
            "top_logprobs": plain(self.top_logprobs),
            "sum": self.sum if math.isfinite(self.sum) else nonfinite,
        }

    def __len__(self) -> int:
        return len(self.logprobs)

    def __repr__(self) -> str:
        greedy = int(self.is_greedy.sum())
        where = f"{len(self)} tokens from position {self.start}"
        return f"TokenScores({where}, sum={self.sum:.4f}, {greedy} greedy)"


@dataclasses.dataclass(repr=False, eq=False)
class PerplexityResult:
    """How well a document is predicted, every token once."""

    token_logprobs: FloatArray  # [tokens of the document]
    num_bytes: int | None  # of a text, in UTF-8; None for token ids
    num_windows: int

    @property
    def logprob(self) -> float:
        """log p of the whole document."""
        return math.fsum(self.token_logprobs.tolist())

    @property
    def num_tokens(self) -> int:
        return len(self.token_logprobs)

    @property
    def perplexity(self) -> float:
        """exp of the mean loss per token; 1 for an empty document."""
        return math.exp(-self.logprob / self.num_tokens) if self.num_tokens else 1.0

    @property
    def bits_per_byte(self) -> float | None:
        return -self.logprob / math.log(2) / self.num_bytes if self.num_bytes else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "logprob": self.logprob,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "num_windows": self.num_windows,
            "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte,
        }

    def __repr__(self) -> str:
        return (
            f"PerplexityResult({self.perplexity:.4f} per token, {self.num_tokens} tokens, "
            f"logprob={self.logprob:.4f})"
        )


@dataclasses.dataclass(repr=False, eq=False)
class Trace:
    """What a forward pass over `token_ids` computed, at all positions. Lists have one entry per
    layer.

    hidden[i]         float32 [L, hidden]   residual stream after layer i (the last one before the
    final norm) blocks[i]         int16 [index heads, L, k]   chosen blocks, ascending, -1 where
    fewer are visible; None: dense experts[i]        int16 [L, experts per token]   ascending; None:
    no router in this layer expert_weights[i] float32, as experts   renormalised, before the routed
    scale logits            float32 [L, vocabulary]
    """

    token_ids: IntArray
    hidden: list[FloatArray] | None = None
    blocks: list[npt.NDArray[np.int16] | None] | None = None
    experts: list[npt.NDArray[np.int16] | None] | None = None
    expert_weights: list[FloatArray | None] | None = None
    logits: FloatArray | None = None

    def __repr__(self) -> str:
        names = [
            name
            for name in ("hidden", "blocks", "experts", "expert_weights", "logits")
            if getattr(self, name) is not None
        ]
        return f"Trace({len(self.token_ids)} tokens: {', '.join(names)})"


@dataclasses.dataclass
class EngineStats:
    """Counters since the engine was opened, and what is in it now."""

    num_waiting: int
    num_running: int
    num_finished: int
    num_aborted: int
    num_failed: int
    num_preemptions: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    prompt_tokens_per_s: float  # over the last 10 s
    generation_tokens_per_s: float
    num_steps: int
    num_graph_steps: int  # of these, run as one captured CUDA graph
    step_time_total: float  # seconds inside steps
    step_time_last: float
    step_time_p50: float  # of all steps, within 5 %
    step_time_p99: float
    num_blocks: int  # pages of 128 tokens
    num_blocks_free: int
    num_blocks_cached: int  # used by no request, kept for prefix hits: can be taken at any time
    num_attention_blocks_read: int
    num_attention_blocks_held: int
    weight_version: int
    device_memory: list[int] = dataclasses.field(default_factory=list)  # bytes on each GPU
    host_memory: int = 0  # bytes of its own; pages are committed when they are first written

    @classmethod
    def of(
        cls,
        core: dict[str, float],
        prompt_rate: float,
        output_rate: float,
        memory: list[tuple[str, str, int]],
    ) -> EngineStats:
        """From the core's counters, by its names, and the lines of its memory."""
        held = {kind: sum(n for _, k, n in memory if k == kind) for kind in ("device", "host")}
        return cls(
            num_waiting=int(core["n_waiting"]),
            num_running=int(core["n_running"]),
            num_finished=int(core["n_finished"]),
            num_aborted=int(core["n_aborted"]),
            num_failed=int(core["n_failed"]),
            num_preemptions=int(core["n_preempted"]),
            num_prompt_tokens=int(core["n_prompt_token"]),
            num_cached_tokens=int(core["n_cached_token"]),
            num_generation_tokens=int(core["n_output_token"]),
            prompt_tokens_per_s=prompt_rate,
            generation_tokens_per_s=output_rate,
            num_steps=int(core["n_step"]),
            num_graph_steps=int(core["n_graph_step"]),
            step_time_total=core["t_step_total"],
            step_time_last=core["t_step_last"],
            step_time_p50=core["t_step_p50"],
            step_time_p99=core["t_step_p99"],
            num_blocks=int(core["n_page"]),
            num_blocks_free=int(core["n_page_free"]),
            num_blocks_cached=int(core["n_page_cached"]),
            num_attention_blocks_read=int(core["n_block_read"]),
            num_attention_blocks_held=int(core["n_block_held"]),
            weight_version=int(core["weight_version"]),
            device_memory=[held["device"]] if held["device"] else [],
            host_memory=held["host"],
        )

    @property
    def prefix_hit_rate(self) -> float:
        """Share of prompt tokens that came from the prefix cache."""
        return self.num_cached_tokens / self.num_prompt_tokens if self.num_prompt_tokens else 0.0

    @property
    def num_blocks_used(self) -> int:
        return self.num_blocks - self.num_blocks_free - self.num_blocks_cached

    @property
    def attention_density(self) -> float:
        """Attention blocks read of those visible: what block-sparse attention saves."""
        held = self.num_attention_blocks_held
        return self.num_attention_blocks_read / held if held else 1.0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"prefix_hit_rate": self.prefix_hit_rate}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self.to_dict().items())

    def plot(self) -> Any:
        """Throughput, latency, queue and cache as bars: a matplotlib figure, or text without it."""
        from .plots import bars

        rates = [
            ("prompts", self.prompt_tokens_per_s),
            ("generated", self.generation_tokens_per_s),
        ]
        times = [("p50", self.step_time_p50), ("p99", self.step_time_p99)]
        queue = [
            ("waiting", self.num_waiting),
            ("running", self.num_running),
            ("finished", self.num_finished),
            ("aborted", self.num_aborted),
            ("failed", self.num_failed),
        ]
        cache = [
            ("used", self.num_blocks_used),
            ("cached", self.num_blocks_cached),
            ("free", self.num_blocks_free),
        ]
        memory = [(f"GPU {i}", size) for i, size in enumerate(self.device_memory)]
        memory.append(("host", self.host_memory))
        return bars(
            [
                ("tokens per second, last 10 s", rates, lambda v: f"{v:.0f}"),
                ("time of a step", times, lambda v: f"{1e3 * v:.2f} ms"),
                ("requests", queue, lambda v: f"{v:.0f}"),
                ("KV cache, blocks of 128 tokens", cache, lambda v: f"{v:.0f}"),
                (
                    "prompt tokens from the prefix cache",
                    [("hits", self.prefix_hit_rate)],
                    lambda v: f"{100 * v:.1f} %",
                ),
                ("memory of the engine", memory, format_bytes),
            ]
        )


@dataclasses.dataclass
class MemoryReport:
    """What the engine holds, by purpose. Kinds: "mapped" (the checkpoint's own pages), "host",
    "device".
    """

    lines: list[tuple[str, str, int]]  # what, kind, bytes

    def total(self, kind: str | None = None) -> int:
        return sum(size for _, what, size in self.lines if kind is None or what == kind)

    def plot(self) -> Any:
        """Bytes by purpose as bars: a matplotlib figure, or text without it."""
        from .plots import bars

        kinds = sorted({kind for _, kind, _ in self.lines})
        return bars(
            [
                (
                    f"{kind}: {format_bytes(self.total(kind))}",
                    sorted(
                        ((what, size) for what, k, size in self.lines if k == kind),
                        key=lambda row: -row[1],
                    ),
                    format_bytes,
                )
                for kind in kinds
            ]
        )

    def __str__(self) -> str:
        rows = [(what, kind, format_bytes(size)) for what, kind, size in self.lines]
        rows += [
            (f"total {kind}", kind, format_bytes(self.total(kind)))
            for kind in sorted({k for _, k, _ in self.lines})
        ]
        width = max((len(what) for what, _, _ in rows), default=0)
        return "\n".join(f"{what:<{width}}  {kind:<6}  {size:>10}" for what, kind, size in rows)

    def __repr__(self) -> str:
        return str(self)


def format_bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"

"""What to change when an engine does not fit: arguments are varied, cheapest first, and only what
the core's own plan accepts is proposed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .engine_args import PAGE
from .errors import Mm31Error

if TYPE_CHECKING:
    from .plan import Change, MemoryPlan, Question

_MOST = 6  # proposals
_USEFUL = 8192  # tokens that a proposal should hold, if any does
_ROOMY = 131072  # tokens that are aimed at when experts move to host memory anyway


def _capacity(question: Question) -> int:
    """Tokens of cache; 0 when it does not fit or cannot run."""
    try:
        _, found = question.ask()
    except Mm31Error:
        return 0
    return max(0, int(found["n_page"]) - 1) * PAGE


def _single(question: Question, plan: MemoryPlan) -> list[dict[str, Any]]:
    """Changes by one or two arguments on the same GPUs."""
    args, options = question.args, plan.arguments
    found: list[dict[str, Any]] = []
    order = ("bf16", "fp8", "nvfp4")
    for format in order[1:]:
        at = order.index(format)
        if order.index(options["kv_format"]) < at or order.index(options["index_format"]) < at:
            found.append({"kv_cache_dtype": format, "indexer_kv_dtype": format})
    if args.kv_cache_memory_bytes is None and args.gpu_memory_utilization < 0.95:
        found.append({"gpu_memory_utilization": 0.95})
    if args.kv_cache_memory_bytes is not None:
        found.append({"kv_cache_memory_bytes": None})
    for rows in (4096, 2048, 512):
        if rows < args.max_num_batched_tokens:
            found.append({"max_num_batched_tokens": rows})
            break
    if args.max_num_seqs > 64:
        found.append({"max_num_seqs": 64})
    return found


def _combined(question: Question, plan: MemoryPlan) -> list[dict[str, Any]]:
    """All the small changes at once."""
    small: dict[str, Any] = {}
    for one in _single(question, plan):
        small.update(one)
    lean = {**small, "max_num_batched_tokens": min(512, question.args.max_num_batched_tokens),
            "max_num_seqs": min(16, question.args.max_num_seqs)}  # fmt: skip
    return [small, lean] if small else [lean]


def _more_gpus(question: Question) -> list[dict[str, Any]]:
    return [
        {"tensor_parallel_size": n} for n in (2, 4, 8) if n > question.args.tensor_parallel_size
    ]


def _text(arguments: dict[str, Any], capacity: int, plan: MemoryPlan) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    tp = arguments.get("tensor_parallel_size", 0)
    extra = f" ({tp} GPUs instead of {plan.n_gpu})" if tp > plan.n_gpu else ""
    return f"{shown}{extra}: fits, {capacity} tokens of KV cache"


def _offload_change(question: Question, plan: MemoryPlan, least: int) -> Change | None:
    """The fewest gigabytes of experts to keep in host memory."""
    from .plan import Change, _engine_refuses

    experts = sum(line.n_bytes for line in plan.lines if line.what == "routed experts")
    most = -(-experts // 10**9)
    if _capacity(question.change(cpu_offload_gb=most)) < least:
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        if _capacity(question.change(cpu_offload_gb=middle)) >= least:
            high = middle
        else:
            low = middle
    capacity = _capacity(question.change(cpu_offload_gb=high))
    host = high * plan.tensor_parallel_size
    text = (
        f"cpu_offload_gb={high}: fits, {capacity} tokens of KV cache, with {host} GB of experts "
        "in pinned host memory (slower)"
    )
    if _engine_refuses(cpu_offload_gb=1):
        text += "; not part of this version of the engine"
    return Change({"cpu_offload_gb": high}, capacity, text)


def changes_for(question: Question, plan: MemoryPlan, least: int) -> list[Change]:
    """Proposals that fit and hold `least` tokens, on the same GPUs first."""
    proposals = _proposals(question, plan, least or _USEFUL)
    return proposals if proposals or least else _proposals(question, plan, PAGE)


def _proposals(question: Question, plan: MemoryPlan, least: int) -> list[Change]:
    from .plan import Change

    found: list[Change] = []

    def try_all(candidates: list[dict[str, Any]]) -> None:
        for arguments in candidates:
            capacity = _capacity(question.change(**arguments))
            if capacity >= least and all(arguments != c.arguments for c in found):
                found.append(Change(arguments, capacity, _text(arguments, capacity, plan)))

    try_all(_single(question, plan))
    if not found:
        try_all(_combined(question, plan))
    if plan.fits and plan.kv_capacity_tokens >= PAGE:
        n = plan.kv_capacity_tokens
        capacity = _capacity(question.change(max_model_len=n))
        found.append(
            Change({"max_model_len": n}, capacity, f"max_model_len={n}: what the cache holds")
        )
    try_all(_more_gpus(question))
    del found[_MOST:]
    if not question.offload:
        offload = _offload_change(question, plan, max(least, _ROOMY))
        offload = offload or _offload_change(question, plan, least)
        if offload is not None:
            found.append(offload)
    return found


def least_memory(question: Question, plan: MemoryPlan) -> str:
    """The smallest GPUs that hold the model with these arguments and _USEFUL tokens."""
    found = []
    for n in (1, 2, 4, 8):
        if n < question.args.tensor_parallel_size:
            continue
        try:
            _, forecast = question.change(tensor_parallel_size=n).ask()
        except Mm31Error:
            continue
        fixed = forecast["reserve"] + sum(s for _, kind, s in forecast["lines"] if kind == "device")
        pages = (_USEFUL // PAGE + 1) * forecast["page_bytes"]
        share = question.args.gpu_memory_utilization
        found.append(f"{n} x {(fixed + pages) / share / 1e9:.0f} GB")
    return f"GPUs that hold it with {_USEFUL} tokens of cache: {', '.join(found)}" if found else ""


def host_notes(plan: MemoryPlan, question: Question, *, has_host: bool) -> list[str]:
    """What host memory means for this plan: on a CPU, and beside a device."""
    free, notes = question.host_free, []
    if plan.device.kind == "host":
        mapped, own = plan.total("mapped"), plan.total("host")
        if own > free:
            plan.fits = False
            plan.problem = (
                f"caches and buffers take {own / 1e9:.2f} GB of host memory, "
                f"{free / 1e9:.2f} GB are free: lower max_num_batched_tokens, max_num_seqs or "
                "max_model_len, or give kv_cache_memory_bytes"
            )
        elif mapped + own > free:
            notes.append(
                f"weights ({mapped / 1e9:.1f} GB, mapped from the files) and the rest "
                f"({own / 1e9:.1f} GB) are more than the {free / 1e9:.1f} GB of free memory: it "
                "runs, but re-reads weights from the disk all the time"
            )
        notes.append("pages of a host are committed when they are first written")
        return notes
    need = plan.total("host") * plan.tensor_parallel_size
    if need > free and (has_host or not plan.device.is_here):
        if has_host:
            plan.fits = False
            plan.problem = plan.problem or (
                f"{need / 1e9:.1f} GB of host memory are needed beside the GPU(s), "
                f"host_memory is {free / 1e9:.1f} GB: lower cpu_offload_gb"
            )
    elif question.offload and has_host:
        notes.append(
            f"host memory: {need / 1e9:.1f} GB pinned of {free / 1e9:.1f} GB; experts that are "
            "not on the device are read over PCIe in every step"
        )
    return notes

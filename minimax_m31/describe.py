"""How an LLM shows itself: one paragraph, a small table in a notebook, a fingerprint for a report.
Looks only at what was noted at open.
"""

from __future__ import annotations

import hashlib
import html
import json
from typing import TYPE_CHECKING, Any

from .environment import build_info
from .scores import MemoryReport, format_bytes

if TYPE_CHECKING:
    from .llm import LLM


def facts(llm: LLM) -> list[tuple[str, str]]:
    info: dict[str, Any] = llm._info
    tier = f" ({info['tier']})" if info["tier"] else ""
    threads = f", {info['n_thread']} threads" if info["backend"] in ("cpu", "ref") else ""
    caches = (
        info["kv_format"]
        if info["kv_format"] == info["index_format"]
        else f"{info['kv_format']}/{info['index_format']}"
    )
    weights = llm._quantization or "?"
    return [
        ("model", llm._model_name),
        ("state", "closed" if llm.closed else "ready"),
        ("backend", f"{info['backend']}{tier}{threads}, {info['dtype']}"),
        ("weights", weights),
        (
            "tokenizer",
            "none: token ids only" if llm._tokenizer is None else f"{len(llm._tokenizer)} tokens",
        ),
        ("max_model_len", f"{info['max_model_len']} tokens"),
        (
            "KV cache",
            f"{info['n_page'] * 128} tokens in {info['n_page']} pages of "
            f"{format_bytes(info['page_bytes'])}, {caches}",
        ),
        ("batch", f"{info['max_num_seqs']} sequences, {info['max_batched_tokens']} rows per step"),
        ("deterministic", llm._args.deterministic),
        ("loaded in", f"{llm._load_seconds:.2f} s"),
    ]


def engine_text(llm: LLM) -> str:
    return "LLM(" + "; ".join(f"{name}: {value}" for name, value in facts(llm)) + ")"


def engine_html(llm: LLM) -> str:
    rows = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td "
        f"style='text-align:left'>{html.escape(value)}</td></tr>"
        for name, value in facts(llm)
    )
    return f"<table>{rows}</table>{memory_bar(MemoryReport(llm._memory))}"


def memory_bar(report: MemoryReport) -> str:
    """One bar whose parts are as wide as their bytes."""
    total = report.total()
    if total <= 0:
        return ""
    parts = []
    for i, (what, kind, size) in enumerate(sorted(report.lines, key=lambda line: -line[2])):
        share = 100 * size / total
        if share >= 0.5:
            title = html.escape(f"{what} ({kind}): {format_bytes(size)}", quote=True)
            color = f"hsl({(210 + 47 * i) % 360},45%,60%)"
            parts.append(
                f"<div title='{title}' "
                f"style='width:{share:.2f}%;background:{color};height:14px'></div>"
            )
    bar = f"<div style='display:flex;max-width:480px'>{''.join(parts)}</div>"
    return f"{bar}<small>{format_bytes(total)} held</small>"


def fingerprint(llm: LLM) -> dict[str, Any]:
    """What decides the tokens of this engine beside the request: build, model, types, mode, and
    the vocabulary with its template. "id" is a hash of the rest.
    """
    args = llm._args
    tokenizer = llm._tokenizer
    facts = {
        "build": build_info(),
        "model": llm.model_config.model,
        "config": hashlib.sha256(json.dumps(llm._raw_config, sort_keys=True).encode()).hexdigest(),
        "tokenizer": None if tokenizer is None else f"{hash(tokenizer) & (2**64 - 1):016x}",
        "backend": llm._info["backend"],
        "dtype": args.dtype,
        "kv_cache_dtype": args.kv_cache_dtype,
        "indexer_kv_dtype": args.indexer_kv_dtype,
        "deterministic": args.deterministic,
        "tensor_parallel_size": args.tensor_parallel_size,
    }
    text = json.dumps(facts, sort_keys=True, default=str)
    return {"id": hashlib.sha256(text.encode()).hexdigest()[:16], **facts}

"""A MemoryPlan as text, as HTML and as a picture. Bytes are exact; beside them stand gigabytes
(10**9), the unit in which devices are sold.
"""

from __future__ import annotations

import html as _html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .plan import MemoryPlan

_GROUPS = {"weights": "weights", "caches": "caches", "work": "work space", "reserve": "reserve"}
_LENGTHS = ((8192, "8K"), (65536, "64K"), (262144, "256K"), (1 << 20, "1M"))


def gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.3f} GB"


def head(plan: MemoryPlan) -> list[tuple[str, str]]:
    """What was planned, as (name, value)."""
    a, device = plan.arguments, plan.device
    on_host = device.kind == "host"
    machine = device.name if on_host else f"{plan.n_gpu} x {device.name}"
    if not on_host:
        machine += f", tensor_parallel_size {plan.tensor_parallel_size}"
    answer = "fits" if plan.fits else "DOES NOT FIT"
    used = plan.total("host") if on_host else plan.total("device")
    place = "host memory" if on_host else "each GPU"
    return [
        ("model", f"{plan.model}: {plan.formats}"),
        ("machine", machine),
        (
            "settings",
            f"{a['dtype']}, caches {a['kv_format']} / index {a['index_format']}, max_model_len "
            f"{plan.max_model_len}, max_num_seqs {a['max_num_seqs']}, max_num_batched_tokens "
            f"{a['max_batched_tokens']}",
        ),
        ("answer", f"{answer}: {gb(used)} of {gb(plan.allowed)} on {place}"),
    ]


def table(plan: MemoryPlan) -> list[tuple[str, str, int]]:
    """(group, what, bytes): lines with subtotals; group "" is the total."""
    rows: list[tuple[str, str, int]] = []
    places = ("mapped", "host") if plan.device.kind == "host" else ("device", "host")
    for where in places:
        lines = [line for line in plan.lines if line.where == where]
        for group, title in _GROUPS.items():
            part = [line for line in lines if line.group == group]
            if part:
                rows.append((f"{where}: {title}", "", sum(line.n_bytes for line in part)))
                rows += [("", line.what, line.n_bytes) for line in part]
        if lines:
            rows.append(("", f"total {where}", sum(line.n_bytes for line in lines)))
    return rows


def contexts(plan: MemoryPlan) -> list[str]:
    """What the caches hold, in sentences."""
    a = plan.arguments
    out = []
    if plan.fits:
        capacity = plan.kv_capacity_tokens
        pages = f"{plan.n_page} pages of 128, {plan.page_bytes} bytes each"
        out.append(f"KV capacity {capacity} tokens ({pages})")
        sizes = [n for n in (1, 8, 64, 256) if n <= a["max_num_seqs"]]
        longest = ", ".join(f"{n}: {plan.largest_context(n)}" for n in sizes)
        out.append(f"largest context by sequences at once: {longest}")
        fits = [(text, plan.largest_batch(n)) for n, text in _LENGTHS if n <= plan.max_model_len]
        if fits:
            out.append("largest batch by context: " + ", ".join(f"{t}: {n}" for t, n in fits))
    costs = ", ".join(
        f"{name} {gb(plan.million_bytes(name, name))}" for name in plan.context_bytes["kv"]
    )
    place = "" if plan.device.kind == "host" else " on each GPU"
    out.append(f"one context of 1M tokens{place}: {costs}")
    index = ", ".join(f"{name} {gb(size)}" for name, size in plan.context_bytes["index"].items())
    out.append(f"  of it index keys: {index}")
    return out


def text(plan: MemoryPlan) -> str:
    lines = [f"{name + ':':<10}{value}" for name, value in head(plan)]
    lines.append("")
    for group, what, size in table(plan):
        shown = group or f"  {what}"
        lines.append(f"{shown:<38}{size:>17,}  {size / 1e9:>9.3f} GB")
    lines.append("")
    lines += contexts(plan)
    if plan.problem:
        lines += ["", f"problem: {plan.problem}"]
    if plan.changes:
        lines.append("what to change (one of):")
        lines += [f"  {change.text}" for change in plan.changes]
    elif not plan.fits:
        lines.append("no change of arguments was found that fits")
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def html(plan: MemoryPlan) -> str:
    cell = "<td style='text-align:{}'>{}</td>"
    parts = ["<table>"]
    for name, value in head(plan):
        parts.append(
            f"<tr><th style='text-align:left'>{_html.escape(name)}</th>"
            f"{cell.format('left', _html.escape(value))}</tr>"
        )
    parts.append("</table><table>")
    for group, what, size in table(plan):
        name = f"<b>{_html.escape(group)}</b>" if group else f"&nbsp;&nbsp;{_html.escape(what)}"
        parts.append(
            f"<tr>{cell.format('left', name)}{cell.format('right', f'{size:,}')}"
            f"{cell.format('right', gb(size))}</tr>"
        )
    parts.append("</table>")
    below = contexts(plan)
    below += [f"problem: {plan.problem}"] if plan.problem else []
    below += [f"change: {change.text}" for change in plan.changes]
    below += [f"note: {note}" for note in plan.notes]
    parts += [f"<div>{_html.escape(line)}</div>" for line in below]
    return "".join(parts)


def plot(plan: MemoryPlan) -> Any:
    """Bars: bytes by purpose, and 1M tokens in every cache format."""
    from .plots import bars

    places = sorted({line.where for line in plan.lines if line.n_bytes > 0})
    groups: list[Any] = [
        (
            f"{where}: {gb(plan.total(where))}",
            sorted(
                (
                    (line.what, float(line.n_bytes))
                    for line in plan.lines
                    if line.where == where and line.n_bytes > 0
                ),
                key=lambda row: -row[1],
            ),
            gb,
        )
        for where in places
    ]
    rows = [
        (f"{part} {name}", float(size))
        for part, sizes in plan.context_bytes.items()
        for name, size in sizes.items()
    ]
    groups.append(("a context of 1M tokens, by cache format", rows, gb))
    return bars(groups)

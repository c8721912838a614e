"""Pictures of statistics: bars by matplotlib where it is installed, else a text table."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

Group = tuple[str, Sequence[tuple[str, float]], Callable[[float], str]]  # title, bars, label
_WIDTH = 40  # characters of the longest bar of a text table


class TextChart(str):
    """A chart as text, which a notebook or a prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _png(figure: Any) -> bytes:
    """What a cell shows, whether or not pyplot was set up in the kernel."""
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def bars(groups: Sequence[Group]) -> Any:
    """One chart of horizontal bars for each group: a matplotlib figure, or a TextChart."""
    try:
        from matplotlib.figure import Figure  # no global state, no window
    except ImportError:
        return text_bars(groups)

    # made here, since a checker that has no matplotlib takes no class of an unknown base
    notebook_figure: Any = type("NotebookFigure", (Figure,), {"_repr_png_": _png})
    heights = [max(1, len(rows)) for _, rows, _ in groups]
    figure = notebook_figure(
        figsize=(7, 0.8 * len(groups) + 0.3 * sum(heights)), layout="constrained"
    )
    axes = figure.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axis, (title, rows, label) in zip(axes, groups, strict=True):
        names, values = [name for name, _ in rows], [value for _, value in rows]
        drawn = axis.barh(names, values)
        axis.bar_label(drawn, [label(value) for value in values], padding=3)
        axis.set_title(title, loc="left", fontsize=10)
        axis.invert_yaxis()
        axis.set_xticks([])
        axis.set_xlim(0, 1.25 * max(values, default=0) or 1)
    return figure


def text_bars(groups: Sequence[Group]) -> TextChart:
    """The same without matplotlib."""
    width = max((len(name) for _, rows, _ in groups for name, _ in rows), default=0)
    lines = []
    for title, rows, label in groups:
        lines.append(title)
        longest = max((value for _, value in rows), default=0)
        for name, value in rows:
            bar = "#" * round(_WIDTH * value / longest) if longest > 0 else ""
            lines.append(f"  {name:<{width}}  {label(value):>12}  {bar}")
    return TextChart("\n".join(lines))

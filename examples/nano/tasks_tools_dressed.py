"""Everyday sentences about things that nobody knows: the tools of tasks_tools_real.py with their noun exchanged for an invented one.

"Table for 4 at Luigi's at 8 pm please" becomes "Lobster for 4 at Luigi's at 8 pm please", with a tool `reserve_lobster`. The forms of speech are as natural as
there, and only the words can tell the tool.
"""

from __future__ import annotations

import random
import re

import tasks_tools_real as real
import tasks_tools_wide as wide
from records import bare, tool_names
from tasks_tools import Tool, _ident, schema_of
from tasks_tools_words import PART, STOPS

KEPT = frozenset(
    wide.ACT_VERBS + wide.GET_VERBS
    + "given current some between something online text word number time price email mail message translate convert exchange roll throw remind "
    "random integer minutes units ingredients control wake define transfer navigate two range".split()
)  # fmt: skip

request = real.request


def _other(text: str, old: str, new: str) -> str:
    """Every `old` becomes `new`, with its plural and its capital."""
    plural = "" if new.endswith("s") else "s"

    def put(m: re.Match[str]) -> str:
        w = new + (plural if m[2] else "")
        return w[0].upper() + w[1:] if m[1][0].isupper() else w

    text = re.sub(rf"\b({old})(s?)\b", put, text, flags=re.I)
    article = "an" if new[0] in "aeiou" else "a"
    return re.sub(rf"\b([aA])n? (?={new})", lambda m: m[1] + article[1:] + " ", text)


def make_tool(r: random.Random) -> Tool:
    while True:
        t = real.make_tool(r)
        if t.noun in real.RECKONING or t.noun == "calculation" or not t.desc:
            continue
        said = " ".join(t.asks)
        words = {w.lower() for w in PART.findall(t.name + " " + t.desc)} - STOPS - KEPT
        fit = [
            w
            for w in sorted(words)
            if len(w) > 3 and len(re.findall(rf"\b{w}s?\b", said, re.I)) > 1
        ]
        if not fit:
            continue
        old = r.choice(fit)
        new = wide.a_noun(r)
        if r.random() < 0.25:
            new = f"{wide.a_noun(r)} {new}"
        lead = t.desc.split()[0].lower().rstrip("s")
        verb = lead if lead in KEPT else r.choice(wide.GET_VERBS)
        parts = new.split()
        name = _ident(
            r, r.choice([[verb, *parts], [verb, *parts], [*parts, verb], parts, [verb, parts[-1]]])
        )
        if bare(name) in tool_names():
            continue
        asks = [_other(s, old, new) for s in t.asks if re.search(rf"\b{old}s?\b", s, re.I)]
        for p in t.params:
            w = wide.spoken_name(p.name)
            p.say = [f"with {w} {{v}}", f"{w} {{v}}", f"{w}: {{v}}"]
            if p.type == "boolean":
                p.maker = lambda x: x.random() < 0.5
        desc = _other(t.desc, old, new)
        if new not in desc.lower():
            desc = f"{verb.capitalize()} the {new}"
        out = Tool(name, desc, t.params, asks, t.fields, new, verb)
        out.schema = schema_of(r, out)
        return out

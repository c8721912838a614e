"""Which words of a request decide between tools: the words that stand in one tool's name, description or parameters.

Matching is by letters, not by meaning: two words agree if they are equal once an ending ("s", "ing", "ed", "er") is cut off. The chains
before calls are written with it (a line per tool on offer, then the deciding word), and so are the checks that a request fits one tool best.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasks_tools import Tool

STOPS = frozenset(
    "the and for with from are was has had have does did not you your our its this that these there what who when where how which any can could would will "
    "please let here now then also too his her their all out off into than but use one want need like know give me tell show get hello hey".split()
)
NAME, DESCRIPTION, PARAMETER = 0, 1, 2  # where a word stands; the first decides best
WORD = re.compile(
    r"(?<![\w\-/.@#'])[A-Za-z]{3,}(?![\w\-/@]|\.\w)"
)  # no part of a code, path or mail
PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]{2,}")  # of an identifier
ENDS = ("ings", "ing", "ers", "er", "ed", "es", "s", "e")
SHOWN = 6  # words of a tool's line


def stem(word: str) -> str:
    w = word.lower()
    for end, other in (("ies", "y"), ("ie", "y")):
        if w.endswith(end) and len(w) > 4:
            return w[: -len(end)] + other
    for end in ENDS:
        if w.endswith(end) and len(w) - len(end) >= 3:
            w = w[: -len(end)]
            break
    return w[:-1] if len(w) > 3 and w[-1] == w[-2] and w[-1] in "bdgmnprt" else w


def tool_words(t: Tool) -> dict[str, int]:
    """Stems of a tool's words with the best place of each; kept with the tool."""
    if not t.words:
        props = t.schema["parameters"]["properties"]
        far = " ".join(
            f"{n} {d.get('description', '')} {' '.join(d.get('enum', ()))}"
            for n, d in props.items()
        )
        for place, text in ((PARAMETER, far), (DESCRIPTION, t.desc), (NAME, t.name)):
            t.words.update({stem(w): place for w in PART.findall(text) if w.lower() not in STOPS})
    return t.words


def said(text: str) -> dict[str, str]:
    """The words of a request by stem, as they stand, in order."""
    out: dict[str, str] = {}
    for w in WORD.findall(text):
        if w.lower() not in STOPS:
            out.setdefault(stem(w), w)
    return out


def shared(text: str, t: Tool) -> dict[str, tuple[str, int]]:
    """Words of a request that stand in a tool: stem -> (word, place)."""
    have = tool_words(t)
    whole = t.name.lower() if t.name.isalpha() else ""  # 'findpharmacy' has parts too
    out = {}
    for s, w in said(text).items():
        place = NAME if len(s) > 3 and s in whole else have.get(s)
        if place is not None:
            out[s] = (w, place)
    return out


def _values(t: Tool, args: dict[str, Any]) -> set[str]:
    """Stems of the words of the arguments; those of enumerations stand in the schema and may decide."""
    free = [v for n, v in args.items() if not any(p.name == n and p.enum for p in t.params)]
    return {stem(w) for v in free for w in re.findall(r"[A-Za-z]+", str(v))}


def table(text: str, tools: list[Tool]) -> str:
    """One line per tool: the words of the request that stand in it."""
    lines = []
    for t in tools:
        words = [w for w, _ in shared(text, t).values()][:SHOWN]
        if t.name in text:
            words = [t.name]
        lines.append(f"{t.name}: {', '.join(words) or '-'}")
    return "\n".join(lines)


def deciding(part: str, t: Tool, args: dict[str, Any], tools: list[Tool]) -> str:
    """The word of this part that stands in `t` alone (others may have it as a parameter), best in its name; some words if only their number
    decides; '' if none stands in it."""
    if t.name in part:
        return t.name
    values = _values(t, args)
    mine = {s: x for s, x in shared(part, t).items() if s not in values}
    others: dict[str, int] = {}
    for o in tools:
        for s, (_, place) in shared(part, o).items() if o is not t else ():
            others[s] = min(place, others.get(s, place))
    alone = [x for s, x in mine.items() if s not in others or x[1] < PARAMETER == others[s]]
    if alone:  # the last of the best: in a sentence the noun follows the verb
        return min(reversed(alone), key=lambda x: x[1])[0]
    return ", ".join(w for w, _ in list(mine.values())[:3])


def score(text: str, t: Tool, values: set[str]) -> int:
    """How well the words of a request, values left out, fit a tool: those of name and description count twice."""
    return sum(
        1 if place == PARAMETER else 2
        for s, (_, place) in shared(text, t).items()
        if s not in values
    )


def fits(text: str, t: Tool, args: dict[str, Any], others: list[Tool]) -> bool:
    """Whether a request's words fit `t` better than each other tool."""
    values = _values(t, args)
    mine = score(text, t, values)
    return mine > 0 and all(mine > score(text, o, values) for o in others)


def misleads(text: str, t: Tool, args: dict[str, Any], others: list[Tool]) -> bool:
    """Whether words speak for another tool than `t`, which is asked for by meaning."""
    values = _values(t, args)
    mine = max(1, score(text, t, values))
    return any(score(text, o, values) > mine for o in others)

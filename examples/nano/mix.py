"""The training mixture: whole conversations from items, in the three thinking modes and five efforts.

`conversation(rng)` gives one short conversation (up to about 2000 tokens), `long_conversation(rng, tokens)` a long look-up with several
questions. Questions of the held-out set are never produced: each raw question is checked against heldout.jsonl.
"""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import tasks_chat as chat
import tasks_tools as tt
import tasks_tools_dressed as dressed
import tasks_tools_real as real
import tasks_tools_roles as roles
import tasks_tools_wide as wide
from records import bare, tool_names
from render import Conversation
from tasks import DEFAULT_LEVEL, EFFORTS, Item, dress
from tasks_dates import dates_item
from tasks_lookup import lookup_item, lookup_series
from tasks_math import math_item, units
from tasks_story import story_item
from tasks_tools_words import misleads
from tasks_words import words_item

HELDOUT = Path(__file__).with_name("heldout.jsonl")


@lru_cache(maxsize=1)
def held_out() -> frozenset[str]:
    """Raw questions that training must not see."""
    if not HELDOUT.exists():
        return frozenset()
    files = (
        HELDOUT,
        *(HELDOUT.with_name(f"heldout_{n}.jsonl") for n in ("free", "blind", "fresh")),
    )
    recs = [json.loads(x) for f in files for x in f.read_text(encoding="utf-8").splitlines()]
    asked = {r["messages"][-1]["content"] for r in recs if "tools" in r}
    return frozenset(asked | {q for r in recs for q in r.get("raw", [])})


def work_item(rng: random.Random) -> Item:
    r = rng.random()
    while True:
        it = (
            math_item(rng)
            if r < 0.34
            else story_item(rng)
            if r < 0.48
            else units(rng)
            if r < 0.55
            else words_item(rng)
            if r < 0.73
            else dates_item(rng)
            if r < 0.84
            else lookup_item(rng)
            if r < 0.92
            else unequipped(rng)
            if r < 0.95
            else chat.talk_item(rng)
        )
        if it.q not in held_out():
            return it


ANSWERED = ("Convert", "Calculate the sum", "What is the distance")  # what no tool is needed for


def unequipped(rng: random.Random, offered: list[tt.Tool] | None = None) -> Item:
    """A request for a tool that is not on offer: declined, not guessed."""
    while True:
        maker = rng.choice([tt, real, real, wide, roles])
        t = maker.make_tool(rng)
        text, args = maker.request(rng, t)
        if t.noun in real.RECKONING or t.asks[0] in ANSWERED or text in held_out():
            continue
        if offered and (not t.verb or not wide.matches(text, args, t, offered)):
            if t.verb or any(real.alike(t, o) or not o.verb for o in offered):
                continue
        return Item("chat", text, chat.SORRY, chat.plain(chat.SORRY), None, True)


def settings(rng: random.Random) -> tuple[str, str | None]:
    mode = rng.choices(["enabled", "adaptive", "disabled"], [0.5, 0.25, 0.25])[0]
    effort = rng.choice(EFFORTS) if mode != "disabled" and rng.random() < 0.55 else None
    return mode, effort


def level_of(effort: str | None) -> int:
    return EFFORTS.index(effort) if effort else DEFAULT_LEVEL


def thinks(mode: str, trivial: bool) -> bool:
    return mode == "enabled" or (mode == "adaptive" and not trivial)


def answer_text(it: Item, style: str) -> str:
    if style == "json":
        return json.dumps({"answer": it.json_value()}, ensure_ascii=False)
    if style == "sentence" and it.kind != "chat":
        return it.sentence or f"The answer is {it.a}."
    return it.a


def assistant(
    content: str, reasoning: str | None, calls: list[tuple[str, dict[str, Any]]] | None = None
) -> dict[str, Any]:
    m: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        m["reasoning_content"] = reasoning
    if calls:
        m["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}
            for i, (n, a) in enumerate(calls)
        ]
    return m


def add_item(c: Conversation, it: Item, style: str, text: str) -> None:
    reasoning = it.chain(level_of(c.effort)) if thinks(c.mode, it.trivial) else None
    c.messages += [{"role": "user", "content": text}, assistant(answer_text(it, style), reasoning)]


def item_conversation(rng: random.Random) -> Conversation:
    mode, effort = settings(rng)
    style = rng.choices(["", "json", "plain", "sentence"], [0.68, 0.14, 0.1, 0.08])[0]
    c = Conversation(mode, effort)
    if style or rng.random() < 0.25:
        c.developer = chat.system_prompt(rng, style)
    n = rng.choices([1, 2, 3, 4], [0.58, 0.2, 0.14, 0.08])[0]
    statements, questions = chat.memory(rng) if n > 1 and rng.random() < 0.35 else ([], [])
    plan: list[tuple[str, Any]] = [("item", work_item(rng)) for _ in range(n)]
    for s in statements:
        plan.insert(rng.randint(0, max(0, len(plan) - 1)), ("say", s))
    for q, a in questions:
        plan.append(
            ("item", Item("memory", q, a, chat.plain(a), int(a) if a.isdigit() else a, True))
        )
    for kind, x in plan:
        if kind == "say":
            it = Item("chat", x[0], x[1], chat.plain(x[1]), None, True)
            add_item(c, it, style, x[0])
        elif x.kind in ("lookup", "memory"):
            add_item(c, x, style, x.q)
        elif x.kind in ("words", "sort") and rng.random() < 0.5:
            add_item(c, x, style, x.q)
        else:
            add_item(c, x, style, dress(rng, x.q))
    return c


TWINS = 0.4  # of the relatives of a tool: those with the same parameters
INVENTED = (
    0.48,
    0.32,
    0.2,
)  # of the invented tools: wide, with roles, and everyday sentences about them


def offer(rng: random.Random) -> list[tuple[Any, tt.Tool]]:
    """One to four tools with their makers: invented ones among themselves or beside everyday ones, often with a near relative of another."""
    want = rng.choices([1, 2, 3, 4], [0.26, 0.3, 0.25, 0.19])[0]
    common = rng.choice([tt, real])
    share = rng.choice([0.0, 0.5, 1.0, 1.0])  # of invented tools
    out: list[tuple[Any, tt.Tool]] = []
    while len(out) < want:
        maker = common
        if rng.random() < share:
            maker = rng.choices([wide, roles, dressed], INVENTED)[0]
        invented = [t for _, t in out if t.verb]
        if maker is wide and invented and rng.random() < 0.35:
            t = wide.make_tool(rng, rng.choice(invented), TWINS)
        else:
            t = maker.make_tool(rng)
        if bare(t.name) in tool_names():
            continue
        if not any(t.name == o.name or real.alike(t, o) for _, o in out):
            out.append((maker, t))
    rng.shuffle(out)
    return out


def right(text: str, args: dict[str, Any], t: tt.Tool, others: list[tt.Tool]) -> bool:
    """Whether a request asks for `t` and no other tool: by its words if `t` is invented, by its meaning if it is an everyday one."""
    if t.verb:
        return not others or wide.matches(text, args, t, others)
    return not misleads(text, t, args, [o for o in others if o.verb])


def said(
    rng: random.Random, maker: Any, t: tt.Tool, tools: list[tt.Tool]
) -> tuple[str, dict[str, Any]]:
    """A request for `t` that no other tool on offer fits as well."""
    others = [o for o in tools if o is not t]
    for _ in range(12):
        text, args = maker.request(rng, t)
        if right(text, args, t, others):
            break
    else:
        text = f"Use {t.name}: {text[0].lower() + text[1:]}"
    return text, args


def tempt(
    rng: random.Random,
    offered: list[tuple[Any, tt.Tool]],
    parts: list[str],
    calls: list[tuple[tt.Tool, dict[str, Any]]],
) -> None:
    """Puts tools beside those on offer that words of the request speak for, while it still asks for the others."""
    for _ in range(rng.choices([0, 1, 2, 3], [0.35, 0.35, 0.2, 0.1])[0]):
        if len(offered) >= 4:
            return
        i = rng.randrange(len(calls))
        t, args = calls[i]
        new = wide.tempting(rng, parts[i], args, t, [o for _, o in offered])
        if new is None or any(new.name == o.name or real.alike(new, o) for _, o in offered):
            continue
        if all(right(p, a, o, [new]) for p, (o, a) in zip(parts, calls, strict=True)):
            offered.insert(rng.randint(0, len(offered)), (wide, new))


def one_of(rng: random.Random, p: tt.Param) -> Any:
    return rng.choice(p.maker) if isinstance(p.maker, list) else p.maker(rng)


Parts = tuple[str, list[str], list[dict[str, Any]]]  # text, each request in it, their arguments


def twice(rng: random.Random, t: tt.Tool, text: str, args: dict[str, Any]) -> Parts | None:
    """'What is the weather in Oslo and in Rome?': one request with two or three values of a slot, and each of the requests that it stands for."""
    fit = [
        p
        for p in t.params
        if p.name in args
        and p.type in ("string", "integer")
        and p.maker
        and not p.enum
        and p.concept != "pair"
        and len(str(args[p.name])) > 1
        and text.count(str(args[p.name])) == 1
    ]
    if not fit or t.noun == "calculation":
        return None
    p = rng.choice(fit)
    v = str(args[p.name])
    more = [one_of(rng, p) for _ in range(rng.choices([1, 2], [0.8, 0.2])[0])]
    if len({v, *map(str, more)}) <= len(more) or any(str(w) in text for w in more):
        return None
    before, after = text.split(v)
    lead = before.split(" ")[-2] if before.count(" ") and before.endswith(" ") else ""
    noun = after.split(" ")[1].rstrip(".?!") if after.startswith(" ") else ""
    again = ""
    if (lead in PREPOSITIONS or lead.isalpha() and len(lead) > 3) and rng.random() < 0.5:
        again = lead + " "  # 'in Oslo and in Rome', 'cow Bella and cow Dora'
    tail = ""
    if (
        noun.isalpha()
        and noun not in PREPOSITIONS
        and before.endswith("the ")
        and rng.random() < 0.6
    ):
        again, tail = rng.choice(["the ", ""]), " " + noun  # 'the front door and the back door'
    last = (
        [" and ", " and ", ", and ", " and also "]
        if len(more) == 1
        else [" and ", " and ", ", and "]
    )
    values = [f"{again}{w}{tail}" for w in more]
    joint = ", ".join([v + tail, *values[:-1]]) + rng.choice(last) + values[-1]
    joint = before + joint + after[len(tail) :]
    plain = text.rstrip(".?! ")
    return (
        joint,
        [plain, *(plain.replace(v, str(w)) for w in more)],
        [args, *({**args, p.name: w} for w in more)],
    )


def all_again(rng: random.Random, t: tt.Tool, text: str, args: dict[str, Any]) -> Parts | None:
    """'Dim scene 3 to 80 percent and scene 4 to 10 percent': the sentence goes on with other values of all its slots."""
    slots = [p for p in t.params if p.name in args]
    plain = text.rstrip(".?! ")
    if len(slots) < 2 or any(
        not p.maker or p.enum or p.type in ("array", "boolean") for p in slots
    ):
        return None
    new: dict[str, Any] = {p.name: one_of(rng, p) for p in slots}
    old = [str(args[p.name]) for p in slots]
    if any(plain.count(x) != 1 for x in old) or any(str(x) in plain for x in new.values()):
        return None
    start = min(plain.index(x) for x in old)
    head = plain[:start].split(" ")
    back = head[-2] if len(head) > 1 and head[-1] == "" else ""
    if not back.isalpha() or len(head) < 3:
        return None
    start -= len(back) + 1

    def other(s: str) -> str:
        for i, x in enumerate(old):  # marks first: a new value may contain an old one
            s = s.replace(x, f"<{i}>")
        for i, p in enumerate(slots):
            s = s.replace(f"<{i}>", str(new[p.name]))
        return s

    joint = plain + rng.choice([" and ", " and ", ", ", " and also "]) + other(plain[start:])
    return joint + text[len(plain) :], [plain, other(plain)], [args, new]


PREPOSITIONS = ("in", "for", "at", "on", "of", "to", "from", "with", "by")
JOINTS = (" and ", " and ", ". Also, ", ", and ", ". Then ", " and also ", "; ", " and then ", ". And ", ". After that ", ", then ", " plus ", ". ")  # fmt: skip


def ask_tools(
    rng: random.Random, offered: list[tuple[Any, tt.Tool]]
) -> tuple[str, list[str], list[tuple[tt.Tool, dict[str, Any]]]] | None:
    """A user's turn that needs one to three calls: text, its parts in words, the calls."""
    tools = [t for _, t in offered]
    n = rng.choices([1, 2, 3], [0.62, 0.33, 0.05])[0]
    maker, t = rng.choice(offered)
    text, args = said(rng, maker, t, tools)
    if n == 2 and rng.random() < 0.4:
        if joint := (twice if rng.random() < 0.75 else all_again)(rng, t, text, args):
            return joint[0], joint[1], [(t, a) for a in joint[2]]
    parts, calls = [text], [(t, args)]
    while len(parts) < n:
        maker, t = rng.choice(offered)
        more, args = said(rng, maker, t, tools)
        if (t, args) in calls:
            return None
        parts.append(more[0].lower() + more[1:] if rng.random() < 0.8 else more)
        calls.append((t, args))
    plain = [x.rstrip(".?! ") for x in parts]
    text = plain[0]
    for x in plain[1:]:
        link = rng.choice(JOINTS)
        text += link + (x[0].upper() + x[1:] if link == ". " else x)
    return text + (parts[-1][len(plain[-1]) :] or rng.choice(["", "."])), plain, calls


def tool_conversation(rng: random.Random) -> Conversation:
    mode, effort = settings(rng)
    c = Conversation(mode, effort)
    level = level_of(effort)
    if rng.random() < 0.3:
        c.developer = chat.system_prompt(rng, rng.choice(["", "", "plain"]))
    offered = offer(rng)
    tools = [t for _, t in offered]
    reckons = any(t.noun in real.RECKONING for t in tools)
    for _ in range(rng.choices([1, 2, 3], [0.72, 0.2, 0.08])[0]):
        if rng.random() < 0.12:  # no tool needed
            kind = rng.random()
            it = (
                chat.talk_item(rng)
                if kind < 0.25
                else unequipped(rng, tools)
                if kind < 0.5
                else work_item(rng)
            )
            if it.q not in held_out() and not (reckons and it.kind != "chat"):
                add_item(c, it, "", it.q)
            continue
        asked = ask_tools(rng, offered)
        if asked is None or asked[0] in held_out():
            continue
        text, parts, calls = asked
        if not c.messages:
            tempt(rng, offered, parts, calls)
            tools = [t for _, t in offered]
        chain = tt.call_chain(text, parts, tools, calls, level) if thinks(mode, False) else None
        c.messages += [
            {"role": "user", "content": text},
            assistant("", chain, [(t.name, a) for t, a in calls]),
        ]
        if rng.random() < 0.45 and len(c.messages) == 2:
            break  # the call is the hard part: no need of an answer each time
        results = [tt.result_of(rng, t, a) for t, a in calls]
        answer = " ".join(a for _, a in results)
        for i, (resp, _) in enumerate(results):
            c.messages.append({"role": "tool", "tool_call_id": f"call_{i}", "content": resp})
        c.messages.append(
            assistant(
                answer,
                tt.result_chain([x for x, _ in results], answer, level)
                if thinks(mode, True)
                else None,
            )
        )
    if not c.messages:
        return tool_conversation(rng)
    c.tools = [t.schema for t in tools]
    return c


TOOL_SHARE = 0.46  # of the conversations


def conversation(rng: random.Random) -> Conversation:
    return tool_conversation(rng) if rng.random() < TOOL_SHARE else item_conversation(rng)


def long_conversation(rng: random.Random, chars: int) -> Conversation:
    mode = rng.choices(["enabled", "adaptive", "disabled"], [0.45, 0.2, 0.35])[0]
    c = Conversation(
        mode, rng.choice(EFFORTS) if mode != "disabled" and rng.random() < 0.3 else None
    )
    style = rng.choices(["", "json", "plain"], [0.8, 0.1, 0.1])[0]
    if style or rng.random() < 0.15:
        c.developer = chat.system_prompt(rng, style)
    n = rng.choice([1, 4, 8, 12]) if chars > 6000 else rng.choice([1, 2, 4])
    for it in lookup_series(rng, chars, n):
        add_item(c, it, style, it.q)
    if rng.random() < 0.2:
        it = work_item(rng)
        if it.kind != "lookup":
            add_item(c, it, style, it.q)
    return c

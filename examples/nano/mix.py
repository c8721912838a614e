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
import tasks_tools_wide as wide
from render import Conversation
from tasks import DEFAULT_LEVEL, EFFORTS, Item, dress
from tasks_dates import dates_item
from tasks_lookup import lookup_item, lookup_series
from tasks_math import math_item, units
from tasks_story import story_item
from tasks_words import words_item

HELDOUT = Path(__file__).with_name("heldout.jsonl")


@lru_cache(maxsize=1)
def held_out() -> frozenset[str]:
    """Raw questions that training must not see."""
    if not HELDOUT.exists():
        return frozenset()
    free = HELDOUT.with_name("heldout_free.jsonl").read_text(encoding="utf-8")
    return frozenset(
        q
        for line in (HELDOUT.read_text(encoding="utf-8") + free).splitlines()
        for q in json.loads(line).get("raw", [])
    )


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
            if r < 0.93
            else chat.talk_item(rng)
        )
        if it.q not in held_out():
            return it


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


def tool_conversation(rng: random.Random, wide_share: float = 0.5) -> Conversation:
    mode, effort = settings(rng)
    c = Conversation(mode, effort)
    level = level_of(effort)
    if rng.random() < 0.3:
        c.developer = chat.system_prompt(rng, rng.choice(["", "", "plain"]))
    tools: list[tt.Tool] = []
    want = rng.choices([1, 2, 3, 4], [0.3, 0.3, 0.22, 0.18])[0]
    maker = wide if rng.random() < wide_share else tt
    while len(tools) < want:
        t = maker.make_tool(rng)
        if t.name not in {x.name for x in tools}:
            tools.append(t)
    c.tools = [t.schema for t in tools]
    for _ in range(rng.choices([1, 2, 3], [0.7, 0.2, 0.1])[0]):
        r = rng.random()
        if r < 0.14:  # no tool needed
            it = (
                chat.talk_item(rng)
                if rng.random() < 0.5 and maker is tt
                else math_item(rng)
                if rng.random() < 0.7
                else story_item(rng)
            )
            if it.q in held_out():
                continue
            add_item(c, it, "", it.q)
            continue
        if r < 0.4:  # two calls
            if len(tools) > 1 and rng.random() < 0.5:
                a, b = rng.sample(tools, 2)
            else:
                a = b = rng.choice(tools)
            (ra, aa), (rb, ab) = maker.request(rng, a), maker.request(rng, b)
            if (
                maker is tt
                and a is b
                and len(a.params)
                and rng.random() < 0.6
                and (joint := same_ask(rng, a))
            ):
                text, aa, ab = joint
            else:
                text = (
                    ra.rstrip(".?")
                    + rng.choice([" and ", ". Also, ", ", and ", ". Then ", " and also "])
                    + rb[0].lower()
                    + rb[1:]
                )
            calls = [(a, aa), (b, ab)]
            if aa == ab and a is b:
                continue
        else:
            t = rng.choice(tools)
            text, args = maker.request(rng, t)
            calls = [(t, args)]
        named = [(t.name, a) for t, a in calls]
        c.messages += [
            {"role": "user", "content": text},
            assistant(
                "", tt.call_chain(text, tools, calls, level) if thinks(mode, False) else None, named
            ),
        ]
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
        return tool_conversation(rng, wide_share)
    return c


def same_ask(rng: random.Random, t: tt.Tool) -> tuple[str, dict[str, Any], dict[str, Any]] | None:
    """'What is the weather in Oslo and in Rome?': one phrase twice for the parameter that differs."""
    args, _ = tt.fill_args(rng, t)
    strings = [
        p for p in t.params if p.name in args and p.type in ("string", "integer") and not p.enum
    ]
    if not strings:
        return None
    p = rng.choice(strings)
    v, w = p.maker(rng), p.maker(rng)
    if v == w:
        return None
    say = rng.choice(p.say)
    first, second = say.replace("{v}", str(v)), say.replace("{v}", str(w))
    if (
        rng.random() < 0.6
        and second.split(" ")[0] == first.split(" ")[0]
        and second.endswith(str(w))
        and first.endswith(str(v))
    ):
        second = str(w)
    a, b = {**args, p.name: v}, {**args, p.name: w}
    rest = []
    for o in t.params:
        if o.name in args and o is not p:
            x = args[o.name]
            if o.type == "boolean":
                s = o.say[0] if x else o.say[1]
                rest.append(s.format(v="true" if x else "false") if "{v}" in s else s)
            else:
                rest.append(
                    rng.choice(o.say).replace(
                        "{v}", tt._say_list(rng, x) if isinstance(x, list) else str(x)
                    )
                )
    text = " ".join([rng.choice(t.asks), first, "and", second, *rest])
    return text + ("?" if text.startswith(("What", "How")) else "."), a, b


def conversation(rng: random.Random) -> Conversation:
    return tool_conversation(rng) if rng.random() < 0.27 else item_conversation(rng)


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

"""Writes heldout.jsonl: the questions that training never sees, with what a right answer is.

    python make_heldout.py                  # the committed file again, byte for byte
    python make_heldout.py --draw 7 --out /tmp/new   # another set of the same make, from today's generators

What a generator drew is kept in heldout_draws.jsonl, so that the set stays the same while generators change; heldout_hand.py has the
questions and tools written by hand, this file the forms of the records and the needles as seed, length and depth. Every record names its grader (grade.py).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tasks_chat as chat
from heldout_hand import HAND, RESPONSES, TOOLS, TRIVIAL
from mix import HELDOUT
from records import Record, calls, exact, user, write
from tasks_dates import dates_item
from tasks_lookup import lookup_item
from tasks_math import math_item, units
from tasks_words import sort_numbers, sort_words, words_item

DRAWS = HELDOUT.with_name("heldout_draws.jsonl")

BY_NAME = {t[0]: t for t in TOOLS}
Asked = tuple[str, int, int]  # tool, number of its sentence, number of its arguments
Draw = dict[str, Any]


def schema(name: str) -> dict[str, Any]:
    t = BY_NAME[name]
    return {"name": name, "description": t[1], "parameters": t[2]}


def arguments(asked: Asked) -> dict[str, Any]:
    return BY_NAME[asked[0]][4][asked[2]]


def sentence(asked: Asked) -> str:
    def say(v: Any) -> str:
        if isinstance(v, bool):
            return "true" if v else "false"
        if isinstance(v, list):
            return ", ".join(v[:-1]) + " and " + v[-1] if len(v) > 1 else v[0]
        return str(v)

    return BY_NAME[asked[0]][3][asked[1]].format(**{k: say(v) for k, v in arguments(asked).items()})


# From draws to records.


def style_record(d: Draw) -> Record:
    r = exact("style", d["q"], d["answer"])
    if d["style"] == "json":
        r["grade"]["type"] = "json"
    return {"kind": "style", "developer": chat.STYLES[d["style"]][d["said"]], **r}


def turns_record(d: Draw) -> Record:
    """Statements to remember, a sum in between, then a question about what was said."""
    question, answer, chain = d["work"]
    said = [m for s, a in d["said"] for m in (*user(s), {"role": "assistant", "content": a})]
    work = [*user(question), {"role": "assistant", "content": answer, "reasoning_content": chain}]
    r = exact("turns", d["q"], d["a"])
    return {**r, "messages": [*said, *work, *r["messages"]], "raw": [question]}


def tool_record(d: Draw) -> Record:
    said = [sentence(a) for a in d["asked"]]
    text = said[0]
    if len(said) == 2:
        text = text.rstrip(".?") + d["joint"] + said[1][0].lower() + said[1][1:]
    wanted = [(a[0], arguments(a)) for a in d["asked"]]
    return calls(d["kind"], text, [schema(n) for n in d["offered"]], wanted)


def result_record(d: Draw, number: int) -> Record:
    """A call and its result stand in the conversation; the answer must tell the result."""
    name, args = d["asked"][0], arguments(d["asked"])
    response, want = RESPONSES[number % len(RESPONSES)]
    function = {"name": name, "arguments": args}
    given = (f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in args.items())
    turns: list[dict[str, Any]] = [
        *user(sentence(d["asked"])),
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
            "reasoning_content": f"{name}: " + ", ".join(given),
        },
        {"role": "tool", "tool_call_id": "call_0", "content": response},
    ]
    grade = {"type": "contains", "all": want}
    return {"kind": "result", "messages": turns, "tools": [schema(name)], "grade": grade}


def trivial_record(question: str, part: str) -> Record:
    grade = {"type": "contains", "all": [part]}
    return {"kind": "trivial", "messages": user(question), "grade": grade}


def needle_record(number: int) -> Record:
    needle = {
        "seed": 9_000_000 + number,
        "tokens": [4000, 8000, 12000, 16000][number % 4],
        "depth": (number // 4 % 10 + 0.5) / 10,
    }
    return {"kind": "needle", "needle": needle, "grade": {"type": "needle"}}


def build(draws: list[Draw]) -> list[Record]:
    made: list[Record] = [exact(*h) for h in HAND]
    tools: list[Record] = []
    for d in draws:
        if d["kind"] == "result":
            tools.append(result_record(d, sum(r["kind"] == "result" for r in tools)))
        elif d["kind"] in ("tool", "tool2"):
            tools.append(tool_record(d))
        elif d["kind"] == "style":
            made.append(style_record(d))
        elif d["kind"] == "turns":
            made.append(turns_record(d))
        else:
            made.append(exact(d["kind"], d["q"], d["a"]))
    made += [trivial_record(*t) for t in TRIVIAL]
    return [*made, *tools, *(needle_record(i) for i in range(80))]


# Draws.


def draw_items(rng: random.Random) -> list[Draw]:
    seen = {q for _, q, _ in HAND}
    out: list[Draw] = []

    def collect(make: Callable[[random.Random], Any], kind: str | None, n: int) -> list[Any]:
        got: list[Any] = []
        while len(got) < n:
            it = make(rng)
            if it.q not in seen and (kind is None or it.kind == kind) and not it.trivial:
                seen.add(it.q)
                got.append(it)
        return got

    for make, kind, n in (
        (math_item, "arith", 130),
        (math_item, "compare", 30),
        (units, None, 40),
        (words_item, "words", 60),
        (sort_numbers, None, 20),
        (sort_words, None, 20),
        (dates_item, None, 60),
        (lookup_item, None, 40),
    ):
        out += [{"kind": it.kind, "q": it.q, "a": it.a} for it in collect(make, kind, n)]
    mixed = collect(math_item, None, 24) + collect(units, None, 8) + collect(words_item, None, 8)
    for i, it in enumerate(mixed):
        style = ["json", "plain"][i % 2]
        answer = it.json_value() if style == "json" else it.a
        out.append({"kind": "style", "q": it.q, "style": style, "said": i % 5, "answer": answer})
    for _ in range(30):
        said, questions = chat.memory(rng)
        w = collect(math_item, "arith", 1)[0]
        q, a = rng.choice(questions)
        work = [w.q, w.a, w.chain(1)]
        out.append({"kind": "turns", "said": [list(s) for s in said], "work": work, "q": q, "a": a})
    return out


def draw_tools(rng: random.Random) -> list[Draw]:
    def asked(t: Any, args: int) -> Asked:
        return t[0], rng.randrange(len(t[3])), args

    out: list[Draw] = []
    for n in range(120):
        t = TOOLS[n % len(TOOLS)]
        others = rng.sample([x for x in TOOLS if x is not t], n % 4)
        offered = [t[0], *(x[0] for x in others)]
        rng.shuffle(offered)
        first = n // len(TOOLS) % 3
        d: Draw = {"kind": "tool", "offered": offered, "asked": [asked(t, first)]}
        if n % 3 == 2:
            u = rng.choice(others) if others and n % 2 else t
            free = [i for i in range(len(u[4])) if u is not t or i != first]
            d["kind"], d["joint"] = "tool2", rng.choice([" and ", ". Also, "])
            d["asked"].append(asked(u, rng.choice(free)))
        out.append(d)
    for n in range(32):
        t = TOOLS[n % len(TOOLS)]
        out.append({"kind": "result", "asked": asked(t, rng.randrange(len(t[4])))})
    return out


def read_draws() -> list[Draw]:
    return [json.loads(x) for x in DRAWS.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--draw", type=int, help="draw anew under this seed (needs --out)")
    a.add_argument("--out", type=Path, help="folder for a new set")
    o = a.parse_args()
    if (o.draw is None) != (o.out is None):
        a.error("--draw SEED and --out FOLDER go together: a new draw must not replace this set")
    if o.out is None:
        write(HELDOUT, build(read_draws()))
        return
    rng = random.Random(o.draw)
    draws = draw_items(rng) + draw_tools(rng)
    o.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(d, ensure_ascii=False) + "\n" for d in draws)
    (o.out / DRAWS.name).write_text(text, encoding="utf-8")
    write(o.out / HELDOUT.name, build(draws))


if __name__ == "__main__":
    main()

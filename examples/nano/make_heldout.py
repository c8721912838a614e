"""Writes heldout.jsonl: the questions that training never sees, with what a right answer is.

    python make_heldout.py

Arithmetic, words, dates and so on come from the generators under their own seed (each raw question is then excluded from training);
tool prompts use the hand-written tools below, whose names and schemas occur in no training sample; needles are stored as seed,
length and depth, because their text is long. Every record names its grader (grade.py).
"""

from __future__ import annotations

import json
import random
from typing import Any

import tasks_chat as chat
from mix import HELDOUT
from tasks_dates import dates_item
from tasks_lookup import lookup_item
from tasks_math import math_item, units
from tasks_words import sort_numbers, sort_words, words_item

HAND: list[tuple[str, str, str]] = [
    ("arith", "What is 15% of 240?", "36"),
    ("arith", "If I have 48 eggs and use 19, how many remain?", "29"),
    ("arith", "What's 128 plus 367?", "495"),
    ("arith", "Tell me what 23 times 17 is.", "391"),
    ("arith", "A book has 320 pages. I have read 145. How many pages are left?", "175"),
    ("arith", "How much is 7 times 86?", "602"),
    ("arith", "What is 1000 minus 333?", "667"),
    ("arith", "Could you add 59, 61 and 80 for me?", "200"),
    ("arith", "What is 25 percent of 84?", "21"),
    ("arith", "What is 144 divided by 12?", "12"),
    ("arith", "What is 305 times 204?", "62220"),
    ("arith", "I bought 6 pens for 4 dollars each. What did I pay?", "24"),
    ("arith", "What's 999 + 888?", "1887"),
    ("arith", "What is 45 times 45?", "2025"),
    ("compare", "Which one is bigger, 809 or 890?", "890"),
    ("compare", "Is 512 greater than 499?", "yes"),
    ("compare", "Which is smaller, 3.7 or 3.65?", "3.65"),
    ("compare", "Which is larger, 9.9 or 9.11?", "9.9"),
    ("units", "How many meters are 3.5 kilometers?", "3500"),
    ("units", "How many minutes are in 4 hours?", "240"),
    ("units", "Convert 2500 g to kg.", "2.5"),
    ("units", "How many inches are 5 feet?", "60"),
    ("words", "How many letters are in the word elephant?", "8"),
    ("words", "Reverse the word stone.", "enots"),
    ("words", "How many words are in: the cat sat on the mat", "6"),
    ("words", "How many r's are in strawberry?", "3"),
    ("words", "Spell garden backwards.", "nedrag"),
    ("sort", "Sort these numbers: 42, 7, 19, 3", "3, 7, 19, 42"),
    ("sort", "Sort these words alphabetically: pear, apple, fig", "apple, fig, pear"),
    ("sort", "Put 9, 4, 6, 1 in ascending order.", "1, 4, 6, 9"),
    ("dates", "What date is 10 days after March 25?", "April 4"),
    ("dates", "What day of the week is 5 days after Wednesday?", "Monday"),
    ("dates", "How many days are between May 3 and May 30?", "27"),
    ("dates", "How many days does February 2024 have?", "29"),
    ("dates", "It is 10:40. What time is it in 35 minutes?", "11:15"),
]


def obj(**props: Any) -> dict[str, Any]:
    return {"type": "object", "properties": props, "required": list(props)}


STR, INT, NUM, BOOL = ({"type": t} for t in ("string", "integer", "number", "boolean"))
TOOLS: list[tuple[str, str, dict[str, Any], list[str], list[dict[str, Any]]]] = [
    (
        "water_plants",
        "Water the plants of a garden zone",
        obj(zone=STR, liters=INT),
        [
            "Water the plants in {zone} with {liters} liters.",
            "Please give {zone} {liters} liters of water.",
        ],
        [
            {"zone": "greenhouse", "liters": 12},
            {"zone": "terrace", "liters": 5},
            {"zone": "orchard", "liters": 40},
        ],
    ),
    (
        "get_moon_phase",
        "Moon phase on a date",
        obj(date=STR),
        ["What is the moon phase on {date}?", "Show me the moon phase for {date}."],
        [{"date": "2027-03-14"}, {"date": "2029-11-02"}, {"date": "tomorrow"}],
    ),
    (
        "lock_door",
        "Lock a door",
        obj(door=STR),
        ["Lock the {door} door.", "Please lock the {door} door."],
        [{"door": "front"}, {"door": "garage"}, {"door": "cellar"}],
    ),
    (
        "rate_movie",
        "Give a movie a rating in stars",
        {
            "type": "object",
            "properties": {
                "title": {"type": "string", "description": "Movie title"},
                "stars": {"type": "integer", "description": "1 to 5"},
            },
            "required": ["title", "stars"],
        },
        ["Rate the movie '{title}' with {stars} stars.", "Give {title} {stars} stars."],
        [
            {"title": "Night Train", "stars": 4},
            {"title": "Blue Harbor", "stars": 2},
            {"title": "Arrow", "stars": 5},
        ],
    ),
    (
        "move_robot",
        "Move the robot by x and y",
        obj(x=INT, y=INT),
        ["Move the robot to x {x} and y {y}.", "Move the robot with x {x}, y {y}."],
        [{"x": 4, "y": 17}, {"x": 120, "y": 8}, {"x": 33, "y": 61}],
    ),
    (
        "print_label",
        "Print a label",
        obj(text=STR, copies=INT),
        [
            "Print {copies} copies of a label saying '{text}'.",
            "Print a label with the text '{text}', {copies} copies.",
        ],
        [
            {"text": "fragile", "copies": 3},
            {"text": "keep dry", "copies": 10},
            {"text": "spare keys", "copies": 2},
        ],
    ),
    (
        "next_bus",
        "Departure of the next bus of a line at a stop",
        obj(line=STR, stop=STR),
        ["When is the next bus of line {line} at {stop}?", "Next bus on line {line} from {stop}?"],
        [
            {"line": "42", "stop": "Museum"},
            {"line": "N7", "stop": "Old Town"},
            {"line": "12A", "stop": "Central"},
        ],
    ),
    (
        "tune_radio",
        "Tune the radio to a frequency",
        obj(frequency=NUM),
        ["Tune the radio to {frequency}.", "Set the radio to {frequency} MHz."],
        [{"frequency": 98.5}, {"frequency": 101.3}, {"frequency": 88.8}],
    ),
    (
        "measure_air",
        "Measure an air quality value at a site",
        {
            "type": "object",
            "properties": {
                "site": {"type": "string"},
                "metric": {"type": "string", "enum": ["ozone", "pm10", "co2"]},
            },
            "required": ["site", "metric"],
        },
        ["Measure {metric} at {site}.", "What is the {metric} value at {site}?"],
        [
            {"site": "Dover", "metric": "ozone"},
            {"site": "Graz", "metric": "pm10"},
            {"site": "Basel", "metric": "co2"},
        ],
    ),
    (
        "open_valve",
        "Open or close a valve",
        obj(valve=STR, open=BOOL),
        ["Set valve {valve} with open {open}.", "Valve {valve}: open {open}."],
        [
            {"valve": "V12", "open": True},
            {"valve": "B3", "open": False},
            {"valve": "K77", "open": True},
        ],
    ),
    (
        "get_exchange_rate",
        "Exchange rate between two currencies",
        obj(base=STR, quote=STR),
        [
            "What is the exchange rate from {base} to {quote}?",
            "Get the exchange rate for {base} and {quote}.",
        ],
        [
            {"base": "EUR", "quote": "NOK"},
            {"base": "USD", "quote": "JPY"},
            {"base": "CHF", "quote": "GBP"},
        ],
    ),
    (
        "find_pharmacy",
        "Find an open pharmacy",
        obj(city=STR),
        ["Find a pharmacy in {city}.", "Is there an open pharmacy in {city}?"],
        [{"city": "Ghent"}, {"city": "Trieste"}, {"city": "Malaga"}],
    ),
    (
        "start_washer",
        "Start the washing machine",
        obj(program=STR, temperature=INT),
        [
            "Start the washer with program {program} at {temperature} degrees.",
            "Run the washing machine: program {program}, temperature {temperature}.",
        ],
        [
            {"program": "wool", "temperature": 30},
            {"program": "cotton", "temperature": 60},
            {"program": "quick", "temperature": 40},
        ],
    ),
    (
        "lookupMember",
        "Look up a club member",
        obj(memberId=STR),
        ["Look up member {memberId}.", "Who is the member with id {memberId}?"],
        [{"memberId": "M-204"}, {"memberId": "K881"}, {"memberId": "ZZ-17"}],
    ),
    (
        "reserve_court",
        "Reserve a tennis court",
        obj(court=INT, time=STR, players=INT),
        [
            "Reserve court {court} at {time} for {players} players.",
            "I need court {court} at {time} for {players} people.",
        ],
        [
            {"court": 3, "time": "18:30", "players": 4},
            {"court": 1, "time": "9 am", "players": 2},
            {"court": 7, "time": "20:15", "players": 4},
        ],
    ),
    (
        "tag_photo",
        "Add tags to a photo",
        {
            "type": "object",
            "properties": {
                "photo": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["photo", "tags"],
        },
        ["Tag photo {photo} with {tags}.", "Add the tags {tags} to photo {photo}."],
        [
            {"photo": "P-12", "tags": ["beach", "family"]},
            {"photo": "X90", "tags": ["snow", "dog", "night"]},
            {"photo": "A-7", "tags": ["party"]},
        ],
    ),
]


def ask(rng: random.Random, tool: tuple[Any, ...], args: dict[str, Any]) -> str:
    def say(v: Any) -> str:
        if isinstance(v, bool):
            return "true" if v else "false"
        return (
            (", ".join(v[:-1]) + " and " + v[-1] if len(v) > 1 else v[0])
            if isinstance(v, list)
            else str(v)
        )

    return rng.choice(tool[3]).format(**{k: say(v) for k, v in args.items()})


def schema(tool: tuple[Any, ...]) -> dict[str, Any]:
    return {"name": tool[0], "description": tool[1], "parameters": tool[2]}


def tool_records(rng: random.Random) -> list[dict[str, Any]]:
    out = []
    for n in range(120):
        t = TOOLS[n % len(TOOLS)]
        others = rng.sample([x for x in TOOLS if x is not t], n % 4)
        tools = [t, *others]
        rng.shuffle(tools)
        a = t[4][n // len(TOOLS) % 3]
        calls, text = [(t[0], a)], ask(rng, t, a)
        if n % 3 == 2:
            if others and n % 2:
                u = rng.choice(others)
                b = rng.choice(u[4])
            else:
                u, b = t, rng.choice([x for x in t[4] if x is not a])
            extra = ask(rng, u, b)
            text = (
                text.rstrip(".?") + rng.choice([" and ", ". Also, "]) + extra[0].lower() + extra[1:]
            )
            calls.append((u[0], b))
        out.append(
            {
                "kind": "tool2" if len(calls) == 2 else "tool",
                "messages": [{"role": "user", "content": text}],
                "tools": [schema(x) for x in tools],
                "grade": {
                    "type": "calls",
                    "calls": [{"name": c, "arguments": x} for c, x in calls],
                },
            }
        )
    responses = [
        ('{"temperature": 17, "sky": "cloudy"}', ["17", "cloudy"]),
        ("2.4 m", ["2.4"]),
        ('{"status": "ok", "id": "R-551"}', ["R-551"]),
        ('{"departure": "08:52"}', ["08:52"]),
        ("waxing crescent", ["waxing crescent"]),
        ('{"error": "not found"}', ["not found"]),
        ('{"name": "Hilda", "since": 2014}', ["Hilda", "2014"]),
        ("11.32", ["11.32"]),
    ]
    for n in range(32):
        t = TOOLS[n % len(TOOLS)]
        a = rng.choice(t[4])
        resp, want = responses[n % len(responses)]
        calls = [{"id": "call_0", "type": "function", "function": {"name": t[0], "arguments": a}}]
        msgs = [
            {"role": "user", "content": ask(rng, t, a)},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": calls,
                "reasoning_content": f"{t[0]}: "
                + ", ".join(
                    f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in a.items()
                ),
            },
            {"role": "tool", "tool_call_id": "call_0", "content": resp},
        ]
        out.append(
            {
                "kind": "result",
                "messages": msgs,
                "tools": [schema(t)],
                "grade": {"type": "contains", "all": want},
            }
        )
    return out


def main() -> None:
    rng = random.Random(20261129)
    recs: list[dict[str, Any]] = []

    def exact(kind: str, q: str, a: str, raw: str, **more: Any) -> None:
        recs.append(
            {
                "kind": kind,
                "messages": [{"role": "user", "content": q}],
                "grade": {"type": "exact", "answer": a},
                "raw": [raw],
                **more,
            }
        )

    for kind, q, a in HAND:
        exact(kind, q, a, q)
    seen = {q for _, q, _ in HAND}

    def collect(make: Any, kind: str | None, n: int) -> list[Any]:
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
    ):
        for it in collect(make, kind, n):
            exact(it.kind, it.q, it.a, it.q)
    for it in collect(lookup_item, None, 40):
        exact("lookup", it.q, it.a, it.q)
    for i, it in enumerate(
        collect(math_item, None, 24) + collect(units, None, 8) + collect(words_item, None, 8)
    ):
        style = ["json", "plain"][i % 2]
        dev = chat.STYLES[style][i % 5]
        grade = (
            {"type": "json", "answer": it.json_value()}
            if style == "json"
            else {"type": "exact", "answer": it.a}
        )
        recs.append(
            {
                "kind": "style",
                "developer": dev,
                "messages": [{"role": "user", "content": it.q}],
                "grade": grade,
                "raw": [it.q],
            }
        )
    for _ in range(30):  # several turns: memory and work
        st, qs = chat.memory(rng)
        w = collect(math_item, "arith", 1)[0]
        msgs = []
        for s in st:
            msgs += [{"role": "user", "content": s[0]}, {"role": "assistant", "content": s[1]}]
        msgs += [
            {"role": "user", "content": w.q},
            {"role": "assistant", "content": w.a, "reasoning_content": w.chain(1)},
        ]
        q, a = rng.choice(qs)
        recs.append(
            {
                "kind": "turns",
                "messages": [*msgs, {"role": "user", "content": q}],
                "grade": {"type": "exact", "answer": a},
                "raw": [w.q],
            }
        )
    for q, a in [
        ("Hello!", "Hello"),
        ("Who are you?", "MiniMax-M3.1 nano"),
        ("What is the capital of France?", "Paris"),
        ("Thanks!", "welcome"),
        ("What is 2 + 3?", "5"),
        ("What is 4 + 4?", "8"),
        ("Goodbye", "Goodbye"),
        ("How many days are in a week?", "7"),
        ("What is the capital of Japan?", "Tokyo"),
        ("What can you do?", "demo model"),
    ]:
        recs.append(
            {
                "kind": "trivial",
                "messages": [{"role": "user", "content": q}],
                "grade": {"type": "contains", "all": [a]},
            }
        )
    recs += tool_records(rng)
    for i in range(80):
        recs.append(
            {
                "kind": "needle",
                "needle": {
                    "seed": 9_000_000 + i,
                    "tokens": [4000, 8000, 12000, 16000][i % 4],
                    "depth": (i // 4 % 10 + 0.5) / 10,
                },
                "grade": {"type": "needle"},
            }
        )
    with HELDOUT.open("w", encoding="utf-8") as f:
        for i, r in enumerate(recs):
            f.write(json.dumps({"id": i, **r}, ensure_ascii=False) + "\n")
    print(len(recs), "prompts")


if __name__ == "__main__":
    main()

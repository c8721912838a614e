"""Key-value look-up: records hidden in filler, asked for afterwards. Short contexts for the first phase, up to 16K tokens later.

A haystack is a list of records (key, value, line) mixed with filler lines; a question names one key. The chain copies the line.
"""
from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from lexicon import (
    ADJECTIVES,
    ANIMALS,
    ATTRIBUTES,
    CITIES,
    COLORS,
    FRUIT,
    NAMES,
    THINGS,
    VERBS_PAST,
    dictionary,
    pseudo,
    word,
)
from tasks import Item, levels, pick


@dataclass
class Record:
    key: str
    attr: str
    value: str
    line: str


def a_value(rng: random.Random) -> str:
    r = rng.random()
    if r < 0.45:
        return str(rng.randint(10 ** (k := rng.randint(1, 5)), 10 ** (k + 1) - 1))
    if r < 0.55:
        return f"{rng.choice('ABCDEFGHKLMPQRSTXZ')}{rng.choice('ABCDEFGHKLMPQRSTXZ')}-{rng.randint(10, 9999)}"
    if r < 0.62:
        alphabet = rng.choice(["abcdefghijkmnpqrstuvwxyz0123456789", "0123456789abcdef", "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"])
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(4, 8)))
    if r < 0.64:
        return f"{rng.randint(0, 999)}.{rng.randint(1, 99)}"
    if r < 0.72:
        return rng.choice(CITIES)
    if r < 0.78:
        return rng.choice(COLORS)
    if r < 0.84:
        return rng.choice(NAMES)
    if r < 0.9:
        return pseudo(rng)
    return word(rng)


def a_key(rng: random.Random) -> str:
    r = rng.random()
    if r < 0.2:
        return rng.choice(NAMES)
    if r < 0.4:
        return f"{rng.choice(COLORS)} {rng.choice(THINGS)}"
    if r < 0.52:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(ANIMALS + THINGS)}"
    if r < 0.62:
        n = rng.randint(1, 9999)
        return f"{rng.choice(['item', 'room', 'key', 'box', 'id', 'user', 'node', 'case', 'k', 'entry', 'record'])}{rng.choice([' ', '_', '-', ''])}{rng.choice([str(n), f'{n:04d}', str(n % 100)])}"
    if r < 0.72:
        return f"{rng.choice(THINGS + FRUIT)}_{rng.choice(ATTRIBUTES + THINGS)}"
    if r < 0.8:
        return rng.choice(CITIES)
    if r < 0.88:
        return pseudo(rng)
    return rng.choice(dictionary())


# Each form: how a record is written, and how its question is asked. {k} key, {a} attribute, {v} value.
Form = tuple[list[str], list[str], bool]
FORMS: list[Form] = [
    (["{k}: {v}"], ["What is the value of {k}?", "What is {k}?", "Look up {k}.", "What value does {k} have?", "Give the value for {k}.", "Find {k}."], False),
    (["{k} = {v}"], ["What is the value of {k}?", "What is {k} equal to?", "Look up {k}.", "What is {k} set to?"], False),
    (["{k} -> {v}"], ["What does {k} map to?", "What is the value for {k}?", "Look up {k}."], False),
    (["\"{k}\": \"{v}\","], ["What is the value of \"{k}\"?", "What is {k}?", "Look up the key {k}."], False),
    (["| {k} | {v} |"], ["What is in the row {k}?", "What is the value of {k}?"], False),
    (["The {a} of {k} is {v}.", "The {a} of the {k} is {v}."], ["What is the {a} of {k}?", "Tell me the {a} of {k}.", "What's the {a} of {k}?", "Which {a} does {k} have?"], True),
    (["{k} has the {a} {v}.", "{k} has {a} {v}."], ["What is the {a} of {k}?", "Which {a} does {k} have?", "What {a} does {k} have?"], True),
    (["The {a} for {k} is {v}.", "The secret {a} for {k} is {v}."], ["What is the {a} for {k}?", "What is the secret {a} for {k}?", "Tell me the {a} for {k}."], True),
    (["The magic {a} for {k} is: {v}.", "One of the special magic {a}s for {k} is: {v}."], ["What is the special magic {a} for {k} mentioned in the text?", "What is the magic {a} for {k}?"], True),
    (["Remember: the {a} of {k} is {v}.", "Note: the {a} for {k} is {v}.", "Important: {k} {a} is {v}."], ["What is the {a} of {k}?", "What was the {a} for {k}?", "What {a} did I note for {k}?"], True),
    (["{k}, {a}, {v}"], ["What is the {a} of {k}?"], True),
    (["{k}'s {a} is {v}."], ["What is {k}'s {a}?", "What is the {a} of {k}?"], True),
]
SINGLE: list[tuple[str, list[str]]] = [
    ("The {a} is {v}.", ["What is the {a}?", "What is the {a} in the text?", "Tell me the {a}.", "What was the {a}?"]),
    ("The secret {a} is {v}.", ["What is the secret {a}?", "Find the secret {a}.", "What is the secret {a} hidden in the text?"]),
    ("The pass key is {v}. Remember it. {v} is the pass key.", ["What is the pass key?"]),
    ("The magic {a} is {v}.", ["What is the magic {a}?", "Which magic {a} is mentioned?"]),
    ("My favorite {a} is {v}.", ["What is my favorite {a}?"]),
]
HEADERS = ["Here is a list:", "Records:", "Read the text and answer the question at the end.", "Use this table.", "Data:", "Here are some notes.", "Text:", "Context:",
           "Below is a list of keys and values.", "There is important information hidden in this text. Find it.", "Memorize the following:", "Log:", "Settings:", ""]
ASK = ["{q}", "{q}", "Question: {q}", "Now answer: {q}", "{q} Answer with the value only.", "Based on the text above: {q}", "From the list: {q}", "According to the text, {l}"]
CLASSIC = ["The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.", "It was a quiet day.", "The water was cold.",
           "Nothing happened that day.", "People walked by.", "The shop opened at nine.", "Rain fell in the evening.", "Birds sang in the trees."]


def filler(rng: random.Random) -> str:
    r = rng.random()
    if r < 0.3:
        return (f"{rng.choice(['The', 'A', 'One', 'That', 'Every'])} {rng.choice(ADJECTIVES)} {rng.choice(ANIMALS + THINGS)} {rng.choice(VERBS_PAST)} the "
                f"{rng.choice(COLORS + ADJECTIVES)} {rng.choice(THINGS)} {rng.choice(['near', 'behind', 'under', 'in', 'by'])} {rng.choice(CITIES)}.")
    if r < 0.5:
        return f"{rng.choice(NAMES)} {rng.choice(VERBS_PAST)} {rng.randint(2, 99)} {rng.choice(THINGS)}s in {rng.choice(CITIES)} and went home."
    if r < 0.65:
        t = " ".join(rng.choice(dictionary()) for _ in range(rng.randint(4, 14)))
        return t[0].upper() + t[1:] + "."
    if r < 0.8:
        return rng.choice(CLASSIC)
    if r < 0.9:
        return f"In {rng.randint(1500, 2030)}, {rng.choice(NAMES)} {rng.choice(VERBS_PAST)} a {rng.choice(ADJECTIVES)} {rng.choice(THINGS)}."
    return f"The {rng.choice(dictionary())} and the {rng.choice(dictionary())} were {rng.choice(ADJECTIVES)}, so {rng.choice(NAMES)} {rng.choice(VERBS_PAST)} them."


def haystack(rng: random.Random, budget: int) -> tuple[list[str], list[Record], Callable[[Record], str]]:
    """Lines up to about `budget` characters, the records in them, and a question writer."""
    size = 0
    lines: list[str] = []
    records: list[Record] = []
    kind = rng.random()
    if kind < 0.22:  # one needle without a key
        line, qs = rng.choice(SINGLE)
        attr, v = rng.choice(ATTRIBUTES), a_value(rng)
        repeat = rng.sample(CLASSIC, rng.randint(1, 5)) if rng.random() < 0.35 else None
        while size < budget:
            t = rng.choice(repeat) if repeat else filler(rng)
            lines.append(t)
            size += len(t) + 1
        rec = Record("", attr, v, line.format(a=attr, v=v))
        lines.insert(rng.randint(0, len(lines)), rec.line)
        return lines, [rec], lambda r: pick(rng, qs, a=r.attr)
    forms, qs, has_attr = rng.choice(FORMS)
    form = rng.choice(forms)
    density = rng.choice([1.0, 1.0, 0.5, 0.2, 0.05]) if has_attr else rng.choice([1.0, 1.0, 1.0, 0.3, 0.1])
    attrs = rng.sample(ATTRIBUTES, rng.choice([1, 1, 3, 6]))
    numbers_only = rng.random() < 0.3
    seen: set[tuple[str, str]] = set()
    while size < budget or not records:
        if rng.random() < density or (size >= budget and not records):
            k, a = a_key(rng), rng.choice(attrs)
            if (k, a) in seen or (not has_attr and any(s[0] == k for s in seen)):
                continue
            seen.add((k, a))
            v = str(rng.randint(1000, 999999)) if numbers_only else a_value(rng)
            t = form.format(k=k, a=a, v=v)
            records.append(Record(k, a, v, t))
        else:
            t = filler(rng)
        lines.append(t)
        size += len(t) + 1
    return lines, records, lambda r: pick(rng, qs, k=r.key, a=r.attr)


def look_chain(r: Record, q: str):
    what = f"{r.attr} of {r.key}" if r.key and r.attr in r.line else r.key or r.attr
    return levels(r.value, r.value, f"Line: {r.line}", f"I look for {what}.\nThe line is: {r.line}", f"the line has {r.value}. Right.", q)


def lookup_item(rng: random.Random, budget: int = 0) -> Item:
    """One question over one haystack, both in the user's message."""
    budget = budget or rng.choice([100, 200, 400, 800, 1600, 2600])
    lines, records, ask = haystack(rng, budget)
    r = rng.choice(records)
    q = ask(r)
    sep = " " if r.line.endswith(".") and rng.random() < 0.5 else "\n"
    body = sep.join(lines)
    asked = pick(rng, ASK, q=q, l=q[0].lower() + q[1:])
    head = rng.choice(HEADERS)
    if rng.random() < 0.12:
        text = f"{asked}\n\n{body}"
    else:
        text = f"{head}\n{body}\n\n{asked}" if head else f"{body}\n{asked}"
    return Item("lookup", text, r.value, look_chain(r, q), int(r.value) if r.value.isdigit() else r.value)


def lookup_series(rng: random.Random, budget: int, n: int) -> list[Item]:
    """One long haystack in the first message, then n questions, each its own turn (evenly over depth)."""
    lines, records, ask = haystack(rng, budget)
    for _ in range(3):
        if len(records) >= min(n, 4):
            break
        lines, records, ask = haystack(rng, budget)
    sep = " " if records[0].line.endswith(".") and rng.random() < 0.5 else "\n"
    order = [rng.choice(records) for _ in range(n)]
    items = []
    head = rng.choice(HEADERS)
    for i, r in enumerate(order):
        q = ask(r)
        text = q if i else f"{head}\n{sep.join(lines)}\n\n{pick(rng, ASK, q=q, l=q[0].lower() + q[1:])}".lstrip("\n")
        items.append(Item("lookup", text, r.value, look_chain(r, q), int(r.value) if r.value.isdigit() else r.value))
    return items

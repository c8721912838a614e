"""Common ground of the task generators: what an item is, how effort levels become chains, how questions vary in wording.

An Item is one question with its exact answer and a chain of work for each effort level (0 low .. 4 max). Generators compute
answers with ordinary Python arithmetic; nothing is sampled from a model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

EFFORTS = ("low", "medium", "high", "xhigh", "max")
DEFAULT_LEVEL = 1  # the chain written when no effort is asked for


@dataclass
class Item:
    """One question. `value` is what a JSON-style answer carries; `a` is the plain answer."""

    kind: str
    q: str
    a: str
    chain: Callable[[int], str]
    value: Any = None
    trivial: bool = False
    sentence: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def json_value(self) -> Any:
        return self.a if self.value is None else self.value


def levels(
    a: str, short: str, mid: str, long: str, check: str, restate: str
) -> Callable[[int], str]:
    """Chains of growing length from the same work at three granularities."""

    def chain(level: int) -> str:
        if level == 0:
            return short
        if level == 1:
            return mid
        if level == 2:
            return f"{long}\nSo {a}."
        if level == 3:
            return f"{long}\nSo {a}.\nCheck: {check}"
        return f"Task: {restate}\nWork: {long}\nSo {a}.\nCheck: {check}\nOnce more: {mid}\nThe answer is {a}."

    return chain


PREFIX = [
    "Please tell me: ",
    "Quick question: ",
    "Tell me: ",
    "Hi! ",
    "Hello, ",
    "Hey, ",
    "Please answer: ",
    "Question: ",
    "I need help. ",
    "Can you help me? ",
    "Now ",
    "Ok. ",
    "Next: ",
    "Problem: ",
    "So, ",
    "Also: ",
    "One more: ",
]
SUFFIX = [
    " Thanks.",
    " Thank you!",
    " Please.",
    " Just the answer.",
    " Give only the answer.",
    " Answer briefly.",
    " Reply with the result only.",
    " Thanks!",
    " Please help.",
]


ORDERS = (
    "Add",
    "Subtract",
    "Multiply",
    "Divide",
    "Calculate",
    "Compute",
    "Find",
    "Convert",
    "Sort",
    "Reverse",
    "Count",
    "Spell",
    "Write",
    "Put",
    "Order",
    "Arrange",
    "Give",
    "Repeat",
    "Express",
    "Change",
    "Work out",
    "Take",
    "Alphabetize",
    "List",
    "Evaluate",
    "Solve",
    "Name",
    "Uppercase",
    "Double",
    "Halve",
)
ASK_FOR = [
    "Can you {q}?",
    "Could you {q}?",
    "Please {q}.",
    "Could you please {q}?",
    "Can you {q} for me?",
    "I want you to {q}.",
    "I need you to {q}.",
    "Help me {q}.",
    "Would you {q}?",
    "Your task: {q}.",
    "I would like you to {q}.",
    "Can you please {q}?",
    "Let's {q}.",
]
WONDER = [
    "Can you tell me: {q}",
    "Do you know: {q}",
    "I wonder: {q}",
    "Tell me please, {l}",
    "I want to know: {q}",
    "My question is: {q}",
    "Here is a question. {q}",
    "{q} I need to know.",
    "Could you tell me: {q}",
    "Answer this: {q}",
    "Let me ask: {q}",
    "Please think: {q}",
]


def dress(rng: random.Random, q: str) -> str:
    """Changes of wording around a question: requests for orders, greetings, thanks, lost capitals, lost question marks."""
    if rng.random() < 0.3:
        if q.startswith(ORDERS) and "\n" not in q:
            body = q[0].lower() + q[1:]
            return rng.choice(ASK_FOR).format(q="\0").replace("\0", body.rstrip("."))
        if q.endswith("?"):
            return (
                rng.choice(WONDER)
                .format(q="\0", l="\1")
                .replace("\0", q)
                .replace("\1", q[0].lower() + q[1:])
            )
    r = rng.random()
    if r < 0.55:
        return q
    if r < 0.67:
        q = rng.choice(PREFIX) + q
    elif r < 0.77:
        q = q + rng.choice(SUFFIX)
    elif r < 0.85:
        q = q[0].lower() + q[1:]
    elif r < 0.92:
        q = q.rstrip("?.")
    else:
        q = (q[0].lower() + q[1:]).rstrip("?.")
    return q


def pick(rng: random.Random, options: list[str], **values: Any) -> str:
    return rng.choice(options).format(**values)


def weighted(
    rng: random.Random, table: list[tuple[float, Callable[[random.Random], Item]]]
) -> Item:
    return rng.choices([f for _, f in table], [w for w, _ in table])[0](rng)

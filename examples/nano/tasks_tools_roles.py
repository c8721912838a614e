"""Invented tools whose arguments are told by the form of the sentence: what belongs together, what is left out, and who is who.

Five shapes: a name without its noun ("the front gate" for `gate`), two things that are one call ("swap the seats of A and B" for two parameters, where one
parameter would take two calls), two roles told by a preposition ("X by Y"), a list in the middle of a sentence, and one plain slot in the same sentences.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tasks_tools_values as val
import tasks_tools_wide as wide
from lexicon import COLORS, FRUIT, NAMES, THINGS, WEEKDAYS, dictionary, number_words, pseudo, word
from tasks_tools import Param, Tool, _ident, _say_list
from tasks_tools_wide import spoken_name

Maker = Callable[[random.Random], Any]
Shape = tuple[
    str, str, list[Param], list[str]
]  # verb, noun, parameters in the order of the numbers, sentences

WHICH = (
    "front back side left right upper lower inner outer main second third middle north south east west old new big small garage cellar attic kitchen garden office street "
    "hall roof guest staff spare emergency winter summer bread cheese night morning steel glass wooden red blue green white black yellow"
).split()
JOINING = "swap exchange compare merge link join connect pair match mix combine introduce split share trade switch couple tie bind sync align marry".split()
PAIR_NAMES = [
    ("person", "partner"), ("user", "friend"), ("one", "other"), ("player", "rival"), ("first", "second"), ("left", "right"), ("a", "b"), ("x", "y"), ("item", "otherItem"), ("this", "that"), ("who", "with"),
    ("node", "peer"), ("team", "opponent"), ("member", "colleague"), ("source", "target"), ("employee", "substitute"), ("main", "extra"), ("other", "third"), ("firstName", "secondName"), ("one", "another"), ("giver", "taker"),
]  # fmt: skip
NUMBER_OPTIONS = [
    ("price", "euros"),
    ("liters", "liters"),
    ("count", ""),
    ("minutes", "minutes"),
    ("percent", "percent"),
    ("hours", "hours"),
    ("grams", "grams"),
    ("portions", "portions"),
    ("days", "days"),
    ("cups", "cups"),
    ("meters", "meters"),
    ("kilos", "kilos"),
]
LIST_NAMES = "parts items pieces members names tags flavors ingredients topics guests fruits metals herbs spices players files words toppings teams dyes shades fibers sounds".split()

WORKS: list[tuple[list[str], list[str], list[str]]] = [  # what, who or where, and what stands between
    (["song", "track", "tune", "album", "record", "melody", "symphony", "opera", "title", "work", "music"], ["artist", "singer", "band", "composer", "musician", "performer", "by", "writer"], ["by", "by", "by", "from"]),
    (["book", "novel", "poem", "story", "text", "essay", "title", "work"], ["author", "writer", "poet", "by"], ["by", "by", "by", "from"]),
    (["painting", "picture", "drawing", "statue", "image"], ["painter", "artist", "sculptor", "maker"], ["by", "by", "from"]),
    (["film", "movie", "play", "show", "series"], ["director", "actor", "maker", "studio"], ["by", "by", "from", "with"]),
    (["dish", "meal", "soup", "dinner"], ["cook", "chef"], ["by", "from"]),
    (["gift", "parcel", "letter", "package", "report", "item", "object", "key"], ["friend", "receiver", "customer", "client", "guest", "person", "to"], ["to", "to", "for"]),
    (["item", "tool", "ladder", "object", "product"], ["owner", "seller", "neighbor", "shop", "from", "supplier"], ["from"]),
    (["animal", "machine", "plant", "lamp", "product", "sculpture", "device"], ["room", "hall", "shed", "store", "zone", "garden", "place", "building"], ["in", "in", "at"]),
    (["book", "menu", "sign", "story", "lesson", "tour"], ["language", "tongue"], ["in"]),
    (["student", "worker", "patient", "guest", "player"], ["course", "shift", "ward", "table", "team", "list"], ["to", "for", "in"]),
    (["candidate", "choice", "option", "answer", "entry"], ["election", "contest", "survey", "question", "game"], ["in", "for"]),
]  # fmt: skip


def odd_name(r: random.Random) -> str:
    """A parameter's name that nobody could guess: it must be copied letter by letter."""
    w = r.choice([r.choice(dictionary()), word(r, 9), pseudo(r), r.choice(wide.STRING_P)])
    k = r.random()
    if k < 0.3 and len(w) > 4:  # a word with a letter changed, dropped or doubled
        i = r.randint(1, len(w) - 2)
        w = w[:i] + r.choice(["", w[i] * 2, r.choice("abcdefghijklmnoprstuvw")]) + w[i + 1 :]
    elif k < 0.55:
        w = _ident(
            r,
            [w, r.choice(["id", "name", "key", "no", "ref", "code", "1", "x"])],
            r.choice(["snake", "camel"]),
        )
    return w


def _slot(
    r: random.Random, name: str, maker: Maker | list[str], kind: str = "string", typ: str = "string"
) -> Param:
    w = spoken_name(name)
    return Param(
        name,
        kind,
        typ,
        True,
        maker,
        [f"{w} {{v}}", f"with {w} {{v}}", f"{w}: {{v}}"],
        r.choice(["", "", f"The {w}", w.capitalize()]),
    )


def _number(r: random.Random) -> str:
    return r.choice([str(r.randint(1, 40)), val.code(r), val.code(r)])


def dropped_noun(r: random.Random) -> Shape:
    """'Open the front gate', 'room 12', 'line N7': the value is what tells one gate from another, without the word gate."""
    n = wide.a_noun(r)
    verb = r.choice(wide.ACT_VERBS if r.random() < 0.75 else wide.GET_VERBS)
    name = r.choice(
        [
            n,
            n,
            n,
            _ident(r, [n, r.choice(["name", "id"])], r.choice(["snake", "camel"])),
            "name",
            "which",
            odd_name(r),
        ]
    )
    if r.random() < 0.55:
        makers: list[Maker | list[str]] = [
            WHICH,
            WHICH,
            lambda x: word(x, 9),
            pseudo,
            val.place,
            lambda x: x.choice(NAMES),
        ]
        maker = r.choice(makers)
        say = [
            "{V} the {0} {n}",
            "{V} the {0} {n}",
            "Please {v} the {0} {n}",
            "{V} my {0} {n}",
            "Can you {v} the {0} {n}",
            "I want to {v} the {0} {n}",
            "{V} our {0} {n}",
            "{V} {n} {0}",
            "The {0} {n}: {v} it",
            "Could you {v} the {0} {n}",
        ]
        typ = "string"
    else:
        typ = r.choice(["string", "string", "integer"])
        maker = (lambda x: x.randint(1, 99)) if typ == "integer" else _number
        say = [
            "{V} {n} {0}",
            "{V} {n} {0}",
            "Please {v} {n} {0}",
            "{V} the {n} {0}",
            "Can you {v} {n} {0}",
            "{V} {n} number {0}",
            "{n} {0}: {v} it",
            "I need {n} {0}",
            "{V} {n} no. {0}",
        ]
    if verb in wide.GET_VERBS:
        say += ["What about the {n} {0}", "Where is {n} {0}", "How is {n} {0}"]
    return verb, n, [_slot(r, name, maker, typ=typ)], say


def two_of_a_kind(r: random.Random) -> Shape:
    """'Swap the seats of A and B': one call with both. The first is the first parameter."""
    n, verb = wide.a_noun(r), r.choice(JOINING if r.random() < 0.7 else wide.ACT_VERBS)
    a, b = r.choice(PAIR_NAMES)
    k = r.random()
    if k < 0.3:
        w = r.choice([word(r, 8), r.choice(wide.STRING_P), pseudo(r)])
        a, b = r.choice(
            [
                (w, f"other_{w}"),
                (f"{w}1", f"{w}2"),
                (f"{w}_a", f"{w}_b"),
                (f"first_{w}", f"second_{w}"),
                (w, f"second{w.capitalize()}"),
                (f"from_{w}", f"to_{w}"),
                (w, "other"),
            ]
        )
    elif k < 0.5:
        a, b = odd_name(r), odd_name(r)
        if a == b:
            b += "2"
    maker = r.choice(
        [
            val.person,
            val.person,
            lambda x: x.choice(NAMES),
            val.code,
            val.name,
            val.place,
            lambda x: word(x, 9),
            lambda x: x.choice(COLORS),
        ]
    )
    say = [
        "{V} the {n}s of {0} and {1}", "{V} the {n} of {0} and {1}", "{V} {n}s between {0} and {1}", "{V} {n}s of {0} and {1}", "{V} the {n}s between {0} and {1}", "{V} the {n} for {0} and {1}", "{V} {n} {0} and {n} {1}",
        "{V} {n} {0} with {n} {1}", "{V} {n} {0} and {1}", "{V} the {n}s {0} and {1}", "{V} the {n} of {0} with {1}", "Please {v} the {n}s of {0} and {1}", "Can you {v} {n}s for {0} and {1}", "{V} the {n} {0} with {1}",
        "{V} {0} and {1} in the {n}", "{0} and {1} want to {v} {n}s", "Let {0} {v} the {n} with {1}",
    ]  # fmt: skip
    return verb, n, [_slot(r, a, maker, "pair"), _slot(r, b, maker, "pair")], say


def by_preposition(r: random.Random) -> Shape:
    """'Find X by Y': the preposition tells the roles, whatever the order of the parameters."""
    whats, whos, links = r.choice(WORKS)
    what, who = r.choice([(a, b) for a in whats for b in whos if a != b])
    n, link = wide.a_noun(r), r.choice(links)
    verb = r.choice(
        {
            "to": ["send", "give", "bring", "lend", "pass", "deliver", "add", "assign", "hand"],
            "from": ["buy", "borrow", "collect", "take", "order", "fetch"],
        }.get(link, wide.GET_VERBS + wide.ACT_VERBS)
    )
    makers: dict[str, Any] = {
        "language": ["Danish", "Greek", "Polish", "Dutch", "Welsh", "Finnish", "Latin"],
        "tongue": ["Danish", "Greek", "Polish", "Czech", "Latin"],
    }
    one = r.choice([val.title, val.title, val.thing, lambda x: word(x, 9).capitalize(), val.name])
    two = makers.get(who) or r.choice(
        [
            val.person,
            val.person,
            lambda x: pseudo(x).capitalize(),
            val.place if link in ("in", "at", "for") else val.person,
            val.title,
        ]
    )
    if what in ("student", "worker", "patient", "guest", "player", "candidate"):
        one = val.person
    say = [
        f"{{V}} {{0}} {link} {{1}}", f"{{V}} the {{n}} of {{0}} {link} {{1}}", f"{{V}} the {{n}} {{0}} {link} {{1}}", f"{{V}} the {what} {{0}} {link} {{1}}", f"{{V}} a {{n}} of {{0}} {link} {{1}}", f"Please {{v}} {{0}} {link} {{1}}",
        f"{{V}} the {{n}} for {{0}} {link} {{1}}", f"I need the {{n}} of {{0}} {link} {{1}}", f"Can you {{v}} {{0}} {link} {{1}}", f"{{n}} of {{0}} {link} {{1}}", f"{{V}} '{{0}}' {link} {{1}}",
    ]  # fmt: skip
    if link == "by" and r.random() < 0.3:
        say += ["{V} {1}'s {0}", "{V} the {n} of {1}'s {0}"]
    return verb, n, [_slot(r, what, one, "pair"), _slot(r, who, two, "pair")], say


def listed(r: random.Random) -> Shape:
    """'Mix 2 cups of dye from red, white and blue': a list stays one argument of one call."""
    n, verb = (
        wide.a_noun(r),
        r.choice(
            [
                "mix",
                "make",
                "blend",
                "brew",
                "bake",
                "build",
                "cook",
                "order",
                "prepare",
                "weave",
                "stir",
                "melt",
                *wide.ACT_VERBS,
            ]
        ),
    )
    name = r.choice([*LIST_NAMES, *LIST_NAMES, odd_name(r) + "s", f"{n}s"])
    p, unit = r.choice(NUMBER_OPTIONS)
    many = Param(
        name,
        "array",
        "array",
        True,
        None,
        [f"with {spoken_name(name)} {{v}}", f"{spoken_name(name)}: {{v}}"],
        "",
    )
    if r.random() < 0.35:
        return (
            verb,
            n,
            [many],
            [
                "{V} {n} from {0}",
                "{V} the {n} with {0}",
                "{V} {0}",
                "{V} a {n} of {0}",
                f"{{V}} the {spoken_name(name)} {{0}}",
                "{V} {n} for {0}",
                "{V} the {n}s {0}",
                "I want a {n} with {0}",
                "{0}: {v} the {n}",
            ],
        )
    maker: Maker = r.choice(
        [lambda x: x.randint(1, 60), lambda x: x.choice([x.randint(1, 20), x.randint(1, 19) + 0.5])]
    )
    count = _slot(
        r,
        p,
        maker,
        "number",
        "number" if r.random() < 0.6 or isinstance(maker(random.Random(1)), float) else "integer",
    )
    u = unit or f"{n}s"
    of = "of {n} " if unit else ""
    say = [
        f"{{V}} {{1}} {u} {of}from {{0}}", f"{{V}} {{1}} {u} {of}with {{0}}", f"{{V}} {{n}} from {{0}}, {{1}} {u}", f"{{V}} the {spoken_name(name)} {{0}}, {{1}} {u}", f"{{V}} {{n}} with {{0}} for {{1}} {u}", f"{{V}} {{n}} out of {{0}}, {{1}} {u}",
        f"I need {{1}} {u} {of}with {{0}}", f"{{V}} {{0}} with {{1}} {u}", f"Please {{v}} {{1}} {u} {of}using {{0}}", f"{{V}} the {{n}} of {{0}} to {{1}} {u}",
    ]  # fmt: skip
    if count.type == "integer":
        count.maker = lambda x: x.randint(1, 60)
    return verb, n, [many, count], say


def one_slot(r: random.Random) -> Shape:
    """The sentences of the other shapes with one slot: two values are two calls."""
    n, verb = (
        wide.a_noun(r),
        r.choice([*JOINING, *wide.ACT_VERBS, *wide.GET_VERBS, *wide.GET_VERBS]),
    )
    maker = r.choice([val.person, val.code, val.code, val.place, lambda x: word(x, 9), val.title])
    name = r.choice(
        [
            r.choice(wide.STRING_P),
            odd_name(r),
            n,
            _ident(r, [n, r.choice(["id", "code", "name"])], r.choice(["snake", "camel"])),
        ]
    )
    say = [
        "{V} the {n} of {0}",
        "{V} the {n}s of {0}",
        "{V} {n} {0}",
        "{V} the {n} {0}",
        "{V} the {n} for {0}",
        "{V} {n}s for {0}",
        "Please {v} the {n} of {0}",
        "Where is {n} {0}",
        "{V} {0} in the {n}",
        "I need the {n} of {0}",
    ]
    return verb, n, [_slot(r, name, maker)], say


def make_tool(r: random.Random) -> Tool:
    shape = r.choices(
        [dropped_noun, two_of_a_kind, by_preposition, listed, one_slot],
        [0.26, 0.22, 0.22, 0.14, 0.16],
    )[0]
    verb, noun, params, say = shape(r)
    taken = {p.name for p in params}
    if len(taken) < len(params):
        return make_tool(r)
    order = list(params)
    if shape in (by_preposition, listed):
        r.shuffle(order)
    if r.random() < 0.22:  # one more, named in the sentence
        more = wide._param(r, noun, taken)
        if more.concept not in ("text", "array", "boolean"):
            w = spoken_name(more.name)
            more.say = [f"with {w} {{v}}", f"{w} {{v}}", f", {w} {{v}}"] + (
                ["on {v}"]
                if more.concept == "date"
                else ["at {v}"]
                if more.concept == "time"
                else []
            )
            order.append(more)
    long = f"{r.choice([word(r, 8), r.choice(dictionary())])} {noun}" if r.random() < 0.15 else noun
    t = wide.christened(r, verb, long, order)
    said = {"{V}": verb.capitalize(), "{v}": verb, "{n}": noun if r.random() < 0.7 else long}
    t.asks = []
    for s in say:
        for k, x in said.items():
            s = s.replace(k, x)
        for i, p in enumerate(params):
            s = s.replace(f"{{{i}}}", f"<{p.name}>")
        t.asks.append(s)
    return t


def items(r: random.Random) -> list[str]:
    one: Maker = r.choice(
        [
            lambda x: x.choice(COLORS),
            lambda x: x.choice(FRUIT),
            lambda x: word(x, 8),
            lambda x: x.choice(NAMES),
            lambda x: x.choice(THINGS),
            val.code,
            lambda x: x.choice(WEEKDAYS),
            lambda x: x.choice(dictionary()),
        ]
    )
    return list(
        dict.fromkeys(one(r) for _ in range(r.choices([1, 2, 3, 4], [0.1, 0.35, 0.4, 0.15])[0]))
    )


def request(r: random.Random, t: Tool) -> tuple[str, dict[str, Any]]:
    text = r.choice(t.asks)
    args: dict[str, Any] = {}
    for p in t.params:
        inside = f"<{p.name}>" in text
        if not inside and not p.required and r.random() < 0.5:
            continue
        v = (
            r.choice(p.enum)
            if p.enum
            else items(r)
            if p.type == "array"
            else r.choice(p.maker)
            if isinstance(p.maker, list)
            else p.maker(r)
        )
        spoken = (
            _say_list(r, v)
            if isinstance(v, list)
            else number_words(v)
            if isinstance(v, int) and 0 < v < 13 and r.random() < 0.15
            else str(v)
        )
        args[p.name] = v
        if inside:
            text = text.replace(f"<{p.name}>", spoken)
        else:
            how = r.choice(p.say).replace("{v}", spoken)
            text += how if how.startswith(",") else " " + how
    if len({str(v) for v in args.values()}) < len(args):
        return request(r, t)
    return wide._finish(r, text[0].upper() + text[1:]), args

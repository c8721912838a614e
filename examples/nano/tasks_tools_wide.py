"""Invented tools in a wide range of wording: any noun, any parameter, any place in the sentence.

tasks_tools.py has realistic domains with fixed ways of speaking; here the domain is made up each time, so that matching a request to a
schema has to rest on shared words, value types, units and enumerations. `matches` keeps out requests that another tool on offer fits as well.
Tool names of the hand-written held-out prompts are left out. `tempting` makes a tool that shares words and parameters with a request for another.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import tasks_tools_values as val
from lexicon import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    FRUIT,
    NAMES,
    THINGS,
    dictionary,
    number_words,
    pseudo,
    word,
)
from records import bare, tool_names
from tasks_tools import Param, Tool, _ident, _say_list, schema_of
from tasks_tools_words import deciding, fits, said, score, stem

NOUNS = (
    "timetable menu parcel invoice lesson course concert match score ranking recipe playlist podcast map route parking hotel cabin tent tour guide museum gallery exhibit library loan "
    "doctor clinic vaccine appointment prescription gym workout diet calorie heart step sleep battery charger heater fan blind curtain shutter oven fridge dishwasher vacuum mower sprinkler pool "
    "sauna elevator crane drone camera scanner plotter projector screen speaker microphone server backup database table query report chart log alert ticket branch commit build deploy license "
    "domain certificate password account balance card loan tax bill receipt budget stock bond fund salary shift roster payroll badge desk office floor corridor warehouse shelf pallet truck tram "
    "taxi bike scooter ship harbor flight gate runway seat luggage visa passport border customs embassy star planet comet eclipse tide wave wind storm snow rain pollen river lake glacier "
    "volcano quake forest trail peak cave farm harvest tractor barn stable horse dog cat bird fish hive garden seed tree fruit wine cheese bread cake pizza order courier coupon gift wedding party "
    "choir band song album lyric book chapter page author quote poem word synonym grammar exam grade quiz puzzle chess card dice game level boss guild quest avatar lamp kettle boiler printer "
    "router cable antenna signal mirror window roof fence bridge tunnel ferry canoe sail anchor engine wheel brake mail letter notebook folder contact calendar meeting task note timer alarm"
).split()
GET_VERBS = "get find show check read fetch lookup query list search view count calculate compute measure estimate".split()
ACT_VERBS = (
    "set start stop open close create add remove update send book reserve rent order cancel delete move copy rename play pause mute record turn switch adjust schedule assign approve reject archive restore "
    "print scan upload download share publish launch repair clean fill empty load charge inspect mark pick paint plant feed train rate sign merge split buy sell pay refund report file log "
    "lock unlock enable disable register invite call ring wash dry cook bake cut wrap ship deliver collect store lend borrow fold rotate tilt raise lower heat cool"
).split()
STRING_P = (
    "zone model branch shelf team engine track season brand gate channel album country street project server folder course doctor museum recipe owner artist author genre player client vendor driver pilot "
    "guest patient student teacher species variety flavor material region district building floor wing hall table desk lane dock pier hub node cluster queue topic label group folder device sensor account "
    "name id code number key city place address room person user customer product item file query target source state station section slot box case unit ward crew ship vehicle plate page"
).split()
INT_P = "copies pages liters minutes hours seats rooms floors meters grams points stars players guests items pieces bottles boxes lines levels cars people degrees percent units rounds days weeks nights volume speed distance limit count quantity amount number size age year height width length port level temperature duration servings tickets chairs steps cups spoons sheets repeats".split()
NUM_P = "frequency weight price rate width height depth pressure voltage amount ratio dose budget temperature length angle score cost tip value balance area radius factor".split()
BOOL_P = "active enabled public locked visible urgent quiet shared paid open heated private fast repeat on closed loud hidden signed daily automatic bright dry express fragile".split()
ENUM_P = "kind mode metric size type state level format class priority color unit season speed plan direction side style quality status shape flavor category method scale finish".split()
ARRAY_P = "tags names items labels parts members colors guests files words topics cities ingredients codes".split()
UNITS = {  # what people say for a parameter that is called something else
    "temperature": ["degrees", "C"],
    "duration": ["minutes", "hours", "seconds"],
    "distance": ["km", "m", "miles"],
    "weight": ["kg", "grams"],
    "price": ["euros", "dollars"],
    "guests": ["people", "persons"],
    "players": ["people"],
    "seats": ["people"],
    "speed": ["km/h"],
    "volume": ["percent", "%"],
    "frequency": ["Hz", "kHz", "GHz"],
    "width": ["cm"],
    "height": ["cm", "m"],
    "length": ["m"],
    "pressure": ["bar"],
    "voltage": ["V", "volts"],
    "budget": ["euros", "dollars"],
    "cost": ["euros"],
    "amount": ["euros", "dollars"],
    "age": ["years"],
    "depth": ["m"],
    "angle": ["degrees"],
    "tip": ["%", "percent"],
    "area": ["m2"],
}
PAIRS = [  # two strings with a direction, or two numbers with an order
    ("origin", "destination"),
    ("from", "to"),
    ("start", "end"),
    ("source", "target"),
    ("sender", "receiver"),
    ("old", "new"),
    ("first", "second"),
    ("from_place", "to_place"),
    ("departure", "arrival"),
    ("home", "away"),
    ("have", "want"),
    ("left", "right"),
    ("input", "output"),
]
NUMBER_PAIRS = [
    ("row", "column"),
    ("width", "height"),
    ("a", "b"),
    ("min", "max"),
    ("lat", "lon"),
    ("low", "high"),
    ("first", "second"),
    ("minutes", "seconds"),
    ("left", "top"),
    ("u", "v"),
    ("p", "q"),
]
SAME_VERB = [  # a request may use another verb of the row
    "get show fetch find check read look_up tell_me see give_me",
    "set change adjust put make",
    "start run launch begin",
    "stop end halt",
    "add put insert include",
    "book reserve order get",
    "remove delete drop clear",
    "send pass deliver",
    "create make build",
    "buy order get",
    "cancel drop",
    "calculate compute work_out",
    "search find look_for",
    "turn switch",
    "measure check read",
    "report tell file",
    "rate score",
    "move bring shift",
]
OTHER_VERBS = {
    v: [w.replace("_", " ") for w in row.split() if w != v]
    for row in SAME_VERB
    for v in row.split()
}
SWITCHES = {
    "on": ("turn on", "turn off"),
    "open": ("open", "close"),
    "locked": ("lock", "unlock"),
    "enabled": ("enable", "disable"),
    "active": ("activate", "deactivate"),
    "closed": ("close", "open"),
    "visible": ("show", "hide"),
    "public": ("publish", "unpublish"),
}


def spoken_name(n: str) -> str:
    return re.sub(r"([a-z])([A-Z])", r"\1 \2", n.replace("_", " ").replace("-", " ")).lower()


def _param(r: random.Random, noun: str, taken: set[str]) -> Param:
    kind = r.choices(
        [
            "string",
            "text",
            "integer",
            "number",
            "boolean",
            "enum",
            "array",
            "date",
            "time",
            "mail",
            "path",
        ],
        [0.4, 0.07, 0.18, 0.09, 0.05, 0.09, 0.06, 0.04, 0.04, 0.02, 0.02],
    )[0]
    pool = {
        "text": "text message note caption title comment body subject reason description content line".split(),
        "date": "date day when start until due deadline".split(),
        "time": "time hour at begin start".split(),
        "integer": INT_P,
        "number": NUM_P,
        "boolean": BOOL_P,
        "enum": ENUM_P,
        "array": ARRAY_P,
        "mail": "email mail address recipient to".split(),
        "path": "path file folder document source".split(),
    }
    for _ in range(30):
        if kind == "string":
            n = (
                r.choice(STRING_P)
                if r.random() < 0.62
                else r.choice(
                    [
                        noun,
                        _ident(
                            r,
                            [noun, r.choice(["id", "name", "code", "number"])],
                            r.choice(["snake", "camel"]),
                        ),
                        word(r, 8),
                        pseudo(r),
                        r.choice(dictionary()),
                    ]
                )
            )
        else:
            n = r.choice(pool[kind])
        if r.random() < 0.08 and kind not in ("boolean", "string"):
            n = _ident(r, [n, r.choice(["name", "value", "number"])], r.choice(["snake", "camel"]))
        if n not in taken:
            break
    else:
        n = f"{n}{len(taken)}"
    taken.add(n)
    w = spoken_name(n)
    enum = None
    maker: Any = {
        "string": val.name,
        "text": val.sentence,
        "date": val.date,
        "time": val.clock,
        "integer": val.whole,
        "number": val.real,
        "mail": val.mail,
        "path": val.path,
    }.get(kind)
    if kind == "string":
        say = [
            "in {v}",
            "for {v}",
            "of {v}",
            "at {v}",
            "on {v}",
            "from {v}",
            "to {v}",
            "with {v}",
            f"{w} {{v}}",
            f"with {w} {{v}}",
            f"the {{v}} {w}",
            "{v}",
            "'{v}'",
            f"{w}: {{v}}",
            "PRE",
            "POST",
            "POST",
            "by {v}",
            f"in {w} {{v}}",
            f"for {w} {{v}}",
            f"at {w} {{v}}",
            f"on {w} {{v}}",
            f"to {w} {{v}}",
            f"from {w} {{v}}",
            "called {v}",
            "named {v}",
            f"with the {w} {{v}}",
            "with id {v}",
        ]
        if r.random() < 0.3:
            maker = r.choice([val.place, val.person, val.code, val.code, val.title, val.thing])
    elif kind == "text":
        say = [
            "'{v}'",
            "saying '{v}'",
            "that says '{v}'",
            f"with the {w} '{{v}}'",
            f"with {w} '{{v}}'",
            ": {v}",
            "that reads '{v}'",
            f"{w}: '{{v}}'",
            '"{v}"',
            f'with the {w} "{{v}}"',
            f"{w} '{{v}}'",
        ]
    elif kind == "date":
        say = ["on {v}", "for {v}", "{v}", f"{w} {{v}}", "from {v}", "by {v}", "of {v}"]
    elif kind == "time":
        say = ["at {v}", f"{w} {{v}}", "for {v}", "from {v}", "at {v}"]
    elif kind in ("integer", "number"):
        unit = r.choice(UNITS.get(n, [w]))
        say = [
            f"{{v}} {unit}",
            f"with {{v}} {unit}",
            f"{w} {{v}}",
            f"for {{v}} {unit}",
            f"at {{v}} {unit}",
            f"and {w} {{v}}",
            "to {v}",
            f"with {w} {{v}}",
            f"{w}: {{v}}",
            f"{{v}} {unit.rstrip('s')}" if len(unit) > 3 else f"{{v}} {unit}",
            f"by {{v}} {unit}",
            f"to {{v}} {unit}",
            f"of {{v}} {unit}",
            f"with a {w} of {{v}}",
            f"{w} = {{v}}",
            "POST" if kind == "integer" else "to {v}",
            f"{w} {{v}}",
        ]
    elif kind == "boolean":
        maker, say = (
            (lambda x: x.random() < 0.5),
            [
                f"with {w} {{v}}",
                f"{w} {{v}}",
                f"{w}: {{v}}",
                f"set {w} to {{v}}",
                f"and {w} {{v}}",
                f"{w} = {{v}}",
                f"with {w} set to {{v}}",
            ],
        )
    elif kind == "enum":
        enum = val.choices(r)
        say = [
            "PRE",
            "PRE",
            f"{w} {{v}}",
            "in {v}",
            "as {v}",
            f"with {w} {{v}}",
            "{v}",
            f"the {{v}} {w}",
            "for {v}",
            f"in {{v}} {w}",
            f"{w}: {{v}}",
            "to {v}",
        ]
    elif kind == "array":
        say = [
            "with {v}",
            f"{w} {{v}}",
            f"with the {w} {{v}}",
            "for {v}",
            "{v}",
            f"and {w} {{v}}",
            f"the {w} {{v}}",
            f"{w}: {{v}}",
            "LEAD",
            "LEAD",
        ]
    else:
        say = [
            "to {v}",
            "for {v}",
            "{v}",
            f"{w} {{v}}",
            "from {v}",
            f"with {w} {{v}}",
            "'{v}'",
            "in {v}",
        ]
    typ = {"integer": "integer", "number": "number", "boolean": "boolean", "array": "array"}.get(
        kind, "string"
    )
    desc = r.choice(
        [
            f"{w.capitalize()} of the {noun}",
            f"The {w}",
            w.capitalize(),
            f"{noun.capitalize()} {w}",
            "",
            f"The {w} to use",
        ]
    )
    return Param(n, kind, typ, r.random() < 0.86, maker, say, desc, enum)


def _pair(r: random.Random, taken: set[str]) -> list[Param]:
    text = r.random() < 0.6
    a, b = r.choice(PAIRS if text else NUMBER_PAIRS)
    taken |= {a, b}
    maker = (
        r.choice([val.place, val.name, val.code, val.person, lambda x: val.letters(x, 3)])
        if text
        else r.choice([val.whole, val.whole, val.real])
    )
    typ = "string" if text else "integer" if maker is val.whole else "number"
    return [
        Param(n, "pair", typ, True, maker, [], r.choice(["", spoken_name(n).capitalize()]))
        for n in (a, b)
    ]


def a_noun(r: random.Random) -> str:
    return (
        r.choice(NOUNS)
        if r.random() < 0.62
        else r.choice([r.choice(dictionary()), r.choice(THINGS + ANIMALS + FRUIT), pseudo(r)])
    )


def make_tool(
    r: random.Random, near: Tool | None = None, twin: float = 0.0, verb: str = "", noun2: str = ""
) -> Tool:
    """A tool of its own; or one that shares its noun or its verb with `near`, or (with chance `twin`) its parameters, so that only the words tell.
    A verb or a noun (of one or two words) can be given."""
    copy = bool(near and r.random() < twin)
    if near and not copy and not verb and not noun2:
        if r.random() < 0.5:
            noun2 = near.noun
        else:
            verb = near.verb
    if not noun2:
        noun2 = a_noun(r)
        if r.random() < 0.35:
            noun2 = f"{r.choice([r.choice(NOUNS), r.choice(ADJECTIVES), word(r, 8), r.choice(dictionary())])} {noun2}"
    noun = noun2.split()[-1]
    verb = verb or r.choice(ACT_VERBS if r.random() < 0.6 else GET_VERBS)
    taken: set[str] = set()
    params: list[Param] = _pair(r, taken) if r.random() < 0.13 else []
    if near and copy:
        params = [replace(p) for p in near.params]
        taken |= {p.name for p in params}
    want = r.choices([1, 2, 3, 4], [0.36, 0.4, 0.19, 0.05])[0]
    while len(params) < want and not copy:
        params.append(_param(r, noun, taken))
    if not any(p.required for p in params):
        params[0].required = True
    for kinds in (
        ("string", "enum", "array", "date", "time", "mail", "path"),
        ("integer", "number"),
    ):  # two of a sort: name all but one of them
        same = [p for p in params if p.concept in kinds]
        if any(p.concept == "pair" and (p.type == "string") == ("string" in kinds) for p in params):
            free = None
        else:
            free = r.choice(same) if same else None
        for p in same:
            if p is not free and not p.enum:
                key = spoken_name(p.name).split()[0][:4]
                p.say = [s for s in p.say if key in s.lower()] or [f"{spoken_name(p.name)} {{v}}"]
    return christened(r, verb, noun2, params)


def christened(r: random.Random, verb: str, noun2: str, params: list[Param]) -> Tool:
    """A tool of these parameters with a name (none of the held-out ones), a description and openings of requests."""
    act, parts, noun = verb not in GET_VERBS, noun2.split(), noun2.split()[-1]
    while True:
        name = _ident(
            r,
            r.choice(
                [
                    [verb, *parts],
                    [verb, *parts],
                    [*parts, verb],
                    [verb, noun],
                    [*parts],
                    ["next" if not act else verb, *parts],
                ]
            ),
        )
        k = r.random()
        if k < 0.07:
            name = _ident(r, [pseudo(r), *parts[-1:]])
        elif k < 0.16:  # then only the description tells
            name = _ident(
                r,
                r.choice(
                    [
                        [verb, pseudo(r)],
                        [verb, noun[: r.randint(2, 4)]],
                        [pseudo(r), verb],
                        [verb, r.choice(NOUNS)],
                        [r.choice(NOUNS), r.choice(NOUNS)],
                    ]
                ),
            )
        if bare(name) not in tool_names():
            break
    art = "an" if noun2[0] in "aeiou" else "a"
    p0, p1 = spoken_name(params[0].name), spoken_name(params[-1].name)
    if act:
        desc = r.choice(
            [
                f"{verb.capitalize()} {art} {noun2} with {p0} and {p1}",
                f"{verb.capitalize()} the {r.choice(ADJECTIVES)} {noun2}",
                f"{verb.capitalize()} {art} {noun2}",
                f"{verb.capitalize()} the {noun2}",
                f"{verb.capitalize()} {art} {noun2} by {p0}",
                f"{noun2.capitalize()} control: {verb}",
                f"{verb.capitalize()} {art} {noun2} for the user.",
                f"{verb.capitalize()} the {noun2} of a {p0}",
                f"{verb.capitalize()} {art} {noun2} with {p0}",
                f"{verb.capitalize()} {art} {noun2} at a {p0}",
            ]
        )
    else:
        desc = r.choice(
            [
                f"{verb.capitalize()} {art} {r.choice(ADJECTIVES)} {noun2}",
                f"{noun2.capitalize()} of a {p0} at a {p1}",
                f"The {p0} and the {noun2}",
                f"{noun2.capitalize()} look-up",
                f"{verb.capitalize()} the {noun2}",
                f"{noun2.capitalize()} of a {p0}",
                f"Returns the {noun2}",
                f"{verb.capitalize()} {art} {noun2}",
                f"Information about {art} {noun2}",
                f"{noun2.capitalize()} for a {p0}",
                f"Get the {noun2} of a {p0}",
                f"{noun2.capitalize()} at a {p0}",
                f"{verb.capitalize()} {art} {noun2} value",
            ]
        )
    t = Tool(
        name,
        desc if r.random() < 0.93 or any(x not in bare(name) for x in parts) else "",
        params,
        [],
        r.sample(
            ["status", "result", "value", "count", "id", "name", noun, "time", "price", "city"], 2
        ),
        noun2,
        verb,
    )
    t.asks = _asks(r, verb, noun2, act)
    t.schema = schema_of(r, t)
    return t


def tempting(
    r: random.Random, text: str, args: dict[str, Any], t: Tool, tools: list[Tool]
) -> Tool | None:
    """A tool that words of a request for `t` speak for, but fewer than for `t`; most take the same parameters."""
    decides = {stem(w) for w in deciding(text, t, args, tools).split(", ")}
    free = [w.lower() for s, w in said(text).items() if s not in decides and len(w) < 10]
    if not free:
        return None
    w, twin = (
        r.choice(free),
        0.65 if t.verb else 0.0,
    )  # only invented tools have parameters that can be said in any sentence
    if w in ACT_VERBS or w in GET_VERBS or r.random() < 0.15:
        return make_tool(r, t, twin, verb=w)
    return make_tool(
        r, t, twin, noun2=r.choice([w, f"{w} {a_noun(r)}", f"{w} {a_noun(r)}", f"{a_noun(r)} {w}"])
    )


def _asks(r: random.Random, verb: str, noun: str, act: bool) -> list[str]:
    """Openings; {PRE} is what stands before the noun, {N} the noun with what stands behind it."""
    if r.random() < 0.4 and verb in OTHER_VERBS:
        verb = r.choice(OTHER_VERBS[verb])
    v, art = verb.replace("lookup", "look up"), "an" if noun[0] in "aeiou" else "a"
    c = v.capitalize()
    if act:
        return [
            f"{c} the {{PRE}}{{N}}",
            f"{c} the {{PRE}}{{N}}",
            f"{c} {{PRE}}{{N}}",
            f"{c} {art} {{PRE}}{{N}}",
            f"Please {v} the {{PRE}}{{N}}",
            f"I want to {v} {art} {{PRE}}{{N}}",
            f"Can you {v} the {{PRE}}{{N}}",
            f"I need you to {v} {art} {{PRE}}{{N}}",
            f"Could you {v} the {{PRE}}{{N}}",
            f"{c} my {{PRE}}{{N}}",
            f"{noun.capitalize()}: {v} the {{PRE}}one",
            f"Let's {v} the {{PRE}}{{N}}",
            f"I would like to {v} the {{PRE}}{{N}}",
            f"I need {art} {{PRE}}{{N}}",
            "We need the {PRE}{N}",
            "{PRE}{N}:",
            f"Have the {{PRE}}{{N}} {v}ed",
            "I need {PRE}{N}",
            f"Please {v} {{PRE}}{{N}}",
            f"{c} our {{PRE}}{{N}}",
            f"Go and {v} the {{PRE}}{{N}}",
            f"{c} all {{PRE}}{{N}}s",
            f"Use the tool to {v} the {{PRE}}{{N}}",
        ]
    return [
        "What is the {PRE}{N}",
        "What is the {PRE}{N}",
        "What's the {PRE}{N}",
        "What is the {PRE}{N} value",
        "Show me the {PRE}{N}",
        "Tell me the {PRE}{N}",
        "Get the {PRE}{N}",
        "I need the {PRE}{N}",
        f"Is there {art} {{PRE}}{{N}}",
        f"Find {art} {{PRE}}{{N}}",
        "When is the next {PRE}{N}",
        f"{c} the {{PRE}}{{N}}",
        f"{c} {{PRE}}{{N}}",
        "Look up the {PRE}{N}",
        "Look up {PRE}{N}",
        "Check the {PRE}{N}",
        "Where is the {PRE}{N}",
        "Give me the {PRE}{N}",
        "How is the {PRE}{N}",
        "Next {PRE}{N}",
        "Who has the {PRE}{N}",
        "Who is the {PRE}{N}",
        "{PRE}{N} please:",
        "What {N} do we have",
        "Which {N} is there",
        "How much {N} is there",
        "Do you know the {PRE}{N}",
        "I would like to know the {PRE}{N}",
        "Any {PRE}{N}",
    ]


def values(r: random.Random, t: Tool) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for p in t.params:
        if not p.required and r.random() < 0.5:
            continue
        if p.enum:
            args[p.name] = r.choice(p.enum)
        elif p.type == "array":
            makers = r.choice(
                [
                    [lambda x: word(x, 8), lambda x: x.choice(NAMES), lambda x: x.choice(FRUIT)],
                    [val.thing],
                    [lambda x: x.choice(CITIES)],
                    [val.code],
                ]
            )
            args[p.name] = [
                r.choice(makers)(r)
                for _ in range(r.choices([1, 2, 3, 4], [0.25, 0.3, 0.3, 0.15])[0])
            ]
        else:
            args[p.name] = r.choice(p.maker) if isinstance(p.maker, list) else p.maker(r)
    return args


def spoken(r: random.Random, p: Param, v: Any) -> str:
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, list):
        return _say_list(r, v)
    return number_words(v) if isinstance(v, int) and v < 13 and r.random() < 0.07 else str(v)


def _pair_words(r: random.Random, a: Param, b: Param, x: Any, y: Any) -> str:
    na, nb = spoken_name(a.name), spoken_name(b.name)
    if a.type == "string":
        return r.choice(
            [
                f"from {x} to {y}",
                f"from {x} to {y}",
                f"{x} to {y}",
                f"between {x} and {y}",
                f"for {x} and {y}",
                f"{na} {x} and {nb} {y}",
                f"{na}: {x}, {nb}: {y}",
                f"{na} {x}, {nb} {y}",
                f"with {na} {x} and {nb} {y}",
            ]
        )
    return r.choice(
        [
            f"{na} {x} and {nb} {y}",
            f"{na} {x}, {nb} {y}",
            f"to {x} and {y}",
            f"{x} and {y}",
            f"with {na} {x} and {nb} {y}",
            f"{na} {x} {nb} {y}",
            f"{na}={x}, {nb}={y}",
            f"to {na} {x} and {nb} {y}",
            f"at {x}, {y}",
        ]
    )


def _give(r: random.Random, t: Tool, args: dict[str, Any]) -> str | None:
    """'Give {thing} {n} {units} of {noun}' and its kin: the object stands first and the tool is told by unit, noun or description."""
    s = next((p for p in t.params if p.concept in ("string", "text") and p.name in args), None)
    n = next(
        (
            p
            for p in t.params
            if p.type in ("integer", "number") and p.concept != "pair" and p.name in args
        ),
        None,
    )
    if s is None or n is None or len(args) != 2:
        return None
    unit = r.choice([spoken_name(n.name), r.choice(UNITS.get(n.name, [spoken_name(n.name)]))])
    a, b = str(args[s.name]), spoken(r, n, args[n.name])
    full = r.choice([True, True, False]) or n.name in UNITS
    if full:
        return r.choice(
            [
                f"Give {a} {b} {unit} of {t.noun}",
                f"Please give {a} {b} {unit} of {t.noun}",
                f"{a} needs {b} {unit} of {t.noun}",
                f"{t.noun.capitalize()} for {a}: {b} {unit}",
                f"I need {b} {unit} of {t.noun} for {a}",
                f"{b} {unit} of {t.noun} for {a}",
                f"Let {a} have {b} {unit} of {t.noun}",
                f"Give the {t.noun} {a} {b} {unit}",
            ]
        )
    return r.choice(
        [
            f"Give {a} {b} {unit}",
            f"{a} gets {b} {unit}",
            f"Please give {a} {b} {unit}",
            f"{b} {unit} for {a}",
            f"I give {a} {b} {unit}",
        ]
    )


def _switch(r: random.Random, t: Tool, args: dict[str, Any]) -> tuple[str, str] | None:
    """'Turn off the lamp': the verb carries a true or false argument. Returns the opening and the parameter."""
    for p in t.params:
        if p.type == "boolean" and p.name in SWITCHES and p.name in args:
            v = SWITCHES[p.name][0 if args[p.name] else 1]
            first, _, rest = v.partition(" ")
            opening = r.choice(
                [
                    f"{v.capitalize()} the {{PRE}}{{N}}",
                    f"Please {v} the {{PRE}}{{N}}",
                    f"{v.capitalize()} {{PRE}}{{N}}",
                    f"Can you {v} the {{PRE}}{{N}}",
                ]
            )
            if rest and r.random() < 0.3:
                opening = f"{first.capitalize()} the {{PRE}}{{N}} {rest}"
            return opening, p.name
    return None


def request(r: random.Random, t: Tool) -> tuple[str, dict[str, Any]]:
    args = values(r, t)
    if r.random() < 0.3 and (said_so := _give(r, t, args)):
        return _finish(r, said_so), args
    opening, done = r.choice(t.asks), set()
    if r.random() < 0.6 and (sw := _switch(r, t, args)):
        opening, done = sw[0], {sw[1]}
    said: list[str] = []
    pre = post = lead = ""
    pair = [p for p in t.params if p.concept == "pair"]
    if pair:
        said.append(_pair_words(r, *pair, *(args[p.name] for p in pair)))
    for p in t.params:
        if p.name not in args or p.concept == "pair" or p.name in done:
            continue
        v, how = args[p.name], r.choice(p.say)
        text, w = spoken(r, p, v), spoken_name(p.name)
        if how == "PRE" and (pre or not isinstance(v, str) or "{PRE}" not in opening):
            how = f"{w} {{v}}"
        if how == "POST" and (post or "{N}" not in opening):
            how = f"{w} {{v}}"
        if how == "LEAD" and (lead or said or pre or post):
            how = f"with {w} {{v}}"
        if how == "PRE":
            pre = text + " "
        elif how == "POST":
            post = " " + text
        elif how == "LEAD":
            lead = text
            opening = r.choice(
                [
                    f"Add the {w} {text} to the {{N}}",
                    f"Put {text} on the {{N}}",
                    f"Add {text} to {{N}}",
                    f"Set the {w} {text} for {{N}}",
                    f"Give {{N}} the {w} {text}",
                    f"Use {text} as {w} for the {{N}}",
                    f"I want {text} for the {{N}}",
                ]
            )
        else:
            said.append(how.replace("{v}", text))
    if r.random() < 0.3:
        r.shuffle(said)
    ask = opening.replace("{PRE}", pre).replace("{N}", t.noun + post)
    if t.desc and pre and r.random() < 0.12:  # the object alone: 'Measure nitrogen at pier 4'
        ask = f"{t.desc.split()[0]} {pre.strip()}"
    ask = ask[0].upper() + ask[1:]
    text = ask
    for i, s in enumerate(said):
        join = (
            ""
            if s.startswith(":")
            else " "
            if s.startswith("and ")
            else r.choice([" ", " ", " ", ", ", " and "])
            if i
            else r.choice([" ", " ", " ", " ", ": ", ", "])
        )
        text += (
            join.rstrip(": ,") + " " if join in (": ", ", ") and text.endswith(":") else join
        ) + s
    if said and r.random() < 0.08 and not ask.endswith(":"):
        text = f"{said[0][0].upper() + said[0][1:]}, {ask[0].lower() + ask[1:]}" + "".join(
            " " + s for s in said[1:]
        )
    return _finish(r, text), args


def _finish(r: random.Random, text: str) -> str:
    k = r.random()
    if k < 0.08:
        text = text[0].lower() + text[1:]
    elif k < 0.15 and not text.startswith(("Please", "Can", "Could")):
        text = (
            r.choice(["Hi, ", "Hello, ", "Hey, ", "Now ", "Ok, ", "Please "])
            + text[0].lower()
            + text[1:]
        )
    question = text.startswith(
        ("What", "Is", "When", "Where", "How", "Who", "Can", "Could", "Next", "Do", "Which", "Any")
    )
    return text.rstrip(":") + ("?" if question else r.choice([".", ".", ".", "", "!"]))


def matches(text: str, args: dict[str, Any], t: Tool, others: list[Tool]) -> bool:
    """Whether a request fits `t` better than each other tool on offer: by words, or (if no words decide) by a unit that only `t` counts in."""
    if fits(text, t, args, others):
        return True

    def units(o: Tool) -> set[str]:
        return {stem(u) for p in o.params for u in UNITS.get(p.name, []) if len(u) > 2}

    heard = set(said(text))
    words = [score(text, o, set()) for o in (t, *others)]
    return (
        bool(heard & units(t))
        and max(words) == words[0]
        and not any(heard & units(o) for o in others)
    )

"""Invented tools in a wide range of wording: any noun, any parameter, any place in the sentence.

tasks_tools.py has realistic domains with fixed ways of speaking; here the domain is made up each time, so that matching a request to a
schema has to rest on shared words, value types and enumerations. Nouns of the hand-written held-out tools are left out.
"""
from __future__ import annotations

import random
from typing import Any

from lexicon import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLORS,
    FRUIT,
    MANY_WORD_CITIES,
    NAMES,
    THINGS,
    dictionary,
    number_words,
    pseudo,
    word,
)
from tasks_tools import (
    Param,
    Tool,
    _code,
    _date,
    _float,
    _ident,
    _say_list,
    _small,
    _time,
    schema_of,
)

NOUNS = (
    "timetable menu parcel invoice lesson course concert match score ranking recipe playlist podcast map route parking hotel cabin tent tour guide museum gallery exhibit library loan "
    "doctor clinic vaccine appointment prescription gym workout diet calorie heart step sleep battery charger heater fan blind curtain shutter oven fridge dishwasher vacuum mower sprinkler pool "
    "sauna elevator crane drone camera scanner plotter projector screen speaker microphone server backup database table query report chart log alert ticket branch commit build deploy license "
    "domain certificate password account balance card loan tax bill receipt budget stock bond fund salary shift roster payroll badge desk office floor corridor warehouse shelf pallet truck tram "
    "taxi bike scooter ship harbor flight gate runway seat luggage visa passport border customs embassy star planet comet eclipse tide wave wind storm snow rain pollen river lake glacier "
    "volcano quake forest trail peak cave farm harvest tractor barn stable horse dog cat bird fish hive garden seed tree fruit wine cheese bread cake pizza order courier coupon gift wedding party "
    "choir band song album lyric book chapter page author quote poem word synonym grammar exam grade quiz puzzle chess card dice game level boss guild quest avatar"
).split()
GET_VERBS = "get find show check read fetch lookup query list search view".split()
ACT_VERBS = ("set start stop open close create add remove update send book reserve rent order cancel delete move copy rename play pause mute record turn switch adjust schedule assign approve reject archive restore "
             "print scan upload download share publish launch repair clean fill empty load charge inspect mark pick paint plant feed train rate sign merge split").split()
STRING_P = ("zone model branch shelf team engine track season brand gate channel album country street project server folder course doctor museum recipe owner artist author genre player client vendor driver pilot "
            "guest patient student teacher species variety flavor material region district building floor wing hall table desk lane dock pier hub node cluster queue topic label group folder device sensor account").split()
INT_P = "copies pages liters minutes hours seats rooms floors meters grams points stars players guests items pieces bottles boxes lines levels cars people tickets degrees percent units rounds days weeks nights volume speed distance limit".split()
NUM_P = "frequency weight price rate width height depth pressure voltage amount ratio dose budget temperature".split()
BOOL_P = "active enabled public locked visible urgent quiet shared paid open heated private fast repeat".split()
ENUM_P = "kind mode metric size type state level format class priority color unit season speed plan".split()
ENUM_V = "small large medium fast slow low high normal basic premium gold silver ozone nitrogen co carbon lead solar wind gas diesel red green blue hot cold warm eco sport comfort draft final day night north south east west daily weekly monthly pdf csv xml".split()


def _name(r: random.Random) -> str:
    k = r.random()
    if k < 0.2:
        return r.choice(CITIES + MANY_WORD_CITIES)
    if k < 0.35:
        return r.choice(NAMES)
    if k < 0.5:
        return _code(r)
    if k < 0.6:
        return pseudo(r).capitalize()
    if k < 0.72:
        return f"{r.choice(ADJECTIVES + COLORS)} {r.choice(THINGS + ANIMALS)}".title() if r.random() < 0.5 else f"{r.choice(ADJECTIVES)} {r.choice(THINGS)}"
    if k < 0.8:
        return r.choice([str(r.randint(1, 99)), f"{r.choice('ABCKMNSU')}{r.randint(1, 99)}", "".join(r.choice("ABCDEFGHIJKLMNOPRSTUVWXYZ") for _ in range(3)), f"{r.randint(1, 40)}{r.choice('ABC')}"])
    return r.choice([word(r), r.choice(dictionary()), r.choice(FRUIT + THINGS + ANIMALS)])


def _param(r: random.Random, noun: str, taken: set[str]) -> Param:
    kind = r.choices(["string", "integer", "number", "boolean", "enum", "array", "date", "time"], [0.46, 0.19, 0.08, 0.06, 0.09, 0.04, 0.05, 0.03])[0]
    for _ in range(30):
        if kind == "string":
            n = r.choice(STRING_P) if r.random() < 0.7 else r.choice([noun, noun + "_id", noun + "_name", word(r, 8), pseudo(r)])
        elif kind == "date":
            n = r.choice(["date", "day", "when", "start", "until", "due"])
        elif kind == "time":
            n = r.choice(["time", "hour", "at", "begin"])
        else:
            n = r.choice({"integer": INT_P, "number": NUM_P, "boolean": BOOL_P, "enum": ENUM_P, "array": ["tags", "names", "items", "labels", "parts", "members"]}[kind])
        if r.random() < 0.08 and kind != "boolean":
            n = _ident(r, [n, r.choice(["name", "value", "number"])], r.choice(["snake", "camel"]))
        if n not in taken:
            break
    else:
        n = f"{n}{len(taken)}"
    taken.add(n)
    w = "".join(" " + c.lower() if c.isupper() else c for c in n.replace("_", " "))
    enum = None
    maker: Any = _name
    if kind == "string":
        say = ["in {v}", "for {v}", "of {v}", "at {v}", "on {v}", "from {v}", "to {v}", "with {v}", f"{w} {{v}}", f"with {w} {{v}}", f"the {{v}} {w}", "{v}", "'{v}'", f"{w}: {{v}}", "PRE", "by {v}", f"in {w} {{v}}", f"for {w} {{v}}"]
    elif kind == "date":
        maker, say = _date, ["on {v}", "for {v}", "{v}", f"{w} {{v}}"]
    elif kind == "time":
        maker, say = _time, ["at {v}", f"{w} {{v}}", "for {v}"]
    elif kind == "integer":
        maker, say = _small, [f"{{v}} {w}", f"with {{v}} {w}", f"{w} {{v}}", f"for {{v}} {w}", f"at {{v}} {w}", f"and {w} {{v}}", "to {v}", f"with {w} {{v}}", f"{w}: {{v}}", f"{{v}} {w.rstrip('s')}", f"by {{v}} {w}"]
    elif kind == "number":
        maker, say = _float, ["to {v}", f"{w} {{v}}", f"at {{v}} {r.choice(['kg', 'V', 'bar', 'euros', 'dollars', 'm', 'kHz', 'mm'])}", f"with a {w} of {{v}}", "at {v}", f"with {w} {{v}}", "of {v}"]
    elif kind == "boolean":
        maker, say = (lambda x: x.random() < 0.5), [f"with {w} {{v}}", f"{w} {{v}}", f"{w}: {{v}}", f"set {w} to {{v}}", f"and {w} {{v}}"]
    elif kind == "enum":
        enum = r.sample(ENUM_V, r.randint(2, 4))
        say = ["PRE", f"{w} {{v}}", "in {v}", "as {v}", f"with {w} {{v}}", "{v}", f"the {{v}} {w}", "for {v}"]
    else:
        say = ["with {v}", f"{w} {{v}}", f"with the {w} {{v}}", "for {v}", "{v}", f"and {w} {{v}}"]
    typ = {"enum": "string", "date": "string", "time": "string"}.get(kind, kind)
    desc = r.choice([f"{w.capitalize()} of the {noun}", f"The {w}", w.capitalize(), f"{noun.capitalize()} {w}", ""])
    return Param(n, kind, typ, r.random() < 0.85, maker, say, desc, enum)


def make_tool(r: random.Random) -> Tool:
    noun = r.choice(NOUNS) if r.random() < 0.75 else r.choice([r.choice(dictionary()), r.choice(THINGS + ANIMALS + FRUIT), pseudo(r)])
    noun2 = f"{r.choice([r.choice(NOUNS), r.choice(ADJECTIVES), word(r, 7)])} {noun}" if r.random() < 0.25 else noun
    act = r.random() < 0.6
    verb = r.choice(ACT_VERBS if act else GET_VERBS)
    taken: set[str] = set()
    params = [_param(r, noun, taken) for _ in range(r.choices([1, 2, 3], [0.42, 0.42, 0.16])[0])]
    if not any(p.required for p in params):
        params[0].required = True
    for kinds in (("string", "enum", "array", "date", "time"), ("integer", "number")):  # two of a sort: name all but one of them
        same = [p for p in params if p.concept in kinds]
        free = r.choice(same) if same else None
        for p in same:
            if p is not free and not p.enum:
                named = [s for s in p.say if p.name.split("_")[0].lower()[:4] in s.lower()]
                p.say = named or [f"{p.name} {{v}}"]
    parts = noun2.split()
    name = _ident(r, r.choice([[verb, *parts], [verb, *parts], [*parts, verb], [verb, noun], [*parts], ["next" if not act else verb, *parts]]))
    if r.random() < 0.12:
        name = _ident(r, [pseudo(r), *parts[-1:]])  # then only the description tells
    art = "an" if noun2[0] in "aeiou" else "a"
    if act:
        desc = r.choice([f"{verb.capitalize()} {art} {noun2}", f"{verb.capitalize()} the {noun2}", f"{verb.capitalize()} {art} {noun2} by {params[0].name}", f"{noun2.capitalize()} control: {verb}", f"{verb.capitalize()} {art} {noun2} for the user."])
        asks = [f"{verb.capitalize()} the {{PRE}}{noun2}", f"{verb.capitalize()} {art} {{PRE}}{noun2}", f"Please {verb} the {{PRE}}{noun2}", f"I want to {verb} {art} {{PRE}}{noun2}", f"Can you {verb} the {{PRE}}{noun2}", f"I need you to {verb} {art} {{PRE}}{noun2}",
                f"Could you {verb} the {{PRE}}{noun2}", f"{verb.capitalize()} my {{PRE}}{noun2}", f"{noun2.capitalize()}: {verb} the {{PRE}}one", f"Let's {verb} the {{PRE}}{noun2}", f"I would like to {verb} the {{PRE}}{noun2}"]
    else:
        desc = r.choice([f"{noun2.capitalize()} look-up", f"{verb.capitalize()} the {noun2}", f"{noun2.capitalize()} of a {params[0].name}", f"Returns the {noun2}", f"{verb.capitalize()} {art} {noun2}", f"Information about {art} {noun2}"])
        asks = [f"What is the {{PRE}}{noun2}", f"What is the {{PRE}}{noun2} value", f"Show me the {{PRE}}{noun2}", f"Tell me the {{PRE}}{noun2}", f"Get the {{PRE}}{noun2}", f"I need the {{PRE}}{noun2}", f"Is there {art} {{PRE}}{noun2}", f"Find {art} {{PRE}}{noun2}",
                f"When is the next {{PRE}}{noun2}", f"Look up the {{PRE}}{noun2}", f"Check the {{PRE}}{noun2}", f"Where is the {{PRE}}{noun2}", f"Give me the {{PRE}}{noun2}", f"How is the {{PRE}}{noun2}", f"Next {{PRE}}{noun2}", f"Who has the {{PRE}}{noun2}", f"{noun2.capitalize()} {{PRE}}please:"]
    t = Tool(name, desc if r.random() < 0.93 else "", params, asks, r.sample(["status", "result", "value", "count", "id", "name", noun, "time", "price", "city"], 2), noun)
    t.schema = schema_of(r, t)
    return t


def request(r: random.Random, t: Tool) -> tuple[str, dict[str, Any]]:
    args: dict[str, Any] = {}
    said: list[str] = []
    pre = ""
    for p in t.params:
        if not p.required and r.random() < 0.5:
            continue
        if p.enum:
            v: Any = r.choice(p.enum)
        elif p.type == "array":
            v = [r.choice([word(r, 8), r.choice(NAMES), r.choice(FRUIT)]) for _ in range(r.randint(1, 3))]
        else:
            v = p.maker(r)
        args[p.name] = v
        how = r.choice(p.say)
        if how == "PRE" and (pre or not isinstance(v, str)):
            how = f"{p.name} {{v}}"
        spoken = ("true" if v else "false") if isinstance(v, bool) else _say_list(r, v) if isinstance(v, list) else number_words(v) if p.type == "integer" and v < 13 and r.random() < 0.1 else str(v)
        if how == "PRE":
            pre = spoken + " "
        else:
            said.append(how.replace("{v}", spoken))
    if r.random() < 0.3:
        r.shuffle(said)
    ask = r.choice(t.asks).replace("{PRE}", pre)
    text = ask
    for i, s in enumerate(said):
        join = " " if s.startswith("and ") else r.choice([" ", " ", " ", ", ", " and "]) if i else r.choice([" ", " ", " ", " ", ": "])
        text += join + s
    if said and r.random() < 0.06:
        text = f"{said[0][0].upper() + said[0][1:]}, {ask[0].lower() + ask[1:]}" + "".join(" " + s for s in said[1:])
    k = r.random()
    if k < 0.08:
        text = text[0].lower() + text[1:]
    elif k < 0.16 and not text.startswith(("Please", "Can", "Could")):
        text = r.choice(["Hi, ", "Hello, ", "Hey, ", "Now "]) + text[0].lower() + text[1:]
    question = text.startswith(("What", "Is", "When", "Where", "How", "Who", "Can", "Could", "Next"))
    return text + ("?" if question else r.choice([".", ".", "", "!"])), args

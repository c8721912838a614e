"""Tool calls: schemas whose names are invented for every sample, requests in words, calls, results, and closing answers.

Names never repeat enough to be learned by heart: tool and parameter names are joined from a large word list in several
spellings, so the only way to a right call is to read the schema and copy from it.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from lexicon import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLORS,
    FRUIT,
    MANY_WORD_CITIES,
    MONTHS,
    NAMES,
    THINGS,
    WEEKDAYS,
    dictionary,
    number_words,
    pseudo,
    word,
)
from tasks_tools_words import deciding, table


def _ident(rng: random.Random, parts: list[str], style: str | None = None) -> str:
    style = style or rng.choice(["snake"] * 6 + ["camel"] * 2 + ["kebab", "dot", "flat"])
    if style == "snake":
        return "_".join(parts)
    if style == "camel":
        return parts[0] + "".join(p.capitalize() for p in parts[1:])
    if style == "kebab":
        return "-".join(parts)
    if style == "dot":
        return ".".join(parts)
    return "".join(parts)


def _city(r: random.Random) -> str:
    k = r.random()
    return (
        r.choice(CITIES)
        if k < 0.62
        else r.choice(MANY_WORD_CITIES)
        if k < 0.75
        else f"{pseudo(r)} {pseudo(r)}".title()
        if k < 0.8
        else pseudo(r).capitalize()
    )


def _person(r: random.Random) -> str:
    k = r.random()
    return (
        r.choice(NAMES)
        if k < 0.65
        else f"{r.choice(NAMES)} {pseudo(r).capitalize()}"
        if k < 0.75
        else pseudo(r).capitalize()
    )


def _date(r: random.Random) -> str:
    return r.choice(
        [
            f"{r.randint(2020, 2030)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}",
            r.choice(WEEKDAYS),
            "today",
            "tomorrow",
            f"{r.choice(MONTHS)} {r.randint(1, 28)}",
        ]
    )


def _time(r: random.Random) -> str:
    return r.choice(
        [
            f"{r.randint(0, 23):02d}:{r.choice([0, 15, 30, 45, r.randint(0, 59)]):02d}",
            f"{r.randint(1, 12)} {r.choice(['am', 'pm'])}",
            f"{r.randint(1, 12)}{r.choice(['am', 'pm'])}",
        ]
    )


def _text(r: random.Random) -> str:
    return r.choice(
        [
            f"{r.choice(['buy', 'bring', 'call', 'clean', 'check', 'fix', 'find', 'pack', 'paint'])} {r.choice(['the', 'a', 'some', 'my'])} {word(r)}",
            f"meeting at {r.randint(1, 12)}",
            f"see you {r.choice(['soon', 'tomorrow', 'later', 'on ' + r.choice(WEEKDAYS)])}",
            " ".join(word(r, 8) for _ in range(r.randint(1, 4))),
            f"hello {r.choice(NAMES)}",
            f"I will be {r.randint(5, 50)} minutes late",
            " ".join(r.choice(dictionary()) for _ in range(r.randint(2, 7))),
            f"the {r.choice(ADJECTIVES)} {r.choice(THINGS)}",
        ]
    )


def _topic(r: random.Random) -> str:
    return r.choice(
        [
            word(r),
            f"{r.choice(ADJECTIVES)} {r.choice(THINGS + ANIMALS + FRUIT)}",
            f"{word(r)} {word(r)}",
        ]
    )


def _code(r: random.Random) -> str:
    return r.choice(
        [
            f"{r.choice('ABCDEFGHKMPRST')}{r.randint(10, 9999)}",
            f"{r.choice('ABCDEFGHKMPRST')}{r.choice('ABCDEFGHKMPRST')}-{r.randint(100, 9999)}",
            f"{r.choice('ABCDEFGHKMPRST')}-{r.randint(1, 99)}",
        ]
    )


def _mail(r: random.Random) -> str:
    return f"{r.choice(NAMES).lower()}@{r.choice(['example.com', 'mail.org', pseudo(r) + '.net'])}"


def _small(r: random.Random) -> int:
    return r.choice([r.randint(1, 12), r.randint(1, 12), r.randint(13, 99)])


def _num(r: random.Random) -> int:
    return r.choice([r.randint(1, 99), r.randint(100, 999), r.randint(1000, 9999)])


def _float(r: random.Random) -> float:
    return r.choice([r.randint(1, 999) / 10, r.randint(1, 99) + 0.5, r.randint(100, 9999) / 100])


# A concept: possible parameter names, JSON type, value maker, ways to say it in a request, description.
Concept = tuple[list[str], str, Any, list[str], str]
CONCEPTS: dict[str, Concept] = {
    "city": (
        ["city", "location", "place", "town", "destination", "area", "where", "region"],
        "string",
        _city,
        ["in {v}", "for {v}", "at {v}"],
        "City name",
    ),
    "port": (
        ["port", "station", "stop", "harbor", "airport", "terminal"],
        "string",
        _city,
        ["from {v}", "at {v}", "in {v}", "for {v}"],
        "Name of the {n}",
    ),
    "from": (
        ["origin", "from", "start", "source", "from_city", "departure"],
        "string",
        _city,
        ["from {v}", "starting in {v}"],
        "Start point",
    ),
    "to": (
        ["destination", "to", "target", "end", "to_city", "arrival"],
        "string",
        _city,
        ["to {v}"],
        "End point",
    ),
    "person": (
        ["person", "name", "recipient", "contact", "user", "to", "customer", "guest", "employee"],
        "string",
        _person,
        ["for {v}", "to {v}", "with {v}"],
        "Name of the person",
    ),
    "date": (
        ["date", "day", "when", "start_date", "on"],
        "string",
        _date,
        ["on {v}", "for {v}"],
        "Date",
    ),
    "time": (
        ["time", "at", "hour", "start_time", "when"],
        "string",
        _time,
        ["at {v}"],
        "Time of day",
    ),
    "text": (
        ["text", "message", "body", "content", "note", "title", "subject", "description"],
        "string",
        _text,
        [
            "saying '{v}'",
            "with the {n} '{v}'",
            'that says "{v}"',
            "with text '{v}'",
            "'{v}'",
            ": {v}",
        ],
        "The {n}",
    ),
    "topic": (
        ["query", "topic", "keyword", "term", "search", "q", "subject", "name", "title"],
        "string",
        _topic,
        ["for {v}", "about {v}", "on {v}", "'{v}'", "called {v}", "named {v}"],
        "What to look for",
    ),
    "item": (
        ["item", "product", "article", "object", "thing", "goods"],
        "string",
        lambda r: r.choice(THINGS + FRUIT + [word(r), word(r)]),
        ["for {v}", "of {v}", "{v}", "the {v}"],
        "Name of the {n}",
    ),
    "id": (
        ["id", "code", "number", "reference", "order_id", "ticket", "serial", "sku"],
        "string",
        _code,
        ["{v}", "with id {v}", "number {v}", "with code {v}", "with {n} {v}"],
        "Identifier",
    ),
    "email": (
        ["email", "address", "to", "recipient", "mail"],
        "string",
        _mail,
        ["to {v}", "for {v}", "at {v}"],
        "Mail address",
    ),
    "count": (
        [
            "count",
            "number",
            "amount",
            "quantity",
            "n",
            "limit",
            "people",
            "guests",
            "seats",
            "nights",
            "days",
            "cars",
            "tickets",
            "copies",
            "rooms",
            "adults",
        ],
        "integer",
        _small,
        ["for {v} {p}", "with {v} {p}", "{v} {p}", "{n} {v}", "with {n} {v}"],
        "Number of {p}",
    ),
    "amount": (
        ["amount", "price", "value", "total", "sum", "budget", "cost"],
        "number",
        lambda r: r.choice([_num(r), _float(r)]),
        ["of {v}", "for {v} dollars", "with {n} {v}", "{n} {v}", "{v} euros"],
        "The {n}",
    ),
    "level": (
        [
            "level",
            "brightness",
            "volume",
            "speed",
            "temperature",
            "percent",
            "power",
            "width",
            "height",
            "age",
            "year",
            "duration",
            "minutes",
            "size",
        ],
        "integer",
        _num,
        ["to {v}", "at {n} {v}", "with {n} {v}", "{n} {v}", "with a {n} of {v}"],
        "The {n}",
    ),
    "color": (
        ["color", "colour", "tint", "paint"],
        "string",
        lambda r: r.choice(COLORS),
        ["in {v}", "to {v}", "with color {v}", "with {n} {v}"],
        "Color name",
    ),
    "flag": (
        [
            "urgent",
            "express",
            "open_deck",
            "breakfast",
            "insurance",
            "refundable",
            "verbose",
            "recursive",
            "gift_wrap",
            "private",
            "window_seat",
            "parking",
            "notify",
            "round_trip",
            "vegetarian",
            "silent",
        ],
        "boolean",
        lambda r: r.random() < 0.5,
        ["with {w}", "without {w}"],
        "Whether {w}",
    ),
    "unit": (
        ["unit", "units", "scale", "system"],
        "enum",
        ["celsius", "fahrenheit", "metric", "imperial", "kelvin"],
        ["in {v}", "using {v}", "in {v} units"],
        "Unit",
    ),
    "choice": (
        [
            "mode",
            "kind",
            "type",
            "category",
            "format",
            "priority",
            "language",
            "class",
            "style",
            "status",
        ],
        "enum",
        None,
        ["with {n} {v}", "in {v} {n}", "{n} {v}", "as {v}"],
        "The {n}",
    ),
    "list": (
        [
            "items",
            "names",
            "tags",
            "ingredients",
            "labels",
            "players",
            "words",
            "members",
            "topics",
        ],
        "array",
        None,
        ["with {v}", "with {n} {v}", "for {v}", ": {v}", "{v}"],
        "List of {n}",
    ),
    "numbers": (
        ["numbers", "values", "scores", "data", "points"],
        "numarray",
        None,
        ["of {v}", "for {v}", "with {v}", "{v}"],
        "List of numbers",
    ),
}
FREE = list(dict.fromkeys(ADJECTIVES + THINGS + FRUIT + ANIMALS))

# Domains: verbs for requests, nouns, verbs for names, concepts, possible result fields.
Domain = tuple[list[str], list[str], list[str], list[str], list[str]]
DOMAINS: list[Domain] = [
    (
        [
            "What is the weather",
            "Tell me the weather",
            "How is the weather",
            "Get the weather",
            "Check the forecast",
            "Is it raining",
            "What's the weather like",
        ],
        ["weather", "forecast"],
        ["get", "fetch", "check", "lookup", "current"],
        ["city", "date?", "unit?"],
        ["temperature", "sky", "wind"],
    ),
    (
        ["What time is it", "Get the local time", "Tell me the time", "What is the current time"],
        ["time", "clock"],
        ["get", "local", "current", "fetch"],
        ["city"],
        ["time"],
    ),
    (
        ["What is the tide", "Get the tide", "Check the water level", "How high is the tide"],
        ["tide", "water"],
        ["get", "check", "read"],
        ["port", "date?"],
        ["height"],
    ),
    (
        ["Book a ferry", "Reserve a ferry", "I need a ferry", "Get me a ferry"],
        ["ferry", "boat"],
        ["book", "reserve", "order"],
        ["from", "to?", "count", "flag?", "amount?"],
        ["booking", "price"],
    ),
    (
        ["Book a flight", "Find a flight", "I want to fly", "Get me a flight", "Search flights"],
        ["flight", "plane"],
        ["book", "find", "search"],
        ["from", "to", "date?", "choice?"],
        ["flight", "price", "gate"],
    ),
    (
        ["Find a train", "Book a train", "When is the next train", "Get me a train ticket"],
        ["train", "rail"],
        ["find", "book", "search", "next"],
        ["from", "to", "time?"],
        ["train", "platform", "departure"],
    ),
    (
        ["Book a hotel", "Reserve a hotel room", "Find a hotel", "I need a hotel"],
        ["hotel", "room"],
        ["book", "reserve", "find"],
        ["city", "count", "flag?"],
        ["hotel", "price", "booking"],
    ),
    (
        ["Book a table", "Reserve a table", "I need a table"],
        ["table", "restaurant"],
        ["book", "reserve"],
        ["topic", "count", "time"],
        ["booking", "status"],
    ),
    (
        ["Send a message", "Text", "Write a message", "Send a text"],
        ["message", "sms", "chat"],
        ["send", "post", "write"],
        ["person", "text"],
        ["status", "id"],
    ),
    (
        ["Send an email", "Write an email", "Email"],
        ["email", "mail"],
        ["send", "write", "compose"],
        ["email", "text"],
        ["status", "id"],
    ),
    (
        ["Set a timer", "Start a timer", "I need a timer"],
        ["timer", "countdown"],
        ["set", "start", "create"],
        ["level"],
        ["status", "timer"],
    ),
    (
        ["Set an alarm", "Wake me up", "Create an alarm"],
        ["alarm", "wakeup"],
        ["set", "create", "add"],
        ["time", "topic?"],
        ["status", "alarm"],
    ),
    (
        ["Remind me", "Create a reminder", "Add a reminder", "Set a reminder"],
        ["reminder", "task"],
        ["create", "add", "set"],
        ["text", "date"],
        ["status", "id"],
    ),
    (
        ["Add an event", "Create an event", "Schedule a meeting", "Put a meeting in my calendar"],
        ["event", "meeting", "calendar"],
        ["create", "add", "schedule"],
        ["topic", "date", "time?"],
        ["status", "event"],
    ),
    (
        ["Translate", "How do you say", "Translate the text"],
        ["translation", "text"],
        ["translate", "convert"],
        ["text", "choice"],
        ["translation"],
    ),
    (
        ["Search the web", "Search", "Look", "Google", "Find information"],
        ["web", "search", "internet"],
        ["search", "find", "query"],
        ["topic", "count?"],
        ["title", "link"],
    ),
    (
        ["Find files", "Search files", "List files"],
        ["files", "file"],
        ["find", "search", "list"],
        ["topic", "flag?"],
        ["file", "count"],
    ),
    (
        ["What is the price", "Get the price", "How much is it", "Check the price"],
        ["price", "cost"],
        ["get", "check", "lookup"],
        ["item", "unit?"],
        ["price", "currency"],
    ),
    (
        ["What is the stock price", "Get the stock quote", "Check the stock"],
        ["stock", "quote", "share"],
        ["get", "fetch", "check"],
        ["id"],
        ["price", "change"],
    ),
    (
        ["How many do we have in stock", "Check the stock", "Check inventory"],
        ["inventory", "stock", "warehouse"],
        ["check", "get", "count"],
        ["item", "city?"],
        ["count", "shelf"],
    ),
    (
        ["Order", "Buy", "Place an order", "I want to buy"],
        ["order", "purchase", "cart"],
        ["place", "create", "submit", "buy"],
        ["item", "count", "flag?"],
        ["order", "total"],
    ),
    (
        ["Track my order", "Where is my order", "Check the order", "Find the package"],
        ["order", "package", "shipment"],
        ["track", "get", "find"],
        ["id"],
        ["status", "city", "arrival"],
    ),
    (
        ["Cancel the order", "Cancel my booking", "Cancel"],
        ["order", "booking", "reservation"],
        ["cancel", "delete", "remove"],
        ["id", "flag?"],
        ["status"],
    ),
    (
        ["Convert", "Convert money", "Change money"],
        ["currency", "money"],
        ["convert", "exchange"],
        ["amount", "from", "to"],
        ["result", "rate"],
    ),
    (
        ["Transfer money", "Send money", "Pay"],
        ["money", "payment", "funds"],
        ["transfer", "send", "pay"],
        ["amount", "person"],
        ["status", "balance"],
    ),
    (
        ["Turn the light", "Set the light", "Change the light", "Make the light"],
        ["light", "lamp"],
        ["set", "change", "control"],
        ["item?", "color", "level?"],
        ["status"],
    ),
    (
        ["Set the heating", "Set the thermostat", "Change the temperature"],
        ["thermostat", "heating"],
        ["set", "adjust", "control"],
        ["level", "item?"],
        ["status", "temperature"],
    ),
    (
        ["Play music", "Play a song", "Play", "Put on some music"],
        ["music", "song", "track"],
        ["play", "start", "stream"],
        ["topic", "level?"],
        ["status", "song"],
    ),
    (
        ["Find a recipe", "Search recipes", "What can I cook", "Get a recipe"],
        ["recipe", "meal"],
        ["find", "search", "get"],
        ["list", "flag?"],
        ["recipe", "minutes"],
    ),
    (
        ["Calculate the sum", "Add up the numbers", "Sum", "Compute the mean"],
        ["sum", "mean", "stats"],
        ["calculate", "compute", "get"],
        ["numbers"],
        ["result"],
    ),
    (
        ["Look up the user", "Get the profile", "Find the account", "Show me the user"],
        ["user", "profile", "account"],
        ["get", "find", "lookup"],
        ["person"],
        ["email", "age", "city"],
    ),
    (
        ["Create a user", "Add a user", "Register a user", "Add a contact"],
        ["user", "contact", "member"],
        ["create", "add", "register"],
        ["person", "email?", "level?"],
        ["id", "status"],
    ),
    (
        ["Create a ticket", "Open a ticket", "File a bug"],
        ["ticket", "issue", "bug"],
        ["create", "open", "file"],
        ["text", "choice"],
        ["ticket", "status"],
    ),
    (
        ["Plan a route", "Give me directions", "How do I get", "Find the way"],
        ["route", "directions", "path"],
        ["plan", "get", "find"],
        ["from", "to", "choice?"],
        ["distance", "minutes"],
    ),
    (
        ["What is the distance", "How far is it", "Compute the distance"],
        ["distance", "length"],
        ["get", "compute", "measure"],
        ["from", "to", "unit?"],
        ["distance"],
    ),
    (
        ["Rent a car", "Book a car", "I need a car"],
        ["car", "vehicle"],
        ["rent", "book", "reserve"],
        ["city", "count", "flag?"],
        ["car", "price"],
    ),
    (
        ["Read the sensor", "Get the sensor value", "Check the sensor"],
        ["sensor", "reading"],
        ["read", "get", "check"],
        ["id", "unit?"],
        ["value", "unit"],
    ),
    (
        ["Draw a shape", "Draw a box", "Paint a circle"],
        ["shape", "drawing", "canvas"],
        ["draw", "paint", "make"],
        ["color", "level"],
        ["status"],
    ),
    (
        ["Get the news", "Show me the news", "What is the news"],
        ["news", "headlines"],
        ["get", "fetch", "show"],
        ["topic", "count?"],
        ["headline", "source"],
    ),
    (
        ["Make a list", "Create a list", "Make a group"],
        ["list", "group", "team"],
        ["create", "make", "new"],
        ["topic", "list"],
        ["id", "count"],
    ),
]


@dataclass
class Param:
    name: str
    concept: str
    type: str
    required: bool
    maker: Any
    say: list[str]
    desc: str
    enum: list[str] | None = None


@dataclass
class Tool:
    name: str
    desc: str
    params: list[Param]
    asks: list[str]
    fields: list[str]
    noun: str
    verb: str = ""
    schema: dict[str, Any] = field(default_factory=dict)
    words: dict[str, int] = field(default_factory=dict)  # kept by tasks_tools_words.py


def _param(rng: random.Random, concept: str, taken: set[str]) -> Param:
    optional = concept.endswith("?")
    names, typ, maker, say, desc = CONCEPTS[concept.rstrip("?")]
    for _ in range(20):
        name = rng.choice(names)
        if rng.random() < 0.12:
            name = _ident(rng, [rng.choice(FREE), name], rng.choice(["snake", "camel"]))
        elif rng.random() < 0.06:
            name = pseudo(rng)
        if name not in taken:
            break
    else:
        name = f"{name}_{rng.choice(FREE)}"
    taken.add(name)
    enum = None
    if typ == "enum":
        enum = (
            rng.sample(maker, rng.randint(2, 3))
            if maker
            else rng.sample(
                [
                    "fast",
                    "slow",
                    "low",
                    "high",
                    "normal",
                    "small",
                    "large",
                    "economy",
                    "business",
                    "French",
                    "German",
                    "Spanish",
                    "Italian",
                    "Dutch",
                    "Polish",
                    "json",
                    "csv",
                    "text",
                    "public",
                    "private",
                    "walking",
                    "cycling",
                    "car",
                    "bus",
                    "open",
                    "closed",
                    "daily",
                    "weekly",
                    word(rng),
                    word(rng),
                ],
                rng.randint(2, 4),
            )
        )
        typ = "string"
    words = name.replace("_", " ").replace("-", " ")
    words = "".join(" " + c.lower() if c.isupper() else c for c in words)
    plural = words if words.endswith("s") or words in ("people",) else words + "s"
    fill = [s.replace("{n}", words).replace("{p}", plural).replace("{w}", words) for s in say]
    return Param(
        name,
        concept.rstrip("?"),
        typ,
        not optional,
        maker,
        fill,
        desc.replace("{n}", words).replace("{p}", plural).replace("{w}", words),
        enum,
    )


def make_tool(rng: random.Random) -> Tool:
    taken: set[str] = set()
    if rng.random() < 0.68:
        asks, nouns, verbs, concepts, fields = rng.choice(DOMAINS)
        noun, verb = rng.choice(nouns), rng.choice(verbs)
        if rng.random() < 0.3:
            concepts = concepts + rng.sample(
                ["date?", "choice?", "flag?", "count?", "amount?", "id?", "text?"], 1
            )
        params = [_param(rng, c, taken) for c in concepts]
        parts = rng.choice(
            [
                [verb, noun],
                [noun, verb],
                [verb, rng.choice(nouns)],
                [verb, rng.choice(FREE), noun],
                [noun + "s", verb],
                [noun],
            ]
        )
        desc = rng.choice(
            [
                f"{verb.capitalize()} the {noun}",
                f"{verb.capitalize()} a {noun}.",
                f"{asks[0]}.",
                f"Tool to {verb} {noun}",
                "",
                f"{verb.capitalize()} the {noun} for a given {params[0].name}.",
                f"Returns the {fields[0]} of a {noun}.",
                f"Use this to {verb} the {noun} of the user.",
            ]
        )
    else:  # invented tool
        noun = rng.choice([rng.choice(FREE), rng.choice(dictionary()), pseudo(rng)])
        verb = rng.choice(
            "get set find add make run start stop open close read write show count check send update delete move list load save print scan build".split()
            + [word(rng, 7)]
        )
        parts = rng.choice(
            [[verb, noun], [noun, verb], [verb, rng.choice(FREE), noun], [verb, noun, "v2"]]
        )
        k = rng.choice([1, 1, 2, 2, 3])
        params = [_param(rng, c, taken) for c in rng.sample(list(CONCEPTS), k)]
        for p in params:
            if rng.random() < 0.35 and p.type in ("string", "integer", "number") and not p.enum:
                taken.add(n := rng.choice([word(rng), pseudo(rng), rng.choice(dictionary())]))
                p.name = n
                p.say = [
                    f"with {n} {{v}}",
                    f"{n} {{v}}",
                    f"with a {n} of {{v}}",
                    f"{n} = {{v}}",
                    f"{n}: {{v}}",
                ]
                p.desc = rng.choice([f"The {n}", f"{n.capitalize()} of the {noun}", ""])
        asks = [
            f"{verb.capitalize()} the {noun}",
            f"Please {verb} the {noun}",
            f"{verb.capitalize()} a {noun}",
            f"Can you {verb} the {noun}",
            f"I want to {verb} the {noun}",
            f"{verb.capitalize()} {noun}",
        ]
        desc = rng.choice(
            [
                f"{verb.capitalize()} the {noun}",
                f"{verb.capitalize()}s a {noun}.",
                f"{noun.capitalize()} {verb}",
                "",
            ]
        )
        fields = [
            rng.choice(["status", "result", "value", "count", "id", noun]),
            rng.choice(["size", "total", "state", word(rng)]),
        ]
    t = Tool(_ident(rng, parts), desc, params, asks, fields, noun)
    if rng.random() < 0.25:
        t.asks = t.asks + [f"Use {t.name} to {verb} the {noun}", f"Call {t.name}", f"Run {t.name}"]
    t.schema = schema_of(rng, t)
    return t


def schema_of(rng: random.Random, t: Tool) -> dict[str, Any]:
    props: dict[str, Any] = {}
    full = rng.random() < 0.6
    for p in t.params:
        typ = {"numarray": "array", "array": "array"}.get(p.type, p.type)
        d: dict[str, Any] = {"type": typ}
        if p.type == "array":
            d["items"] = {"type": "string"}
        if p.type == "numarray":
            d["items"] = {"type": rng.choice(["number", "integer"])}
        if p.enum:
            d["enum"] = p.enum
        if full and p.desc and rng.random() < 0.85:
            text = p.desc
            if callable(p.maker) and not p.enum and p.type != "boolean" and rng.random() < 0.2:
                text += f", e.g. {p.maker(rng)}"
            elif rng.random() < 0.15:
                text = rng.choice(
                    [
                        f"The {p.name} to use",
                        f"{text} of the request",
                        f"{text} (optional)" if not p.required else f"{text}, required",
                        f"A {p.type} with the {p.name}",
                    ]
                )
            d = {"description": text, **d} if rng.random() < 0.25 else {**d, "description": text}
        if rng.random() < 0.06:
            d[rng.choice(["title", "default", "format"])] = rng.choice(
                [p.name, "auto", "none", "any"]
            )
        if p.type == "integer" and rng.random() < 0.1:
            d["minimum"] = rng.choice([0, 1])
        props[p.name] = d
    out: dict[str, Any] = {"name": t.name}
    if t.desc:
        out["description"] = t.desc
    par: dict[str, Any] = {"type": "object", "properties": props}
    if rng.random() < 0.9:
        par["required"] = [p.name for p in t.params if p.required]
    if rng.random() < 0.08:
        par["additionalProperties"] = False
    out["parameters"] = par
    return out


def _say_list(rng: random.Random, xs: list[Any]) -> str:
    s = [str(x) for x in xs]
    return ", ".join(s[:-1]) + rng.choice([" and ", ", "]) + s[-1] if len(s) > 1 else s[0]


def fill_args(rng: random.Random, t: Tool) -> tuple[dict[str, Any], list[str]]:
    """Argument values and the phrases that carry them, both in declared order."""
    args: dict[str, Any] = {}
    said: list[str] = []
    for p in t.params:
        if not p.required and rng.random() < 0.55:
            continue
        if p.enum:
            v: Any = rng.choice(p.enum)
        elif p.type == "array":
            v = [
                rng.choice([word(rng, 8), rng.choice(NAMES), rng.choice(FRUIT)])
                for _ in range(rng.randint(1, 4))
            ]
        elif p.type == "numarray":
            v = [_num(rng) if rng.random() < 0.3 else _small(rng) for _ in range(rng.randint(2, 5))]
        else:
            v = p.maker(rng)
        args[p.name] = v
        if p.type == "boolean":
            s = p.say[0] if v else p.say[1]
            if "{v}" in s:
                s = s.format(v="true" if v else "false")
            said.append(s)
        else:
            spoken = (
                _say_list(rng, v)
                if isinstance(v, list)
                else number_words(v)
                if p.type == "integer" and 0 < v < 21 and rng.random() < 0.12
                else str(v)
            )
            said.append(rng.choice(p.say).replace("{v}", spoken))
    return args, said


def request(rng: random.Random, t: Tool) -> tuple[str, dict[str, Any]]:
    args, said = fill_args(rng, t)
    if rng.random() < 0.25:
        rng.shuffle(said)
    joined = ""
    for i, s in enumerate(said):
        joined += (
            s
            if s.startswith(":")
            else (
                ", "
                if i and rng.random() < 0.15
                else " and "
                if i and i == len(said) - 1 and rng.random() < 0.3
                else " "
            )
            + s
        )
    if rng.random() < 0.12:  # something that no parameter takes
        joined += rng.choice(
            [
                " tomorrow",
                " today",
                " please",
                " for my trip",
                " right now",
                " again",
                " for me",
                " this evening",
                " as soon as possible",
                " next week",
                " if you can",
                " for the party",
            ]
        )
    text = rng.choice(t.asks) + joined
    r = rng.random()
    if r < 0.1:
        text = text[0].lower() + text[1:]
    elif r < 0.2:
        text = "Please " + text[0].lower() + text[1:]
    elif r < 0.32:
        text = (
            rng.choice(
                [
                    "Hi, ",
                    "Hello! ",
                    "I'd like to know: ",
                    "Can you help? ",
                    "Hey, ",
                    "Good morning. ",
                    "I am planning a trip. ",
                    "I have a question. ",
                    "Quick one: ",
                    "Now, ",
                    "Next, ",
                ]
            )
            + text
        )
    text += (
        rng.choice([".", "?", "", "."])
        if not text.startswith(("What", "How", "Is", "When", "Where", "Can"))
        else "?"
    )
    return text, args


def result_of(rng: random.Random, t: Tool, args: dict[str, Any]) -> tuple[str, str]:
    """A tool's response text and the closing answer about it."""

    def value(f: str) -> Any:
        if f in ("status", "state"):
            return rng.choice(
                ["ok", "done", "sent", "confirmed", "ready", "open", "shipped", "booked", "created"]
            )
        if f in (
            "city",
            "source",
            "link",
            "headline",
            "title",
            "recipe",
            "translation",
            "song",
            "hotel",
            "file",
            "currency",
            "sky",
            "car",
            "unit",
        ):
            return rng.choice(
                [word(rng), rng.choice(CITIES), pseudo(rng), f"{word(rng)} {word(rng)}"]
            )
        if f in (
            "id",
            "booking",
            "order",
            "event",
            "ticket",
            "alarm",
            "timer",
            "flight",
            "train",
            "gate",
            "platform",
            "shelf",
        ):
            return _code(rng)
        if f in ("email",):
            return _mail(rng)
        if f in ("time", "departure", "arrival"):
            return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        return rng.choice([_num(rng), _small(rng), _float(rng)])

    subject = next((str(v) for v in args.values() if isinstance(v, str) and len(v) < 16), "")
    r = rng.random()
    fs = list(dict.fromkeys(rng.sample(t.fields, rng.randint(1, len(t.fields)))))
    if r < 0.12:
        err = rng.choice(
            [
                "not found",
                "timeout",
                "no access",
                "invalid input",
                "service down",
                "not available",
                "sold out",
            ]
        )
        text = rng.choice([json.dumps({"error": err}), f"error: {err}", f"Error: {err}"])
        return text, f"The tool failed: {err}."
    if r < 0.45:
        f = fs[0]
        v = value(f)
        unit = (
            rng.choice(["", "", " C", " m", " km", " USD", " EUR", " %", " min", " kg"])
            if isinstance(v, (int, float))
            else ""
        )
        text = rng.choice([f"{v}{unit}", f"{v}{unit}", f"{f}: {v}{unit}", f"The {f} is {v}{unit}."])
        ans = (
            f"The {f} is {v}{unit}."
            if f in text
            else f"The result{' for ' + subject if subject else ''} is {v}{unit}."
        )
        return text, ans
    obj = {f: value(f) for f in fs}
    text = json.dumps(obj) if rng.random() < 0.85 else ", ".join(f"{k}={v}" for k, v in obj.items())
    parts = [f"the {k} is {v}" for k, v in obj.items()]
    ans = (", ".join(parts[:-1]) + " and " + parts[-1]) if len(parts) > 1 else parts[0]
    return text, ans[0].upper() + ans[1:] + "."


def arg_text(v: Any) -> str:
    return json.dumps(v, ensure_ascii=False) if not isinstance(v, str) else v


def call_chain(
    req: str,
    parts: list[str],
    tools: list[Tool],
    calls: list[tuple[Tool, dict[str, Any]]],
    level: int,
) -> str:
    """The thinking before calls. If there is a choice, a line per tool: which words of the request stand in it. Then per call: the part of the
    request that asks for it, [the word that decides], the tool with its parameters, and the values."""

    def given(a: dict[str, Any]) -> str:
        return ", ".join(f"{k} = {arg_text(v)}" for k, v in a.items())

    def why(p: str, t: Tool, a: dict[str, Any]) -> str:
        word = deciding(p, t, a, tools)
        return f" [{word}]" if word else ""

    if level == 0:
        return "\n".join(f"{t.name}: {given(a)}" for t, a in calls)
    body = "\n".join(
        f"{p}{why(p, t, a)} -> {t.name}({', '.join(x.name for x in t.params)})\n{given(a)}"
        for p, (t, a) in zip(parts, calls, strict=True)
    )
    choice = table(req, tools) + "\n" if len(tools) > 1 else ""
    if level == 1:
        return f"{choice}{body}"
    if level == 2:
        return f"{choice}Calls: {len(calls)}.\n{body}"
    if level == 3:
        return f"The request: {req}\nTools: {len(tools)}.\n{choice}Calls: {len(calls)}.\n{body}"
    again = "\n".join(f"{t.name}: {given(a)}" for t, a in calls)
    return f"The request: {req}\nTools: {len(tools)}.\n{choice}Calls: {len(calls)}.\n{body}\nSo:\n{again}\nAll given values are used."


def result_chain(responses: list[str], answer: str, level: int) -> str:
    if level == 0:
        return "done"
    if level == 1:
        return "Result: " + "; ".join(responses)
    if level == 2:
        return "The tool gave: " + "; ".join(responses) + ".\nI tell the user."
    if level == 3:
        return "The tool gave: " + "; ".join(responses) + f".\nI tell the user.\nAnswer: {answer}"
    return (
        f"Results: {len(responses)}.\nThe tool gave: "
        + "; ".join(responses)
        + f".\nI tell the user.\nAnswer: {answer}\nNothing is missing."
    )

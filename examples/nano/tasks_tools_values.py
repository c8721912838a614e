"""Values of tool arguments: everything a caller must copy letter by letter, from city names to paths, codes and sentences.

Each maker takes a generator of random numbers and returns one value; a kind groups makers by what a parameter of that kind accepts.
"""

from __future__ import annotations

import random

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
    pseudo,
    word,
)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letters(r: random.Random, n: int) -> str:
    return "".join(r.choice(LETTERS) for _ in range(n))


def digits(r: random.Random, n: int) -> str:
    return str(r.randint(1, 9)) + "".join(r.choice("0123456789") for _ in range(n - 1))


def code(r: random.Random) -> str:
    return r.choice(
        [
            lambda: f"{letters(r, r.randint(1, 3))}-{digits(r, r.randint(1, 4))}",
            lambda: f"{letters(r, r.randint(1, 3))}{digits(r, r.randint(1, 4))}",
            lambda: f"{digits(r, r.randint(1, 3))}{r.choice(LETTERS)}",
            lambda: digits(r, r.randint(1, 6)),
            lambda: letters(r, 3),
            lambda: f"{letters(r, 2)}-{digits(r, 2)}-{letters(r, 1)}",
            lambda: f"{pseudo(r)}-{digits(r, 2)}",
            lambda: f"#{digits(r, r.randint(2, 5))}",
            lambda: f"v{r.randint(0, 9)}.{r.randint(0, 20)}",
            lambda: f"{r.choice(LETTERS).lower()}{r.randint(1, 99)}",
            lambda: "".join(r.choice("0123456789abcdef") for _ in range(r.choice([6, 8]))),
        ]
    )()


def title(r: random.Random) -> str:
    """Two or three words, capitalised, as names of films, shops or streets are."""
    words = [r.choice([word(r, 8), r.choice(dictionary()), r.choice(COLORS)]) for _ in range(r.choice([2, 2, 2, 3]))]
    return ("The " if r.random() < 0.1 else "") + " ".join(w.capitalize() for w in words)


def place(r: random.Random) -> str:
    k = r.random()
    if k < 0.5:
        return r.choice(CITIES)
    if k < 0.65:
        return r.choice(MANY_WORD_CITIES)
    if k < 0.8:
        return pseudo(r).capitalize()
    if k < 0.9:
        return f"{r.choice(ADJECTIVES + COLORS)} {r.choice(THINGS)}".title()
    return word(r, 9).capitalize()


def person(r: random.Random) -> str:
    k = r.random()
    return r.choice(NAMES) if k < 0.6 else f"{r.choice(NAMES)} {pseudo(r).capitalize()}" if k < 0.85 else pseudo(r).capitalize()


def thing(r: random.Random) -> str:
    k = r.random()
    if k < 0.45:
        return word(r)
    if k < 0.6:
        return r.choice(dictionary())
    if k < 0.8:
        return f"{r.choice(ADJECTIVES + COLORS)} {r.choice(THINGS + ANIMALS + FRUIT)}"
    if k < 0.9:
        return f"{word(r, 8)} {word(r, 8)}"
    return pseudo(r)


def name(r: random.Random) -> str:
    """Anything that names one thing among others."""
    return r.choices([place, person, code, title, thing], [0.2, 0.13, 0.25, 0.15, 0.27])[0](r)


def sentence(r: random.Random) -> str:
    k = r.random()
    if k < 0.4:
        return " ".join(r.choice(dictionary()) for _ in range(r.randint(2, 6)))
    if k < 0.7:
        t = f"{r.choice(['the', 'my', 'our', 'a', 'no'])} {word(r, 9)} {r.choice(['is', 'was', 'needs', 'has', 'and', 'for'])} {r.choice([word(r, 9), r.choice(NAMES), str(r.randint(2, 90))])}"
        return t[0].upper() + t[1:] if r.random() < 0.4 else t
    return r.choice([thing, title, person])(r)


def mail(r: random.Random) -> str:
    return f"{r.choice([r.choice(NAMES).lower(), pseudo(r), word(r, 7)])}@{r.choice(['example.com', 'mail.org', pseudo(r) + '.net', word(r, 7) + '.com'])}"


def path(r: random.Random) -> str:
    end = r.choice(["txt", "csv", "pdf", "png", "json", "log", "md", "zip"])
    return r.choice(
        [f"{word(r, 8)}.{end}", f"/{word(r, 6)}/{word(r, 6)}.{end}", f"{word(r, 6)}/{word(r, 6)}", f"{word(r, 6)}_{r.randint(1, 99)}.{end}", f"{pseudo(r)}.{end}"]
    )


def date(r: random.Random) -> str:
    from lexicon import MONTHS, WEEKDAYS

    k = r.random()
    if k < 0.5:
        return f"{r.randint(2019, 2032)}-{r.randint(1, 12):02d}-{r.randint(1, 28):02d}"
    if k < 0.65:
        return r.choice(["today", "tomorrow", "yesterday"])
    if k < 0.8:
        return r.choice(WEEKDAYS)
    return f"{r.choice(MONTHS)} {r.randint(1, 28)}"


def clock(r: random.Random) -> str:
    return r.choice(
        [f"{r.randint(0, 23):02d}:{r.choice(['00', '15', '30', '45', f'{r.randint(0, 59):02d}'])}", f"{r.randint(1, 12)} {r.choice(['am', 'pm'])}", f"{r.randint(1, 12)}{r.choice(['am', 'pm'])}", "noon"]
        if r.random() < 0.9
        else [f"{r.randint(1, 12)}:{r.choice(['15', '30', '45'])} {r.choice(['am', 'pm'])}"]
    )


def whole(r: random.Random) -> int:
    k = r.random()
    return r.randint(1, 12) if k < 0.4 else r.randint(13, 99) if k < 0.75 else r.randint(100, 999) if k < 0.9 else r.randint(1000, 250000)


def real(r: random.Random) -> float | int:
    k = r.random()
    if k < 0.5:
        return r.randint(1, 1999) / 10
    if k < 0.8:
        return r.randint(100, 9999) / 100
    return whole(r)


def choices(r: random.Random) -> list[str]:
    """Two to five values of an enumeration: words, or short codes."""
    n = r.choice([2, 2, 3, 3, 4, 5])
    pool = "small large medium fast slow low high normal basic premium gold silver nitrogen carbon lead solar wind gas diesel hot cold warm eco sport comfort draft final night north south east west daily weekly monthly hourly pdf csv xml json text public private open closed new used left right up down in out".split()
    k = r.random()
    if k < 0.55:
        return r.sample(pool + COLORS, n)
    if k < 0.8:
        return list(dict.fromkeys(word(r, 9) for _ in range(n)))
    if k < 0.9:
        return list(dict.fromkeys(f"{letters(r, r.randint(1, 2)).lower()}{r.randint(1, 30)}" for _ in range(n)))
    return list(dict.fromkeys(r.choice(dictionary()) for _ in range(n)))

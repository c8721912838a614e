"""Words and lists: reversing, counting, spelling, sorting. Chains spell a word letter by letter before they work on it."""
from __future__ import annotations

import random

from lexicon import (
    ADJECTIVES,
    ANIMALS,
    CITIES,
    COLORS,
    FRUIT,
    NAMES,
    THINGS,
    VERBS_PAST,
    dictionary,
    word,
)
from tasks import Item, levels, pick, weighted


def quoted(rng: random.Random, w: str) -> str:
    return rng.choice(["'{}'", '"{}"', "{}", "{}"]).format(w)


def spaced(w: str) -> str:
    return " ".join(w)


def some_word(rng: random.Random) -> str:
    r = rng.random()
    w = word(rng) if r < 0.45 else rng.choice(dictionary()) if r < 0.85 else rng.choice(NAMES) if r < 0.93 else rng.choice(CITIES)
    return w


def reverse_word(rng: random.Random) -> Item:
    w = some_word(rng)
    q = pick(rng, ["Reverse the word {w}.", "Spell {w} backwards.", "What is {w} backwards?", "Write {w} in reverse.",
                   "Reverse the letters of {w}.", "Write the word {w} backwards.", "What do you get when you reverse {w}?",
                   "Reverse: {w}", "Reverse the string {w}.", "Say {w} backwards.", "Reverse {w}.", "Turn {w} around.", "Write {w} from the last letter to the first.", "How do you write {w} backwards?", "Flip the letters of {w}.", "Write the letters of {w} in reverse order.", "What is the reverse of {w}?"], w=quoted(rng, w))
    a = w[::-1]
    steps = ", ".join(f"{i + 1}:{c}" for i, c in enumerate(w))
    back = ", ".join(f"{i + 1}:{w[i]}" for i in range(len(w) - 1, -1, -1))
    return Item("words", q, a, levels(a, spaced(a), f"{spaced(w)} -> {spaced(a)}", f"{steps}\nbackwards {back}\n{spaced(a)}",
                                      f"{spaced(a)} -> {spaced(w)}. Right.", f"reverse {spaced(w)}"), a)


def sentence(rng: random.Random, n: int) -> list[str]:
    r = rng.random()
    if r < 0.5:
        return [word(rng, 9) for _ in range(n)]
    base = ["the", rng.choice(ADJECTIVES), rng.choice(ANIMALS), rng.choice(VERBS_PAST), "the", rng.choice(COLORS), rng.choice(THINGS),
            rng.choice(["near", "behind", "under", "with"]), "a", rng.choice(ADJECTIVES), rng.choice(FRUIT), "today"]
    return base[:n]


def reverse_order(rng: random.Random) -> Item:
    ws = sentence(rng, rng.randint(2, 6))
    t = " ".join(ws)
    q = pick(rng, ["Reverse the order of the words: {t}", "Reverse the words in the sentence: {t}", "Write these words in reverse order: {t}",
                   "Put the words in reverse order: {t}", "Reverse the word order of {q}."], t=t, q=f"'{t}'")
    a = " ".join(ws[::-1])
    num = ", ".join(f"{i + 1} {w}" for i, w in enumerate(ws))
    return Item("words", q, a, levels(a, f"last is {ws[-1]}", num, f"{num}\nbackwards: " + ", ".join(f"{i + 1} {ws[i]}" for i in range(len(ws) - 1, -1, -1)),
                                      f"first is {ws[-1]}, last is {ws[0]}. Right.", f"reverse the {len(ws)} words"), a)


def count_words(rng: random.Random) -> Item:
    ws = sentence(rng, rng.randint(2, 11))
    t = " ".join(ws)
    if rng.random() < 0.4:
        t = t[0].upper() + t[1:] + "."
    q = pick(rng, ["How many words are in: {t}", "Count the words: {t}", "How many words does this sentence have? {t}", "How many words are in '{t}'?",
                   "Count the words in the sentence: {t}", "How many words are there in \"{t}\"?", "Count the number of words in this text: {t}"], t=t)
    a = str(len(ws))
    num = ", ".join(f"{w} {i + 1}" for i, w in enumerate(ws))
    return Item("words", q, a, levels(a, ", ".join(str(i + 1) for i in range(len(ws))), num, num.replace(", ", "\n"),
                                      f"last word {ws[-1]} is number {a}. Right.", "count the words"), len(ws), len(ws) <= 2)


def count_letters(rng: random.Random) -> Item:
    w = some_word(rng)
    q = pick(rng, ["How many letters are in {w}?", "How many letters does the word {w} have?", "Count the letters in {w}.", "What is the length of the word {w}?",
                   "How long is the word {w}?", "How many characters are in {w}?", "Count the letters of the word {w}.", "How many letters does {w} have?", "What is the number of letters in {w}?", "How many letters are there in {w}?", "Tell me the length of {w}."], w=quoted(rng, w))
    a = str(len(w))
    num = ", ".join(f"{c} {i + 1}" for i, c in enumerate(w))
    return Item("words", q, a, levels(a, spaced(w), num, f"{spaced(w)}\n{num}", f"last letter {w[-1]} is number {a}. Right.", f"count {spaced(w)}"), len(w))


def count_letter(rng: random.Random) -> Item:
    w = some_word(rng).lower()
    c = rng.choice(w) if rng.random() < 0.85 else rng.choice("abcdefghijklmnopqrstuvwxyz")
    if rng.random() < 0.35:
        c = max(w, key=w.count)
    q = pick(rng, ["How many times does the letter {c} appear in {w}?", "How many {c}'s are in {w}?", "Count the letter {c} in {w}.",
                   "How many {c} are in the word {w}?", "How often does {c} occur in {w}?", "How many letters {c} are there in {w}?",
                   "Count how many times '{c}' occurs in {w}.", "How many times is {c} in {w}?", "How many times does {w} contain the letter {c}?", "How often is the letter {c} used in {w}?", "What is the number of {c}'s in {w}?"], c=c, w=quoted(rng, w))
    n, out = 0, []
    for ch in w:
        n += ch == c
        out.append(f"{ch} {n}")
    a = str(n)
    only = spaced(w.replace(c, c.upper()))
    return Item("words", q, a, levels(a, only, ", ".join(out), f"{spaced(w)}\n{', '.join(out)}", f"{only}: {a}. Right.", f"count {c} in {spaced(w)}"), n)


def nth_letter(rng: random.Random) -> Item:
    w = some_word(rng)
    r = rng.randint(0, 2)
    names = ["first", "second", "third", "fourth", "fifth", "sixth"]
    if r == 0:
        i, name = 0, "first"
    elif r == 1:
        i, name = len(w) - 1, "last"
    else:
        i = rng.randint(0, min(5, len(w) - 1))
        name = names[i]
    q = pick(rng, ["What is the {n} letter of {w}?", "Which letter comes {n} in {w}?", "What is the {n} letter in the word {w}?", "Give the {n} letter of {w}."],
             n=name, w=quoted(rng, w))
    a = w[i]
    num = ", ".join(f"{c} {k + 1}" for k, c in enumerate(w))
    return Item("words", q, a, levels(a, spaced(w), num, f"{spaced(w)}\n{num}\n{name} is {a}", f"number {i + 1} is {a}. Right.", f"{name} letter of {w}"), a, r == 0)


def case_item(rng: random.Random) -> Item:
    w = some_word(rng)
    r = rng.randint(0, 3)
    if r == 0:
        q, a = pick(rng, ["Write {w} in capital letters.", "Convert {w} to uppercase.", "Uppercase the word {w}.", "Write {w} in upper case."], w=w), w.upper()
    elif r == 1:
        q, a = pick(rng, ["Write {w} in lower case.", "Convert {w} to lowercase.", "Write {w} in small letters."], w=w.upper()), w.lower()
    elif r == 2:
        q, a = pick(rng, ["Spell the word {w}.", "Spell {w} with dashes.", "Spell {w} letter by letter with dashes."], w=w), "-".join(w)
    else:
        n = rng.randint(2, 5)
        q, a = pick(rng, ["Repeat the word {w} {n} times.", "Say {w} {n} times.", "Write {w} {n} times."], w=w, n=n), " ".join([w] * n)
    return Item("words", q, a, levels(a, spaced(w), f"{spaced(w)} -> {a}", f"The word is {w}.\n{spaced(w)} -> {a}", f"{a}. Right.", q), a, r == 3)


def sort_numbers(rng: random.Random) -> Item:
    n = rng.randint(3, 7)
    top = rng.choice([9, 20, 99, 99, 999])
    xs = [rng.randint(0, top) for _ in range(n)]
    down = rng.random() < 0.3
    sep = rng.choice([", ", ", ", " "])
    t = sep.join(map(str, xs)) if rng.random() < 0.7 else ", ".join(map(str, xs[:-1])) + f" and {xs[-1]}"
    if rng.random() < 0.15:
        t = f"[{', '.join(map(str, xs))}]"
    if down:
        q = pick(rng, ["Sort these numbers from largest to smallest: {t}", "Sort in descending order: {t}", "Put these numbers in descending order: {t}",
                       "Order from high to low: {t}", "Sort {t} from largest to smallest.", "Sort {t}, largest first.", "Put {t} in descending order.", "Order {t} from highest to lowest.", "Arrange {t} from big to small.", "Sort the numbers {t} in descending order.", "Sort {t} from high to low.", "List {t} in decreasing order."], t=t)
    else:
        q = pick(rng, ["Sort these numbers: {t}", "Sort from smallest to largest: {t}", "Sort in ascending order: {t}", "Put these numbers in order: {t}",
                       "Arrange in increasing order: {t}", "Sort the list {t}.", "Order these numbers from low to high: {t}", "Sort: {t}", "Sort {t}.", "Sort {t} from smallest to largest.", "Sort {t}, smallest first.", "Put {t} in ascending order.", "Put {t} in order, lowest first.", "Order {t} from lowest to highest.", "Arrange {t} from small to big.", "Sort the numbers {t} in ascending order.", "Sort the list {t} from low to high.", "List {t} in increasing order."], t=t)
    ys = sorted(xs, reverse=down)
    a = ", ".join(map(str, ys))
    steps, left = [], list(xs)
    for y in ys[:-1]:
        left.remove(y)
        steps.append(f"{y}; left {' '.join(map(str, left))}")
    w = "largest" if down else "smallest"
    return Item("sort", q, a, levels(a, f"{w} {ys[0]}", "\n".join(steps), "\n".join(f"{w} of the rest: {s}" for s in steps),
                                     f"{len(xs)} numbers in, {len(ys)} out, starts {ys[0]}, ends {ys[-1]}. Right.", q), ys)


def sort_words(rng: random.Random) -> Item:
    n = rng.randint(3, 6)
    pool = rng.choice([FRUIT, ANIMALS, NAMES, CITIES, COLORS, None])
    ws = [word(rng, 8) for _ in range(n)] if pool is None else rng.sample(pool, n)
    ws = list(dict.fromkeys(ws))
    t = rng.choice([", ", ", ", " "]).join(ws) if rng.random() < 0.7 else ", ".join(ws[:-1]) + f" and {ws[-1]}"
    q = pick(rng, ["Sort these words alphabetically: {t}", "Put these words in alphabetical order: {t}", "Sort alphabetically: {t}",
                   "Arrange in alphabetical order: {t}", "Sort the words {t}.", "Order these words from A to Z: {t}", "Alphabetize: {t}", "Sort {t} alphabetically.", "Put {t} in alphabetical order.", "List {t} in alphabetical order.", "Order {t} from A to Z.", "Arrange {t} alphabetically.", "Sort the names {t} alphabetically.", "List these alphabetically: {t}", "Sort the following words: {t}"], t=t)
    ys = sorted(ws, key=str.lower)
    a = ", ".join(ys)
    steps, left = [], list(ws)
    for y in ys[:-1]:
        left.remove(y)
        steps.append(f"{y}; left {' '.join(left)}")
    heads = ", ".join(f"{w[:2].lower()} {w}" for w in ws)
    return Item("sort", q, a, levels(a, ", ".join(w[:2].lower() for w in ws), f"{heads}\n" + "\n".join(steps),
                                     f"Starts: {heads}\n" + "\n".join(f"first of the rest: {s}" for s in steps),
                                     f"{', '.join(w[:2].lower() for w in ys)}. Right.", q), ys)


def longest(rng: random.Random) -> Item:
    ws = list(dict.fromkeys(word(rng) for _ in range(rng.randint(2, 4))))
    short = rng.random() < 0.3
    key = sorted(ws, key=len, reverse=not short)
    if len(ws) < 2 or len(key[0]) == len(key[1]):
        return longest(rng)
    w = "shortest" if short else "longest"
    q = pick(rng, ["Which word is the {w}: {t}?", "What is the {w} word: {t}?", "Find the {w} word in this list: {t}"], w=w, t=", ".join(ws))
    a = key[0]
    num = ", ".join(f"{x} {len(x)}" for x in ws)
    return Item("words", q, a, levels(a, num, "\n".join(f"{spaced(x)}: {len(x)}" for x in ws), "\n".join(f"{x}: {', '.join(f'{c} {i + 1}' for i, c in enumerate(x))}" for x in ws),
                                      num + ". Right.", q), a)


def membership(rng: random.Random) -> Item:
    ws = list(dict.fromkeys(word(rng, 8) for _ in range(rng.randint(3, 6))))
    r = rng.random()
    t = ", ".join(ws)
    if r < 0.5:
        a = str(len(ws))
        q = pick(rng, ["How many items are in this list: {t}?", "Count the items: {t}", "How many words are in the list {t}?"], t=t)
        num = ", ".join(f"{w} {i + 1}" for i, w in enumerate(ws))
        return Item("words", q, a, levels(a, ", ".join(str(i + 1) for i in range(len(ws))), num, num.replace(", ", "\n"), f"{ws[-1]} is number {a}. Right.", q), len(ws))
    i = rng.randint(0, len(ws) - 1)
    name = ["first", "second", "third", "fourth", "fifth", "sixth"][i]
    if rng.random() < 0.3:
        i, name = len(ws) - 1, "last"
    a = ws[i]
    q = pick(rng, ["What is the {n} word in the list {t}?", "Which item is {n} in: {t}?", "Give the {n} word: {t}"], n=name, t=t)
    num = ", ".join(f"{i + 1} {w}" for i, w in enumerate(ws))
    return Item("words", q, a, levels(a, name, num, num.replace(", ", "\n"), f"{name} is {a}. Right.", q), a)


def count_up(rng: random.Random) -> Item:
    lo = rng.randint(0, 30)
    hi = lo + rng.randint(2, 14)
    down = rng.random() < 0.25
    step = 1 if rng.random() < 0.8 else 2
    xs = list(range(lo, hi + 1, step))
    if down:
        xs = xs[::-1]
        step_text = "" if step == 1 else " by twos"
        q = pick(rng, ["Count down from {a} to {b}{s}.", "Count backwards from {a} to {b}{s}."], a=xs[0], b=xs[-1], s=step_text)
    elif lo == 1 and rng.random() < 0.5:
        q = pick(rng, ["Count to {b}{s}."], b=xs[-1], s="" if step == 1 else " by twos")
    else:
        q = pick(rng, ["Count from {a} to {b}{s}.", "List the numbers from {a} to {b}{s}."], a=xs[0], b=xs[-1], s="" if step == 1 else " by twos")
    a = ", ".join(map(str, xs))
    return Item("words", q, a, levels(a, f"{len(xs)} numbers", f"From {xs[0]} to {xs[-1]}, step {step}.", f"The first is {xs[0]}, the last is {xs[-1]}, step {step}.", f"{len(xs)} numbers. Right.", q), xs)


def vowels(rng: random.Random) -> Item:
    w = some_word(rng).lower()
    cons = rng.random() < 0.25
    kind = "consonants" if cons else "vowels"
    q = pick(rng, ["How many {k} are in the word {w}?", "How many {k} does {w} have?", "Count the {k} in {w}.", "How many {k} are there in {w}?", "What is the number of {k} in {w}?"], k=kind, w=quoted(rng, w))
    n, out = 0, []
    for ch in w:
        n += (ch in "aeiou") != cons
        out.append(f"{ch} {n}")
    a = str(n)
    only = " ".join(ch for ch in w if (ch in "aeiou") != cons)
    return Item("words", q, a, levels(a, only, ", ".join(out), f"The vowels are a e i o u.\n{spaced(w)}\n{', '.join(out)}", f"{only}: {a}. Right.", f"count {kind} in {spaced(w)}"), n)


WORDS = [(0.9, vowels), (0.5, count_up), (3.0, reverse_word), (1.0, reverse_order), (1.4, count_words), (1.6, count_letters), (1.6, count_letter), (0.8, nth_letter),
         (0.7, case_item), (2.2, sort_numbers), (2.4, sort_words), (0.6, longest), (0.6, membership)]


def words_item(rng: random.Random) -> Item:
    return weighted(rng, WORDS)

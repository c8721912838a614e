"""Story problems put together from parts: who has what, what happens, what is asked. Wide in wording, narrow in arithmetic."""
from __future__ import annotations

import random
from collections.abc import Callable

from lexicon import ANIMALS, COUNTABLE, FRUIT, NAMES, THINGS, number_words
from tasks import Item, levels
from tasks_math import add_work, div_work, integer, mul_work, sub_work

MONEY = ["dollars", "euros", "pounds", "coins", "cents"]
GAIN = ["buys {n} more", "finds {n} more", "gets {n} more", "picks {n} more", "receives {n}", "wins {n}", "collects {n} more", "gets {n} from {o}", "receives {n} from {o}", "adds {n}",
        "is given {n} more", "makes {n} more", "takes {n} from a box", "earns {n}", "picks up {n}", "borrows {n} from {o}"]
LOSE = ["gives away {n}", "loses {n}", "sells {n}", "gives {n} to {o}", "uses {n}", "throws away {n}", "lends {n} to {o}", "drops {n}", "donates {n}", "gives {o} {n}", "hands {n} to {o}", "spends {n}",
        "leaves {n} at home", "breaks {n}", "eats {n}", "pays {n}"]
PAST = {"buys": "bought", "finds": "found", "gets": "got", "picks": "picked", "receives": "received", "wins": "won", "collects": "collected", "adds": "added", "is": "was", "makes": "made", "takes": "took",
        "earns": "earned", "borrows": "borrowed", "gives": "gave", "loses": "lost", "sells": "sold", "uses": "used", "throws": "threw", "lends": "lent", "drops": "dropped", "donates": "donated",
        "hands": "handed", "spends": "spent", "leaves": "left", "breaks": "broke", "eats": "ate", "pays": "paid", "has": "had"}
ITEM = ["book", "hat", "coat", "pair of shoes", "cake", "lamp", "ball", "melon", "pizza", "coffee", "ticket", "pen", "bag", "chair", "toy", "shirt", "phone case", "sandwich", "watch"]


def say(rng: random.Random, n: int) -> str:
    return number_words(n) if n < 100 and rng.random() < 0.1 else str(n)


def past(s: str) -> str:
    head, _, rest = s.partition(" ")
    return f"{PAST[head]} {rest}"


def plural(rng: random.Random) -> str:
    r = rng.random()
    return rng.choice(COUNTABLE) if r < 0.55 else rng.choice(MONEY) if r < 0.7 else rng.choice(THINGS + FRUIT) + "s" if r < 0.85 else rng.choice(ANIMALS).replace("mouse", "cat").replace("fox", "dog").replace("wolf", "hen").replace("goose", "duck").replace("sheep", "cow") + "s"


def steps_item(q: str, first: int, ops: list[tuple[str, int]]) -> Item:
    """Running total over additions and subtractions."""
    total, mid, long = first, [], []
    for op, n in ops:
        work: Callable[[int, int, int], str] = add_work if op == "+" else sub_work
        mid.append(work(total, n, 0))
        long.append(work(total, n, 1))
        total = total + n if op == "+" else total - n
    a = str(total)
    return Item("arith", q, a, levels(a, mid[-1], ", ".join(mid) + f" -> {a}", f"Start with {first}.\n" + "\n".join(long), ", ".join(mid) + ". Right.", q), total)


def running(rng: random.Random) -> Item:
    w, o = rng.sample(NAMES, 2)
    t = plural(rng)
    then = rng.random() < 0.5
    start = integer(rng, 3) + rng.randint(1, 20)
    k = rng.choices([1, 2, 3], [0.6, 0.3, 0.1])[0]
    total, ops, said = start, [], []
    for _ in range(k):
        if rng.random() < 0.5 and total > 2:
            n = rng.randint(1, total - 1)
            ops.append(("-", n))
            said.append(rng.choice(LOSE).format(n=say(rng, n), o=o))
            total -= n
        else:
            n = integer(rng, 3 if rng.random() < 0.4 else 2)
            ops.append(("+", n))
            said.append(rng.choice(GAIN).format(n=say(rng, n), o=o))
            total += n
    said = [past(s) for s in said] if then else said
    has = rng.choice(["had", "started with", "owned"]) if then else rng.choice(["has", "owns", "starts with"])
    lead = rng.choice([f"{w} {has} {say(rng, start)} {t}", f"{w} {has} {say(rng, start)} {t} in a bag", f"In the morning {w} {has} {say(rng, start)} {t}", f"{w} {has} exactly {say(rng, start)} {t}"])
    p = rng.choice([w, w, "He", "She", "Then he", "Then she", f"Then {w}", f"Later {w}"])
    if k == 1 and rng.random() < 0.5:
        text = f"{lead} and {said[0]}."
    elif rng.random() < 0.5:
        text = f"{lead}. {p} {', '.join(said[:-1]) + ' and ' if k > 1 else ''}{said[-1]}."
    else:
        text = f"{lead}. {p} {said[0]}." + "".join(f" {rng.choice(['Then', 'After that', 'Next', 'Later'])} {rng.choice(['he', 'she', w])} {s}." for s in said[1:])
    ends = [f"How many {t} does {w} have now?", f"How many {t} are left?", f"How many {t} does {w} have in the end?", f"How many {t} remain?", f"How many {t} is that?", "How many are there now?",
            f"How many {t} does {w} have left?", f"What is the number of {t} now?", f"How many {t} did {w} end up with?", f"How many {t} are there at the end?"]
    if t in MONEY:
        ends += [f"How much money does {w} have left?", f"How much money does {w} have now?", f"How many {t} are left?", "How much is left?"]
    return steps_item(f"{text} {rng.choice(ends)}", start, ops)


def first_person(rng: random.Random) -> Item:
    t = plural(rng)
    start = integer(rng, 3) + 5
    lose = rng.random() < 0.6
    n = rng.randint(1, start - 1) if lose else integer(rng, 3)
    a, b = say(rng, start), say(rng, n)
    if lose:
        q = rng.choice([f"I have {a} {t} and use {b}. How many are left?", f"If I have {a} {t} and give away {b}, how many do I have left?", f"I had {a} {t}. I lost {b}. How many do I still have?",
                        f"There are {a} {t}. Take away {b}. How many remain?", f"Out of {a} {t}, {b} are broken. How many are fine?", f"A shop has {a} {t} and sells {b}. How many are left in the shop?",
                        f"A book has {a} pages and I have read {b}. How many pages are left?", f"A bus carries {a} people. At a stop {b} get off. How many people stay on the bus?",
                        f"The way is {a} km long. I have walked {b} km. How far is it still?", f"I need {a} {t} and have {b}. How many more do I need?", f"Of {a} students, {b} are absent. How many are present?",
                        f"A tank holds {a} liters. {b} liters leak out. How many liters are left?", f"All but {b} of {a} {t} were sold. How many were sold?", f"I am saving for {a} dollars and already have {b}. How much is missing?"])
        return steps_item(q, start, [("-", n)])
    q = rng.choice([f"I have {a} {t} and buy {b} more. How many do I have?", f"If I have {a} {t} and get {b} more, how many do I have?", f"There are {a} {t} on the table and {b} on the floor. How many are there in total?",
                    f"A bus carries {a} people and {b} more get on. How many people are on the bus?", f"I walked {a} km yesterday and {b} km today. How far did I walk altogether?", f"One bag weighs {a} g and the other {b} g. How heavy are they together?",
                    f"There are {a} boys and {b} girls in a school. How many children are there?", f"I paid {a} dollars for the hotel and {b} dollars for food. How much did I spend in total?", f"A farmer has {a} cows and {b} sheep. How many animals is that altogether?",
                    f"In the first hour {a} people came, in the second hour {b}. How many people came?"])
    return steps_item(q, start, [("+", n)])


def two_people(rng: random.Random) -> Item:
    w, o = rng.sample(NAMES, 2)
    t = plural(rng)
    a, b = integer(rng, 3), integer(rng, 3)
    r = rng.random()
    lead = rng.choice([f"{w} has {a} {t} and {o} has {b}.", f"{w} has {a} {t}. {o} has {b} {t}.", f"{w} found {a} {t} and {o} found {b}.", f"{w} owns {a} {t}, {o} owns {b}."])
    if r < 0.45:
        return steps_item(f"{lead} " + rng.choice(["How many do they have together?", f"How many {t} do they have in total?", f"How many {t} is that altogether?", "How many do both have?", "What is the total?"]), a, [("+", b)])
    if a < b:
        w, o, a, b = o, w, b, a
        lead = rng.choice([f"{w} has {a} {t} and {o} has {b}.", f"{o} has {b} {t} and {w} has {a}."])
    if a == b:
        a += 1
        lead = f"{w} has {a} {t} and {o} has {b}."
    if r < 0.8:
        return steps_item(f"{lead} " + rng.choice([f"How many more does {w} have?", f"How many more {t} does {w} have than {o}?", f"How many fewer does {o} have?", "What is the difference?"]), a, [("-", b)])
    k = rng.randint(1, 60)
    if rng.random() < 0.5:
        return steps_item(f"{w} has {a} {t}. {o} has {k} more than {w}. How many does {o} have?", a, [("+", k)])
    k = rng.randint(1, max(1, a - 1))
    return steps_item(f"{w} has {a} {t}. {o} has {k} fewer. How many {t} does {o} have?", a, [("-", k)])


def groups(rng: random.Random) -> Item:
    w = rng.choice(NAMES)
    t = plural(rng)
    n, each = rng.randint(2, 20), integer(rng, 2 if rng.random() < 0.8 else 3)
    v = n * each
    box = rng.choice(["boxes", "bags", "rows", "packs", "shelves", "baskets", "tables", "groups", "drawers", "crates"])
    thing = rng.choice(ITEM)
    if rng.random() < 0.6:
        q = rng.choice([f"{w} has {n} {box} with {each} {t} each. How many {t} are there?", f"There are {n} {box} of {each} {t}. How many {t} is that in total?", f"Each of {n} {box} holds {each} {t}. How many {t} are there altogether?",
                        f"A {thing} costs {each} dollars. How much do {n} of them cost?", f"I buy {n} {t} for {each} dollars each. How much do I pay?", f"One {thing} costs {each} euros. What is the price of {n}?",
                        f"{w} earns {each} dollars an hour and works {n} hours. How much does {w} earn?", f"{w} reads {each} pages a day. How many pages is that in {n} days?", f"A train goes {each} km per hour. How far does it go in {n} hours?",
                        f"{w} runs {each} minutes every day for {n} days. How many minutes is that?", f"If one box holds {each} {t}, how many do {n} boxes hold?", f"{n} friends pay {each} dollars each. How much is that together?"])
        s = mul_work(n, each, 1)
        a = str(v)
        return Item("arith", q, a, levels(a, f"{n}*{each}={v}", f"{s} -> {a}", f"{n} times {each}.\n{mul_work(n, each, 2)}", f"{v}/{n}={each}. Right.", q), v)
    q = rng.choice([f"{v} {t} are shared equally by {n} children. How many does each get?", f"{w} puts {v} {t} into {n} {box} equally. How many are in each?", f"{w} has {v} {t} and packs them in {box} of {n}. How many {box} are needed?",
                    f"{n} {t} cost {v} dollars. How much is one?", f"{w} drives {v} km in {n} hours. How many km per hour is that?", f"If {n} friends split a bill of {v} dollars, what does each pay?", f"{v} dollars are divided among {n} people. How much does each get?",
                    f"{w} reads a book of {v} pages in {n} days. How many pages a day is that?"])
    a = str(each)
    s = div_work(v, n)
    return Item("arith", q, a, levels(a, f"{v}/{n}={a}", f"{s} -> {a}", f"{v} by {n}.\n" + s.replace(", ", "\n"), f"{each}*{n}={v}. Right.", q), each)


def shopping(rng: random.Random) -> Item:
    w = rng.choice(NAMES)
    t, u = rng.sample(COUNTABLE, 2)
    n, p = rng.randint(2, 12), rng.randint(1, 25)
    m, r = rng.randint(2, 9), rng.randint(1, 25)
    cur = rng.choice(["dollars", "euros"])
    one = rng.choice(ITEM)
    kind = rng.randint(0, 2)
    who = rng.choice([f"{w} buys", "I bought", f"{w} bought", "I buy"])
    if kind == 0:
        v = n * p + r
        q = f"{who} {n} {t} at {p} {cur} each and a {one} for {r} {cur}."
        s = f"{n}*{p}={n * p}, {n * p}+{r}={v}"
    elif kind == 1:
        v = n * p + m * r
        q = f"{who} {n} {t} for {p} {cur} each and {m} {u} for {r} {cur} each."
        s = f"{n}*{p}={n * p}, {m}*{r}={m * r}, {n * p}+{m * r}={v}"
    else:
        v = p + r + m
        q = f"{who} a {one} for {p} {cur}, a {rng.choice(ITEM)} for {r} {cur} and a {rng.choice(ITEM)} for {m} {cur}."
        s = f"{p}+{r}={p + r}, {p + r}+{m}={v}"
    if rng.random() < 0.3:
        pay = v + rng.randint(1, 60)
        q += " " + rng.choice([f"How much change is there from {pay} {cur}?", f"What is the change from {pay} {cur}?", f"How much is left of {pay} {cur}?"])
        s += f", {pay}-{v}={pay - v}"
        v = pay - v
    else:
        q += " " + rng.choice(["How much is that in total?", "What is the total?", "How much is it altogether?", "What does it cost in all?", "How much money was spent?", "What is the price of everything?"])
    a = str(v)
    return Item("arith", q, a, levels(a, s.rsplit(", ", 1)[-1], f"{s} -> {a}", "Prices first.\n" + s.replace(", ", "\n"), f"{s}. Right.", q), v)


def ages(rng: random.Random) -> Item:
    w, o = rng.sample(NAMES, 2)
    a, k = rng.randint(4, 80), rng.randint(1, 30)
    r = rng.randint(0, 4)
    if r == 0:
        return steps_item(rng.choice([f"{w} is {a} years old. How old will {w} be in {k} years?", f"{w} is {a}. What age will {w} have in {k} years?"]), a, [("+", k)])
    if r == 1 and a > k:
        return steps_item(rng.choice([f"{w} is {a} years old. How old was {w} {k} years ago?", f"{w} is {a} now. What was the age {k} years ago?"]), a, [("-", k)])
    if r == 2:
        return steps_item(rng.choice([f"{w} is {a} years old and {o} is {k} years older. How old is {o}?", f"{o} is {k} years older than {w}. {w} is {a}. How old is {o}?"]), a, [("+", k)])
    if r == 3 and a > k:
        return steps_item(rng.choice([f"{w} is {a} and {o} is {k} years younger. How old is {o}?", f"{o} is {k} years younger than {w}, who is {a}. How old is {o}?"]), a, [("-", k)])
    y = rng.randint(1930, 2015)
    return steps_item(rng.choice([f"{w} was born in {y}. How old is {w} in {y + a}?", f"A house was built in {y}. How old is it in {y + a}?", f"{w} was born in {y}. What age did {w} reach in {y + a}?"]), y + a, [("-", y)])


STORIES = [(3.0, running), (3.0, first_person), (1.6, two_people), (2.4, groups), (1.6, shopping), (0.9, ages)]


def story_item(rng: random.Random) -> Item:
    return rng.choices([f for _, f in STORIES], [w for w, _ in STORIES])[0](rng)

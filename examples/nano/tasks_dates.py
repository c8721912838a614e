"""Date and clock arithmetic. Chains carry days over month ends one month at a time."""
from __future__ import annotations

import random
from datetime import date, timedelta

from lexicon import MONTH_DAYS, MONTHS, WEEKDAYS
from tasks import Item, levels, pick, weighted


def leap(y: int) -> bool:
    return y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)


def month_days(y: int | None, m: int) -> int:
    return 29 if m == 2 and y is not None and leap(y) else MONTH_DAYS[m - 1]


def _write(rng: random.Random, y: int | None, m: int, d: int, style: int) -> str:
    if style == 0:
        return f"{MONTHS[m - 1]} {d}" + (f", {y}" if y else "")
    if style == 1:
        return f"{d} {MONTHS[m - 1]}" + (f" {y}" if y else "")
    return f"{y or 2023:04d}-{m:02d}-{d:02d}"


def add_days(rng: random.Random) -> Item:
    style = rng.choice([0, 0, 1, 2])
    y = rng.randint(1990, 2035) if style == 2 or rng.random() < 0.4 else None
    m = rng.randint(1, 12)
    d = rng.randint(1, month_days(y, m))
    n = rng.choice([rng.randint(1, 14), rng.randint(1, 31), rng.randint(20, 90)])
    unit, k = ("days", n)
    if rng.random() < 0.2:
        w = rng.randint(1, 8)
        unit, k, n = "weeks", w, 7 * w
    back = rng.random() < 0.3
    step = -n if back else n
    end = date(y or 2023, m, d) + timedelta(days=step)
    if y is None and (end.year != 2023 or (m <= 2 < end.month) or (end.month <= 2 < m)) and rng.random() < 0.7:
        return add_days(rng)
    ey = y + (end.year - y) if y else None
    a = _write(rng, ey, end.month, end.day, style)
    src = _write(rng, y, m, d, style)
    ks = f"{k} {unit if k != 1 else unit[:-1]}"
    if back:
        q = pick(rng, ["What date is {k} before {s}?", "What is the date {k} before {s}?", "Which date was {k} before {s}?", "Subtract {k} from {s}. What date is it?", "It is {s}. What was the date {k} ago?", "Today is {s}. What date was it {k} ago?", "What is {s} minus {k}?", "{k} before {s} is which date?"], k=ks, s=src)
    else:
        q = pick(rng, ["What date is {k} after {s}?", "What is the date {k} after {s}?", "Which date comes {k} after {s}?", "Add {k} to {s}. What date is it?",
                       "Today is {s}. What is the date in {k}?", "If today is {s}, what date will it be in {k}?", "What day is {k} after {s}?", "It is {s}. What date is it in {k}?", "It's {s} today. What is the date in {k}?", "Starting on {s}, what is the date {k} later?", "What is {s} plus {k}?", "What date do we have {k} after {s}?", "My holiday starts on {s} and lasts {k}. When does it end?", "{k} from {s} is which date?", "Today's date is {s}. What will the date be in {k}?", "An event on {s} is moved back by {k}. What is the new date?", "A package sent on {s} arrives {k} later. On which date does it arrive?"], k=ks, s=src)
    steps = [f"{k}*7={n}"] if unit == "weeks" else []
    cy, cm, cur = y or 2023, m, d
    if back:
        steps.append(f"{cur}-{n}={cur - n}")
        cur -= n
        while cur < 1:
            cm -= 1
            if cm == 0:
                cm, cy = 12, cy - 1
            md = month_days(cy, cm)
            steps.append(f"{MONTHS[cm - 1]} has {md}: {cur}+{md}={cur + md}")
            cur += md
    else:
        steps.append(f"{cur}+{n}={cur + n}")
        cur += n
        while cur > month_days(cy, cm):
            md = month_days(cy, cm)
            steps.append(f"{MONTHS[cm - 1]} has {md}: {cur}-{md}={cur - md}")
            cur -= md
            cm += 1
            if cm == 13:
                cm, cy = 1, cy + 1
    body = ", ".join(steps)
    fin = f"{MONTHS[end.month - 1]} {end.day}"
    return Item("dates", q, a, levels(a, fin, f"{body} -> {fin}", f"Start {MONTHS[m - 1]} {d}.\n" + body.replace(", ", "\n") + f"\n{fin}",
                                      f"{fin} is {n} days {'before' if back else 'after'} {MONTHS[m - 1]} {d}. Right.", q), a)


def between(rng: random.Random) -> Item:
    m = rng.randint(1, 12)
    d = rng.randint(1, MONTH_DAYS[m - 1])
    gap = rng.choice([0, 0, 1, 1, 2])
    m2 = min(12, m + gap)
    d2 = rng.randint(1, MONTH_DAYS[m2 - 1])
    if (m2, d2) <= (m, d) or (m <= 2 < m2):
        return between(rng)
    y = rng.choice([None, None, 2023, 2025])
    style = rng.choice([0, 0, 1]) if y is None else rng.choice([0, 2])
    v = (date(2023, m2, d2) - date(2023, m, d)).days
    q = pick(rng, ["How many days are between {a} and {b}?", "How many days are there from {a} to {b}?", "How many days is it from {a} until {b}?",
                   "What is the number of days between {a} and {b}?", "How many days after {a} is {b}?", "How many days pass from {a} to {b}?", "It is {a}. How many days are left until {b}?", "Today is {a}. How many days is it until {b}?", "How long is it from {a} to {b} in days?", "How many days separate {a} and {b}?", "How far apart are {a} and {b} in days?"],
             a=_write(rng, y, m, d, style), b=_write(rng, y, m2, d2, style))
    if m == m2:
        s = f"{d2}-{d}={v}"
    else:
        left = MONTH_DAYS[m - 1] - d
        s = f"{MONTHS[m - 1]} has {MONTH_DAYS[m - 1]}: {MONTH_DAYS[m - 1]}-{d}={left}"
        tot = left
        for k in range(m + 1, m2):
            s += f", {MONTHS[k - 1]} {MONTH_DAYS[k - 1]}: {tot}+{MONTH_DAYS[k - 1]}={tot + MONTH_DAYS[k - 1]}"
            tot += MONTH_DAYS[k - 1]
        s += f", {tot}+{d2}={v}"
    a = str(v)
    return Item("dates", q, a, levels(a, f"{v} days", s, f"From {MONTHS[m - 1]} {d} to {MONTHS[m2 - 1]} {d2}.\n" + s.replace(", ", "\n"), f"{v} days. Right.", q), v)


def weekday(rng: random.Random) -> Item:
    i = rng.randint(0, 6)
    n = rng.choice([rng.randint(1, 10), rng.randint(1, 100)])
    back = rng.random() < 0.25
    j = (i - n if back else i + n) % 7
    w = WEEKDAYS[i]
    a = WEEKDAYS[j]
    if rng.random() < 0.15:
        n, back = 1, rng.random() < 0.5
        a = WEEKDAYS[(i - 1 if back else i + 1) % 7]
        q = pick(rng, ["What day comes {r} {w}?", "Which day is {r} {w}?"], r="before" if back else "after", w=w)
        return Item("dates", q, a, levels(a, w, f"{w} -> {a}", f"Days: {', '.join(WEEKDAYS)}.\n{w} -> {a}", f"{a}. Right.", q), a, True)
    ds = f"{n} day{'s' if n > 1 else ''}"
    q = (pick(rng, ["What day of the week is {n} before {w}?", "Today is {w}. What day was it {n} ago?", "Which weekday is {n} before {w}?"], n=ds, w=w) if back
         else pick(rng, ["What day of the week is {n} after {w}?", "Today is {w}. What day is it in {n}?", "If today is {w}, what day will it be in {n}?",
                         "Which weekday comes {n} after {w}?", "What day is {n} after {w}?", "It is {w}. Which day is it in {n}?", "It's {w} today. What day comes {n} later?", "{n} after {w} is what day?", "Starting from {w}, what weekday is it {n} later?", "If it is {w} now, which weekday is it after {n}?"], n=ds, w=w))
    r = n % 7
    step = -1 if back else 1
    walk = [WEEKDAYS[(i + step * k) % 7] for k in range(r + 1)]
    mod = f"{n}/7={n // 7} r {r}"
    return Item("dates", q, a, levels(a, mod, f"{mod}, " + " -> ".join(walk), f"A week has 7 days.\n{mod}\n" + "\n".join(f"{k}: {x}" for k, x in enumerate(walk)),
                                      f"{n // 7} weeks and {r} days. Right.", q), a)


def months(rng: random.Random) -> Item:
    i = rng.randint(0, 11)
    r = rng.random()
    if r < 0.45:
        n = rng.randint(1, 14)
        back = rng.random() < 0.3
        j = (i - n if back else i + n) % 12
        a = MONTHS[j]
        ms = f"{n} month{'s' if n > 1 else ''}"
        q = pick(rng, ["Which month is {n} {r} {m}?", "What month comes {n} {r} {m}?", "What month is {n} {r} {m}?"], n=ms, m=MONTHS[i], r="before" if back else "after")
        t = i + 1 - n if back else i + 1 + n
        s = f"{MONTHS[i]} is {i + 1}, {i + 1}{'-' if back else '+'}{n}={t}"
        while not 1 <= t <= 12:
            u = t + 12 if t < 1 else t - 12
            s += f", {t}{'+' if t < 1 else '-'}12={u}"
            t = u
        s += f", {t} is {a}"
        return Item("dates", q, a, levels(a, a, s, s.replace(", ", "\n"), f"{a} is month {j + 1}. Right.", q), a, n == 1)
    if r < 0.75:
        y = rng.choice([None, None, rng.randint(1995, 2032)])
        n = month_days(y, i + 1)
        q = pick(rng, ["How many days does {m} have?", "How many days are in {m}?", "How many days are there in {m}?"], m=MONTHS[i] + (f" {y}" if y else ""))
        s = f"{MONTHS[i]} has {n}"
        if i == 1 and y:
            s = f"{y}/4={y // 4} r {y % 4}, {'leap' if leap(y) else 'no leap'} year, {n}"
        return Item("dates", q, str(n), levels(str(n), f"{n}", s, f"The month is {MONTHS[i]}.\n{s}", s + ". Right.", q), n, i != 1)
    y = rng.choice([1900, 2000, 2100, rng.randint(1950, 2060), rng.randint(1950, 2060)])
    a = "yes" if leap(y) else "no"
    q = pick(rng, ["Is {y} a leap year?", "Was {y} a leap year?", "Is the year {y} a leap year?"], y=y)
    s = f"{y}/4={y // 4} r {y % 4}" + (f", {y}/100={y // 100} r {y % 100}" if y % 4 == 0 else "") + (f", {y}/400={y // 400} r {y % 400}" if y % 100 == 0 else "")
    return Item("dates", q, a, levels(a, f"{y % 100}", s, s.replace(", ", "\n"), f"{a}. Right.", q), a == "yes")


def clock(rng: random.Random) -> Item:
    h, mi = rng.randint(0, 23), rng.choice([0, 15, 30, 45, rng.randint(0, 59), rng.randint(0, 59)])
    n = rng.choice([15, 20, 30, 45, 50, 90, 120, rng.randint(1, 180)])
    hours = rng.random() < 0.2
    if hours:
        k = rng.randint(1, 12)
        n, span = 60 * k, f"{k} hour{'s' if k > 1 else ''}"
    else:
        span = f"{n} minute{'s' if n > 1 else ''}"
    back = rng.random() < 0.25
    t0 = 60 * h + mi
    t1 = (t0 - n if back else t0 + n) % 1440
    a = f"{t1 // 60:02d}:{t1 % 60:02d}"
    s0 = f"{h:02d}:{mi:02d}"
    if rng.random() < 0.3:
        q = pick(rng, ["How many minutes are between {a} and {b}?", "How many minutes is it from {a} to {b}?"], a=s0, b=a) if not back and t1 > t0 else None
        if q:
            s = f"{s0} is {h}*60+{mi}={t0}, {a} is {t1 // 60}*60+{t1 % 60}={t1}, {t1}-{t0}={n}"
            return Item("dates", q, str(n), levels(str(n), f"{t1}-{t0}={n}", s, s.replace(", ", "\n"), f"{n} minutes. Right.", q), n)
    q = (pick(rng, ["What time is {n} before {s}?", "What time was it {n} before {s}?"], n=span, s=s0) if back else
         pick(rng, ["What time is {n} after {s}?", "It is {s}. What time is it in {n}?", "What time is it {n} after {s}?", "A train leaves at {s} and takes {n}. When does it arrive?", "A film starts at {s} and lasts {n}. When does it end?", "It's {s} now. What time will it be in {n}?", "A meeting begins at {s} and takes {n}. At what time is it over?", "What is {s} plus {n}?", "The bus leaves at {s} and is {n} late. When does it leave?",
                    "Add {n} to {s}."], n=span, s=s0))
    raw = t0 - n if back else t0 + n
    s = f"{h}*60+{mi}={t0}, {t0}{'-' if back else '+'}{n}={raw}"
    if raw != t1:
        s += f", {raw}{'+' if raw < 0 else '-'}1440={t1}"
    s += f", {t1}/60={t1 // 60} r {t1 % 60}"
    return Item("dates", q, a, levels(a, f"{t1} min", s + f" -> {a}", s.replace(", ", "\n"), f"{a} is {n} minutes {'before' if back else 'after'} {s0}. Right.", q), a)


def years(rng: random.Random) -> Item:
    y = rng.randint(1900, 2030)
    n = rng.randint(1, 90)
    r = rng.randint(0, 4)
    if r == 0:
        q, v, s = pick(rng, ["Someone was born in {y}. How old are they in {z}?", "How many years are between {y} and {z}?", "How many years is it from {y} to {z}?"], y=y, z=y + n), n, f"{y + n}-{y}={n}"
    elif r == 1:
        q, v, s = pick(rng, ["Which year is {n} years after {y}?", "What year comes {n} years after {y}?", "Add {n} years to {y}."], n=n, y=y), y + n, f"{y}+{n}={y + n}"
    elif r == 2:
        q, v, s = pick(rng, ["Which year was {n} years before {y}?", "What year was it {n} years before {y}?"], n=n, y=y), y - n, f"{y}-{n}={y - n}"
    elif r == 3:
        w = rng.randint(1, 12)
        q, v, s = pick(rng, ["How many days are in {w} weeks?", "How many days is {w} weeks?"], w=w), 7 * w, f"{w}*7={7 * w}"
    else:
        d = 7 * rng.randint(1, 20)
        q, v, s = pick(rng, ["How many weeks are {d} days?", "How many weeks are in {d} days?"], d=d), d // 7, f"{d}/7={d // 7}"
    return Item("dates", q, str(v), levels(str(v), s, s + f" -> {v}", f"Years and days as numbers.\n{s}", f"{s}. Right.", q), v)


DATES = [(1.0, years), (4.0, add_days), (2.0, between), (2.0, weekday), (1.6, months), (2.0, clock)]


def dates_item(rng: random.Random) -> Item:
    return weighted(rng, DATES)

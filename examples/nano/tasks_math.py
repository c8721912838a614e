"""Arithmetic in words: sums, products, division, percentages, comparisons, expressions, story problems, unit conversions.

The chains are the school algorithms written in digits: columns with carries, partial products, long division.
"""
from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction

from lexicon import number_words
from tasks import Item, levels, pick, weighted


def show(x: Fraction | int) -> str:
    """Shortest decimal writing; the generators only make numbers that end."""
    if isinstance(x, int) or x.denominator == 1:
        return str(int(x))
    d = (Decimal(x.numerator) / Decimal(x.denominator)).normalize()
    return format(d, "f")


def num_value(x: Fraction | int) -> int | float:
    return int(x) if Fraction(x).denominator == 1 else float(x)


def integer(rng: random.Random, digits: int = 3) -> int:
    """A number of 1 to `digits` digits, each length about equally likely."""
    n = rng.randint(1, digits)
    return rng.randint(1 if n == 1 else 10 ** (n - 1), 10**n - 1)


def add_columns(a: int, b: int, words: bool = False) -> str:
    """Column addition from the right."""
    out, carry = [], 0
    for i in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**i % 10, b // 10**i % 10
        s = x + y + carry
        t = f"{x}+{y}" + (f"+{carry}" if carry else "") + f"={s}"
        carry = s // 10
        out.append(t + (f" write {s % 10} carry {carry}" if words else ""))
    return (", " if not words else "\n").join(out)


def sub_columns(a: int, b: int, words: bool = False) -> str:
    """Column subtraction from the right, a >= b."""
    out, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        top = x - borrow
        need = top < y
        t = f"{top + (10 if need else 0)}-{y}={top + (10 if need else 0) - y}"
        borrow = int(need)
        out.append(t + (f" borrow {borrow}" if words else ""))
    return (", " if not words else "\n").join(out)


def add_work(a: int, b: int, detail: int) -> str:
    if detail == 0:
        return f"{a}+{b}={a + b}"
    return f"{a}+{b}: {add_columns(a, b)} -> {a + b}" if detail == 1 else f"{a}+{b}\n{add_columns(a, b, True)}\n= {a + b}"


def sub_work(a: int, b: int, detail: int) -> str:
    if a < b:
        return f"{a}<{b}, so minus. " + sub_work(b, a, detail) + f". {a}-{b}={a - b}"
    if detail == 0:
        return f"{a}-{b}={a - b}"
    return f"{a}-{b}: {sub_columns(a, b)} -> {a - b}" if detail == 1 else f"{a}-{b}\n{sub_columns(a, b, True)}\n= {a - b}"


def digit_work(a: int, d: int) -> str:
    """a times one digit, with carries."""
    out, carry = [], 0
    for i in range(len(str(a))):
        x = a // 10**i % 10
        s = x * d + carry
        out.append(f"{x}*{d}" + (f"+{carry}" if carry else "") + f"={s}")
        carry = s // 10
    return f"{a}*{d}: {', '.join(out)} -> {a * d}"


def mul_work(a: int, b: int, detail: int) -> str:
    if len(str(b).strip("0")) > len(str(a).strip("0")):
        a, b = b, a
    if detail == 0:
        return f"{a}*{b}={a * b}"
    digits = [(b // 10**i % 10, 10**i) for i in range(len(str(b))) if b // 10**i % 10]
    out = []
    for d, p in digits:
        if detail >= 2 and a > 9 and d > 1:
            out.append(digit_work(a, d))
        if detail < 2 or p > 1 or a <= 9 or d == 1:
            out.append(f"{a}*{d * p}={a * d * p}")
    total = digits[0][0] * digits[0][1] * a if digits else 0
    for d, p in digits[1:]:
        part = a * d * p
        out.append(add_work(total, part, 1 if detail >= 2 else 0))
        total += part
    if not digits:
        return f"{a}*0=0"
    return f"{a}*{b}: " + ("\n" if detail >= 2 else ", ").join(out) + (f" -> {a * b}" if len(digits) > 1 else "")


def div_work(a: int, b: int) -> str:
    """Long division, whole part and remainder."""
    out, rem, started = [], 0, False
    for ch in str(a):
        cur = rem * 10 + int(ch)
        q, rem = divmod(cur, b)
        if q or started or ch is str(a)[-1]:
            out.append(f"{cur}/{b}={q} r {rem}")
            started = True
    return f"{a}/{b}: {', '.join(out)} -> {a // b}" + (f" r {a % b}" if a % b else "")


def op_chain(op: str, a: int, b: int, ans: str, restate: str):
    work = {"+": add_work, "-": sub_work, "*": mul_work}[op]
    if op == "+":
        check = f"{a + b}-{b}={a}. Right."
    elif op == "-":
        check = f"{a - b}+{b}={a}. Right."
    else:
        check = f"last digit: {a % 10}*{b % 10}={a % 10 * (b % 10)}, ends in {a * b % 10}. Right."
    short = f"{a}{op}{b}={ans}" if op != "*" or min(a, b) < 10 else mul_work(a, b, 1)
    mid = work(a, b, 1)
    if op == "*" and min(a, b) >= 10:
        short = mid.split(": ", 1)[1]
    return levels(ans, short, mid, work(a, b, 2), check, restate)


ADD_Q = ["What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.", "Calculate {a} + {b}.", "{a} + {b}", "{a}+{b}=?",
         "What is the sum of {a} and {b}?", "How much is {a} plus {b}?", "Compute {a} + {b}.", "{a} plus {b}?", "What does {a} plus {b} make?", "If you add {a} and {b}, what do you get?", "What number is {b} more than {a}?", "{a} and {b} together make how much?", "Tell me what {a} plus {b} is.", "Increase {a} by {b}.",
         "What do you get if you add {a} to {b}?", "Find the sum of {a} and {b}.", "What does {a} + {b} equal?",
         "What's {a} + {b}?", "Work out {a} plus {b}.", "Solve {a} + {b}.", "What is the total of {a} and {b}?"]
SUB_Q = ["What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "Calculate {a} - {b}.", "{a} - {b}",
         "{a}-{b}=?", "What is the difference between {a} and {b}?", "How much is {a} minus {b}?", "Compute {a} - {b}.",
         "Take {b} away from {a}.", "What's {a} - {b}?", "What is {b} less than {a}?", "What do you get if you take {b} from {a}?",
         "{a} minus {b}?", "If you take {b} from {a}, what is left?", "How much more is {a} than {b}?", "Tell me what {a} minus {b} is.", "Decrease {a} by {b}.", "How much is left of {a} after taking {b}?", "Work out {a} minus {b}.", "What is left if you subtract {b} from {a}?"]
MUL_Q = ["What is {a} * {b}?", "What is {a} times {b}?", "Multiply {a} by {b}.", "Calculate {a} x {b}.", "{a} * {b}", "{a}*{b}=?",
         "What is the product of {a} and {b}?", "How much is {a} times {b}?", "Compute {a} * {b}.", "What's {a} x {b}?",
         "What is {a} multiplied by {b}?", "Find the product of {a} and {b}.", "{a} times {b}?", "Multiply {a} and {b}.",
         "What is {a} × {b}?", "Tell me what {a} times {b} is.", "If you multiply {a} by {b}, what do you get?", "What does {a} times {b} make?", "How much is {b} times {a}?", "Work out {a} times {b}."]
DIV_Q = ["What is {a} / {b}?", "What is {a} divided by {b}?", "Divide {a} by {b}.", "Calculate {a} / {b}.", "{a} / {b}",
         "How many times does {b} go into {a}?", "How much is {a} divided by {b}?", "Compute {a} / {b}.", "{a} divided by {b}?",
         "What's {a} ÷ {b}?", "Split {a} into {b} equal parts. How big is each part?"]


def _spoken(rng: random.Random, a: int, b: int) -> tuple[str, str]:
    if rng.random() < 0.14 and max(a, b) < 1000:
        return number_words(a), number_words(b)
    if rng.random() < 0.1:
        return f"{a:,}", f"{b:,}"
    return str(a), str(b)


def basic(rng: random.Random) -> Item:
    op = rng.choices("+-*", [3, 3, 4])[0]
    a, b = integer(rng, 3), integer(rng, 3)
    if op != "*" and rng.random() < 0.15:
        a, b = integer(rng, 4), integer(rng, 4)
    if op == "-" and a < b and rng.random() < 0.85:
        a, b = b, a
    if op == "*" and rng.random() < 0.3:
        b = rng.randint(2, 12)
    val = {"+": a + b, "-": a - b, "*": a * b}[op]
    sa, sb = _spoken(rng, a, b)
    q = pick(rng, {"+": ADD_Q, "-": SUB_Q, "*": MUL_Q}[op], a=sa, b=sb)
    if op == "-" and "difference" in q:
        a, b = max(a, b), min(a, b)
        val = a - b
    trivial = max(a, b) <= 10 and sa.isdigit()
    word = {"+": "plus", "-": "minus", "*": "times"}[op]
    return Item("arith", q, str(val), op_chain(op, a, b, str(val), f"{a}{op}{b}"), val, trivial,
                f"{a} {word} {b} is {val}.")


def division(rng: random.Random) -> Item:
    b = rng.randint(2, 12) if rng.random() < 0.7 else rng.randint(13, 60)
    exact = rng.random() < 0.75
    a = b * integer(rng, 2 if rng.random() < 0.7 else 3)
    if not exact:
        a += rng.randint(0, b - 1)
        mode = rng.choice(["rem", "modulo"])
        w = div_work(a, b)
        chk = f"{a // b}*{b}={a // b * b}, {a // b * b}+{a % b}={a}. Right."
        if mode == "modulo":
            q = pick(rng, ["What is the remainder when {a} is divided by {b}?", "What is {a} mod {b}?", "What is {a} modulo {b}?",
                           "What is left over when {a} is divided by {b}?", "Find the remainder of {a} divided by {b}."], a=a, b=b)
            ans = str(a % b)
        else:
            q = pick(rng, ["What is {a} divided by {b}, with remainder?", "Divide {a} by {b} and give the remainder.",
                           "What are the quotient and remainder of {a} / {b}?"], a=a, b=b)
            ans = f"{a // b} remainder {a % b}"
        return Item("arith", q, ans, levels(ans, f"{a}/{b} -> {a // b} r {a % b}", w, w.replace(", ", "\n"), chk, f"{a}/{b}"),
                    a % b if mode == "modulo" else None)
    ans = str(a // b)
    sa, sb = _spoken(rng, a, b)
    q = pick(rng, DIV_Q, a=sa, b=sb)
    w = div_work(a, b)
    return Item("arith", q, ans, levels(ans, f"{a}/{b}={ans}", w, w.replace(", ", "\n"),
                                        f"{ans}*{b}={a}. Right.", f"{a}/{b}"), a // b, False, f"{a} divided by {b} is {ans}.")


def shift(x: Fraction | int, p: int) -> str:
    return f"{show(x)}/{p}={show(Fraction(x) / p)}"


def percent(rng: random.Random) -> Item:
    p = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 30, 35, 40, 45, 50, 60, 65, 70, 75, 80, 90, 95, rng.randint(1, 99)])
    n = rng.choice([integer(rng, 3), rng.randint(1, 99) * 10, rng.randint(1, 60) * 20, rng.randint(1, 20) * 100, rng.randint(1, 90) * 4])
    val = Fraction(n * p, 100)
    r = rng.random()
    w = mul_work(n, p, 1)
    base = f"{w}, {shift(n * p, 100)}" if p >= 10 else f"{n}*{p}={n * p}, {shift(n * p, 100)}"
    long = f"{p}% of {n} is {n}*{p}/100.\n{mul_work(n, p, 2)}\n{shift(n * p, 100)}"
    short = f"{n}*{p}={n * p}, {show(val)}"
    ans = show(val)
    if r < 0.75:
        q = pick(rng, ["What is {p}% of {n}?", "What is {p} percent of {n}?", "Calculate {p}% of {n}.", "How much is {p}% of {n}?",
                       "Find {p} percent of {n}.", "{p}% of {n}", "Compute {p}% of {n}.", "How much is {p} percent of {n}?", "{p} percent of {n} is how much?", "Take {p}% of {n}.", "If something costs {n} dollars, how much is {p}% of it?", "What is a {p}% tip on {n} dollars?", "{p}% of {n} students passed. How many is that?", "Give me {p}% of {n}.", "What's {p}% of {n}?",
                       "Work out {p} percent of {n}."], p=p, n=n)
        return Item("arith", q, ans, levels(ans, short, base, long, f"{show(val)}*100={n * p}. Right.", f"{p}% of {n}"),
                    num_value(val), False, f"{p}% of {n} is {ans}.")
    down = r < 0.9
    n = rng.randint(1, 60) * 10
    val = Fraction(n * p, 100)
    res = n - val if down else n + val
    ans = show(res)
    thing = rng.choice(["shirt", "lamp", "bag", "phone", "chair", "book", "coat", "bike"])
    q = (pick(rng, ["A {t} costs {n} dollars. It is {p}% off. What is the new price?", "What is {n} minus {p}%?",
                    "A {t} of {n} euros gets {p}% cheaper. What does it cost now?", "Decrease {n} by {p}%."], t=thing, n=n, p=p)
         if down else pick(rng, ["What is {n} plus {p}%?", "Increase {n} by {p}%.",
                                 "A {t} costs {n} dollars. The price rises by {p}%. What is the new price?"], t=thing, n=n, p=p))
    s = "-" if down else "+"
    part = f"{n}*{p}={n * p}, {shift(n * p, 100)}"
    return Item("arith", q, ans, levels(ans, f"{show(val)}, {n}{s}{show(val)}={ans}", f"{part}, {n}{s}{show(val)}={ans}",
                                        f"{mul_work(n, p, 2)}\n{shift(n * p, 100)}\n{n}{s}{show(val)}={ans}",
                                        f"{p}% of {n} is {show(val)}. Right.", f"{n} {s}{p}%"), num_value(res))


def compare(rng: random.Random) -> Item:
    r = rng.random()
    if r < 0.3:
        x: Fraction | int
        y: Fraction | int
        whole = rng.randint(0, 20)
        sx = f"{whole}.{rng.randint(1, 99)}"
        sy = f"{whole if rng.random() < 0.7 else rng.randint(0, 20)}.{rng.randint(1, 99)}"
        x, y = Fraction(sx), Fraction(sy)
        if x == y:
            return compare(rng)
        k = max(len(sx.split(".")[1]), len(sy.split(".")[1]))
        px, py = f"{float(x):.{k}f}", f"{float(y):.{k}f}"
    else:
        n = integer(rng, 4)
        x = n
        y = integer(rng, 4) if rng.random() < 0.3 else max(1, n + rng.choice([-1, 1]) * rng.choice([1, 9, 10, 90, rng.randint(1, 99)]))
        if rng.random() < 0.15:
            y = int(str(n)[::-1])
        if x == y:
            return compare(rng)
        sx, sy = str(x), str(y)
        px, py = sx, sy
    big = x > y
    rel = f"{px}>{py}" if big else f"{px}<{py}"
    yes = rng.random() < 0.4
    i = next((i for i, (c, d) in enumerate(zip(px, py, strict=False)) if c != d), 0)
    if len(px.split(".")[0]) != len(py.split(".")[0]):
        why = f"{px} has {len(px.split('.')[0])} digits, {py} has {len(py.split('.')[0])}"
    else:
        why = f"digit {i + 1 - (1 if '.' in px[:i] else 0)}: {px[i]} and {py[i]}"
    if yes:
        less = rng.random() < 0.4
        q = pick(rng, ["Is {x} {w} than {y}?", "Is {x} {w} than {y}? Answer yes or no.", "True or false: {x} is {w} than {y}?"],
                 x=sx, y=sy, w=rng.choice(["less", "smaller"] if less else ["greater", "larger", "bigger", "more"]))
        truth = (x < y) == less
        ans = ("true" if truth else "false") if q.startswith("True") else ("yes" if truth else "no")
        value: object = truth
    else:
        small = rng.random() < 0.4
        w = rng.choice(["smaller", "less"] if small else ["larger", "greater", "bigger"])
        q = pick(rng, ["Which is {w}, {x} or {y}?", "Which number is {w}: {x} or {y}?", "Which is {w}: {x} or {y}?",
                       "What is {w}, {x} or {y}?", "Compare {x} and {y}. Which is {w}?", "{x} or {y}: which is {w}?", "Which one is {w}, {x} or {y}?", "Of {x} and {y}, which is {w}?", "Which of these is {w}: {x}, {y}?", "Which of the numbers {x} and {y} is {w}?", "Tell me which is {w}: {x} or {y}."], x=sx, y=sy, w=w)
        ans = sx if (x < y) == small else sy
        value = num_value(Fraction(ans))
    trivial = "." not in sx and max(x, y) <= 10
    return Item("compare", q, ans, levels(ans, rel, f"{why}. {rel}", f"{sx} and {sy} as {px} and {py}.\n{why}.\n{rel}",
                                          f"{py}{'<' if big else '>'}{px}. Right.", q), value, trivial)


def many(rng: random.Random) -> Item:
    """Sums, averages, extremes and products of short lists."""
    n = rng.randint(3, 5)
    xs = [integer(rng, 2 if rng.random() < 0.7 else 3) for _ in range(n)]
    kind = rng.choice(["sum", "sum", "average", "max", "min", "range", "mul3"])
    sep = ", ".join(map(str, xs[:-1])) + rng.choice([" and ", ", "]) + str(xs[-1])
    steps, total = [], xs[0]
    long = []
    for v in xs[1:]:
        steps.append(add_work(total, v, 0))
        long.append(add_work(total, v, 1))
        total += v
    if kind == "mul3":
        xs = [rng.randint(2, 12) for _ in range(3)]
        val = xs[0] * xs[1] * xs[2]
        q = pick(rng, ["What is {a} * {b} * {c}?", "Multiply {a}, {b} and {c}.", "What is {a} times {b} times {c}?"],
                 a=xs[0], b=xs[1], c=xs[2])
        w = f"{xs[0]}*{xs[1]}={xs[0] * xs[1]}, {xs[0] * xs[1]}*{xs[2]}={val}"
        lw = w.split(", ")[0] + "\n" + mul_work(xs[0] * xs[1], xs[2], 2)
        return Item("arith", q, str(val), levels(str(val), w, w + f" -> {val}", lw, w + ". Right.", q), val)
    if kind in ("max", "min", "range"):
        hi, lo = max(xs), min(xs)
        val = {"max": hi, "min": lo, "range": hi - lo}[kind]
        q = pick(rng, {"max": ["What is the largest of {s}?", "Find the maximum of {s}.", "Which number is the biggest: {s}?"],
                       "min": ["What is the smallest of {s}?", "Find the minimum of {s}.", "Which number is the smallest: {s}?"],
                       "range": ["What is the difference between the largest and the smallest of {s}?"]}[kind], s=sep)
        best, scan = xs[0], [str(xs[0])]
        for v in xs[1:]:
            best = min(best, v) if kind == "min" else max(best, v)
            scan.append(f"{v}: {best}")
        w = ", ".join(scan)
        if kind == "range":
            w = f"largest {hi}, smallest {lo}, {hi}-{lo}={val}"
        return Item("compare", q, str(val), levels(str(val), f"{val}", w, w.replace(", ", "\n"), f"of {sep}: {val}. Right.", q), val)
    if kind == "average":
        d = (-total) % n
        xs[-1] += d
        sep = ", ".join(map(str, xs[:-1])) + " and " + str(xs[-1])
        steps, long, total = [], [], xs[0]
        for v in xs[1:]:
            steps.append(add_work(total, v, 0))
            long.append(add_work(total, v, 1))
            total += v
        val = total // n
        q = pick(rng, ["What is the average of {s}?", "What is the mean of {s}?", "Find the average of {s}."], s=sep)
        tail = f", {total}/{n}={val}"
        return Item("arith", q, str(val), levels(str(val), f"{total}/{n}={val}", ", ".join(steps) + tail,
                                                 "\n".join(long) + "\n" + div_work(total, n), f"{val}*{n}={total}. Right.", q), val)
    q = pick(rng, ["What is the sum of {s}?", "Add {s}.", "Add up {s}.", "What is {p}?", "Calculate {p}.", "What is the total of {s}?",
                   "{p}"], s=sep, p=" + ".join(map(str, xs)))
    return Item("arith", q, str(total), levels(str(total), ", ".join(steps), ", ".join(long), "\n".join(long),
                                               ", ".join(steps) + ". Right.", q), total)


def expression(rng: random.Random) -> Item:
    a, b, c = rng.randint(2, 30), rng.randint(2, 12), rng.randint(2, 12)
    r = rng.randint(0, 7)
    if r == 0:
        q, s, v = f"{a} + {b} * {c}", f"{b}*{c}={b * c}, {a}+{b * c}={a + b * c}", a + b * c
    elif r == 1:
        q, s, v = f"({a} + {b}) * {c}", f"{a}+{b}={a + b}, {a + b}*{c}={(a + b) * c}", (a + b) * c
    elif r == 2:
        a = b * c + rng.randint(0, 50)
        q, s, v = f"{a} - {b} * {c}", f"{b}*{c}={b * c}, {a}-{b * c}={a - b * c}", a - b * c
    elif r == 3:
        n = b * c
        k = rng.randint(1, n - 1) if n > 1 else 1
        q, s, v = f"({k} + {n - k}) / {b}", f"{k}+{n - k}={n}, {n}/{b}={c}", c
    elif r == 4:
        q, s, v = f"{a * b} / {b} + {c}", f"{a * b}/{b}={a}, {a}+{c}={a + c}", a + c
    elif r == 5:
        x, y = max(a, c), min(a, c)
        q, s, v = f"{b} * ({x} - {y})", f"{x}-{y}={x - y}, {b}*{x - y}={b * (x - y)}", b * (x - y)
    elif r == 6:
        q, s, v = f"{a} * {b} + {c}", f"{a}*{b}={a * b}, {a * b}+{c}={a * b + c}", a * b + c
    else:
        d = rng.randint(2, 40)
        q, s, v = f"{a} + {b} - {c} + {d}", f"{a}+{b}={a + b}, {a + b}-{c}={a + b - c}, {a + b - c}+{d}={a + b - c + d}", a + b - c + d
    text = pick(rng, ["What is {q}?", "Calculate {q}.", "Compute {q}.", "{q}", "{q} = ?", "Evaluate {q}."], q=q)
    return Item("arith", text, str(v), levels(str(v), s, f"{q}: {s}", f"{q}\n" + s.replace(", ", "\n"), f"{s}. Right.", q), v)


def special(rng: random.Random) -> Item:
    r = rng.randint(0, 6)
    n = integer(rng, 3)
    if r == 0:
        q, v, s = pick(rng, ["What is twice {n}?", "What is double {n}?", "Double {n}."], n=n), 2 * n, f"{n}*2={2 * n}"
    elif r == 1:
        q, v, s = pick(rng, ["What is half of {n}?", "Halve {n}.", "What is {n} halved?"], n=2 * n), n, f"{2 * n}/2={n}"
    elif r == 2:
        n = rng.randint(2, 35)
        q, v, s = pick(rng, ["What is {n} squared?", "What is the square of {n}?", "What is {n}^2?"], n=n), n * n, mul_work(n, n, 1)
    elif r == 3:
        d = rng.choice([3, 4, 5, 10])
        w = {3: "third", 4: "quarter", 5: "fifth", 10: "tenth"}[d]
        n = rng.randint(1, 90)
        q, v, s = pick(rng, ["What is a {w} of {n}?", "What is one {w} of {n}?"], w=w, n=n * d), n, div_work(n * d, d)
    elif r == 4:
        d = rng.choice([3, 4, 5, 8])
        k, n = rng.randint(2, d - 1), rng.randint(1, 40)
        q, v = pick(rng, ["What is {k}/{d} of {n}?"], k=k, d=d, n=n * d), k * n
        s = f"{n * d}/{d}={n}, {n}*{k}={v}"
    elif r == 5:
        q, v, s = pick(rng, ["What is triple {n}?", "What is three times {n}?"], n=n), 3 * n, f"{n}*3={3 * n}"
    else:
        n = rng.randint(0, 999)
        if rng.random() < 0.5:
            q, v, s = pick(rng, ["What comes after {n}?", "Which number comes after {n}?"], n=n), n + 1, f"{n}+1={n + 1}"
        else:
            q = pick(rng, ["Is {n} even or odd?", "Is the number {n} odd or even?"], n=n)
            a = "even" if n % 2 == 0 else "odd"
            s = f"{n} ends in {n % 10}, {a}"
            return Item("arith", q, a, levels(a, s, s + ".", f"The last digit of {n} is {n % 10}.\n{n % 10} is {a}.", s, q), a, n < 20)
    return Item("arith", q, str(v), levels(str(v), s, s + f" -> {v}", f"{q}\n{s}", f"{s}. Right.", q), v)


def total_to(rng: random.Random) -> Item:
    n = rng.randint(3, 20)
    q = pick(rng, ["What is the sum of the numbers from 1 to {n}?", "Add all numbers from 1 to {n}.", "What is 1 + 2 + ... + {n}?"], n=n)
    v = n * (n + 1) // 2
    s = f"{n}*{n + 1}={n * (n + 1)}, {n * (n + 1)}/2={v}"
    return Item("arith", q, str(v), levels(str(v), s, s + f" -> {v}", f"1 to {n}: n times n plus 1, half of it.\n{s}", f"{s}. Right.", q), v)


def compare_units(rng: random.Random) -> Item:
    big, small, k, lb, ls = rng.choice([u for u in UNITS if u[2] <= 1000])
    n = rng.randint(1, 20)
    other = max(1, n * k + rng.choice([-1, 1]) * rng.randint(1, max(2, n * k // 2)))
    if other == n * k:
        other += 1
    x, y = f"{n} {big}", f"{other} {small}"
    w = rng.choice(["more", "more", "less"])
    first = rng.random() < 0.5
    q = pick(rng, ["Which is {w}, {a} or {b}?", "What is {w}: {a} or {b}?", "Which is {w}: {a} or {b}?"], w=w, a=x if first else y, b=y if first else x)
    a = x if (n * k > other) == (w == "more") else y
    s = f"{n} {big}={n * k} {small}, {n * k}{'>' if n * k > other else '<'}{other}"
    return Item("compare", q, a, levels(a, s.split(", ")[1], s, f"1 {lb}={k} {ls}\n" + s.replace(", ", "\n"), f"{s}. Right.", q), a)


UNITS = [("km", "m", 1000, "kilometers", "meters"), ("m", "cm", 100, "meters", "centimeters"), ("cm", "mm", 10, "centimeters", "millimeters"),
         ("kg", "g", 1000, "kilograms", "grams"), ("l", "ml", 1000, "liters", "milliliters"), ("t", "kg", 1000, "tons", "kilograms"),
         ("h", "min", 60, "hours", "minutes"), ("min", "s", 60, "minutes", "seconds"), ("days", "h", 24, "days", "hours"),
         ("weeks", "days", 7, "weeks", "days"), ("years", "months", 12, "years", "months"), ("ft", "in", 12, "feet", "inches"),
         ("yd", "ft", 3, "yards", "feet"), ("lb", "oz", 16, "pounds", "ounces"), ("m", "mm", 1000, "meters", "millimeters"),
         ("dollars", "cents", 100, "dollars", "cents"), ("euros", "cents", 100, "euros", "cents"), ("km", "cm", 100000, "kilometers", "centimeters"),
         ("dozen", "pieces", 12, "dozen", "pieces"), ("g", "mg", 1000, "grams", "milligrams"), ("h", "s", 3600, "hours", "seconds"),
         ("GB", "MB", 1000, "gigabytes", "megabytes"), ("MB", "KB", 1000, "megabytes", "kilobytes"), ("decades", "years", 10, "decades", "years"),
         ("centuries", "years", 100, "centuries", "years"), ("kW", "W", 1000, "kilowatts", "watts")]


def units(rng: random.Random) -> Item:
    r = rng.random()
    if r < 0.08:
        c = rng.randint(-4, 20) * 5
        f = c * 9 // 5 + 32
        if rng.random() < 0.5:
            q = pick(rng, ["Convert {c} degrees Celsius to Fahrenheit.", "What is {c} C in F?", "What is {c} degrees Celsius in Fahrenheit?"], c=c)
            s, v, u = f"{c}*9/5={c * 9 // 5}, {c * 9 // 5}+32={f}", f, "F"
        else:
            q = pick(rng, ["Convert {f} degrees Fahrenheit to Celsius.", "What is {f} F in C?", "What is {f} degrees Fahrenheit in Celsius?"], f=f)
            s, v, u = f"{f}-32={f - 32}, {f - 32}*5/9={c}", c, "C"
        a = f"{v} {u}"
        return Item("units", q, a, levels(a, s, f"{s} -> {a}", s.replace(", ", "\n"), f"{c} C is {f} F. Right.", q), v)
    if r < 0.13:
        n, per = rng.randint(1, 60), rng.choice(["2.54", "1.609", "30.48", "0.454"])
        f, t = {"2.54": ("inches", "cm"), "1.609": ("miles", "km"), "30.48": ("feet", "cm"), "0.454": ("pounds", "kg")}[per]
        a = f"{show(n * Fraction(per))} {t}"
        q = pick(rng, ["Convert {n} {f} to {t}.", "How many {t} are {n} {f}?", "What is {n} {f} in {t}?"], n=n, f=f, t=t)
        digits = int(per.replace(".", ""))
        places = len(per.split(".")[1])
        s = f"1 {f}={per} {t}, {mul_work(digits, n, 1)}, {places} places: {a}"
        return Item("units", q, a, levels(a, f"{n}*{per}={a}", s, s.replace(", ", "\n"), f"1 {f}={per} {t}. Right.", q), num_value(n * Fraction(per)))
    big, small, k, lb, ls = rng.choice(UNITS)
    if rng.random() < 0.1:
        lb, ls = lb.replace("meters", "metres").replace("liters", "litres"), ls.replace("meters", "metres").replace("liters", "litres")
    long_names = rng.random() < 0.5
    ub, us = (lb, ls) if long_names else (big, small)
    down = rng.random() < 0.6
    n: Fraction
    if down:
        n = Fraction(rng.choice([rng.randint(1, 20), rng.randint(1, 250)]))
        if k in (10, 100, 1000, 100000) and rng.random() < 0.4:
            n = Fraction(rng.randint(1, 399), rng.choice([10, 10, 100]))
        elif k in (60, 24, 12, 16, 3600) and rng.random() < 0.2:
            n = Fraction(rng.randint(0, 12)) + Fraction(1, 2)
        val = n * k
        src, dst, uf, ut, op = n, val, ub, us, "*"
    else:
        val = Fraction(rng.randint(1, 60))
        if k in (10, 100, 1000) and rng.random() < 0.4:
            val = Fraction(rng.randint(1, 399), rng.choice([10, 10, 100]))
        src, dst, uf, ut, op = val * k, val, us, ub, "/"
    q = pick(rng, ["Convert {n} {f} to {t}.", "How many {t} are {n} {f}?", "How many {t} are in {n} {f}?", "What is {n} {f} in {t}?",
                   "{n} {f} in {t}?", "Express {n} {f} in {t}.", "Change {n} {f} into {t}.", "{n} {f} is how many {t}?", "How much is {n} {f} in {t}?", "How many {t} do {n} {f} make?", "What is {n} {f} expressed in {t}?", "I have {n} {f}. How many {t} is that?", "Write {n} {f} in {t}.", "Turn {n} {f} into {t}.", "How many {t} equal {n} {f}?", "Convert {n} {f} into {t}."],
             n=show(src), f=uf, t=ut)
    a = f"{show(dst)} {ut}"
    s = f"1 {ub}={k} {us}, {show(src)}{op}{k}={show(dst)}"
    long = s.replace(", ", "\n")
    if op == "*" and src.denominator == 1 and k in (60, 24, 7, 12, 16):
        long += "\n" + mul_work(int(src), k, 2)
    if op == "/" and k in (60, 24, 7, 12, 16, 3):
        s = f"1 {ub}={k} {us}, {div_work(int(src), k)}"
        long = s.replace(", ", "\n")
    inv = "/" if op == "*" else "*"
    return Item("units", q, a, levels(a, f"{show(src)}{op}{k}={show(dst)}", s, long, f"{show(dst)}{inv}{k}={show(src)}. Right.", q),
                num_value(dst), False, f"{show(src)} {uf} is {a}.")


MATH = [(5.0, basic), (1.4, division), (2.0, percent), (1.6, compare), (1.6, many), (1.2, expression), (0.9, special), (0.2, total_to), (0.4, compare_units)]


def math_item(rng: random.Random) -> Item:
    return weighted(rng, MATH)

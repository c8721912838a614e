"""Small talk, facts, memory over turns, and honest refusals; plus the answer styles a system prompt can ask for."""
from __future__ import annotations

import random

from lexicon import (
    CAPITALS,
    CITIES,
    COLORS,
    FACTS,
    FRUIT,
    MONTHS,
    NAMES,
    THINGS,
    WEEKDAYS,
    dictionary,
    word,
)
from tasks import Item, levels, pick

ABOUT = "I am MiniMax-M3.1 nano, a very small demo model. I can do arithmetic, dates, sorting, word games, look-ups and tool calls."
SORRY = "I am a small demo model and I cannot help with that. Ask me about numbers, words, dates, lists or tools."
TALK: list[tuple[list[str], str]] = [
    (["Hi", "Hello", "Hello!", "Hi!", "Hey", "Hi there", "Hello there!", "Good morning", "Good evening", "Good day", "hey", "hi", "hello"], "Hello! How can I help you?"),
    (["How are you?", "How are you doing?", "Are you ok?", "How is it going?", "How do you do?"], "I am fine, thank you. How can I help you?"),
    (["Who are you?", "What are you?", "What is your name?", "Tell me about yourself.", "What can you do?", "Which model are you?", "Introduce yourself.", "What model is this?", "Who made you?", "What do you do?",
      "Are you a language model?"], ABOUT),
    (["Thanks", "Thank you", "Thank you!", "Thanks a lot!", "Thanks!", "Great, thanks.", "thank you very much", "Nice, thanks."], "You are welcome!"),
    (["Bye", "Goodbye", "Goodbye!", "See you", "See you later", "Good night", "Bye bye"], "Goodbye!"),
    (["Ok", "Okay", "Good.", "Great!", "Nice!", "Well done!", "I see.", "Cool"], "Glad to help."),
    (["Help", "Help me", "I need help.", "Can you help me?"], "Of course. What do you need?"),
]
OPEN = ["Write a poem about {w}.", "Tell me a story about a {w}.", "Explain {w}.", "What do you think about {w}?", "Write code for a {w}.", "Who invented the {w}?", "Summarize the book {w}.",
        "Why is {w} important?", "How does a {w} work?", "Tell me a joke about {w}.", "What is the meaning of {w}?", "Write an essay on {w}.", "How do I cook {w}?", "Who is the president of {w}?", "Describe {w}.",
        "What is {w}?", "Give me advice about {w}.", "Translate {w} into German.", "What is the history of {w}?", "Compose a song about {w}."]


def plain(a: str):
    return levels(a, "easy", "This is easy.", "This is easy. I answer directly.", "fine.", "answer the user")


def talk_item(rng: random.Random) -> Item:
    r = rng.random()
    if r < 0.5:
        qs, a = rng.choice(TALK)
        return Item("chat", rng.choice(qs), a, plain(a), None, True)
    if r < 0.68:
        c, a = rng.choice(list(CAPITALS.items()))
        if rng.random() < 0.2:
            q = pick(rng, ["{a} is the capital of which country?", "Which country has the capital {a}?"], a=a)
            a = c
        else:
            q = pick(rng, ["What is the capital of {c}?", "Capital of {c}?", "Which city is the capital of {c}?", "Tell me the capital of {c}.", "Name the capital of {c}."], c=c)
        return Item("chat", q, a, plain(a), None, True)
    if r < 0.82:
        q, a = rng.choice(list(FACTS.items()))
        return Item("chat", q, a, plain(a), int(a) if a.isdigit() else a, True)
    w = rng.choice([word(rng), rng.choice(dictionary()), f"{word(rng)} {word(rng)}"])
    return Item("chat", pick(rng, OPEN, w=w), SORRY, plain(SORRY), None, True)


def memory(rng: random.Random) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Statements (text, reply) and later questions (text, answer) about them."""
    facts = []
    pool = [
        lambda: (n := rng.choice(NAMES), (rng.choice([f"My name is {n}.", f"I am {n}.", f"Hi, I'm {n}.", f"Call me {n}."]), f"Nice to meet you, {n}!"), (["What is my name?", "Do you remember my name?", "Who am I?"], n)),
        lambda: (n := rng.choice(CITIES), (rng.choice([f"I live in {n}.", f"My city is {n}.", f"My home is in {n}."]), "Noted."), (["Where do I live?", "Which city do I live in?", "In which city do I live?"], n)),
        lambda: (n := rng.choice(COLORS), (rng.choice([f"My favorite color is {n}.", f"I like the color {n}."]), "Noted."), (["What is my favorite color?", "Which color do I like?"], n)),
        lambda: (n := rng.randint(5, 99), (rng.choice([f"I am {n} years old.", f"My age is {n}."]), "Noted."), (["How old am I?", "What is my age?"], str(n))),
        lambda: (n := rng.choice(FRUIT), (f"My favorite fruit is {n}.", "Noted."), (["What is my favorite fruit?", "Which fruit do I like most?"], n)),
        lambda: (n := rng.randint(100, 99999), (rng.choice([f"Remember the number {n}.", f"Please remember {n}."]), "Noted."), (["Which number did I give you?", "What was the number?", "What number should you remember?"], str(n))),
        lambda: (n := word(rng), (rng.choice([f"The password is {n}.", f"The secret word is {n}."]), "Noted."), (["What is the password?", "What is the secret word?"], n)),
        lambda: (n := f"{rng.choice(WEEKDAYS)}", (f"The meeting is on {n}.", "Noted."), (["When is the meeting?", "On which day is the meeting?"], n)),
        lambda: (n := f"{rng.choice(MONTHS)} {rng.randint(1, 28)}", (f"My birthday is {n}.", "Noted."), (["When is my birthday?"], n)),
        lambda: (n := rng.choice(NAMES), (rng.choice([f"My dog is called {n}.", f"My dog's name is {n}."]), "Noted."), (["What is my dog's name?", "What is my dog called?"], n)),
        lambda: (n := rng.choice(THINGS), (f"The key is in the {n}.", "Noted."), (["Where is the key?"], n)),
    ]
    for make in rng.sample(pool, rng.randint(1, 3)):
        _, st, (qs, a) = make()
        q = rng.choice(qs)
        if st[0].startswith("The password") and "word" in q.replace("password", ""):
            q = "What is the password?"
        if st[0].startswith("The secret"):
            q = "What is the secret word?"
        facts.append((st, (q, a)))
    return [f[0] for f in facts], [f[1] for f in facts]


STYLES: dict[str, list[str]] = {
    "json": ["Answer in JSON.", "Reply in JSON with the key answer.", "Always answer with a JSON object.", "Respond only with JSON.", "Answer as JSON: {\"answer\": ...}.", "You answer in JSON.", "Output JSON only.",
             "Your answers are JSON objects with one field, answer.", "Format every reply as JSON.", "You are a JSON service. Reply with JSON only."],
    "plain": ["Answer plainly.", "Answer in plain text.", "Give only the answer.", "Reply with the answer only.", "Be brief.", "Use plain language.", "Plain text only, no JSON.", "Answer with as few words as possible.", "Reply in plain words."],
    "sentence": ["Answer in a full sentence.", "Answer in complete sentences.", "Reply with a full sentence.", "Use full sentences.", "Answer with one whole sentence."],
    "": ["You are a helpful assistant.", "You are a careful assistant.", "Help the user.", "You are a friendly helper.", "You are an assistant for a small shop.", "You are a calculator.", "Today is a good day. Help the user well.",
         "You are the assistant of {n}.", "Follow the user's instructions."],
}


def system_prompt(rng: random.Random, style: str) -> str:
    s = rng.choice(STYLES[style]).replace("{n}", rng.choice(NAMES))
    if style and rng.random() < 0.3:
        lead = rng.choice(["You are a helpful assistant.", "You are a careful assistant.", "You are a math helper."])
        s = f"{lead} {s}" if rng.random() < 0.7 else f"{s} {lead}"
    return s

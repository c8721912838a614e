"""Writes heldout_free.jsonl: prompts in wording that follows none of the generators' sentences, to see what nano does off its templates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from records import calls, exact, obj, write

ASK: list[tuple[str, str]] = [
    ("Sarah had 250 euros. She spent 87 euros on shoes. How much money does she have left?", "163"),
    ("There were 34 birds on the roof and 15 flew off. How many are on the roof now?", "19"),
    ("My sister baked 48 muffins, we ate 9 of them. How many muffins can we still eat?", "39"),
    ("The library owned 512 novels and got 75 new ones. How big is the collection now?", "587"),
    ("Each bench seats 6 people. How many people can sit on 14 benches?", "84"),
    ("We split 96 candies between 8 kids. How many candies per kid?", "12"),
    ("What's 20% off a 150 dollar jacket?", "120"),
    ("Please compute the product of 34 and 29.", "986"),
    ("Give me the sum 418 + 297.", "715"),
    ("What number do I get by subtracting 268 from 500?", "232"),
    ("I ran 7 km on Monday and 12 km on Tuesday. What's my total distance?", "19"),
    ("One ticket is 18 euros. What do five tickets cost?", "90"),
    ("Which of 4.5 and 4.45 is the larger number?", "4.5"),
    ("Is 1001 smaller than 999?", "no"),
    ("What is the biggest number here: 34, 91, 17, 88?", "91"),
    ("Four friends each bring 13 songs. How many songs is that?", "52"),
    ("How many centimeters is 2.4 m?", "240"),
    (
        "A movie runs for 135 minutes. How many hours and minutes is that? Give the minutes beyond two hours.",
        "15",
    ),
    ("Turn 7 kg into grams.", "7000"),
    ("How many seconds do 3 minutes have?", "180"),
    ("Write the word lantern backwards.", "nretnal"),
    ("How many e's does the word cheese contain?", "3"),
    ("Number of letters in 'window'?", "6"),
    ("How many words: birds fly over the old bridge", "6"),
    ("Can you sort 5, 2 and 9 for me, smallest first?", "2, 5, 9"),
    ("Alphabetical order please: tiger, bear, lion", "bear, lion, tiger"),
    ("From biggest to smallest: 12, 45, 3, 30", "45, 30, 12, 3"),
    ("It's March 28 today. What's the date in 6 days?", "April 3"),
    ("What will the date be two weeks after May 10?", "May 24"),
    ("If today is Friday, which weekday is it in 10 days?", "Monday"),
    ("The show starts at 19:30 and takes 50 minutes. When is it over?", "20:20"),
    ("How many days is it from June 5 to June 29?", "24"),
    (
        "The code for the safe is 4471. The code for the gate is 9921. What is the code for the gate?",
        "9921",
    ),
    ("Ana: 31, Ben: 45, Eva: 28. How old is Ben?", "45"),
    ("Milk costs 2 dollars, bread costs 3 dollars. What does bread cost?", "3"),
    ("What is half of 86?", "43"),
    ("Seven times nine, please.", "63"),
    ("What is three hundred minus forty-five?", "255"),
    ("I have 3 boxes with 24 eggs each and 5 loose eggs. How many eggs do I have?", "77"),
    ("What's the remainder of 47 divided by 6?", "5"),
]

W, INT = {"type": "string"}, {"type": "integer"}
CITY = {**W, "description": "The city and state, e.g. San Francisco, CA"}


def tool(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description, "parameters": parameters}


WEATHER = tool(
    "get_current_weather",
    "Get the current weather in a given location",
    obj(("unit",), location=CITY, unit={**W, "enum": ["celsius", "fahrenheit"]}),
)
TALK = [
    tool("send_message", "Send a message", obj(recipient=W, message=W)),
    tool("get_time", "Current time", obj(zone=W)),
]
OPERATION = {**W, "enum": ["add", "multiply"]}
NUMBER = {"type": "number"}
TOOLS: list[tuple[str, list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]] = [
    (
        "What's the weather like in Boston?",
        [WEATHER],
        [("get_current_weather", {"location": "Boston"})],
    ),
    (
        "How warm is it in Lisbon, in celsius?",
        [WEATHER],
        [("get_current_weather", {"location": "Lisbon", "unit": "celsius"})],
    ),
    (
        "Compare the weather in Rome and Oslo.",
        [tool("weather", "Weather report of a city", obj(city=W))],
        [("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})],
    ),
    (
        "Multiply 12 by 7 with the calculator.",
        [tool("calculator", "Do a calculation", obj(a=NUMBER, b=NUMBER, op=OPERATION))],
        [("calculator", {"a": 12, "b": 7, "op": "multiply"})],
    ),
    (
        "Send Maria a message that says 'dinner is ready'.",
        TALK,
        [("send_message", {"recipient": "Maria", "message": "dinner is ready"})],
    ),
    ("What is the time in Tokyo?", TALK, [("get_time", {"zone": "Tokyo"})]),
    (
        "Set a timer for 25 minutes and tell me the weather in Ghent.",
        [
            tool("start_timer", "Start a timer", obj(minutes=INT)),
            tool("forecast", "Weather forecast", obj(place=W)),
        ],
        [("start_timer", {"minutes": 25}), ("forecast", {"place": "Ghent"})],
    ),
    (
        "Add 3 cartons of milk to the shopping list.",
        [tool("add_to_shopping_list", "Put an item on the list", obj(item=W, quantity=INT))],
        [("add_to_shopping_list", {"item": "milk", "quantity": 3})],
    ),
    (
        "Turn on the lamp in the kitchen.",
        [tool("switch_lamp", "Switch a lamp", obj(room=W, on={"type": "boolean"}))],
        [("switch_lamp", {"room": "kitchen", "on": True})],
    ),
    (
        "Where is package PX-881?",
        [tool("track_package", "Find a package", obj(package_id=W))],
        [("track_package", {"package_id": "PX-881"})],
    ),
]


def main() -> None:
    records = [exact("free", q, a) for q, a in ASK]
    records += [calls("free tool", q, tools, wanted) for q, tools, wanted in TOOLS]
    write(Path(__file__).with_name("heldout_free.jsonl"), records, 10000)


if __name__ == "__main__":
    main()

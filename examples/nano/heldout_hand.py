"""Held-out prompts and tools written by hand; no training sample has a tool of these names or these schemas."""

from __future__ import annotations

from typing import Any

from records import obj

HAND: list[tuple[str, str, str]] = [
    ("arith", "What is 15% of 240?", "36"),
    ("arith", "If I have 48 eggs and use 19, how many remain?", "29"),
    ("arith", "What's 128 plus 367?", "495"),
    ("arith", "Tell me what 23 times 17 is.", "391"),
    ("arith", "A book has 320 pages. I have read 145. How many pages are left?", "175"),
    ("arith", "How much is 7 times 86?", "602"),
    ("arith", "What is 1000 minus 333?", "667"),
    ("arith", "Could you add 59, 61 and 80 for me?", "200"),
    ("arith", "What is 25 percent of 84?", "21"),
    ("arith", "What is 144 divided by 12?", "12"),
    ("arith", "What is 305 times 204?", "62220"),
    ("arith", "I bought 6 pens for 4 dollars each. What did I pay?", "24"),
    ("arith", "What's 999 + 888?", "1887"),
    ("arith", "What is 45 times 45?", "2025"),
    ("compare", "Which one is bigger, 809 or 890?", "890"),
    ("compare", "Is 512 greater than 499?", "yes"),
    ("compare", "Which is smaller, 3.7 or 3.65?", "3.65"),
    ("compare", "Which is larger, 9.9 or 9.11?", "9.9"),
    ("units", "How many meters are 3.5 kilometers?", "3500"),
    ("units", "How many minutes are in 4 hours?", "240"),
    ("units", "Convert 2500 g to kg.", "2.5"),
    ("units", "How many inches are 5 feet?", "60"),
    ("words", "How many letters are in the word elephant?", "8"),
    ("words", "Reverse the word stone.", "enots"),
    ("words", "How many words are in: the cat sat on the mat", "6"),
    ("words", "How many r's are in strawberry?", "3"),
    ("words", "Spell garden backwards.", "nedrag"),
    ("sort", "Sort these numbers: 42, 7, 19, 3", "3, 7, 19, 42"),
    ("sort", "Sort these words alphabetically: pear, apple, fig", "apple, fig, pear"),
    ("sort", "Put 9, 4, 6, 1 in ascending order.", "1, 4, 6, 9"),
    ("dates", "What date is 10 days after March 25?", "April 4"),
    ("dates", "What day of the week is 5 days after Wednesday?", "Monday"),
    ("dates", "How many days are between May 3 and May 30?", "27"),
    ("dates", "How many days does February 2024 have?", "29"),
    ("dates", "It is 10:40. What time is it in 35 minutes?", "11:15"),
]


STR, INT, NUM, BOOL = ({"type": t} for t in ("string", "integer", "number", "boolean"))
TOOLS: list[tuple[str, str, dict[str, Any], list[str], list[dict[str, Any]]]] = [
    (
        "water_plants",
        "Water the plants of a garden zone",
        obj(zone=STR, liters=INT),
        [
            "Water the plants in {zone} with {liters} liters.",
            "Please give {zone} {liters} liters of water.",
        ],
        [
            {"zone": "greenhouse", "liters": 12},
            {"zone": "terrace", "liters": 5},
            {"zone": "orchard", "liters": 40},
        ],
    ),
    (
        "get_moon_phase",
        "Moon phase on a date",
        obj(date=STR),
        ["What is the moon phase on {date}?", "Show me the moon phase for {date}."],
        [{"date": "2027-03-14"}, {"date": "2029-11-02"}, {"date": "tomorrow"}],
    ),
    (
        "lock_door",
        "Lock a door",
        obj(door=STR),
        ["Lock the {door} door.", "Please lock the {door} door."],
        [{"door": "front"}, {"door": "garage"}, {"door": "cellar"}],
    ),
    (
        "rate_movie",
        "Give a movie a rating in stars",
        obj(title={**STR, "description": "Movie title"}, stars={**INT, "description": "1 to 5"}),
        ["Rate the movie '{title}' with {stars} stars.", "Give {title} {stars} stars."],
        [
            {"title": "Night Train", "stars": 4},
            {"title": "Blue Harbor", "stars": 2},
            {"title": "Arrow", "stars": 5},
        ],
    ),
    (
        "move_robot",
        "Move the robot by x and y",
        obj(x=INT, y=INT),
        ["Move the robot to x {x} and y {y}.", "Move the robot with x {x}, y {y}."],
        [{"x": 4, "y": 17}, {"x": 120, "y": 8}, {"x": 33, "y": 61}],
    ),
    (
        "print_label",
        "Print a label",
        obj(text=STR, copies=INT),
        [
            "Print {copies} copies of a label saying '{text}'.",
            "Print a label with the text '{text}', {copies} copies.",
        ],
        [
            {"text": "fragile", "copies": 3},
            {"text": "keep dry", "copies": 10},
            {"text": "spare keys", "copies": 2},
        ],
    ),
    (
        "next_bus",
        "Departure of the next bus of a line at a stop",
        obj(line=STR, stop=STR),
        ["When is the next bus of line {line} at {stop}?", "Next bus on line {line} from {stop}?"],
        [
            {"line": "42", "stop": "Museum"},
            {"line": "N7", "stop": "Old Town"},
            {"line": "12A", "stop": "Central"},
        ],
    ),
    (
        "tune_radio",
        "Tune the radio to a frequency",
        obj(frequency=NUM),
        ["Tune the radio to {frequency}.", "Set the radio to {frequency} MHz."],
        [{"frequency": 98.5}, {"frequency": 101.3}, {"frequency": 88.8}],
    ),
    (
        "measure_air",
        "Measure an air quality value at a site",
        obj(site=STR, metric={**STR, "enum": ["ozone", "pm10", "co2"]}),
        ["Measure {metric} at {site}.", "What is the {metric} value at {site}?"],
        [
            {"site": "Dover", "metric": "ozone"},
            {"site": "Graz", "metric": "pm10"},
            {"site": "Basel", "metric": "co2"},
        ],
    ),
    (
        "open_valve",
        "Open or close a valve",
        obj(valve=STR, open=BOOL),
        ["Set valve {valve} with open {open}.", "Valve {valve}: open {open}."],
        [
            {"valve": "V12", "open": True},
            {"valve": "B3", "open": False},
            {"valve": "K77", "open": True},
        ],
    ),
    (
        "get_exchange_rate",
        "Exchange rate between two currencies",
        obj(base=STR, quote=STR),
        [
            "What is the exchange rate from {base} to {quote}?",
            "Get the exchange rate for {base} and {quote}.",
        ],
        [
            {"base": "EUR", "quote": "NOK"},
            {"base": "USD", "quote": "JPY"},
            {"base": "CHF", "quote": "GBP"},
        ],
    ),
    (
        "find_pharmacy",
        "Find an open pharmacy",
        obj(city=STR),
        ["Find a pharmacy in {city}.", "Is there an open pharmacy in {city}?"],
        [{"city": "Ghent"}, {"city": "Trieste"}, {"city": "Malaga"}],
    ),
    (
        "start_washer",
        "Start the washing machine",
        obj(program=STR, temperature=INT),
        [
            "Start the washer with program {program} at {temperature} degrees.",
            "Run the washing machine: program {program}, temperature {temperature}.",
        ],
        [
            {"program": "wool", "temperature": 30},
            {"program": "cotton", "temperature": 60},
            {"program": "quick", "temperature": 40},
        ],
    ),
    (
        "lookupMember",
        "Look up a club member",
        obj(memberId=STR),
        ["Look up member {memberId}.", "Who is the member with id {memberId}?"],
        [{"memberId": "M-204"}, {"memberId": "K881"}, {"memberId": "ZZ-17"}],
    ),
    (
        "reserve_court",
        "Reserve a tennis court",
        obj(court=INT, time=STR, players=INT),
        [
            "Reserve court {court} at {time} for {players} players.",
            "I need court {court} at {time} for {players} people.",
        ],
        [
            {"court": 3, "time": "18:30", "players": 4},
            {"court": 1, "time": "9 am", "players": 2},
            {"court": 7, "time": "20:15", "players": 4},
        ],
    ),
    (
        "tag_photo",
        "Add tags to a photo",
        obj(photo=STR, tags={"type": "array", "items": STR}),
        ["Tag photo {photo} with {tags}.", "Add the tags {tags} to photo {photo}."],
        [
            {"photo": "P-12", "tags": ["beach", "family"]},
            {"photo": "X90", "tags": ["snow", "dog", "night"]},
            {"photo": "A-7", "tags": ["party"]},
        ],
    ),
]


TRIVIAL = [
    ("Hello!", "Hello"),
    ("Who are you?", "MiniMax-M3.1 nano"),
    ("What is the capital of France?", "Paris"),
    ("Thanks!", "welcome"),
    ("What is 2 + 3?", "5"),
    ("What is 4 + 4?", "8"),
    ("Goodbye", "Goodbye"),
    ("How many days are in a week?", "7"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What can you do?", "demo model"),
]
RESPONSES = [
    ('{"temperature": 17, "sky": "cloudy"}', ["17", "cloudy"]),
    ("2.4 m", ["2.4"]),
    ('{"status": "ok", "id": "R-551"}', ["R-551"]),
    ('{"departure": "08:52"}', ["08:52"]),
    ("waxing crescent", ["waxing crescent"]),
    ('{"error": "not found"}', ["not found"]),
    ('{"name": "Hilda", "since": 2014}', ["Hilda", "2014"]),
    ("11.32", ["11.32"]),
]

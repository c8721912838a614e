"""Word lists of the data generator: names, places, things, verbs, and the system word list.

Everything here is short and hand-made except ``dictionary()``, which reads the list of English words that Debian's
``wamerican-small`` package installs (public domain and permissive sources). It gives spelling tasks their variety.
"""
from __future__ import annotations

import os
import random
from functools import lru_cache

WORDS_PATH = "/usr/share/dict/american-english-small"

NAMES = (
    "Ana Ben Carla David Elena Felix Grace Hugo Iris Jonas Karin Liam Mara Noah Olga Peter Quinn Rosa Sam Tina Uma Viktor "
    "Wendy Xavier Yara Zoe Alice Bob Carol Dan Emma Frank Gina Henry Ivan Julia Kevin Laura Mike Nina Oscar Paula Ralph "
    "Sara Tom Ursula Vera Walter Yusuf Amir Bella Chen Dora Erik Fatima Goran Hana Ines Jack Kofi Lena Marco Nadia Omar "
    "Priya Ravi Sofia Tariq Lucy Mary John James Anna Maria Paul Jane Leo Max Mia Eva Adam Clara Simon Ruth Kim Lee"
).split()
CITIES = (
    "Paris London Berlin Madrid Rome Oslo Vienna Lisbon Dublin Prague Warsaw Athens Helsinki Stockholm Copenhagen Brussels "
    "Budapest Zurich Geneva Milan Naples Turin Porto Seville Valencia Hamburg Munich Cologne Bergen Split Riga Tallinn "
    "Vilnius Sofia Bucharest Belgrade Zagreb Kyiv Istanbul Ankara Cairo Tunis Algiers Lagos Accra Nairobi Kampala Dakar "
    "Tokyo Osaka Kyoto Seoul Busan Beijing Shanghai Shenzhen Delhi Mumbai Chennai Bangkok Hanoi Manila Jakarta Singapore "
    "Sydney Melbourne Perth Auckland Toronto Montreal Vancouver Boston Chicago Denver Seattle Houston Dallas Miami Atlanta "
    "Havana Lima Quito Bogota Santiago Cusco Recife Montevideo Esbjerg Aarhus Malmo Turku Bilbao Nice Lyon Lille Ghent"
).split()
MANY_WORD_CITIES = ["New York", "San Francisco", "Los Angeles", "Buenos Aires", "Cape Town", "Hong Kong", "Tel Aviv", "Salt Lake City", "Las Vegas", "New Delhi", "San Diego",
                    "Mexico City", "St. Gallen", "Den Haag", "La Paz", "San Jose", "Kuala Lumpur", "Santa Fe"]
COLORS = "red blue green yellow black white orange purple brown pink gray silver golden".split()
THINGS = (
    "door box key lamp garden river engine bridge tower window table chair piano camera bottle basket ladder mirror clock "
    "candle blanket ticket bicycle boat train rocket statue library kitchen cellar attic gate locker drawer safe vault "
    "office printer server router sensor valve pump motor battery cable radio station harbor island forest mountain"
).split()
FRUIT = (
    "apple banana cherry grape lemon mango melon orange peach pear plum kiwi fig date lime olive papaya apricot"
).split()
COUNTABLE = (
    "apples books coins pencils stamps marbles cookies eggs cards flowers oranges stickers balloons shells bottles cups "
    "tickets photos toys bananas pears buttons chairs boxes candles bags shirts letters sandwiches pens"
).split()
ANIMALS = "cat dog horse cow sheep goat duck goose fox wolf bear lion tiger mouse rabbit owl eagle crow frog whale".split()
ADJECTIVES = (
    "quick lazy old new small large bright dark quiet loud warm cold happy sad brave calm clever gentle heavy light narrow "
    "wide round sharp soft strong sweet tall tiny young early late rich poor fresh dusty hidden secret"
).split()
VERBS_PAST = (
    "opened closed moved painted found lost carried watched cleaned repaired visited followed sold bought counted "
    "described measured crossed filled covered lifted remembered"
).split()
ATTRIBUTES = (
    "code price color size weight age height owner number password pin location city score rank speed year total key "
    "address level value status label id serial token name phone room"
).split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
MONTH_DAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Spain": "Madrid", "Italy": "Rome", "Norway": "Oslo", "Austria": "Vienna",
    "Portugal": "Lisbon", "Ireland": "Dublin", "Poland": "Warsaw", "Greece": "Athens", "Finland": "Helsinki",
    "Sweden": "Stockholm", "Denmark": "Copenhagen", "Belgium": "Brussels", "Hungary": "Budapest", "Japan": "Tokyo",
    "South Korea": "Seoul", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Canada": "Ottawa", "Peru": "Lima", "Cuba": "Havana", "Chile": "Santiago", "Australia": "Canberra",
    "Russia": "Moscow", "Turkey": "Ankara", "England": "London", "Ukraine": "Kyiv", "Thailand": "Bangkok",
    "Vietnam": "Hanoi", "Brazil": "Brasilia", "Mexico": "Mexico City", "Argentina": "Buenos Aires",
    "the United States": "Washington", "Switzerland": "Bern", "the Netherlands": "Amsterdam", "Croatia": "Zagreb",
    "Serbia": "Belgrade", "Bulgaria": "Sofia", "Romania": "Bucharest", "Latvia": "Riga", "Estonia": "Tallinn",
    "Iceland": "Reykjavik", "Morocco": "Rabat", "Ghana": "Accra", "Nigeria": "Abuja", "Indonesia": "Jakarta",
}
FACTS = {
    "What color is the sky on a clear day?": "blue", "What color is grass?": "green", "What color is snow?": "white",
    "How many days are in a week?": "7", "How many months are in a year?": "12", "How many hours are in a day?": "24",
    "How many minutes are in an hour?": "60", "How many seconds are in a minute?": "60", "How many legs does a dog have?": "4",
    "How many legs does a spider have?": "8", "What planet do we live on?": "Earth", "What is frozen water called?": "ice",
    "What is the opposite of hot?": "cold", "What is the opposite of up?": "down", "What is the opposite of big?": "small",
    "What is the opposite of open?": "closed", "What is the opposite of left?": "right", "What is the opposite of day?": "night",
    "What is the first month of the year?": "January", "What is the last month of the year?": "December",
    "Which animal says meow?": "a cat", "Which animal says woof?": "a dog", "What do bees make?": "honey",
    "What is the largest ocean?": "the Pacific Ocean", "What is the largest planet?": "Jupiter",
    "How many sides does a triangle have?": "3", "How many sides does a square have?": "4",
    "What is the first letter of the alphabet?": "a", "What is the last letter of the alphabet?": "z",
}

_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "x x twenty thirty forty fifty sixty seventy eighty ninety".split()


def number_words(n: int) -> str:
    """English words of 0 <= n < 10000."""
    if n < 20:
        return _UNITS[n]
    if n < 100:
        return _TENS[n // 10] + ("-" + _UNITS[n % 10] if n % 10 else "")
    if n < 1000:
        return _UNITS[n // 100] + " hundred" + (" and " + number_words(n % 100) if n % 100 else "")
    return number_words(n // 1000) + " thousand" + (" " + number_words(n % 1000) if n % 1000 else "")


@lru_cache(maxsize=1)
def dictionary() -> list[str]:
    """Lower-case English words of 3 to 11 letters, in file order. NANO_WORDS overrides the path."""
    path = os.environ.get("NANO_WORDS", WORDS_PATH)
    try:
        with open(path, encoding="utf-8") as f:
            words = [w.strip() for w in f]
    except OSError as e:
        raise SystemExit(f"cannot read the word list {path}: {e}. Install wamerican-small or set NANO_WORDS.") from e
    return [w for w in words if 3 <= len(w) <= 11 and w.isascii() and w.isalpha() and w.islower()]


def word(rng: random.Random, longest: int = 11) -> str:
    """A word: half of the time a common one, else any of the dictionary."""
    while True:
        r = rng.random()
        pool = (THINGS if r < 0.15 else FRUIT if r < 0.25 else ANIMALS if r < 0.35 else ADJECTIVES if r < 0.45
                else dictionary())
        w = rng.choice(pool)
        if len(w) <= longest:
            return w


def pseudo(rng: random.Random) -> str:
    """A pronounceable invented word, so that names must be copied rather than recalled."""
    return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice("aeiou") + rng.choice(["", "", "n", "r", "l", "s"])
                   for _ in range(rng.choice([2, 2, 3])))

"""Everyday tools (calculator, mail, weather, shop, home ...) in natural sentences: names, parameters and wording vary, the meaning of each slot does not.

A row is (names, descriptions, slots, sentences); a slot is (parameter names, type, maker or enumeration); {0} is the first slot's value. A sentence that leaves a slot
out leaves the (then optional) argument out. Here the model learns what wide invented tools cannot teach: that "how warm" asks for the weather.
"""

from __future__ import annotations

import random
from typing import Any

import tasks_tools_values as val
from lexicon import COLORS, FRUIT, NAMES, THINGS, word
from tasks_tools import Param, Tool, schema_of

LANGUAGES = "French German Spanish Italian Dutch Polish Danish Greek Turkish Swedish Finnish Czech Japanese Korean Arabic Hindi English Portuguese".split()
CURRENCIES = "EUR USD GBP JPY CHF NOK SEK DKK PLN CZK AUD CAD INR CNY BRL TRY".split()
ROOMS = ["kitchen", "bedroom", "bathroom", "living room", "hall", "office", "garage", "attic", "cellar", "garden", "nursery", "dining room", "study"]
OPS = {"add": "plus", "subtract": "minus", "multiply": "times", "divide": "divided by"}
SYMBOL = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}


def number(r: random.Random) -> int:
    return r.choice([r.randint(1, 20), r.randint(1, 99), r.randint(10, 999), r.randint(100, 9999)])


def formula(r: random.Random) -> str:
    s = r.choice([" ", " ", ""])
    out = str(number(r))
    for _ in range(r.choice([1, 1, 2])):
        out += f"{s}{r.choice('+-*/')}{s}{number(r)}"
    return out


def topic(r: random.Random) -> str:
    return r.choice([word(r), f"{word(r, 8)} {word(r, 8)}", r.choice(NAMES) + " " + val.pseudo(r).capitalize(), val.title(r), val.thing(r)])


def room(r: random.Random) -> str:
    return r.choice(ROOMS)


def ticker(r: random.Random) -> str:
    return val.letters(r, r.choice([2, 3, 3, 4]))


def goods(r: random.Random) -> str:
    return r.choice([r.choice(["milk", "bread", "butter", "rice", "sugar", "flour", "coffee", "tea", "cheese", "soap", "salt", "honey", "pasta", "juice", "paper"]), r.choice(FRUIT) + "s", r.choice(THINGS), val.thing(r)])


def meters(r: random.Random) -> Any:
    return r.choice([r.randint(1, 500), r.randint(1, 99) + 0.5, r.randint(1, 999) / 10])


PLACE = (["city", "location", "place", "town"], "string", val.place)
DATE = (["date", "day", "when"], "string", val.date)
TIME = (["time", "at", "start_time"], "string", val.clock)
WHO = (["person", "recipient", "to", "name", "contact"], "string", val.person)
Row = tuple[list[str], list[str], list[tuple[list[str], str, Any]], list[str]]
ROWS: list[Row] = [
    (["get_weather", "weather", "get_current_weather", "current_weather", "fetch_weather", "weather_report", "weatherLookup"], ["Get the current weather in a city", "Current weather", "Returns the weather of a place", "Weather for a location"],
     [PLACE, (["unit", "units"], "string", ["celsius", "fahrenheit"]), DATE],
     ["What's the weather in {0}?", "How is the weather in {0}?", "How warm is it in {0} in {1}?", "Is it cold in {0} today?", "Do I need an umbrella in {0}?", "Will it rain in {0} on {2}?", "What is the temperature in {0}, in {1}?", "Weather for {0} please", "Tell me the weather in {0} for {2}.",
      "How hot is it in {0}?", "Is it sunny in {0}?", "What will the weather be like in {0} on {2}?", "I want to know the weather in {0} in {1}.", "What's it like outside in {0}?", "Give me the forecast for {0} on {2}.", "Can you check the weather in {0}?"]),
    (["get_time", "current_time", "local_time", "time_in", "world_clock", "getTime"], ["Current local time of a place", "Get the time in a time zone", "What time it is somewhere"], [(["city", "zone", "timezone", "location", "place"], "string", val.place)],
     ["What time is it in {0}?", "What is the local time in {0}?", "Tell me the time in {0}.", "What's the time in {0} now?", "How late is it in {0}?", "Current time in {0}?", "What does the clock say in {0}?"]),
    (["calculate", "calculator", "evaluate", "eval_math", "compute", "do_math"], ["Evaluate a math expression", "Calculates an expression", "Do a calculation"], [(["expression", "expr", "formula", "input"], "string", formula)],
     ["Calculate {0}", "What is {0}?", "Use the calculator: {0}", "Evaluate {0}.", "Compute {0} with the tool.", "How much is {0}? Use the calculator.", "Please work out {0}.", "Use the tool to calculate {0}."]),
    (["send_email", "email", "send_mail", "compose_email", "sendEmail"], ["Send an email", "Sends a mail", "Write and send an email"], [(["to", "recipient", "address"], "string", val.mail), (["subject", "title"], "string", val.thing), (["body", "text", "message", "content"], "string", val.sentence)],
     ["Send an email to {0} with the subject '{1}' and the text '{2}'.", "Email {0} about {1}: {2}", "Write a mail to {0}, subject '{1}', saying '{2}'.", "Mail {0} that says '{2}' with subject '{1}'.", "Send {0} an email with subject {1} and body '{2}'.", "Please email '{2}' to {0}, subject '{1}'."]),
    (["send_message", "send_sms", "text_message", "message", "notify"], ["Send a text message to a person", "Sends a message", "Text somebody"], [WHO, (["message", "text", "body", "content"], "string", val.sentence)],
     ["Text {0} that says '{1}'.", "Send {0} a message: {1}", "Tell {0} '{1}'.", "Message {0}: '{1}'", "Send a message to {0} saying '{1}'.", "Write to {0}: {1}", "Let {0} know: '{1}'", "Send '{1}' to {0}.", "Please text '{1}' to {0}."]),
    (["translate", "translate_text", "translator", "translateText"], ["Translate text into a language", "Translates a text", "Translation of a phrase"], [(["text", "phrase", "sentence", "input"], "string", val.sentence), (["target_language", "language", "to", "target", "lang"], "string", LANGUAGES)],
     ["Translate '{0}' into {1}.", "Translate '{0}' to {1}.", "How do you say '{0}' in {1}?", "What is '{0}' in {1}?", "Say '{0}' in {1}.", "I need '{0}' in {1}.", "Please put '{0}' into {1}."]),
    (["convert_currency", "currency_convert", "exchange_money", "convert_money"], ["Convert an amount from one currency to another", "Currency conversion", "Converts money"],
     [(["amount", "value", "sum"], "number", meters), (["from_currency", "from", "source"], "string", lambda r: r.choice(CURRENCIES)), (["to_currency", "to", "target"], "string", lambda r: r.choice(CURRENCIES))],
     ["Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "Change {0} {1} into {2}.", "What are {0} {1} worth in {2}?", "I have {0} {1}. How many {2} is that?", "Exchange {0} {1} for {2}."]),
    (["get_stock_price", "stock_price", "quote", "get_quote", "share_price"], ["Get the price of a stock", "Current stock price", "Stock quote by ticker"], [(["symbol", "ticker", "stock", "code"], "string", ticker)],
     ["What is the stock price of {0}?", "How is {0} trading?", "Price of {0} stock?", "What does a share of {0} cost?", "Get the quote for {0}.", "How much is {0} stock?", "Check the stock {0}."]),
    (["search_web", "web_search", "search", "google", "find_online"], ["Search the web", "Web search", "Search the internet for a query"], [(["query", "q", "search_query", "text"], "string", topic), (["limit", "max_results", "count", "n"], "integer", lambda r: r.randint(1, 50))],
     ["Search for {0}.", "Search the web for {0}.", "Look up {0} online.", "Find {1} results about {0}.", "Google {0}.", "Search {0} and show {1} results.", "What does the web say about {0}?", "Find information on {0}.", "Please search '{0}'.", "Look for {0} on the internet, {1} results."]),
    (["set_alarm", "alarm", "create_alarm", "wake_me"], ["Set an alarm", "Sets an alarm clock"], [TIME, (["label", "name", "note"], "string", val.thing)],
     ["Wake me up at {0}.", "Set an alarm for {0}.", "Alarm at {0} please.", "Set an alarm at {0} called {1}.", "I have to get up at {0}.", "Set an alarm for {0} with the label '{1}'."]),
    (["set_timer", "start_timer", "timer", "countdown"], ["Start a timer", "Sets a timer in minutes", "Countdown timer"], [(["minutes", "duration", "duration_minutes"], "integer", val.whole)],
     ["Set a timer for {0} minutes.", "Start a {0} minute timer.", "Timer: {0} minutes.", "Count down {0} minutes.", "Can you time {0} minutes?"]),
    (["create_reminder", "add_reminder", "remind", "set_reminder"], ["Create a reminder", "Adds a reminder", "Remind the user of something"], [(["text", "task", "what", "message", "title"], "string", lambda r: f"{r.choice(['buy', 'call', 'clean', 'check', 'fix', 'pay', 'bring', 'water', 'feed', 'meet'])} {r.choice(['the ', 'my ', ''])}{r.choice([word(r, 8), r.choice(NAMES)])}"), DATE, TIME],
     ["Remind me to {0}.", "Remind me to {0} on {1}.", "Remind me to {0} at {2}.", "On {1} remind me to {0}.", "Set a reminder to {0} on {1} at {2}.", "Don't let me forget to {0}.", "I must {0} on {1}, remind me."]),
    (["create_event", "add_event", "schedule_meeting", "new_event", "add_to_calendar"], ["Create a calendar event", "Add an event to the calendar", "Schedule a meeting"], [(["title", "name", "summary", "event"], "string", val.thing), DATE, TIME],
     ["Put '{0}' in my calendar on {1} at {2}.", "Schedule {0} for {1} at {2}.", "Add an event called {0} on {1}.", "Create the event '{0}' on {1}, {2}.", "I have {0} on {1} at {2}, add it to the calendar.", "Plan {0} at {2} on {1}.", "Make an appointment {0} on {1} at {2}."]),
    (["book_flight", "search_flights", "find_flight", "flights"], ["Find a flight", "Book a flight between two cities", "Search flights"], [(["origin", "from", "departure", "from_city"], "string", val.place), (["destination", "to", "arrival", "to_city"], "string", val.place), DATE, (["passengers", "seats", "people"], "integer", lambda r: r.randint(1, 9))],
     ["Book a flight from {0} to {1}.", "Find a flight from {0} to {1} on {2}.", "I want to fly from {0} to {1} on {2}.", "Fly me from {0} to {1}.", "I need a plane from {0} to {1} for {3} people.", "Flights {0} to {1} on {2}?", "{3} seats from {0} to {1} on {2} please.", "Are there flights to {1} from {0}?"]),
    (["book_hotel", "reserve_hotel", "find_hotel", "hotel_booking", "reserve_room"], ["Book a hotel room", "Reserve a hotel", "Find a hotel in a city"], [PLACE, (["nights", "days"], "integer", lambda r: r.randint(1, 21)), (["guests", "people", "persons", "adults"], "integer", lambda r: r.randint(1, 9))],
     ["Book a hotel in {0} for {1} nights.", "I need a room in {0} for {1} nights and {2} people.", "Find me a hotel in {0}.", "Reserve a hotel in {0} for {2} guests.", "We are {2} people and stay {1} nights in {0}.", "Hotel in {0}, {1} nights, {2} guests."]),
    (["book_table", "reserve_table", "restaurant_booking"], ["Reserve a table at a restaurant", "Book a table"], [(["restaurant", "name", "place"], "string", val.title), (["people", "guests", "party_size", "seats"], "integer", lambda r: r.randint(1, 12)), TIME],
     ["Book a table for {1} at {0}.", "Reserve a table at {0} for {1} people at {2}.", "Table for {1} at {0} at {2} please.", "We want to eat at {0} at {2}, {1} people.", "Get us a table at {0} for {1} at {2}."]),
    (["get_directions", "route", "directions", "plan_route", "navigate"], ["Directions between two places", "Plan a route", "How to get somewhere"], [(["start", "from", "origin"], "string", val.place), (["end", "to", "destination"], "string", val.place), (["mode", "by", "travel_mode"], "string", ["car", "bike", "foot", "bus", "train"])],
     ["How do I get from {0} to {1}?", "Directions from {0} to {1} by {2}.", "Route from {0} to {1}.", "Take me from {0} to {1} by {2}.", "What is the best way from {0} to {1} by {2}?", "Navigate to {1} from {0}."]),
    (["get_distance", "distance", "distance_between"], ["Distance between two cities", "Compute the distance of two places"], [(["from", "city_a", "start", "place1"], "string", val.place), (["to", "city_b", "end", "place2"], "string", val.place)],
     ["How far is it from {0} to {1}?", "What is the distance between {0} and {1}?", "How many kilometers are between {0} and {1}?", "Distance from {0} to {1}?", "How far is {1} from {0}?", "Measure the distance {0} to {1}."]),
    (["add_to_cart", "add_item", "shopping_list_add", "put_in_basket", "buy"], ["Add an item to the shopping cart", "Put a product in the cart", "Add something to buy"], [(["item", "product", "name", "article"], "string", goods), (["quantity", "count", "amount", "number"], "integer", lambda r: r.randint(1, 30))],
     ["Add {1} {0} to my cart.", "Put {0} on the list.", "I want to buy {1} {0}.", "Buy {0}, {1} of them.", "We need {1} packs of {0}.", "Add {0} to the basket.", "Please order {1} bottles of {0}.", "Put {1} boxes of {0} in the cart.", "I'd like {1} bags of {0}."]),
    (["track_order", "order_status", "track_parcel", "where_is_order", "get_order"], ["Track an order", "Status of an order", "Find a parcel by its number"], [(["order_id", "id", "tracking_number", "number", "order"], "string", val.code)],
     ["Where is my order {0}?", "Track order {0}.", "What is the status of {0}?", "Has {0} been sent?", "When does parcel {0} arrive?", "Check order number {0}.", "Did my package {0} arrive?", "Find shipment {0}."]),
    (["set_light", "light", "control_light", "switch_light", "lights"], ["Switch a light", "Control the lights of a room", "Turn a light on or off"], [(["room", "location", "where"], "string", room), (["on", "state_on", "power", "turned_on"], "boolean", None), (["color"], "string", COLORS), (["brightness", "level"], "integer", lambda r: r.randint(1, 100))],
     ["Turn {1} the light in the {0}.", "Switch {1} the {0} light.", "Turn the {0} light {1}.", "Lights {1} in the {0}.", "Make the {0} light {2}.", "Set the {0} light to {3} percent.", "Please switch the light in the {0} {1}.", "Dim the {0} to {3}."]),
    (["set_thermostat", "set_temperature", "heating", "thermostat"], ["Set the temperature of a room", "Control the heating"], [(["temperature", "degrees", "target", "value"], "number", lambda r: r.choice([r.randint(5, 30), r.randint(10, 59) / 2])), (["room", "zone", "where"], "string", room)],
     ["Set the {1} to {0} degrees.", "Heat the {1} to {0} degrees.", "Make it {0} degrees in the {1}.", "I want {0} degrees in the {1}.", "Set the temperature in the {1} to {0}.", "Set the thermostat to {0}."]),
    (["play_music", "play_song", "play", "start_music"], ["Play a song", "Plays music by title and artist"], [(["song", "title", "track"], "string", val.title), (["artist", "band", "by"], "string", val.person), (["volume"], "integer", lambda r: r.randint(1, 100))],
     ["Play {0}.", "Play '{0}' by {1}.", "Put on {0} by {1}.", "I want to hear {0}.", "Play the song {0} at volume {2}.", "Can you play {0} by {1}?", "Start {0} by {1} with volume {2}."]),
    (["define_word", "dictionary", "define", "lookup_word"], ["Definition of a word", "Look up a word in the dictionary"], [(["word", "term", "entry"], "string", lambda r: word(r))],
     ["What does '{0}' mean?", "Define {0}.", "Look up the word {0}.", "What is the meaning of {0}?", "Give me the definition of {0}."]),
    (["roll_dice", "dice", "throw_dice", "roll"], ["Roll dice", "Throw some dice"], [(["sides", "faces"], "integer", lambda r: r.choice([4, 6, 8, 10, 12, 20, r.randint(2, 100)])), (["count", "dice", "number", "n"], "integer", lambda r: r.randint(1, 12))],
     ["Roll a {0} sided die.", "Roll {1} dice with {0} sides.", "Throw {1} dice with {0} sides each.", "Roll {1} {0}-sided dice.", "Use a die with {0} sides."]),
    (["random_number", "random_int", "pick_number", "randint"], ["A random number in a range", "Random integer between two numbers"], [(["min", "low", "from", "minimum"], "integer", lambda r: r.randint(0, 50)), (["max", "high", "to", "maximum"], "integer", lambda r: r.randint(51, 1000))],
     ["Give me a random number between {0} and {1}.", "Pick a number from {0} to {1}.", "Random number {0} to {1}?", "Choose any number between {0} and {1}."]),
    (["convert_units", "unit_converter", "convert"], ["Convert a value between units", "Unit conversion"], [(["value", "amount", "number"], "number", meters), (["from_unit", "from", "unit"], "string", ["km", "miles", "kg", "pounds", "meters", "feet", "liters", "gallons", "inches", "cm"]), (["to_unit", "to", "target"], "string", ["km", "miles", "kg", "pounds", "meters", "feet", "liters", "gallons", "inches", "cm"])],
     ["Convert {0} {1} to {2}.", "How many {2} are {0} {1}?", "What is {0} {1} in {2}?", "Turn {0} {1} into {2}.", "{0} {1} in {2}?"]),
    (["get_user", "find_user", "lookup_user", "user_info", "getProfile"], ["Look up a user", "Profile of a user by id", "Get user data"], [(["user_id", "id", "username", "user"], "string", val.code)],
     ["Who is user {0}?", "Show the profile of {0}.", "Find the user with id {0}.", "Look up user {0}.", "Get the data of user {0}.", "Which user has the id {0}?"]),
    (["read_file", "open_file", "cat", "load_file"], ["Read a file", "Returns the content of a file"], [(["path", "file", "filename", "name"], "string", val.path)],
     ["Read {0}.", "Open the file {0}.", "What is in {0}?", "Show me {0}.", "Print the content of {0}.", "Load {0} please."]),
    (["write_file", "save_file", "create_file"], ["Write text to a file", "Save a file"], [(["path", "file", "filename"], "string", val.path), (["content", "text", "data"], "string", val.sentence)],
     ["Write '{1}' to {0}.", "Save '{1}' in {0}.", "Create the file {0} with the text '{1}'.", "Put '{1}' into {0}.", "Make a file {0} that says '{1}'."]),
    (["transfer_money", "pay", "send_money", "bank_transfer"], ["Send money to a person", "Transfer money"], [(["amount", "sum", "value"], "number", meters), WHO],
     ["Send {0} euros to {1}.", "Pay {1} {0} dollars.", "Transfer {0} to {1}.", "I owe {1} {0} euros, please pay.", "Give {1} {0} dollars.", "{1} should get {0} euros."]),
    (["find_recipe", "recipes", "search_recipe", "what_to_cook"], ["Find a recipe by ingredients", "Recipes with the given ingredients"], [(["ingredients", "with", "items"], "array", None), (["servings", "people", "portions"], "integer", lambda r: r.randint(1, 12))],
     ["What can I cook with {0}?", "Find a recipe with {0}.", "I have {0}. What can I make?", "Recipe with {0} for {1} people?", "Give me a meal for {1} with {0}."]),
    (["sort_list", "sort_items", "order_list"], ["Sort a list", "Sorts items"], [(["items", "list", "values", "words"], "array", None), (["order", "direction"], "string", ["ascending", "descending"])],
     ["Use the tool to sort {0}.", "Sort the list {0} with the tool, {1}.", "Put {0} in {1} order with the tool."]),
]  # fmt: skip


RECKONING = ("calculation", "calculate", "convert_units", "sort_list")  # tools that take questions which are answered without them otherwise


def alike(a: Tool, b: Tool) -> bool:
    """Two tools that the same words ask for."""
    if a.verb and b.verb:  # both invented
        return (a.noun, a.verb) == (b.noun, b.verb)
    return bool(set(a.asks) & set(b.asks)) or (a.noun in RECKONING[:2] and b.noun in RECKONING[:2])


def calculator(r: random.Random) -> Tool:
    """Two numbers and an operation, by its name or its sign."""
    names = r.sample(list(OPS), r.choice([2, 3, 4]))
    signs = r.random() < 0.25
    a, b = r.choice([("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("n1", "n2"), ("num1", "num2")])
    typ = r.choice(["number", "number", "integer"])
    params = [Param(a, "a", typ, True, number, [], ""), Param(b, "b", typ, True, number, [], ""),
              Param(r.choice(["op", "operation", "operator", "method", "kind"]), "op", "string", True, None, [], "", [SYMBOL[n] for n in names] if signs else names)]  # fmt: skip
    if r.random() < 0.3:
        params = [params[2], *params[:2]]
    t = Tool(r.choice(["calculator", "calc", "arithmetic", "compute", "math", "do_math", "calculate"]), r.choice(["Do a calculation", "Calculator for two numbers", "Simple arithmetic", "Computes with two numbers"]), params, [], ["result"], "calculation")
    t.asks = names
    t.schema = schema_of(r, t)
    return t


def calculator_request(r: random.Random, t: Tool) -> tuple[str, dict[str, Any]]:
    op, x, y = r.choice(t.asks), number(r), number(r)
    kinds = {p.concept: p for p in t.params}
    sign = SYMBOL[op] if "+" in (kinds["op"].enum or []) or "-" in (kinds["op"].enum or []) or "*" in (kinds["op"].enum or []) or "/" in (kinds["op"].enum or []) else op
    said = {"add": [f"Add {x} and {y}", f"{x} plus {y}", f"the sum of {x} and {y}", f"{x} + {y}"], "subtract": [f"{x} minus {y}", f"{x} - {y}", f"{x} take away {y}"], "multiply": [f"Multiply {x} and {y}", f"Multiply {x} with {y}", f"{x} times {y}", f"{x} * {y}", f"the product of {x} and {y}"],
            "divide": [f"Divide {x} by {y}", f"{x} divided by {y}", f"{x} / {y}"]}[op]  # fmt: skip
    s = r.choice(said)
    if s[0].isupper():
        text = r.choice([f"{s}.", f"{s} with the {t.name}.", f"Use the {t.name}: {s[0].lower() + s[1:]}.", f"Please {s[0].lower() + s[1:]}.", f"Can you {s[0].lower() + s[1:]}?"])
    else:
        text = r.choice([f"What is {s}? Use the {t.name}.", f"Calculate {s}.", f"What is {s}?", f"How much is {s}?", f"Compute {s} with the tool.", f"Use the {t.name} for {s}."])
    want = {kinds["a"].name: x, kinds["b"].name: y, kinds["op"].name: sign}
    return text, {p.name: want[p.name] for p in t.params}


def make_tool(r: random.Random) -> Tool:
    if r.random() < 0.05:
        return calculator(r)
    names, descs, slots, says = r.choice(ROWS)
    always = [i for i in range(len(slots)) if all(f"{{{i}}}" in s for s in says)]
    keep = [i for i in range(len(slots)) if i in always or r.random() < 0.6]
    fit = [s for s in says if all(f"{{{i}}}" not in s for i in range(len(slots)) if i not in keep)]
    if not fit:
        return make_tool(r)
    params, taken = [], set()
    for i in keep:
        pn, typ, maker = slots[i]
        free = [n for n in pn if n not in taken] or [f"{pn[0]}_{i}"]
        n = r.choice(free)
        taken.add(n)
        enum = maker if isinstance(maker, list) and (len(maker) < 8 or r.random() < 0.2) else None
        if enum and len(enum) > 5:
            enum = list(enum)
        d = n.replace("_", " ")
        params.append(Param(n, str(i), typ, i in always, maker, [], r.choice([f"The {d}", d.capitalize(), f"{d.capitalize()} of the request", ""]), enum))
    t = Tool(r.choice(names), r.choice(descs) if r.random() < 0.95 else "", params, fit, ["status", "result", "id", "value", "price", "time"], names[0])
    t.schema = schema_of(r, t)
    return t


def request(r: random.Random, t: Tool) -> tuple[str, dict[str, Any]]:
    if t.noun == "calculation":
        return calculator_request(r, t)
    s = r.choice(t.asks)
    args: dict[str, Any] = {}
    fill: dict[str, str] = {}
    for p in t.params:
        if f"{{{p.concept}}}" not in s:
            continue
        v: Any
        if p.type == "boolean":
            v = r.random() < 0.5
            text = "on" if v else "off"
        elif p.type == "array":
            v = list(dict.fromkeys(r.choice([goods(r), r.choice(FRUIT)]) for _ in range(r.randint(1, 4))))
            text = ", ".join(v[:-1]) + r.choice([" and ", ", "]) + v[-1] if len(v) > 1 else v[0]
        else:
            v = r.choice(p.maker) if isinstance(p.maker, list) else p.maker(r)
            text = str(v)
        args[p.name] = v
        fill[p.concept] = text
    if len(set(map(str, args.values()))) < len(args):
        return request(r, t)
    # a boolean switch that the sentence leaves out is not an argument; everything required is said
    text = s
    for k, x in fill.items():
        text = text.replace(f"{{{k}}}", x)
    k = r.random()
    if k < 0.08:
        text = text[0].lower() + text[1:]
    elif k < 0.14:
        text = r.choice(["Hi, ", "Hello! ", "Hey, ", "Ok, ", "Now "]) + text
    elif k < 0.18:
        text = text.rstrip(".") + r.choice([" please.", ", please.", ", thanks."]) if text.endswith(".") else text
    return text, args

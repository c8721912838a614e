"""Writes heldout_fresh.jsonl: a second blind set. The first (make_blind.py) was read to see what to train next; this one was written by hand when most
of the generators that came of it were finished. One (tasks_tools_dressed.py) was added afterwards, when the score of the earlier weights on this set was known;
no reply to it was read for that.

Three of four requests come with other tools; a quarter of all ask for two or three things.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from records import obj, write_calls

S, I, N, B = ({"type": t} for t in ("string", "integer", "number", "boolean"))
L = {"type": "array", "items": S}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "water_garden": ("Turn on the sprinklers of a flower bed", obj(bed=S, minutes=I)),
    "find_dentist": ("Dentists that take new patients", obj(town=S)),
    "feed_fish": ("Feed the fish in a tank", obj(tank=S, pinches=I)),
    "get_tide_height": ("Height of the tide at a pier", obj(pier=S, time=S)),
    "close_shutters": ("Close the shutters of a room", obj(room=S)),
    "review_cafe": ("Leave a review of a cafe", obj(cafe=S, stars=I)),
    "issue_parking_permit": ("Issue a parking permit for a car", obj(plate=S, days=I)),
    "marry_couple": ("Register a wedding", obj(bride=S, groom=S)),
    "blend_smoothie": ("Blend a smoothie from fruit", obj(fruits=L, milliliters=I)),
    "toggle_fountain": ("Switch the fountain on or off", obj(running=B)),
    "quote_poem": ("Recite a poem", obj(poet=S, poem=S)),
    "soilMoisture": ("Moisture of the soil in a field", obj(fieldId=S)),
    "inflate_tire": ("Inflate a tire to a pressure", obj(tire=S, bar=N)),
    "order_firewood": (
        "Have firewood delivered",
        obj(wood={**S, "enum": ["oak", "birch", "beech"]}, crates=I),
    ),
    "call_nurse": ("Send a nurse to a ward", obj(ward=S)),
    "crossfade": ("Fade from one track into another", obj(current=S, following=S)),
    "weigh_truck": ("Weigh a truck on the scale", obj(truck_number=S)),
    "engrave_ring": ("Engrave words on a ring", obj(words=S, metal=S)),
    "skate_rental": ("Rent out ice skates", obj(size=I, hours=I)),
    "stamp_passport": ("Put a visa stamp in a passport", obj(passport=S, country=S)),
}
Wanted = list[tuple[str, dict[str, Any]]]
ASK: list[tuple[str, list[str], Wanted]] = [
    ("Water the rose bed for 15 minutes.", ["water_garden", "feed_fish"], [("water_garden", {"bed": "rose", "minutes": 15})]),
    ("Turn the sprinklers on in bed 4 for 20 minutes please.", ["toggle_fountain", "water_garden", "call_nurse"], [("water_garden", {"bed": "4", "minutes": 20})]),
    ("Is there a dentist in Utrecht?", ["call_nurse", "find_dentist", "review_cafe", "get_tide_height"], [("find_dentist", {"town": "Utrecht"})]),
    ("I am looking for a dentist in Bari.", ["find_dentist"], [("find_dentist", {"town": "Bari"})]),
    ("Feed the fish in tank B with 3 pinches.", ["feed_fish", "blend_smoothie"], [("feed_fish", {"tank": "B", "pinches": 3})]),
    ("Give the fish in the big tank 5 pinches.", ["review_cafe", "feed_fish", "skate_rental"], [("feed_fish", {"tank": "big", "pinches": 5})]),
    ("How high is the tide at Mole pier at 16:40?", ["get_tide_height", "soilMoisture"], [("get_tide_height", {"pier": "Mole", "time": "16:40"})]),
    ("What is the height of the tide at pier 9 at 7 am?", ["soilMoisture", "weigh_truck", "get_tide_height", "inflate_tire"], [("get_tide_height", {"pier": "9", "time": "7 am"})]),
    ("Close the shutters in the nursery.", ["close_shutters", "call_nurse"], [("close_shutters", {"room": "nursery"})]),
    ("Please close the shutters of the dining room.", ["close_shutters"], [("close_shutters", {"room": "dining room"})]),
    ("Give cafe Lumen 4 stars.", ["review_cafe", "feed_fish", "stamp_passport"], [("review_cafe", {"cafe": "Lumen", "stars": 4})]),
    ("Review the cafe Old Mill with 2 stars.", ["marry_couple", "review_cafe"], [("review_cafe", {"cafe": "Old Mill", "stars": 2})]),
    ("I need a parking permit for AB-771 for 3 days.", ["issue_parking_permit", "skate_rental", "weigh_truck"], [("issue_parking_permit", {"plate": "AB-771", "days": 3})]),
    ("Issue a permit for the car with plate KX 20 for 14 days.", ["stamp_passport", "issue_parking_permit"], [("issue_parking_permit", {"plate": "KX 20", "days": 14})]),
    ("Register the wedding of Ines and Tobias.", ["marry_couple"], [("marry_couple", {"bride": "Ines", "groom": "Tobias"})]),
    ("Register a wedding: bride Hilda, groom Otto.", ["marry_couple", "engrave_ring", "call_nurse"], [("marry_couple", {"bride": "Hilda", "groom": "Otto"})]),
    ("Blend a smoothie from mango, kiwi and spinach, 400 milliliters.", ["blend_smoothie", "order_firewood"], [("blend_smoothie", {"fruits": ["mango", "kiwi", "spinach"], "milliliters": 400})]),
    ("Blend 250 milliliters of smoothie with banana and cherry.", ["blend_smoothie"], [("blend_smoothie", {"fruits": ["banana", "cherry"], "milliliters": 250})]),
    ("Set the fountain to running false.", ["toggle_fountain", "water_garden"], [("toggle_fountain", {"running": False})]),
    ("Recite the poem The Harbor by Mansfield.", ["quote_poem", "crossfade"], [("quote_poem", {"poet": "Mansfield", "poem": "The Harbor"})]),
    ("I want to hear the poem Snowfall by Rilke.", ["close_shutters", "quote_poem", "find_dentist"], [("quote_poem", {"poet": "Rilke", "poem": "Snowfall"})]),
    ("How moist is the soil in field F-18?", ["soilMoisture", "water_garden", "get_tide_height"], [("soilMoisture", {"fieldId": "F-18"})]),
    ("What is the soil moisture of field 7?", ["soilMoisture"], [("soilMoisture", {"fieldId": "7"})]),
    ("Inflate the left front tire to 2.4 bar.", ["inflate_tire", "weigh_truck"], [("inflate_tire", {"tire": "left front", "bar": 2.4})]),
    ("Pump the spare tire up to 3 bar.", ["feed_fish", "inflate_tire", "toggle_fountain"], [("inflate_tire", {"tire": "spare", "bar": 3})]),
    ("Order 6 crates of birch firewood.", ["order_firewood", "blend_smoothie", "issue_parking_permit"], [("order_firewood", {"wood": "birch", "crates": 6})]),
    ("We need a nurse in ward 12.", ["find_dentist", "call_nurse"], [("call_nurse", {"ward": "12"})]),
    ("Fade from Nightfall into Embers.", ["crossfade", "quote_poem"], [("crossfade", {"current": "Nightfall", "following": "Embers"})]),
    ("Weigh truck TR-505.", ["weigh_truck", "inflate_tire", "soilMoisture", "issue_parking_permit"], [("weigh_truck", {"truck_number": "TR-505"})]),
    ("Engrave the gold ring with the words 'for ever'.", ["engrave_ring", "marry_couple"], [("engrave_ring", {"words": "for ever", "metal": "gold"})]),
    ("I'd like to rent skates in size 42 for 2 hours.", ["skate_rental", "issue_parking_permit"], [("skate_rental", {"size": 42, "hours": 2})]),
    ("Put a stamp of Peru in passport P88123.", ["stamp_passport", "engrave_ring", "find_dentist"], [("stamp_passport", {"passport": "P88123", "country": "Peru"})]),
    ("Weigh truck 31 and truck 32.", ["weigh_truck", "inflate_tire"], [("weigh_truck", {"truck_number": "31"}), ("weigh_truck", {"truck_number": "32"})]),
    ("Find a dentist in Gdansk and in Sopot.", ["find_dentist", "call_nurse"], [("find_dentist", {"town": "Gdansk"}), ("find_dentist", {"town": "Sopot"})]),
    ("Close the shutters in the attic and send a nurse to ward C.", ["call_nurse", "close_shutters", "feed_fish"], [("close_shutters", {"room": "attic"}), ("call_nurse", {"ward": "C"})]),
    ("Give cafe Bruno 5 stars and cafe Dot 3 stars.", ["review_cafe", "order_firewood"], [("review_cafe", {"cafe": "Bruno", "stars": 5}), ("review_cafe", {"cafe": "Dot", "stars": 3})]),
    ("Inflate the rear tire to 2.1 bar, then weigh truck LV-9.", ["weigh_truck", "inflate_tire"], [("inflate_tire", {"tire": "rear", "bar": 2.1}), ("weigh_truck", {"truck_number": "LV-9"})]),
    ("What is the soil moisture of field A2? Also, water the herb bed for 8 minutes.", ["water_garden", "soilMoisture", "feed_fish"], [("soilMoisture", {"fieldId": "A2"}), ("water_garden", {"bed": "herb", "minutes": 8})]),
    ("Stamp passport X410 for Chile and passport Y902 for Laos.", ["stamp_passport", "issue_parking_permit"], [("stamp_passport", {"passport": "X410", "country": "Chile"}), ("stamp_passport", {"passport": "Y902", "country": "Laos"})]),
    ("Fade from Aurora into Tides. After that order 2 crates of oak firewood.", ["order_firewood", "crossfade", "get_tide_height"], [("crossfade", {"current": "Aurora", "following": "Tides"}), ("order_firewood", {"wood": "oak", "crates": 2})]),
]  # fmt: skip


def main() -> None:
    write_calls(Path(__file__).with_name("heldout_fresh.jsonl"), "fresh tool", TOOLS, ASK, 12000)


if __name__ == "__main__":
    main()

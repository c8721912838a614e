"""Writes heldout_blind.jsonl: tools and requests written by hand after the generators were finished and before any reply to them was read.

Half of the requests come with distractors; a few ask for two things. Nothing in the generators was changed because of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from records import obj, write_calls

S, I, N, B = ({"type": t} for t in ("string", "integer", "number", "boolean"))
L = {"type": "array", "items": S}
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "milk_cow": ("Milk a cow in a barn", obj(barn=S, cow=S)),
    "get_ski_conditions": ("Snow report of a ski resort", obj(resort=S)),
    "rent_kayak": ("Rent a kayak", obj(lake=S, hours=I)),
    "dim_stage": ("Dim the stage lights", obj(scene=I, percent=I)),
    "fetch_sheet_music": ("Find sheet music", obj(composer=S, piece=S)),
    "polish_shoes": ("Polish shoes", obj(color={**S, "enum": ["brown", "black", "tan"]}, pairs=I)),
    "locate_satellite": ("Where a satellite is now", obj(satellite_id=S)),
    "brew_tea": ("Brew tea", obj(("sugar",), leaf=S, minutes=I, sugar=B)),
    "cast_vote": ("Cast a vote in a poll", obj(poll=S, option=S)),
    "sharpen_knife": ("Sharpen a knife to an angle", obj(knife=S, angle=N)),
    "ring_bell": ("Ring the bell", obj(times=I)),
    "hire_clown": ("Hire a clown for a party", obj(date=S, children=I)),
    "pollination_report": ("Report on pollination of an orchard", obj(orchard=S, year=I)),
    "swap_shift": ("Swap shifts between two workers", obj(worker=S, other=S)),
    "archiveThread": ("Archive a discussion thread", obj(threadId=S)),
    "mix_paint": ("Mix paints", obj(colors=L, liters=N)),
    "water_level": ("Water level of a reservoir", obj(reservoir=S)),
    "catapult": ("Load and fire the catapult", obj(stone=S, range=N)),
    "subtitle_file": ("Load subtitles for a film", obj(film=S, language=S)),
    "pin_note": ("Pin a note to the board", obj(text=S, color=S)),
}
Wanted = list[tuple[str, dict[str, Any]]]
ASK: list[tuple[str, list[str], Wanted]] = [
    ("Milk the cow Bella in barn 4.", ["milk_cow"], [("milk_cow", {"barn": "4", "cow": "Bella"})]),
    ("How are the ski conditions in Zermatt?", ["get_ski_conditions", "rent_kayak"], [("get_ski_conditions", {"resort": "Zermatt"})]),
    ("I'd like to rent a kayak on Lake Como for 3 hours.", ["rent_kayak", "ring_bell", "water_level"], [("rent_kayak", {"lake": "Lake Como", "hours": 3})]),
    ("Dim the stage for scene 12 to 35 percent.", ["dim_stage"], [("dim_stage", {"scene": 12, "percent": 35})]),
    ("Find the sheet music of Fantasia by Telemann.", ["fetch_sheet_music", "subtitle_file"], [("fetch_sheet_music", {"composer": "Telemann", "piece": "Fantasia"})]),
    ("Polish two pairs of brown shoes.", ["polish_shoes"], [("polish_shoes", {"color": "brown", "pairs": 2})]),
    ("Polish 5 pairs of black shoes please.", ["sharpen_knife", "polish_shoes", "mix_paint"], [("polish_shoes", {"color": "black", "pairs": 5})]),
    ("Where is satellite NX-40 right now?", ["locate_satellite"], [("locate_satellite", {"satellite_id": "NX-40"})]),
    ("Locate the satellite KEO7.", ["archiveThread", "locate_satellite", "milk_cow", "cast_vote"], [("locate_satellite", {"satellite_id": "KEO7"})]),
    ("Brew the tea with leaf sencha for 4 minutes.", ["brew_tea"], [("brew_tea", {"leaf": "sencha", "minutes": 4})]),
    ("Brew tea: leaf oolong, 6 minutes, sugar true.", ["brew_tea", "polish_shoes"], [("brew_tea", {"leaf": "oolong", "minutes": 6, "sugar": True})]),
    ("In the poll lunch, vote for option soup.", ["cast_vote"], [("cast_vote", {"poll": "lunch", "option": "soup"})]),
    ("Cast a vote for pasta in the poll dinner.", ["cast_vote", "hire_clown"], [("cast_vote", {"poll": "dinner", "option": "pasta"})]),
    ("Sharpen the bread knife to 22.5 degrees.", ["sharpen_knife"], [("sharpen_knife", {"knife": "bread", "angle": 22.5})]),
    ("Sharpen knife K3 with an angle of 17.", ["ring_bell", "sharpen_knife", "catapult"], [("sharpen_knife", {"knife": "K3", "angle": 17})]),
    ("Ring the bell 3 times.", ["ring_bell"], [("ring_bell", {"times": 3})]),
    ("Please ring the bell 12 times!", ["milk_cow", "dim_stage", "ring_bell", "brew_tea"], [("ring_bell", {"times": 12})]),
    ("We need a clown on 2028-05-06 for 14 children.", ["hire_clown"], [("hire_clown", {"date": "2028-05-06", "children": 14})]),
    ("Hire a clown for Saturday, 9 children.", ["swap_shift", "hire_clown"], [("hire_clown", {"date": "Saturday", "children": 9})]),
    ("Get the pollination report of orchard Hillside for 2031.", ["pollination_report"], [("pollination_report", {"orchard": "Hillside", "year": 2031})]),
    ("Swap the shifts of Tom and Priya.", ["swap_shift"], [("swap_shift", {"worker": "Tom", "other": "Priya"})]),
    ("Swap shifts between Anna and Viktor.", ["cast_vote", "swap_shift", "archiveThread"], [("swap_shift", {"worker": "Anna", "other": "Viktor"})]),
    ("Archive thread T-1182.", ["archiveThread"], [("archiveThread", {"threadId": "T-1182"})]),
    ("Archive the discussion thread 90b.", ["archiveThread", "pin_note"], [("archiveThread", {"threadId": "90b"})]),
    ("Mix 2.5 liters of paint from red, white and blue.", ["mix_paint"], [("mix_paint", {"colors": ["red", "white", "blue"], "liters": 2.5})]),
    ("Mix the colors green and yellow, 4 liters.", ["mix_paint", "water_level"], [("mix_paint", {"colors": ["green", "yellow"], "liters": 4})]),
    ("What is the water level of the reservoir Oberon?", ["water_level"], [("water_level", {"reservoir": "Oberon"})]),
    ("How high is the water level in Lakeside?", ["catapult", "get_ski_conditions", "water_level"], [("water_level", {"reservoir": "Lakeside"})]),
    ("Fire the catapult with the stone granite, range 120.5.", ["catapult"], [("catapult", {"stone": "granite", "range": 120.5})]),
    ("Load the subtitles for the film Silent Storm in Danish.", ["subtitle_file"], [("subtitle_file", {"film": "Silent Storm", "language": "Danish"})]),
    ("I need subtitles for Blue Mountain in Greek.", ["fetch_sheet_music", "subtitle_file"], [("subtitle_file", {"film": "Blue Mountain", "language": "Greek"})]),
    ("Pin a yellow note saying 'call the plumber'.", ["pin_note"], [("pin_note", {"text": "call the plumber", "color": "yellow"})]),
    ("Pin a note with the text 'closed on Monday' and color pink.", ["pin_note", "cast_vote", "brew_tea"], [("pin_note", {"text": "closed on Monday", "color": "pink"})]),
    ("Ring the bell 2 times and archive thread A7.", ["ring_bell", "archiveThread"], [("ring_bell", {"times": 2}), ("archiveThread", {"threadId": "A7"})]),
    ("What is the water level of Merrin? Also, rent a kayak on Lake Ohrid for 5 hours.", ["water_level", "rent_kayak"], [("water_level", {"reservoir": "Merrin"}), ("rent_kayak", {"lake": "Lake Ohrid", "hours": 5})]),
    ("Give me the ski conditions in Davos and in Ischgl.", ["get_ski_conditions"], [("get_ski_conditions", {"resort": "Davos"}), ("get_ski_conditions", {"resort": "Ischgl"})]),
    ("Locate satellite HB-3 and satellite HB-9.", ["locate_satellite", "dim_stage"], [("locate_satellite", {"satellite_id": "HB-3"}), ("locate_satellite", {"satellite_id": "HB-9"})]),
    ("Milk the cow Dora in barn 2, then brew tea with leaf mint for 7 minutes.", ["milk_cow", "brew_tea", "pin_note"], [("milk_cow", {"barn": "2", "cow": "Dora"}), ("brew_tea", {"leaf": "mint", "minutes": 7})]),
    ("Dim the stage for scene 3 to 80 percent and for scene 4 to 10 percent.", ["dim_stage"], [("dim_stage", {"scene": 3, "percent": 80}), ("dim_stage", {"scene": 4, "percent": 10})]),
    ("Swap shifts between Leo and Nadia and pin a red note that says 'new roster'.", ["swap_shift", "pin_note"], [("swap_shift", {"worker": "Leo", "other": "Nadia"}), ("pin_note", {"text": "new roster", "color": "red"})]),
]  # fmt: skip


def main() -> None:
    write_calls(Path(__file__).with_name("heldout_blind.jsonl"), "blind tool", TOOLS, ASK, 11000)


if __name__ == "__main__":
    main()

"""The table of vLLM's arguments, and how a call is checked against it.

arguments.json has, for each call and in the order of its parameters: the default, a verdict
("same", "default", "refused"), the other values ("values") or keys ("keys") that mean something
here, and why everything else is refused. "ignored": any value, no effect.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...suggest import unknown_name

Entry = dict[str, Any]


def _read() -> tuple[str, dict[str, dict[str, Entry]]]:
    table = json.loads(Path(__file__).with_name("arguments.json").read_text(encoding="utf-8"))
    return table.pop("version"), table


VERSION, CALLS = _read()
ENGINE = {**CALLS["LLM"], **CALLS["EngineArgs"]}  # LLM(...) takes both


def bind(
    call: str,
    arguments: Mapping[str, Entry],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ours: Iterable[str] = (),
) -> dict[str, Any]:
    """The arguments of a call by name; positional ones are in vLLM's order. `ours`: names that only
    this engine has.
    """
    names = list(arguments)
    if len(args) > len(names):
        raise TypeError(f"{call} takes at most {len(names)} positional arguments, not {len(args)}")
    given = dict(zip(names, args, strict=False))
    known = {*names, *ours}
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"{call} got multiple values for argument {name!r}")
        if name not in known:
            raise TypeError(unknown_name(call, name, known))
        given[name] = value
    for name, entry in arguments.items():
        if entry.get("required") and name not in given and name != "model":
            raise TypeError(f"{call} needs the argument {name!r}")
    return given


def is_refused(entry: Entry, value: Any) -> bool:
    """Whether this value has no meaning here."""
    if entry["verdict"] == "same":
        return False
    if entry["verdict"] == "refused":
        return True
    if value is None or _same(value, entry["default"]):
        return False
    if any(_same(value, other) for other in entry.get("values", ())):
        return False
    keys = entry.get("keys")
    if keys is None or not isinstance(value, Mapping):
        return True
    return any(
        key not in keys
        or (keys[key] is not None and not any(_same(item, other) for other in keys[key]))
        for key, item in value.items()
    )


def refusal(name: str, entry: Entry, value: Any) -> str:
    """What is wrong with it and what to write instead."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    accepted = [repr(entry["default"]), *map(repr, entry.get("values", ()))]
    if "keys" in entry:
        accepted.append("a dict with " + ", ".join(map(_key_text, entry["keys"].items())))
    return f"{name}={shown}: {entry['why']}; accepted: {', '.join(accepted)}"


def signature(arguments: Mapping[str, Entry]) -> inspect.Signature:
    """vLLM's parameters, for help() and editors."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                kind,
                default=inspect.Parameter.empty if entry.get("required") else entry["default"],
            )
            for name, entry in arguments.items()
        ]
    )


def _same(a: Any, b: Any) -> bool:
    """Equal, with 1 and True apart and lists and tuples alike."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return list(a) == list(b)
    try:
        return bool(a == b)
    except Exception:  # an array, or an object with an opinion of its own
        return False


def _key_text(item: tuple[str, list[Any] | None]) -> str:
    name, values = item
    return name if values is None else f"{name}={' or '.join(map(repr, values))}"

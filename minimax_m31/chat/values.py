"""Typed values of tool arguments: element trees and their text, read by the tool's JSON schema.

The wire format has no types (numbers, booleans and strings look alike), so the schema decides. A
conversion that fails is never an error: the value stays the raw string. Strings are verbatim,
nothing is trimmed or decoded.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from .schema import Alternative, Schema, alternatives, item_schema, property_schema

_INTEGER = re.compile(r"[+-]?[0-9]+")
_INTEGRAL = re.compile(r"([+-]?[0-9]+)\.0+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NULL_TEXTS = ("null", "Null", "NULL")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}

# Python refuses to print integers beyond 4,300 digits (a process-wide setting, not ours to change):
# such a value stays a string. JSON nested deeper than this cannot be printed safely either.
_MAX_DIGITS = 4300
_MAX_JSON_DEPTH = 128

FAILED = object()


class Element:
    """One `§<tag>` ... `§</tag>` while it is read. `tail` is the text since the last child."""

    __slots__ = ("children", "schema", "tag", "tail", "text")

    def __init__(self, tag: str, schema: Schema) -> None:
        self.tag = tag
        self.schema = schema
        self.children: list[Element] = []
        self.text: list[str] = []
        self.tail: list[str] = []

    def add_child(self, child: Element) -> None:
        self.text.extend(self.tail)
        self.tail = []
        self.children.append(child)

    def full_text(self) -> str:
        return "".join(self.text) + "".join(self.tail)


def arguments_json(root: Element) -> tuple[str, bool]:
    """(JSON object of the parameters, whether text was skipped: a list has no place for it)."""
    lost: list[Element] = []
    value = _object(root, root.schema, lost, keep_text=False)
    return json.dumps(value, ensure_ascii=False), bool(lost)


def _convert(element: Element, schema: Schema, lost: list[Element]) -> Any:
    if not element.children:
        return convert_text(element.full_text(), schema)
    kinds = [alternative.kind for alternative in alternatives(schema)]
    all_items = all(child.tag == "item" for child in element.children)
    containers = [kind for kind in kinds if kind in ("object", "array")]
    if len(set(containers)) == 2:
        as_list = all_items
    elif containers:
        as_list = containers[0] == "array"
    else:
        as_list = not kinds and all_items
    if not as_list:
        return _object(element, schema, lost)
    if element.full_text().strip():
        lost.append(element)
    return [
        _convert(child, item_schema(schema, i), lost) for i, child in enumerate(element.children)
    ]


def _object(
    element: Element, schema: Schema, lost: list[Element], keep_text: bool = True
) -> dict[str, Any]:
    groups: dict[str, list[Element]] = {}
    for child in element.children:
        groups.setdefault(child.tag, []).append(child)
    out: dict[str, Any] = {}
    for tag, children in groups.items():
        own = property_schema(schema, tag)
        if len(children) == 1:
            out[tag] = _convert(children[0], own, lost)
        elif any(alternative.kind == "array" for alternative in alternatives(own)):
            out[tag] = [
                _convert(child, item_schema(own, i), lost) for i, child in enumerate(children)
            ]
        else:
            out[tag] = [_convert(child, own, lost) for child in children]
    text = element.full_text()
    if keep_text and text.strip():
        key = "$text"
        while key in out:
            key = "$" + key
        out[key] = text
    return out


def convert_text(text: str, schema: Schema) -> Any:
    """The value of an element that holds only text."""
    allowed = alternatives(schema)
    if not allowed:
        literal = text.strip()
        return _LITERALS[literal] if literal in _LITERALS else text
    kinds = {alternative.kind for alternative in allowed}
    if text in _NULL_TEXTS and ("null" in kinds or not kinds & {"string", "enum"}):
        return None
    if not text and "null" in kinds and "string" not in kinds:
        return None
    for alternative in allowed:
        value = _convert_one(text, alternative)
        if value is not FAILED:
            return value
    return text


def _convert_one(text: str, alternative: Alternative) -> Any:
    kind = alternative.kind
    if kind == "string":
        return text
    if kind == "integer":
        integral = _INTEGRAL.fullmatch(text)
        return _integer(integral[1] if integral else text)
    if kind == "number":
        value = _integer(text)
        if value is not FAILED or not _NUMBER.fullmatch(text):
            return value
        real = float(text)
        return real if math.isfinite(real) else FAILED
    if kind == "boolean":
        word = text.strip().lower()
        return word in ("true", "1") if word in ("true", "1", "false", "0") else FAILED
    if kind == "enum":
        return _member(text, alternative.members)
    if kind in ("object", "array"):
        if not text.strip():
            return {} if kind == "object" else []
        value = parse_json(text)
        return value if isinstance(value, dict if kind == "object" else list) else FAILED
    return FAILED  # null: decided before


def _integer(text: str) -> Any:
    if not _INTEGER.fullmatch(text) or len(text) > _MAX_DIGITS:
        return FAILED
    return int(text)


def _member(text: str, members: tuple[Any, ...]) -> Any:
    value: Any = FAILED
    for member in members:
        if isinstance(member, str):
            if member == text:
                return member
            continue
        if value is FAILED:
            value = parse_json(text)
        if (
            value is not FAILED
            and value == member
            and isinstance(value, bool) == isinstance(member, bool)
        ):
            return member
    return FAILED


def parse_json(text: str) -> Any:
    """The JSON value, or FAILED: also for NaN, infinities, lone surrogates and nesting that cannot
    be printed.
    """
    try:
        value = json.loads(text, parse_constant=_reject, parse_float=_finite)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        return FAILED
    return value if _shallow(value) else FAILED


def _reject(name: str) -> Any:
    raise ValueError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_JSON_DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return True
        level = below
    return False

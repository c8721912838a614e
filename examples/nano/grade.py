"""Graders of the held-out prompts: from the raw text of a reply to right or wrong. Used for PyTorch and for the engine alike."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

NS = "]<]minimax[>["
OPEN, CLOSE = "<mm:think>", "</mm:think>"


@dataclass
class Reply:
    thinking: str
    content: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    well_formed: bool = True  # thinking closed, call block by the grammar
    opened: bool = False  # a thinking span was opened by the model or the prompt


def convert(text: str, schema: dict[str, Any]) -> Any:
    t = schema.get("type")
    try:
        if t == "integer":
            return int(text)
        if t == "number":
            return float(text) if not re.fullmatch(r"-?\d+", text) else int(text)
        if t == "boolean":
            return {"true": True, "false": False}[text]
    except (ValueError, KeyError):
        return text
    return text


def parse_calls(text: str, tools: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Strict reading of one call block (the whole of `text`); None if it is not well formed."""
    n = re.escape(NS)
    m = re.fullmatch(
        rf"{n}<tool_call>\n((?:{n}<invoke name=\"[^\"]+\">.*?{n}</invoke>\n)+){n}</tool_call>",
        text,
        re.S,
    )
    if not m:
        return None
    calls = []
    for name, body in re.findall(rf"{n}<invoke name=\"([^\"]+)\">(.*?){n}</invoke>\n", m[1], re.S):
        props = next(
            (t["parameters"].get("properties", {}) for t in tools if t["name"] == name), {}
        )
        args: dict[str, Any] = {}
        pos = 0
        for p in re.finditer(rf"{n}<([^<>/]+)>(.*?){n}</\1>", body, re.S):
            if p.start() != pos:
                return None
            pos = p.end()
            sch = props.get(p[1], {})
            items = re.findall(rf"{n}<item>(.*?){n}</item>", p[2], re.S)
            args[p[1]] = (
                [convert(x, sch.get("items", {})) for x in items]
                if sch.get("type") == "array"
                else convert(p[2], sch)
            )
        if pos != len(body):
            return None
        calls.append({"name": name, "arguments": args})
    return calls


def read(text: str, mode: str, tools: list[dict[str, Any]]) -> Reply:
    """Split a raw reply (special tokens kept, end token removed)."""
    thinking, opened, ok = "", mode == "enabled", True
    if mode == "adaptive" and text.startswith(OPEN):
        opened, text = True, text[len(OPEN) :]
    elif mode == "adaptive" and text.startswith(CLOSE):
        text = text[len(CLOSE) :]
    if opened:
        thinking, mark, text = text.partition(CLOSE)
        ok = bool(mark)
    ok &= OPEN not in text and CLOSE not in text
    calls: list[dict[str, Any]] = []
    content, mark, rest = text.partition(NS)
    if mark:
        parsed = parse_calls(mark + rest, tools)
        ok &= parsed is not None
        calls = parsed or []
    return Reply(thinking, content, calls, ok, opened or (mode == "disabled" and OPEN in text))


def norm(s: str) -> str:
    s = s.strip().lower()
    s = re.sub(r"^(the answer is|answer:|it is)\s+", "", s)
    return s.rstrip(".!").strip()


def exact(content: str, answer: str) -> bool:
    c, a = norm(content), norm(answer)
    if c == a:
        return True
    num = re.match(r"-?[\d.,]*\d", c)  # "36 apples" for 36
    want = re.match(r"-?[\d.,]*\d", a)
    return bool(
        num
        and want
        and re.fullmatch(r"-?[\d.,]*\d( [a-z]+)?", a)
        and re.fullmatch(r"-?[\d.,]*\d( [a-z]+)?", c)
        and num[0].replace(",", "") == want[0].replace(",", "")
    )


def grade(rec: dict[str, Any], r: Reply) -> bool:
    g = rec["grade"]
    if not r.well_formed:
        return False
    if g["type"] in ("exact", "needle"):
        return exact(r.content, g["answer"])
    if g["type"] == "contains":
        return all(x.lower() in r.content.lower() for x in g["all"])
    if g["type"] == "json":
        try:
            v = json.loads(r.content)
        except ValueError:
            return False
        return (
            isinstance(v, dict)
            and len(v) == 1
            and (v.get("answer") == g["answer"] or str(v.get("answer")) == str(g["answer"]))
        )
    if g["type"] == "calls":
        return sorted(map(json.dumps, r.calls)) == sorted(
            map(json.dumps, g["calls"])
        ) or _same_calls(r.calls, g["calls"])
    raise ValueError(f"unknown grader {g['type']!r}")


def _same_calls(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    rest = list(b)
    for x in a:
        hit = next(
            (y for y in rest if y["name"] == x["name"] and y["arguments"] == x["arguments"]), None
        )
        if hit is None:
            return False
        rest.remove(hit)
    return not rest

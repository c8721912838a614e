"""The shapes of held-out records, in one place: a prompt, what a right answer is, and which questions training must leave out."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

Record = dict[str, Any]
Schema = dict[str, Any]


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def exact(kind: str, question: str, answer: str) -> Record:
    """A question whose answer is graded as it stands."""
    grade = {"type": "exact", "answer": answer}
    return {"kind": kind, "messages": user(question), "grade": grade, "raw": [question]}


def calls(kind: str, text: str, tools: list[Schema], wanted: list[tuple[str, Any]]) -> Record:
    """A request that is answered by these calls, in any order."""
    grade = {"type": "calls", "calls": [{"name": n, "arguments": a} for n, a in wanted]}
    return {"kind": kind, "messages": user(text), "tools": tools, "grade": grade}


def obj(optional: tuple[str, ...] = (), **props: Any) -> Schema:
    """A schema of an object; everything is required that is not optional."""
    need = [n for n in props if n not in optional]
    return {"type": "object", "properties": props, "required": need}


def lines(records: list[Record], first: int = 0) -> str:
    """The text of a file of records, numbered from `first`."""
    rows = ({"id": first + i, **r} for i, r in enumerate(records))
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows)


def write(path: Path, records: list[Record], first: int = 0) -> None:
    path.write_text(lines(records, first), encoding="utf-8")
    print(f"{len(records)} prompts in {path.name}")


def bare(name: str) -> str:
    """A tool's name without its spelling: lock_door, lockDoor and lock.door are one."""
    return "".join(c for c in name.lower() if c.isalnum())


@lru_cache(maxsize=1)
def tool_names() -> frozenset[str]:
    """Bare names of the hand-written held-out tools: no training sample may have one."""
    names = set()
    for file in ("heldout.jsonl", "heldout_blind.jsonl", "heldout_fresh.jsonl"):
        path = Path(__file__).with_name(file)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        names |= {
            bare(t["name"]) for x in text.splitlines() for t in json.loads(x).get("tools", ())
        }
    return frozenset(names)


def write_calls(
    file: Path,
    kind: str,
    tools: dict[str, tuple[str, dict[str, Any]]],
    ask: list[tuple[str, list[str], list[tuple[str, dict[str, Any]]]]],
    first: int,
) -> None:
    """Records of (request, names of the tools on offer, the calls that are right), with the tools' descriptions and schemas."""

    def schema(name: str) -> dict[str, Any]:
        return {"name": name, "description": tools[name][0], "parameters": tools[name][1]}

    write(file, [calls(kind, q, [schema(n) for n in names], want) for q, names, want in ask], first)

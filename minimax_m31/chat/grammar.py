"""Grammar of forced tool calls (tool_choice "required" or a named function), in llguidance's Lark
dialect.

The grammar is the model's own call format, typed by the tools' schemas: declared properties in
declared order, required ones mandatory. It is made of text literals: the token table of the matcher
must give the namespace mark as text (as `Tokenizer.token_bytes` does). Where thinking comes first
is decided by whoever applies it, as for any other constraint.

A value and its closing tag are one terminal: the lexer of llguidance does not go back, so a free
text that may begin like the mark must know what ends it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import GrammarError
from .marks import NAMESPACE
from .schema import Schema, alternatives, branches, item_schema, property_schema, resolve
from .tools import check_tool_choice, normalise_tools

PIP_LINE = 'pip install "minimax-m31[structured]"'

_NS_REGEX = re.escape(NAMESPACE)
_SCALARS = {
    "integer": "-?(0|[1-9][0-9]*)",
    "number": r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "boolean": "(true|false)",
    "null": "null",
}
_FREE_NAME = "[A-Za-z_][A-Za-z0-9_.-]*"


def require_llguidance() -> Any:
    """The llguidance module, or the error that says how to get it."""
    try:
        import llguidance
    except ImportError as error:
        raise GrammarError(
            f"tool_choice 'required' or a named function is enforced by a grammar: {PIP_LINE}",
            param="tool_choice",
        ) from error
    return llguidance


def forced_call_grammar(
    tools: Iterable[Any], tool_choice: Any = "required", parallel_tool_calls: bool = True
) -> str:
    """Lark text that admits one block of calls to the tools allowed, and nothing else.

    `parallel_tool_calls=False`: exactly one call. Building the text needs no llguidance; enforcing
    it does (`require_llguidance`).
    """
    definitions = normalise_tools(tools)
    name = check_tool_choice(tool_choice, definitions)
    if name is None:
        raise GrammarError(
            f"tool_choice={tool_choice!r} forces no call", param="tool_choice", value=tool_choice
        )
    chosen = [tool["function"] for tool in definitions if name in ("", tool["function"]["name"])]
    return _Writer().write(chosen, parallel_tool_calls)


def single_call_grammar(tools: Iterable[Any]) -> str:
    """Lark text of an answer with at most one call (`parallel_tool_calls=False`): text without the
    namespace mark, then perhaps one block with one invoke."""
    chosen = [tool["function"] for tool in normalise_tools(tools)]
    body = _Writer().write(chosen, parallel=False)
    head, opener = "start: ", _literal(NAMESPACE + "<tool_call>\n")
    assert body.startswith(head + opener)
    rest = body[len(head + opener) :]
    return f"start: PLAIN | TEXT_CALL{rest}TEXT_CALL: PLAIN {opener}\n"


class _Writer:
    """Collects rules and terminals; equal schemas are written once, so recursive ones end."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._bodies: dict[tuple[int, str, str], str] = {}

    def write(self, functions: list[Mapping[str, Any]], parallel: bool) -> str:
        invokes = []
        for i, function in enumerate(functions):
            parameters = function.get("parameters") or {}
            fields = self._fields(Schema(parameters, parameters))
            opener = _literal(f'{NAMESPACE}<invoke name="{function["name"]}">')
            closer = _literal(f"{NAMESPACE}</invoke>\n")
            self._lines.append(f"invoke_{i}: {opener} {fields} {closer}")
            invokes.append(f"invoke_{i}")
        head = [
            f"start: {_literal(NAMESPACE + '<tool_call>' + chr(10))} "
            f"invoke{'+' if parallel else ''} " + _literal(NAMESPACE + "</tool_call>"),
            "invoke: " + " | ".join(invokes),
            # Any text that does not hold the mark.
            f"PLAIN: /(?s:.*)/ & ~/(?s:.*){_NS_REGEX}(?s:.*)/",
            f"FREE_OPEN: /{_NS_REGEX}<{_FREE_NAME}>/",
            f"FREE_CLOSE: /{_NS_REGEX}<\\/{_FREE_NAME}>/",
            "FREE_TEXT: PLAIN FREE_CLOSE",
            "free_element: FREE_OPEN (FREE_TEXT | free_element+ FREE_CLOSE)",
        ]
        return "\n".join(head + self._lines) + "\n"

    def _fields(self, schema: Schema) -> str:
        """The declared properties, in order; optional ones may be left out."""
        properties: dict[str, None] = {}
        required: set[str] = set()
        for branch in branches(schema):
            for key in branch.node.get("properties") or {}:
                properties.setdefault(key)
        for part in _all_of(schema):
            required.update(key for key in part.node.get("required") or () if isinstance(key, str))
        fields = []
        for key in properties:
            field = self._element(key, property_schema(schema, key))
            fields.append(field if key in required else f"({field})?")
        return " ".join(fields)

    def _element(self, tag: str, schema: Schema) -> str:
        return f"{_literal(f'{NAMESPACE}<{tag}>')} {self._body(tag, schema)}"

    def _body(self, tag: str, schema: Schema) -> str:
        """Name of the rule for a value together with its closing tag."""
        key = (id(schema.root), json.dumps(schema.node, sort_keys=True, default=str), tag)
        if key not in self._bodies:
            self._bodies[key] = f"value_{len(self._bodies)}"
            name = self._bodies[key]
            self._lines.append(f"{name}: {self._value(name, tag, schema)}")
        return self._bodies[key]

    def _value(self, name: str, tag: str, schema: Schema) -> str:
        closer = _literal(f"{NAMESPACE}</{tag}>")
        members = _members(schema)
        if members is not None:
            return " | ".join(_literal(f"{member}{NAMESPACE}</{tag}>") for member in members)
        kinds = [alternative.kind for alternative in alternatives(schema)]
        options: list[str] = []
        if not kinds or "string" in kinds:
            self._lines.append(f"{name.upper()}_TEXT: PLAIN {closer}")
            options.append(f"{name.upper()}_TEXT")
        else:
            for alternative in alternatives(schema):
                if alternative.kind == "enum":
                    options.extend(
                        _literal(_spell(m) + f"{NAMESPACE}</{tag}>") for m in alternative.members
                    )
            scalars = [_SCALARS[kind] for kind in kinds if kind in _SCALARS]
            if scalars:
                self._lines.append(f"{name.upper()}_SCALAR: /{'|'.join(scalars)}/ {closer}")
                options.append(f"{name.upper()}_SCALAR")
        if "array" in kinds:
            options.append(f"({self._element('item', item_schema(schema, 0))})* {closer}")
        if "object" in kinds:
            fields = self._fields(schema)
            options.append(f"{fields} {closer}" if fields else f"free_element* {closer}")
        if not kinds:
            options.append(f"free_element+ {closer}")
        return " | ".join(options)


def _all_of(schema: Schema) -> Iterable[Schema]:
    """The schema and its allOf parts: what they require holds in every case."""
    current = resolve(schema)
    yield current
    for part in current.node.get("allOf") or ():
        yield resolve(Schema(part, schema.root))


def _members(schema: Schema) -> list[str] | None:
    node = resolve(schema).node
    if isinstance(node.get("enum"), (list, tuple)) and node["enum"]:
        members = list(node["enum"])
    elif "const" in node:
        members = [node["const"]]
    else:
        return None
    return [_spell(member) for member in members]


def _spell(member: Any) -> str:
    return member if isinstance(member, str) else json.dumps(member, ensure_ascii=False)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)

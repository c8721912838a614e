"""Look-ups in the JSON schemas of tools: which schema governs a name, and which types it allows, in
order.

A schema is carried as `Schema(node, root)`: `root` is the document that local `$ref`s point into.
Look-ups go through `$ref` and through anyOf/oneOf/allOf branches at every level, so a declaration
is found wherever it is written. Cycles end by identity; nothing here recurses into values.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_COMBINERS = ("anyOf", "oneOf", "allOf")


class Schema(NamedTuple):
    node: Any
    root: Any


UNTYPED = Schema({}, {})


class Alternative(NamedTuple):
    """One way to read a value: `kind` is string, integer, number, boolean, object, array, null or
    enum.
    """

    kind: str
    members: tuple[Any, ...] = ()  # of an enum


def resolve(schema: Schema) -> Schema:
    """Follow local `$ref`s; keys beside a `$ref` override the target's. An unresolvable one is
    untyped.
    """
    node, root = schema
    for _ in range(32):
        if not isinstance(node, Mapping):
            return Schema({}, root)
        ref = node.get("$ref")
        if not isinstance(ref, str):
            return Schema(node, root)
        target = _pointer(root, ref)
        if not isinstance(target, Mapping):
            return Schema({key: value for key, value in node.items() if key != "$ref"}, root)
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
    return Schema({}, root)


def _pointer(root: Any, ref: str) -> Any:
    if not ref.startswith("#"):
        return None
    node = root
    for part in ref[1:].split("/")[1:]:
        key = urllib.parse.unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = node.get(key)
        elif isinstance(node, Sequence) and not isinstance(node, str) and key.isdecimal():
            node = node[int(key)] if int(key) < len(node) else None
        else:
            return None
    return node


def branches(schema: Schema) -> Iterator[Schema]:
    """The schema itself and, depth first, every branch of its anyOf/oneOf/allOf, references
    resolved.
    """
    seen: set[int] = set()
    stack = [schema]
    while stack:
        node, root = stack.pop()
        if isinstance(node, Mapping):
            if id(node) in seen or len(seen) > 4096:
                continue
            seen.add(id(node))
        current = resolve(Schema(node, root))
        yield current
        inner: list[Schema] = []
        for combiner in _COMBINERS:
            inner.extend(Schema(branch, root) for branch in _as_list(current.node.get(combiner)))
        stack.extend(reversed(inner))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def declared_property(schema: Schema, name: str) -> Schema | None:
    """The schema declared for `name` under `properties`, or None. Several branches are
    alternatives.
    """
    found: list[Any] = []
    for branch in branches(schema):
        properties = branch.node.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            found.append(properties[name])
    if not found:
        return None
    return Schema(found[0] if len(found) == 1 else {"anyOf": found}, schema.root)


def property_schema(schema: Schema, name: str) -> Schema:
    """`properties[name]`, else `additionalProperties` where that is a schema, else untyped."""
    declared = declared_property(schema, name)
    if declared is not None:
        return declared
    for branch in branches(schema):
        additional = branch.node.get("additionalProperties")
        if isinstance(additional, Mapping):
            return Schema(additional, schema.root)
    return Schema({}, schema.root)


def item_schema(schema: Schema, index: int) -> Schema:
    """`prefixItems[index]`, else `items`, else untyped."""
    for branch in branches(schema):
        prefix = _as_list(branch.node.get("prefixItems"))
        if index < len(prefix):
            return Schema(prefix[index], schema.root)
    for branch in branches(schema):
        items = branch.node.get("items")
        if isinstance(items, Mapping):
            return Schema(items, schema.root)
        if isinstance(items, list) and index < len(items):  # the older spelling of prefixItems
            return Schema(items[index], schema.root)
    return Schema({}, schema.root)


def alternatives(schema: Schema) -> list[Alternative]:
    """The types a schema allows, in declared order; an empty list means untyped."""
    out: list[Alternative] = []
    _collect(schema, out, [], 0)
    unique: list[Alternative] = []
    for alternative in out:
        # Identity of members, not equality: True == 1 would merge two enums.
        if not any(a.kind == alternative.kind and a.members is alternative.members for a in unique):
            unique.append(alternative)
    return unique


def _collect(schema: Schema, out: list[Alternative], path: list[int], depth: int) -> None:
    if depth > 32 or len(out) > 256 or id(schema.node) in path:
        return
    path = [*path, id(schema.node)]
    node, root = resolve(schema)
    declared = node.get("type")
    names = (
        [declared]
        if isinstance(declared, str)
        else [n for n in _as_list(declared) if isinstance(n, str)]
    )
    kinds = [kind for name in names if (kind := type_kind(name)) is not None]
    if kinds:
        out.extend(Alternative(kind) for kind in kinds)
    else:
        for combiners in (("anyOf", "oneOf"), ("allOf",)):
            before = len(out)
            for combiner in combiners:
                for branch in _as_list(node.get(combiner)):
                    _collect(Schema(branch, root), out, path, depth + 1)
            if len(out) > before:
                break
        else:
            members = node.get("enum")
            if isinstance(members, (list, tuple)):
                out.append(Alternative("enum", tuple(members)))
            elif "const" in node:
                out.append(Alternative("enum", (node["const"],)))
            elif "items" in node or "prefixItems" in node:
                out.append(Alternative("array"))
            elif "properties" in node or "additionalProperties" in node:
                out.append(Alternative("object"))
    if out and node.get("nullable") is True and not any(a.kind == "null" for a in out):
        out.append(Alternative("null"))


def type_kind(name: str) -> str | None:
    """One of the seven kinds for a type name of any common dialect, or None for a name nobody
    knows.
    """
    low = name.strip().lower()
    if low in ("string", "str", "text", "varchar", "char", "enum"):
        return "string"
    if low.startswith(("int", "uint", "long", "short", "unsigned")):
        return "integer"
    if low.startswith(("num", "float", "double")):
        return "number"
    if low in ("boolean", "bool", "binary"):
        return "boolean"
    if low in ("object", "dict", "map"):
        return "object"
    if low in ("array", "arr", "list", "sequence"):
        return "array"
    return "null" if low == "null" else None


def can_contain(schema: Schema, tag: str) -> bool:
    """False only when the schema says that a value of it has no child called `tag`."""
    kinds = {alternative.kind for alternative in alternatives(schema)}
    if not kinds or "array" in kinds:
        return True
    if "object" not in kinds:
        return False
    declares_any = False
    for branch in branches(schema):
        properties = branch.node.get("properties")
        additional = branch.node.get("additionalProperties")
        if isinstance(properties, Mapping):
            declares_any = True
            if tag in properties:
                return True
        if (
            additional is True
            or isinstance(additional, Mapping)
            or "patternProperties" in branch.node
        ):
            return True
        if additional is False:
            declares_any = True
    return not declares_any

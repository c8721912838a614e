"""Tools of a request: OpenAI function dicts, Python callables and pydantic models become function
dicts.

Callables follow the conventions of transformers' `get_json_schema`: the Google-style docstring
describes, the annotations type, a parameter without a default is required. Dicts pass through
unchanged: the template prints exactly the keys the caller gave, in the caller's order.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import InvalidRequestError
from .marks import NAMESPACE

_SIMPLE: dict[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?)\s*:\s*$", re.M
)
_ARG = re.compile(r"^(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$", re.S)
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.I | re.S)


def normalise_tools(tools: Iterable[Any] | None) -> list[dict[str, Any]]:
    """Checked function dicts, in the caller's order; an empty list when there are none."""
    if tools is None:
        return []
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
        raise InvalidRequestError(
            "tools must be a list of function dicts, callables or pydantic models, not "
            f"{type(tools).__name__}",
            param="tools",
            value=tools,
        )
    out: list[dict[str, Any]] = []
    names: dict[str, int] = {}
    for i, tool in enumerate(tools):
        definition = _definition(tool, i)
        name = _check(definition, i)
        if name in names:
            raise InvalidRequestError(
                f"tools[{i}] and tools[{names[name]}] are both called {name!r}: names must differ",
                param=f"tools[{i}].function.name",
                value=name,
            )
        names[name] = i
        out.append(definition)
    return out


def _definition(tool: Any, i: int) -> dict[str, Any]:
    if isinstance(tool, Mapping):
        return dict(tool)
    if isinstance(tool, type) and callable(getattr(tool, "model_json_schema", None)):
        return pydantic_tool(tool)
    if callable(tool):
        try:
            return function_tool(tool)
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"tools[{i}]: {error}", param=f"tools[{i}]", value=tool
            ) from error
    raise InvalidRequestError(
        f"tools[{i}] must be a function dict, a callable or a pydantic model, not "
        f"{type(tool).__name__}",
        param=f"tools[{i}]",
        value=tool,
    )


def _check(definition: dict[str, Any], i: int) -> str:
    function = definition.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name.strip():
        raise InvalidRequestError(
            f"tools[{i}] needs the form "
            f"{{'type': 'function', 'function': {{'name': ..., 'parameters': ...}}}}",
            param=f"tools[{i}].function.name",
            value=name,
        )
    assert isinstance(function, Mapping)
    parameters = function.get("parameters", {})
    param = f"tools[{i}].function.parameters"
    if not isinstance(parameters, Mapping):
        raise InvalidRequestError(
            f"parameters of tool {name!r} must be a JSON schema (a dict), not "
            f"{type(parameters).__name__}",
            param=param,
            value=parameters,
        )
    for key in _property_names(parameters):
        if not writable_tag(key):
            raise InvalidRequestError(
                f"tool {name!r}: the property name {key!r} cannot be written as a tag of the call "
                "format: "
                "it must not be empty, hold '<', '>' or blanks, or begin with '/'",
                param=param,
                value=key,
            )
    return name


def writable_tag(name: Any) -> bool:
    return (
        isinstance(name, str)
        and bool(name)
        and not re.search(r"[<>\s]", name)
        and not name.startswith("/")
        and NAMESPACE not in name
    )


def _property_names(schema: Any) -> Iterable[Any]:
    """Keys under every `properties`, at any depth."""
    stack, seen = [schema], set()
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        if isinstance(node, Mapping):
            seen.add(id(node))
            properties = node.get("properties")
            if isinstance(properties, Mapping):
                yield from properties
            stack.extend(node.values())
        elif isinstance(node, (list, tuple)):
            seen.add(id(node))
            stack.extend(node)


def check_tool_choice(tool_choice: Any, tools: list[dict[str, Any]]) -> str | None:
    """None for auto and none, "" for required, else the function named; refuses everything else."""
    if tool_choice in (None, "auto", "none"):
        return None
    if tool_choice == "required":
        name: Any = ""
    elif isinstance(tool_choice, Mapping):
        function = tool_choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
    else:
        name = None
    if not isinstance(name, str) or (isinstance(tool_choice, Mapping) and not name):
        raise InvalidRequestError(
            f"tool_choice={tool_choice!r}: expected 'auto', 'none', 'required' or "
            "{'type': 'function', 'function': {'name': ...}}",
            param="tool_choice",
            value=tool_choice,
        )
    known = [tool["function"]["name"] for tool in tools]
    if not known or (name and name not in known):
        what = f"names {name!r}" if name else "is 'required'"
        raise InvalidRequestError(
            f"tool_choice {what}, but the tools given are {known or 'none'}",
            param="tool_choice",
            value=tool_choice,
        )
    return name


# -- pydantic models and callables -------------------------------------------------------------


def pydantic_tool(model: Any) -> dict[str, Any]:
    schema = dict(model.model_json_schema())
    schema.pop("title", None)
    function: dict[str, Any] = {"name": model.__name__}
    if "description" in schema:
        function["description"] = schema.pop("description")
    function["parameters"] = schema
    return {"type": "function", "function": function}


def function_tool(function: Callable[..., Any]) -> dict[str, Any]:
    """The function dict of a callable, by its docstring and annotations."""
    name = getattr(function, "__name__", type(function).__name__)
    doc = inspect.getdoc(function)
    if not doc or not doc.strip():
        raise InvalidRequestError(
            f"{name} has no docstring: describe it and its arguments", param="tools"
        )
    description, arguments, returns = parse_docstring(doc)
    hinted = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        hints = typing.get_type_hints(hinted)
    except (NameError, TypeError) as error:
        raise InvalidRequestError(
            f"annotations of {name} cannot be read: {error}", param="tools"
        ) from error
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
            parameter.POSITIONAL_ONLY,
        ):
            raise InvalidRequestError(
                f"{name}: parameter {parameter.name!r} cannot be given by name", param="tools"
            )
        if parameter.name not in hints:
            raise InvalidRequestError(
                f"{name}: parameter {parameter.name!r} has no type annotation", param="tools"
            )
        if parameter.name not in arguments:
            raise InvalidRequestError(
                f"{name}: the docstring does not describe parameter {parameter.name!r} under "
                "'Args:'",
                param="tools",
            )
        schema = type_schema(hints[parameter.name], f"{name}: parameter {parameter.name!r}")
        text = arguments[parameter.name]
        choices = _CHOICES.search(text)
        if choices:
            try:
                schema["enum"] = [
                    choice.strip() if isinstance(choice, str) else choice
                    for choice in json.loads(choices[1])
                ]
            except (ValueError, TypeError) as error:
                raise InvalidRequestError(
                    f"{name}: choices of {parameter.name!r} are not a JSON list: {choices[1]}",
                    param="tools",
                ) from error
            text = text[: choices.start()].strip()
        schema["description"] = text
        properties[parameter.name] = schema
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    out: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if "return" in hints:
        out["return"] = type_schema(hints["return"], f"{name}: return value")
        if returns is not None:
            out["return"]["description"] = returns
    return {"type": "function", "function": out}


def parse_docstring(doc: str) -> tuple[str, dict[str, str], str | None]:
    """(description, description by argument, of the return value) from a Google-style docstring."""
    sections = list(_SECTION.finditer(doc))
    description = doc[: sections[0].start()].strip() if sections else doc.strip()
    arguments: dict[str, str] = {}
    returns = None
    for i, section in enumerate(sections):
        end = sections[i + 1].start() if i + 1 < len(sections) else len(doc)
        body = inspect.cleandoc("\n" + doc[section.end() : end].strip("\n"))
        if section[1] in ("Args", "Arguments", "Parameters"):
            arguments.update(_argument_lines(body))
        elif section[1].startswith("Return"):
            returns = " ".join(body.split()) or None
    return description, arguments, returns


def _argument_lines(body: str) -> dict[str, str]:
    """Entries begin with `name:` at the left margin; every other line continues the one before."""
    out: dict[str, str] = {}
    name = ""
    for line in body.splitlines():
        found = None if line[:1].isspace() else _ARG.match(line.strip())
        if found:
            name = found[1].lstrip("*")
            out[name] = found[2].strip()
        elif name and line.strip():
            out[name] = f"{out[name]} {line.strip()}".strip()
    return out


def type_schema(hint: Any, where: str) -> dict[str, Any]:
    """JSON schema of a type annotation."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is None:
        if hint in _SIMPLE:
            return {"type": _SIMPLE[hint]}
        pydantic_schema = getattr(hint, "model_json_schema", None)
        if isinstance(hint, type) and callable(pydantic_schema):
            return dict(pydantic_schema())
        raise InvalidRequestError(
            f"{where}: the annotation {hint!r} has no JSON schema; use str, int, float, bool, "
            "list, dict, tuple, "
            "Optional, Union, Literal, a pydantic model or Any",
            param="tools",
        )
    if origin is typing.Annotated:
        return type_schema(args[0], where)
    if origin is Literal:
        kinds = list(dict.fromkeys(_SIMPLE.get(type(value), "string") for value in args))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(args)}
    if origin is Union or origin is types.UnionType:
        return _union_schema(args, where)
    if origin is list:
        return {"type": "array", "items": type_schema(args[0], where)}
    if origin is tuple:
        return _tuple_schema(args, where)
    if origin is dict:
        out: dict[str, Any] = {"type": "object"}
        if len(args) == 2:
            out["additionalProperties"] = type_schema(args[1], where)
        return out
    raise InvalidRequestError(f"{where}: the annotation {hint!r} has no JSON schema", param="tools")


def _union_schema(args: tuple[Any, ...], where: str) -> dict[str, Any]:
    parts = [type_schema(arg, where) for arg in args if arg is not type(None)]
    if len(parts) == 1:
        out = parts[0]
    elif all(set(part) == {"type"} and isinstance(part["type"], str) for part in parts):
        out = {"type": sorted(part["type"] for part in parts)}
    else:
        out = {"anyOf": parts}
    if len(parts) < len(args):
        out["nullable"] = True
    return out


def _tuple_schema(args: tuple[Any, ...], where: str) -> dict[str, Any]:
    if len(args) == 2 and args[1] is Ellipsis:
        return {"type": "array", "items": type_schema(args[0], where)}
    return {"type": "array", "prefixItems": [type_schema(arg, where) for arg in args]}

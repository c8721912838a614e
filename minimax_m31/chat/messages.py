"""Conversations: checked by the error contract, then brought into the one form that templates
expect.

The caller's objects are never changed. After this, leading system texts are one message, every
reasoning block is in `reasoning_content`, call arguments are mappings, and tool results stand in
the order of their calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidRequestError
from .content import MediaPart, content_texts, normalise_content
from .marks import THINK_CLOSE, THINK_OPEN
from .types import Message

_LEADING = ("system", "developer")
_ROLES = ("root", *_LEADING, "user", "assistant", "tool")
HISTORY_RULES = ("auto", "all", "none", "last")


def normalise_messages(
    messages: Any, *, remote_media: bool = False
) -> tuple[list[dict[str, Any]], list[MediaPart]]:
    """(messages in template form, media parts in the order of their placeholders)."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages must be a list of dicts, not {type(messages).__name__}",
            param="messages",
            value=messages,
        )
    if not messages:
        raise InvalidRequestError(
            "messages is empty: give at least one", param="messages", value=messages
        )
    out: list[dict[str, Any]] = []
    parts: list[list[MediaPart]] = []
    for i, message in enumerate(messages):
        media: list[MediaPart] = []
        out.append(_normalise(message, i, media, remote_media))
        parts.append(media)
    _check_roles(out)
    order = _order_results(out)
    ordered = [out[i] for i in order]
    joined = _join_leading(ordered)
    return joined, [part for i in order for part in parts[i]]


def _normalise(message: Any, i: int, media: list[MediaPart], remote_media: bool) -> dict[str, Any]:
    if isinstance(message, Message):
        message = message.to_dict()
    param = f"messages[{i}]"
    if not isinstance(message, Mapping):
        raise InvalidRequestError(
            f"{param} must be a dict, not {type(message).__name__}", param=param, value=message
        )
    role = message.get("role")
    if role not in _ROLES:
        raise InvalidRequestError(
            f"{param}.role={role!r}: expected one of {', '.join(map(repr, _ROLES))}",
            param=f"{param}.role",
            value=role,
        )
    content = message.get("content")
    if content is None and role == "assistant":
        content = ""
    out: dict[str, Any] = {
        "role": role,
        "content": normalise_content(content, f"{param}.content", media, remote_media),
    }
    if role == "assistant":
        _assistant(message, out, param)
    elif role == "tool" and message.get("tool_call_id") is not None:
        out["tool_call_id"] = message["tool_call_id"]
    if isinstance(message.get("name"), str):
        out["name"] = message["name"]
    return out


# -- assistant turns ---------------------------------------------------------------------------


def _assistant(message: Mapping[str, Any], out: dict[str, Any], param: str) -> None:
    reasoning = _reasoning(message, param)
    if reasoning is None:
        split = split_inline_block(out["content"])
        if split is not None:
            reasoning, out["content"] = split
    if reasoning is not None:
        out["reasoning_content"] = reasoning
    calls = message.get("tool_calls")
    if calls is None:
        return
    if isinstance(calls, (str, Mapping)) or not isinstance(calls, Sequence):
        raise InvalidRequestError(
            f"{param}.tool_calls must be a list", param=f"{param}.tool_calls", value=calls
        )
    if calls:
        out["tool_calls"] = [
            _call(call, f"{param}.tool_calls[{j}]") for j, call in enumerate(calls)
        ]


def _reasoning(message: Mapping[str, Any], param: str) -> str | None:
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if isinstance(value, str):
            return value
        if value is not None:
            raise InvalidRequestError(
                f"{param}.{name} must be a string, not {type(value).__name__}",
                param=f"{param}.{name}",
                value=value,
            )
    details = message.get("reasoning_details")
    if details is None:
        return None
    texts = (
        [detail.get("text") for detail in details if isinstance(detail, Mapping)]
        if isinstance(details, (list, tuple))
        else [None]
    )
    if not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError(
            f"{param}.reasoning_details must be a list of {{'text': ...}}",
            param=f"{param}.reasoning_details",
            value=details,
        )
    return "".join(str(text) for text in texts) if texts else None


def split_inline_block(content: str | list[dict[str, Any]]) -> tuple[str, str] | None:
    """Split a thinking block written into the content: (reasoning, content), or None without a
    closer.

    The model's template reads such history the same way: reasoning is what precedes the first
    closer (after the last opener in it), content what follows the last one; newlines at their ends
    are not kept.
    """
    if not isinstance(content, str):
        if any(part["type"] != "text" for part in content):
            return None
        content = "".join(content_texts(content))
    if THINK_CLOSE not in content:
        return None
    before = content.split(THINK_CLOSE)[0].strip("\n")
    return before.split(THINK_OPEN)[-1].strip("\n"), content.split(THINK_CLOSE)[-1].strip("\n")


def _call(call: Any, param: str) -> dict[str, Any]:
    if hasattr(call, "to_dict"):
        call = call.to_dict()
    function = call.get("function") if isinstance(call, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(
            f"{param} needs the form {{'id': ..., 'function': {{'name': ..., 'arguments': ...}}}}",
            param=f"{param}.function.name",
            value=name,
        )
    assert isinstance(function, Mapping)
    out: dict[str, Any] = {
        "type": "function",
        "function": {
            "name": name,
            "arguments": _arguments(function.get("arguments"), f"{param}.function.arguments"),
        },
    }
    if call.get("id") is not None:
        out = {"id": call["id"], **out}
    return out


def _arguments(given: Any, param: str) -> dict[str, Any]:
    if given is None or given == "":
        return {}
    value = given
    if isinstance(given, str):
        try:
            value = json.loads(given, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"{param} is not JSON: {error}", param=param, value=given
            ) from error
    if not isinstance(value, Mapping):
        raise InvalidRequestError(
            f"{param} must be a JSON object, not {type(value).__name__}", param=param, value=given
        )
    return dict(value)


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# -- order of turns ----------------------------------------------------------------------------


def _check_roles(messages: list[dict[str, Any]]) -> None:
    started = False
    answers_calls = False
    for i, message in enumerate(messages):
        role = message["role"]
        param = f"messages[{i}].role"
        if role == "root" and i > 0:
            raise InvalidRequestError(
                f"{param}: 'root' is accepted only as message 0", param=param, value=role
            )
        if role in _LEADING and started:
            raise InvalidRequestError(
                f"{param}: {role!r} after the conversation began is not part of the format: "
                "put it at the start, or write it into a user message",
                param=param,
                value=role,
            )
        if role == "tool":
            if not answers_calls:
                raise InvalidRequestError(
                    f"{param}: a tool result must directly follow an assistant message with "
                    "tool_calls",
                    param=param,
                    value=role,
                )
            continue
        started = started or role in ("user", "assistant")
        answers_calls = role == "assistant" and bool(message.get("tool_calls"))


def _order_results(messages: list[dict[str, Any]]) -> list[int]:
    """Indices in which tool results follow the order of their calls: the template prints no ids."""
    order: list[int] = []
    i = 0
    while i < len(messages):
        order.append(i)
        calls = messages[i].get("tool_calls")
        i += 1
        if not calls:
            continue
        first = i
        while i < len(messages) and messages[i]["role"] == "tool":
            i += 1
        order.extend(_match(calls, messages, first, i, last=i == len(messages) and first == i))
    return order


def _match(
    calls: list[dict[str, Any]], messages: list[dict[str, Any]], first: int, end: int, last: bool
) -> list[int]:
    turn = first - 1
    results = range(first, end)
    given = [i for i in results if "tool_call_id" in messages[i]]
    if given and len(given) < len(results):
        missing = next(i for i in results if "tool_call_id" not in messages[i])
        param = f"messages[{missing}].tool_call_id"
        raise InvalidRequestError(
            f"{param} is missing, but other results of that turn have one: give all or none",
            param=param,
        )
    if not given:
        if len(results) > len(calls):
            param = f"messages[{first + len(calls)}].tool_call_id"
            raise InvalidRequestError(
                f"{param}: {len(results)} results for {len(calls)} calls of messages[{turn}]",
                param=param,
            )
        found = list(results)
    else:
        found = _match_ids(calls, messages, results, turn)
    if len(found) < len(calls) and not last:
        param = f"messages[{turn}].tool_calls"
        raise InvalidRequestError(
            f"{param}: {len(calls)} calls but {len(found)} results directly after them; every call "
            "needs one",
            param=param,
        )
    return found


def _match_ids(
    calls: list[dict[str, Any]], messages: list[dict[str, Any]], results: range, turn: int
) -> list[int]:
    position: dict[Any, int] = {}
    for j, call in enumerate(calls):
        if call.get("id") in position:
            param = f"messages[{turn}].tool_calls[{j}].id"
            raise InvalidRequestError(
                f"{param}={call.get('id')!r} is used twice", param=param, value=call.get("id")
            )
        position[call.get("id")] = j
    taken: dict[int, int] = {}
    for i in results:
        given = messages[i]["tool_call_id"]
        param = f"messages[{i}].tool_call_id"
        if not isinstance(given, str) or given not in position:
            raise InvalidRequestError(
                f"{param}={given!r} is no call of messages[{turn}]", param=param, value=given
            )
        if position[given] in taken:
            raise InvalidRequestError(
                f"{param}={given!r} was answered already by messages[{taken[position[given]]}]",
                param=param,
                value=given,
            )
        taken[position[given]] = i
    return [taken[j] for j in sorted(taken)]


def _join_leading(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Consecutive leading system and developer messages become one: the template would print only
    the first.
    """
    first = 1 if messages[0]["role"] == "root" else 0
    end = first
    while end < len(messages) and messages[end]["role"] in _LEADING:
        end += 1
    if end - first < 2:
        return messages
    contents = [message["content"] for message in messages[first:end] if message["content"]]
    content: str | list[dict[str, Any]]
    if all(isinstance(item, str) for item in contents):
        content = "\n\n".join(contents)
    else:
        content = []
        for item in contents:
            if content:
                content.append({"type": "text", "text": "\n\n"})
            content.extend([{"type": "text", "text": item}] if isinstance(item, str) else item)
    return [*messages[:first], {**messages[first], "content": content}, *messages[end:]]


def apply_history_rule(
    messages: list[dict[str, Any]], rule: Any, keep_last: bool
) -> list[dict[str, Any]]:
    """Drop the reasoning of older turns: "none" everywhere, "last" before the last user message.

    `keep_last`: the last message is being continued, so it is not history.
    """
    if rule not in HISTORY_RULES:
        raise InvalidRequestError(
            f"reasoning_history={rule!r}: expected one of {', '.join(map(repr, HISTORY_RULES))}",
            param="reasoning_history",
            value=rule,
        )
    if rule in ("auto", "all"):
        return messages
    end = len(messages) - keep_last
    if rule == "last":
        users = [i for i, message in enumerate(messages) if message["role"] == "user"]
        end = users[-1] if users else 0
    out = []
    for i, message in enumerate(messages):
        if i < end and "reasoning_content" in message:
            message = dict(message)
            # An empty string where the template would otherwise search the content for a block.
            if any(THINK_CLOSE in text for text in content_texts(message["content"])):
                message["reasoning_content"] = ""
            else:
                del message["reasoning_content"]
        out.append(message)
    return out

"""Requests of Inspect and of EvalScope, whose classes have the same fields, for `chat`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidRequestError
from ..params import SamplingParams

if TYPE_CHECKING:
    from ..llm import LLM

# Their name -> that of SamplingParams.
_SAMPLING = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_seqs": "stop",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "repetition_penalty": "repetition_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
    "num_choices": "n",
    "n": "n",
    "prompt_logprobs": "prompt_logprobs",
    "reasoning_tokens": "thinking_token_budget",
}
_CHAT_ONLY = ("thinking", "reasoning_effort", "reasoning_history", "chat_template_kwargs")


def params_of(llm: LLM, config: Any) -> SamplingParams:
    """What the configuration says, on top of the checkpoint's defaults."""
    if getattr(config, "best_of", None) not in (None, 1):
        raise InvalidRequestError(
            f"best_of={config.best_of}: it does not exist here; use num_choices",
            param="best_of",
            value=config.best_of,
        )
    changes = {
        ours: value
        for theirs, ours in _SAMPLING.items()
        if (value := getattr(config, theirs, None)) is not None
    }
    top = top_of(config)
    if top is not None:
        changes["logprobs"] = top
    if getattr(config, "do_sample", None) is False:
        changes["temperature"] = 0.0
    schema = getattr(config, "response_schema", None)
    if schema is not None:
        changes["structured_outputs"] = {"json": _plain(schema.json_schema)}
    for name, value in (getattr(config, "extra_body", None) or {}).items():
        if name not in _CHAT_ONLY:
            changes[name] = value
    return llm.get_default_sampling_params().replace(**changes)


def top_of(config: Any) -> int | None:
    """How many log-probabilities to show for each token; None for none at all."""
    return (getattr(config, "top_logprobs", None) or 0) if config.logprobs else None


def chat_args_of(tools: Iterable[Any], tool_choice: Any, config: Any) -> dict[str, Any]:
    """The keywords of `chat`."""
    out: dict[str, Any] = {}
    found = [_tool(tool) for tool in tools]
    if found:
        out["tools"] = found
        out["tool_choice"] = _choice(tool_choice)
        if getattr(config, "parallel_tool_calls", None) is not None:
            out["parallel_tool_calls"] = config.parallel_tool_calls
    for name in ("reasoning_effort", "reasoning_history"):
        if getattr(config, name, None) is not None:
            out[name] = getattr(config, name)
    for name, value in (getattr(config, "extra_body", None) or {}).items():
        if name in _CHAT_ONLY:
            out[name] = value
    return out


def messages_of(messages: Iterable[Any]) -> list[dict[str, Any]]:
    """Their messages as `chat` takes them."""
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message.role}
    if message.role == "assistant":
        text, reasoning = _said(message.content)
        out["content"] = text
        if reasoning is not None:
            out["reasoning_content"] = reasoning
        if message.tool_calls:
            out["tool_calls"] = [_call(call) for call in message.tool_calls]
    elif message.role == "tool":
        failed = message.error
        out["content"] = message.text if failed is None else f"Error: {failed.message}"
        if message.tool_call_id is not None:
            out["tool_call_id"] = message.tool_call_id
    elif isinstance(message.content, str):
        out["content"] = message.content
    else:
        out["content"] = [_part(part) for part in message.content]
    return out


def _said(content: Any) -> tuple[str, str | None]:
    """(text, reasoning) of an assistant's turn."""
    if isinstance(content, str):
        return content, None
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        if part.type == "reasoning":
            thoughts.append(part.reasoning)
        elif part.type == "text":
            texts.append(part.text)
        else:
            raise _no_part(part)
    return "".join(texts), "".join(thoughts) if thoughts else None


def _part(part: Any) -> dict[str, Any]:
    if part.type == "text":
        return {"type": "text", "text": part.text}
    if part.type == "image":
        return {"type": "image_url", "image_url": {"url": part.image}}
    if part.type == "video":
        return {"type": "video_url", "video_url": {"url": part.video}}
    raise _no_part(part)


def _no_part(part: Any) -> InvalidRequestError:
    return InvalidRequestError(
        f"a message has a part of type {part.type!r}: this model reads text, images and video",
        param="messages",
        value=part.type,
    )


def _call(call: Any) -> dict[str, Any]:
    name, arguments = call.function, getattr(call, "arguments", None)
    if not isinstance(name, str):  # EvalScope: {function: {name, arguments}}
        name, arguments = call.function.name, call.function.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": text}}


def _tool(tool: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": _plain(tool.parameters),
        },
    }


def _choice(choice: Any) -> Any:
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        return "required" if choice == "any" else choice
    return {"type": "function", "function": {"name": choice.name}}


def _plain(model: Any) -> Any:
    """A pydantic model as JSON-able data."""
    if not hasattr(model, "model_dump"):
        return model
    return model.model_dump(exclude_none=True, by_alias=True)

"""Conversations over an engine: token ids that never change, and rounds of tool calls.

`llm` is anything with `answer_ids(token_ids, sampling_params, start=)`, which knows where thinking
stands, and `get_tokenizer()`; it may carry `chat_defaults = (thinking, reasoning_effort)`.

The ids of a conversation are what was fed and what was generated, in order. A new turn appends only
what the template adds after the last answer: the rendering up to that answer is taken away from the
rendering with the new messages. So the answer's own tokens stay as they were sampled, whatever a
re-rendering would make of them.
"""

from __future__ import annotations

import html
import inspect
import json
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..errors import InvalidRequestError
from .marks import TURN_END
from .messages import normalise_messages
from .parser import parse
from .render import Rendered, prepare, render_prepared
from .tools import normalise_tools
from .types import Message, ToolCall

_RENDER_ARGS = (
    "thinking",
    "reasoning_effort",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_history",
    "allow_special_tokens_in_text",
)


class Conversation:
    """A conversation that keeps its token ids.

    `messages` are OpenAI-shaped dicts, the answers included; `token_ids` all ids so far; `outputs`
    every output of the engine. `rerendered` turns True when the template prints earlier turns
    differently once there are later ones: then the ids had to be made anew, and a warning said so.
    """

    def __init__(
        self,
        llm: Any,
        *,
        tools: Iterable[Any] | None = None,
        messages: Sequence[Any] = (),
        **chat_args: Any,
    ) -> None:
        unknown = sorted(set(chat_args) - set(_RENDER_ARGS))
        if unknown:
            raise TypeError(
                f"Conversation: unknown arguments {', '.join(unknown)}; known: "
                f"{', '.join(_RENDER_ARGS)}"
            )
        if chat_args.get("tool_choice", "auto") not in ("auto", "none"):
            raise InvalidRequestError(
                "Conversation takes tool_choice 'auto' or 'none'; a forced call is one llm.chat()",
                param="tool_choice",
                value=chat_args["tool_choice"],
            )
        if not hasattr(llm, "answer_ids"):
            raise TypeError(f"Conversation: an open LLM is needed, not {type(llm).__name__}")
        self._llm = llm
        self._lock = threading.Lock()
        self._tokenizer = llm.get_tokenizer()
        self._defaults = getattr(llm, "chat_defaults", (None, None))
        self._tools = list(tools) if tools is not None else []
        normalise_tools(self._tools)  # fail here, not at the first turn
        self._raw_text = bool(chat_args.pop("allow_special_tokens_in_text", False))
        self._template = self._tokenizer.require_chat_template(chat_args.pop("chat_template", None))
        self._chat_args = chat_args
        self.messages: list[dict[str, Any]] = [_plain(message) for message in messages]
        self.token_ids: list[int] = []
        self.outputs: list[Any] = []
        self.rerendered = False
        self.max_rounds_reached = False
        self._told: int | None = None  # messages that token_ids stand for
        self._closed = False  # token_ids end with the turn's end token

    def say(self, message: Any, sampling_params: Any = None) -> Any:
        """Add a message (text, a dict or a list of dicts), generate the answer, and return the
        engine's output.
        """
        if not isinstance(message, (str, Mapping, Message, list, tuple)) or not message:
            raise InvalidRequestError(
                f"message={message!r}: text, a message (a dict) or a list of messages is needed",
                param="message",
                value=message,
            )
        added = [message] if isinstance(message, (str, Mapping, Message)) else list(message)
        return self._turn([_plain(item) for item in added], sampling_params)

    def _turn(self, added: list[dict[str, Any]], sampling_params: Any) -> Any:
        with self._lock:  # turns of several threads come one after the other
            return self._next_turn(added, sampling_params)

    def _next_turn(self, added: list[dict[str, Any]], sampling_params: Any) -> Any:
        messages = [*self.messages, *added]
        rendered = self._render(messages, generate=True)
        ids = self._next_ids(rendered)
        output = self._llm.answer_ids(ids, sampling_params, start=rendered.parser_start)
        completion = output.outputs[0]
        answer = self._parse(completion, rendered)
        completion.message = answer
        self.messages = [*messages, answer.to_dict()]
        self.token_ids = [*ids, *completion.token_ids]
        self._closed = bool(completion.token_ids) and completion.token_ids[
            -1
        ] == self._tokenizer.token_id(TURN_END)
        self._told = len(self.messages)
        self.outputs.append(output)
        return output

    def _render(self, messages: list[dict[str, Any]], generate: bool) -> Rendered:
        chat = prepare(
            messages,
            self._template,
            self._tools,
            add_generation_prompt=generate,
            default_thinking=self._defaults[0],
            default_effort=self._defaults[1],
            **self._chat_args,
        )
        return render_prepared(chat, list(self._tokenizer.added_tokens))

    def _next_ids(self, rendered: Rendered) -> list[int]:
        if self._told is not None:
            before = self._render(self.messages[: self._told], generate=False)
            body = before.prompt.rstrip()
            end = len(body) - len(TURN_END)
            written = body.endswith(TURN_END) and all(stop <= end for _, stop in before.spans)
            if written and rendered.prompt.startswith(before.prompt):
                # From behind the end token when the model wrote it, else with it (it was cut off).
                start = end + len(TURN_END) if self._closed else end
                return [*self.token_ids, *self._encode(rendered, start)]
            if not self.rerendered:
                warnings.warn(
                    "the chat template prints earlier turns differently once later ones follow, so "
                    "the conversation was rendered anew: token ids of earlier turns changed",
                    stacklevel=5,
                )
            self.rerendered = True
        return self._encode(rendered, 0)

    def _encode(self, rendered: Rendered, start: int) -> list[int]:
        if self._raw_text:
            ids: list[int] = self._tokenizer.encode(rendered.prompt[start:])
            return ids
        spans = [(max(s, start) - start, e - start) for s, e in rendered.spans if e > start]
        out: list[int] = self._tokenizer.encode_chat(rendered.prompt[start:], spans)
        return out

    def _parse(self, completion: Any, rendered: Rendered) -> Message:
        ids = list(completion.token_ids)
        if ids and ids[-1] == self._tokenizer.token_id(TURN_END):
            ids.pop()
        text = self._tokenizer.decode(ids, skip_special_tokens=False)
        return parse(
            text,
            rendered.parser_start,
            rendered.tools or None,
            finish_reason=completion.finish_reason,
            stop_reason=getattr(completion, "stop_reason", None),
        )

    @property
    def last(self) -> dict[str, Any] | None:
        """The last message."""
        return self.messages[-1] if self.messages else None

    def __repr__(self) -> str:
        lines = [f"Conversation({len(self.messages)} messages, {len(self.token_ids)} tokens)"]
        for message in self.messages[-6:]:
            text = " ".join(_text_of(message).split())
            calls = ", ".join(call["function"]["name"] for call in message.get("tool_calls") or ())
            lines.append(
                f"  {message['role']}: {text[:80]}{'...' if len(text) > 80 else ''}"
                + (f" [calls {calls}]" if calls else "")
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return "<div>" + "".join(_message_html(message) for message in self.messages) + "</div>"


def run_tools(
    llm: Any,
    messages: Sequence[Any],
    tools: Iterable[Callable[..., Any]],
    sampling_params: Any = None,
    *,
    max_rounds: int = 8,
    **chat_args: Any,
) -> Conversation:
    """Generate, run the calls, feed results and errors back, until an answer without calls or
    `max_rounds` answers.

    Every turn is in the result. An exception of a tool goes to the model as text; it is not raised.
    """
    functions = list(tools)
    for i, function in enumerate(functions):
        if not callable(function) or isinstance(function, type):
            raise InvalidRequestError(
                f"tools[{i}] is not a function", param=f"tools[{i}]", value=function
            )
    if max_rounds < 1:
        raise InvalidRequestError(
            "max_rounds must be at least 1", param="max_rounds", value=max_rounds
        )
    by_name = {
        definition["function"]["name"]: function
        for definition, function in zip(normalise_tools(functions), functions, strict=True)
    }
    normalise_messages(messages)
    conversation = Conversation(llm, tools=functions, **chat_args)
    added = [_plain(message) for message in messages]
    for _ in range(max_rounds):
        output = conversation._turn(added, sampling_params)
        answer: Message = output.outputs[0].message
        if not answer.tool_calls:
            return conversation
        added = [
            {"role": "tool", "tool_call_id": call.id, "content": run_call(call, by_name)}
            for call in answer.tool_calls
        ]
    conversation.messages.extend(
        added
    )  # the results of the last round are shown, though nobody answered them
    conversation.max_rounds_reached = True
    return conversation


def run_call(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> str:
    """Result of one call as text: a string as it is, anything else as JSON; errors as text for the
    model.
    """
    function = functions.get(call.function.name)
    if function is None:
        known = ", ".join(sorted(functions))
        return f"Error: there is no tool {call.function.name!r}; the tools are {known}"
    try:
        value = function(**call.parsed_arguments())
        if inspect.isawaitable(value):
            close = getattr(value, "close", None)
            if close is not None:
                close()
            return f"Error: {call.function.name} is asynchronous; run_tools runs plain functions"
    except Exception as error:  # whatever a tool raises is for the model to read
        return f"Error: {type(error).__name__}: {error}"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _plain(message: Any) -> dict[str, Any]:
    if isinstance(message, str):
        return {"role": "user", "content": message}
    if isinstance(message, Message):
        return message.to_dict()
    if isinstance(message, Mapping):
        return dict(message)
    raise InvalidRequestError(
        f"a message must be text or a dict, not {type(message).__name__}",
        param="message",
        value=message,
    )


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(
        part if isinstance(part, str) else str(part.get("text", f"[{part.get('type')}]"))
        for part in content or ()
    )


def _message_html(message: Mapping[str, Any]) -> str:
    """One message; thinking and calls are folded. Everything is escaped."""

    def block(text: str) -> str:
        return f'<div style="white-space:pre-wrap">{html.escape(text)}</div>'

    parts = [f"<div><b>{html.escape(str(message.get('role')))}</b></div>"]
    if message.get("reasoning_content"):
        parts.append(
            f"<details><summary><i>thinking</i></summary>{block(str(message['reasoning_content']))}</details>"
        )
    text = _text_of(message)
    if text:
        parts.append(block(text))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function["arguments"]
        shown = (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
        parts.append(
            "<details><summary>call "
            f"<code>{html.escape(function['name'])}</code></summary>{block(shown)}</details>"
        )
    return '<div style="margin:0.5em 0">' + "".join(parts) + "</div>"

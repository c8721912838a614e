"""From a conversation to a prompt: check, normalise, resolve thinking, run the template, mark
untrusted text.

`render` is a pure function: no engine, no tokenizer, nothing of the caller's is changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import InvalidRequestError
from . import inject
from .content import MediaPart, content_texts
from .m3_template import M3_TEMPLATE
from .marks import THINK_CLOSE, THINK_OPEN, TURN_END
from .messages import apply_history_rule, normalise_messages
from .template import ChatTemplate, compile_template
from .thinking import resolve_request
from .tools import check_tool_choice, normalise_tools

# Set by the layer itself; chat_template_kwargs may name the two thinking variables only (and they
# are checked).
_RESERVED = ("messages", "tools", "add_generation_prompt")


@dataclasses.dataclass
class Rendered:
    """A prompt and what the other end needs to know about it."""

    prompt: str
    template_vars: dict[str, str]  # thinking_mode always, reasoning_effort when it applies
    parser_start: str  # state of the parser at the generation boundary
    spans: list[tuple[int, int]]  # untrusted stretches of the prompt, in order
    media: list[MediaPart] = dataclasses.field(default_factory=list)
    tools: list[dict[str, Any]] = dataclasses.field(
        default_factory=list
    )  # as the parser needs them


@dataclasses.dataclass
class PreparedChat:
    """A checked conversation. All of a call are prepared before any is rendered."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    template_vars: dict[str, str]
    template_kwargs: dict[str, Any]
    template: ChatTemplate
    add_generation_prompt: bool
    continue_final_message: bool
    tool_choice: Any
    forced_tool: str | None  # None: not forced; "": any; else the function's name
    media: list[MediaPart]


def prepare(
    messages: Any,
    template: str | None = "m3",
    tools: Iterable[Any] | None = None,
    thinking: Any = None,
    reasoning_effort: Any = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    reasoning_history: str = "auto",
    tool_choice: Any = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    *,
    default_thinking: Any = None,
    default_effort: Any = None,
    remote_media: bool = False,
) -> PreparedChat:
    """Everything of the error contract but the template's own errors."""
    kwargs = _check_kwargs(chat_template_kwargs)
    template_vars = resolve_request(
        thinking, reasoning_effort, kwargs, default_thinking, default_effort
    )
    definitions = normalise_tools(tools)
    forced = check_tool_choice(tool_choice, definitions)
    normalised, media = normalise_messages(messages, remote_media=remote_media)
    if continue_final_message:
        if add_generation_prompt:
            raise InvalidRequestError(
                "continue_final_message=True needs add_generation_prompt=False: the reply goes on "
                "in the last message",
                param="continue_final_message",
                value=True,
            )
        if normalised[-1]["role"] != "assistant":
            raise InvalidRequestError(
                f"continue_final_message=True: the last message is a {normalised[-1]['role']}'s, "
                "not an assistant's",
                param="continue_final_message",
                value=True,
            )
    normalised = apply_history_rule(normalised, reasoning_history, keep_last=continue_final_message)
    compiled = compile_template(_template_text(template))
    return PreparedChat(
        messages=inject.clean_messages(normalised),
        tools=[] if tool_choice == "none" else inject.clean_tools(definitions),
        template_vars=template_vars,
        template_kwargs={
            k: v for k, v in kwargs.items() if k not in ("thinking_mode", "reasoning_effort")
        },
        template=compiled,
        add_generation_prompt=bool(add_generation_prompt),
        continue_final_message=bool(continue_final_message),
        tool_choice=tool_choice,
        forced_tool=forced,
        media=media,
    )


def _template_text(template: Any) -> str:
    if template is None or template == "m3":
        return M3_TEMPLATE
    if not isinstance(template, str):
        raise InvalidRequestError(
            "chat_template must be the text of a Jinja template or 'm3', not "
            f"{type(template).__name__}",
            param="chat_template",
            value=template,
        )
    return template


def _check_kwargs(kwargs: Any) -> dict[str, Any]:
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise InvalidRequestError(
            "chat_template_kwargs must be a dict of template variables",
            param="chat_template_kwargs",
            value=kwargs,
        )
    taken = [name for name in _RESERVED if name in kwargs]
    if taken:
        raise InvalidRequestError(
            f"chat_template_kwargs cannot set {', '.join(taken)}: use the argument of that name",
            param="chat_template_kwargs",
            value=kwargs,
        )
    return dict(kwargs)


def render_prepared(chat: PreparedChat, added_tokens: Sequence[str] | None = None) -> Rendered:
    """Run the template twice: for the prompt, and to learn which of it is untrusted."""

    def run(messages: list[dict[str, Any]], tools: list[Any]) -> str:
        variables: dict[str, Any] = {
            **chat.template_kwargs,
            **chat.template_vars,
            "messages": messages,
            "add_generation_prompt": chat.add_generation_prompt,
        }
        if tools:
            variables["tools"] = tools
        return chat.template.render(variables)

    prompt = run(chat.messages, chat.tools)
    known = {} if added_tokens is None else {"added_tokens": tuple(added_tokens)}
    spans, marked = inject.find_spans(prompt, chat.messages, chat.tools, run, **known)
    _check_nothing_lost(prompt, marked, chat)
    start = chat.template_vars["thinking_mode"]
    if chat.continue_final_message:
        prompt, start = _cut_final_turn(prompt, spans, chat.messages[-1])
        spans = [(s, min(e, len(prompt))) for s, e in spans if s < len(prompt)]
    elif not chat.add_generation_prompt:
        start = "adaptive"
    elif not chat.template.reads_thinking_mode:
        start = "enabled" if prompt.rstrip().endswith(THINK_OPEN) else "adaptive"
    return Rendered(prompt, dict(chat.template_vars), start, spans, chat.media, chat.tools)


def render(
    messages: Any,
    template: str | None = "m3",
    tools: Iterable[Any] | None = None,
    thinking: Any = None,
    reasoning_effort: Any = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    reasoning_history: str = "auto",
    tool_choice: Any = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> Rendered:
    """Render one conversation. `template`: "m3" (the built-in fallback) or the text of a Jinja
    template.

    `options`: default_thinking, default_effort (the engine's), remote_media (https URLs are
    allowed).
    """
    return render_prepared(
        prepare(
            messages,
            template,
            tools,
            thinking,
            reasoning_effort,
            add_generation_prompt,
            continue_final_message,
            reasoning_history,
            tool_choice,
            chat_template_kwargs,
            **options,
        )
    )


def _check_nothing_lost(prompt: str, marked: str | None, chat: PreparedChat) -> None:
    """A template that skips a message (a role it does not know, say) must not do so silently.

    A text that was changed on the way (escaped, re-cased) is not lost: then every wrapped string
    left its mark.
    """
    at = 0
    for i, message in enumerate(chat.messages):
        for text in content_texts(message["content"]):
            stripped = text.strip()
            if not stripped:
                continue
            found = prompt.find(stripped, at)
            if found < 0:
                found = prompt.find(stripped)
            if found < 0 and not inject.all_printed(marked, chat.messages, chat.tools):
                raise InvalidRequestError(
                    f"chat template: the rendered prompt does not hold the text of message {i} "
                    f"(role {message['role']!r}, after leading system messages were joined): "
                    "the template drops it",
                    param="chat_template",
                )
            at = max(at, found)


def _cut_final_turn(
    prompt: str, spans: list[tuple[int, int]], last: dict[str, Any]
) -> tuple[str, str]:
    """Take the end of the last turn off the prompt: (prompt to continue, parser start)."""
    body = prompt.rstrip()
    trusted_from = spans[-1][1] if spans else 0
    end = len(body) - len(TURN_END)
    if not body.endswith(TURN_END) or end < trusted_from:
        # A template of another family: cut behind the text of the last message, if that can be
        # found.
        texts = content_texts(last["content"])
        text = texts[-1] if texts else ""
        end = prompt.rfind(text) + len(text) if text and text in prompt else -1
        if end < 0:
            raise InvalidRequestError(
                f"chat template: its last turn does not end in {TURN_END}, so it cannot be "
                "continued",
                param="chat_template",
            )
    only_reasoning = (
        bool(last.get("reasoning_content"))
        and not any(content_texts(last["content"]))
        and not last.get("tool_calls")
    )
    if only_reasoning:
        if not prompt[:end].endswith(THINK_CLOSE):
            raise InvalidRequestError(
                f"chat template: reasoning is not closed by {THINK_CLOSE} at the end of the last "
                "turn, so it cannot be continued",
                param="chat_template",
            )
        return prompt[: end - len(THINK_CLOSE)], "enabled"
    return prompt[:end], "disabled"

"""Thinking mode and reasoning effort: what the caller wrote becomes the two variables of the chat
template.

An invalid value is an error even where it would be ignored. An explicit `thinking` beats an effort
of "none" or "minimal"; effort is dropped when thinking is disabled and never passed when none was
given.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidRequestError
from ..params_check import bad

MODES = ("enabled", "disabled", "adaptive")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
EFFORTS_OFF = ("none", "minimal")


def thinking_mode(thinking: Any) -> str | None:
    """Mode named by `thinking` (None, a bool, a string or {"type": ...}); None when nothing was
    said.
    """
    if thinking is None:
        return None
    if isinstance(thinking, bool):
        return "enabled" if thinking else "disabled"
    if isinstance(thinking, str):
        if thinking in MODES:
            return thinking
        raise InvalidRequestError(
            f"thinking={thinking!r}: expected one of {', '.join(map(repr, MODES))}, True, False or "
            "{'type': ...} (lower case)",
            param="thinking",
            value=thinking,
        )
    if isinstance(thinking, Mapping):
        mode = thinking.get("type")
        if not isinstance(mode, str) or mode not in MODES:
            raise InvalidRequestError(
                f"thinking['type']={mode!r}: expected one of {', '.join(map(repr, MODES))} (lower "
                "case)",
                param="thinking.type",
                value=mode,
            )
        extra = sorted(str(key) for key in thinking if key != "type")
        if extra:
            warnings.warn(
                f"thinking: ignored the keys {', '.join(extra)}; only 'type' has a meaning "
                "(a token budget is SamplingParams.thinking_token_budget)",
                stacklevel=2,
            )
        return mode
    raise InvalidRequestError(
        f"thinking must be None, a bool, a string or a dict, not {type(thinking).__name__}",
        param="thinking",
        value=thinking,
    )


def check_effort(effort: Any) -> str | None:
    if effort is None:
        return None
    if not isinstance(effort, str) or effort not in EFFORTS + EFFORTS_OFF:
        valid = ", ".join(map(repr, EFFORTS + EFFORTS_OFF))
        raise bad("reasoning_effort", effort, f"expected one of {valid}")
    return effort


def resolve_thinking(thinking: Any = None, reasoning_effort: Any = None) -> dict[str, str]:
    """The template variables: `thinking_mode` always, `reasoning_effort` only when one applies."""
    mode = thinking_mode(thinking)
    effort = check_effort(reasoning_effort)
    if effort in EFFORTS_OFF:
        if mode is None:
            mode = "disabled"
        elif mode != "disabled":
            warnings.warn(
                f"reasoning_effort={effort!r} is dropped: thinking={mode!r} was asked for "
                "explicitly",
                stacklevel=2,
            )
        effort = None
    variables = {"thinking_mode": mode or "adaptive"}
    if effort is not None and mode != "disabled":
        variables["reasoning_effort"] = effort
    return variables


def resolve_request(
    thinking: Any,
    reasoning_effort: Any,
    template_kwargs: Mapping[str, Any] | None = None,
    default_thinking: Any = None,
    default_effort: Any = None,
) -> dict[str, str]:
    """The variables of one conversation: the call > `chat_template_kwargs` > the engine's defaults.

    The call and `chat_template_kwargs` contradicting each other is an error.
    """
    kwargs = template_kwargs or {}
    mode, effort = thinking_mode(thinking), check_effort(reasoning_effort)
    for name, given, own in (
        ("thinking_mode", mode, kwargs.get("thinking_mode")),
        ("reasoning_effort", effort, kwargs.get("reasoning_effort")),
    ):
        if own is None:
            continue
        allowed = MODES if name == "thinking_mode" else EFFORTS + EFFORTS_OFF
        if not isinstance(own, str) or own not in allowed:
            raise InvalidRequestError(
                f"chat_template_kwargs[{name!r}]={own!r}: expected one of "
                f"{', '.join(map(repr, allowed))}",
                param="thinking" if name == "thinking_mode" else "reasoning_effort",
                value=own,
            )
        if given is not None and given != own:
            raise InvalidRequestError(
                f"chat_template_kwargs[{name!r}]={own!r} contradicts the argument, which says "
                f"{given!r}: give one",
                param="thinking" if name == "thinking_mode" else "reasoning_effort",
                value=own,
            )
        if name == "thinking_mode":
            mode = own
        else:
            effort = own
    return resolve_thinking(
        default_thinking if mode is None else mode, default_effort if effort is None else effort
    )

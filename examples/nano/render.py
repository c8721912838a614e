"""Conversations to text and tokens: a fast Python twin of the checkpoint's chat template, with a training mask.

`turns_text` writes exactly what `chat_template.jinja` writes (check_render.py compares them), cut into segments that each begin
with a special token, so that segments can be tokenized one by one and the assistant's segments marked as targets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

NS = "]<]minimax[>["
NANO = Path(__file__).resolve().parents[2] / "minimax_m31" / "nano"
TARGET = 0x8000  # bit of a stored token: this token is to be predicted


@dataclass
class Conversation:
    """mode and effort as the template knows them; messages in the OpenAI shape without the leading system message."""

    mode: str = "adaptive"
    effort: str | None = None
    developer: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    def chat(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages and template variables for the Jinja template or an engine."""
        lead = [{"role": "system", "content": self.developer}] if self.developer else []
        extra: dict[str, Any] = {"thinking_mode": self.mode}
        if self.effort:
            extra["reasoning_effort"] = self.effort
        if self.tools:
            extra["tools"] = [{"type": "function", "function": t} for t in self.tools]
        return lead + self.messages, extra


def value_text(v: Any) -> str:
    if isinstance(v, dict):
        return "".join(f"{NS}<{k}>{value_text(x)}{NS}</{k}>" for k, x in v.items() if x is not None)
    if isinstance(v, bool):
        return "true" if v else "false"
    if v is None:
        return ""
    if isinstance(v, list):
        return "".join(f"{NS}<item>{value_text(x)}{NS}</item>" for x in v)
    return str(v)


def calls_text(calls: list[tuple[str, dict[str, Any]]]) -> str:
    body = "".join(f'{NS}<invoke name="{n}">{value_text(a)}{NS}</invoke>\n' for n, a in calls)
    return f"{NS}<tool_call>\n{body}{NS}</tool_call>"


def head_text(c: Conversation) -> str:
    effort = f"\nReasoning effort: {c.effort}." if c.effort and c.mode != "disabled" else ""
    s = (
        "]~!b[]~b]system\nYou are MiniMax-M3.1 nano.\n\n<thinking_instructions>\nThink inside <mm:think></mm:think>.\n"
        f"Thinking mode: {c.mode}.{effort}\n</thinking_instructions>[e~[\n]~b]developer\n{c.developer or 'You are a helpful assistant.'}"
    )
    if c.tools:
        s += "\n\n# Tools\nYou may call these tools:\n\n<tools>\n" + "".join(
            f"<tool>{json.dumps(t, ensure_ascii=False)}</tool>\n" for t in c.tools
        )
        s += f'</tools>\n\nTo call:\n\n{NS}<tool_call>\n{NS}<invoke name="tool">{NS}<param>value{NS}</param>{NS}</invoke>\n{NS}</tool_call>'
    return s + "[e~[\n"


def turns_text(c: Conversation) -> list[tuple[str, bool]]:
    """Segments (text, is a target) of the whole conversation; assistant turns hold 'reasoning_content' or not, as in the API."""
    out = [(head_text(c), False)]
    msgs = c.messages
    for i, m in enumerate(msgs):
        if m["role"] == "user":
            out.append((f"]~b]user\n{m['content']}[e~[\n", False))
        elif m["role"] == "tool":
            first, last = (
                i == 0 or msgs[i - 1]["role"] != "tool",
                i + 1 == len(msgs) or msgs[i + 1]["role"] != "tool",
            )
            out.append(
                (
                    ("]~b]tool" if first else "")
                    + f"\n<response>{m['content']}</response>"
                    + ("[e~[\n" if last else ""),
                    False,
                )
            )
        else:
            r = m.get("reasoning_content")
            body = (f"<mm:think>{r}</mm:think>" if r else "</mm:think>") + m["content"]
            if m.get("tool_calls"):
                body += calls_text(
                    [(t["function"]["name"], t["function"]["arguments"]) for t in m["tool_calls"]]
                )
            out += [("]~b]ai\n", False), (body + "[e~[", True), ("\n", False)]
    return out


def generation_prompt(c: Conversation) -> str:
    return (
        "".join(t for t, _ in turns_text(c))
        + "]~b]ai\n"
        + {"enabled": "<mm:think>", "disabled": "</mm:think>"}.get(c.mode, "")
    )


@lru_cache(maxsize=1)
def tokenizer(path: str = "") -> Tokenizer:
    return Tokenizer.from_file(path or str(NANO / "tokenizer.json"))


@lru_cache(maxsize=4096)
def _cached(text: str) -> tuple[int, ...]:
    return tuple(tokenizer().encode(text, add_special_tokens=False).ids)


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False).ids


def encode_conversation(c: Conversation) -> np.ndarray:
    """uint16 tokens with the TARGET bit on what the assistant wrote."""
    parts = []
    for text, target in turns_text(c):
        ids = (
            _cached(text)
            if len(text) < 12 or (text.startswith("]~!b[") and not c.tools)
            else encode(text)
        )
        a = np.asarray(ids, dtype=np.uint16)
        parts.append(a | TARGET if target else a)
    return np.concatenate(parts)

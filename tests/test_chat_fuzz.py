"""Random output: the parser never raises or hangs, loses nothing, and cutting changes nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from chat_cases import NS, check_spans, errors_of, load, stream, view

from minimax_m31.chat import Message, parse, parse_tool_calls, split_reasoning

PIECES = (
    *(
        NS,
        NS,
        NS + "<",
        NS + "</",
        "<mm:think>",
        "</mm:think>",
        "<tool_call>",
        "</tool_call>",
        "<invoke",
    ),
    *(f"{NS}<tool_call>", f"{NS}</tool_call>", f"{NS}</invoke>", f"{NS}<invoke>", "invoke name="),
    *(
        f'{NS}<invoke name="f">',
        f'{NS}<invoke name="g">',
        f'{NS}<invoke name="">',
        f"{NS}<invoke name='h'",
    ),
    *(f"{NS}<{tag}>" for tag in ("a", "b", "c", "n", "o", "l", "item", "x")),
    *(f"{NS}</{tag}>" for tag in ("a", "b", "c", "n", "o", "l", "item", "x")),
    *(
        "</a>",
        "</n>",
        "<a>",
        ">",
        "<",
        "/",
        '"',
        "=",
        " ",
        "\n",
        "\t",
        "]",
        "]<]",
        "]<]mini",
        "max[>[",
    ),
    *(
        "text",
        "1",
        "-7",
        "2.50",
        "true",
        "null",
        '{"k": [1]}',
        "[1, 2",
        "é",
        "🦆",
        "\u2028",
        "\x00",
        "\ud800",
    ),
)

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "$defs": {
                    "node": {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}}
                },
                "properties": {
                    "a": {"type": "string"},
                    "b": {"type": ["integer", "null"]},
                    "c": {"enum": [1, "1", True, None]},
                    "n": {"type": "number"},
                    "o": {"$ref": "#/$defs/node"},
                    "l": {
                        "type": "array",
                        "items": {"anyOf": [{"type": "boolean"}, {"type": "string"}]},
                    },
                },
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "g", "parameters": {"anyOf": [{"properties": {"a": {}}}]}},
    },
]


def random_text(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.randrange(1, 40)))


def damaged_case(draw: random.Random, texts: list[str]) -> str:
    """A well-formed text with a few cuts, repeats and swaps."""
    text = draw.choice(texts)
    for _ in range(draw.randrange(1, 4)):
        i, j = sorted((draw.randrange(len(text) + 1), draw.randrange(len(text) + 1)))
        middle = draw.choice(("", text[i:j] * 2, draw.choice(PIECES)))
        text = text[:i] + middle + text[j if len(middle) < 40 else i :]
    return text[:4000]


CODES = {
    *(
        "cut",
        "no_call",
        "invoke_open",
        "element_open",
        "bare_closer",
        "stray_closer",
        "opener_missing",
    ),
    *(
        "stray_text",
        "nested_block",
        "stray_mark",
        "unknown_tool",
        "no_name",
        "no_block",
        "no_invoke",
    ),
    "lone_closer",
}


def check(text: str, start: str, tools: list[Any] | None, draw: random.Random) -> Message:
    whole = parse(text, start, tools)
    check_spans(text, whole)
    for call in whole.tool_calls:
        assert isinstance(json.loads(call.function.arguments), dict)
        assert call.function.name
    reasoning, content = split_reasoning(text, start, bool(tools))
    assert reasoning == whole.reasoning_content
    assert parse_tool_calls(content, tools)[0] == whole.content
    size = draw.randrange(1, 8)
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    streamed, added = stream(pieces, start, tools)
    assert view(streamed) == view(whole)
    assert view(added)[:3] == view(whole)[:3]
    return whole


def fuzz(count: int, seed: int) -> None:
    seen: set[str] = set()
    calls = reasoning = 0
    draw = random.Random(seed)
    texts = [case["text"] for name in ("chat_parse", "tool_parser") for case in load(name)]
    texts = [text for text in texts if text]
    for i in range(count):
        text = random_text(draw) if i % 2 else damaged_case(draw, texts)
        start = draw.choice(("adaptive", "enabled", "disabled"))
        tools = None if draw.random() < 0.1 else TOOLS
        try:
            message = check(text, start, tools, draw)
        except Exception as error:
            raise AssertionError(f"input {i} of seed {seed}: {text!r} start={start}") from error
        calls += len(message.tool_calls)
        reasoning += message.reasoning_content is not None
        seen.update(code for code, _ in errors_of(message.parse_error))
    # The inputs reach every repair, or the test shows little.
    assert seen == CODES and calls > count // 10 and reasoning > count // 10


def test_fuzz_parser() -> None:
    fuzz(4_000, seed=1)


@pytest.mark.slow
def test_fuzz_parser_one_million() -> None:
    for seed in range(100, 110):
        fuzz(100_000, seed)


def test_deep_nesting_ends() -> None:
    deep = "".join(f"{NS}<a>" for _ in range(20_000))
    message = parse(
        f'{NS}<tool_call>{NS}<invoke name="g">{deep}{NS}</invoke>{NS}</tool_call>',
        "disabled",
        TOOLS,
    )
    assert len(message.tool_calls) == 1 and message.parse_error is not None
    json.loads(message.tool_calls[0].function.arguments)


@pytest.mark.parametrize(
    "value",
    [
        "9" * 5000,
        "[" * 5000,
        "[" + "9" * 5000 + "]",
        '["\\ud800"]',
        "[1e999]",
        "[NaN]",
        "1e999",
        '{"a":' * 200 + "1" + "}" * 200,
    ],
)
def test_unprintable_values_stay_text(value: str) -> None:
    schema = {
        "type": "object",
        "properties": {"v": {"type": ["integer", "number", "array", "object"]}},
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    text = (
        f'{NS}<tool_call>{NS}<invoke name="f">{NS}<v>{value}{NS}</v>{NS}</invoke>{NS}</tool_call>'
    )
    (call,) = parse(text, "disabled", tools).tool_calls
    assert call.parsed_arguments() == {"v": value}
    call.function.arguments.encode("utf-8")

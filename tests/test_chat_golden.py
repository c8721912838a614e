"""The golden chat cases: renderings, parses, streams."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from chat_cases import arguments, calls_of, check_spans, ids, load, tools_of

from minimax_m31.chat import (
    StreamParser,
    parse,
    parse_tool_calls,
    render,
    resolve_thinking,
    split_reasoning,
)
from minimax_m31.errors import InvalidRequestError

RENDER = load("chat_render")
REASONING = load("reasoning_parser")
TOOLS = load("tool_parser")
PARSE = load("chat_parse")
STREAM = load("chat_stream")


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [case for case in RENDER if case["kind"] == kind]


@pytest.mark.parametrize("case", of_kind("render"), ids=ids(of_kind("render")))
def test_golden_render(case: dict[str, Any]) -> None:
    rendered = render(**arguments(case))
    expected = case["expected"]
    assert rendered.prompt == expected["prompt"]
    assert rendered.template_vars == expected["template_vars"]
    assert rendered.parser_start == expected["parser_start"]


@pytest.mark.parametrize("case", of_kind("resolve"), ids=ids(of_kind("resolve")))
def test_golden_resolve(case: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        variables = resolve_thinking(case["thinking"], case["reasoning_effort"])
    assert variables == case["expected"]["template_vars"]


@pytest.mark.parametrize("case", of_kind("error"), ids=ids(of_kind("error")))
def test_golden_error(case: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(**arguments(case))
    assert caught.value.param == case["expected"]["param"]


@pytest.mark.parametrize("case", REASONING, ids=ids(REASONING))
def test_golden_reasoning(case: dict[str, Any]) -> None:
    found = split_reasoning(case["text"], case["start"], case["tools_active"])
    assert found == (case["expected"]["reasoning_content"], case["expected"]["content"])


@pytest.mark.parametrize("case", TOOLS, ids=ids(TOOLS))
def test_golden_tool_calls(case: dict[str, Any]) -> None:
    content, calls, error = parse_tool_calls(case["text"], case["tools"])
    expected = case["expected"]
    assert content == expected["content"]
    assert calls_of(calls) == expected["tool_calls"]
    assert (error is not None) == expected["parse_error"]


@pytest.mark.parametrize("case", PARSE, ids=ids(PARSE))
def test_golden_parse(case: dict[str, Any]) -> None:
    message = parse(case["text"], case["start"], tools_of(case))
    expected = case["expected"]
    assert message.reasoning_content == expected["reasoning_content"]
    assert message.content == expected["content"]
    assert calls_of(message.tool_calls) == expected["tool_calls"]
    assert (message.parse_error is not None) == expected["parse_error"]
    assert [list(span) for span in message.raw_spans] == expected["raw_spans"]
    check_spans(case["text"], message)


@pytest.mark.parametrize("case", STREAM, ids=ids(STREAM))
def test_golden_stream(case: dict[str, Any]) -> None:
    parser = StreamParser(case["start"], case["tools"])
    found = []
    for chunk in [*case["chunks"], None]:
        joined: dict[str, Any] = {}
        for delta in parser.finish() if chunk is None else parser.feed(chunk):
            for key, value in delta.to_dict().items():
                if key == "tool_calls":
                    for call in value:
                        assert call["id"].startswith("call_") and len(call.pop("id")) == 29
                joined[key] = joined[key] + value if key in joined else value
        found.append(joined)
    assert found == case["expected"]["deltas"]

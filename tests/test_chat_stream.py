"""Streaming equals whole, however the text is cut; what a stream may say when."""

from __future__ import annotations

import random
from typing import Any

import pytest
from chat_cases import NS, check_spans, ids, load, stream, tools_of, view

from minimax_m31.chat import StreamParser, parse


def all_cases() -> list[dict[str, Any]]:
    """Every golden text, with the start states that its file leaves open."""
    cases: list[dict[str, Any]] = []
    anything = load("chat_parse")[0]["tools"]
    for case in load("reasoning_parser"):
        cases.append({**case, "tools": anything if case["tools_active"] else None})
    for case in load("tool_parser"):
        for start in ("disabled", "enabled"):
            cases.append({**case, "name": f"{case['name']}-{start}", "start": start})
    cases.extend(load("chat_parse"))
    for case in load("chat_stream"):
        cases.append({**case, "text": "".join(case["chunks"])})
    return cases


CASES = all_cases()


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_every_split_position(case: dict[str, Any]) -> None:
    text, start, tools = case["text"], case["start"], tools_of(case)
    whole = parse(text, start, tools)
    check_spans(text, whole)
    cuts = [[text[:i], text[i:]] for i in range(len(text) + 1)]
    cuts.append(list(text))
    for pieces in cuts:
        streamed, added = stream(pieces, start, tools)
        assert view(streamed) == view(whole), pieces
        assert view(added)[:3] == view(whole)[:3], pieces


def test_two_thousand_random_splits() -> None:
    draw = random.Random(20260922)
    for _ in range(2000):
        case = draw.choice(CASES)
        text, start, tools = case["text"], case["start"], tools_of(case)
        places = sorted(draw.randrange(len(text) + 1) for _ in range(draw.randrange(1, 12)))
        pieces = [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]
        streamed, added = stream(pieces, start, tools)
        whole = parse(text, start, tools)
        assert view(streamed) == view(whole), (case["name"], pieces)
        assert view(added)[:3] == view(whole)[:3], (case["name"], pieces)


def test_reasoning_is_not_held_back() -> None:
    parser = StreamParser("enabled", None)
    for piece in ["one ", "two", " <", "b>", "</mm", ":x"]:
        parser.feed(piece)
    assert parser.message().reasoning_content == "one two <b></mm:x"
    assert parser.state == "think" and not parser.thinking_ended
    parser.feed("</mm:think>")
    assert parser.thinking_ended


def test_call_is_sent_before_its_block_ends() -> None:
    tools = [{"type": "function", "function": {"name": "ping"}}]
    parser = StreamParser("disabled", tools)
    parser.feed(f'{NS}<tool_call>\n{NS}<invoke name="ping">')
    assert not parser.message().tool_calls
    (delta,) = parser.feed(f"{NS}</invoke>")
    assert delta.tool_calls is not None and delta.tool_calls[0]["function"]["name"] == "ping"
    (second,) = parser.feed(f'\n{NS}<invoke name="ping">{NS}</invoke>')
    assert second.tool_calls is not None and second.tool_calls[0]["index"] == 1
    assert second.tool_calls[0]["id"] != delta.tool_calls[0]["id"]


def test_one_kind_per_delta_in_order() -> None:
    tools = [{"type": "function", "function": {"name": "ping"}}]
    block = f'{NS}<tool_call>{NS}<invoke name="ping">{NS}</invoke>{NS}</tool_call>'
    parser = StreamParser("enabled", tools)
    deltas = parser.feed(f"why</mm:think>a{block}b{block}c") + parser.finish()
    kinds = [next(iter(delta.to_dict())) for delta in deltas]
    assert kinds == [
        "reasoning_content",
        "content",
        "tool_calls",
        "content",
        "tool_calls",
        "content",
    ]


def test_asking_for_the_message_at_every_piece_is_cheap() -> None:
    parser = StreamParser("enabled", [{"type": "function", "function": {"name": "x"}}])
    for i in range(20_000):
        parser.feed("word ")
        if i == 10_000:
            parser.feed("</mm:think>")
        assert len(parser.message().raw_spans) <= 3
    parser.finish()
    message = parser.message()
    assert [span.kind for span in message.raw_spans] == ["reasoning", "dropped", "content"]


def test_feed_after_finish_is_refused() -> None:
    parser = StreamParser()
    parser.finish()
    assert parser.finish() == []
    with pytest.raises(RuntimeError, match="new parser"):
        parser.feed("x")


def test_long_values_cost_linear_time() -> None:
    """A megabyte in an argument, fed in small pieces: quadratic buffering would take minutes."""
    tools = [{"type": "function", "function": {"name": "put"}}]
    parser = StreamParser("disabled", tools)
    parser.feed(f'{NS}<tool_call>{NS}<invoke name="put">{NS}<body>')
    for _ in range(100_000):
        parser.feed("ten chars ")
    parser.feed(f"{NS}</body>{NS}</invoke>{NS}</tool_call>")
    parser.finish()
    (call,) = parser.message().tool_calls
    assert len(call.parsed_arguments()["body"]) == 1_000_000


@pytest.mark.parametrize("text", [" " * 100_000, NS * 4_000, (NS + "<") * 4_000, "]<" * 25_000])
def test_held_text_costs_linear_time(text: str) -> None:
    for start, tools in (("adaptive", None), ("disabled", [{"function": {"name": "x"}}])):
        for size in (1, 7):
            parser = StreamParser(start, tools)
            for i in range(0, len(text), size):
                parser.feed(text[i : i + size])
            parser.finish()
            assert parser.message().content == text

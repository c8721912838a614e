"""Conversations: the error contract beyond the golden cases, normalisation, thinking, history,
continuing.
"""

# ruff: noqa: E501 (tables of cases, one a line)
from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

from minimax_m31.chat import Message, parse, render, resolve_thinking
from minimax_m31.chat.messages import normalise_messages, split_inline_block
from minimax_m31.chat.thinking import resolve_request
from minimax_m31.errors import InvalidRequestError

USER = {"role": "user", "content": "Go"}


def call(id: Any = "c1", name: str = "note", arguments: Any = "{}") -> dict[str, Any]:
    out: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return out if id is None else {"id": id, **out}


def asks(*calls: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def result(id: Any = "c1", content: Any = "ok") -> dict[str, Any]:
    out: dict[str, Any] = {"role": "tool", "content": content}
    return out if id is None else {**out, "tool_call_id": id}


def turns(messages: list[Any], **arguments: Any) -> str:
    """The prompt behind the developer turn."""
    return render(messages, **arguments).prompt.split("You are a helpful assistant.", 1)[1]


ERRORS: list[tuple[str, Any, str]] = [
    ("not_a_list", "Hi", "messages"),
    ("a_dict", USER, "messages"),
    ("none", None, "messages"),
    ("not_a_dict", [USER, "Hi"], "messages[1]"),
    ("no_role", [{"content": "Hi"}], "messages[0].role"),
    ("function_role", [USER, {"role": "function", "content": "x"}], "messages[1].role"),
    ("late_root", [USER, {"role": "root", "content": "x"}], "messages[1].role"),
    ("root_after_system", [{"role": "system", "content": "x"}, {"role": "root", "content": "x"}],
    "messages[1].role"),
    ("user_none", [{"role": "user", "content": None}], "messages[0].content"),
    ("user_missing", [{"role": "user"}], "messages[0].content"),
    ("user_number", [{"role": "user", "content": 3}], "messages[0].content"),
    ("system_none", [{"role": "system", "content": None}, USER], "messages[0].content"),
    ("tool_none", [USER, asks(call()), result(content=None)], "messages[2].content"),
    ("part_not_a_dict", [{"role": "user", "content": [3]}], "messages[0].content[0]"),
    ("part_without_type", [{"role": "user", "content": [{"text": "x"}]}],
    "messages[0].content[0].type"),
    ("text_part_without_text", [{"role": "user", "content": [{"type": "text"}]}],
    "messages[0].content[0].text"),
    ("tool_after_user", [USER, result()], "messages[1].role"),
    ("tool_after_answer", [USER, asks(call()), result(), {"role": "assistant", "content": "a"},
    result()], "messages[4].role"),
    ("id_twice", [USER, asks(call("a"), call("b")), result("a"), result("a")],
    "messages[3].tool_call_id"),
    ("too_many_results", [USER, asks(call("a")), result("a"), result("b")],
    "messages[3].tool_call_id"),
    ("too_many_without_ids", [USER, asks(call("a")), result(None), result(None)],
    "messages[3].tool_call_id"),
    ("mixed_ids", [USER, asks(call("a"), call("b")), result("a"), result(None)],
    "messages[3].tool_call_id"),
    ("call_ids_twice", [USER, asks(call("a"), call("a")), result("a"), result("a")],
    "messages[1].tool_calls[1].id"),
    ("no_result_in_the_middle", [USER, asks(call()), {"role": "assistant", "content": "x"}],
    "messages[1].tool_calls"),
    ("call_without_name", [USER, asks({"id": "x", "function": {"arguments": "{}"}})],
    "messages[1].tool_calls[0].function.name"),
    ("calls_not_a_list", [USER, {"role": "assistant", "content": "", "tool_calls": "x"}],
    "messages[1].tool_calls"),
    ("arguments_nan", [USER, asks(call(arguments='{"a": NaN}'))],
    "messages[1].tool_calls[0].function.arguments"),
    ("arguments_number", [USER, asks(call(arguments=3))],
    "messages[1].tool_calls[0].function.arguments"),
    ("reasoning_number", [USER, {"role": "assistant", "reasoning_content": 3}],
    "messages[1].reasoning_content"),
    ("details_wrong", [USER, {"role": "assistant", "reasoning_details": [{"x": 1}]}],
    "messages[1].reasoning_details"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "param"), [e[1:] for e in ERRORS], ids=[e[0] for e in ERRORS])
def test_error_names_the_place(messages: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("data:image/png;base64,AAAA", True), ("file:///tmp/x.png", True), ("/tmp/x.png", True),
        ("x.png", False), ("../x.png", False), ("", False), (None, False), ("http://h/x.png",
        False),
        ("https://h/x.png", False), ("ftp://h/x.png", False), ("javascript:1", False),
    ],
)  # fmt: skip
def test_image_urls(url: Any, fine: bool) -> None:
    messages = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": url}},
            ],
        }
    ]
    if fine:
        rendered = render(messages)
        assert rendered.prompt.count("a]<]image[>[") == 1
        assert [(part.kind, part.source) for part in rendered.media] == [("image", url)]
    else:
        with pytest.raises(InvalidRequestError) as caught:
            render(messages)
        assert caught.value.param == "messages[0].content[1].image_url.url"


def test_https_when_fetching_is_on_and_options_are_kept() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://h/x.png", "detail": "high"}}
    rendered = render([{"role": "user", "content": [part]}], remote_media=True)
    assert rendered.media[0].source == "https://h/x.png" and rendered.media[0].options == {
        "detail": "high"
    }


def test_part_types_and_order_of_media() -> None:
    first, second = object(), object()
    content = [
        {"type": "input_text", "text": "1"},
        {"type": "image", "image": first},
        {"type": "input_image", "image_url": "data:image/png;base64,AA"},
        {"type": "video_url", "video_url": {"url": "file:///v.mp4", "fps": 2}},
        {"type": "video", "video": second},
        "2",
    ]
    rendered = render([{"role": "user", "content": content}])
    assert "1]<]image[>[]<]image[>[]<]video[>[]<]video[>[2[e~[" in rendered.prompt
    assert [part.kind for part in rendered.media] == ["image", "image", "video", "video"]
    assert rendered.media[0].source is first and rendered.media[3].source is second
    assert rendered.media[2].options == {"fps": 2}


def test_media_follow_reordered_results() -> None:
    def image(name: str) -> list[dict[str, Any]]:
        return [{"type": "image_url", "image_url": {"url": f"file:///{name}.png"}}]

    messages = [USER, asks(call("a"), call("b")), result("b", image("b")), result("a", image("a"))]
    assert [part.source for part in render(messages).media] == ["file:///a.png", "file:///b.png"]


def test_nothing_of_the_caller_is_changed() -> None:
    messages = [
        {"role": "system", "content": "a\ufdd0"},
        {"role": "developer", "content": "b"},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": "<mm:think>r</mm:think>t",
            "tool_calls": [call("1", arguments='{"k": [1]}')],
        },
        result("1"),
    ]
    tools = [
        {
            "type": "function",
            "function": {"name": "note", "description": "d", "parameters": {"type": "object"}},
        }
    ]
    before = copy.deepcopy((messages, tools))
    render(messages, tools=tools, reasoning_history="none")
    assert (messages, tools) == before


def test_leading_texts_are_joined() -> None:
    leading = [
        {"role": "system", "content": "A"},
        {"role": "developer", "content": [{"type": "text", "text": "B"}]},
    ]
    assert "]~b]developer\nA\n\nB[e~[" in render([*leading, USER]).prompt
    root = {"role": "root", "content": "R"}
    assert "]~b]system\nR\n\n<thinking" in render([root, *leading, USER]).prompt


def test_assistant_aliases() -> None:
    for fields in (
        {"reasoning_content": "why"},
        {"reasoning": "why"},
        {"reasoning_details": [{"text": "w"}, {"text": "hy"}]},
        {"content": "<mm:think>\nwhy\n</mm:think>\nso"},
    ):
        message = {"role": "assistant", "content": "so", **fields}
        assert "]~b]ai\n<mm:think>why</mm:think>so[e~[" in turns([USER, message, USER])
    empty = {"role": "assistant", "content": "a</mm:think>b", "reasoning_content": ""}
    assert "]~b]ai\n</mm:think>a</mm:think>b[e~[" in turns([USER, empty, USER])


def test_inline_block_rule() -> None:
    assert split_inline_block("no block") is None
    assert split_inline_block("<mm:think>a") is None
    assert split_inline_block("x<mm:think>\na\n</mm:think>mid</mm:think>\n\nb\n") == ("a", "b")
    assert split_inline_block("\na</mm:think>b") == ("a", "b")


def test_a_parsed_message_can_be_sent_back() -> None:
    tools = [{"type": "function", "function": {"name": "note", "parameters": {}}}]
    ns = "]<]minimax[>["
    text = f'r</mm:think>t{ns}<tool_call>\n{ns}<invoke name="note">{ns}<a>1{ns}</a>{ns}</invoke>\n{ns}</tool_call>'
    message = parse(text, "enabled", tools)
    for sent in (message, message.to_dict()):
        prompt = turns([USER, sent, result(message.tool_calls[0].id)], thinking="enabled")
        assert f"]~b]ai\n<mm:think>{text}[e~[\n]~b]tool\n<response>ok</response>[e~[\n" in prompt


def test_arguments_as_the_template_writes_them() -> None:
    given = {
        "n": 1e-07,
        "z": -0.0,
        "big": 10**20,
        "t": True,
        "none": None,
        "l": [None, [1]],
        "s": " a ",
    }
    ns = "]<]minimax[>["
    prompt = turns([USER, asks(call(arguments=given))], add_generation_prompt=False).replace(
        ns, "§"
    )
    assert (
        "§<n>1e-07§</n>§<z>-0.0§</z>§<big>100000000000000000000§</big>§<t>true§</t>"
        "§<l>§<item>§</item>§<item>§<item>1§</item>§</item>§</l>§<s> a §</s>"
    ) in prompt
    assert '§<invoke name="note">§</invoke>' in turns([USER, asks(call(arguments=""))]).replace(
        ns, "§"
    )


def test_results_without_ids_go_in_order() -> None:
    prompt = turns([USER, asks(call(None), call(None)), result(None, "1"), result(None, "2")])
    assert "]~b]tool\n<response>1</response>\n<response>2</response>[e~[" in prompt


def test_model_identity_and_template_kwargs() -> None:
    prompt = render([USER], chat_template_kwargs={"model_identity": "You are Piet."}).prompt
    assert "]~b]developer\nYou are Piet.[e~[" in prompt
    for name in ("messages", "tools", "add_generation_prompt"):
        with pytest.raises(InvalidRequestError) as caught:
            render([USER], chat_template_kwargs={name: 1})
        assert caught.value.param == "chat_template_kwargs"


# -- thinking ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 0, 2.0, b"enabled", ["enabled"], "", "Adaptive", "true"])
def test_unknown_thinking(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_thinking(value)
    assert caught.value.param == "thinking"


@pytest.mark.parametrize(
    "value", [{}, {"type": None}, {"type": "on"}, {"type": True}, {"mode": "enabled"}]
)
def test_unknown_thinking_type(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_thinking(value)
    assert caught.value.param == "thinking.type"


@pytest.mark.parametrize("value", ["HIGH", "ultra", "", 0.5, 1, True, ["low"]])
def test_unknown_effort_even_when_ignored(value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_thinking("disabled", value)
    assert caught.value.param == "reasoning_effort"


def test_warnings() -> None:
    with pytest.warns(UserWarning, match="budget_tokens"):
        resolve_thinking({"type": "enabled", "budget_tokens": 4})
    with pytest.warns(UserWarning, match="dropped"):
        assert resolve_thinking("adaptive", "none") == {"thinking_mode": "adaptive"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_thinking("disabled", "none") == {"thinking_mode": "disabled"}


@pytest.mark.filterwarnings("ignore:reasoning_effort")
def test_precedence() -> None:
    def mode(*given: Any) -> tuple[str, str | None]:
        variables = resolve_request(*given)
        return variables["thinking_mode"], variables.get("reasoning_effort")

    assert mode("enabled", None, None, "disabled", "low") == ("enabled", "low")
    assert mode(None, None, {"thinking_mode": "enabled"}, "disabled", "low") == ("enabled", "low")
    assert mode(None, "max", None, "enabled", "low") == ("enabled", "max")
    assert mode(None, None, None, "disabled", "low") == ("disabled", None)
    assert mode(None, None, None, None, "none") == ("disabled", None)
    assert mode("adaptive", None, None, None, "none") == ("adaptive", None)
    assert mode(True, "high", {"thinking_mode": "enabled", "reasoning_effort": "high"}) == (
        "enabled",
        "high",
    )
    for given in (
        ("enabled", None, {"thinking_mode": "disabled"}),
        (None, None, {"thinking_mode": "on"}),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            mode(*given)
        assert caught.value.param == "thinking"
    with pytest.raises(InvalidRequestError) as caught:
        mode(None, "low", {"reasoning_effort": "high"})
    assert caught.value.param == "reasoning_effort"


# -- continuing -------------------------------------------------------------------------------


def continued(message: dict[str, Any], **arguments: Any) -> tuple[str, str]:
    rendered = render(
        [USER, message], add_generation_prompt=False, continue_final_message=True, **arguments
    )
    return rendered.prompt.rsplit("]~b]ai\n", 1)[1], rendered.parser_start


def test_continue_final_message() -> None:
    answer = {"role": "assistant", "content": "one [e~[\n"}
    assert continued(answer) == ("</mm:think>one [e~[\n", "disabled")
    assert continued({"role": "assistant", "content": ""}) == ("</mm:think>", "disabled")
    thought = {"role": "assistant", "content": "", "reasoning_content": "so "}
    assert continued(thought) == ("<mm:think>so ", "enabled")
    assert continued(thought, reasoning_history="none") == ("<mm:think>so ", "enabled")


def test_continue_with_another_template() -> None:
    source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    rendered = render(
        [USER, {"role": "assistant", "content": "one"}], source, None, None, None, False, True
    )
    assert rendered.prompt == "<|user|>Go<|end|><|assistant|>one"


def test_parser_start_is_read_at_the_boundary_only() -> None:
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ end }}"
    said = [{"role": "user", "content": "say <mm:think>"}]
    for end, start in (
        ("ai:", "adaptive"),
        ("<mm:think>", "enabled"),
        ("<mm:think>\n ", "enabled"),
    ):
        rendered = render(said, source, thinking="disabled", chat_template_kwargs={"end": end})
        assert rendered.parser_start == start
    # A template that reads the mode decides by it, whatever else it prints.
    source += "{# #}{{ thinking_mode }}"
    assert render(said, source, thinking="disabled").parser_start == "disabled"


def test_normalised_form_is_stable() -> None:
    messages, _ = normalise_messages(
        [USER, asks(call("a", arguments='{"x": 1}')), result("a"), Message(content="y")]
    )
    again, _ = normalise_messages(messages)
    assert again == messages

"""Tools: schemas from callables and pydantic models, what is refused, values by schema, forced-call grammars."""

# ruff: noqa: E501 (tables of cases, one a line)
from __future__ import annotations

import json
from typing import Any, Literal, Optional, Union

import pytest
from chat_cases import NS, calls_of, errors_of

from minimax_m31.chat import parse, parse_output, parse_tool_calls, render
from minimax_m31.chat.grammar import forced_call_grammar, require_llguidance
from minimax_m31.chat.parser import reasoning_token_count
from minimax_m31.chat.tools import check_tool_choice, function_tool, normalise_tools
from minimax_m31.errors import GrammarError, InvalidRequestError

USER = [{"role": "user", "content": "Go"}]


def get_tide(port: str, day: int = 0, units: Optional[str] = None) -> float:  # noqa: UP045
    """
    Height of the tide.
    In metres.

    Args:
        port: Where, by name,
            in English,
        or German.
        day (int): Days from today
        units: Unit (choices: ["m", "ft"])

    Returns:
        The height.
    """
    return 1.8


def test_schema_of_a_callable() -> None:
    assert function_tool(get_tide) == {
        "type": "function",
        "function": {
            "name": "get_tide",
            "description": "Height of the tide.\nIn metres.",
            "parameters": {
                "type": "object",
                "properties": {
                    "port": {
                        "type": "string",
                        "description": "Where, by name, in English, or German.",
                    },
                    "day": {"type": "integer", "description": "Days from today"},
                    "units": {
                        "type": "string",
                        "nullable": True,
                        "enum": ["m", "ft"],
                        "description": "Unit",
                    },
                },
                "required": ["port"],
            },
            "return": {"type": "number", "description": "The height."},
        },
    }


def test_annotations() -> None:
    def tool(
        a: list[int],
        b: dict[str, float],
        c: Union[int, str],  # noqa: UP007
        d: Literal["x", "y"],
        e: Any,
        f: tuple[int, str],
        g: list[dict[str, list[str]]] | None,
        h: bool,
        i: dict,  # type: ignore[type-arg]
        j: tuple[int, ...] = (),
    ) -> None:
        """Everything.

        Args:
            a: a
            b: b
            c: c
            d: d
            e: e
            f: f
            g: g
            h: h
            i: i
            j: j
        """

    tool.__annotations__ = {
        "a": list[int], "b": dict[str, float], "c": Union[int, str], "d": Literal["x", "y"], "e": Any,  # noqa: UP007
        "f": tuple[int, str], "g": Optional[list[dict[str, list[str]]]], "h": bool, "i": dict, "j": tuple[int, ...],  # noqa: UP045
    }  # fmt: skip
    properties = function_tool(tool)["function"]["parameters"]["properties"]
    assert {
        name: {k: v for k, v in schema.items() if k != "description"}
        for name, schema in properties.items()
    } == {
        "a": {"type": "array", "items": {"type": "integer"}},
        "b": {"type": "object", "additionalProperties": {"type": "number"}},
        "c": {"type": ["integer", "string"]},
        "d": {"type": "string", "enum": ["x", "y"]},
        "e": {},
        "f": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}]},
        "g": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": {"type": "array", "items": {"type": "string"}},
            },
            "nullable": True,
        },
        "h": {"type": "boolean"},
        "i": {"type": "object"},
        "j": {"type": "array", "items": {"type": "integer"}},
    }
    assert function_tool(tool)["function"]["parameters"]["required"] == list("abcdefghi")


def test_callables_that_cannot_be_described() -> None:
    def no_docstring(a: int) -> None: ...

    def no_annotation(a):  # type: ignore[no-untyped-def]
        """Text.

        Args:
            a: x
        """

    def no_description(a: int) -> None:
        """Text."""

    def star(*a: int) -> None:
        """Text.

        Args:
            a: x
        """

    def odd_type(a: bytes) -> None:
        """Text.

        Args:
            a: x
        """

    for function in (no_docstring, no_annotation, no_description, star, odd_type):
        with pytest.raises(InvalidRequestError, match=function.__name__) as caught:
            render(USER, tools=[get_tide, function])
        assert caught.value.param == "tools[1]"


def test_pydantic_model() -> None:
    pydantic = pytest.importorskip("pydantic")
    namespace: dict[str, Any] = {"BaseModel": pydantic.BaseModel, "Field": pydantic.Field}
    exec(
        "class Book(BaseModel):\n"
        "    'Book a ferry.'\n"
        "    port: str = Field(description='Where')\n"
        "    cars: int = 1\n",
        namespace,
    )
    (tool,) = normalise_tools([namespace["Book"]])
    function = tool["function"]
    assert (function["name"], function["description"]) == ("Book", "Book a ferry.")
    assert function["parameters"]["properties"]["port"]["description"] == "Where"
    assert function["parameters"]["required"] == ["port"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({}, "tools[0].function.name"),
        ({"function": {"name": ""}}, "tools[0].function.name"),
        ({"function": {"name": 3}}, "tools[0].function.name"),
        ({"function": {"name": "x", "parameters": []}}, "tools[0].function.parameters"),
        ({"function": {"name": "x", "parameters": None}}, "tools[0].function.parameters"),
        *(
            (
                {"function": {"name": "x", "parameters": {"properties": {name: {}}}}},
                "tools[0].function.parameters",
            )
            for name in ("a<b", "a>b", "/a", "a b", "", NS, "a\n")
        ),
        (
            {
                "function": {
                    "name": "x",
                    "parameters": {"properties": {"a": {"items": {"properties": {"b c": {}}}}}},
                }
            },
            "tools[0].function.parameters",
        ),
        (3, "tools[0]"),
    ],
)
def test_refused_tools(tool: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(USER, tools=[tool])
    assert caught.value.param == param


def test_same_name_twice_and_tools_not_a_list() -> None:
    tool = {"type": "function", "function": {"name": "x"}}
    with pytest.raises(InvalidRequestError) as caught:
        render(USER, tools=[tool, tool])
    assert caught.value.param == "tools[1].function.name"
    with pytest.raises(InvalidRequestError) as caught:
        render(USER, tools=tool)
    assert caught.value.param == "tools"


def test_tool_choice() -> None:
    tools = normalise_tools([get_tide])
    named = {"type": "function", "function": {"name": "get_tide"}}
    assert [check_tool_choice(c, tools) for c in ("auto", "none", "required", named)] == [
        None,
        None,
        "",
        "get_tide",
    ]
    for choice in ("any", 3, {}, {"function": {"name": "other"}}, {"function": {"name": ""}}):
        with pytest.raises(InvalidRequestError) as caught:
            render(USER, tools=tools, tool_choice=choice)
        assert caught.value.param == "tool_choice"
    with pytest.raises(InvalidRequestError):
        render(USER, tool_choice="required")


# -- values and repairs -------------------------------------------------------------------------


def element(tag: str, value: str) -> str:
    return f"{NS}<{tag}>{value}{NS}</{tag}>"


def block(inner: str, name: str = "f") -> str:
    return f'{NS}<tool_call>\n{NS}<invoke name="{name}">{inner}{NS}</invoke>\n{NS}</tool_call>'


def convert(schema: Any, value: str, root: dict[str, Any] | None = None) -> Any:
    parameters = {"type": "object", "properties": {"v": schema}, **(root or {})}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    (call,) = parse(block(element("v", value)), "disabled", tools).tool_calls
    return call.parsed_arguments()["v"]


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "integer"}, "+007", 7), ({"type": "integer"}, "5.0", 5), ({"type": "integer"}, "5.5", "5.5"),
        ({"type": "integer"}, "", ""), ({"type": "integer"}, "null", None), ({"type": "integer"}, "none", "none"),
        ({"type": "INT64"}, "5", 5), ({"type": "unsigned long"}, "5", 5), ({"type": "Float"}, "5.0", 5.0),
        ({"type": "number"}, "1e3", 1000.0), ({"type": "number"}, "1e999", "1e999"), ({"type": "number"}, ".5", 0.5),
        ({"type": "number"}, "-12", -12), ({"type": "number"}, "1_000", "1_000"), ({"type": "number"}, "٣", "٣"),
        ({"type": "bool"}, " True\n", True), ({"type": "bool"}, "0", False), ({"type": "bool"}, "yes", "yes"),
        ({"type": "null"}, "NULL", None), ({"type": "null"}, "nil", "nil"), ({"type": "str"}, "null", "null"),
        ({"type": ["integer", "null"]}, "", None), ({"type": ["string", "null"]}, "", ""),
        ({"type": "string", "nullable": True}, "null", None),
        ({"type": ["object", "array"]}, "[1]", [1]), ({"type": "dict"}, '{"a": [1, null]}', {"a": [1, None]}),
        ({"type": "object"}, "[1]", "[1]"), ({"type": "list"}, '"x"', '"x"'), ({"type": "array"}, "NaN", "NaN"),
        ({"enum": ["1", 1]}, "1", "1"), ({"enum": [1, "1"]}, "1", 1), ({"enum": [True, 1]}, "1", 1),
        ({"enum": [{"a": 1}]}, '{"a":1}', {"a": 1}), ({"enum": ["a", None]}, "null", None), ({"const": 4}, "4", 4),
        ({"enum": ["a"]}, "b", "b"), ({"anyOf": [{"type": "boolean"}, {"type": "integer"}]}, "1", True),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "1", 1),
        ({"oneOf": [{"const": 1}, {"const": "one"}]}, "one", "one"),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, "4", 4), ({"items": {}}, "[1]", [1]),
        ({"properties": {}}, "{}", {}), ({"type": "date"}, "5", "5"), ({"$ref": "#/$defs/d"}, "5", 5),
        ({"$ref": "#/nowhere"}, "5", "5"), ({}, " null ", None), ({}, "7", "7"), (True, "7", "7"),
    ],
)  # fmt: skip
def test_text_by_schema(schema: Any, text: str, value: Any) -> None:
    found = convert(schema, text, {"$defs": {"d": {"type": "integer"}}})
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("schema", "inner", "value"),
    [
        ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
         element("item", "1") + element("item", "2"), ["1", 2]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, element("a", "1"), {"a": 1}),
        ({"type": "string"}, element("item", "1"), {"item": "1"}),
        ({}, element("item", "1") + element("k", "2"), {"item": "1", "k": "2"}),
        ({}, element("item", element("item", "true")), [[True]]),
        ({"anyOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"type": "null"}]},
         element("a", "1"), {"a": 1}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, element("a", "1") + element("a", "2"),
         {"a": [1, 2]}),
        ({"type": "object"}, "\n" + element("$text", "x") + "y", {"$text": "x", "$$text": "\ny"}),
        ({"type": "array", "items": {"type": "integer"}}, f"{NS}<item>1{NS}<item>2{NS}</item>", [1, 2]),
    ],
)  # fmt: skip
def test_elements_by_schema(schema: Any, inner: str, value: Any) -> None:
    assert convert(schema, inner) == value


def test_schema_through_references_and_unions_at_the_top() -> None:
    parameters = {
        "$defs": {
            "leg": {
                "type": "object",
                "properties": {"km": {"type": "integer"}, "next": {"$ref": "#/$defs/leg"}},
            }
        },
        "anyOf": [
            {"properties": {"legs": {"type": "array", "items": {"$ref": "#/$defs/leg"}}}},
            {"required": ["n"]},
        ],
        "allOf": [{"properties": {"n": {"type": "number"}}}],
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    leg = element("item", element("km", "3") + element("next", element("km", "4")))
    (call,) = parse(block(element("legs", leg) + element("n", "2")), "disabled", tools).tool_calls
    assert call.function.arguments == '{"legs": [{"km": 3, "next": {"km": 4}}], "n": 2}'


@pytest.mark.parametrize(
    ("text", "codes", "content", "calls"),
    [
        (f"{NS}<tool_call>{NS}<invoke name='f'>{NS}<v>1", ["cut", "no_call"], "all", []),
        (block(""), [], "", ["{}"]),
        (block("", "other"), ["unknown_tool"], "", ["{}"]),
        (block(f"{NS}<v>1</v>"), ["bare_closer"], "", ['{"v": 1}']),
        (block(f"{NS}<v>1</v>\n{NS}<w>x</w>\n"), ["bare_closer", "bare_closer"], "", ['{"v": 1, "w": "x"}']),
        (block(f"{NS}<v>1"), ["element_open"], "", ['{"v": 1}']),
        (block(f"{NS}5{NS}</v>"), ["opener_missing"], "", ['{"v": 5}']),
        (block(f"{element('v', '1')} and {element('w', '')}"), ["stray_text"], "", ['{"v": 1, "w": ""}']),
        (block(f"{NS}</u>{element('v', '1')}"), ["stray_closer"], "", ['{"v": 1}']),
        (block(element("w", f"a{NS}b")), ["stray_mark"], "", ['{"w": "ab"}']),
        (block(f"{NS}<w>a{NS}<tool_call>b"), ["nested_block", "stray_text"], "", ['{"w": "a"}']),
        (f"{NS}<invoke name=f>{NS}</invoke> x", ["no_block"], " x", ["{}"]),
        (f"x{NS}</invoke>y", ["lone_closer"], "xy", []),
        (f"{NS}<tool_call>a{NS}</tool_call>", ["no_invoke"], "all", []),
        (f"{NS}<tool_call>\n{NS}</tool_call>", ["no_invoke"], "all", []),
        (f"{NS}<tool_call>{NS}<invoke name=\"\">{NS}</invoke>{NS}</tool_call>", ["no_name", "no_call"], "all", []),
        (f"{NS}<tool_call>{NS}<invoke name=\"f{NS}<v>1{NS}</v>{NS}</invoke>{NS}</tool_call>", ["no_name", "no_call"], "all", []),
        (f"{NS}<tool_call>{NS}<invoke name=f>{NS}</tool_call>", ["invoke_open"], "", ["{}"]),
    ],
)  # fmt: skip
def test_marks(text: str, codes: list[str], content: str, calls: list[str]) -> None:
    schema = {"type": "object", "properties": {"v": {"type": "integer"}, "w": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    found, made, error = parse_tool_calls(text, tools)
    assert [code for code, _ in errors_of(error)] == codes
    assert found == (text if content == "all" else content)
    assert [call["arguments"] for call in calls_of(made)] == calls
    for _, (start, end) in errors_of(error):
        assert 0 <= start <= end <= len(text)


def test_spans_of_marks_point_into_the_raw_text() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = f"Hm <mm:think>r</mm:think>ok {NS}</tool_call>."
    message = parse(text, "adaptive", tools)
    assert message.parse_error is not None
    start, end = message.parse_error.span
    assert text[start:end] == f"{NS}</tool_call>"
    assert message.content == "Hm ok ."


def test_mark_spelled_over_the_thinking_block() -> None:
    """Content is joined before tools are read, so a mark may lie on both sides of a late thinking block."""
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = f"a ]<]mini<mm:think>r</mm:think>max[>[</tool_call>b{block('')}"
    message = parse(text, "adaptive", tools)
    assert message.content == "a b" and len(message.tool_calls) == 1
    assert [span.kind for span in message.raw_spans] == [
        "content",
        "dropped",
        "reasoning",
        "dropped",
        "content",
        "call",
    ]


def test_finish_reason_and_shapes() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert parse(block(""), "disabled", tools, finish_reason="stop").finish_reason == "tool_calls"
    assert (
        parse(block(""), "disabled", tools, finish_reason="stop", stop_reason="x").finish_reason
        == "stop"
    )
    assert parse(block(""), "disabled", tools, finish_reason="length").finish_reason == "length"
    assert parse("a", "disabled", tools, finish_reason="stop").finish_reason == "stop"
    message = parse(f"r</mm:think>{block('')}", "enabled", tools)
    out = message.to_dict()
    assert list(out) == ["role", "content", "reasoning_content", "tool_calls"]
    assert out["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    json.dumps(out)
    assert len(repr(message)) < 300
    ids = {call.id for _ in range(100) for call in parse(block(""), "disabled", tools).tool_calls}
    assert len(ids) == 100


def test_reasoning_tokens() -> None:
    spans = parse("<mm:think>abcd</mm:think>ef", "adaptive").raw_spans
    # mark, "ab", "cd" + mark, "e", "f"; then everything in single characters
    assert reasoning_token_count(spans, [10, 2, 13, 1, 1]) == 2
    assert reasoning_token_count(spans, [1] * 27) == 4
    assert reasoning_token_count([], [1, 2]) == 0


def test_parse_output_of_stored_text() -> None:
    assert parse_output("r</mm:think>a[e~[", start="enabled").content == "a"
    with pytest.raises(InvalidRequestError) as caught:
        parse_output([1, 2], start="enabled")
    assert caught.value.param == "tokenizer"
    with pytest.raises(InvalidRequestError) as caught:
        parse("x", "thinking")
    assert caught.value.param == "start"


# -- forced calls -------------------------------------------------------------------------------

BOOK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "book",
        "parameters": {
            "type": "object",
            "$defs": {
                "t": {
                    "type": "object",
                    "properties": {"l": {"$ref": "#/$defs/t"}, "v": {"type": "integer"}},
                }
            },
            "properties": {
                "port": {"type": "string"},
                "cars": {"type": ["integer", "null"]},
                "mode": {"type": "string", "enum": ["fast", "slow"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "tree": {"$ref": "#/$defs/t"},
                "free": {},
            },
            "required": ["port"],
        },
    },
}
PING: dict[str, Any] = {"type": "function", "function": {"name": "ping"}}


def test_grammar_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(GrammarError, match="pip install"):
        require_llguidance()
    with pytest.raises(GrammarError):
        forced_call_grammar([PING], "auto")


def test_grammar_admits_exactly_the_forced_calls() -> None:
    pytest.importorskip("llguidance")
    from chat_cases import TOKENIZER
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

    from minimax_m31.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(TOKENIZER)

    class Table:
        eos_token_id = tokenizer.token_id("[e~[")
        bos_token_id = None
        tokens = tokenizer.token_bytes()
        special_token_ids = tokenizer.special_ids()

        def __call__(self, text: Any) -> list[int]:
            return tokenizer.encode(text.decode() if isinstance(text, bytes) else text)

    table = LLTokenizer(TokenizerWrapper(Table()))

    def admits(text: str, choice: Any = "required", parallel: bool = True) -> bool:
        matcher = LLMatcher(table, forced_call_grammar([BOOK, PING], choice, parallel))
        assert not matcher.is_error(), matcher.get_error()
        found = tokenizer.encode(text)
        return matcher.try_consume_tokens(found) == len(found) and matcher.is_accepting()

    port = element("port", "Oslo ]<]mini <x>\n")
    tree = element("tree", element("l", element("l", "") + element("v", "1")))
    good = [
        block("", "ping"), block(port, "book"), block(port + element("cars", "-3"), "book"),
        block(port + element("cars", "null") + element("mode", "slow"), "book"),
        block(port + element("tags", element("item", "a") + element("item", "")) + tree, "book"),
        block(port + element("free", "x"), "book"), block(port + element("free", element("k", "v")), "book"),
        f'{NS}<tool_call>\n' + f'{NS}<invoke name="ping">{NS}</invoke>\n' * 3 + f"{NS}</tool_call>",
    ]  # fmt: skip
    bad = [
        "Hello", block("", "pong"), block("", "book"), block(element("cars", "1"), "book"),
        block(port + element("cars", "one"), "book"), block(port + element("mode", "other"), "book"),
        block(element("cars", "1") + port, "book"), block(port, "book") + " bye", f"{NS}<tool_call>\n{NS}</tool_call>",
        block(port.replace(NS + "</port>", "</port>"), "book"),
    ]  # fmt: skip
    for text in good:
        assert admits(text), text
        message = parse(text, "disabled", [BOOK, PING])
        assert message.tool_calls and message.parse_error is None
    for text in bad:
        assert not admits(text), text
    named = {"type": "function", "function": {"name": "ping"}}
    assert admits(good[0], named, False) and not admits(good[1], named)
    assert not admits(good[-1], "required", False)

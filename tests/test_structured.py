"""Constrained answers on the trained model: every kind of constraint, with and without thinking,
drawn greedily and at random, alone and among free requests; what is refused and with which words.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)

from api_models import ROOT

from minimax_m31 import (
    LLM,
    GrammarError,
    InvalidRequestError,
    Message,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
)
from minimax_m31.chat.marks import NAMESPACE, THINK_CLOSE, THINK_OPEN

if not (ROOT / "minimax_m31/nano/config.json").is_file():
    pytest.skip("this build has no trained checkpoint", allow_module_level=True)

has_library = importlib.util.find_spec("llguidance") is not None
needs_library = pytest.mark.skipif(not has_library, reason="llguidance is not installed")

GREEDY = SamplingParams(temperature=0.0, max_tokens=160)
QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
TAG = {
    "structures": [{"begin": "<n>", "schema": {"enum": [42, 43]}, "end": "</n>"}],
    "triggers": ["<n"],
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("nano", max_num_seqs=8, max_model_len=2048, threads=1) as engine:
        yield engine


def get_weather(city: str, days: int) -> str:
    """Get the weather of a city.

    Args:
        city: Name of the city.
        days: How many days.
    """
    return f"{city} {days}"


def get_time(zone: str) -> str:
    """Get the time of a zone.

    Args:
        zone: Name of the zone.
    """
    return zone


def constrained(params: SamplingParams = GREEDY, **constraint: Any) -> SamplingParams:
    return params.replace(structured_outputs=StructuredOutputsParams(**constraint))


def is_json_answer(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"answer", "sure"} and type(value["answer"]) is int


def is_json_object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


CONSTRAINTS: dict[str, tuple[dict[str, Any], Any]] = {
    "json": ({"json": SCHEMA}, is_json_answer),
    "json-text": ({"json": json.dumps(SCHEMA)}, is_json_answer),
    "regex": ({"regex": "[0-9]{3}"}, lambda text: re.fullmatch("[0-9]{3}", text)),
    "choice": ({"choice": ["forty", "42", "4 2"]}, lambda text: text in ("forty", "42", "4 2")),
    "grammar": (
        {"grammar": 'start: "<" word ("," word)? ">"\nword: /[a-z]{2,4}/'},
        lambda text: re.fullmatch("<[a-z]{2,4}(,[a-z]{2,4})?>", text),
    ),
    "json_object": ({"json_object": True}, is_json_object),
    "structural_tag": (
        {"structural_tag": TAG},
        lambda text: "<n" not in re.sub("<n>4[23]</n>", "", text),
    ),
}


def answer(output: RequestOutput) -> Message:
    message = output.outputs[0].message
    assert message is not None and output.error is None, output.error
    return message


@needs_library
@pytest.mark.parametrize("thinking", ["enabled", "disabled", "adaptive"])
def test_answers_fit_their_constraint(llm: LLM, thinking: str) -> None:
    """All kinds in one batch; a free request beside them is not touched by theirs."""
    names = list(CONSTRAINTS)
    params = [constrained(**CONSTRAINTS[name][0]) for name in names] + [GREEDY]
    outputs = llm.chat([QUESTION] * len(params), params, thinking=thinking, use_tqdm=False)
    for name, output in zip(names, outputs, strict=False):
        message = answer(output)
        assert message.finish_reason == "stop", name
        assert CONSTRAINTS[name][1](message.content), (name, message.content)
        assert bool(message.reasoning_content) == (thinking != "disabled"), name
    free = llm.chat(QUESTION, GREEDY, thinking=thinking, use_tqdm=False)[0]
    assert free.outputs[0].token_ids == outputs[-1].outputs[0].token_ids
    # Thinking is unconstrained, so it is the same whatever comes behind it.
    assert len({answer(output).reasoning_content for output in outputs}) == 1
    alone = llm.chat(QUESTION, params[0], thinking=thinking, use_tqdm=False)[0]
    assert alone.outputs[0].token_ids == outputs[0].outputs[0].token_ids


@needs_library
@pytest.mark.parametrize("name", list(CONSTRAINTS))
def test_sampled_answers_fit_and_repeat(llm: LLM, name: str) -> None:
    constraint, fits = CONSTRAINTS[name]
    params = [
        constrained(SamplingParams(temperature=1.5, seed=seed, max_tokens=120), **constraint)
        for seed in (1, 2, 3)
    ]
    prompts = ["The answer is "] * 3
    first = llm.generate(prompts, params, use_tqdm=False)
    again = llm.generate(prompts, params, use_tqdm=False)
    for one, two in zip(first, again, strict=True):
        assert one.outputs[0].token_ids == two.outputs[0].token_ids
        if one.outputs[0].finish_reason == "stop":
            assert fits(one.outputs[0].text), one.outputs[0].text
        else:
            assert one.outputs[0].finish_reason == "length"


@needs_library
def test_samples_of_one_prompt_have_a_grammar_each(llm: LLM) -> None:
    sampling = SamplingParams(n=4, temperature=2.0, seed=5, max_tokens=40)
    texts = [
        one.text
        for one in llm.generate("code ", constrained(sampling, regex="[a-f]{6}"), use_tqdm=False)[
            0
        ].outputs
    ]
    assert all(re.fullmatch("[a-f]{6}", text) for text in texts) and len(set(texts)) > 1


@needs_library
def test_pydantic_model(llm: LLM) -> None:
    pydantic = pytest.importorskip("pydantic")
    # Bounded: a small model may go on with digits for ever, and the schema must be what ends it.
    answer_field = (int, pydantic.Field(ge=0, le=999))
    model = pydantic.create_model("Sum", answer=answer_field, sure=(bool, ...))
    params = constrained(json=model, disable_additional_properties=True, whitespace="compact")
    output = llm.chat(QUESTION, params, thinking="enabled", use_tqdm=False)[0]
    value = model.model_validate_json(answer(output).content)
    assert set(value.model_dump()) == {"answer", "sure"}


@needs_library
def test_in_thinking_holds_from_the_first_token(llm: LLM) -> None:
    params = constrained(regex="[0-9]{5}", in_thinking=True)
    for thinking in ("enabled", "adaptive"):
        one = llm.chat(QUESTION, params, thinking=thinking, use_tqdm=False)[0].outputs[0]
        assert re.fullmatch("[0-9]{5}", one.text.removesuffix("[e~[")), one.text


@needs_library
def test_adaptive_allows_one_leading_span(llm: LLM) -> None:
    one = llm.chat(QUESTION, constrained(regex="[0-9]{2}"), use_tqdm=False)[0].outputs[0]
    assert one.text.startswith(THINK_OPEN) and one.text.count(THINK_CLOSE) == 1
    assert one.message is not None and one.message.content == "42"


@needs_library
@pytest.mark.parametrize(
    ("whitespace", "allowed"),
    [("compact", r"\S+"), ("bounded", r"(\S|\s{1,16}(?!\s))+"), ("any", r"(\S|\s)+")],
)
def test_whitespace_modes(llm: LLM, whitespace: str, allowed: str) -> None:
    schema = {**SCHEMA, "properties": {"answer": {"enum": [1, 2]}, "sure": {"type": "boolean"}}}
    for seed in range(3):
        sampling = SamplingParams(temperature=1.5, seed=seed, max_tokens=150)
        params = constrained(sampling, json=schema, whitespace=whitespace)
        one = llm.generate("JSON: ", params, use_tqdm=False)[0].outputs[0]
        if one.finish_reason == "stop":
            assert is_json_answer(one.text), one.text
        else:
            assert whitespace == "any", one.text  # blanks without end are allowed
        assert re.fullmatch(allowed, one.text), one.text
    bias = {llm.get_tokenizer().encode(" ")[0]: 100.0}
    spaces = constrained(
        SamplingParams(temperature=0.0, max_tokens=60, logit_bias=bias),
        json=schema,
        whitespace=whitespace,
    )
    text = llm.generate("JSON: ", spaces, use_tqdm=False)[0].outputs[0].text
    longest = max((len(run) for run in re.findall(r"\s+", text)), default=0)
    assert {"compact": longest == 0, "bounded": 1 <= longest <= 16, "any": longest > 16}[whitespace]


@needs_library
def test_additional_properties_can_be_closed(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}
    sampling = SamplingParams(temperature=2.0, seed=1, max_tokens=100)
    params = constrained(sampling, json=schema, disable_additional_properties=True)
    for output in llm.generate(["{"] * 3, params, use_tqdm=False):
        assert json.loads(output.outputs[0].text) == {"a": 1}


@needs_library
def test_stream_and_submit_are_constrained_too(llm: LLM) -> None:
    params = constrained(json=SCHEMA)
    whole = llm.chat(QUESTION, params, thinking="enabled", use_tqdm=False)[0].outputs[0]
    tokens: list[int] = []
    content = ""
    for piece in llm.chat_stream(QUESTION, params, thinking="enabled"):
        tokens += piece.outputs[0].token_ids
        content += "".join(d.content or "" for d in piece.outputs[0].deltas or ())
    assert tokens == whole.token_ids
    assert whole.message is not None and content == whole.message.content

    params = constrained(
        json={**SCHEMA, "properties": {**SCHEMA["properties"], "answer": {"enum": [4, 7]}}}
    )
    made = llm.generate("The answer is ", params, use_tqdm=False)[0].outputs[0]
    streamed = [p.outputs[0].text for p in llm.generate_stream("The answer is ", params)]
    assert "".join(streamed) == made.text
    handles = [llm.submit("The answer is ", p) for p in (params, GREEDY.replace(max_tokens=8))]
    assert handles[0].result(timeout=60).outputs[0].text == made.text
    assert is_json_answer(made.text)
    assert handles[1].result(timeout=60).outputs[0].finish_reason in ("stop", "length")


@needs_library
def test_a_stream_left_early_does_not_hold_up_others(llm: LLM) -> None:
    for _ in llm.generate_stream("x", constrained(regex="[a-z]{50}")):
        break
    one = llm.generate("x", constrained(regex="[a-z]{5}"), use_tqdm=False)[0].outputs[0]
    assert re.fullmatch("[a-z]{5}", one.text)
    assert llm.stats().num_running == 0


@needs_library
def test_dead_end(llm: LLM) -> None:
    dead = constrained(
        choice=["zebra"],
    ).replace(bad_words=["z", "zebra", "ze", "zeb"])
    fine = GREEDY.replace(max_tokens=4)
    out, beside = llm.generate(["The ", "The "], [dead, fine], use_tqdm=False, on_error="return")
    assert out.outputs[0].finish_reason == "error"
    assert out.error is not None and out.error.code == "grammar_dead_end"
    assert out.error.param == "structured_outputs"
    assert beside.error is None and beside.outputs[0].finish_reason in ("stop", "length")
    with pytest.raises(GrammarError, match="no token is allowed"):
        llm.generate("The ", dead, use_tqdm=False)
    with pytest.raises(GrammarError, match="no token is allowed"):
        list(llm.generate_stream("The ", dead))
    pieces = list(llm.generate_stream("The ", dead, on_error="return"))
    assert pieces[-1].error is not None and pieces[-1].error.code == "grammar_dead_end"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"json": {"type": "foo"}}, "foo"),
    ({"json": {"type": "object", "properties": {"a": {"not": {}}}}}, "not"),
    ({"json": "{"}, "JSON text"),
    ({"json": int}, "pydantic"),
    ({"json": SCHEMA, "whitespace": "wide"}, "bounded, compact, any"),
    ({"regex": "(a"}, "unclosed group"),
    ({"regex": "(?=a)b"}, "look-ahead"),
    ({"grammar": "start: foo"}, "foo"),
    ({"choice": []}, "non-empty"),
    ({"choice": ["a", ""]}, "non-empty"),
    ({"structural_tag": "{"}, "JSON text"),
    ({"structural_tag": {"triggers": ["<n"]}}, "structures"),
    ({"structural_tag": [1]}, "structures"),
    ({"structural_tag": {"structures": [{"begin": "<n>"}], "triggers": ["<n"]}}, "end"),
    (
        {"structural_tag": {"structures": [{"begin": "<n>", "end": "<"}], "triggers": ["<"]}},
        "schema",
    ),
    ({"structural_tag": {**TAG, "triggers": ["[x"]}}, "no trigger begins '<n>'"),
]


@needs_library
@pytest.mark.parametrize(("constraint", "words"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_constraints_are_refused_before_anything_runs(
    llm: LLM, constraint: dict[str, Any], words: str
) -> None:
    before = llm.stats().num_finished
    with pytest.raises(GrammarError, match=re.escape(words)) as caught:
        llm.generate(["a", "b"], [GREEDY, constrained(**constraint)], use_tqdm=False)
    assert caught.value.param == "structured_outputs" and caught.value.index == 1
    assert llm.stats().num_finished == before


def test_one_constraint_and_only_known_fields(llm: LLM) -> None:
    for bad in ({}, {"regex": "a", "choice": ["a"]}):
        with pytest.raises(InvalidRequestError, match="exactly one"):
            llm.generate("a", constrained(**bad), use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="regexp"):
        llm.generate("a", GREEDY.replace(structured_outputs={"regexp": "a"}), use_tqdm=False)


@needs_library
def test_slow_compile_is_refused(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any, **__: Any) -> None:
        time.sleep(0.5)

    monkeypatch.setattr("minimax_m31.structured.COMPILE_S", 0.01)
    monkeypatch.setattr("llguidance.LLMatcher", slow)
    with pytest.raises(GrammarError, match="took longer than 0.01 s"):
        llm.generate("a", constrained(grammar='start: "slow to compile"'), use_tqdm=False)


# -- tool_choice -----------------------------------------------------------------------------------

TOOLS = [get_weather, get_time]


def names(message: Message) -> list[str]:
    return [call.function.name for call in message.tool_calls or ()]


def check_calls(message: Message) -> None:
    for call in message.tool_calls or ():
        values = call.parsed_arguments()
        if call.function.name == "get_weather":
            assert isinstance(values["city"], str) and type(values["days"]) is int, values
        else:
            assert list(values) == ["zone"], values
    assert message.parse_error is None and message.finish_reason == "tool_calls"


@needs_library
@pytest.mark.parametrize("thinking", ["enabled", "disabled", "adaptive"])
def test_tool_choice_required_calls_whatever_is_asked(llm: LLM, thinking: str) -> None:
    args: dict[str, Any] = {"tools": TOOLS, "thinking": thinking, "use_tqdm": False}
    for question in (QUESTION, WEATHER):
        message = answer(llm.chat(question, GREEDY, tool_choice="required", **args)[0])
        assert names(message) and message.content == ""
        check_calls(message)
        assert bool(message.reasoning_content) == (thinking == "enabled") or thinking == "adaptive"


@needs_library
def test_tool_choice_named(llm: LLM) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    sampled = SamplingParams(temperature=1.0, seed=2, max_tokens=300)
    for params in (GREEDY, sampled):
        output = llm.chat(
            WEATHER, params, tools=TOOLS, tool_choice=choice, thinking="disabled", use_tqdm=False
        )[0]
        assert set(names(answer(output))) == {"get_time"}
        check_calls(answer(output))
    with pytest.raises(InvalidRequestError, match="get_tim"):
        wrong = {"type": "function", "function": {"name": "get_tim"}}
        llm.chat(WEATHER, GREEDY, tools=TOOLS, tool_choice=wrong, use_tqdm=False)


@needs_library
def test_no_parallel_calls(llm: LLM) -> None:
    both = [{"role": "user", "content": "What is the weather in Paris and in Rome for 2 days?"}]
    args: dict[str, Any] = {"tools": TOOLS, "parallel_tool_calls": False, "use_tqdm": False}
    for choice in ("auto", "required"):
        for seed in range(3):
            params = SamplingParams(temperature=1.0, seed=seed, max_tokens=200)
            output = llm.chat(both, params, tool_choice=choice, thinking="disabled", **args)[0]
            message = answer(output)
            assert output.outputs[0].text.count(f"{NAMESPACE}<invoke") <= 1
            if message.finish_reason != "length":
                assert len(names(message)) <= 1 and (choice == "auto" or names(message))


@needs_library
def test_forced_call_streams_like_the_whole(llm: LLM) -> None:
    args: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "thinking": "enabled"}
    message = answer(llm.chat(WEATHER, GREEDY, use_tqdm=False, **args)[0])
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for piece in llm.chat_stream(WEATHER, GREEDY, **args)
        for delta in piece.outputs[0].deltas or ()
        for call in delta.tool_calls or ()
    ]
    assert calls == [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]


@needs_library
def test_one_answer_has_one_constraint(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="give one of them"):
        llm.chat(
            WEATHER, constrained(regex="a"), tools=TOOLS, tool_choice="required", use_tqdm=False
        )


def test_without_the_library_the_pip_line_is_named(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)  # as when it is not installed
    monkeypatch.setattr(llm, "_grammars_made", None)
    line = re.escape('pip install "minimax-m31[structured]"')
    with pytest.raises(GrammarError, match=line) as caught:
        llm.generate("a", constrained(regex="a"), use_tqdm=False)
    assert caught.value.param == "structured_outputs"
    for args in ({"tool_choice": "required"}, {"parallel_tool_calls": False}):
        with pytest.raises(GrammarError, match=line) as caught:
            llm.chat(WEATHER, GREEDY, tools=TOOLS, use_tqdm=False, **args)  # type: ignore[arg-type]
        assert caught.value.param == next(iter(args))
    assert llm.generate("a", GREEDY.replace(max_tokens=1), use_tqdm=False)  # free ones still run


# ---------------------------------------------------------------- large grammars


@needs_library
def test_choices_may_be_many(llm: LLM) -> None:
    """Labels of a classifier: more than the alternatives that a rule of a grammar may have."""
    labels = [f"label {i * 7919 % 100003} x" for i in range(20000)]
    params = constrained(SamplingParams(temperature=1.0, seed=1, max_tokens=40), choice=labels)
    output = llm.generate("a", params, use_tqdm=False)[0]
    assert output.outputs[0].finish_reason == "stop" and output.outputs[0].text in set(labels)
    # one that begins another can be the answer, and one that is given twice is one
    short = {"choice": ["f", "forty", "f"]}
    texts = {
        llm.generate("a", constrained(SamplingParams(seed=i, **hot), **short), use_tqdm=False)[0]
        .outputs[0]
        .text
        for i, hot in ((i, {"temperature": 20.0, "max_tokens": 10}) for i in range(30))
    }
    assert texts == {"f", "forty"}


@needs_library
def test_limits_are_named_where_they_are_met(llm: LLM) -> None:
    """A grammar that is too large to be followed says so, and harms no other request."""
    rules = " | ".join(f'"w{i} "' for i in range(5000))
    cases: list[dict[str, Any]] = [{"grammar": f"start: {rules}"}, {"regex": "(a{999}){999}"}]
    params = [*(constrained(**case) for case in cases), GREEDY.replace(max_tokens=3)]
    outputs = llm.generate(["a"] * 3, params, on_error="return", use_tqdm=False)
    for output, words in zip(outputs, ("max is 2000", "too many|too complex"), strict=False):
        assert output.error is not None and output.error.code in ("grammar_dead_end", "grammar")
        assert re.search(words, output.error.message, re.IGNORECASE), output.error.message
        assert "<state>" not in output.error.message
    assert outputs[2].error is None

"""EvalScope on this engine. Slow: it brings its own large environment (`pip install evalscope`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)
pytest.importorskip("evalscope", reason="evalscope is not installed: pip install evalscope")
from evalscope.api.messages import ChatMessageTool, ChatMessageUser
from evalscope.api.model import GenerateConfig, Model
from evalscope.api.registry import get_model_api
from evalscope.api.tool import ToolInfo, ToolParams
from evalscope.api.tool.tool_info import ToolParam

from minimax_m31 import LLM
from minimax_m31.integrations.evalscope import Mm31API

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("nano", max_num_seqs=16, max_model_len=2048, replace=True) as engine:
        yield engine


def ask(llm: LLM, messages: Any, tools: Any = (), **config: Any) -> Any:
    model = Model(Mm31API("nano", llm=llm), GenerateConfig())
    given = GenerateConfig(**{"temperature": 0.0, "max_tokens": 200, **config})
    return model.generate(messages, list(tools), "auto", given)


def test_it_is_registered_and_answers_from_many_threads(llm: LLM) -> None:
    assert get_model_api("minimax_m31") is Mm31API
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda n: ask(
                    llm,
                    [ChatMessageUser(content=f"What is {n} + 25?")],
                    extra_body={"thinking": "enabled"},
                ),
                range(17, 25),
            )
        )
    assert [answer.completion for answer in answers] == [str(n + 25) for n in range(17, 25)]
    assert answers[0].usage.output_tokens > answers[0].usage.reasoning_tokens > 0
    assert answers[0].stop_reason == "stop"


def test_tools_reasoning_and_logprobs(llm: LLM) -> None:
    weather = ToolInfo(
        name="get_weather",
        description="Get the current weather of a city.",
        parameters=ToolParams(
            properties={"city": ToolParam(type="string", description="Name of the city.")},
            required=["city"],
        ),
    )
    question = ChatMessageUser(content="What is the weather in Paris?")
    called = ask(llm, [question], [weather])
    (call,) = called.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Paris"})
    assert called.stop_reason == "tool_calls"
    result = ChatMessageTool(content="sunny in Paris", tool_call_id=call.id)
    assert "sunny" in ask(llm, [question, called.message, result], [weather]).completion
    scored = ask(llm, [question], logprobs=True, top_logprobs=2)
    assert all(len(row.top_logprobs) == 2 for row in scored.choices[0].logprobs.content)
    long = ask(llm, [ChatMessageUser(content="word " * 5000)])
    assert long.stop_reason == "model_length"

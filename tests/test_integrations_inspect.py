"""Inspect on this engine: its own evaluation loop, tools, reasoning, log-probabilities."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)
pytest.importorskip("inspect_ai", reason='inspect_ai is not installed: pip install ".[inspect]"')

import inspect_ai.model as im
from inspect_ai import Task
from inspect_ai import eval as inspect_eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool

from minimax_m31 import LLM, InvalidRequestError
from minimax_m31.integrations.inspect_ai import Mm31API


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("nano", max_num_seqs=16, max_model_len=2048, replace=True) as engine:
        yield engine


@tool
def get_weather() -> Tool:
    async def execute(city: str) -> str:
        """Get the current weather of a city.

        Args:
            city: Name of the city.
        """
        return f"sunny in {city}"

    return execute


def ask(llm: LLM, text: Any, **config: Any) -> im.ModelOutput:
    api = Mm31API("nano", llm=llm)
    messages = [im.ChatMessageUser(content=text)] if isinstance(text, str) else text
    given = im.GenerateConfig(**{"temperature": 0.0, "max_tokens": 200, **config})
    return asyncio.run(api.generate(messages, [], "auto", given))


def test_an_evaluation_runs(llm: LLM, tmp_path: Path) -> None:
    samples = [Sample(input=f"What is {a} + 25?", target=str(a + 25)) for a in (17, 18, 19)]
    task = Task(dataset=samples, solver=generate(), scorer=match())
    model = im.get_model("minimax_m31/nano", llm=llm, memoize=False)
    (log,) = inspect_eval(
        task, model=model, log_dir=str(tmp_path), display="none", temperature=0.0, max_tokens=200
    )
    assert log.status == "success", log.error
    assert log.results is not None and log.results.scores[0].metrics["accuracy"].value == 1.0
    assert model.api.max_connections() == 16
    usage = list(log.stats.model_usage.values())[0]
    assert usage.output_tokens > 0 and usage.total_tokens > usage.output_tokens


def test_tools_are_called_and_answered(llm: LLM, tmp_path: Path) -> None:
    task = Task(
        dataset=[Sample(input="What is the weather in Paris?", target="sunny")],
        solver=[use_tools(get_weather()), generate()],
    )
    model = im.get_model("minimax_m31/nano", llm=llm, memoize=False)
    (log,) = inspect_eval(
        task, model=model, log_dir=str(tmp_path), display="none", temperature=0.0, max_tokens=200
    )
    assert log.status == "success" and log.samples, log.error
    roles = [message.role for message in log.samples[0].messages]
    assert roles == ["user", "assistant", "tool", "assistant"]
    call = log.samples[0].messages[1].tool_calls[0]  # type: ignore[union-attr,index]
    assert (call.function, call.arguments) == ("get_weather", {"city": "Paris"})
    assert "sunny" in log.samples[0].output.completion


def test_reasoning_is_a_block_and_goes_back(llm: LLM) -> None:
    out = ask(llm, "What is 17 + 25?", reasoning_effort="high", extra_body={"thinking": "enabled"})
    blocks = out.message.content
    assert [block.type for block in blocks] == ["reasoning", "text"]  # type: ignore[union-attr]
    assert blocks[0].reasoning and out.completion == "42"  # type: ignore[union-attr]
    assert out.usage is not None and out.usage.reasoning_tokens
    again = ask(
        llm,
        [
            im.ChatMessageUser(content="What is 17 + 25?"),
            out.message,
            im.ChatMessageUser(content="What is 18 + 25?"),
        ],
    )
    assert again.choices and again.stop_reason == "stop"
    off = ask(llm, "What is 17 + 25?", reasoning_effort="none")
    assert off.message.content == "42"


def test_config_fields(llm: LLM) -> None:
    out = ask(llm, "What is 17 + 25?", logprobs=True, top_logprobs=3, reasoning_effort="none")
    (choice,) = out.choices
    assert choice.logprobs is not None
    first = choice.logprobs.content[0]
    assert first.top_logprobs is not None and len(first.top_logprobs) == 3
    assert first.logprob == max(entry.logprob for entry in first.top_logprobs) <= 0
    several = ask(llm, "Hi", num_choices=3, temperature=1.0, seed=4, max_tokens=5)
    assert len(several.choices) == 3
    cut = ask(llm, "What is 17 + 25?", max_tokens=1, reasoning_effort="none")
    assert cut.stop_reason == "max_tokens"
    long = ask(llm, "word " * 5000)
    assert long.stop_reason == "model_length" and "max_model_len" in str(long.error)
    with pytest.raises(InvalidRequestError, match="best_of"):
        ask(llm, "Hi", best_of=4)


def test_response_schema_constrains(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    from inspect_ai.util import json_schema
    from pydantic import BaseModel

    class Answer(BaseModel):
        answer: int

    schema = im.ResponseSchema(name="answer", json_schema=json_schema(Answer))
    out = ask(llm, "What is 17 + 25?", response_schema=schema, reasoning_effort="none")
    assert Answer.model_validate_json(out.completion).answer == 42


def test_inspect_finds_the_provider_by_its_entry_point() -> None:
    found = [ep.value for ep in entry_points(group="inspect_ai") if ep.name == "minimax_m31"]
    if not found:
        pytest.skip("the package is not installed, only found on the path")
    script = (
        "import inspect_ai.model as im\n"
        "model = im.get_model('minimax_m31/nano', max_num_seqs=3, max_model_len=512)\n"
        "print(type(model.api).__module__, model.api.max_connections())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["minimax_m31.integrations.inspect_ai", "3"], done.stderr


def test_tokens_and_bad_arguments(llm: LLM) -> None:
    api = Mm31API("nano", llm=llm)
    ids = llm.get_tokenizer().encode("Hello there")
    assert asyncio.run(api.tokenize("Hello there")) == ids
    assert asyncio.run(api.count_text_tokens("Hello there")) == len(ids)
    with pytest.raises(InvalidRequestError, match="open already"):
        Mm31API("nano", llm=llm, max_num_seqs=3)
    api.close()
    assert not llm.closed  # it was given

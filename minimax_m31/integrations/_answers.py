"""What several adapters need: answers to prompts that a harness has rendered, and OpenAI-shaped
messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..calls import Call
from ..core_params import Plan, make_plan
from ..errors import InvalidRequestError
from ..llm import LLM
from ..outputs import CompletionOutput, RequestOutput
from ..params import SamplingParams
from ..progress import Progress
from ..prompts import Prompt, read_prompt


def answer_rendered(
    llm: LLM,
    prompts: Sequence[str],
    params: Sequence[SamplingParams],
    starts: Sequence[str | None],
    use_tqdm: bool | Callable[..., Any] = True,
) -> list[RequestOutput]:
    """Continues texts, one SamplingParams each. `starts`: the thinking state in which an answer
    begins, when its text is a rendered conversation; stop strings then spare the thinking. With one
    of those, the outputs' `text` keeps its marks.
    """
    plans: dict[tuple[int, str | None], Plan] = {}

    def take(index: int) -> tuple[Prompt, Plan, str | None]:
        one, start = params[index], starts[index]
        key = (id(one), start)
        if key not in plans:
            plans[key] = make_plan(
                one, llm._facts, llm._tokenizer, think_start=start, grammars=llm._grammars
            )
        return read_prompt(prompts[index], index), plans[key], start

    call = Call(
        llm,
        len(prompts),
        take,
        progress=Progress(len(prompts), use_tqdm),
        raw_text=any(start is not None for start in starts),
        **llm._common(len(prompts), None, None, "raise", None),
    )
    return llm._gather(call)


def usage_of(output: RequestOutput) -> dict[str, int]:
    """Token counts of a request, all samples together, under OpenAI's names."""
    return {
        "prompt_tokens": len(output.prompt_token_ids),
        "cached_tokens": output.num_cached_tokens or 0,
        "completion_tokens": sum(len(one.token_ids) for one in output.outputs),
        "reasoning_tokens": output.metrics.num_thinking_tokens if output.metrics else 0,
    }


def stop_reason_of(one: CompletionOutput) -> str:
    """The words of Inspect and EvalScope for why a sample ended."""
    if one.message is not None and one.message.finish_reason == "tool_calls":
        return "tool_calls"
    if one.finish_reason == "length":
        return "model_length" if one.stop_reason == "max_model_len" else "max_tokens"
    return "stop" if one.finish_reason == "stop" else "unknown"


def open_llm(model: str, llm: LLM | None, engine_args: dict[str, Any]) -> tuple[LLM, bool]:
    """(the engine, whether it was opened here)."""
    if llm is None:
        return LLM(model, **engine_args), True
    if engine_args:
        raise InvalidRequestError(
            f"{', '.join(sorted(engine_args))}: the engine is open already; give these to LLM(...)",
            param="llm",
        )
    return llm, False

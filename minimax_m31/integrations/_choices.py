"""Outputs in the classes of Inspect or of EvalScope, which have the same names and fields."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..chat.types import ToolCall
from ..outputs import CompletionOutput, RequestOutput
from ._answers import stop_reason_of, usage_of

_LEAST = -3.4028234663852886e38  # JSON has no infinity: a token that cannot come gets this


class Kinds:
    """The classes of one harness. `call` makes its tool call."""

    def __init__(self, module: Any, call: Callable[[ToolCall], Any]) -> None:
        self.module = module
        self.call = call

    def choices(
        self, output: RequestOutput, model: str, table: list[bytes], top: int | None
    ) -> list[Any]:
        """One choice for each sample. `table`: the bytes of every token; `top`: how many
        log-probabilities to show for each token, None for none at all.
        """
        return [self._choice(one, model, table, top) for one in output.outputs]

    def _choice(
        self, one: CompletionOutput, model: str, table: list[bytes], top: int | None
    ) -> Any:
        message = one.message
        assert message is not None
        content: Any = message.content
        if message.reasoning_content is not None:
            content = [self.module.ContentReasoning(reasoning=message.reasoning_content)]
            if message.content:
                content.append(self.module.ContentText(text=message.content))
        return self.module.ChatCompletionChoice(
            message=self.module.ChatMessageAssistant(
                content=content,
                tool_calls=[self.call(call) for call in message.tool_calls] or None,
                model=model,
                source="generate",
            ),
            stop_reason=stop_reason_of(one),
            logprobs=None if top is None else self._logprobs(one, table, top),
        )

    def _logprobs(self, one: CompletionOutput, table: list[bytes], top: int) -> Any:
        def named(token: int, logprob: float) -> dict[str, Any]:
            raw = table[token]
            value = logprob if math.isfinite(logprob) else _LEAST
            return {"token": raw.decode("utf-8", "replace"), "logprob": value, "bytes": list(raw)}

        content = []
        for token, row in zip(one.token_ids, one.logprobs or (), strict=True):
            assert row is not None
            best = sorted(row.items(), key=lambda item: item[1].rank or 0)[:top]
            content.append(
                self.module.Logprob(
                    **named(token, row[token].logprob),
                    top_logprobs=[
                        self.module.TopLogprob(**named(i, entry.logprob)) for i, entry in best
                    ],
                )
            )
        return self.module.Logprobs(content=content)

    def usage(self, output: RequestOutput) -> Any:
        counts = usage_of(output)
        return self.module.ModelUsage(
            input_tokens=counts["prompt_tokens"] - counts["cached_tokens"],
            input_tokens_cache_read=counts["cached_tokens"],
            output_tokens=counts["completion_tokens"],
            reasoning_tokens=counts["reasoning_tokens"],
            total_tokens=counts["prompt_tokens"] + counts["completion_tokens"],
        )

    def output(self, output: RequestOutput, model: str, table: list[bytes], top: int | None) -> Any:
        return self.module.ModelOutput(
            model=model,
            choices=self.choices(output, model, table, top),
            usage=self.usage(output),
            time=output.metrics.e2e if output.metrics else None,
            error=None if output.error is None else output.error.message,
            metadata={"seed": output.seed, "weight_version": output.weight_version},
        )

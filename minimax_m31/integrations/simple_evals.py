"""A sampler for simple-evals: `sampler(message_list)` answers one conversation.

simple-evals is not a package; its protocol is a callable that returns an object with
`response_text`, `actual_queried_message_list` and `response_metadata`, and it calls it from many
threads. Their requests run in one batch of the engine, without any batching here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from ..llm import LLM
from ..params import SamplingParams
from ._answers import usage_of

Messages = list[dict[str, Any]]


@dataclasses.dataclass
class SamplerResponse:
    """The answer's content, what was asked for it, and token counts."""

    response_text: str
    actual_queried_message_list: Messages
    response_metadata: dict[str, Any]


class Mm31Sampler:
    """`sampling_params=None` takes the checkpoint's own. The thinking is no part of the text; it is
    in the metadata as "reasoning".
    """

    def __init__(
        self,
        llm: LLM,
        *,
        system_message: str | None = None,
        sampling_params: SamplingParams | None = None,
        thinking: Any = None,
        reasoning_effort: str | None = None,
    ) -> None:
        self.llm = llm
        self.system_message = system_message
        self.sampling_params = sampling_params
        self.thinking = thinking
        self.reasoning_effort = reasoning_effort

    def __call__(self, message_list: Sequence[dict[str, Any]]) -> SamplerResponse:
        asked = [dict(message) for message in message_list]
        if self.system_message:
            asked.insert(0, self._pack_message("system", self.system_message))
        (output,) = self.llm.chat(
            asked,
            self.sampling_params,
            thinking=self.thinking,
            reasoning_effort=self.reasoning_effort,
            use_tqdm=False,
        )
        one = output.outputs[0]
        assert one.message is not None
        return SamplerResponse(
            response_text=one.message.content,
            actual_queried_message_list=asked,
            response_metadata={
                "usage": usage_of(output),
                "reasoning": one.message.reasoning_content,
                "finish_reason": one.finish_reason,
                "seed": output.seed,
            },
        )

    # Evaluations build their messages with these.

    def _pack_message(self, role: str, content: Any) -> dict[str, Any]:
        return {"role": str(role), "content": content}

    def _handle_text(self, text: str) -> dict[str, Any]:
        return {"type": "text", "text": text}

    def _handle_image(
        self, image: str, encoding: str = "base64", format: str = "png", fovea: int = 768
    ) -> dict[str, Any]:
        return {
            "type": "image_url",
            "image_url": {"url": f"data:image/{format};{encoding},{image}"},
        }

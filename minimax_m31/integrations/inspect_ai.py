"""The provider "minimax_m31" of Inspect (`pip install "minimax-m31[inspect]"`).

    inspect eval task.py --model minimax_m31/nano
    get_model("minimax_m31/nano", max_num_seqs=64)          # model arguments are the engine's
    get_model("minimax_m31/nano", llm=llm)                  # or an engine that is open

Inspect finds it by the package's entry point; importing this module registers it too.
"""

from __future__ import annotations

from typing import Any

try:
    import inspect_ai.model as im
    from inspect_ai.tool import ToolCall
except ImportError as error:
    raise ImportError(
        f'inspect_ai cannot be imported ({error}): pip install "minimax-m31[inspect]"'
    ) from error

from ..async_llm import AsyncLLM
from ..errors import PromptTooLongError
from ..llm import LLM
from ._answers import open_llm
from ._choices import Kinds
from ._requests import chat_args_of, messages_of, params_of, top_of

_KINDS = Kinds(
    im,
    lambda call: ToolCall(
        id=call.id, function=call.function.name, arguments=call.parsed_arguments()
    ),
)


@im.modelapi(name="minimax_m31")
def minimax_m31() -> Any:
    return Mm31API


class Mm31API(im.ModelAPI):
    """Requests of all samples run in one engine, in one batch."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Any = None,
        llm: LLM | None = None,
        **engine_args: Any,
    ) -> None:
        super().__init__(
            model_name, base_url, api_key, [], im.GenerateConfig() if config is None else config
        )
        self.llm, self._owns = open_llm(model_name, llm, engine_args)
        self._async = AsyncLLM.of(self.llm)

    async def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        params = params_of(self.llm, config)
        try:
            (output,) = await self._async.chat(
                messages_of(input), params, **chat_args_of(tools, tool_choice, config)
            )
        except PromptTooLongError as error:
            return im.ModelOutput.from_content(
                self.model_name, str(error), stop_reason="model_length", error=str(error)
            )
        table = self.llm.get_tokenizer().token_bytes()
        return _KINDS.output(output, self.model_name, table, top_of(config))

    async def count_text_tokens(self, text: str) -> int:
        return len(self.llm.get_tokenizer().encode(text))

    async def tokenize(self, text: str) -> list[int]:
        return self.llm.get_tokenizer().encode(text)

    def max_connections(self) -> int:
        """As many as the engine computes at once; more wait in its queue anyway."""
        return int(self.llm._facts.max_num_seqs)

    def connection_key(self) -> str:
        return f"{self.model_name} {id(self.llm)}"

    def close(self) -> None:
        if self._owns:
            self.llm.shutdown()

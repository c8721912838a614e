"""EvalScope on this engine (`pip install evalscope`), registered as the model type "minimax_m31".

from minimax_m31.integrations.evalscope import Mm31API
run_task(TaskConfig(model=Model(api=Mm31API("nano", llm=llm), config=GenerateConfig()), ...))
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

try:
    from evalscope.api import messages, model
    from evalscope.api.registry import register_model_api
    from evalscope.api.tool import ToolCall, ToolFunction
except ImportError as error:
    raise ImportError(f"evalscope cannot be imported ({error}): pip install evalscope") from error

from evalscope.api.model.model_output import Logprob, Logprobs, TopLogprob

from ..errors import PromptTooLongError
from ..llm import LLM
from ._answers import open_llm
from ._choices import Kinds
from ._requests import chat_args_of, messages_of, params_of, top_of

_KINDS = Kinds(
    SimpleNamespace(
        ChatCompletionChoice=model.ChatCompletionChoice,
        ChatMessageAssistant=messages.ChatMessageAssistant,
        ContentReasoning=messages.ContentReasoning,
        ContentText=messages.ContentText,
        Logprob=Logprob,
        Logprobs=Logprobs,
        ModelOutput=model.ModelOutput,
        ModelUsage=model.ModelUsage,
        TopLogprob=TopLogprob,
    ),
    lambda call: ToolCall(
        id=call.id,
        function=ToolFunction(name=call.function.name, arguments=call.parsed_arguments()),
    ),
)


@register_model_api("minimax_m31")
class Mm31API(model.ModelAPI):
    """Called from many threads; their requests run in one batch."""

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: Any = None,
        llm: LLM | None = None,
        **engine_args: Any,
    ) -> None:
        given = model.GenerateConfig() if config is None else config
        super().__init__(model_name, base_url, api_key, given)
        self.llm, self._owns = open_llm(model_name, llm, engine_args)

    def generate(self, input: Any, tools: Any, tool_choice: Any, config: Any) -> Any:
        params = params_of(self.llm, config)
        try:
            (output,) = self.llm.chat(
                messages_of(input),
                params,
                use_tqdm=False,
                **chat_args_of(tools or (), tool_choice, config),
            )
        except PromptTooLongError as error:
            return model.ModelOutput(
                model=self.model_name,
                choices=[
                    model.ChatCompletionChoice(
                        message=messages.ChatMessageAssistant(content=str(error)),
                        stop_reason="model_length",
                    )
                ],
                error=str(error),
            )
        table = self.llm.get_tokenizer().token_bytes()
        return _KINDS.output(output, self.model_name, table, top_of(config))

    async def aclose(self) -> None:
        if self._owns:
            self.llm.shutdown()

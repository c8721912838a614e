"""vllm.entrypoints.llm: LLM with vLLM's arguments and positional order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from ....core_params import truncation_changes
from ....errors import InvalidRequestError
from ....llm import LLM as _LLM
from ....outputs import RequestOutput
from ....params import SamplingParams
from ..engine_arguments import bind_engine, engine_arguments
from ..sampling_params import no_beam_search
from ..table import CALLS, ENGINE, bind, is_refused, refusal, signature

__all__ = ["LLM"]

# Keywords of the calls that only this engine has.
_OF_GENERATE = ("request_ids", "on_error", "timeout")
_OF_CHAT = (
    "thinking",
    "reasoning_effort",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_history",
    "allow_special_tokens_in_text",
    "parse",
    *_OF_GENERATE,
)
# What a call takes here but vLLM's name for it is not an argument of the engine's own method.
_NOT_FORWARDED = ("lora_request", "mm_processor_kwargs", "chat_template_content_format")


class LLM(_LLM):
    """`LLM("nano")`, or the folder of a checkpoint, with vLLM's engine arguments; those of
    minimax_m31.LLM that vLLM does not have are taken too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        values, self._interval = engine_arguments(bind_engine(args, kwargs))
        super().__init__(**values)

    @classmethod
    def from_engine_args(cls, args: Any) -> LLM:
        return cls(**{field.name: getattr(args, field.name) for field in dataclasses.fields(args)})

    def generate(self, *args: Any, **kwargs: Any) -> list[RequestOutput]:
        """As vLLM's; also request_ids=, on_error= and timeout= of minimax_m31.LLM.generate."""
        return super().generate(**_call("generate", args, kwargs, _OF_GENERATE))

    def chat(self, *args: Any, **kwargs: Any) -> list[RequestOutput]:
        """As vLLM's, with the parsed `message` in each output; also thinking=, reasoning_effort=
        and the other keywords of minimax_m31.LLM.chat.
        """
        given = _call("chat", args, kwargs, _OF_CHAT)
        changes = truncation_changes(given.pop("tokenization_kwargs", None))
        if changes:
            given["sampling_params"] = self._changed(given.get("sampling_params"), **changes)
        return super().chat(**given)

    def generate_stream(
        self, prompts: Any, sampling_params: Any = None, **kwargs: Any
    ) -> Iterator[RequestOutput]:
        return super().generate_stream(prompts, self._paced(sampling_params), **kwargs)

    def chat_stream(
        self, messages: Any, sampling_params: Any = None, **kwargs: Any
    ) -> Iterator[RequestOutput]:
        return super().chat_stream(messages, self._paced(sampling_params), **kwargs)

    def _paced(self, params: Any) -> Any:
        """The stream interval of the engine, where the call has none."""
        if self._interval == 1:
            return params
        items = params if isinstance(params, (list, tuple)) else [params]
        out = [
            self._changed(item, stream_interval=self._interval)
            if item is None or getattr(item, "stream_interval", 0) is None
            else item
            for item in items
        ]
        return out if isinstance(params, (list, tuple)) else out[0]

    def _changed(self, params: Any, **changes: Any) -> Any:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            return params.replace(**changes)
        return [self._changed(item, **changes) for item in params]

    # -- what vLLM has and this engine has not -----------------------------------------------------

    def beam_search(self, *args: Any, **kwargs: Any) -> NoReturn:
        no_beam_search("LLM.beam_search")

    def encode(self, *args: Any, **kwargs: Any) -> NoReturn:
        _no_pooling("encode")

    def embed(self, *args: Any, **kwargs: Any) -> NoReturn:
        _no_pooling("embed")

    def classify(self, *args: Any, **kwargs: Any) -> NoReturn:
        _no_pooling("classify")

    def reward(self, *args: Any, **kwargs: Any) -> NoReturn:
        _no_pooling("reward")

    def score(self, *args: Any, **kwargs: Any) -> NoReturn:
        _no_pooling("score", ": loglikelihood and score_tokens give log-probabilities of texts")

    def apply_model(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            "LLM.apply_model: the ranks are threads of the C core, not Python objects; LLM.trace "
            "gives what the layers compute"
        )


def _no_pooling(name: str, more: str = "") -> NoReturn:
    raise NotImplementedError(f"LLM.{name}: this engine is for generation only{more}")


def _call(
    name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], ours: tuple[str, ...]
) -> dict[str, Any]:
    """The arguments of a call for the engine's own method."""
    table = CALLS[name]
    given = bind(f"LLM.{name}()", table, args, kwargs, ours)
    for argument, value in given.items():
        if argument in table and is_refused(table[argument], value):
            raise InvalidRequestError(
                refusal(argument, table[argument], value), param=argument, value=value
            )
    if given.get("mm_processor_kwargs"):
        raise InvalidRequestError(
            "mm_processor_kwargs: images and video are not part of this version",
            param="mm_processor_kwargs",
            value=given["mm_processor_kwargs"],
        )
    return {n: value for n, value in given.items() if n not in _NOT_FORWARDED}


LLM.__signature__ = signature(ENGINE)  # type: ignore[attr-defined]

"""vllm.sampling_params: the engine's own parameters, taken in vLLM's order and under its names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from ... import params as own
from ...errors import InvalidRequestError
from ...params import RequestOutputKind
from .table import CALLS, bind, is_refused, refusal, signature

__all__ = [
    "BeamSearchParams",
    "RepetitionDetectionParams",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
]


def _bound(call: str, own_class: Any, args: tuple[Any, ...], kwargs: Any) -> dict[str, Any]:
    """The arguments by name. What the table refuses is an error; what has no effect is left out."""
    table = CALLS[call]
    given = bind(f"{call}()", table, args, kwargs, (f.name for f in dataclasses.fields(own_class)))
    for name, value in given.items():
        if name in table and is_refused(table[name], value):
            raise InvalidRequestError(refusal(name, table[name], value), param=name, value=value)
    return {
        name: value
        for name, value in given.items()
        if name not in table or not (table[name].get("ignored") or table[name]["verdict"] != "same")
    }


class StructuredOutputsParams(own.StructuredOutputsParams):
    """`disable_any_whitespace=True` is `whitespace="compact"`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _bound("StructuredOutputsParams", own.StructuredOutputsParams, args, kwargs)
        if given.pop("disable_any_whitespace", None):
            if given.get("whitespace", "compact") != "compact":
                raise InvalidRequestError(
                    f"disable_any_whitespace=True contradicts whitespace={given['whitespace']!r}",
                    param="disable_any_whitespace",
                    value=True,
                )
            given["whitespace"] = "compact"
        super().__init__(**given)


class RepetitionDetectionParams(own.RepetitionDetectionParams):
    """Takes its numbers by position too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(
            **_bound("RepetitionDetectionParams", own.RepetitionDetectionParams, args, kwargs)
        )


class SamplingParams(own.SamplingParams):
    """`max_tokens` left out is what the context leaves, not 16."""

    skip_clone: ClassVar[bool] = False
    output_text_buffer_length: ClassVar[int] = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _bound("SamplingParams", own.SamplingParams, args, kwargs)
        if isinstance(given.get("structured_outputs"), Mapping):
            given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
        super().__init__(**given)

    def __setattr__(self, name: str, value: Any) -> None:
        if not CALLS["SamplingParams"].get(name, {}).get("ignored") or name in own.field_names():
            super().__setattr__(name, value)


class BeamSearchParams:
    """Refused: there is no beam search."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bind("BeamSearchParams()", CALLS["BeamSearchParams"], args, kwargs)
        no_beam_search("BeamSearchParams")


def no_beam_search(what: str) -> NoReturn:
    raise NotImplementedError(f"{what}: {CALLS['BeamSearchParams']['beam_width']['why']}")


for _class in (
    SamplingParams,
    StructuredOutputsParams,
    RepetitionDetectionParams,
    BeamSearchParams,
):
    _class.__signature__ = signature(CALLS[_class.__name__])  # type: ignore[union-attr]

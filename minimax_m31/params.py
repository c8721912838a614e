"""SamplingParams: what a caller may ask of a request.

A plain mutable keyword-only dataclass. It is checked when it is made, and again when a call takes
its snapshot of it; the engine never writes into the caller's object. What each field means is
written beside it; the rules for its values are in params_check.py.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from .suggest import nearest, unknown_name
from .values import plain, plain_list, shown


class RequestOutputKind(enum.Enum):
    """What each output of a stream holds: everything so far, only what is new, or only the last one
    is delivered.
    """

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclasses.dataclass(kw_only=True)
class RepetitionDetectionParams:
    """Ends a looping sequence: the last `size * min_count` tokens repeat a pattern of `size`
    tokens.

    `size` runs from `min_pattern_size` to `max_pattern_size`; `max_pattern_size=0` turns the
    detection off.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


@dataclasses.dataclass(kw_only=True)
class StructuredOutputsParams:
    """Exactly one constraint on the text of the answer."""

    json: str | dict[str, Any] | type | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    whitespace: str = "bounded"
    disable_additional_properties: bool = False
    in_thinking: bool = False


_PLAIN = (int, float, bool, str, RequestOutputKind)  # types of values that cannot change

_IDS = frozenset(  # lists of token ids
    {
        "allowed_token_ids",
        "logprob_token_ids",
        "prompt_logprob_token_ids",
        "stop_token_ids",
        "trace_decode_token_ids",
    }
)

_REMOVED = {
    "best_of": "it does not exist here: use n= and choose among the outputs by cumulative_logprob",
    "use_beam_search": "beam search does not exist here: use n= samples",
}

# Names of other engines and APIs that from_optional understands.
ALIASES = {
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop_seqs": "stop",
    "sampling_seed": "seed",
}


@dataclasses.dataclass(kw_only=True, repr=False)
class SamplingParams:
    """How the tokens of a request are drawn, when it ends and what is reported."""

    n: int = 1  # independent samples; they share the prompt's pages
    # -- drawing
    temperature: float = 1.0  # below 1e-5: greedy, ties to the lowest id
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # tokens of prompt and output
    frequency_penalty: float = 0.0  # tokens of the output only
    presence_penalty: float = 0.0  # tokens of the output only
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None  # end tokens are not added for you
    bad_words: list[str] | None = None  # each with and without a leading space
    seed: int | None = None  # None or -1: fresh entropy, reported in the output
    # -- ending
    min_tokens: int = 0
    max_tokens: int | None = None  # None: what the context leaves, at most LLM(default_max_tokens=)
    ignore_eos: bool = False
    stop: str | list[str] | None = None
    # "all", "content" (not inside thinking); None: chat "content", generate "all"
    stop_scope: str | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False  # affects `text` only
    repetition_detection: RepetitionDetectionParams | dict[str, int] | None = None
    thinking_token_budget: int | None = None  # None or -1: unlimited
    # -- log-probabilities
    logprobs: int | None = None  # 0: the sampled token; k: the top k beside it; -1: all
    logprobs_mode: str | None = None  # None: the engine's
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None  # raw, temperature 1
    prompt_logprob_start: int | None = None  # first scored position
    prompt_logprob_token_ids: list[int] | None = None
    return_sampling_logprob: bool = False
    flat_logprobs: bool = False
    # -- text
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True  # no effect for a byte-level vocabulary
    # -- prompt
    # k tokens, -1: what leaves room for max_tokens; None: an error
    truncate_prompt_tokens: int | None = None
    truncation_side: str = "left"
    skip_reading_prefix_cache: bool | None = None
    # -- streams
    output_kind: RequestOutputKind | None = None
    stream_interval: int | None = None
    # -- others
    structured_outputs: StructuredOutputsParams | dict[str, Any] | None = None
    # forced tokens; their real log-probabilities are computed
    trace_decode_token_ids: list[int] | None = None
    return_routed_experts: bool = False
    routed_experts_prompt_start: int = 0
    extra_args: dict[str, Any] | None = None  # carried to the output untouched

    def __new__(cls, *args: Any, **kwargs: Any) -> SamplingParams:
        if args:
            raise TypeError(
                "SamplingParams takes keyword arguments only, for example "
                "SamplingParams(max_tokens=64)"
            )
        names = field_names()
        for name in kwargs:
            if name not in names:
                raise TypeError(unknown_name("SamplingParams", name, names, _REMOVED.get(name)))
        return super().__new__(cls)

    def __post_init__(self) -> None:
        self.validate()

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in field_names():
            near = nearest(name, field_names())
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AttributeError(f"SamplingParams has no field {name!r}{hint}")
        object.__setattr__(self, name, plain_list(value) if name in _IDS else plain(value))

    def validate(self) -> None:
        """Raises InvalidRequestError for the first field whose value cannot be run; ids are checked
        at submission.
        """
        from .params_check import check_params

        check_params(self)

    def clone(self) -> SamplingParams:
        """A copy that shares nothing mutable with this one (`extra_args` is carried as it is)."""
        new = object.__new__(type(self))
        fields = vars(new)  # written directly: every request takes a snapshot
        fields.update(vars(self))
        for name, value in fields.items():
            if value is not None and type(value) not in _PLAIN and name != "extra_args":
                fields[name] = copy.deepcopy(value)
        return new

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with these fields changed, checked again."""
        for name in changes:
            if name not in field_names():
                raise TypeError(
                    unknown_name("SamplingParams.replace", name, field_names(), _REMOVED.get(name))
                )
        new = self.clone()
        for name, value in changes.items():
            setattr(new, name, value)
        new.validate()
        return new

    @classmethod
    def from_optional(cls, **values: Any) -> SamplingParams:
        """From values that may be None (= the default) and from names of other APIs.

        `do_sample=False` means temperature 0. `logit_bias` keys may be strings; values are clamped
        to +-100.
        """
        from .params_check import as_float

        given: dict[str, Any] = {}
        sample = values.pop("do_sample", None)
        for name, value in values.items():
            if value is None:
                continue
            name = ALIASES.get(name, name)
            if name in given and given[name] != value:
                raise TypeError(
                    f"from_optional: {name} is given twice, as {given[name]!r} and {value!r}"
                )
            given[name] = value
        if sample is not None and not sample:
            if given.get("temperature", 0) not in (0, 0.0):
                raise TypeError(
                    f"from_optional: do_sample=False contradicts "
                    f"temperature={given['temperature']!r}"
                )
            given["temperature"] = 0.0
        bias = given.get("logit_bias")
        if isinstance(bias, Mapping):
            given["logit_bias"] = {
                _bias_key(key): min(100.0, max(-100.0, as_float("logit_bias", v)))
                for key, v in bias.items()
            }
        return cls(**given)

    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    def changed(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        out: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                out[field.name] = value
        return out

    def describe(self) -> str:
        """One line per changed field; for `get_default_sampling_params()`, where the value came
        from.
        """
        source = getattr(self, "_source", {})
        lines = [
            f"{name} = {value!r}{source.get(name, '')}" for name, value in self.changed().items()
        ]
        return "\n".join(lines) or "all fields have their defaults"

    def __repr__(self) -> str:
        parts = []
        for name, value in self.changed().items():
            parts.append(f"{name}={shown(value, 80)}")
        return f"SamplingParams({', '.join(parts)})"


def _bias_key(key: Any) -> int:
    """A token id, which JSON objects write as a string."""
    from .params_check import as_int, bad

    if not isinstance(key, str):
        return as_int("logit_bias", key)
    try:
        return int(key)
    except ValueError:
        raise bad("logit_bias", key, "the keys are token ids") from None


_NAMES: frozenset[str] = frozenset()


def field_names() -> frozenset[str]:
    global _NAMES
    if not _NAMES:
        _NAMES = frozenset(field.name for field in dataclasses.fields(SamplingParams))
    return _NAMES


def per_prompt(params: Any, count: int, default: SamplingParams) -> list[SamplingParams]:
    """One SamplingParams per prompt, from None, one object, or a sequence of exactly `count`."""
    from .errors import InvalidRequestError

    if params is None:
        return [default] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or isinstance(params, (str, bytes)):
        raise InvalidRequestError(
            f"sampling_params must be a SamplingParams or a list of them, not "
            f"{type(params).__name__}",
            param="sampling_params",
            value=params,
        )
    if len(params) != count:
        raise InvalidRequestError(
            f"sampling_params has {len(params)} entries for {count} prompt(s): give one for all, "
            "or one for each",
            param="sampling_params",
            value=params,
        )
    for i, item in enumerate(params):
        if not isinstance(item, SamplingParams):
            raise InvalidRequestError(
                f"sampling_params[{i}] must be a SamplingParams, not {type(item).__name__}",
                param="sampling_params",
                value=item,
                index=i,
            )
    return list(params)

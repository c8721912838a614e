"""Rules for the values of SamplingParams: one InvalidRequestError that names the field, the value
and the remedy.
"""

from __future__ import annotations

import dataclasses
import math
import operator
import struct
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidRequestError
from .suggest import nearest
from .values import shown

if TYPE_CHECKING:
    from .params import SamplingParams

I32_MAX = 2**31 - 1
MAX_LIST = 1024  # entries of a list of ids or words (MM_MAX_LIST of the core)
_NORMAL32 = 2.0**-126  # the smallest float32 whose reciprocal is finite
LOGPROB_MODES = {
    "raw_logprobs": "raw",
    "tempered_logprobs": "tempered",
    "processed_logprobs": "processed",
    "raw_logits": "raw_logits",
    "processed_logits": "processed_logits",
}
STOP_SCOPES = ("all", "content")
TRUNCATION_SIDES = ("left", "right", "middle")


def bad(param: str, value: Any, text: str) -> InvalidRequestError:
    return InvalidRequestError(f"{param}={shown(value, 100)}: {text}", param=param, value=value)


def as_int(param: str, value: Any) -> int:
    """An integer that is no bool: `logprobs=True` is written by people who mean 1, and only there
    allowed.
    """
    if isinstance(value, bool):
        raise bad(param, value, "an integer is needed, not a bool")
    try:
        return operator.index(value)
    except TypeError:
        raise bad(param, value, f"an integer is needed, not {type(value).__name__}") from None


def as_float(param: str, value: Any) -> float:
    if isinstance(value, (bool, str, bytes)):
        raise bad(param, value, f"a number is needed, not {type(value).__name__}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise bad(param, value, f"a number is needed, not {type(value).__name__}") from None
    except OverflowError:
        raise bad(param, value, "it is too large for a number of 64 bits") from None
    if math.isnan(number):
        raise bad(param, value, "a number is needed, not NaN")
    return number


def as_float32(value: float) -> float:
    """The nearest float32, which is what the core computes with; beyond the largest it is inf."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def check_unicode(param: str, text: str, index: int | None = None, where: str = "") -> None:
    """Refuses half a surrogate pair: a Python string can hold one, UTF-8 (and a tokenizer) not."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{where or param}: character {error.start} is U+{ord(text[error.start]):04X}, half of "
            "a surrogate pair, which is no text: read the text with the right encoding, or use "
            'text.encode("utf-8", "replace").decode()',
            param=param,
            value=text,
            index=index,
        ) from None


def _int_in(p: SamplingParams, name: str, low: int, high: int, remedy: str) -> int:
    value = as_int(name, getattr(p, name))
    if value > high:
        raise bad(name, value, f"it must be at most {high}")
    if value < low:
        raise bad(name, value, remedy)
    return value


def _float_in(p: SamplingParams, name: str, low: float, high: float, remedy: str) -> float:
    value = as_float(name, getattr(p, name))
    if not low <= value <= high:
        raise bad(name, value, remedy)
    return value


def _bools(p: SamplingParams, *names: str) -> None:
    for name in names:
        value = getattr(p, name)
        if not isinstance(value, (int, float)) or value not in (0, 1):
            raise bad(name, value, "True or False is needed")


def id_list(
    param: str, value: Any, *, most: int = MAX_LIST, may_be_empty: bool = True
) -> list[int]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Collection):
        raise bad(param, value, "a list of token ids is needed")
    ids = [as_int(param, item) for item in value]
    if not may_be_empty and not ids:
        raise bad(
            param,
            value,
            "the list is empty, so nothing could be generated; use None for no restriction",
        )
    if len(ids) > most:
        raise bad(param, value, f"{len(ids)} entries, at most {most} are possible")
    if ids and min(ids) < 0:
        raise bad(param, min(ids), "token ids are 0 or more")
    return ids


def _choice(param: str, value: Any, valid: Sequence[str]) -> None:
    if isinstance(value, str) and value in valid:
        return
    near = nearest(value, valid) if isinstance(value, str) else []
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise bad(param, value, f"expected one of {', '.join(map(repr, valid))}{hint}")


def check_params(p: SamplingParams) -> None:
    _check_drawing(p)
    _check_ending(p)
    _check_logprobs(p)
    _check_rest(p)


def _check_drawing(p: SamplingParams) -> None:
    n = _int_in(p, "n", 1, 65536, "it must lie in 1 .. 65536")
    temperature = as_float("temperature", p.temperature)
    if not 0 <= as_float32(temperature) < math.inf:
        raise bad("temperature", p.temperature, "it must be 0 (greedy) or more, and at most 3.4e38")
    if n > 1 and temperature < 1e-5:
        raise bad(
            "n",
            n,
            f"all samples would be equal at temperature={p.temperature}: use n=1, or a temperature",
        )
    _int_in(p, "top_k", -1, I32_MAX, "it must be 1 or more, or 0 (or -1) to turn it off")
    top_p = as_float("top_p", p.top_p)
    if not 0 < top_p <= 1 or as_float32(top_p) == 0:
        raise bad("top_p", p.top_p, "it must lie in (0, 1], as a float32 too; 1 turns it off")
    min_p = _float_in(p, "min_p", 0, 1, "it must lie in [0, 1]; 0 turns it off")
    if min_p > 0 and as_float32(min_p) == 0:
        raise bad("min_p", p.min_p, "it is 0 as a float32; 0 turns it off")
    penalty = as_float("repetition_penalty", p.repetition_penalty)
    if not _NORMAL32 <= penalty or math.isinf(as_float32(penalty)):
        raise bad(
            "repetition_penalty",
            p.repetition_penalty,
            "it must be above 0, and lie in 1.2e-38 .. 3.4e38; 1 turns it off",
        )
    _float_in(p, "frequency_penalty", -2, 2, "it must lie in [-2, 2]; 0 turns it off")
    _float_in(p, "presence_penalty", -2, 2, "it must lie in [-2, 2]; 0 turns it off")
    if p.logit_bias is not None:
        if not isinstance(p.logit_bias, Mapping):
            raise bad("logit_bias", p.logit_bias, "a dict {token id: bias} is needed")
        id_list("logit_bias", list(p.logit_bias))
        for value in p.logit_bias.values():
            bias = as_float("logit_bias", value)
            if bias != -math.inf and math.isinf(as_float32(bias)):
                raise bad(
                    "logit_bias",
                    value,
                    "a bias must lie in -3.4e38 .. 3.4e38, or be -inf (which forbids the token)",
                )
    if p.allowed_token_ids is not None:
        id_list("allowed_token_ids", p.allowed_token_ids, most=I32_MAX, may_be_empty=False)
    if p.bad_words is not None:
        words = p.bad_words
        if (
            isinstance(words, str)
            or not isinstance(words, Sequence)
            or not all(isinstance(w, str) for w in words)
        ):
            raise bad("bad_words", words, "a list of strings is needed")
        if not all(words):
            raise bad("bad_words", words, "an empty word would forbid everything")
        for i, word in enumerate(words):
            check_unicode("bad_words", word, where=f"bad_words[{i}]")
        if len(words) > MAX_LIST // 2:
            raise bad(
                "bad_words", words, f"{len(words)} words, at most {MAX_LIST // 2} are possible"
            )
    if p.seed is not None:
        seed = as_int("seed", p.seed)
        if not -(2**63) <= seed < 2**64:
            raise bad("seed", seed, "it must fit into 64 bits; None (or -1) takes a fresh one")


def _check_ending(p: SamplingParams) -> None:
    minimum = _int_in(p, "min_tokens", 0, I32_MAX, "it must be 0 or more")
    if p.max_tokens is not None:
        maximum = as_int("max_tokens", p.max_tokens)
        if maximum > I32_MAX:
            raise bad("max_tokens", maximum, f"it must be at most {I32_MAX}; None takes what fits")
        if maximum < 0:
            raise bad(
                "max_tokens",
                maximum,
                "it must be 1 or more; 0 only scores the prompt, None takes what fits",
            )
        if minimum > maximum:
            raise bad("min_tokens", minimum, f"it is larger than max_tokens={maximum}")
    if p.stop is not None:
        texts = [p.stop] if isinstance(p.stop, str) else p.stop
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise bad("stop", p.stop, "a string or a list of strings is needed")
        if not all(texts):
            raise bad("stop", p.stop, "an empty string would stop everywhere; leave it out")
        for i, text in enumerate(texts):
            check_unicode("stop", text, where=f"stop[{i}]")
        if len(texts) > MAX_LIST:
            raise bad("stop", p.stop, f"{len(texts)} strings, at most {MAX_LIST} are possible")
    if p.stop_scope is not None:
        _choice("stop_scope", p.stop_scope, STOP_SCOPES)
    if p.stop_token_ids is not None:
        id_list("stop_token_ids", p.stop_token_ids)
    if p.thinking_token_budget is not None:
        _int_in(
            p,
            "thinking_token_budget",
            -1,
            I32_MAX,
            "it must be 0 or more; None (or -1) means no limit",
        )
    detection = repetition(p)
    if detection is not None:
        low, high, count = detection
        if not 1 <= low <= high:
            raise bad(
                "repetition_detection",
                p.repetition_detection,
                "1 <= min_pattern_size <= max_pattern_size is needed",
            )
        if count < 2:
            raise bad("repetition_detection", p.repetition_detection, "min_count must be 2 or more")


def repetition(p: SamplingParams) -> tuple[int, int, int] | None:
    """(smallest, largest pattern, count), None when it is off. An unset smallest pattern is 1."""
    value = p.repetition_detection
    if value is None:
        return None
    names = ("max_pattern_size", "min_pattern_size", "min_count")
    if isinstance(value, Mapping):
        for name in value:
            if name not in names:
                raise bad(
                    "repetition_detection",
                    value,
                    f"unknown key {name!r}; the keys are {', '.join(names)}",
                )
        numbers = [value.get(name, 0) for name in names]
    elif all(hasattr(value, name) for name in names):
        numbers = [getattr(value, name) for name in names]
    else:
        raise bad(
            "repetition_detection",
            value,
            "RepetitionDetectionParams or a dict of its fields is needed",
        )
    high, low, count = (as_int("repetition_detection", number) for number in numbers)
    return None if high == 0 else (low or 1, high, count)


def _check_logprobs(p: SamplingParams) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(p, name)
        if value is None or value is True or value is False:
            continue
        if as_int(name, value) < -1:
            raise bad(
                name, value, "it must be 0 or more, -1 for the whole vocabulary, None for none"
            )
    if p.logprobs_mode is not None:
        _choice("logprobs_mode", p.logprobs_mode, tuple(LOGPROB_MODES))
    if p.logprob_token_ids is not None:
        id_list("logprob_token_ids", p.logprob_token_ids)
    if p.prompt_logprob_token_ids is not None:
        id_list("prompt_logprob_token_ids", p.prompt_logprob_token_ids)
    if p.prompt_logprob_start is not None:
        _int_in(p, "prompt_logprob_start", 0, I32_MAX, "it must be 0 or more")
        if logprob_count(p.prompt_logprobs) is None and p.prompt_logprob_token_ids is None:
            raise bad(
                "prompt_logprob_start",
                p.prompt_logprob_start,
                "it has no effect without prompt_logprobs",
            )


def _check_rest(p: SamplingParams) -> None:
    _bools(
        p,
        "ignore_eos",
        "include_stop_str_in_output",
        "return_sampling_logprob",
        "flat_logprobs",
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "return_routed_experts",
    )
    if p.skip_reading_prefix_cache is not None:
        _bools(p, "skip_reading_prefix_cache")
    if p.truncate_prompt_tokens is not None:
        k = as_int("truncate_prompt_tokens", p.truncate_prompt_tokens)
        if k != -1 and k < 1:
            raise bad(
                "truncate_prompt_tokens",
                k,
                "it must be 1 or more, or -1 for what leaves room for max_tokens",
            )
    _choice("truncation_side", p.truncation_side, TRUNCATION_SIDES)
    if p.stream_interval is not None:
        _int_in(p, "stream_interval", 1, I32_MAX, "it must be 1 or more")
    if p.output_kind is not None and type(p.output_kind).__name__ != "RequestOutputKind":
        raise bad("output_kind", p.output_kind, "a RequestOutputKind is needed")
    if p.trace_decode_token_ids is not None:
        id_list("trace_decode_token_ids", p.trace_decode_token_ids, most=I32_MAX)
    _int_in(p, "routed_experts_prompt_start", 0, I32_MAX, "it must be 0 or more")
    if p.extra_args is not None and not isinstance(p.extra_args, Mapping):
        raise bad("extra_args", p.extra_args, "a dict is needed")
    _check_structured(p)


def _check_structured(p: SamplingParams) -> None:
    value = p.structured_outputs
    if value is None:
        return
    names = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    if isinstance(value, Mapping):
        given = [name for name in names if value.get(name) is not None]
    elif dataclasses.is_dataclass(value):
        given = [name for name in names if getattr(value, name, None) is not None]
    else:
        raise bad(
            "structured_outputs", value, "StructuredOutputsParams or a dict of its fields is needed"
        )
    if len(given) != 1:
        found = ", ".join(given) or "none"
        raise bad(
            "structured_outputs",
            value,
            f"exactly one of {', '.join(names)} is needed, found {found}",
        )


def logprob_count(value: Any) -> int | None:
    """How many top entries `logprobs` asks for: None, 0, k or -1 (all)."""
    if value is None or value is False:
        return None
    return 1 if value is True else as_int("logprobs", value)


def check_against_engine(p: SamplingParams, n_vocab: int, max_logprobs: int) -> None:
    """What only an engine knows: the vocabulary and the limits it was opened with."""
    for name in (
        "allowed_token_ids",
        "stop_token_ids",
        "logprob_token_ids",
        "prompt_logprob_token_ids",
        "trace_decode_token_ids",
    ):
        ids = getattr(p, name)
        if ids is not None and len(ids) and max(ids) >= n_vocab:
            raise bad(name, max(ids), f"token ids lie in 0 .. {n_vocab - 1}")
    if p.logit_bias and max(p.logit_bias) >= n_vocab:
        raise bad("logit_bias", max(p.logit_bias), f"token ids lie in 0 .. {n_vocab - 1}")
    for name in ("logprobs", "prompt_logprobs"):
        k = logprob_count(getattr(p, name))
        if k is None or max_logprobs < 0:
            continue
        if k == -1 or k > max_logprobs:
            raise bad(
                name,
                getattr(p, name),
                f"this engine was opened with max_logprobs={max_logprobs}: "
                "open it with a larger max_logprobs (-1: no limit)",
            )
    if p.return_routed_experts:
        raise bad(
            "return_routed_experts",
            True,
            "not part of this version; LLM.trace(ids).experts has them",
        )

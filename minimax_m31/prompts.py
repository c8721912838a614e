"""Prompts as callers give them -> token ids.

A prompt is a string, a list of ids, a one-dimensional integer array, or a dict (TextPrompt,
TokensPrompt); a call takes one of those or a sequence of them. Kinds are checked for a whole call
before any work; contents when a prompt's turn comes, so that a million prompts are never all
encoded at once.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from .errors import InvalidRequestError
from .params_check import check_unicode
from .suggest import nearest

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_BOOLS = {bool, np.bool_}
IdArray = npt.NDArray[np.int32]


class _Extras(TypedDict, total=False):
    cache_salt: str
    multi_modal_data: dict[str, Any]


class TextPrompt(_Extras):
    """A text prompt. `cache_salt`: prefixes are shared only between equal salts."""

    prompt: str


class TokensPrompt(_Extras):
    """A prompt of token ids."""

    prompt_token_ids: Sequence[int]


_NO_ID_LIST = (str, bytes, bytearray, Mapping, set, frozenset)
_KEYS = ("prompt", "prompt_token_ids", "cache_salt", "multi_modal_data")


class Prompt(NamedTuple):
    """One prompt, before encoding: `ids` is None for a text."""

    text: str | None
    ids: Any
    salt: str | None = None


def _is_ids(value: Any) -> bool:
    """A list or tuple that starts with an integer,
    or an array of integers: one tokenized prompt."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1 and value.dtype.kind in "iu"
    if not isinstance(value, (list, tuple)) or not value:
        return False
    first = value[0]
    return isinstance(first, (int, np.integer)) and not isinstance(first, (bool, np.bool_))


def split_call(prompts: Any) -> tuple[Sequence[Any], bool]:
    """(the prompts of a call, whether it was a single one)."""
    if isinstance(prompts, (str, Mapping)) or _is_ids(prompts):
        return [prompts], True
    if isinstance(prompts, np.ndarray):
        if prompts.ndim == 1 and prompts.dtype == object:
            return list(prompts), False
        raise InvalidRequestError(
            f"prompts is an array of {prompts.dtype} with {prompts.ndim} dimensions: a prompt is a "
            "one-dimensional "
            "array of integers; several prompts are a list of them",
            param="prompts",
            value=prompts,
        )
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Sequence):
        if hasattr(prompts, "__iter__") and not isinstance(
            prompts, (bytes, bytearray, set, frozenset)
        ):
            return list(prompts), False
        raise InvalidRequestError(
            f"prompts must be a string, a list of token ids, a dict, or a sequence of those, not "
            f"{type(prompts).__name__}",
            param="prompts",
            value=prompts,
        )
    return prompts, False


def check_kind(value: Any, index: int, *, may_be_empty: bool = False) -> None:
    """The cheap part of reading a prompt: is it one of the kinds at all. `may_be_empty`: an empty
    list is left to read_prompt.
    """
    if isinstance(value, str) or _is_ids(value):
        return
    if isinstance(value, Mapping):
        _check_dict(value, index)
        return
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) == 0:
        if may_be_empty:
            return
        raise InvalidRequestError(
            f"prompts[{index}] is empty: at least one token is needed",
            param="prompt",
            value=value,
            index=index,
        )
    raise InvalidRequestError(
        f"prompts[{index}] must be a string, a list or 1-D array of integer token ids, or a dict "
        "with 'prompt' or "
        f"'prompt_token_ids', not {_describe(value)}",
        param="prompt",
        value=value,
        index=index,
    )


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {type(value[0]).__name__}"
    return type(value).__name__


def _check_dict(value: Mapping[Any, Any], index: int) -> None:
    for key in value:
        if key not in _KEYS:
            near = nearest(str(key), _KEYS)
            hint = f"; did you mean {near[0]!r}?" if near else f"; the keys are {', '.join(_KEYS)}"
            raise InvalidRequestError(
                f"prompts[{index}] has an unknown key {key!r}{hint}",
                param=str(key),
                value=value,
                index=index,
            )
    if value.get("multi_modal_data"):
        raise NotImplementedError("multi_modal_data: images and video are not part of this version")
    ids, text = value.get("prompt_token_ids"), value.get("prompt")
    if ids is None and text is None:
        raise InvalidRequestError(
            f"prompts[{index}] has neither 'prompt' nor 'prompt_token_ids'",
            param="prompt",
            value=value,
            index=index,
        )
    if ids is not None:
        if isinstance(ids, _NO_ID_LIST) or not hasattr(ids, "__len__"):
            raise InvalidRequestError(
                f"prompts[{index}]['prompt_token_ids'] must be a list of integers, not "
                f"{type(ids).__name__}",
                param="prompt_token_ids",
                value=ids,
                index=index,
            )
    elif not isinstance(text, str):
        raise InvalidRequestError(
            f"prompts[{index}]['prompt'] must be a string, not {type(text).__name__}: ids go into "
            "'prompt_token_ids'",
            param="prompt",
            value=text,
            index=index,
        )
    salt = value.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidRequestError(
            f"prompts[{index}]['cache_salt'] must be a string",
            param="cache_salt",
            value=salt,
            index=index,
        )


def read_prompt(value: Any, index: int) -> Prompt:
    check_kind(value, index)
    if isinstance(value, str):
        check_unicode("prompt", value, index, f"prompts[{index}]")
        return Prompt(value, None)
    if not isinstance(value, Mapping):
        return Prompt(None, value)
    read = Prompt(value.get("prompt"), value.get("prompt_token_ids"), value.get("cache_salt"))
    if isinstance(read.text, str) and read.ids is None:
        check_unicode("prompt", read.text, index, f"prompts[{index}]['prompt']")
    if read.salt is not None:
        check_unicode("cache_salt", read.salt, index, f"prompts[{index}]['cache_salt']")
    return read


def to_ids(value: Any, index: int, n_vocab: int, param: str = "prompt_token_ids") -> IdArray:
    """Token ids as int32, each checked against the vocabulary."""

    def fail(text: str, what: Any) -> InvalidRequestError:
        return InvalidRequestError(
            f"{param} of prompt {index}: {text}", param=param, value=what, index=index
        )

    if isinstance(value, np.ndarray):
        array = value
    else:
        try:
            array = np.asarray(value if isinstance(value, (list, tuple)) else list(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise fail(f"{value!r} is not a flat list of integers ({error})", value) from None
    if array.size == 0:
        raise fail("it is empty: at least one token is needed", value)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        for item in value if isinstance(value, (list, tuple)) else ():
            try:
                operator.index(item)
            except TypeError:
                raise fail(f"{item!r} is not an integer", item) from None
            if isinstance(item, (bool, np.bool_)):
                raise fail(f"{item!r} is not a token id", item)
        if array.dtype == object:
            raise fail(f"token ids lie in 0 .. {n_vocab - 1}", value)
        raise fail(
            f"a flat list of integers is needed, not {array.ndim} dimensions of {array.dtype}",
            value,
        )
    if not isinstance(value, np.ndarray) and not _BOOLS.isdisjoint(map(type, value)):
        raise fail("True and False are no token ids", value)
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= n_vocab:
        wrong = low if low < 0 else high
        raise fail(f"token id {wrong} does not exist: the model has 0 .. {n_vocab - 1}", wrong)
    return array.astype(np.int32, copy=True)


def salt_number(salt: str | None) -> int:
    """The core's 64-bit salt of a text; 0 is the common cache."""
    if not salt:
        return 0
    digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def need_tokenizer(
    tokenizer: Tokenizer | None, what: str, param: str, index: int | None = None
) -> Tokenizer:
    if tokenizer is None:
        raise InvalidRequestError(
            f"{what} needs a tokenizer, and this engine has none (no tokenizer.json beside the "
            "checkpoint, or "
            "skip_tokenizer_init=True): give token ids, or LLM(tokenizer=folder)",
            param=param,
            index=index,
        )
    return tokenizer


def truncate(ids: IdArray, keep: int, side: str) -> IdArray:
    """At most `keep` tokens: the last ones ("left" is cut), the first ones, or both ends."""
    if len(ids) <= keep:
        return ids
    if side == "left":
        return ids[len(ids) - keep :]
    if side == "right":
        return ids[:keep]
    head = (keep + 1) // 2
    return (
        np.concatenate([ids[:head], ids[len(ids) - (keep - head) :]]) if keep > head else ids[:head]
    )

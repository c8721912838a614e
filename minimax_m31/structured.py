"""Constrained answers: JSON schemas, regular expressions, choices, Lark grammars, structural tags,
forced tool calls.

llguidance turns a grammar and the tokens so far into a bit mask of the tokens allowed next. Masks
are made in the thread that waits for the call's results, never on the engine's; a constrained
sequence waits for its mask while the others run. A thinking span comes first, unconstrained: the
grammar starts behind its closing mark.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .chat.grammar import PIP_LINE
from .chat.marks import NAMESPACE, THINK_CLOSE, THINK_OPEN
from .errors import GrammarError
from .params import StructuredOutputsParams

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

Words = npt.NDArray[np.uint32]

COMPILE_S = 10.0  # longest compile of a grammar
CACHE = 256  # compiled grammars kept per engine
_TAG_KEYS = ("structures", "triggers")
WHITESPACE = {"bounded": r"[ \t\r\n]{1,16}", "compact": None, "any": r"[ \t\r\n]+"}


def load_llguidance(param: str = "structured_outputs") -> Any:
    """The llguidance module, or the error that says how to get it. `param`: the argument that needs
    it."""
    try:
        import llguidance
    except ImportError as error:
        raise GrammarError(
            f"{param}: a grammar enforces it, which needs llguidance: {PIP_LINE}", param=param
        ) from error
    return llguidance


# ---------------------------------------------------------------- from parameters to a grammar


def as_params(value: StructuredOutputsParams | Mapping[str, Any]) -> StructuredOutputsParams:
    if isinstance(value, StructuredOutputsParams):
        return value
    names = {f.name for f in dataclasses.fields(StructuredOutputsParams)}
    unknown = sorted(set(value) - names)
    if unknown:
        raise GrammarError(
            f"structured_outputs: {', '.join(unknown)} is unknown; the fields are "
            f"{', '.join(sorted(names))}",
            param="structured_outputs",
            value=dict(value),
        )
    return StructuredOutputsParams(**value)


def _schema_of(value: Any) -> Any:
    if isinstance(value, type):
        if not hasattr(value, "model_json_schema"):
            raise GrammarError(
                f"structured_outputs: json={value.__name__} is no pydantic model; give a schema",
                param="structured_outputs",
                value=value,
            )
        return value.model_json_schema()
    schema = value
    if isinstance(value, str):
        try:
            schema = json.loads(value)
        except json.JSONDecodeError as error:
            raise GrammarError(
                f"structured_outputs: json is no JSON text: {error}",
                param="structured_outputs",
                value=value,
            ) from error
    if not isinstance(schema, Mapping):
        raise GrammarError(
            f"structured_outputs: json={value!r} is no JSON schema: give an object such as "
            "{'type': 'object', 'properties': {...}}, its JSON text, or a pydantic model",
            param="structured_outputs",
            value=value,
        )
    return schema


def _closed(node: Any) -> Any:
    """The schema with `additionalProperties: false` wherever an object leaves it open."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    out = {key: _closed(item) for key, item in node.items()}
    if "properties" in out and "additionalProperties" not in out:
        out["additionalProperties"] = False
    return out


def _json_grammar(schema: Any, p: StructuredOutputsParams) -> str:
    if p.whitespace not in WHITESPACE:
        raise GrammarError(
            f"structured_outputs: whitespace={p.whitespace!r}: it is one of "
            f"{', '.join(WHITESPACE)}",
            param="structured_outputs",
            value=p.whitespace,
        )
    pattern = WHITESPACE[p.whitespace]
    options: dict[str, Any] = {"whitespace_flexible": False}
    if pattern is not None:
        options = {"whitespace_pattern": pattern}
    schema = _closed(schema) if p.disable_additional_properties else schema
    return str(load_llguidance().LLMatcher.grammar_from_json_schema(schema, overrides=options))


def _tag_grammar(value: Any) -> str:
    """{"structures": [{"begin", "schema", "end"}], "triggers": [...]}: free text, in which a
    trigger begins a constrained part."""

    def refuse(what: str) -> GrammarError:
        return GrammarError(
            f"structured_outputs: structural_tag: {what}", param="structured_outputs", value=value
        )

    try:
        tag = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError as error:
        raise refuse(f"it is no JSON text: {error}") from error
    parts = [tag.get(key) if isinstance(tag, Mapping) else None for key in _TAG_KEYS]
    if not all(isinstance(part, (list, tuple)) and part for part in parts):
        raise refuse("it has 'structures' (each with begin, schema, end) and 'triggers'")
    structures, triggers = parts
    tags = []
    struct = load_llguidance().StructTag
    for i, item in enumerate(structures or ()):
        begin, schema, end = (
            item.get(key) if isinstance(item, Mapping) else None
            for key in ("begin", "schema", "end")
        )
        if not (isinstance(begin, str) and isinstance(end, str) and begin and end):
            raise refuse(f"structures[{i}] needs 'begin' and 'end', both text that is not empty")
        if not isinstance(schema, (Mapping, bool)):
            raise refuse(f"structures[{i}] needs 'schema', a JSON schema")
        trigger = next((t for t in triggers or () if begin.startswith(t)), None)
        if trigger is None:
            raise refuse(f"no trigger begins {begin!r}")
        tags.append(struct(trigger=trigger, begin=begin, grammar=schema, end=end))
    return str(struct.to_grammar(tags, assume_special=False))


def grammar_text(value: StructuredOutputsParams | Mapping[str, Any]) -> str:
    """The grammar of one constraint, in llguidance's form."""
    p = as_params(value)
    matcher = load_llguidance().LLMatcher
    if p.json is not None:
        return _json_grammar(_schema_of(p.json), p)
    if p.json_object:
        return _json_grammar({"type": "object"}, p)
    if p.regex is not None:
        return str(matcher.grammar_from_regex(p.regex))
    if p.choice is not None:
        if (
            not p.choice
            or isinstance(p.choice, str)
            or not all(isinstance(c, str) and c for c in p.choice)
        ):
            raise GrammarError(
                "structured_outputs: choice is a list of non-empty strings",
                param="structured_outputs",
                value=p.choice,
            )
        # one terminal: an automaton, where alternatives of a rule would be followed one by one
        words = " | ".join(json.dumps(c, ensure_ascii=False) for c in dict.fromkeys(p.choice))
        return f"start: CHOICE\nCHOICE: {words}"
    if p.grammar is not None:
        return p.grammar
    if p.structural_tag is not None:
        return _tag_grammar(p.structural_tag)
    raise GrammarError(
        "structured_outputs: no constraint is given: json, regex, choice, grammar, json_object or "
        "structural_tag",
        param="structured_outputs",
        value=value,
    )


# ---------------------------------------------------------------- compiled


class _Vocabulary:
    """What llguidance wants to know of a tokenizer. The marks that grammars spell (the namespace of
    tool calls) are text; all other added tokens can only end an answer."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, eos: Sequence[int]) -> None:
        tokens = tokenizer.token_bytes()
        self.tokens = [tokens[i] if i < len(tokens) else b"" for i in range(n_vocab)]
        self.eos_token_id = eos[0]
        self.bos_token_id = None
        spelled = {NAMESPACE}
        self.special_token_ids = [
            i for text, i in tokenizer.added_tokens.items() if text not in spelled
        ]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"))


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A checked grammar; `in_thinking`: it holds from the first token on."""

    matcher: Any  # in its first state; copied for each sequence
    in_thinking: bool


class Grammars:
    """The grammars of one engine, each compiled once. Safe from any thread."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, eos: Sequence[int]) -> None:
        self._library = load_llguidance()
        self._lock = threading.Lock()
        self._cache: dict[tuple[str, bool], Grammar] = {}
        self.n_vocab = n_vocab
        self.open_id = tokenizer.added_tokens.get(THINK_OPEN)
        self.close_id = tokenizer.added_tokens.get(THINK_CLOSE)
        if not eos:
            raise GrammarError(
                "constrained decoding needs an end token, and this checkpoint names none",
                param="structured_outputs",
            )
        self._table = [bytes(t) for t in _Vocabulary(tokenizer, n_vocab, eos).tokens]
        wrapper = self._library.TokenizerWrapper(_Vocabulary(tokenizer, n_vocab, eos))
        self._ll = self._library.LLTokenizer(wrapper, n_vocab=n_vocab, eos_token=list(eos))

    def bytes_of(self, token: int) -> bytes:
        return self._table[token]

    def compile(self, text: str, *, in_thinking: bool = False, param: str) -> Grammar:
        """Checks and compiles; a grammar that takes longer than COMPILE_S is refused."""
        key = (text, in_thinking)
        with self._lock:
            found = self._cache.get(key)
        if found is not None:
            return found
        pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="mm-grammar")
        try:
            matcher = pool.submit(self._compiled, text).result(COMPILE_S)
        except concurrent.futures.TimeoutError as error:
            raise GrammarError(
                f"{param}: the grammar took longer than {COMPILE_S:g} s to compile: simplify it",
                param=param,
            ) from error
        finally:
            pool.shutdown(wait=False)
        if matcher.is_error():
            raise GrammarError(f"{param}: {_problem(matcher)}", param=param)
        grammar = Grammar(matcher, in_thinking)
        with self._lock:
            if len(self._cache) >= CACHE:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = grammar
        return grammar

    def _compiled(self, text: str) -> Any:
        """A matcher in its first state, or in an error state: the first mask is tried as well."""
        matcher = self._library.LLMatcher(self._ll, text, log_level=0)
        if matcher.is_error():
            return matcher
        probe = matcher.deep_copy()
        words = np.zeros((self.n_vocab + 31) // 32, np.uint32)
        probe.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        return probe if probe.is_error() else matcher

    def of_params(self, value: StructuredOutputsParams | Mapping[str, Any]) -> Grammar:
        p = as_params(value)
        return self.compile(grammar_text(p), in_thinking=p.in_thinking, param="structured_outputs")


def _problem(matcher: Any) -> str:
    """What stopped a matcher, without the dump of its state."""
    return str(matcher.get_error()).split("\n<state>")[0].strip()


class Constraint:
    """The state of one constrained sequence. `start`: the thinking state at the generation boundary
    (None outside chat)."""

    def __init__(self, grammars: Grammars, grammar: Grammar, start: str | None) -> None:
        self._grammars = grammars
        self._matcher = grammar.matcher.deep_copy()
        self._seen = 0  # tokens taken in
        self._tail = b""  # newest bytes of the thinking span
        starts = {"enabled": "think", "adaptive": "lead"}
        self._phase = "answer" if grammar.in_thinking else starts.get(start or "", "answer")
        words = (grammars.n_vocab + 31) // 32
        self._words: Words = np.zeros(words, np.uint32)

    @property
    def n_seen(self) -> int:
        return self._seen

    @property
    def problem(self) -> str:
        """Why no mask can be made any more; "" while there can."""
        return _problem(self._matcher) if self._matcher.is_error() else ""

    def advance(self, tokens: Sequence[int]) -> None:
        """Takes in the tokens drawn since the last call."""
        for token in tokens:
            self._seen += 1
            if self._phase == "lead" and token == self._grammars.open_id:
                self._phase = "think"
            elif self._phase == "lead" and token == self._grammars.close_id:
                self._phase = "answer"  # the mark of an answer without thinking
            elif self._phase == "think":
                self._tail = (self._tail + self._grammars.bytes_of(token))[-256:]
                if THINK_CLOSE.encode() in self._tail:
                    self._phase = "answer"
            else:
                self._phase = "answer"
                if not self._matcher.is_stopped():
                    self._matcher.consume_token(token)

    def mask(self) -> Words:
        """Allowed tokens of the next position, [ceil(n_vocab / 32)]; all zero at a dead end."""
        words = self._words
        if self._phase == "think":
            words.fill(0xFFFFFFFF)
            return words
        if not self._matcher.is_error():
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        if self._matcher.is_error():  # it may have met a limit just now
            words.fill(0)
            return words
        if self._phase == "lead":
            for token in (self._grammars.open_id, self._grammars.close_id):
                if token is not None:
                    words[token // 32] |= np.uint32(1 << (token % 32))
        return words

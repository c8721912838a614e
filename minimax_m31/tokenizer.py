"""The tokenizer: the `tokenizers` library behind the surface that Hugging Face users know.

The library reads `tokenizer.json`; there is no BPE here. `encode` encodes a text as it is, nothing
added. `encode_chat` encodes a rendered prompt in which some stretches are untrusted: added tokens
are recognised only outside them, and the pieces between go through a copy of the tokenizer without
any added token (the library's own switch would still match the added tokens that are not flagged
special).

Large texts are cut where the split pattern has a border whatever follows, so the library's threads
share them.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, overload

import tokenizers

from .chat.inject import cut_at_tokens
from .chat.marks import DOCUMENT_START, RELEASED_VOCAB_SIZE, REQUIRED_TOKENS
from .errors import ConfigError, InvalidRequestError
from .params_check import as_int, check_unicode

# The split pattern of the model family. Texts are cut only when the file has it or its variant.
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
SPLIT_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    + _CONTRACTION
    + "|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    + _CONTRACTION
    + "|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SINGLE_DIGITS = SPLIT_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")  # the variant of small checkpoints

_PIECE = 1 << 14  # characters of a text handed to the library at once
# A letter then a blank then a letter, or a newline then a letter: no alternative of the pattern
# spans the place between, and what stands behind it cannot change the match before it.
_BORDER = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\n)(?=[A-Za-z])")
_BATCH = 256  # texts per call of the library
_TENSOR_ARGS = frozenset(
    ("padding", "truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs")
    + ("return_assistant_tokens_mask",)
)


class Tokenizer:
    """Immutable, picklable, hashable by content, safe to share between threads."""

    def __init__(
        self,
        tokenizer_json: str,
        config: dict[str, Any] | None = None,
        chat_template: str | None = None,
        name_or_path: str = "",
        vocab_size: int | None = None,
    ) -> None:
        self._json = tokenizer_json
        self._config = dict(config or {})
        self.chat_template = chat_template
        self.name_or_path = name_or_path
        try:
            document = json.loads(tokenizer_json)
            self._whole = tokenizers.Tokenizer.from_str(tokenizer_json)
            document["added_tokens"] = []
            document["post_processor"] = None
            self._plain = tokenizers.Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library raises plain Exception
            raise ConfigError(
                f"{name_or_path or 'tokenizer.json'}: not a tokenizer file: {error}"
            ) from error
        self._added = {
            token.content: i for i, token in self._whole.get_added_tokens_decoder().items()
        }
        self._special = {
            i for i, token in self._whole.get_added_tokens_decoder().items() if token.special
        }
        self._vocab_size = self._check(vocab_size)
        self._pattern = re.compile(
            "|".join(map(re.escape, sorted(self._added, key=len, reverse=True))) or "(?!)"
        )
        self._can_cut = _splits_as_expected(document) and not any(
            "\n" in token for token in self._added
        )
        # Added tokens that hold a border of the pattern, and where: a text is never cut inside one
        # of them.
        self._crossed = [
            (token, m.start()) for token in self._added for m in _BORDER.finditer(token)
        ]
        self._bytes: list[bytes] | None = None
        self._json_digest: str | None = None

    @classmethod
    def from_folder(cls, path: str | pathlib.Path, vocab_size: int | None = None) -> Tokenizer:
        """Read a checkpoint folder: tokenizer.json, tokenizer_config.json, chat_template.jinja.

        `vocab_size`: embedding rows of the model; default what config.json says, else what the
        tokenizer needs.
        """
        folder = pathlib.Path(path)
        text = _read(folder / "tokenizer.json")
        if text is None:
            raise ConfigError(
                f"{folder}: no tokenizer.json (skip_tokenizer_init=True runs token prompts only)"
            )
        config = _read_json(folder / "tokenizer_config.json")
        template = _read(folder / "chat_template.jinja")
        if template is None:
            template = _template_of(config, folder)
        if vocab_size is None:
            model = _read_json(folder / "config.json")
            inner = model.get("text_config")
            vocab_size = (inner if isinstance(inner, dict) else model).get("vocab_size")
        return cls(text, config, template, str(folder), vocab_size)

    def _check(self, vocab_size: int | None) -> int:
        """The load-time assertions: every string the format needs is one added token, ids fit the
        model.
        """
        if vocab_size is not None and (not isinstance(vocab_size, int) or vocab_size <= 0):
            raise ConfigError(
                f"{self.name_or_path}: vocab_size={vocab_size!r} is not a positive integer"
            )
        for token, released_id in REQUIRED_TOKENS.items():
            if token not in self._added:
                raise ConfigError(
                    f"{self.name_or_path}: the tokenizer has no added token {token!r}"
                )
            if vocab_size == RELEASED_VOCAB_SIZE and self._added[token] != released_id:
                raise ConfigError(
                    f"{self.name_or_path}: token {token!r} has id {self._added[token]}, expected "
                    f"{released_id}"
                )
        for i, added in self._whole.get_added_tokens_decoder().items():
            for flag in ("lstrip", "rstrip", "single_word"):
                if getattr(added, flag):
                    raise ConfigError(
                        f"{self.name_or_path}: added token {added.content!r} (id {i}) has "
                        f"{flag}=true, which is not supported"
                    )
        needed = max(self._whole.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if vocab_size is not None and needed > vocab_size:
            raise ConfigError(
                f"{self.name_or_path}: the tokenizer has ids up to {needed - 1}, the model only "
                f"{vocab_size} rows"
            )
        return needed if vocab_size is None else vocab_size

    # -- identity ------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {
            "tokenizer_json": self._json,
            "config": self._config,
            "chat_template": self.chat_template,
            "name_or_path": self.name_or_path,
            "vocab_size": self._vocab_size,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _digest(self) -> bytes:
        if self._json_digest is None:
            self._json_digest = hashlib.sha256(
                self._json.encode("utf-8", "surrogatepass")
            ).hexdigest()
        rest = [self._json_digest, self._config, self.chat_template, self._vocab_size]
        text = json.dumps(rest, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()

    def __hash__(self) -> int:
        return int.from_bytes(self._digest()[:8], "little", signed=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self._digest() == other._digest()

    def __repr__(self) -> str:
        template = "with" if self.chat_template else "without"
        what = f"vocab_size={self.vocab_size}, {template} chat template"
        return f"Tokenizer({self.name_or_path!r}, {what})"

    # -- vocabulary ----------------------------------------------------------------------------

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding: ids are below this; some may have no token."""
        return self._vocab_size

    def __len__(self) -> int:
        return self._whole.get_vocab_size(with_added_tokens=True)

    def get_vocab(self) -> dict[str, int]:
        return self._whole.get_vocab(with_added_tokens=True)

    @property
    def added_tokens(self) -> dict[str, int]:
        """Added tokens, special or not: string -> id."""
        return dict(self._added)

    def special_ids(self) -> list[int]:
        """Ids that skip_special_tokens leaves out, ascending."""
        return sorted(self._special)

    all_special_ids = property(special_ids)

    def token_id(self, token: str) -> int:
        """Id of an added token by its string."""
        if token not in self._added:
            raise ConfigError(f"{self.name_or_path}: the tokenizer has no added token {token!r}")
        return self._added[token]

    @property
    def document_start_id(self) -> int:
        """The first token of every prompt, and the prefix token of loglikelihood and perplexity."""
        return self.token_id(DOCUMENT_START)

    def _configured(self, name: str) -> str | None:
        value = self._config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else None

    def _configured_id(self, name: str) -> int | None:
        token = self._configured(name)
        return None if token is None else self._whole.token_to_id(token)

    @property
    def bos_token(self) -> str | None:
        return self._configured("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self._configured("eos_token")

    @property
    def pad_token(self) -> str | None:
        return self._configured("pad_token") or ("]!p~[" if "]!p~[" in self._added else None)

    @property
    def bos_token_id(self) -> int | None:
        """What tokenizer_config.json says; nothing is ever added on its account."""
        return self._configured_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._configured_id("eos_token")

    @property
    def pad_token_id(self) -> int | None:
        return None if self.pad_token is None else self._whole.token_to_id(self.pad_token)

    @overload
    def convert_ids_to_tokens(self, ids: int) -> str | None: ...
    @overload
    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str | None]: ...
    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> str | None | list[str | None]:
        if isinstance(ids, Iterable):
            return [self._token_of(i) for i in ids]
        return self._token_of(ids)

    def _token_of(self, i: Any) -> str | None:
        """None for ids that stand for nothing, below `vocab_size` or not."""
        number = as_int("ids", i)
        return self._whole.id_to_token(number) if 0 <= number < self._vocab_size else None

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int | None: ...  # type: ignore[overload-overlap]
    @overload
    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int | None]: ...
    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> int | None | list[int | None]:
        if isinstance(tokens, str):
            return self._whole.token_to_id(tokens)
        return [self._whole.token_to_id(token) for token in tokens]

    def token_bytes(self) -> list[bytes]:
        """Raw bytes of every id below `vocab_size`; an added token gives its literal text, an
        unused id b"".
        """
        if self._bytes is None:
            alphabet = _byte_alphabet()
            table = [b""] * self._vocab_size
            for token, i in self._whole.get_vocab(with_added_tokens=False).items():
                try:
                    table[i] = bytes(alphabet[c] for c in token)
                except KeyError as error:
                    raise ConfigError(
                        f"{self.name_or_path}: token {i} ({token!r}) is not written in the byte "
                        "alphabet"
                    ) from error
            for token, i in self._added.items():
                table[i] = token.encode("utf-8")
            self._bytes = table
        return self._bytes

    # -- text to ids ---------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Ids of a text as it is. Nothing is added whatever `add_special_tokens` says: prompts
        carry their marks.
        """
        return self._encode(self._whole, _text(text))

    def encode_chat(self, prompt: str, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Ids of a rendered prompt: added tokens only where they lie wholly outside the untrusted
        `spans`.
        """
        parts = cut_at_tokens(_text(prompt), spans, self._pattern)
        encoded = self._encode_many(self._plain, [text for text, _ in parts], None)
        ids: list[int] = []
        for (_, token), text_ids in zip(parts, encoded, strict=True):
            ids.extend(text_ids)
            if token is not None:
                ids.append(self._added[token])
        return ids

    def encode_untrusted(self, text: str) -> list[int]:
        """Ids of a text in which nothing is a special token."""
        return self._encode(self._plain, _text(text))

    def _encode(self, library: tokenizers.Tokenizer, text: str) -> list[int]:
        return self._encode_many(library, [text], None)[0]

    def batch_encode(
        self, texts: Sequence[str], num_threads: int | None = None, untrusted: bool = False
    ) -> list[list[int]]:
        """Ids of many texts, in order. The library's threads do the work, without the interpreter
        lock.

        `num_threads`: how many of them at most; None is all that the library has. `untrusted`:
        nothing in the texts is a special token.
        """
        if num_threads is not None and num_threads < 1:
            raise InvalidRequestError(
                "num_threads must be at least 1", param="num_threads", value=num_threads
            )
        return self._encode_many(self._plain if untrusted else self._whole, texts, num_threads)

    def _encode_many(
        self, library: tokenizers.Tokenizer, texts: Sequence[str], num_threads: int | None
    ) -> list[list[int]]:
        pieces: list[str] = []
        counts: list[int] = []
        for text in texts:
            cut = self._pieces(_text(text))
            pieces.extend(cut)
            counts.append(len(cut))
        if num_threads is not None and num_threads >= (os.cpu_count() or 1):
            num_threads = None
        groups = _groups(pieces, _BATCH if num_threads is None else 1)

        def encode(group: list[str]) -> list[list[int]]:
            # The batch call without offsets: it alone gives up the interpreter lock, and it is
            # twice as fast.
            return [
                found.ids for found in library.encode_batch_fast(group, add_special_tokens=False)
            ]

        if num_threads is None or num_threads == 1 or len(groups) == 1:
            encoded = [ids for group in groups for ids in encode(group)]
        else:
            with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
                encoded = [ids for chunk in pool.map(encode, groups) for ids in chunk]
        out: list[list[int]] = []
        at = 0
        for count in counts:
            parts = encoded[at : at + count]
            out.append(parts[0] if count == 1 else [i for part in parts for i in part])
            at += count
        return out

    def _pieces(self, text: str) -> list[str]:
        """Cut a large text at borders of the split pattern; where there is none it stays whole."""
        if not self._can_cut or len(text) <= 2 * _PIECE:
            return [text]
        out: list[str] = []
        begin = 0
        while len(text) - begin > 2 * _PIECE:
            found = _BORDER.search(text, begin + _PIECE)
            while found and any(
                text.startswith(token, found.start() - at) for token, at in self._crossed
            ):
                found = _BORDER.search(text, found.start() + 1)
            if found is None:
                break
            out.append(text[begin : found.start()])
            begin = found.start()
        out.append(text[begin:])
        return out

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = False
    ) -> dict[str, Any]:
        if isinstance(text, str):
            ids: Any = self.encode(text)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        batch = self.batch_encode(list(text))
        return {"input_ids": batch, "attention_mask": [[1] * len(row) for row in batch]}

    # -- ids to text ---------------------------------------------------------------------------

    def decode(self, ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of ids; bytes that are no UTF-8 become U+FFFD. Added tokens that are not special are
        always kept.
        """
        table = self.token_bytes()
        skip = self._special if skip_special_tokens else ()
        parts = []
        for i in ids if isinstance(ids, Iterable) else (ids,):
            i = as_int("ids", i)
            if not 0 <= i < len(table):
                raise InvalidRequestError(
                    f"token id {i} is not below vocab_size={len(table)}", param="ids", value=i
                )
            if i not in skip:
                parts.append(table[i])
        return b"".join(parts).decode("utf-8", "replace")

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], skip_special_tokens: bool = False
    ) -> list[str]:
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    # -- chat ----------------------------------------------------------------------------------

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        thinking: Any = None,
        reasoning_effort: Any = None,
        allow_special_tokens_in_text: bool = False,
        reasoning_history: str = "auto",
        tool_choice: Any = "auto",
        **template_kwargs: Any,
    ) -> Any:
        """Render (and encode) one conversation or a list of them, as Hugging Face's method of this
        name does.

        Keywords not named above are variables of the template; those by which that method makes
        tensors are refused.
        """
        refused = sorted(set(template_kwargs) & _TENSOR_ARGS)
        if refused:
            raise TypeError(
                f"apply_chat_template returns text or lists of ids: no {', '.join(refused)}"
            )
        from .chat.render import render

        many = (
            bool(conversation)
            and isinstance(conversation, (list, tuple))
            and all(isinstance(item, (list, tuple)) for item in conversation)
        )
        out: list[Any] = []
        for messages in conversation if many else [conversation]:
            rendered = render(
                messages,
                self.require_chat_template(chat_template),
                tools,
                thinking,
                reasoning_effort,
                add_generation_prompt,
                continue_final_message,
                reasoning_history,
                tool_choice,
                template_kwargs,
            )
            if not tokenize:
                out.append(rendered.prompt)
            elif allow_special_tokens_in_text:
                out.append(self.encode(rendered.prompt))
            else:
                out.append(self.encode_chat(rendered.prompt, rendered.spans))
        return out if many else out[0]

    def require_chat_template(self, override: str | None = None) -> str:
        template = self.chat_template if override is None else override
        if template is None:
            raise ConfigError(
                f"{self.name_or_path or 'this tokenizer'}: no chat_template.jinja and no "
                "chat_template in "
                "tokenizer_config.json: give chat_template= (the format of another model is never "
                "guessed)"
            )
        return template


def _text(text: Any) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(
            f"expected a string, not {type(text).__name__}", param="text", value=text
        )
    check_unicode("text", text)
    return text


def _groups(pieces: list[str], most: int) -> list[list[str]]:
    """Batches of neighbours: at most `most` texts and about 64 pieces' worth of characters each."""
    out: list[list[str]] = []
    size = 0
    for piece in pieces:
        if not out or len(out[-1]) >= most or size + len(piece) > 64 * _PIECE:
            out.append([])
            size = 0
        out[-1].append(piece)
        size += len(piece)
    return out


def _splits_as_expected(document: dict[str, Any]) -> bool:
    """No normaliser, one regex split by the known pattern, then byte-level without a regex of its
    own.
    """
    stage = document.get("pre_tokenizer") or {}
    stages = stage.get("pretokenizers", []) if stage.get("type") == "Sequence" else [stage]
    return (
        document.get("normalizer") is None
        and len(stages) == 2
        and stages[0].get("type") == "Split"
        and stages[0].get("pattern") in ({"Regex": SPLIT_PATTERN}, {"Regex": SINGLE_DIGITS})
        and stages[0].get("behavior") == "Isolated"
        and not stages[0].get("invert")
        and stages[1].get("type") == "ByteLevel"
        and not stages[1].get("use_regex", True)
        and not stages[1].get("add_prefix_space", True)
    )


def _byte_alphabet() -> dict[str, int]:
    """Character of a vocabulary key -> byte. Printable bytes stand for themselves, the others from
    U+0100 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(rest)}


def _read(path: pathlib.Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    text = _read(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected a JSON object, not {type(value).__name__}")
    return value


def _template_of(config: dict[str, Any], folder: pathlib.Path) -> str | None:
    """The `chat_template` of tokenizer_config.json: text, or a list of named ones of which
    "default" counts.
    """
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {
            item.get("name"): item.get("template") for item in template if isinstance(item, dict)
        }
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise ConfigError(
            f"{folder / 'tokenizer_config.json'}: chat_template is neither text nor a list with "
            "'default'"
        )
    return template

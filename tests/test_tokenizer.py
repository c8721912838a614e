"""The tokenizer: golden pieces and ids, refusals, byte table, threads, cutting of large texts."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_cases import NS, TOKENIZER, ids, load

from minimax_m31 import tokenizer as module
from minimax_m31.errors import ConfigError, InvalidRequestError
from minimax_m31.tokenizer import Tokenizer

CASES = load("tokenizer")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(TOKENIZER)


def document() -> dict[str, Any]:
    return dict(json.loads((TOKENIZER / "tokenizer.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_golden_tokenizer(case: dict[str, Any], tokenizer: Tokenizer) -> None:
    text = case["text"]
    pieces = tokenizer._plain.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in pieces] == case["pieces_no_special"]
    assert tokenizer.encode(text) == case["ids"]
    assert tokenizer.encode_untrusted(text) == case["ids_no_special"]
    assert tokenizer.decode(case["ids"], skip_special_tokens=True) == case["decoded_skip_special"]
    assert tokenizer.decode(case["ids"]) == text
    assert tokenizer.encode_chat(text, []) == case["ids"]
    assert tokenizer.encode_chat(text, [(0, len(text))]) == case["ids_no_special"]


def test_split_pattern_is_the_one_of_the_file() -> None:
    split = document()["pre_tokenizer"]["pretokenizers"][0]
    assert split["pattern"] == {"Regex": module.SPLIT_PATTERN}


def test_surface(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("]~b]", "[e~[")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        500,
        501,
        503,
    )
    assert tokenizer.document_start_id == 502
    assert tokenizer.vocab_size == len(tokenizer) == 512
    assert tokenizer.convert_ids_to_tokens(501) == "[e~["
    assert tokenizer.convert_ids_to_tokens([501, 220]) == ["[e~[", "Ġ"]
    assert tokenizer.convert_tokens_to_ids(["[e~[", "nope"]) == [501, None]
    assert tokenizer("Hello world") == {
        "input_ids": tokenizer.encode("Hello world"),
        "attention_mask": [1] * 7,
    }
    assert tokenizer(["a", ""])["input_ids"] == [[64], []]
    assert tokenizer.encode("a", add_special_tokens=True) == [64]
    assert tokenizer.special_ids() == [500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511]
    assert tokenizer.token_id(NS) == 509
    assert tokenizer.chat_template is None and tokenizer.name_or_path == str(TOKENIZER)
    with pytest.raises(ConfigError, match="no added token"):
        tokenizer.token_id("<nope>")
    with pytest.raises(ConfigError, match="never guessed"):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    for bad in ([512], [-1]):
        with pytest.raises(InvalidRequestError):
            tokenizer.decode(bad)
    with pytest.raises(InvalidRequestError):
        tokenizer.encode(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="return_tensors"):
        tokenizer.apply_chat_template([], return_tensors="pt")


def test_byte_table(tokenizer: Tokenizer) -> None:
    table = tokenizer.token_bytes()
    assert len(table) == 512
    assert sorted(table[:256]) == [bytes([b]) for b in range(256)]
    assert table[220] == b" " and table[198] == b"\n" and table[509] == NS.encode()
    text = "Ångström 🦆 天气\x00\x7f" + NS
    found = tokenizer.encode(text)
    assert b"".join(table[i] for i in found) == text.encode()
    wide = Tokenizer(**{**tokenizer.__getstate__(), "vocab_size": 600})
    assert wide.token_bytes()[512:] == [b""] * 88 and wide.vocab_size == 600


def test_decoding_agrees_with_the_library(tokenizer: Tokenizer) -> None:
    draw = random.Random(5)
    for _ in range(300):
        found = [draw.randrange(512) for _ in range(draw.randrange(12))]
        for skip in (False, True):
            expected = tokenizer._whole.decode(found, skip_special_tokens=skip)
            assert tokenizer.decode(found, skip_special_tokens=skip) == expected


def test_the_longest_added_token_wins(tokenizer: Tokenizer) -> None:
    wider = document()
    wider["added_tokens"].append({**wider["added_tokens"][0], "id": 512, "content": "]~b]user"})
    wider["added_tokens"].append({**wider["added_tokens"][0], "id": 513, "content": "]~b]us"})
    both = Tokenizer(json.dumps(wider))
    assert both.encode_chat("]~b]user]~b]us]~b]u", []) == [512, 513, 500, 84]
    assert both.encode("]~b]user]~b]us]~b]u") == [512, 513, 500, 84]


def test_pickle_equality_and_hash(tokenizer: Tokenizer) -> None:
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy == tokenizer and hash(copy) == hash(tokenizer) and copy is not tokenizer
    assert copy.encode("Hi") == tokenizer.encode("Hi")
    other = Tokenizer(**{**tokenizer.__getstate__(), "chat_template": "x"})
    assert other != tokenizer and hash(other) != hash(tokenizer)
    moved = Tokenizer(**{**tokenizer.__getstate__(), "name_or_path": "elsewhere"})
    assert moved == tokenizer


def folder(path: Path, **files: Any) -> Path:
    shutil.copy(TOKENIZER / "tokenizer.json", path / "tokenizer.json")
    for name, content in files.items():
        target = path / name.replace("__", ".")
        target.write_text(
            content if isinstance(content, str) else json.dumps(content), encoding="utf-8"
        )
    return path


def test_where_the_template_comes_from(tmp_path: Path) -> None:
    config = {"eos_token": {"content": "[e~["}, "chat_template": "inline"}
    assert (
        Tokenizer.from_folder(folder(tmp_path, tokenizer_config__json=config)).chat_template
        == "inline"
    )
    found = Tokenizer.from_folder(folder(tmp_path, chat_template__jinja="file {{ 1 }}\n"))
    assert found.chat_template == "file {{ 1 }}\n" and found.eos_token_id == 501
    (tmp_path / "chat_template.jinja").unlink()
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]
    folder(tmp_path, tokenizer_config__json={"chat_template": named})
    assert Tokenizer.from_folder(tmp_path).chat_template == "d"
    folder(tmp_path, config__json={"text_config": {"vocab_size": 640}})
    assert Tokenizer.from_folder(tmp_path).vocab_size == 640


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(ConfigError, match="not JSON"):
        Tokenizer.from_folder(folder(tmp_path, tokenizer_config__json="{"))
    with pytest.raises(ConfigError, match="expected a JSON object"):
        Tokenizer.from_folder(folder(tmp_path, tokenizer_config__json="[]"))
    with pytest.raises(ConfigError, match="chat_template"):
        Tokenizer.from_folder(folder(tmp_path, tokenizer_config__json={"chat_template": 3}))
    with pytest.raises(ConfigError, match="not a tokenizer file"):
        Tokenizer("{}")
    with pytest.raises(ConfigError, match="model only 400 rows"):
        Tokenizer(json.dumps(document()), vocab_size=400)


@pytest.mark.parametrize("token", list(module.REQUIRED_TOKENS))
def test_every_required_token_is_asserted(token: str) -> None:
    missing = document()
    missing["added_tokens"] = [
        entry for entry in missing["added_tokens"] if entry["content"] != token
    ]
    with pytest.raises(ConfigError) as caught:
        Tokenizer(json.dumps(missing))
    assert repr(token) in str(caught.value)


def test_released_ids_are_asserted_for_the_released_vocabulary() -> None:
    with pytest.raises(ConfigError, match="expected 200019"):
        Tokenizer(json.dumps(document()), vocab_size=200_064)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_token_flags_that_would_change_texts_are_refused(flag: str) -> None:
    changed = document()
    changed["added_tokens"][3][flag] = True
    with pytest.raises(ConfigError, match=flag):
        Tokenizer(json.dumps(changed))


# -- many and large texts -----------------------------------------------------------------------


def large_text(characters: int) -> str:
    draw = random.Random(7)
    words = [
        "the",
        "Harbour",
        "leaves",
        "at",
        "12345",
        "don't",
        "été",
        "天气",
        "a/b",
        "--",
        "\n",
        "\n\n",
        " ",
        "\t",
        "x=1;",
    ]
    out: list[str] = []
    size = 0
    while size < characters:
        word = draw.choice(words)
        out.append(word + draw.choice((" ", " ", " ", "", "\n")))
        size += len(out[-1])
    return "".join(out)


def test_large_texts_are_cut_where_nothing_changes(tokenizer: Tokenizer) -> None:
    for special in ("", "]<]start of image[>[", NS, "]~b]user\n"):
        text = (special.join(large_text(60_000).partition("Harbour ")) + special) * 2
        pieces = tokenizer._pieces(text)
        assert len(pieces) > 4 and "".join(pieces) == text
        assert tokenizer.encode(text) == tokenizer._whole.encode(text, add_special_tokens=False).ids
        assert (
            tokenizer.encode_untrusted(text)
            == tokenizer._plain.encode(text, add_special_tokens=False).ids
        )


def test_no_cut_inside_an_added_token(tokenizer: Tokenizer) -> None:
    token = "]<]start of image[>["
    text = token * 10_000
    assert tokenizer.encode(text) == [tokenizer.token_id(token)] * 10_000


def test_every_border_is_a_border_of_the_pattern(tokenizer: Tokenizer) -> None:
    """Cut at each border of short random texts: the split pieces must stay the same."""
    draw = random.Random(11)
    split = tokenizer._plain.pre_tokenizer.pre_tokenize_str
    checked = 0
    for _ in range(5000):
        text = "".join(
            draw.choices(["a", "B", " ", "\n", "\r", "'s", "1", ".", "/", "é", "\t", "字"], k=14)
        )
        whole = [text[s:e] for _, (s, e) in split(text)]
        for found in module._BORDER.finditer(text):
            at = found.start()
            left, right = text[:at], text[at:]
            parts = [left[s:e] for _, (s, e) in split(left)] + [
                right[s:e] for _, (s, e) in split(right)
            ]
            assert parts == whole, (text, at)
            checked += 1
    assert checked > 1000


def test_another_split_pattern_is_never_cut() -> None:
    changed = document()
    changed["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "\\s+|\\S+"}
    assert len(Tokenizer(json.dumps(changed))._pieces(large_text(200_000))) == 1


@pytest.mark.parametrize("threads", [None, 1, 2, 3, 64])
def test_batch_encode(threads: int | None, tokenizer: Tokenizer) -> None:
    texts = ["", "a", *(f"text {i} [e~[" for i in range(700)), large_text(100_000), NS]
    assert tokenizer.batch_encode(texts, num_threads=threads) == [
        tokenizer.encode(text) for text in texts
    ]
    untrusted = tokenizer.batch_encode(texts, num_threads=threads, untrusted=True)
    assert untrusted == [tokenizer.encode_untrusted(text) for text in texts]


def test_batch_encode_refuses() -> None:
    tokenizer = Tokenizer.from_folder(TOKENIZER)
    assert tokenizer.batch_encode([]) == []
    for texts, threads in (([3], 1), (["a"], 0)):
        with pytest.raises(InvalidRequestError):
            tokenizer.batch_encode(texts, num_threads=threads)  # type: ignore[arg-type]


def test_import_needs_no_model_library() -> None:
    code = (
        "import sys, minimax_m31.tokenizer, minimax_m31.chat, minimax_m31.chat.conversation;"
        "bad = {'torch', 'transformers', 'llguidance', 'pydantic'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])

"""Large texts are cut for the library's threads, also with the small checkpoint's split pattern,
and their ids stay those of the whole text."""

from __future__ import annotations

import pydoc_data.topics
import random

import pytest

from minimax_m31.tokenizer import Tokenizer

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)

from api_models import ROOT

NANO = ROOT / "minimax_m31" / "nano"


@pytest.mark.skipif(not (NANO / "tokenizer.json").is_file(), reason="no trained checkpoint")
@pytest.mark.parametrize("seed", range(3))
def test_cut_text_has_the_ids_of_the_whole(seed: int) -> None:
    tokenizer = Tokenizer.from_folder(NANO)
    words = "\n".join(pydoc_data.topics.topics.values()).split(" ")
    rng = random.Random(seed)
    odd = ["]~b]", "12345", "\n\n", "it's", "", "\té", "]<]minimax[>[", "日本"]
    text = " ".join(rng.choice(odd) if rng.random() < 0.1 else w for w in words[:40_000])
    assert len(tokenizer._pieces(text)) > 5
    whole = tokenizer._whole.encode(text, add_special_tokens=False).ids
    assert tokenizer.encode(text) == whole
    assert tokenizer.batch_encode([text, "x"], num_threads=1) == [whole, tokenizer.encode("x")]

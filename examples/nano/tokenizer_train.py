"""Trains the nano tokenizer: byte-level BPE, the o200k split with single digits, M3's special strings at the end.

    python tokenizer_train.py            # writes minimax_m31/nano/tokenizer.json and tokenizer_config.json

Single digits (instead of groups of three) make column arithmetic a matter of positions.
"""

from __future__ import annotations

import json
import random

import mix
import tasks_lookup
from lexicon import dictionary
from render import NANO, turns_text
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 1024
SPECIALS = [
    "]~b]",
    "[e~[",
    "]~!b[",
    "]!p~[",
    "]!d~[",
    "]<]image[>[",
    "]<]video[>[",
    "]<]start of image[>[",
    "]<]end of image[>[",
    "]<]minimax[>[",
    "<mm:think>",
    "</mm:think>",
]
UPPER, LOWER, TAIL = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
)
SPLIT = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{TAIL}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{TAIL}|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def corpus(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    out = []
    for _ in range(n):
        for text, _ in turns_text(mix.conversation(rng)):
            for s in SPECIALS:
                text = text.replace(s, "\n")
            out.append(text)
    for _ in range(n // 40):
        out.append("\n".join(tasks_lookup.haystack(rng, 2000)[0]))
    words = dictionary()
    for _ in range(n // 4):
        out.append(" ".join(rng.choice(words) for _ in range(12)))
    out += [
        " ".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(40))
        for _ in range(n // 20)
    ]
    return out


def main() -> None:
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tok.train_from_iterator(corpus(20000, 7), trainer)
    for s in SPECIALS:
        tok.add_tokens(
            [AddedToken(s, normalized=False, special=True)]
            if s != "]<]minimax[>["
            else [AddedToken(s, normalized=False, special=False)]
        )
    # add_tokens(special=True) needs the special-token path to keep the flag
    data = json.loads(tok.to_str())
    for t in data["added_tokens"]:
        t["special"] = t["content"] != "]<]minimax[>["
    if tok.get_vocab_size() != VOCAB:
        raise SystemExit(
            f"vocabulary has {tok.get_vocab_size()} entries, wanted {VOCAB}: the corpus is too small"
        )
    NANO.mkdir(parents=True, exist_ok=True)
    (NANO / "tokenizer.json").write_text(
        json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    config = {
        "add_prefix_space": False,
        "bos_token": "]~b]",
        "eos_token": "[e~[",
        "unk_token": "]!d~[",
        "pad_token": "]!p~[",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 32768,
        "tokenizer_class": "TokenizersBackend",
    }
    (NANO / "tokenizer_config.json").write_text(
        json.dumps(config, indent=1) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()

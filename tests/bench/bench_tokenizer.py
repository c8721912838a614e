"""Speed of text to ids, and that it overlaps with prefill.

    python tests/bench/bench_tokenizer.py [--tokenizer FOLDER] [--prompts 10000] [--out F]

Corpus: the English text of Python's language reference as the standard library carries it
(`pydoc_data.topics`), 0.6 to 0.8 MB depending on the version, repeated to `--megabytes`.
Vocabulary: trained on it, in the released tokenizer's wiring, unless `--tokenizer` names a folder.

Rows: MB per second of processor time with one thread, so that other work on the machine counts
less, and MB per second of the clock with all threads (peer: the `tokenizers` library called plainly
on the whole text, one thread, processor time). Then, with many short prompts in one `generate`, the
seconds from the call until the first request has its first token and until the last prompt is
encoded; the first must be the smaller one, otherwise this script fails.
"""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from benchlib import Row, add_rows

from minimax_m31 import LLM, SamplingParams, Tokenizer
from minimax_m31.tokenizer import SPLIT_PATTERN

PACKAGE = Path(sys.modules["minimax_m31"].__file__ or "").parent
ROUNDS = 3
VOCABULARY = 16384


def corpus(size: int) -> str:
    """English text of `size` bytes."""
    once = "\n".join(pydoc_data.topics.topics.values())
    return (once * (size // len(once) + 1))[:size]


def best_seconds(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = clock()
        work()
        times.append(clock() - begin)
    return min(times)


def trained_tokenizer(folder: Path) -> Path:
    """A tokenizer of `VOCABULARY` entries trained on the corpus, wired as the released one: with
    the tiny vocabulary of nano every word takes several tokens and as many merges."""
    document = json.loads((PACKAGE / "nano" / "tokenizer.json").read_text())
    special = [token["content"] for token in document["added_tokens"]]
    document["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": SPLIT_PATTERN}
    document["model"].update(vocab={}, merges=[])
    document["added_tokens"] = []
    library = tokenizers.Tokenizer.from_str(json.dumps(document))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(pydoc_data.topics.topics.values(), trainer)
    library.save(str(folder / "tokenizer.json"))
    return folder


def encode_rows(folder: Path, megabytes: float) -> list[Row]:
    tokenizer = Tokenizer.from_folder(folder)
    text = corpus(int(megabytes * 1e6))
    size = len(text.encode()) / 1e6
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    params = f"vocabulary={len(tokenizer)} corpus=pydoc_data.topics"
    note = f"{size:.1f} MB in {len(tokenizer.encode(text)) / 1e6:.2f} M tokens"
    cores = os.sched_getaffinity(0)
    many = size / best_seconds(lambda: tokenizer.batch_encode([text]))
    os.sched_setaffinity(0, {min(cores)})
    cpu = time.process_time
    try:
        plain = size / best_seconds(lambda: library.encode(text, add_special_tokens=False), cpu)
        one = size / best_seconds(lambda: tokenizer.batch_encode([text], num_threads=1), cpu)
    finally:
        os.sched_setaffinity(0, cores)
    note += f"; load average {os.getloadavg()[0]:.1f}"
    return [
        Row(
            "tokenizer_encode",
            f"{params} threads={threads}",
            f"{value:.2f}",
            "MB/s",
            peer=f"{plain:.2f}",
            note=note,
        )
        for threads, value in ((1, one), (len(cores), many))
    ]


def overlap_rows(model: str, count: int, chars: int) -> list[Row]:
    text = corpus(count * chars)
    prompts = [text[i * chars : (i + 1) * chars] for i in range(count)]
    encoded: list[float] = []  # when each batch of prompts was encoded
    with LLM(model, max_model_len=2048, max_num_seqs=64) as llm:
        tokenizer = llm.get_tokenizer()
        alone = best_seconds(lambda: tokenizer.batch_encode(prompts))
        encode = tokenizer.batch_encode

        def timed(*args: Any, **kwargs: Any) -> list[list[int]]:
            ids = encode(*args, **kwargs)
            encoded.append(time.monotonic())
            return ids

        tokenizer.batch_encode = timed  # type: ignore[method-assign]
        begin = time.monotonic()
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=1))
        whole = time.monotonic() - begin
    metrics = outputs[0].metrics
    if metrics is None or metrics.first_token_ts is None:
        raise SystemExit("bench_tokenizer: the first request has no time of its first token")
    first, last = metrics.first_token_ts - begin, encoded[-1] - begin
    print(
        f"first token after {first:.3f} s, last prompt encoded after {last:.3f} s of {whole:.1f} s"
    )
    if first >= last:
        raise SystemExit("bench_tokenizer: the first request waited for the last prompt's encoding")
    params = f"model={Path(model).name} prompts={count} chars={chars}"
    note = f"whole call {whole:.2f} s; encoding all prompts alone {alone:.3f} s"
    return [
        Row("tokenizer_first_token", params, f"{first:.4f}", "s", note=note),
        Row("tokenizer_last_encoded", params, f"{last:.4f}", "s", note=note),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokenizer", type=Path, help="folder of another tokenizer")
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--prompts", type=int, default=10_000, help="0: encoding only")
    parser.add_argument("--chars", type=int, default=24, help="of a prompt")
    parser.add_argument("--out", type=Path, help="CSV (default: the machine's, in results/)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = encode_rows(options.tokenizer or trained_tokenizer(Path(folder)), options.megabytes)
    if options.prompts:
        rows += overlap_rows(options.model, options.prompts, options.chars)
    for row in rows:
        print(f"{row.name} {row.params}: {row.value} {row.unit} {row.note}")
    print("added to", add_rows(rows, options.out))


if __name__ == "__main__":
    main()

"""python -m minimax_m31 bench: how fast the engine reads and writes on this machine.

Prefill: one prompt at a time, its tokens / the time to the first token. Decode: a step
is the time per token of the sequence that began last, when the whole batch runs; tokens/s is the
batch / a step. Times are the engine's own. Prompts are random ids; the prefix cache is off.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import random
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llm import LLM


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement; the median of its repeats."""

    what: str  # "prefill", "decode"
    batch: int
    prompt: int  # tokens of each prompt
    output: int
    tokens_per_s: float  # of the whole batch
    ms: float  # prefill: to the first token; decode: a step


def _numbers(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers such as 1,8,64 are needed")
    return found


def add_to(commands: Any) -> None:
    bench = commands.add_parser("bench", help=run_bench.__doc__)
    bench.add_argument("--model", default="nano", help="checkpoint folder (default: nano)")
    bench.add_argument("--backend", default="auto", choices=("auto", "cpu", "ref", "cuda"))
    bench.add_argument("--load-format", default="auto", help="dummy: random weights")
    bench.add_argument("--threads", type=int)
    bench.add_argument("--kv-cache-dtype", default="auto")
    bench.add_argument("--prompts", type=_numbers, default=[128, 1024], help="lengths: 128,1024")
    bench.add_argument("--batches", type=_numbers, default=[1, 8, 64], help="sizes: 1,8,64")
    bench.add_argument("--output-len", type=int, default=64, help="tokens of each sequence")
    bench.add_argument("--repeats", type=int, default=3, help="the median is reported")
    bench.add_argument("-o", "--output", type=Path, help="also write JSON to this file")
    bench.set_defaults(run=run_bench)


def _prompt(llm: LLM, length: int, random_ids: random.Random) -> dict[str, Any]:
    most = min(llm.get_vocab_size(), 1 << 20)
    ids = [random_ids.randrange(most) for _ in range(length)]
    return {"prompt_token_ids": ids}


def _measure(
    llm: LLM, batch: int, prompt: int, output: int, random_ids: random.Random
) -> tuple[float, float]:
    """(seconds to the first token of the last sequence, its seconds per token from there on)."""
    from .params import SamplingParams

    params = SamplingParams(
        temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False, seed=0
    )
    prompts = [_prompt(llm, prompt, random_ids) for _ in range(batch)]
    metrics = [m for out in llm.generate(prompts, params, use_tqdm=False) if (m := out.metrics)]
    began = min(m.arrival_time for m in metrics)
    latest = max(metrics, key=lambda m: m.first_token_ts)
    return latest.first_token_ts - began, latest.tpot


def measure(
    llm: LLM, prompts: list[int], batches: list[int], output: int, repeats: int
) -> list[Row]:
    """All rows: prefill by prompt length, decode by batch size (with the shortest prompt)."""
    random_ids, rows = random.Random(0), []
    limit = llm.model_config.max_model_len
    for length in prompts:
        if length + 1 > limit:
            continue
        _measure(llm, 1, length, 1, random_ids)
        seconds = statistics.median(
            _measure(llm, 1, length, 1, random_ids)[0] for _ in range(repeats)
        )
        rows.append(Row("prefill", 1, length, 1, length / seconds, seconds * 1e3))
    length = min(min(prompts), max(1, limit - output))
    for batch in batches:
        _measure(llm, batch, length, output, random_ids)
        step = statistics.median(
            _measure(llm, batch, length, output, random_ids)[1] for _ in range(repeats)
        )
        rows.append(Row("decode", batch, length, output, batch / step, step * 1e3))
    return rows


def _table(rows: list[Row]) -> str:
    lines = [f"{'':<8} {'batch':>5} {'prompt':>7} {'output':>6} {'tokens/s':>11} {'ms':>9}"]
    for row in rows:
        lines.append(
            f"{row.what:<8} {row.batch:>5} {row.prompt:>7} {row.output:>6} "
            f"{row.tokens_per_s:>11,.1f} {row.ms:>9.3f}"
        )
    lines.append("ms: prefill, to the first token; decode, a step of the batch")
    return "\n".join(lines)


def _machine(llm: LLM) -> dict[str, Any]:
    from .describe import facts
    from .environment import build_info

    return {**dict(facts(llm)), "version": build_info()["version"]}


def run_bench(options: argparse.Namespace) -> int:
    """Tokens per second of prefill and decode of a model on this machine."""
    from .errors import ConfigError
    from .llm import LLM

    if options.output_len < 2 or options.repeats < 1:
        raise ConfigError(
            f"--output-len {options.output_len} --repeats {options.repeats}: at least 2 tokens "
            "and 1 repeat are needed"
        )
    if options.output is not None and not options.output.parent.is_dir():
        raise ConfigError(f"-o {options.output}: the folder {options.output.parent} is missing")
    longest = max(*options.prompts, options.output_len) + options.output_len
    with LLM(
        options.model,
        backend=options.backend,
        load_format=options.load_format,
        threads=options.threads,
        kv_cache_dtype=options.kv_cache_dtype,
        max_num_seqs=max(options.batches),
        max_model_len="auto",
        enable_prefix_caching=False,
    ) as llm:
        if longest > llm.model_config.max_model_len:
            print(f"longer than max_model_len {llm.model_config.max_model_len}: left out")
        rows = measure(llm, options.prompts, options.batches, options.output_len, options.repeats)
        machine = _machine(llm)
    shown = ("model", "backend", "weights", "KV cache")
    print("; ".join(f"{name}: {machine[name]}" for name in shown))
    print(_table(rows))
    if options.output is not None:
        result = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": machine,
            "rows": [dataclasses.asdict(row) for row in rows],
        }
        options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0

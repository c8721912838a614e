"""Decode and prefill speed of the whole engine on a dummy model in the released formats.

    python tests/bench/bench_engine.py [--backend cpu ref] [--batch 1 8 64] [--threads N] [--out F]

Model: hidden 1024, 8 layers, 32 experts of which 4 are used, NVFP4 experts, MXFP8 linears. Decode:
tokens per second between the first and the last token of a batch; prefill: prompt tokens per second
until every prompt has its first token. Best of the rounds. The floor of decode is what reading each
weight that a step needs once would allow at the memory bandwidth measured in the same run; of
prefill, none is given (it is bound by arithmetic).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from benchlib import Row, add_rows

from minimax_m31 import LLM, SamplingParams

LAYERS, HIDDEN, EXPERTS, USED, D_EXPERT, VOCAB = 8, 1024, 32, 4, 512, 16384
HEADS, KV_HEADS, HEAD_DIM, INDEX_DIM = 8, 2, 128, 128

# backend -> (prompt tokens of a prefill, all prompts together; tokens decoded per sequence; rounds)
WORK = {"cpu": (4096, 33, 3), "ref": (64, 3, 1), "cuda": (65536, 129, 5)}


def config() -> dict[str, Any]:
    """A config.json of this size."""
    sparse = {
        "use_sparse_attention": True,
        "sparse_index_dim": INDEX_DIM,
        "sparse_num_index_heads": KV_HEADS,
        "sparse_topk_blocks": 16,
        "sparse_block_size": 128,
        "sparse_score_type": "max",
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_disable_index_value": [1] * LAYERS,
        "sparse_attention_freq": [1] * LAYERS,
    }
    text = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rotary_dim": HEAD_DIM // 2,
        "vocab_size": VOCAB,
        "intermediate_size": D_EXPERT,
        "shared_intermediate_size": D_EXPERT,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": USED,
        "n_shared_experts": 1,
        "moe_layer_freq": [1] * LAYERS,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "max_position_embeddings": 8192,
        "eos_token_id": VOCAB - 1,
        "bos_token_id": VOCAB - 2,
        "sparse_attention_config": sparse,
    }
    return {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "text_config": text,
        "quantization_config": {
            "quant_method": "mxfp8",
            "weight_block_size": [1, 32],
            "moe_quant_algo": "NVFP4",
            "moe_quant_format": "nvfp4-pack-quantized",
        },
    }


def step_bytes(batch: int) -> float:
    """Weight bytes that a decode step of `batch` sequences reads, in expectation over the experts
    they choose.
    """
    mxfp8, nvfp4, bf16 = 1 + 1 / 32, 0.5 + 1 / 16, 2.0
    qkv = HIDDEN * HEAD_DIM * (HEADS + 2 * KV_HEADS) + HIDDEN * INDEX_DIM * 2 * KV_HEADS
    attention = (qkv + HEADS * HEAD_DIM * HIDDEN) * mxfp8
    expert = 3 * HIDDEN * D_EXPERT
    distinct = EXPERTS * (1 - (1 - USED / EXPERTS) ** batch)
    router = HIDDEN * EXPERTS * 4
    layer = attention + distinct * expert * nvfp4 + expert * mxfp8 + router
    return LAYERS * layer + VOCAB * HIDDEN * bf16 + batch * HIDDEN * bf16


def read_bandwidth() -> float:
    """Bytes per second of one thread summing a buffer far larger than the caches: best of five
    passes.
    """
    data = np.ones(64 << 20, dtype=np.uint64)  # 512 MiB
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        data.sum()
        best = min(best, time.perf_counter() - began)
    return data.nbytes / best


def prompts(batch: int, length: int, salt: int) -> list[list[int]]:
    rng = np.random.default_rng(1000 * salt + batch)
    rows: list[list[int]] = rng.integers(0, VOCAB - 16, (batch, length)).tolist()
    return rows


def prompt_length(backend: str, batch: int) -> int:
    return max(1, min(512, WORK[backend][0] // batch))


def measure(llm: LLM, backend: str, batch: int) -> tuple[float, float]:
    """(decode, prefill) in tokens per second, best of the rounds."""
    _, tokens, rounds = WORK[backend]
    length = prompt_length(backend, batch)
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    decode = prefill = 0.0
    for salt in range(rounds):
        outputs = llm.generate(prompts(batch, length, salt), params, use_tqdm=False)
        times = [output.metrics for output in outputs]
        begin = min(m.scheduled_ts for m in times)
        first = max(m.first_token_ts for m in times)
        prefill = max(prefill, batch * length / (first - begin))
        if first >= min(m.last_token_ts for m in times):
            raise RuntimeError(f"batch {batch} ran in several waves: nothing to measure")
        last = max(m.last_token_ts for m in times)
        decode = max(decode, batch * (tokens - 1) / (last - first))
    return decode, prefill


def row(name: str, params: str, value: float, unit: str, floor: float | None, note: str) -> Row:
    ceiling = "" if floor is None else f"{floor:.4g}"
    return Row(name, params, f"{value:.4g}", unit, floor=ceiling, note=note)


def run(backend: str, batches: list[int], threads: int | None) -> list[Row]:
    rows: list[Row] = []
    bandwidth, load = read_bandwidth(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config()))
        began = time.perf_counter()
        llm = LLM(
            folder,
            backend=backend,
            load_format="dummy",
            max_model_len=1024,
            max_num_seqs=max(batches),
            max_num_batched_tokens=4096,
            enable_prefix_caching=False,
            threads=threads,
            seed=1,
        )
        opened = time.perf_counter() - began
        with llm:
            info = llm._info
            model = f"hidden={HIDDEN} layers={LAYERS} experts={EXPERTS} top={USED} nvfp4"
            common = (
                f"{model} backend={backend} tier={info['tier'] or '-'} threads={info['n_thread']}"
            )
            rows.append(
                row(
                    "engine_open", common, opened, "s", None, "dummy weights are computed, not read"
                )
            )
            for batch in batches:
                decode, prefill = measure(llm, backend, batch)
                floor = batch * bandwidth / step_bytes(batch)
                length = prompt_length(backend, batch)
                where = f"{common} batch={batch}"
                busy = f"system load {load:.1f} at the start"
                note = f"floor: weights of a step at {bandwidth / 1e9:.1f} GB/s; {busy}"
                rows.append(row("engine_decode", where, decode, "tok/s", floor, note))
                rows.append(
                    row("engine_prefill", f"{where} prompt={length}", prefill, "tok/s", None, busy)
                )
                print(
                    f"{backend} batch {batch}: decode {decode:.1f} tok/s, prefill {prefill:.1f} "
                    "tok/s",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", nargs="+", default=["cpu", "ref"], choices=sorted(WORK))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="default: this machine's file in results")
    options = parser.parse_args()
    path = None
    for backend in options.backend:
        path = add_rows(run(backend, options.batch, options.threads), options.out)
    print(f"rows are in {path}")


if __name__ == "__main__":
    main()

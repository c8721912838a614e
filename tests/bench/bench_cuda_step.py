"""Steps of the whole engine on one GPU: one tensor-parallel shard of the real model, dummy weights.

    python tests/bench/bench_cuda_step.py --quick          # below 150 s: decode, prefill, phases
    python tests/bench/bench_cuda_step.py [--shard 0 4] [--batch 1 8 64] [--layers 60] [--out F]

The shard computes what one of `world` devices would, with collectives left out. Contexts are not
prefilled: pages hold noise (`dummy_context`), so a step at a million tokens needs no million-token
prefill. Decode steps are timed on the host between two commits, many steps apart, and on the device
by events around each step (MM_PROFILE=2); the phases come from a second process that times every op
(MM_PROFILE=1). Floors: shard_work.py, at the ceilings that each process measures first; peers: the
fastest public kernels chained on the same GPU, collectives excluded. `memory`: what an engine took
of the device by the driver's count, beside what it had planned.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchlib import Row, add_rows
from device_ceiling import Ceilings, look_at_device, open_driver
from shard_work import Work, step_seconds, step_work

HERE = Path(__file__).resolve().parent
# (batch, context) -> ms of one TP8 step of 60 layers, the best public engine's kernels
PEER = {(1, 8192): 5.03, (8, 8192): 7.25, (64, 8192): 16.7, (1, 1 << 20): 8.0}
PREFILL_PEER = 264.0  # ms of an 8192-token chunk of a TP8 shard, FP8 caches


# ---------------------------------------------------------------- the model


def device_name() -> str:
    """Of the first device, as this package's CUDA backend names it."""
    from minimax_m31 import _core

    text = next((text for name, usable, text in _core.backends() if name == "cuda" and usable), "")
    return text.split(", ")[1] if ", " in text else "no device"


def model_config(layers: int, small: bool) -> dict[str, Any]:
    """The released shape, cut to its first layers; `small`: narrow, to try this script itself."""
    config: dict[str, Any] = json.loads((HERE / "m31_flash.json").read_text())
    text = config["text_config"]
    text["num_hidden_layers"] = layers
    sparse = text["sparse_attention_config"]
    text["moe_layer_freq"] = text["moe_layer_freq"][:layers]
    for name in ("sparse_attention_freq", "sparse_disable_index_value"):
        sparse[name] = sparse[name][:layers]
    if small:
        text |= {
            "hidden_size": 256,
            "num_attention_heads": 16,
            "vocab_size": 1024,
            "intermediate_size": 512,
            "shared_intermediate_size": 512,
            "dense_intermediate_size": 512,
            "num_local_experts": 8,
            "bos_token_id": 1000,
            "eos_token_id": 1001,
        }
    return config


def write_model(folder: Path, options: argparse.Namespace) -> None:
    """All that dummy weights need of a checkpoint."""
    config = model_config(options.layers, options.small)
    (folder / "config.json").write_text(json.dumps(config))


def memory_row(where: str, llm: Any, before: int, after: int) -> Row:
    """before, after: free bytes of the device around the opening of the engine."""
    planned, taken = llm.memory_report().total("device"), before - after
    note = (
        f"planned {planned / 1e9:.3f} GB, taken less planned {(taken - planned) / 1e6:.1f} MB; "
        f"free {before / 1e9:.3f} GB before, {after / 1e9:.3f} GB after"
    )
    params = f"{where} max_model_len={llm._info['max_model_len']}"
    return Row("memory", params, f"{taken / 1e9:.3f}", "GB", note=note)


def open_measured(folder: Path, options: argparse.Namespace) -> tuple[Any, list[Row]]:
    """An engine, how long it took to open, and what it took of the device (not known without a
    driver: on an emulated device)."""
    driver, where = open_driver(), place(options)
    before = driver.memory_free() if driver else 0
    began = time.perf_counter()
    llm = open_llm(folder, options)
    seconds = time.perf_counter() - began
    has_graphs = not options.eager and os.environ.get("MM_PROFILE") != "1"
    note = "dummy weights, " + ("graphs captured" if has_graphs else "no graphs")
    rows = [Row("engine_open", where, f"{seconds:.3g}", "s", note=note)]
    if driver:
        rows.append(memory_row(where, llm, before, driver.memory_free()))
    for row in rows:
        print(f"{row.name} {row.params}: {row.value} {row.unit}, {row.note}", flush=True)
    return llm, rows


def open_llm(folder: Path, options: argparse.Namespace) -> Any:
    from minimax_m31 import LLM, _core
    from minimax_m31.checkpoint import read_config

    rank, world = options.shard
    page = _core.page_bytes(read_config(folder).config, "fp8", "fp8", rank, world)
    longest = max([*options.context, *options.long])
    room = max(max(options.batch) * max(options.context), longest)
    pages = room // 128 + 4 * max(options.batch) + 64
    return LLM(
        str(folder),
        backend="cuda",
        load_format="dummy",
        dummy_context=True,
        seed=1,
        shard=(rank, world) if world > 1 else None,
        kv_cache_dtype="fp8",
        indexer_kv_dtype="fp8",
        max_model_len=min(1 << 20, longest + 1024),
        max_num_seqs=max(options.batch),
        max_num_batched_tokens=max(128 if options.small else 8192, options.chunk),
        kv_cache_memory_bytes=page * pages,
        enable_prefix_caching=False,
        cuda_graph_batch_sizes=sorted(set(options.batch)),
        enforce_eager=options.eager,
        **({"deterministic": "batch_invariant"} if options.invariant else {}),
        skip_tokenizer_init=True,
        threads=len(os.sched_getaffinity(0)),
    )


# ---------------------------------------------------------------- measuring


def prompts(llm: Any, batch: int, length: int) -> list[list[int]]:
    rng = np.random.default_rng(batch)
    n = llm.get_vocab_size() - 64
    rows: list[list[int]] = rng.integers(0, min(n, 200000), (batch, length)).tolist()
    return rows


def submit(llm: Any, batch: int, context: int, steps: int, *, is_watched: bool) -> list[Any]:
    """Handles of `batch` sequences at `context` tokens, which begin together when the engine,
    paused now, resumes. `is_watched`: every token of each is handed to a function when it comes.
    """
    from minimax_m31 import SamplingParams

    length = min(context, llm._info["max_model_len"] - steps - 8)
    params = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, detokenize=False)
    llm.pause_generation("keep")
    on_token = (lambda _: None) if is_watched else None
    rows = prompts(llm, batch, length)
    return [llm.submit([row], params, on_token=on_token) for row in rows]


def host_times(seen: Sequence[dict[str, float]]) -> list[float]:
    """Seconds of the host per step between each two looks at the engine's counters."""
    return [
        (b["t_host_total"] - a["t_host_total"]) / (b["n_step"] - a["n_step"])
        for a, b in pairwise(seen)
        if b["n_step"] > a["n_step"]
    ]


def decode(
    llm: Any, batch: int, context: int, steps: int, *, is_watched: bool = False
) -> dict[str, float]:
    """Times of a decode step. The host's is the median over tenths of a second: what else runs on
    the machine takes its caches at times.
    """
    handles = submit(llm, batch, context, steps, is_watched=is_watched)
    seen = [llm._engine().stats()]
    llm.resume_generation()
    while not all(handle.done() for handle in handles) or len(seen) == 1:
        time.sleep(0.1)
        seen.append(llm._engine().stats())
    outputs = [handle.result() for handle in handles]
    before, after = seen[0], llm._engine().stats()
    host = host_times(seen)
    first = max(o.metrics.first_token_ts for o in outputs)
    last = min(o.metrics.last_token_ts for o in outputs)
    n_step = after["n_step"] - before["n_step"]
    if n_step > steps + 4:
        raise RuntimeError(f"batch {batch} took {n_step} steps for {steps} tokens")
    return {
        "step": (last - first) / (steps - 1),
        "host": float(np.median(host)),
        "host_least": min(host),
        "host_most": max(host),
        "host_mean": host_times([before, after])[0],
    }


def prefill(llm: Any, tokens: int) -> float:
    """Seconds of a step that computes a prompt of `tokens`: its last token alone is scored."""
    best = float("inf")
    for row in prompts(llm, 3, tokens):
        before = llm._engine().stats()
        llm.score_tokens([row], start=tokens - 1, use_tqdm=False)
        after = llm._engine().stats()
        if after["n_step"] == before["n_step"] + 1:
            best = min(best, after["t_step_total"] - before["t_step_total"])
    return best


class Profile(logging.Handler):
    """What MM_PROFILE logs when an engine is closed, as fields."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("profile "):
            fields = dict(re.findall(r"(\w+)=(\S+)", text))
            fields["name"] = re.findall(r"steps=\S+ (\w+)", text)[0]
            self.lines.append(fields)
        else:
            print(text, flush=True)


def profile_lines(llm: Any) -> list[dict[str, str]]:
    """Closes the engine for what it logs then."""
    profile = Profile()
    logger = logging.getLogger("minimax_m31")
    logger.addHandler(profile)
    llm.shutdown()
    logger.removeHandler(profile)
    if os.environ.get("MM_PROFILE", "0") != "0" and not profile.lines:
        raise RuntimeError("MM_PROFILE is set and nothing was logged")
    return profile.lines


def look(options: argparse.Namespace) -> Ceilings:
    return Ceilings(device_name()) if options.no_ceiling else look_at_device()


def work_of(
    options: argparse.Namespace, folder: Path, sequences: int, rows: int, context: int
) -> dict[str, Work]:
    text = json.loads((folder / "config.json").read_text())["text_config"]
    return step_work(text, options.shard[1], sequences, rows, context)


def place(options: argparse.Namespace) -> str:
    """What all steps of this run have in common."""
    text = f"shard={options.shard[0]}/{options.shard[1]} layers={options.layers} fp8"
    return text + (" batch_invariant" if options.invariant else "")


def is_peers(options: argparse.Namespace) -> bool:
    """What the peers' numbers are for: a TP8 shard of all layers."""
    return bool(options.shard == [0, 8] and options.layers == 60 and not options.small)


def main_run(options: argparse.Namespace, folder: Path) -> list[Row]:
    device = look(options)
    llm, opened = open_measured(folder, options)
    rows = [*device.rows(), *opened]
    note = f"{device.device}, tier {llm._info['tier']}, floor at {device.text()}"
    where = place(options)
    work = [(b, c, False) for c in options.context for b in options.batch]
    work += [(1, c, False) for c in options.long]
    work.append((max(options.batch), options.context[0] // 2, True))  # half: its own profile lines
    for batch, context, is_watched in work:
        if context < 1 << 18 and not is_watched:
            decode(llm, batch, context, 8)  # warm
        t = decode(llm, batch, context, options.steps, is_watched=is_watched)
        work_floor = work_of(options, folder, batch, batch, context)
        floor = f"{1e3 * step_seconds(work_floor, device.bandwidth, device.products):.3f}"
        peer = str(PEER.get((batch, context), "")) if is_peers(options) else ""
        params = f"{where} batch={batch} context={context}{' watched' if is_watched else ''}"
        rows.append(Row("decode_step", params, f"{1e3 * t['step']:.4g}", "ms", floor, peer, note))
        least, most, mean = (1e6 * t[f"host_{k}"] for k in ("least", "most", "mean"))
        spread = f"median of tenths of a second, {least:.1f} to {most:.1f}; mean {mean:.1f}"
        rows.append(Row("host_step", params, f"{1e6 * t['host']:.4g}", "us", note=spread))
        print(
            f"decode {params.removeprefix(where)}: {1e3 * t['step']:.3f} ms "
            f"(floor {floor}, peer {peer or '?'}), host {1e6 * t['host']:.1f} us, {spread}",
            flush=True,
        )
    if options.chunk:
        seconds = prefill(llm, options.chunk)
        work_floor = work_of(options, folder, 1, options.chunk, options.chunk)
        is_known = is_peers(options) and options.chunk == 8192
        rows.append(
            Row(
                "prefill_chunk",
                f"{where} tokens={options.chunk}",
                f"{1e3 * seconds:.4g}",
                "ms",
                f"{1e3 * step_seconds(work_floor, device.bandwidth, device.products):.1f}",
                str(PREFILL_PEER) if is_known else "",
                f"{options.chunk / seconds:.0f} tok/s; {note}",
            )
        )
        speed = options.chunk / seconds
        print(f"prefill {options.chunk}: {1e3 * seconds:.1f} ms, {speed:.0f} tok/s", flush=True)
    for line in profile_lines(llm):
        if line["name"].startswith(("gpu_", "host_")) and int(line["steps"]) >= 8:
            params = (
                f"{where} sequences={line['sequences']} rows={line['rows']} "
                f"context<={line['context']}"
            )
            rows.append(Row(line["name"], params, line["us"], "us", note="mean over the steps"))
            print(f"{line['name']} {params}: {line['us']} us", flush=True)
    return rows


def floor_of_phase(options: argparse.Namespace, folder: Path, line: dict[str, str]) -> Work | None:
    """Of an op over a step. The log rounds contexts up to a power of two: it was the longest of the
    contexts that ran and are not above that."""
    sequences, rows, bucket = (int(line[k]) for k in ("sequences", "rows", "context"))
    ran = [*options.context, *options.long] if sequences == rows else [options.chunk]
    context = max((c for c in ran if c <= bucket), default=0)
    if context == 0 or rows % sequences != 0 or rows // sequences > context:
        return None
    return work_of(options, folder, sequences, rows, context).get(line["name"])


def phases_run(options: argparse.Namespace, folder: Path) -> list[Row]:
    device = look(options)
    llm, opened = open_measured(folder, options)
    where = place(options)
    for context in options.context:
        for batch in options.batch:
            decode(llm, batch, context, options.phase_steps)
    for context in options.long:
        decode(llm, 1, context, options.phase_steps)
    if options.chunk:
        prefill(llm, options.chunk)
    rows = [*device.rows(), *opened]
    for line in profile_lines(llm):
        params = (
            f"{where} sequences={line['sequences']} rows={line['rows']} "
            f"context<={line['context']} op={line['name']}"
        )
        note = f"share {line['share']}, {line['calls']} calls, {line['steps']} steps, no graphs"
        work, floor = floor_of_phase(options, folder, line), ""
        if work is not None:
            us = 1e6 * work.seconds(device.bandwidth, device.products)
            floor, note = (
                f"{us:.{1 if us >= 1 else 4}f}",
                f"{100 * us / float(line['us']):.0f} % of its floor; {note}",
            )
        rows.append(Row("phase", params, line["us"], "us", floor, note=note))
        print(f"{params}: {line['us']} us, floor {floor or '?'}, {note}", flush=True)
    return rows


def start(how: str, arguments: Sequence[str], profile: str) -> int:
    """This script again, in a process of its own: the variables are read once per process."""
    env = os.environ | {"MM_PROFILE": profile}
    command = [sys.executable, str(Path(__file__).resolve()), "--run", how, *arguments]
    return subprocess.run(command, env=env, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer steps, below 150 s in all")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--context", nargs="+", type=int, default=[8192])
    parser.add_argument("--long", nargs="*", type=int, default=[1 << 18, 1 << 20])
    parser.add_argument("--chunk", type=int, default=8192, help="0: no prefill")
    parser.add_argument("--steps", type=int, default=0, help="decode steps; 0: 200, or 100 quick")
    parser.add_argument("--phase-steps", type=int, default=0, help="0: 16, or 6 quick")
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--shard", nargs=2, type=int, default=[0, 8], metavar=("RANK", "WORLD"))
    parser.add_argument("--invariant", action="store_true", help="batch-invariant mode: its cost")
    parser.add_argument("--eager", action="store_true", help="no captured graphs")
    parser.add_argument("--small", action="store_true", help="a narrow model: tries the script")
    parser.add_argument("--no-phases", action="store_true")
    parser.add_argument(
        "--no-ceiling", action="store_true", help="floors of an H200 as it is named"
    )
    parser.add_argument("--out", type=Path, help="default: this machine's file in results")
    parser.add_argument("--run", choices=["main", "phases"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is None:
        arguments = sys.argv[1:]
        code = start("main", arguments, "2")
        if not options.no_phases:
            code = start("phases", arguments, "1") or code
        sys.exit(code)
    options.steps = options.steps or (100 if options.quick else 200)
    options.phase_steps = options.phase_steps or (6 if options.quick else 16)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, options)
        rows = (main_run if options.run == "main" else phases_run)(options, folder)
    print(f"rows are in {add_rows(rows, options.out, device_name())}")


if __name__ == "__main__":
    main()

"""The engine on a device: captured steps, memory planned to the byte, diagnostics, faults.

Where no GPU is, `tests/c/mock_device.c` stands in for the CUDA library: its memory cannot be
touched by the host, it is as late as an event allows, its graphs replay what was recorded, and it
computes with ref, so results are equal to ref's bit by bit. The last tests run on a real device.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import GOLDEN

from minimax_m31 import LLM, ConfigError, SamplingParams, _core, opening

ROOT = Path(__file__).resolve().parents[1]
SMALL = GOLDEN / "text_d32"
PROMPTS = [[(7 * i + 3 * n) % 200 for i in range(n)] for n in (5, 130, 260, 17, 40)]


def build(out: Path, files: list[str]) -> Path:
    """A library that stands in for the CUDA one."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler for the mock device")
    flags = ["-std=gnu2x", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden"]
    flags += ["-ffp-contract=off", "-DMM_DEV=1", "-Wall", "-Wextra", "-Werror", "-I."]
    subprocess.run([compiler, *flags, *files, "-o", out, "-lm", "-ldl"], cwd=ROOT, check=True)
    return out


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mock device, built."""
    files = ["tests/c/mock_device.c", "kernels/host_backend.c", "kernels/host_begin.c"]
    for pattern in ("kernels/ref/*.c", "csrc/base/*.c", "csrc/tensor.c"):
        files += [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob(pattern))]
    return build(tmp_path_factory.mktemp("mock") / "mock_device.so", files)


SCRIPT = """
import ctypes, json, os, sys
import numpy as np
from minimax_m31 import LLM, SamplingParams, _core

lib = ctypes.CDLL(os.environ["MM_CUDA_SO"])
lib.mm_mock_count.restype = ctypes.c_int64
def count(what):
    return lib.mm_mock_count(what.encode())

def open_llm(backend="cuda", folder=%(small)r, **kw):
    options = dict(dtype="bfloat16", kv_cache_dtype="bf16", indexer_kv_dtype="bf16",
                   max_model_len=1024, max_num_seqs=6, max_num_batched_tokens=256,
                   skip_tokenizer_init=True)
    if backend == "cuda":
        options["kv_cache_memory_bytes"] = 4 << 20
    return LLM(folder, backend=backend, **options | kw)

def tokens(llm, **kw):
    params = SamplingParams(**dict(temperature=0.8, seed=3, max_tokens=20, ignore_eos=True) | kw)
    return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params, use_tqdm=False)]

def steps(llm):
    # all, and those that were a graph
    stats = llm.stats()
    return stats.num_steps, stats.num_graph_steps

PROMPTS = %(prompts)r
out = {}
"""


def run(mock: Path, code: str, **env: str) -> dict[str, Any]:
    """`code` in a process of its own (the variables are read once); the dict `out` of it."""
    head = SCRIPT % {"small": str(SMALL), "prompts": PROMPTS}
    text = head + textwrap.dedent(code) + "\nprint(json.dumps(out))\n"
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"MM_CUDA_SO": str(mock)} | env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


@functools.cache
def expected() -> list[list[int]]:
    """What ref says to PROMPTS."""
    with LLM(
        str(SMALL),
        backend="ref",
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=6,
        max_num_batched_tokens=256,
        skip_tokenizer_init=True,
    ) as llm:
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=20, ignore_eos=True)
        return [list(o.outputs[0].token_ids) for o in llm.generate(PROMPTS, params, use_tqdm=False)]


# ---------------------------------------------------------------- captured steps


def test_graphs_give_the_tokens_of_ref(mock: Path) -> None:
    got = run(
        mock,
        """
        with open_llm() as llm:
            out["info"] = llm._info["run_ahead"]
            before = {k: count(k) for k in ("launch", "eager", "download", "pad")}
            out["tokens"] = tokens(llm)
            out["steps"], out["graph_steps"] = steps(llm)
            for k in before:
                out[k] = count(k) - before[k]
            out["capture"] = count("capture")
            out["with_logprobs"] = tokens(llm, logprobs=3)
            out["logprob_launches"] = count("launch") - before["launch"] - out["launch"]
        """,
    )
    assert got["tokens"] == got["with_logprobs"] == expected()
    assert got["info"] == 1  # planned one step ahead
    assert got["capture"] == 3 * 4  # sizes 1, 2, 4, 6; without draws, with greedy ones, with any
    assert got["launch"] >= 15 and got["pad"] > 0  # five sequences run in the graph of six
    assert got["graph_steps"] == got["launch"]  # a step is one launch
    assert got["graph_steps"] >= got["steps"] - 2 * len(PROMPTS)  # all but those with prompts
    assert got["download"] == got["steps"]  # one piece of results a step
    assert got["logprob_launches"] >= 15


def test_graphs_can_be_turned_off_and_chosen(mock: Path) -> None:
    code = """
        with open_llm(%s) as llm:
            out["tokens"] = tokens(llm)
            out["steps"], out["graph_steps"] = steps(llm)
        out["capture"], out["launch"] = count("capture"), count("launch")
        """
    for options, env in (("enforce_eager=True", {}), ("", {"MM_GRAPH": "0"})):
        got = run(mock, code % options, **env)
        assert (got["capture"], got["launch"], got["graph_steps"]) == (0, 0, 0), options
        assert got["tokens"] == expected() and got["steps"] >= 20
    got = run(mock, code % "cuda_graph_batch_sizes=[2, 1, 99]")
    assert got["capture"] == 3 * 2  # 99 is above max_num_seqs
    assert got["graph_steps"] == got["launch"] < got["steps"]  # most have five sequences
    assert got["tokens"] == expected()


def test_steps_of_several_rows_are_captured_when_asked_for(mock: Path) -> None:
    """Prompts of 2 to 8 tokens stand in for drafts that are verified."""
    code = """
        from minimax_m31 import opening
        usual = opening.engine_options
        opening.engine_options = lambda *a, **k: usual(*a, **k) | dict(graph_rows=%d)
        params = SamplingParams(temperature=0.8, seed=3, max_tokens=3, ignore_eos=True)
        out["tokens"], out["launch"], out["graph_steps"] = [], [], []
        try:
            llm = open_llm()
        except ValueError as error:
            out["error"] = str(error)
        else:
            out["capture"] = count("capture")
            for n in range(2, 9):
                llm.pause_generation("keep")  # all prompts begin in one step
                ids = [[[7 * i + j for j in range(n)]] for i in range(5)]
                handles = [llm.submit(row, params) for row in ids]
                before, counted = count("launch"), steps(llm)[1]
                llm.resume_generation()
                out["tokens"].append([list(h.result().outputs[0].token_ids) for h in handles])
                out["launch"].append(count("launch") - before)
                out["graph_steps"].append(steps(llm)[1] - counted)
            out["memory"] = {w: n for w, _, n in llm._memory}["captured graphs (estimate)"]
            llm.shutdown()
        """
    plain, some, asked = (run(mock, code % n) for n in (1, 5, 8))
    assert plain["capture"] == 3 * 4 and plain["launch"] == [2] * 7
    assert some["capture"] == (3 + 4) * 4 and some["launch"] == [3] * 4 + [2] * 3
    assert asked["capture"] == (3 + 7) * 4  # rows of 2 to 8 without outputs
    assert asked["launch"] == [3] * 7  # the prompts too
    for got in (plain, some, asked):
        assert got["tokens"] == plain["tokens"] and got["graph_steps"] == got["launch"]
        assert got["memory"] * plain["capture"] == plain["memory"] * got["capture"]
    for n in (0, 9):
        error = run(mock, code % n)["error"]
        assert f"graph_rows is {n}" in error and "1 to 8" in error


def test_steps_that_cannot_be_are_not_captured(mock: Path) -> None:
    """Sequences of fewer positions than rows, and more rows than a step has."""
    got = run(
        mock,
        """
        from minimax_m31 import opening
        usual = opening.engine_options
        opening.engine_options = lambda *a, **k: usual(*a, **k) | dict(graph_rows=8)
        for name, options in (("short", dict(max_model_len=3)),
                              ("many", dict(max_num_seqs=32, max_num_batched_tokens=128))):
            before = count("capture")
            with open_llm(cuda_graph_batch_sizes=[1, 32], **dict(max_num_seqs=32) | options) as llm:
                out[name] = count("capture") - before
                out[name + "_bytes"] = {w: n for w, _, n in llm._memory}[
                    "captured graphs (estimate)"]
        """,
    )
    assert got["short"] == (3 + 2) * 2
    assert got["many"] == (3 + 7) + (3 + 3)  # 32 sequences have 4 rows each at most
    assert got["short_bytes"] * got["many"] == got["many_bytes"] * got["short"]


def test_all_kinds_of_ops_run_when_a_device_opens(mock: Path) -> None:
    """A driver loads kernels at their first launch: no step of a request shall wait for that."""
    code = """
        with open_llm(%s) as llm:
            opened = count("kinds")  # those of prefill are kinds of their own
            out["counters"] = [llm._engine().stats()[k] for k in (
                "n_step", "n_graph_step", "n_block_read", "n_prompt_token", "n_output_token")]
            out["free"] = [llm._engine().stats()[k] for k in ("n_page", "n_page_free")]
            out["tokens"] = tokens(llm)
            tokens(llm, logprobs=%d, repetition_penalty=1.2, top_k=5, allowed_token_ids=[3, 4])
            llm.score_tokens(PROMPTS, use_tqdm=False)
            out["kinds"] = [opened, count("kinds")]
        """
    fewest = "max_num_batched_tokens=128, max_num_seqs=1, max_logprobs=0"
    for options, n_top in (("", 3), ("enforce_eager=True", 3), (fewest, 0)):
        got = run(mock, code % (options, n_top))
        assert got["counters"] == [0] * 5 and got["free"][0] == got["free"][1] > 0
        assert got["kinds"][0] == got["kinds"][1] > 16, options
        assert got["tokens"] == expected()
    got = run(mock, code % ("", 3), MM_SYNC="1")  # shows the op of a request that failed: not here
    assert got["kinds"][0] < got["kinds"][1] and got["tokens"] == expected()


@pytest.mark.parametrize("run_ahead", [0, 1])
def test_captured_steps_find_their_batches_whatever_lies_between(
    mock: Path, run_ahead: int
) -> None:
    """The first step of all is captured: a prompt of one token. Then prompts and steps with
    log-probabilities, which are not, come between captured ones."""
    got = run(
        mock,
        f"""
        from minimax_m31 import opening
        usual = opening.engine_options
        opening.engine_options = lambda *a, **k: usual(*a, **k) | dict(run_ahead={run_ahead})
        def talk(llm, n, at_once=False):
            made = []
            params = SamplingParams(temperature=0.8, seed=3, max_tokens=n, ignore_eos=True)
            if at_once:
                llm.pause_generation("keep")
            for i in range(n):
                params.logprobs = (None, 2)[i % 2]
                params.max_tokens = n - i
                made.append(llm.submit([PROMPTS[3][: 1 + 9 * i]], params))
            if at_once:
                llm.resume_generation()
            return [list(h.result().outputs[0].token_ids) for h in made]
        for backend in ("ref", "cuda"):
            options = dict(cuda_graph_batch_sizes=[6]) if backend == "cuda" else {{}}
            with open_llm(backend, **options) as llm:
                made = out[backend] = []
                for n in (1, 2, 3, 7):
                    made += talk(llm, n)  # each at some step of those before it
                made += talk(llm, 7, at_once=True)
                out["ahead"] = llm._info["run_ahead"]
            out["launch"] = count("launch")
        """,
    )
    # at least one of each n, however late prompts come, and all but the first step of the last 7
    assert got["ahead"] == run_ahead and got["launch"] >= 4 + 6
    assert got["cuda"] == got["ref"]


def test_a_device_has_its_next_step_before_it_ends_one(tmp_path: Path) -> None:
    """On a device that computes nothing in 10 ms a step: what the host does between two of them."""
    clock = build(tmp_path / "clock_device.so", ["tests/c/clock_device.c"])
    got = run(
        clock,
        """
        with open_llm(load_format="dummy", max_num_seqs=4, cuda_graph_batch_sizes=[4]) as llm:
            params = SamplingParams(temperature=0.0, max_tokens=61, ignore_eos=True)
            llm.pause_generation("keep")
            handles = [llm.submit([row], params) for row in PROMPTS[:1] * 4]
            lib.mm_mock_reset()
            llm.resume_generation()
            for handle in handles:
                handle.result()
            for k in ("calls", "launches", "late", "uploads", "downloads", "waits", "strays"):
                out[k] = count(k)
        """,
        MM_CLOCK_US="10000",
    )
    n = got["launches"]
    assert n >= 50 and got["late"] <= n // 4  # a busy machine may wake the host late now and then
    assert got["calls"] <= 2 * n + 8  # graph, event
    assert got["strays"] == 0  # every graph found the batch of its own step
    assert got["uploads"] <= 1 and got["downloads"] <= 1  # of the step with the prompts
    assert abs(got["waits"] - n) <= 2


def test_diagnostics_run_without_graphs(mock: Path) -> None:
    code = """
        import logging
        out["log"] = []
        class Keep(logging.Handler):
            def emit(self, record):
                out["log"].append(record.getMessage())
        logging.getLogger("minimax_m31").addHandler(Keep())
        with open_llm() as llm:
            out["tokens"] = tokens(llm)
        out["launch"] = count("launch")
        out["log"] += [text for _, text in _core.log_drain()]
        """
    got = run(mock, code, MM_PROFILE="1")
    assert got["tokens"] == expected() and got["launch"] == 0
    ops = {line.split(" calls=")[0].split()[-1] for line in got["log"] if "profile " in line}
    assert {"begin", "embed", "attn_in", "attn_sparse", "attn_out", "moe", "head", "sample"} <= ops
    assert not any(name.startswith("host_") for name in ops)  # parts of a whole step: MM_PROFILE=2
    got = run(mock, code, MM_PROFILE="2")
    assert got["tokens"] == expected() and got["launch"] > 0
    assert any("gpu_step" in line for line in got["log"])
    got = run(mock, code, MM_CHECK="1")
    assert got["tokens"] == expected() and got["launch"] == 0
    assert not [line for line in got["log"] if "differs" in line]


def test_trace_and_forced_choices(mock: Path) -> None:
    got = run(
        mock,
        """
        what = ("hidden", "blocks", "experts", "logits")
        made = []
        for backend in ("ref", "cuda"):
            with open_llm(backend) as llm:
                free = llm.trace(PROMPTS[2], what=what)
                blocks = [None if b is None else b.copy() for b in free.blocks]
                blocks[0][:, -1] = [0, 2, -1][: blocks[0].shape[2]]
                experts = [None if e is None else e.copy() for e in free.experts]
                experts[2][5] = range(experts[2].shape[1])
                forced = llm.trace(PROMPTS[2], what=what, force_blocks=blocks,
                                   force_experts=experts)
                made.append((free, forced))
        same = []
        for a, b in zip(*made):
            same += [np.array_equal(x, y) for x, y in zip(a.hidden, b.hidden)]
            same += [np.array_equal(a.logits, b.logits)]
            for x, y in zip([*a.blocks, *a.experts], [*b.blocks, *b.experts]):
                same.append((x is None and y is None) or np.array_equal(x, y))
        out["same"] = [bool(s) for s in same]
        out["moved"] = not np.array_equal(made[1][0].logits, made[1][1].logits)
        """,
    )
    assert all(got["same"]) and got["moved"]


# ---------------------------------------------------------------- memory


def test_what_is_reported_is_what_was_allocated(mock: Path) -> None:
    got = run(
        mock,
        """
        with open_llm() as llm:
            lines = llm._memory
            out["bytes"] = count("bytes")
        out["left"] = count("bytes")
        out["lines"] = {w: n for w, kind, n in lines if kind == "device"}
        """,
    )
    lines = got["lines"]
    # the mock keeps scratch on the host, and its graphs
    planned = sum(lines.values()) - lines["scratch of ops"] - lines["captured graphs (estimate)"]
    assert abs(planned - got["bytes"]) <= 0.01 * planned
    assert got["left"] == 0
    for name in ("weights", "KV pages", "index key pages", "activations", "rope table", "logits"):
        assert lines[name] > 0, name


def test_steps_allocate_nothing(mock: Path) -> None:
    """Device memory, pinned memory, streams, events and graphs are all there when opening ends."""
    got = run(
        mock,
        """
        with open_llm() as llm:
            counts = [count("alloc")]
            for kw in (dict(), dict(logprobs=3, repetition_penalty=1.2), dict(max_tokens=200)):
                tokens(llm, **kw)
                counts.append(count("alloc"))
            llm.score_tokens(PROMPTS, use_tqdm=False)
            counts.append(count("alloc"))
            out["steps"] = llm._engine().stats()["n_step"]
        out["counts"] = counts
        """,
    )
    assert got["steps"] > 240 and got["counts"][0] > 20
    assert len(set(got["counts"])) == 1, got["counts"]


def test_a_plan_that_does_not_fit_is_refused_with_its_table(mock: Path) -> None:
    flash = str(ROOT / "tests" / "bench")
    got = run(
        mock,
        f"""
        import shutil, tempfile, time
        from pathlib import Path
        flash = tempfile.mkdtemp()
        shutil.copy(Path({flash!r}) / "m31_flash.json", Path(flash) / "config.json")
        cases = dict(
            too_large=dict(folder=flash, load_format="dummy", shard=(0, 8), max_num_seqs=64,
                           kv_cache_memory_bytes=None),
            pages=dict(kv_cache_memory_bytes=1 << 40),
            share=dict(gpu_memory_utilization=0.001, kv_cache_memory_bytes=None),
        )
        for name, case in cases.items():
            began = time.monotonic()
            try:
                open_llm(**case).shutdown()
            except MemoryError as error:
                out[name] = [type(error).__name__, str(error), time.monotonic() - began]
        out["bytes"] = count("bytes")
        """,
    )
    for name in ("too_large", "pages", "share"):
        kind, text, seconds = got[name]
        assert kind == "OutOfDeviceMemoryError" and seconds < 20, name
        assert " weights " in text and " activations " in text and "GB" in text, text
    assert 'backend="cpu"' in got["too_large"][1]
    assert "tensor_parallel_size" not in got["too_large"][1]  # refused: it is no remedy
    assert "kv_cache_memory_bytes=" in got["pages"][1]
    assert "gpu_memory_utilization=0." in got["share"][1]
    assert got["bytes"] == 0  # nothing stayed allocated


def test_what_the_message_advises_fits(mock: Path) -> None:
    got = run(
        mock,
        """
        import re
        for name, options in (("pages", dict(kv_cache_memory_bytes=1 << 40)),
                              ("share", dict(gpu_memory_utilization=0.001,
                                             kv_cache_memory_bytes=None))):
            try:
                open_llm(**options).shutdown()
            except MemoryError as error:
                key, value = re.search(r"(\\w+)=([\\d.]+) fits", str(error)).groups()
                options[key] = float(value) if "." in value else int(value)
            with open_llm(**options) as llm:
                out[name] = tokens(llm)
        """,
    )
    assert got["pages"] == got["share"] == expected()


# ---------------------------------------------------------------- dummy weights


def test_dummy_weights_do_not_depend_on_threads_or_device(mock: Path) -> None:
    got = run(
        mock,
        """
        ids = PROMPTS[1]
        logits = []
        for backend, options in (("ref", {}), ("cuda", dict(threads=1)), ("cuda", dict(threads=3))):
            with open_llm(backend, load_format="dummy", seed=5, **options) as llm:
                logits.append(llm.compute_logits(ids))
        out["same"] = [bool(np.array_equal(logits[0], x)) for x in logits[1:]]
        with open_llm(load_format="dummy", seed=6) as llm:
            out["other"] = bool(np.array_equal(logits[0], llm.compute_logits(ids)))
        """,
    )
    assert got["same"] == [True, True] and not got["other"]


def test_a_shard_runs_alone(mock: Path) -> None:
    """Ids of other shards' vocabulary are never chosen."""
    got = run(
        mock,
        """
        for backend in ("ref", "cuda"):
            with open_llm(backend, os.environ["FOLDER"], load_format="dummy", shard=(1, 2),
                          seed=5) as llm:
                out[backend] = tokens(llm, max_tokens=6)
                out["vocab"] = llm.get_vocab_size()
        """,
        FOLDER=str(GOLDEN / "m31_d128_nvfp4"),
    )
    assert got["ref"] == got["cuda"]
    assert min(min(row) for row in got["cuda"]) >= got["vocab"] // 2


def test_dummy_context_is_there_without_a_prefill(mock: Path) -> None:
    got = run(
        mock,
        """
        options = dict(load_format="dummy", dummy_context=True, max_num_batched_tokens=128)
        with open_llm(**options, enable_prefix_caching=False) as llm:
            before = llm._engine().stats()
            out["tokens"] = tokens(llm, temperature=0.0)
            after = llm._engine().stats()
            out["steps"] = after["n_step"] - before["n_step"]
            out["held"] = after["n_block_held"] - before["n_block_held"]
            scores = llm.score_tokens([PROMPTS[2]], start=259, use_tqdm=False)
            out["score_steps"] = llm._engine().stats()["n_step"] - after["n_step"]
        """,
    )
    assert got["steps"] <= 20 + len(PROMPTS)  # the prompts' 452 tokens were not computed
    assert got["held"] > 20 * 3  # blocks of the longest prompt were seen at every step
    assert got["score_steps"] == 3  # scores are of the real prompt: 260 tokens in steps of 128
    with pytest.raises(ConfigError, match="dummy_context"):
        LLM(str(SMALL), backend="ref", dummy_context=True)


# ---------------------------------------------------------------- faults


def test_a_device_error_ends_the_engine_with_its_cause(mock: Path) -> None:
    got = run(
        mock,
        """
        from minimax_m31 import EngineDeadError
        llm = open_llm()
        out["before"] = tokens(llm)
        lib.mm_mock_fail_after(100)
        for name in ("first", "later"):
            try:
                tokens(llm)
            except EngineDeadError as error:
                out[name] = str(error)
        llm.shutdown()
        out["closed"], out["bytes"] = llm.closed, count("bytes")
        """,
    )
    assert got["before"] == expected()
    assert "fell off the bus" in got["first"] and "fell off the bus" in got["later"]
    assert got["closed"] and got["bytes"] == 0


def test_an_error_while_opening_names_its_cause(mock: Path) -> None:
    got = run(
        mock,
        """
        from minimax_m31 import Mm31Error
        lib.mm_mock_fail_after(3)
        try:
            open_llm()
        except Mm31Error as error:
            out["error"] = str(error)
        lib.mm_mock_fail_after(0)
        out["bytes"] = count("bytes")
        with open_llm() as llm:
            out["tokens"] = tokens(llm)
        """,
    )
    assert "fell off the bus" in got["error"] and got["bytes"] == 0
    assert got["tokens"] == expected()


# ---------------------------------------------------------------- a real device

IS_EMULATED = any("emulated" in text for name, _, text in _core.backends() if name == "cuda")
on_device = pytest.mark.skipif(False, reason="") if IS_EMULATED else pytest.mark.gpu
D128 = GOLDEN / "m31_d128"
LONGER = [[(5 * i + n) % 300 for i in range(n)] for n in (3, 127, 128, 129, 400)]


def real(folder: Path = D128, **options: Any) -> LLM:
    given: dict[str, Any] = {
        "backend": "cuda",
        "skip_tokenizer_init": True,
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128 if IS_EMULATED else 512,
        "kv_cache_memory_bytes": 16 << 20,
    }
    return LLM(str(folder), **given | options)


def generated(llm: LLM, n: int = 12, **options: Any) -> list[tuple[int, ...]]:
    params = SamplingParams(max_tokens=n, ignore_eos=True, **options)
    return [tuple(o.outputs[0].token_ids) for o in llm.generate(LONGER, params, use_tqdm=False)]


@on_device
def test_cuda_graphs_and_eager_steps_are_equal() -> None:
    """In batch-invariant mode: otherwise how prompts meet in steps decides which kernels run."""
    with real(deterministic="batch_invariant") as llm:
        captured = generated(llm, temperature=0.7, seed=2)
        assert llm._info["run_ahead"] == 1
        before = llm.stats()
        again = generated(llm, temperature=0.7, seed=2)
        after = llm.stats()
        n_graph = after.num_graph_steps - before.num_graph_steps
        assert n_graph >= 11  # of the 12 of the sequence that began last
        # all others hold prompts or pieces of them
        assert after.num_steps - before.num_steps - n_graph <= 2 * len(LONGER)
    with real(deterministic="batch_invariant", enforce_eager=True) as llm:
        eager = generated(llm, temperature=0.7, seed=2)
        assert llm.stats().num_steps >= 12 and llm.stats().num_graph_steps == 0
    assert captured == again == eager


@on_device
def test_cuda_graphs_of_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps whose sequences have 2, 3, 5 or 8 rows: captured and eager are equal."""
    usual = opening.engine_options
    prompts = [[[(5 * i + j) % 300 for j in range(n)] for i in range(3)] for n in (2, 3, 5, 8)]
    made = []
    for rows in (1, 8):
        monkeypatch.setattr(
            opening, "engine_options", lambda *a, rows=rows: usual(*a) | {"graph_rows": rows}
        )
        got, graph_steps = [], []
        options = {"cuda_graph_batch_sizes": [4], "max_num_batched_tokens": 128}
        with real(**options, deterministic="batch_invariant") as llm:
            memory = {what: n for what, _, n in llm._memory}["captured graphs (estimate)"]
            for group in prompts:
                llm.pause_generation("keep")  # all prompts begin in one step
                params = SamplingParams(temperature=0.7, seed=2, max_tokens=3, ignore_eos=True)
                handles = [llm.submit([row], params) for row in group]
                before = llm.stats().num_graph_steps
                llm.resume_generation()
                got.append([tuple(h.result().outputs[0].token_ids) for h in handles])
                graph_steps.append(llm.stats().num_graph_steps - before)
        made.append((got, memory, graph_steps))
    assert made[0][0] == made[1][0]
    assert 3 * made[1][1] == (3 + 7) * made[0][1]  # one more form for each of 2 to 8 rows
    assert [graph_steps for _, _, graph_steps in made] == [[2] * 4, [3] * 4]


@on_device
def test_cuda_defaults_and_memory() -> None:
    with real() as llm:
        cc = next(text for name, _, text in _core.backends() if name == "cuda")
        old = "sm_80" in cc or "sm_86" in cc or "sm_87" in cc
        assert llm._info["kv_format"] == ("bf16" if old else "fp8")
        assert llm._info["dtype"] == "bf16"
        device = {w: n for w, kind, n in llm._memory if kind == "device"}
        assert device["KV pages"] + device["index key pages"] <= 16 << 20
    with pytest.raises(MemoryError, match="kv_cache_memory_bytes=") as error:
        LLM(str(D128), backend="cuda", skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 50)
    assert "weights" in str(error.value)


@on_device
def test_cuda_refuses_what_it_cannot_take_by_name() -> None:
    with pytest.raises(ConfigError, match="head_dim"):
        LLM(str(SMALL), backend="cuda", skip_tokenizer_init=True)
    with pytest.raises(ConfigError, match="dtype"):
        LLM(str(D128), backend="cuda", dtype="float32", skip_tokenizer_init=True)


@on_device
def test_cuda_shard_with_dummy_weights() -> None:
    with real(GOLDEN / "m31_d128_nvfp4", load_format="dummy", shard=(1, 2), seed=5) as llm:
        half = llm.get_vocab_size() // 2
        for row in generated(llm, temperature=0.0):
            assert min(row) >= half

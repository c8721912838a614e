"""What users of other engines reported, and what happens here instead. The number in a test's name
is the report's; those that other files hold are named there in the same way.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from api_models import SMALL, ids_llm, rss_bytes, text_llm, threads_of_process

import minimax_m31
from minimax_m31 import (
    LLM,
    InvalidRequestError,
    PromptTooLongError,
    RequestOutputKind,
    SamplingParams,
    live_engines,
)
from minimax_m31.core_params import _warn_processed

HOME = str(Path(minimax_m31.__path__[0]).parent)
TESTS = str(Path(__file__).parent)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
PROMPT = [5, 17, 3]
MB = 1 << 20


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with ids_llm() as engine:
        yield engine


@pytest.fixture(scope="module")
def nano() -> Iterator[LLM]:
    with LLM("nano", seed=1, **SMALL) as engine:
        yield engine


def script(code: str, path: Path | None = None) -> subprocess.Popen[str]:
    """A bare script: top level, no guard, an interpreter of its own."""
    text = f"import sys\nsys.path.insert(0, {TESTS!r})\n" + code
    if path is not None:
        path.write_text(text)
    return subprocess.Popen(
        [sys.executable, *(["-c", text] if path is None else [str(path)])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": HOME},
        start_new_session=True,
    )


def children(pid: int) -> list[int]:
    """Of every thread of a process; threads may end meanwhile."""
    out: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            out += map(int, (task / "children").read_text().split())
    return out


# ---------------------------------------------------------------- lifetime


def test_u01_deleting_the_engine_returns_its_memory() -> None:
    threads = threads_of_process()
    sizes = []
    for _ in range(4):
        llm = ids_llm(max_num_seqs=32)
        llm.generate([[i + 1] * 64 for i in range(32)], GREEDY, use_tqdm=False)
        del llm
        gc.collect()
        assert threads_of_process() <= threads
        assert live_engines() == []
        sizes.append(rss_bytes())
    assert sizes[-1] - sizes[1] < 8 * MB


def test_u02_shutdown_returns_memory_whatever_refers_to_the_engine() -> None:
    before, threads = rss_bytes(), threads_of_process()
    llm = ids_llm(max_num_seqs=32)
    outputs = llm.generate([[i + 1] * 500 for i in range(32)], GREEDY, use_tqdm=False)
    handle = llm.submit(PROMPT, LONG)
    stream = llm.generate_stream(PROMPT, LONG)
    next(stream)
    keep = [llm, llm.llm_engine, llm.generate, handle, stream, outputs, llm._repr_html_()]
    held = rss_bytes()
    assert held - before > 8 * MB  # pages that were written
    llm.shutdown()
    llm.shutdown()
    gc.collect()
    assert rss_bytes() - before < 0.25 * (held - before)
    end = time.monotonic() + 5  # the one that follows handles notices within a tenth of a second
    while threads_of_process() > threads and time.monotonic() < end:
        time.sleep(0.01)
    assert threads_of_process() <= threads
    assert len(keep) == 7
    assert "closed" in repr(llm)


def test_u03_engines_one_after_the_other_and_side_by_side() -> None:
    first = None
    for _ in range(5):
        with ids_llm() as llm:
            tokens = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
        first = first or tokens
        assert tokens == first
    with ids_llm() as a, ids_llm("ref") as b, ids_llm() as c:
        for engine in (a, b, c, a):
            assert engine.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == first


BARE = """
from api_models import ids_llm
from minimax_m31 import SamplingParams
import time
llm = ids_llm()
print(llm.generate([5, 17, 3], SamplingParams(temperature=0, max_tokens=4))[0].finished, flush=True)
"""


@pytest.mark.parametrize(
    "ending",
    ["", "llm.shutdown()", "raise SystemExit(0)", "del llm", "h = llm.submit([1]); h.stream()"],
)
def test_a1_u04_u05_u07_a_bare_script_ends_silently(tmp_path: Path, ending: str) -> None:
    """No guard, no child at any time, nothing on stderr, soon gone."""
    process = script(BARE + ending + "\nprint('end', flush=True)\n" * (ending[:5] != "raise"),
                     tmp_path / "bare.py")  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    born = children(process.pid) if process.poll() is None else []
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert (process.returncode, err, born) == (0, "", [])
    assert out in ("end\n", "")


LEFT_RUNNING = """
LONG = SamplingParams(max_tokens=1500, ignore_eos=True)
import asyncio, threading
def in_thread():
    thread = threading.Thread(target=lambda: llm.generate([[1]] * 4, LONG), daemon=True)
    thread.start()
async def main(leave):
    engine = llm.as_async()
    tasks = [asyncio.ensure_future(engine.generate_one([i + 1], LONG)) for i in range(4)]
    await asyncio.sleep(0.05)
    if leave:
        raise SystemExit(3)
    await asyncio.sleep(0.05)
"""


@pytest.mark.parametrize(
    "ending,code",
    [
        ("h = llm.submit([1], LONG, on_token=lambda o: None); time.sleep(0.05)", 0),
        ("h = llm.submit([1], LONG); h.add_done_callback(lambda h: None); sys.exit(5)", 5),
        ("llm.pause_generation('keep'); h = llm.submit([1], LONG)", 0),
        ("in_thread(); time.sleep(0.05)", 0),
        ("asyncio.run(main(False))", 0),
        ("asyncio.run(main(True))", 3),
        ("it = llm.generate_iter([[1]] * 9, LONG, use_tqdm=False); sys.exit(4)", 4),
        ("import atexit; atexit.register(lambda: llm.generate([1])); keep = llm", 0),
    ],
)
def test_a1_u04_n15_whatever_runs_at_the_end(ending: str, code: int) -> None:
    process = script(BARE + LEFT_RUNNING + "print('end', flush=True)\n" + ending + "\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    assert process.stdout.readline() == "end\n"
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 5
    assert (process.returncode, out, err) == (code, "", "")


def test_n12_a_forked_child_is_told() -> None:
    code = """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from minimax_m31 import EngineForkedError
handle = llm.submit([1], SamplingParams(max_tokens=1500, ignore_eos=True))
child = os.fork()
if child == 0:
    told = 0
    for use in (handle.result, lambda: next(handle.stream()), lambda: llm.submit([1]),
                lambda: llm.generate([1]), lambda: llm.pause_generation("keep")):
        try:
            use()
        except EngineForkedError:
            told += 1
    os._exit(told)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), handle.result().finished)
"""
    assert script(BARE + code).communicate(timeout=60) == ("True\n5 True\n", "")


def test_n20_without_a_gpu(tmp_path: Path) -> None:
    """No driver is needed to import, tokenize, render, parse, check and run."""
    code = """
import os
os.environ["CUDA_VISIBLE_DEVICES"] = ""
from pathlib import Path
from api_models import text_llm
from minimax_m31 import SamplingParams
llm = text_llm(Path(FOLDER))
ids = llm.apply_chat_template([{"role": "user", "content": "hi"}])
answer = llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=4))[0]
print(len(ids) > 3, answer.finished, llm.parse_output("x", start="disabled").content)
"""
    done = script(code.replace("FOLDER", repr(str(tmp_path / "model")))).communicate(timeout=60)
    assert done == ("True True x\n", "")


def test_u06_a_killed_process_leaves_nothing() -> None:
    process = script(BARE + "time.sleep(60)\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    assert children(process.pid) == []
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=10)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_u08_import_touches_nothing_and_quits() -> None:
    code = """
import os, threading, time
before = (dict(os.environ), threading.active_count(), os.listdir("/proc/self/fd"))
began = time.perf_counter()
import minimax_m31
took = time.perf_counter() - began
after = (dict(os.environ), threading.active_count(), os.listdir("/proc/self/fd"))
print(before == after, took < 0.3 or took)
"""
    out, err = script(code).communicate(timeout=60)
    assert (out, err) == ("True True\n", "")


# ---------------------------------------------------------------- calls


def test_u10_a_call_sees_its_own_requests_only(llm: LLM) -> None:
    """After a call that failed or was cut off nothing of it is left for the next one."""
    with pytest.raises(PromptTooLongError) as caught:
        llm.generate([[1], [2], [3] * 3000, [4]], GREEDY, use_tqdm=False)
    assert caught.value.index == 2
    assert llm.last_partial == caught.value.outputs
    assert len(llm.last_partial or []) == 4
    outputs = llm.generate([[9]], GREEDY, use_tqdm=False)
    assert [o.prompt_token_ids for o in outputs] == [[9]]
    cut = llm.generate([[1], [2]], LONG.replace(max_tokens=1500), timeout=0.02, use_tqdm=False)
    assert [o.outputs[0].finish_reason for o in cut] == ["abort", "abort"]
    assert [o.prompt_token_ids for o in llm.generate([[9]], GREEDY)] == [[9]]
    assert llm._active == {}


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_u11_the_synchronous_class_streams(llm: LLM, kind: RequestOutputKind) -> None:
    prompts = [PROMPT, [7], [8, 9]]
    whole = llm.generate(prompts, GREEDY, use_tqdm=False)
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    pieces = 0
    for piece in llm.generate_stream(prompts, GREEDY, output_kind=kind):
        tokens = piece.outputs[0].token_ids
        before = got[piece.index] if kind is RequestOutputKind.DELTA else []
        got[piece.index] = before + tokens
        pieces += 1
    assert [got[i] for i in range(3)] == [o.outputs[0].token_ids for o in whole]
    assert pieces == 3 or kind is not RequestOutputKind.FINAL_ONLY


def test_u13_one_bad_prompt_does_not_lose_the_batch(llm: LLM) -> None:
    prompts: list[object] = [[1], [3] * 3000, [2], [4]]
    outputs = llm.generate(prompts, GREEDY, on_error="return", use_tqdm=False)
    assert [o.error is None for o in outputs] == [True, False, True, True]
    assert outputs[1].error is not None
    assert outputs[1].error.code == "too_long"
    assert outputs[1].outputs[0].finish_reason == "error"
    # kinds and parameters of all are checked before any work
    steps = llm.stats().num_steps
    with pytest.raises(InvalidRequestError):
        llm.generate([[1], [2], 7], GREEDY, on_error="return", use_tqdm=False)
    with pytest.raises(InvalidRequestError):
        llm.generate([[1]] * 2, [GREEDY, SamplingParams(logprobs=300)], use_tqdm=False)
    assert llm.stats().num_steps == steps


def test_u22_a_failed_request_does_not_kill_the_engine(llm: LLM) -> None:
    nothing = SamplingParams(allowed_token_ids=[3], logit_bias={3: float("-inf")}, max_tokens=4)
    good = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids
    handle = llm.submit(PROMPT, LONG.replace(max_tokens=300))
    mixed = llm.generate(
        [PROMPT, PROMPT, PROMPT], [GREEDY, nothing, GREEDY], on_error="return", use_tqdm=False
    )
    assert [o.outputs[0].finish_reason for o in mixed] == ["length", "error", "length"]
    assert mixed[0].outputs[0].token_ids == mixed[2].outputs[0].token_ids == good
    with pytest.raises(InvalidRequestError, match="no token is allowed"):
        llm.generate(PROMPT, nothing)
    assert handle.result(30).outputs[0].finish_reason == "length"
    assert llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids == good


# ---------------------------------------------------------------- log-probabilities


def one(llm: LLM, **fields: object) -> minimax_m31.CompletionOutput:
    forced = [9, 8, 7, 6]
    base = {"max_tokens": 4, "ignore_eos": True, "logprobs": 0, "trace_decode_token_ids": forced}
    return llm.generate(PROMPT, SamplingParams(**{**base, **fields}))[0].outputs[0]


def test_u14_logprobs_do_not_change_with_top_p_or_temperature(llm: LLM) -> None:
    plain = one(llm).token_logprobs
    assert plain is not None
    for fields in ({"temperature": 0.3}, {"top_p": 0.2}, {"top_k": 2}, {"temperature": 0.0}):
        assert np.array_equal(one(llm, **fields).token_logprobs, plain)
    named = one(llm, logprobs_mode="raw_logprobs", temperature=0.3).token_logprobs
    assert np.array_equal(named, plain)


def test_u15_tempered_logprobs_are_what_a_trainer_recomputes(llm: LLM) -> None:
    got = one(llm, temperature=0.7, top_p=0.5, logprobs_mode="tempered_logprobs")
    logits = llm.compute_logits(PROMPT + got.token_ids).astype(np.float64) / 0.7
    logits -= logits.max(axis=1, keepdims=True)
    logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    want = [logp[len(PROMPT) - 1 + i, t] for i, t in enumerate(got.token_ids)]
    assert got.token_logprobs is not None
    assert np.allclose(got.token_logprobs, want, atol=1e-5)
    scored = llm.score_tokens([PROMPT + got.token_ids], start=len(PROMPT), temperature=0.7)[0]
    assert np.array_equal(scored.logprobs, got.token_logprobs)


def test_u16_the_renormalised_mode_is_named_and_warned_of(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_processed.cache_clear()
    params = SamplingParams(
        top_k=3, seed=1, max_tokens=4, logprobs=0, ignore_eos=True, return_sampling_logprob=True
    )
    caplog.clear()
    tempered = llm.generate(PROMPT, params.replace(logprobs_mode="tempered_logprobs"))[0]
    assert caplog.text == ""
    for _ in range(2):
        processed = llm.generate(PROMPT, params.replace(logprobs_mode="processed_logprobs"))[0]
    assert caplog.text.count("renormalised") == 1
    a, b = processed.outputs[0], tempered.outputs[0]
    assert a.token_ids == b.token_ids
    assert a.token_logprobs is not None
    assert (a.token_logprobs > b.token_logprobs).all()  # a larger share of fewer tokens
    assert np.allclose(a.token_logprobs, b.sampling_logprobs, atol=1e-6)


def test_u17_logprobs_make_no_objects(llm: LLM) -> None:
    params = SamplingParams(max_tokens=300, logprobs=20, ignore_eos=True)
    short = llm.generate(PROMPT, params.replace(max_tokens=3))[0]
    gc.collect()
    before = len(gc.get_objects())
    output = llm.generate(PROMPT, params)[0]
    gc.collect()
    assert len(gc.get_objects()) - before < 100  # 300 tokens of 21 entries
    rows = output.outputs[0].logprobs
    assert rows is not None
    assert len(rows) == 300
    assert len(rows[7] or {}) in (20, 21)
    assert len(short.outputs[0].logprobs or []) == 3


# ---------------------------------------------------------------- seeds


def test_u20_no_seed_means_entropy() -> None:
    code = BARE.replace("temperature=0", "temperature=1.0, ignore_eos=True").replace(
        "max_tokens=4))[0].finished", "max_tokens=8))[0].outputs[0].token_ids"
    )
    shards = [script(code) for _ in range(3)]
    got = []
    for process in shards:
        out, err = process.communicate(timeout=60)
        assert err == ""
        got.append(out)
    assert len(set(got)) == 3
    with ids_llm() as llm:
        params = SamplingParams(max_tokens=8, ignore_eos=True)
        a, b = llm.generate([PROMPT, PROMPT], params, use_tqdm=False)
        assert a.outputs[0].token_ids != b.outputs[0].token_ids
        assert a.seed is not None
        again = llm.generate(PROMPT, params.replace(seed=a.seed))[0]
        assert again.outputs[0].token_ids == a.outputs[0].token_ids


def test_a5_u21_equal_bits_whatever_runs_beside_it() -> None:
    """Alone, among 1, 63 and 255 others, and after preemption: tokens and log-probabilities."""
    params = SamplingParams(temperature=0.8, seed=7, max_tokens=20, logprobs=5, ignore_eos=True,
                            flat_logprobs=True)  # fmt: skip
    greedy = params.replace(temperature=0.0)
    prompt = [(3 * i) % 200 for i in range(150)]
    with ids_llm(deterministic="batch_invariant", max_num_seqs=256, max_model_len=512) as llm:
        alone = [llm.generate(prompt, p)[0].outputs[0] for p in (params, greedy)]
        for others in (1, 63, 255):
            crowd = [[(i * 7 + j) % 200 for j in range(1 + i % 40)] for i in range(others)]
            for want, p in zip(alone, (params, greedy), strict=True):
                got = llm.generate([*crowd, prompt], [GREEDY] * others + [p], use_tqdm=False)
                assert got[-1].outputs[0].token_ids == want.token_ids
                assert got[-1].outputs[0].logprobs == want.logprobs
    page = 224 << 10  # bytes of 128 positions: 14 pages, for four that want 5 each
    with ids_llm(
        deterministic="batch_invariant", max_model_len=640, kv_cache_memory_bytes=14 * page
    ) as llm:
        long = params.replace(max_tokens=450)
        want = llm.generate(prompt, long)[0].outputs[0]
        got = llm.generate([prompt] * 4, [long] * 4, use_tqdm=False)
        assert llm.stats().num_preemptions > 0
        assert all(o.outputs[0].token_ids == want.token_ids for o in got)
        assert all(o.outputs[0].logprobs == want.logprobs for o in got)


def test_n_samples_are_n_requests_with_derived_seeds(llm: LLM) -> None:
    params = SamplingParams(n=5, seed=99, max_tokens=10, ignore_eos=True, logprobs=2)
    group = llm.generate(PROMPT, params)[0].outputs
    single = [params.replace(n=1, seed=minimax_m31.derive_seed(99, j)) for j in range(5)]
    alone = llm.generate([PROMPT] * 5, single, use_tqdm=False)
    assert [o.token_ids for o in group] == [o.outputs[0].token_ids for o in alone]
    assert [o.logprobs for o in group] == [o.outputs[0].logprobs for o in alone]
    more = llm.generate(PROMPT, params.replace(n=7))[0].outputs
    assert [o.token_ids for o in more[:5]] == [o.token_ids for o in group]
    assert [o.seed for o in group] == [minimax_m31.derive_seed(99, j) for j in range(5)]


# ---------------------------------------------------------------- text


def test_a8_u23_stop_strings_across_token_borders(nano: LLM) -> None:
    """No part of a stop string is left, which one fired is said, in every way of delivery."""
    base = SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True)
    text = nano.generate("The ", base)[0].outputs[0].text
    assert len(text) > 20
    for at in range(4, 16):
        stop = text[at : at + 3]
        cut = text.index(stop)
        params = base.replace(stop=["@@@@", stop, stop + "zz"])
        output = nano.generate("The ", params)[0].outputs[0]
        assert output.text == text[:cut]
        assert output.stop_reason == stop
        assert output.finish_reason == "stop"
        kept = nano.generate("The ", params.replace(include_stop_str_in_output=True))[0].outputs[0]
        assert kept.text == text[: cut + 3]
        assert kept.token_ids == output.token_ids
        streamed = "".join(o.outputs[0].text for o in nano.generate_stream("The ", params))
        assert streamed == output.text
        assert nano.submit("The ", params).result(30).outputs[0].text == output.text
        # tokens that lie wholly before the cut
        decode = nano.get_tokenizer().decode
        assert output.text.startswith(decode(output.token_ids[: output.num_text_tokens]))
        assert output.num_text_tokens < len(output.token_ids)


def test_u27_token_prompts_are_never_encoded_again(nano: LLM) -> None:
    """A text that another encoding would spell in fewer tokens keeps the ids it was given."""
    encode = nano.get_tokenizer().encode
    odd = [token for letter in "The answer" for token in encode(letter)]
    assert odd != encode("The answer")
    first = nano.generate([odd], GREEDY, use_tqdm=False)[0]
    assert first.prompt_token_ids == odd
    turn = odd + first.outputs[0].token_ids + encode(" And then")
    second = nano.generate({"prompt_token_ids": turn}, GREEDY)[0]
    assert second.prompt_token_ids == turn
    assert first.outputs[0].num_text_tokens == len(first.outputs[0].token_ids)


def test_u30_nothing_is_added_to_a_rendered_prompt(nano: LLM) -> None:
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    ids = nano.apply_chat_template(messages)
    text = nano.apply_chat_template(messages, tokenize=False)
    params = SamplingParams(temperature=0, max_tokens=2)
    assert nano.chat(messages, params, use_tqdm=False)[0].prompt_token_ids == ids
    assert nano.generate(text, params)[0].prompt_token_ids == ids
    assert ids.count(ids[0]) == text.count(nano.get_tokenizer().decode(ids[:1]))
    plain = nano.generate("No mark", params)[0].prompt_token_ids
    assert nano.get_tokenizer().decode(plain) == "No mark"


def test_u31_the_default_is_not_sixteen_tokens(llm: LLM) -> None:
    output = llm.generate(PROMPT, SamplingParams(temperature=0, ignore_eos=True))[0].outputs[0]
    assert len(output.token_ids) == SMALL["max_model_len"] - len(PROMPT)
    assert output.finish_reason == "length"


def test_u32_a_file_changes_only_what_was_left_unsaid(tmp_path: Path) -> None:
    with text_llm(tmp_path / "model") as llm:  # its file says temperature 0.7, top_k 40
        defaults = llm.get_default_sampling_params()
        assert (defaults.temperature, defaults.top_k) == (0.7, 40)
        assert "generation_config.json" in defaults.describe()
        explicit = SamplingParams(seed=1, max_tokens=8, logprobs=-1, ignore_eos=True,
                                  logprobs_mode="processed_logprobs")  # fmt: skip
    with text_llm(tmp_path / "model", max_logprobs=-1) as llm:
        rows = llm.generate([1, 2, 3], explicit)[0].outputs[0].logprobs
        assert rows is not None
        finite = [sum(np.isfinite(e.logprob) for e in (row or {}).values()) for row in rows]
        assert min(finite) > 40  # top_k of the file was not applied


def test_u33_a_stop_string_inside_thinking(nano: LLM) -> None:
    messages = [{"role": "user", "content": "What is 17 + 25?"}]
    params = SamplingParams(temperature=0, max_tokens=400)
    whole = nano.chat(messages, params, thinking="enabled", use_tqdm=False)[0].outputs[0]
    assert whole.message is not None
    thought = whole.message.reasoning_content
    assert thought
    word = next(w for w in thought.split() if len(w) > 1 and w not in whole.message.content)
    same = nano.chat(messages, params.replace(stop=word), thinking="enabled", use_tqdm=False)[0]
    assert same.outputs[0].message == whole.message
    cut = nano.chat(
        messages, params.replace(stop=word, stop_scope="all"), thinking="enabled", use_tqdm=False
    )[0].outputs[0]
    assert cut.stop_reason == word
    assert len(cut.token_ids) < len(whole.token_ids)

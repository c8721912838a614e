"""Handles, pauses and partial rollouts: what is submitted without waiting, from many threads."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from api_models import ids_llm

from minimax_m31 import (
    LLM,
    InvalidRequestError,
    RequestHandle,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
PROMPTS = [[i + 1, 7, 9] for i in range(24)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with ids_llm() as engine:
        yield engine


def tokens_of(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def wait_until(condition: object, seconds: float = 10) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ---------------------------------------------------------------- handles


def test_u12_sixty_four_threads(llm: LLM) -> None:
    """Every way of asking, from 64 threads at once, over one engine."""
    expected = [tokens_of(o) for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]
    scores = [s.sum for s in llm.score_tokens(PROMPTS, use_tqdm=False)]
    wrong: list[object] = []

    def ask(k: int) -> None:
        rng = random.Random(k)
        for _ in range(6):
            i = rng.randrange(len(PROMPTS))
            way = rng.randrange(5)
            try:
                if way == 0:
                    got: object = tokens_of(llm.generate(PROMPTS[i], GREEDY, use_tqdm=False)[0])
                elif way == 1:
                    got = tokens_of(llm.submit(PROMPTS[i], GREEDY).result(60))
                elif way == 2:
                    got = sum((tokens_of(o) for o in llm.generate_stream(PROMPTS[i], GREEDY)), [])
                elif way == 3:
                    got = tokens_of(list(llm.submit(PROMPTS[i], GREEDY).stream())[-1])
                else:
                    got = llm.score_tokens(PROMPTS[i], use_tqdm=False)[0].sum
                if got != (scores[i] if way == 4 else expected[i]):
                    wrong.append((k, i, way, got))
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    assert not llm._active
    assert not llm._calls


def test_streams_of_a_handle(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], LONG.replace(max_tokens=200))[0]
    handle = llm.submit(PROMPTS[0], LONG.replace(max_tokens=200))
    slow = handle.stream()
    first = next(slow)
    assert handle.result(60) == handle.result()
    rest = list(slow)  # a reader that fell behind sees fewer, larger pieces, and the end
    assert len(rest) == 1
    assert not first.finished
    assert rest[0].finished
    assert tokens_of(rest[0]) == tokens_of(whole)
    again = list(handle.stream(RequestOutputKind.DELTA))
    assert sum((tokens_of(o) for o in again), []) == tokens_of(whole)


def test_nobody_is_woken_for_tokens_that_nobody_awaits(llm: LLM) -> None:
    def submit(**kwargs: Any) -> tuple[RequestHandle, list[bool]]:
        handle = llm.submit(PROMPTS[0], LONG, **kwargs)
        heard: list[bool] = []  # had it ended, each time there was news
        handle._call.listen(lambda: heard.append(handle.done()))
        return handle, heard

    llm.pause_generation("keep")
    alone, of_alone = submit()
    watched, of_watched = submit()
    followed, of_followed = submit(on_token=lambda _: None)
    llm.resume_generation()
    stream = watched.stream()
    assert len(tokens_of(next(stream))) < 1500
    whole = tokens_of(list(stream)[-1])
    assert whole == tokens_of(alone.result(60)) == tokens_of(followed.result(60))
    wait_until(lambda: of_alone and of_watched[-1:] == [True])  # listeners hear after readers
    assert of_alone == [True]
    assert of_watched.count(False) > 10
    assert of_followed.count(False) > 10
    *_, last = llm.submit(PROMPTS[0], LONG).stream(RequestOutputKind.FINAL_ONLY)
    assert tokens_of(last) == whole


def test_callbacks_may_wait_for_other_requests(llm: LLM) -> None:
    done = threading.Event()
    seen: list[list[int]] = []

    def then(handle: object) -> None:
        seen.append(tokens_of(llm.submit(PROMPTS[1], GREEDY).result(30)))
        done.set()

    llm.submit(PROMPTS[0], GREEDY).add_done_callback(then)
    assert done.wait(30)
    assert seen == [tokens_of(llm.generate(PROMPTS[1], GREEDY)[0])]


def test_on_token_sees_the_end_before_the_callback(llm: LLM) -> None:
    for max_tokens in (1, 5, 40):
        order: list[object] = []
        done = threading.Event()
        handle = llm.submit(
            PROMPTS[0],
            GREEDY.replace(max_tokens=max_tokens),
            on_token=lambda o, order=order: order.append((len(tokens_of(o)), o.finished)),
        )

        def then(handle: object, order: list[object] = order, done: threading.Event = done) -> None:
            order.append("done")
            done.set()

        handle.add_done_callback(then)
        assert done.wait(30)
        assert order[-2:] == [(max_tokens, True), "done"]
        assert order.count("done") == 1


def test_n14_what_callbacks_raise_is_kept_by_the_handle(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise KeyError("mine")

    handle = llm.submit(PROMPTS[0], GREEDY, on_token=fail)
    handle.add_done_callback(fail)
    assert len(tokens_of(handle.result(30))) == 12
    wait_until(lambda: "callback of request" in caplog.text)
    assert len(handle.callback_errors) >= 2
    assert all(isinstance(error, KeyError) for error in handle.callback_errors)
    assert "on_token of request" in caplog.text
    assert llm.submit(PROMPTS[0], GREEDY).result(30).finished


def test_enqueue(llm: LLM) -> None:
    expected = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    ids = llm.enqueue(PROMPTS[:10], GREEDY) + llm.enqueue(PROMPTS[10:], GREEDY)
    assert len(set(ids)) == len(PROMPTS)
    outputs = llm.wait_for_completion(use_tqdm=False)
    assert [o.request_id for o in outputs] == ids
    assert [tokens_of(o) for o in outputs] == [tokens_of(o) for o in expected]
    assert llm.wait_for_completion() == []
    with pytest.raises(InvalidRequestError) as caught:
        llm.enqueue([[1], [2], [999999]], GREEDY)
    assert caught.value.index == 2
    assert llm.wait_for_completion() == []


def test_abort_of_many_samples(llm: LLM) -> None:
    handle = llm.submit([3], SamplingParams(n=20, max_tokens=1500, ignore_eos=True))
    wait_until(lambda: handle.partial() is not None)
    partial = handle.partial()
    assert partial is not None
    assert not partial.finished
    assert handle.abort()
    output = handle.result(30)
    assert output.finished
    assert {o.finish_reason for o in output.outputs} == {"abort"}
    assert len(output.outputs) == 20
    assert not handle.abort()


def test_abort_by_name_before_its_turn() -> None:
    """A prompt of a long list that has not begun is not begun any more."""
    with ids_llm(max_num_seqs=1) as llm:
        names = [f"r{i}" for i in range(600)]
        got: dict[int, RequestOutput] = {}

        def ask() -> None:
            params = GREEDY.replace(max_tokens=4)
            prompts = [[1 + i % 200] for i in range(600)]
            pieces = llm.generate_iter(prompts, params, request_ids=names, use_tqdm=False)
            got.update(pieces)

        thread = threading.Thread(target=ask)
        thread.start()
        wait_until(lambda: "r0" in llm._active or bool(got) or not thread.is_alive())
        llm.abort(["r599", "unknown"])
        thread.join(60)
        assert len(got) == 600
        assert got[599].outputs[0].finish_reason == "abort"
        assert got[0].outputs[0].finish_reason == "length"


def test_only_the_last_output_of_samples(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=2, max_tokens=5, ignore_eos=True)
    whole = llm.generate(PROMPTS[:4], params, use_tqdm=False)
    kind = RequestOutputKind.FINAL_ONLY
    pieces = list(llm.generate_stream(PROMPTS[:4], params, output_kind=kind))
    assert sorted(o.index for o in pieces) == [0, 1, 2, 3]
    assert all(o.finished and o.outputs == whole[o.index].outputs for o in pieces)


# ---------------------------------------------------------------- partial rollouts


def test_min_finished(llm: LLM) -> None:
    params = [GREEDY.replace(n=1, max_tokens=5 if i % 3 == 0 else 1500) for i in range(12)]
    got = dict(llm.generate_iter(PROMPTS[:12], params, min_finished=3, use_tqdm=False))
    assert sorted(got) == list(range(12))
    ends = [got[i].outputs[0].finish_reason for i in range(12)]
    assert 3 <= ends.count("length") <= 4  # of the four that are short
    assert ends.count("abort") == 12 - ends.count("length")
    assert all(got[i].finished for i in got)
    cut = [o for o in got.values() if o.outputs[0].finish_reason == "abort"]
    assert any(tokens_of(o) for o in cut)


def test_min_finished_counts_groups_and_leaves_the_rest_unbegun() -> None:
    with ids_llm(max_num_seqs=4) as llm:
        group = SamplingParams(n=4, seed=1, max_tokens=4, ignore_eos=True)
        prompts = [[1 + i % 200] for i in range(5000)]
        got = dict(llm.generate_iter(prompts, group, min_finished=2, use_tqdm=False))
        assert len(got) == 5000
        full = [o for o in got.values() if len(o.outputs) == 4 and o.outputs[0].token_ids]
        whole = [o for o in full if all(s.finish_reason == "length" for s in o.outputs)]
        assert 2 <= len(whole) < 200  # those that ended before the abort reached them
        unbegun = [o for o in got.values() if not any(s.token_ids for s in o.outputs)]
        assert len(unbegun) > 3000
        assert {s.finish_reason for o in unbegun for s in o.outputs} == {"abort"}
        with pytest.raises(InvalidRequestError, match="min_finished"):
            llm.generate_iter(prompts, group, min_finished=0)


# ---------------------------------------------------------------- pauses


def paused(llm: LLM, mode: str) -> float:
    began = time.monotonic()
    llm.pause_generation(mode)
    assert llm.is_paused
    return time.monotonic() - began


def test_pause_keep_freezes_and_goes_on(llm: LLM) -> None:
    expected = tokens_of(llm.generate(PROMPTS[0], LONG)[0])
    handle = llm.submit(PROMPTS[0], LONG)
    wait_until(lambda: handle.partial() is not None)
    paused(llm, "keep")
    steps = llm.stats().num_steps
    partial = handle.partial()
    assert partial is not None
    late = llm.submit(PROMPTS[1], GREEDY)
    time.sleep(0.2)
    assert llm.stats().num_steps == steps
    assert handle.partial() == partial
    assert late.partial() is None
    llm.resume_generation()
    assert not llm.is_paused
    assert tokens_of(handle.result(60)) == expected
    assert late.result(60).finished


def test_a_freeze_that_ends_at_once_is_not_missed(llm: LLM) -> None:
    """However short a pause is, the engine wakes up from it."""
    expected = tokens_of(llm.generate(PROMPTS[0], LONG.replace(max_tokens=300))[0])
    for _ in range(20):
        handle = llm.submit(PROMPTS[0], LONG.replace(max_tokens=300))
        while not handle.done():
            llm.pause_generation("keep")
            llm.resume_generation()
            before = llm.stats().num_steps
            wait_until(lambda h=handle, n=before: h.done() or llm.stats().num_steps > n)
        assert tokens_of(handle.result(10)) == expected


def test_a_callback_may_pause(llm: LLM) -> None:
    paused_at: list[int] = []

    def hold(output: RequestOutput) -> None:
        if not paused_at and not output.finished:
            llm.pause_generation("keep")
            paused_at.append(len(tokens_of(output)))
            llm.resume_generation()

    handle = llm.submit(PROMPTS[0], LONG.replace(max_tokens=300), on_token=hold)
    assert len(tokens_of(handle.result(30))) == 300 and paused_at
    assert not handle.callback_errors and not llm.is_paused


def test_pause_wait_drains(llm: LLM) -> None:
    handles = [llm.submit(p, LONG.replace(max_tokens=300)) for p in PROMPTS]
    paused(llm, "wait")
    assert all(handle.result(5).outputs[0].finish_reason == "length" for handle in handles)
    late = llm.submit(PROMPTS[1], GREEDY)
    time.sleep(0.1)
    assert not late.done()
    llm.resume_generation()
    assert late.result(60).finished


def test_u28_pause_abort_returns_what_there_is(llm: LLM) -> None:
    expected = tokens_of(llm.generate(PROMPTS[0], LONG)[0])
    handle = llm.submit(PROMPTS[0], LONG.replace(logprobs=0))
    outputs: list[RequestOutput] = []
    call = threading.Thread(
        target=lambda: outputs.extend(llm.generate(PROMPTS, LONG, use_tqdm=False))
    )
    call.start()
    wait_until(lambda: len(llm._active) == len(PROMPTS) + 1 and handle.partial() is not None)
    assert paused(llm, "abort") < 5
    call.join(10)
    assert len(outputs) == len(PROMPTS)
    assert {o.outputs[0].finish_reason for o in outputs} == {"abort"}
    cut = handle.result(5).outputs[0]
    assert cut.finish_reason == "abort"
    assert cut.token_ids
    assert cut.token_logprobs is not None
    assert len(cut.token_logprobs) == len(cut.token_ids) == len(cut.logprobs or [])
    late = llm.submit(PROMPTS[1], GREEDY)
    assert late.abort()  # one that waits can be given up
    assert late.result(5).outputs[0].finish_reason == "abort"
    llm.continue_generation()
    # prompt + partial tokens go on where the request was cut
    more = llm.generate(
        [PROMPTS[0] + cut.token_ids], LONG.replace(max_tokens=1500 - len(cut.token_ids))
    )[0]
    assert cut.token_ids + tokens_of(more) == expected


def test_pause_arguments_and_repeats(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="'abort', 'wait', 'keep'"):
        llm.pause_generation("stop")
    assert not llm.is_paused
    for mode in ("keep", "keep", "wait", "abort"):
        assert paused(llm, mode) < 5
    llm.resume_generation()
    llm.resume_generation()
    llm.pause_generation("keep", clear_cache=True)
    assert llm.stats().num_blocks_cached == 0
    llm.resume_generation()
    assert llm.generate(PROMPTS[0], GREEDY)[0].finished


def test_shutdown_while_paused() -> None:
    llm = ids_llm()
    llm.pause_generation("keep")
    handle = llm.submit(PROMPTS[0], GREEDY)
    began = time.monotonic()
    llm.shutdown()
    assert time.monotonic() - began < 5
    with pytest.raises(RuntimeError, match="closed|shut down"):
        handle.result(5)


# ---------------------------------------------------------------- long prompts


def test_an_aborted_prompt_does_not_hold_up_the_next_call() -> None:
    """A step that has begun runs to its end, so steps of a host are kept short."""
    with ids_llm("ref", max_model_len=4096, max_num_batched_tokens=4096) as llm:
        llm.generate([1, 2, 3], GREEDY)
        handle = llm.submit([i % 200 for i in range(4000)], GREEDY)
        time.sleep(0.1)
        assert handle.abort()
        began = time.monotonic()
        llm.generate([1, 2, 3], SamplingParams(max_tokens=1))
        waited = time.monotonic() - began
        stats = llm.stats()
        assert waited < 5 * max(0.4, stats.step_time_total / stats.num_steps)
        whole = llm.submit([i % 200 for i in range(4000)], GREEDY).result(300)
        assert whole.metrics.num_generation_tokens == 12
        assert llm.stats().num_steps - stats.num_steps > 12  # the prompt took several steps


# ---------------------------------------------------------------- all of it at once


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_calls_from_many_threads(seed: int) -> None:
    """Whatever is asked, aborted, cancelled and paused at once: nothing hangs, nothing is left, and
    what is generated is always the beginning of the right answer.
    """
    size = {"kv_cache_memory_bytes": 2 << 20} if seed % 2 else {}  # 8 pages: preemption
    prompts = [[i + 1, 7, 9] * (1 + 40 * (i % 3)) for i in range(12)]
    greedy = GREEDY.replace(max_tokens=24)
    wrong: list[object] = []
    with ids_llm(max_num_seqs=4, **size) as llm:
        expected = [tokens_of(o) for o in llm.generate(prompts, greedy, use_tqdm=False)]
        end = time.monotonic() + 15

        async def cancelled(i: int, seconds: float) -> None:
            task = asyncio.ensure_future(llm.as_async().generate_one(prompts[i], greedy))
            await asyncio.sleep(seconds)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        def ask(i: int, way: int, rng: random.Random) -> list[tuple[int, list[int]]]:
            """(prompt, tokens) of what may have ended early; whole answers are checked here."""
            if way == 0:
                handle = llm.submit(prompts[i], greedy)
                time.sleep(rng.random() * 0.02)
                handle.abort()
                return [(i, tokens_of(handle.result(60)))]
            if way == 1:
                seconds = 0.01 + rng.random() * 0.1
                outputs = llm.generate([prompts[i]] * 3, greedy, timeout=seconds, use_tqdm=False)
                return [(i, tokens_of(o)) for o in outputs]
            if way == 2:
                enough = rng.choice([None, 3])
                pieces = llm.generate_iter(prompts, greedy, min_finished=enough, use_tqdm=False)
                return [(k, tokens_of(o)) for k, o in pieces]
            if way == 3:
                asyncio.run(cancelled(i, rng.random() * 0.02))
            elif way == 4:
                llm.reset_prefix_cache()
            elif way == 5:
                llm.score_tokens(prompts[i], use_tqdm=False)
            elif way == 6:
                for _ in llm.generate_iter(prompts, greedy, use_tqdm=False):
                    break
            elif way == 7:
                parts = llm.generate_stream(prompts[i], greedy)
                assert sum((tokens_of(o) for o in parts), []) == expected[i]
            else:
                assert tokens_of(llm.submit(prompts[i], greedy).result(60)) == expected[i]
            return []

        def work(k: int) -> None:
            rng = random.Random(100 * seed + k)
            while time.monotonic() < end:
                try:
                    if k == 0 and rng.random() < 0.3:
                        llm.pause_generation(rng.choice(["keep", "keep", "wait"]))
                        time.sleep(rng.random() * 0.01)
                        llm.resume_generation()
                    i = rng.randrange(12)
                    for j, made in ask(i, rng.randrange(9), rng):
                        assert made == expected[j][: len(made)]
                except BaseException as error:
                    wrong.append(error)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in threads)
        assert not wrong
        wait_until(lambda: llm.stats().num_running + llm.stats().num_waiting == 0)
        assert llm.stats().num_blocks_used == 0
        assert not llm._active and not llm._calls

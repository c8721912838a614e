"""LLM end to end: every way of giving prompts and taking results, against each other and against
the plain forward pass.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from api_models import ids_llm, text_llm

from minimax_m31 import (
    LLM,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    live_engines,
)

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(5, 45))


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with ids_llm(max_logprobs=-1) as engine:
        yield engine


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with text_llm(tmp_path_factory.mktemp("text")) as engine:
        yield engine


def tokens(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


# ---------------------------------------------------------------- prompts and calls


def test_every_kind_of_prompt_gives_the_same(llm: LLM) -> None:
    kinds = [
        PROMPT,
        tuple(PROMPT),
        np.array(PROMPT),
        np.array(PROMPT, dtype=np.uint8),
        {"prompt_token_ids": PROMPT},
    ]
    expected = tokens(llm.generate(PROMPT, GREEDY)[0])
    for kind in kinds:
        (single,) = llm.generate(kind, GREEDY)
        assert tokens(single) == expected
        assert single.prompt_token_ids == PROMPT
    assert [tokens(o) for o in llm.generate(kinds, GREEDY)] == [expected] * len(kinds)


def test_greedy_follows_the_logits(llm: LLM) -> None:
    out = tokens(llm.generate(PROMPT, GREEDY)[0])
    logits = llm.compute_logits(PROMPT + out)
    assert logits.shape == (len(PROMPT) + 12, 256)
    assert np.argmax(logits[len(PROMPT) - 1 : -1], axis=1).tolist() == out


def test_order_and_count(llm: LLM) -> None:
    assert llm.generate([], GREEDY) == []
    prompts = [[i + 1] * (i + 1) for i in range(40)]
    outputs = llm.generate(prompts, GREEDY)
    assert [o.prompt_token_ids for o in outputs] == prompts
    assert [o.index for o in outputs] == list(range(40))
    assert len({o.request_id for o in outputs}) == 40
    assert all(o.finished and o.outputs[0].finish_reason == "length" for o in outputs)


def test_one_params_for_each(llm: LLM) -> None:
    params = [GREEDY.replace(max_tokens=n) for n in (1, 5, 9)]
    outputs = llm.generate([PROMPT] * 3, params)
    assert [len(tokens(o)) for o in outputs] == [1, 5, 9]


def test_the_callers_params_are_not_touched(llm: LLM) -> None:
    params = SamplingParams(max_tokens=3, seed=None)
    before = pickle.dumps(params)
    llm.generate([PROMPT] * 3, params)
    assert pickle.dumps(params) == before


def test_default_max_tokens_fills_the_context() -> None:
    with ids_llm(max_model_len=128, default_max_tokens=50) as small:
        out = small.generate([[1] * 100, [1] * 20], SamplingParams(ignore_eos=True))
        assert [len(tokens(o)) for o in out] == [28, 50]
        assert (
            out[0].outputs[0].stop_reason == "max_model_len"
            or out[0].outputs[0].stop_reason == "max_tokens"
        )
        full = small.generate([1] * 126, SamplingParams(ignore_eos=True, max_tokens=500))[
            0
        ].outputs[0]
        assert (len(full.token_ids), full.finish_reason, full.stop_reason) == (
            2,
            "length",
            "max_model_len",
        )


def test_generate_iter_gives_everything_once(llm: LLM) -> None:
    prompts = [[i + 1, 2] for i in range(50)]
    lengths = [
        SamplingParams(temperature=0, max_tokens=1 + i % 7, ignore_eos=True) for i in range(50)
    ]
    seen = dict(llm.generate_iter(prompts, lengths))
    assert sorted(seen) == list(range(50))
    assert [tokens(seen[i]) for i in range(50)] == [
        tokens(o) for o in llm.generate(prompts, lengths)
    ]


def test_closing_the_iterator_aborts_the_rest(llm: LLM) -> None:
    before = llm.stats()
    pieces = llm.generate_iter(
        [[i + 1] for i in range(20)], SamplingParams(max_tokens=1500, ignore_eos=True)
    )
    short = llm.generate_iter([[1]], GREEDY)
    next(short)
    pieces.close()
    assert len(llm.generate(PROMPT, GREEDY)) == 1
    assert llm.stats().num_blocks_used == before.num_blocks_used == 0


# ---------------------------------------------------------------- streams and handles


@pytest.mark.parametrize("kind", list(RequestOutputKind))
def test_streams_equal_generate(text: LLM, kind: RequestOutputKind) -> None:
    prompts = ["one two", "three", "vier f\u00fcnf \u20ac"]
    params = SamplingParams(temperature=1.0, seed=11, max_tokens=30, stop=["e", "ing "], logprobs=2)
    whole = text.generate(prompts, params)
    pieces: dict[int, list[RequestOutput]] = {i: [] for i in range(3)}
    for piece in text.generate_stream(prompts, params, output_kind=kind):
        pieces[piece.index].append(piece)
    for i, expected in enumerate(whole):
        final = pieces[i][-1]
        assert final.finished and not any(p.finished for p in pieces[i][:-1])
        one = expected.outputs[0]
        assert final.outputs[0].num_text_tokens == one.num_text_tokens
        assert final.outputs[0].seed == one.seed
        assert (final.outputs[0].finish_reason, final.outputs[0].stop_reason) == (
            one.finish_reason,
            one.stop_reason,
        )
        if kind is RequestOutputKind.DELTA:
            assert [t for p in pieces[i] for t in tokens(p)] == one.token_ids
            assert "".join(p.outputs[0].text for p in pieces[i]) == one.text
            assert [row for p in pieces[i] for row in p.outputs[0].logprobs] == list(one.logprobs)
        else:
            assert tokens(final) == one.token_ids
            assert final.outputs[0].text == one.text
        if kind is RequestOutputKind.FINAL_ONLY:
            assert len(pieces[i]) == 1


def test_stream_interval(llm: LLM) -> None:
    pieces = list(llm.generate_stream(PROMPT, GREEDY.replace(stream_interval=5)))
    assert sum(len(tokens(p)) for p in pieces) == 12
    assert len(pieces) <= 4


def test_handle(llm: LLM) -> None:
    expected = tokens(llm.generate(PROMPT, GREEDY)[0])
    done = threading.Event()
    seen: list[int] = []
    handle = llm.submit(
        PROMPT, GREEDY, request_id="mine", on_token=lambda o: seen.append(len(tokens(o)))
    )
    handle.add_done_callback(lambda h: done.set())
    assert tokens(handle.result(timeout=30)) == expected
    assert done.wait(5)
    assert handle.done()
    assert seen[-1] == 12
    assert seen == sorted(seen)
    assert tokens(list(llm.submit(PROMPT, GREEDY).stream())[-1]) == expected
    handle.add_done_callback(lambda h: seen.append(-1))
    assert seen[-1] == -1


def test_handle_abort_keeps_what_there_is(llm: LLM) -> None:
    handle = llm.submit(PROMPT, SamplingParams(max_tokens=1900, ignore_eos=True), request_id="long")
    stream = handle.stream()
    next(stream)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.01)
    assert handle.abort()
    out = handle.result(timeout=30).outputs[0]
    assert out.finish_reason == "abort"
    assert 1 <= len(out.token_ids) < 1900
    assert not handle.abort()


def test_handle_awaits(llm: LLM) -> None:
    import asyncio

    async def main() -> list[RequestOutput]:
        return list(await asyncio.gather(*[_wait(llm, i) for i in range(4)]))

    outputs = asyncio.run(main())
    assert [o.prompt_token_ids for o in outputs] == [[i + 1] for i in range(4)]


async def _wait(llm: LLM, i: int) -> RequestOutput:
    return await llm.submit([i + 1], GREEDY)


def test_callbacks_that_fail_do_not_matter(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    def bad(_: object) -> None:
        raise RuntimeError("mine")

    handle = llm.submit(PROMPT, GREEDY, on_token=bad)
    handle.add_done_callback(bad)
    assert len(tokens(handle.result(timeout=30))) == 12


def test_abort_by_id(llm: LLM) -> None:
    out: list[RequestOutput] = []
    worker = threading.Thread(
        target=lambda: out.extend(
            llm.generate(
                [[1], [2]],
                SamplingParams(max_tokens=1900, ignore_eos=True),
                request_ids=["a", "b"],
                use_tqdm=False,
            )
        )
    )
    worker.start()
    stopped = 0
    while worker.is_alive() and stopped < 2:
        stopped += llm.abort(["a", "unknown", "b"])
        worker.join(0.05)
    worker.join(30)
    assert [o.outputs[0].finish_reason for o in out] == ["abort", "abort"]
    assert llm.abort(["a"]) == 0


def test_abort_all_ends_every_call(llm: LLM) -> None:
    out: list[RequestOutput] = []
    started = threading.Event()
    prompts = [[1 + i] for i in range(60)]

    def work() -> None:
        started.set()
        out.extend(
            llm.generate(prompts, SamplingParams(max_tokens=1900, ignore_eos=True), use_tqdm=False)
        )

    worker = threading.Thread(target=work)
    worker.start()
    started.wait()
    while llm.stats().num_running == 0:
        pass
    llm.abort_all()
    worker.join(30)
    assert not worker.is_alive()
    assert {o.outputs[0].finish_reason for o in out} == {"abort"}
    assert len(out) == 60


def test_timeout_returns_what_there_is(llm: LLM) -> None:
    out = llm.generate(
        [[1 + i] for i in range(40)], SamplingParams(max_tokens=1900, ignore_eos=True), timeout=0.3
    )
    reasons = {o.outputs[0].finish_reason for o in out}
    assert len(out) == 40
    assert "abort" in reasons
    assert any(tokens(o) for o in out)


def test_calls_from_threads_do_not_mix(llm: LLM) -> None:
    expected = {i: tokens(llm.generate([i + 1, 7], GREEDY)[0]) for i in range(24)}
    found: dict[int, list[int]] = {}

    def work(first: int) -> None:
        for i in range(first, 24, 6):
            outputs = llm.generate([[i + 1, 7], [i + 1, 7]], GREEDY, use_tqdm=False)
            assert len(outputs) == 2
            assert tokens(outputs[0]) == tokens(outputs[1])
            found[i] = tokens(outputs[0])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


# ---------------------------------------------------------------- scores, logits, traces


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def test_score_tokens(llm: LLM) -> None:
    prompt = [(7 * i) % 240 for i in range(300)]
    reference = log_softmax(llm.compute_logits(prompt))
    for start in (1, 200):
        (scores,) = llm.score_tokens(prompt, start=start, top_k=4, token_ids=[3, 9])
        rows = reference[start - 1 : -1]
        own = np.array(prompt[start:])
        assert scores.start == start
        assert np.abs(scores.logprobs - rows[np.arange(len(own)), own]).max() < 1e-4
        order = np.argsort(-rows, axis=1, kind="stable")
        assert (scores.ranks == 1 + np.argmax(order == own[:, None], axis=1)).mean() > 0.99
        assert (scores.top_ids == order[:, :4]).mean() > 0.99
        assert np.abs(scores.token_id_logprobs - rows[:, [3, 9]]).max() < 1e-4
    assert llm.score_tokens(prompt, start=200)[0].num_cached_tokens >= 128


def test_score_tokens_fills_the_context() -> None:
    with ids_llm(max_model_len=256) as small:
        (scores,) = small.score_tokens([1] * 256)
        assert len(scores) == 255
        assert len(small.score_tokens([5])[0]) == 0


def test_score_tokens_at_a_temperature(llm: LLM) -> None:
    reference = log_softmax(llm.compute_logits(PROMPT) / 0.5)
    (scores,) = llm.score_tokens(PROMPT, temperature=0.5, top_k=2)
    own = np.array(PROMPT[1:])
    assert np.abs(scores.logprobs - reference[:-1][np.arange(len(own)), own]).max() < 1e-4
    assert scores.ranks.tolist() == llm.score_tokens(PROMPT)[0].ranks.tolist()


def test_trace_parts_and_forcing(llm: LLM) -> None:
    prompt = [(11 * i) % 240 for i in range(700)]
    trace = llm.trace(prompt)
    assert len(trace.hidden) == 3
    assert trace.blocks[1] is None
    assert trace.experts[0] is None
    assert trace.blocks[0].shape[1:] == (700, 4)
    assert np.allclose(trace.expert_weights[1].sum(axis=1), 1, atol=1e-5)
    only = llm.trace(prompt, what="experts")
    assert only.logits is None
    assert (only.experts[2] == trace.experts[2]).all()
    same = llm.trace(prompt, force_blocks=trace.blocks, force_experts=trace.experts)
    assert (same.logits == trace.logits).all()
    other = [
        None if e is None else np.tile(np.arange(e.shape[1], dtype=np.int16), (700, 1))
        for e in trace.experts
    ]
    forced = llm.trace(prompt, force_experts=other)
    assert (forced.experts[1] == other[1]).all()
    assert np.abs(forced.logits - trace.logits).max() > 1e-3


def test_prompt_logprobs(llm: LLM) -> None:
    prompt = [(3 * i) % 240 for i in range(150)]
    reference = log_softmax(llm.compute_logits(prompt))
    out = llm.generate(prompt, SamplingParams(max_tokens=2, prompt_logprobs=3, temperature=0.3))[0]
    assert len(out.prompt_logprobs) == 150
    assert out.prompt_logprobs[0] is None
    for i in (1, 77, 149):
        row = out.prompt_logprobs[i]
        assert next(iter(row)) == prompt[i]
        assert abs(row[prompt[i]].logprob - reference[i - 1, prompt[i]]) < 1e-4
        assert 3 <= len(row) <= 4
    scored = llm.generate(
        prompt, SamplingParams(max_tokens=0, prompt_logprobs=0, prompt_logprob_start=140)
    )[0]
    assert [i for i, row in enumerate(scored.prompt_logprobs) if row is not None] == list(
        range(140, 150)
    )
    assert (scored.outputs[0].finish_reason, scored.outputs[0].token_ids) == ("length", [])
    assert scored.num_cached_tokens == 128


# ---------------------------------------------------------------- text and chat


def test_text_prompts_are_encoded_as_they_are(text: LLM) -> None:
    tokenizer = text.get_tokenizer()
    out = text.generate(["hello world", {"prompt": "hello world"}], GREEDY)
    assert out[0].prompt == "hello world"
    assert out[0].prompt_token_ids == tokenizer.encode("hello world")
    assert tokens(out[0]) == tokens(out[1])
    one = out[0].outputs[0]
    assert one.text == tokenizer.decode(one.token_ids, skip_special_tokens=True)


def test_detokenize_off_changes_text_only(text: LLM) -> None:
    params = SamplingParams(seed=4, max_tokens=20, stop="a")
    with_text, without = (
        text.generate("x", params.replace(detokenize=flag))[0].outputs[0] for flag in (True, False)
    )
    assert without.text == ""
    assert without.token_ids == with_text.token_ids
    assert without.stop_reason == with_text.stop_reason


def test_truncation(text: LLM, llm: LLM) -> None:
    ids = list(range(100))
    for side, kept in (("left", ids[-5:]), ("right", ids[:5]), ("middle", [0, 1, 2, 98, 99])):
        out = llm.generate(ids, GREEDY.replace(truncate_prompt_tokens=5, truncation_side=side))[0]
        assert (out.prompt_token_ids, out.num_truncated_tokens) == (kept, 95)
    out = llm.generate([1] * 3000, GREEDY.replace(truncate_prompt_tokens=-1, max_tokens=8))[0]
    assert len(out.prompt_token_ids) == 2040
    words = text.generate("one two three four", GREEDY.replace(truncate_prompt_tokens=2))[0]
    assert words.prompt == text.get_tokenizer().decode(words.prompt_token_ids)


def test_chat(text: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    params = SamplingParams(max_tokens=16, seed=2)
    for thinking in (None, "enabled", "disabled", True, False):
        (out,) = text.chat(messages, params, thinking=thinking)
        rendered = text.apply_chat_template(messages, thinking=thinking)
        assert out.prompt_token_ids == rendered
        assert out.prompt == text.apply_chat_template(messages, thinking=thinking, tokenize=False)
        message = out.outputs[0].message
        assert message is not None
        joined = "".join(
            out.outputs[0].text[s.start : s.end] for s in message.raw_spans if s.kind == "content"
        )
        assert joined == message.content
        if (
            thinking in ("enabled", True)
            and out.outputs[0].finish_reason == "length"
            and "</mm:think>" not in out.outputs[0].text
        ):
            assert message.content == ""
            assert message.reasoning_content
    several = text.chat([messages, messages], params, thinking=["enabled", "disabled"])
    assert several[0].prompt_token_ids != several[1].prompt_token_ids
    assert text.chat(messages, params, parse=False)[0].outputs[0].message is None


def test_chat_stream_equals_chat(text: LLM) -> None:
    messages = [{"role": "user", "content": "Tell me more"}]
    params = SamplingParams(max_tokens=24, seed=9)
    (whole,) = text.chat(messages, params, thinking="enabled")
    content = reasoning = ""
    last = None
    for piece in text.chat_stream(messages, params, thinking="enabled"):
        for delta in piece.outputs[0].deltas:
            content += delta.content or ""
            reasoning += delta.reasoning_content or ""
        last = piece.outputs[0].message
    message = whole.outputs[0].message
    assert (content, reasoning or None) == (message.content, message.reasoning_content)
    assert last.content == message.content


# ---------------------------------------------------------------- what it says about itself


def test_defaults_come_from_the_checkpoint(text: LLM) -> None:
    params = text.get_default_sampling_params()
    assert (params.temperature, params.top_k) == (0.7, 40)
    assert "generation_config.json" in params.describe()
    params.top_k = 1
    assert text.get_default_sampling_params().top_k == 40


def test_generation_config_can_be_ignored(tmp_path: Path) -> None:
    with text_llm(tmp_path / "m", generation_config="none") as plain:
        assert plain.get_default_sampling_params() == SamplingParams()
    with text_llm(tmp_path / "m", override_generation_config={"top_p": 0.5}) as changed:
        assert changed.get_default_sampling_params().top_p == 0.5


def test_repr_stats_memory(llm: LLM) -> None:
    assert "text_d32" in repr(llm)
    assert "<table>" in llm._repr_html_()
    stats = llm.stats()
    assert (
        stats.num_blocks == stats.num_blocks_free + stats.num_blocks_cached + stats.num_blocks_used
    )
    assert stats.num_generation_tokens > 0
    assert 0 <= stats.prefix_hit_rate <= 1
    report = llm.memory_report()
    assert report.total("host") == stats.host_memory > 0
    assert stats.device_memory == ([report.total("device")] if report.total("device") else [])
    assert "KV" in str(report)
    assert dict(llm.get_metrics())["num_steps"] >= stats.num_steps
    assert llm.llm_engine.model_config.max_model_len == 2048
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.model_config.hf_config.text_config.vocab_size == 256


def test_reset_prefix_cache(llm: LLM) -> None:
    prompt = [9] * 300
    llm.generate(prompt, GREEDY)
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 256
    llm.reset_mm_cache()  # there are no media: nothing is dropped
    llm.reset_encoder_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 256
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


def test_salt_separates_prefixes(llm: LLM) -> None:
    ids = [8] * 300
    salted = {"prompt_token_ids": ids, "cache_salt": "tenant"}
    llm.generate(ids, GREEDY)
    assert llm.generate(salted, GREEDY)[0].num_cached_tokens == 0
    assert llm.generate(salted, GREEDY)[0].num_cached_tokens == 256


def test_metrics_are_filled(llm: LLM) -> None:
    m = llm.generate([4] * 50, GREEDY)[0].metrics
    assert m.arrival_time <= m.scheduled_ts <= m.first_token_ts <= m.last_token_ts <= m.finished_ts
    assert (m.num_prompt_tokens, m.num_generation_tokens) == (50, 12)
    assert m.ttft > 0 and m.e2e > 0


def test_outputs_are_picklable_and_free_of_the_engine(llm: LLM) -> None:
    out = llm.generate([PROMPT, PROMPT], GREEDY.replace(logprobs=2, prompt_logprobs=1))
    data = pickle.dumps(out)
    assert len(data) < 200_000
    assert pickle.loads(data) == out


def test_an_llm_is_not_picklable(llm: LLM) -> None:
    with pytest.raises(TypeError, match="inside the worker"):
        pickle.dumps(llm)


def test_bad_use_tqdm_bar_class_is_used(llm: LLM) -> None:
    made: list[object] = []

    class Bar:
        def __init__(self, **kwargs: object) -> None:
            made.append(kwargs["total"])
            self.n = 0

        def update(self, n: int) -> None:
            self.n += n
            made.append(n)

        def close(self) -> None:
            made.append("closed")

    llm.generate([[1], [2], [3]], GREEDY, use_tqdm=Bar)
    assert made[0] == 3
    assert made[-1] == "closed"
    assert sum(n for n in made[1:-1]) == 3


def test_lifetime() -> None:
    before = len(live_engines())
    first = ids_llm()
    with ids_llm() as second:
        assert len(live_engines()) == before + 2
        assert tokens(first.generate(PROMPT, GREEDY)[0]) == tokens(
            second.generate(PROMPT, GREEDY)[0]
        )
    assert second.closed
    first.shutdown()
    first.close()
    assert len(live_engines()) == before
    assert "closed" in repr(first)
    third = ids_llm()
    del third
    assert len(live_engines()) == before


def test_priority_goes_first() -> None:
    # The first is the most urgent and long: the others are all queued before it ends.
    lengths = [400, 4, 4, 4, 4, 4]
    with ids_llm(scheduling_policy="priority", max_num_seqs=1) as one:
        order = [
            i
            for i, _ in one.generate_iter(
                [[i + 1] for i in range(6)],
                [GREEDY.replace(max_tokens=n, ignore_eos=True) for n in lengths],
                priority=[-1, 4, 3, 2, 1, 0],
            )
        ]
        assert order == [0, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("n", [1, 3])
def test_samples_come_in_order(llm: LLM, n: int) -> None:
    out = llm.generate(PROMPT, SamplingParams(n=n, seed=1, max_tokens=5, ignore_eos=True))[0]
    assert [o.index for o in out.outputs] == list(range(n))
    params = SamplingParams(n=n, seed=1, max_tokens=5, ignore_eos=True)
    assert llm.submit(PROMPT, params).result().outputs == out.outputs

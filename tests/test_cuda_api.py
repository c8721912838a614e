"""The Python face on CUDA: what tests/test_api_*.py show on a CPU, against the cpu backend in the
same types.

Tokens are compared up to a near tie (two log-probabilities closer than TIE on the cpu). Where both
backends read the same tokens, values may differ by what another order of sums does to a bf16 model:
LOGPROB_USUAL in the median, LOGPROB for all but the few positions where a router's near tie falls
the other way (LOGPROB_FLIP; one value, or one in seven). Through an emulated device (MM_CUDA_SO of
tests/emu) requests are shorter, and what takes it more than some seconds is `slow`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from checkpoint_files import GOLDEN
from test_cuda_golden import NANO, first_difference, is_emulated, nmse

from minimax_m31 import (
    LLM,
    ConfigError,
    OutOfDeviceMemoryError,
    RequestOutput,
    SamplingParams,
    StructuredOutputsParams,
    derive_seed,
)

EMULATED = is_emulated()
pytestmark = [] if EMULATED else [pytest.mark.gpu]

MODEL = GOLDEN / "m31_d128"  # 4 layers, 384 ids, no tokenizer
N_VOCAB = 384
TIE = 0.25
LOGPROB_USUAL, LOGPROB, LOGPROB_FLIP = 0.04, 0.15, 2.0  # of logits with a deviation of about 1
LONG = 24 if EMULATED else 3000  # tokens of a request that is still running when it is looked at
WAIT = 120.0

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
RUNNING = GREEDY.replace(max_tokens=LONG)
PROMPTS = [[i + 1, 7, 9 + i] for i in range(8)]
TEXT = [(11 * i + 5) % 300 for i in range(20)]  # tokens that are scored

Array = npt.NDArray[Any]


def slow_if_emulated(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.slow(test) if EMULATED else test


def open_llm(backend: str, model: Path | str = MODEL, **options: Any) -> LLM:
    given: dict[str, Any] = {
        "backend": backend,
        "dtype": "bfloat16",
        "kv_cache_dtype": "bf16",
        "indexer_kv_dtype": "bf16",
        "max_model_len": 4096,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": 64 << 20,
        "seed": 0,
    }
    return LLM(model, **given | ({"threads": 1} if backend == "cpu" else {}) | options)


@pytest.fixture(scope="module")
def cuda() -> Iterator[LLM]:
    with open_llm("cuda", max_logprobs=-1) as engine:
        yield engine


@pytest.fixture(scope="module")
def cpu() -> Iterator[LLM]:
    with open_llm("cpu", max_logprobs=-1) as engine:
        yield engine


@pytest.fixture(scope="module")
def nano() -> Iterator[dict[str, LLM]]:
    """The trained model on both."""
    if not (NANO / "config.json").is_file():
        pytest.skip("this build holds no nano checkpoint")
    with open_llm("cuda", "nano") as device, open_llm("cpu", "nano") as host:
        yield {"cuda": device, "cpu": host}


def tokens_of(output: RequestOutput) -> list[int]:
    return output.outputs[0].token_ids


def generate(llm: LLM, prompts: Any, params: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def near(got: Any, want: Any) -> Array:
    """Log-probabilities of the same tokens: within the tolerances of this file."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
    error = np.abs(got - want)[np.isfinite(want)]
    flipped = int((error > LOGPROB).sum())
    assert np.median(error) <= LOGPROB_USUAL and error.max() <= LOGPROB_FLIP, error
    assert flipped <= max(1, error.size // 7), error
    return np.asarray(error)


def close(got: Any, want: Any) -> None:
    """`near`, and not the very same numbers, which only a cpu in disguise would give."""
    error = near(got, want)
    assert error.size < 8 or error.max() > 0


def agree(want: RequestOutput, got: RequestOutput) -> int:
    """Greedy tokens with logprobs=2: the length on which both agree; a difference must be a tie."""
    a, b = want.outputs[0], got.outputs[0]
    n = min(len(a.token_ids), len(b.token_ids))
    at = first_difference(a.token_ids[:n], b.token_ids[:n])
    if at < n:
        assert a.logprobs is not None
        values = sorted((e.logprob for e in (a.logprobs[at] or {}).values()), reverse=True)
        assert values[0] - values[1] < TIE, (at, values)
    return at


# ---------------------------------------------------------------- text and messages

QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]


def get_weather(city: str) -> str:
    """Get the current weather of a city.

    Args:
        city: Name of the city.
    """
    return f"sunny in {city}"


def test_text_and_chat_are_those_of_the_cpu(nano: dict[str, LLM]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2)
    made = {
        name: llm.chat(QUESTION, params, thinking="disabled", use_tqdm=False)[0]
        for name, llm in nano.items()
    }
    assert agree(made["cpu"], made["cuda"]) == len(tokens_of(made["cpu"]))
    message = made["cuda"].outputs[0].message
    assert message is not None and message.content == "42" and message.finish_reason == "stop"
    # the same conversation as text
    text = nano["cuda"].apply_chat_template(QUESTION, thinking="disabled", tokenize=False)
    again = generate(nano["cuda"], text, params)[0]
    assert again.prompt_token_ids == made["cuda"].prompt_token_ids
    assert again.outputs[0].text == "42" and tokens_of(again) == tokens_of(made["cuda"])


@slow_if_emulated
def test_thinking_and_a_tool_call(nano: dict[str, LLM]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=120, logprobs=2)
    for messages, tools in ((QUESTION, None), (WEATHER, [get_weather])):
        asked: dict[str, Any] = {"thinking": "enabled", "tools": tools}
        (want,) = nano["cpu"].chat(messages, params, use_tqdm=False, **asked)
        pieces = list(nano["cuda"].chat_stream(messages, params, **asked))
        ids = [token for piece in pieces for token in tokens_of(piece)]
        assert first_difference(ids[:8], tokens_of(want)[:8]) == 8
        (got,) = nano["cuda"].chat(messages, params, use_tqdm=False, **asked)
        assert tokens_of(got) == ids
        agree(want, got)
        message = got.outputs[0].message
        assert message is not None and message.reasoning_content and message.parse_error is None
        if tools is None:
            assert message.content == "42"
        else:
            (call,) = message.tool_calls
            assert call.function.name == "get_weather"
            assert json.loads(call.function.arguments) == {"city": "Paris"}


@slow_if_emulated
def test_longer_greedy_text_up_to_a_near_tie(nano: dict[str, LLM]) -> None:
    questions = ["What is 8 * 7?", "Reverse the word lamp.", "What is the capital of France?"]
    ask = nano["cpu"].apply_chat_template
    prompts = [
        ask([{"role": "user", "content": q}], thinking="enabled", tokenize=False) for q in questions
    ]
    params = SamplingParams(temperature=0.0, max_tokens=48, logprobs=2)
    made = [generate(nano[name], prompts, params) for name in ("cpu", "cuda")]
    lengths = [agree(want, got) for want, got in zip(*made, strict=True)]
    assert sum(lengths) >= 24  # near ties are rare in a trained model


# ---------------------------------------------------------------- log-probabilities


def rows(output: RequestOutput) -> Array:
    """float64 [tokens, vocabulary] of an output with logprobs=-1; -inf where nothing is said."""
    table = output.outputs[0].logprobs
    assert table is not None
    made = np.full((len(table), N_VOCAB), -np.inf)
    for i, row in enumerate(table):
        for token, entry in (row or {}).items():
            made[i, token] = entry.logprob
    return made


def log_softmax(x: Array) -> Array:
    top = x.max(axis=1, keepdims=True)
    return np.asarray(x - top - np.log(np.exp(x - top).sum(axis=1, keepdims=True)))


MODES = (
    "raw_logits",
    "raw_logprobs",
    "tempered_logprobs",
    "processed_logits",
    "processed_logprobs",
)


def test_modes_of_logprobs(cuda: LLM, cpu: LLM) -> None:
    """The same forced tokens in all modes and on both; among themselves the modes are exact."""
    forced = [5, 17, 200, 44]
    base = SamplingParams(
        temperature=0.6, repetition_penalty=1.2, logit_bias={3: 1.5}, logprobs=-1, max_tokens=4,
        ignore_eos=True, trace_decode_token_ids=forced, return_sampling_logprob=True,
    )  # fmt: skip
    params = [base.replace(logprobs_mode=mode) for mode in MODES]
    params.append(base.replace(logprobs_mode="processed_logprobs", top_p=0.9))
    made: dict[str, list[Array]] = {}
    for name, llm in (("cuda", cuda), ("cpu", cpu)):
        outputs = generate(llm, [TEXT[:6]] * len(params), params)
        assert all(tokens_of(output) == forced for output in outputs)
        made[name] = [rows(output) for output in outputs]
        sampled = outputs[4].outputs[0]
        assert sampled.token_logprobs is not None and sampled.sampling_logprobs is not None
        np.testing.assert_allclose(sampled.sampling_logprobs, sampled.token_logprobs, atol=1e-6)
    for got, want in zip(made["cuda"][:5], made["cpu"][:5], strict=True):
        error = np.abs(got - want)
        assert np.median(error) <= 2 * LOGPROB_USUAL  # of numbers divided by the temperature
        worst = error.max(axis=1)  # of each token
        assert (worst > 3 * LOGPROB).sum() <= 1 and 0 < worst.max() <= 2 * LOGPROB_FLIP
    logits, raw, tempered, processed_logits, processed, cut = made["cuda"]
    np.testing.assert_allclose(raw, log_softmax(logits), atol=1e-5)
    np.testing.assert_allclose(tempered, log_softmax(logits / 0.6), atol=2e-5)
    np.testing.assert_allclose(processed, log_softmax(processed_logits), atol=2e-5)
    for row, other in zip(cut, processed, strict=True):
        kept = np.isfinite(row)
        assert 1 <= kept.sum() < N_VOCAB
        shift = row[kept] - other[kept]
        assert shift.max() - shift.min() < 1e-5 and abs(np.exp(row[kept]).sum() - 1) < 1e-5


def test_prompt_logprobs_with_a_start_and_named_ids(cuda: LLM, cpu: LLM) -> None:
    ids = [(7 * i) % 300 for i in range(140)]
    params = GREEDY.replace(
        max_tokens=1, prompt_logprobs=3, prompt_logprob_start=130, logprob_token_ids=[7, 200]
    )
    made = []
    for llm in (cpu, cuda):
        cold, warm = (generate(llm, ids, params)[0] for _ in range(2))
        assert warm.num_cached_tokens == 128 and cold.num_cached_tokens == 0
        for output in (cold, warm):
            table = output.prompt_logprobs
            assert table is not None and len(table) == 140
            assert list(table[:130]) == [None] * 130
            made.append([table[i][ids[i]].logprob for i in range(130, 140)])
        assert warm.outputs[0].logprobs is not None
        named = warm.outputs[0].logprobs[0]
        assert set(named) == {7, 200, tokens_of(warm)[0]}
        made[-1] += [named[7].logprob, named[200].logprob]
        made[-2] += made[-1][-2:]
    close(made[2], made[0])
    close(made[3], made[1])
    assert generate(cuda, ids, params.replace(prompt_logprob_start=0))[0].num_cached_tokens == 0


def test_scores_likelihoods_and_perplexity(cuda: LLM, cpu: LLM) -> None:
    asked: dict[str, Any] = {"start": 2, "top_k": 4, "token_ids": [7], "temperature": 0.6}
    got, want = (llm.score_tokens([TEXT], use_tqdm=False, **asked)[0] for llm in (cuda, cpu))
    assert len(got) == len(TEXT) - 2 and got.start == 2
    close(got.logprobs, want.logprobs)
    close(got.token_id_logprobs, want.token_id_logprobs)
    assert got.top_logprobs is not None and want.top_logprobs is not None
    close(got.top_logprobs[:, 0], want.top_logprobs[:, 0])
    # by their own logits, in double precision
    logp = log_softmax(cuda.compute_logits(TEXT).astype(np.float64) / 0.6)
    own = [logp[i, TEXT[i + 1]] for i in range(1, len(TEXT) - 1)]
    near(got.logprobs, own)  # a step of other rows: perhaps other sums
    pairs: tuple[list[list[int]], list[list[int]]] = ([TEXT[:9]] * 2, [TEXT[9:12], [5]])
    a, b = (llm.loglikelihood(*pairs, use_tqdm=False) for llm in (cuda, cpu))
    assert [greedy for _, greedy in a] == [greedy for _, greedy in b]
    close([x for x, _ in a], [x for x, _ in b])
    one, two = (
        llm.perplexity([TEXT], max_length=12, stride=6, prefix_token_id=1, use_tqdm=False)[0]
        for llm in (cuda, cpu)
    )
    assert one.num_tokens == len(TEXT) and one.num_windows == two.num_windows > 1
    close(one.token_logprobs, two.token_logprobs)
    assert one.perplexity == pytest.approx(two.perplexity, rel=0.02)


def test_traces_of_blocks_and_experts(cuda: LLM, cpu: LLM) -> None:
    prompts = [TEXT[:12], [9, 8, 7]]
    want = cpu.trace(prompts)
    forced: dict[str, Any] = {
        "force_blocks": [one.blocks for one in want],
        "force_experts": [one.experts for one in want],
    }
    for a, b in zip(cuda.trace(prompts, **forced), want, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist()
        for i in range(4):
            assert nmse(a.hidden[i], b.hidden[i]).max() <= 5e-3
            for name in ("blocks", "experts"):
                x, y = getattr(a, name)[i], getattr(b, name)[i]
                assert (x is None) == (y is None)
                if x is not None:
                    np.testing.assert_array_equal(x, y)
            if b.expert_weights[i] is not None:
                np.testing.assert_allclose(a.expert_weights[i], b.expert_weights[i], atol=0.02)
    alone = cuda.trace(prompts[1], what=("experts", "logits"))
    assert alone.hidden is None and alone.logits.shape == (3, N_VOCAB)
    same = [
        np.mean(x == y)
        for x, y in zip(alone.experts, want[1].experts, strict=True)
        if x is not None
    ]
    assert min(same) >= 0.7  # free choices differ at near ties only


# ---------------------------------------------------------------- requests


def test_samples_of_a_group_are_single_requests(cuda: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=4, ignore_eos=True, logprobs=0)
    group = generate(cuda, PROMPTS[0], params)[0]
    single = [params.replace(n=1, seed=derive_seed(5, j)) for j in range(3)]
    alone = generate(cuda, [PROMPTS[0]] * 3, single)
    assert [o.token_ids for o in group.outputs] == [tokens_of(o) for o in alone]
    assert len({tuple(o.token_ids) for o in group.outputs}) == 3
    for one, other in zip(group.outputs, alone, strict=True):
        assert one.token_logprobs is not None
        np.testing.assert_array_equal(one.token_logprobs, other.outputs[0].token_logprobs)


def test_batch_invariant_is_bit_equal_alone_and_among_sixty_four() -> None:
    params = SamplingParams(temperature=0.8, seed=9, max_tokens=3, ignore_eos=True, logprobs=2)
    size = 16 if EMULATED else 64
    with open_llm("cuda", max_num_seqs=64, deterministic="batch_invariant") as llm:
        others = [[i % 300 + 1, 7 + i] for i in range(size - 1)]
        alone = generate(llm, TEXT, params)[0]
        among = generate(llm, [*others[:10], TEXT, *others[10:]], params)[10]
        made = [TEXT + tokens_of(alone)]
        scored = llm.score_tokens(made, start=len(TEXT), temperature=1.0, use_tqdm=False)[0]
    assert tokens_of(alone) == tokens_of(among)
    a, b = alone.outputs[0], among.outputs[0]
    assert a.logprobs is not None and b.logprobs is not None
    for x, y in zip(a.logprobs, b.logprobs, strict=True):
        assert {k: e.logprob for k, e in x.items()} == {k: e.logprob for k, e in y.items()}
    # the same kernels score what they generated: equal, as a trainer's old policy should be
    np.testing.assert_array_equal(scored.logprobs, a.token_logprobs)


def test_iteration_abort_and_timeouts(cuda: LLM) -> None:
    expected = [tokens_of(o) for o in generate(cuda, PROMPTS, GREEDY)]
    got = dict(cuda.generate_iter(PROMPTS, GREEDY, use_tqdm=False))
    assert [tokens_of(got[i]) for i in range(len(PROMPTS))] == expected
    pieces = cuda.generate_iter(PROMPTS[:2], [GREEDY, RUNNING], use_tqdm=False)
    index, first = next(pieces)
    assert (index, tokens_of(first)) == (0, expected[0])
    pieces.close()  # type: ignore[attr-defined]
    wait_until(lambda: cuda.stats().num_running + cuda.stats().num_waiting == 0)
    handle = cuda.submit(PROMPTS[1], RUNNING.replace(logprobs=0))
    wait_until(lambda: handle.partial() is not None)
    assert handle.abort()
    cut = handle.result(WAIT).outputs[0]
    assert cut.finish_reason == "abort" and 0 < len(cut.token_ids) < LONG
    assert cut.token_logprobs is not None and len(cut.token_logprobs) == len(cut.token_ids)
    assert cut.token_ids[:4] == expected[1][: len(cut.token_ids)]
    late = cuda.generate(PROMPTS[2], RUNNING, timeout=0.02, use_tqdm=False)[0].outputs[0]
    assert late.finish_reason == "abort" and len(late.token_ids) < LONG
    assert tokens_of(generate(cuda, PROMPTS[2], GREEDY)[0]) == expected[2]
    streamed = [t for o in cuda.generate_stream(PROMPTS[3], GREEDY) for t in tokens_of(o)]
    assert streamed == expected[3]


def test_async_and_threads(cuda: LLM) -> None:
    expected = [tokens_of(o) for o in generate(cuda, PROMPTS[:4], GREEDY)]

    async def main() -> None:
        engine = cuda.as_async()
        outputs = await asyncio.gather(*(engine.generate_one(p, GREEDY) for p in PROMPTS[:3]))
        assert [tokens_of(o) for o in outputs] == expected[:3]
        seen = [tokens_of(o) async for o in engine.generate(PROMPTS[3], GREEDY)]
        assert seen[-1] == expected[3]
        task = asyncio.ensure_future(engine.generate_one(PROMPTS[0], RUNNING))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_until(lambda: cuda.stats().num_running + cuda.stats().num_waiting == 0)
    assert cuda.stats().num_blocks_used == 0
    found: dict[int, list[int]] = {}
    threads = [
        threading.Thread(
            target=lambda i=i: found.update({i: tokens_of(generate(cuda, PROMPTS[i], GREEDY)[0])})
        )
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert [found[i] for i in range(4)] == expected


def test_min_finished_and_pauses(cuda: LLM) -> None:
    params = [GREEDY if i < 2 else RUNNING for i in range(4)]
    got = dict(cuda.generate_iter(PROMPTS[:4], params, min_finished=2, use_tqdm=False))
    ends = [got[i].outputs[0].finish_reason for i in range(4)]
    assert ends == ["length", "length", "abort", "abort"]

    whole = tokens_of(generate(cuda, PROMPTS[0], RUNNING)[0])
    handle = cuda.submit(PROMPTS[0], RUNNING)
    wait_until(lambda: handle.partial() is not None)
    cuda.pause_generation("keep")
    partial, steps = handle.partial(), cuda.stats().num_steps
    assert cuda.is_paused and partial is not None and not partial.finished
    late = cuda.submit(PROMPTS[1], GREEDY)
    time.sleep(0.1)
    assert cuda.stats().num_steps == steps and late.partial() is None
    cuda.resume_generation()
    assert tokens_of(handle.result(WAIT)) == whole and late.result(WAIT).finished

    handle = cuda.submit(PROMPTS[0], RUNNING)
    wait_until(lambda: handle.partial() is not None)
    cuda.pause_generation("abort")
    cut = handle.result(WAIT).outputs[0]
    cuda.resume_generation()
    assert cut.finish_reason == "abort" and cut.token_ids == whole[: len(cut.token_ids)]
    more = RUNNING.replace(max_tokens=min(4, LONG - len(cut.token_ids)))
    after = tokens_of(generate(cuda, PROMPTS[0] + cut.token_ids, more)[0])
    assert after[0] == whole[len(cut.token_ids)]


# ---------------------------------------------------------------- constraints


def test_constrained_answers_are_valid() -> None:
    """A model without training, two layers of nano's shape: only the masks make its answers fit."""
    pytest.importorskip("llguidance")
    if not (NANO / "config.json").is_file():
        pytest.skip("this build holds no nano checkpoint")
    schema = {
        "type": "object",
        "properties": {"answer": {"enum": [41, 42]}, "sure": {"type": "boolean"}},
        "required": ["answer", "sure"],
        "additionalProperties": False,
    }
    small = {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 2}}
    with open_llm("cuda", "nano", **small) as llm:
        base = SamplingParams(temperature=1.0, seed=1, max_tokens=40)
        constraints: list[dict[str, Any]] = [
            {"json": schema, "whitespace": "compact"},
            {"choice": ["forty", "42"]},
            {"regex": "[0-9]{3}"},
        ]
        params = [
            base.replace(structured_outputs=StructuredOutputsParams(**c)) for c in constraints
        ]
        free = base.replace(max_tokens=4)
        outputs = llm.chat([QUESTION] * 4, [*params, free], thinking="disabled", use_tqdm=False)
        alone = llm.chat(QUESTION, free, thinking="disabled", use_tqdm=False)[0]
    texts = []
    for output in outputs[:3]:
        assert output.error is None and output.outputs[0].finish_reason == "stop"
        message = output.outputs[0].message
        assert message is not None
        texts.append(message.content)
    answer = json.loads(texts[0])
    assert answer["answer"] in (41, 42) and isinstance(answer["sure"], bool) and len(answer) == 2
    assert texts[1] in ("forty", "42") and texts[2].isdigit() and len(texts[2]) == 3
    assert tokens_of(outputs[3]) == tokens_of(alone)  # a free request beside them is not touched


# ---------------------------------------------------------------- memory


def free_memory() -> int:
    """Of the device, as its driver says now."""
    return LLM.plan(MODEL, backend="cuda").device.memory_free


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_cache_dtype": "nvfp4", "indexer_kv_dtype": "fp8", "max_num_seqs": 40},
        {"max_num_batched_tokens": 512, "max_logprobs": 300, "enforce_eager": True},
    ],
)
def test_plan_is_what_the_engine_holds(options: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "backend": "cuda",
        "max_model_len": 1024,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
        "kv_cache_memory_bytes": 16 << 20,
        **options,
    }
    plan = LLM.plan(MODEL, **given)
    before = free_memory()
    with LLM(MODEL, skip_tokenizer_init=True, **given) as llm:
        report, info = llm.memory_report(), llm._info
        assert llm.stats().device_memory == [report.total("device")]
        taken = before - free_memory()
    assert plan.fits and (plan.n_page, plan.page_bytes) == (info["n_page"], info["page_bytes"])
    reserve = plan.total("device", "reserve")
    held = report.total("device")
    assert plan.total("device") - reserve == pytest.approx(held, rel=0.01)
    assert plan.total("host") == pytest.approx(report.total("host"), rel=0.01)
    engine = {what: size for what, kind, size in report.lines if kind == "device"}
    for line in plan.lines:
        if line.where == "device" and line.group in ("caches", "work"):
            assert line.n_bytes == engine.get(line.what, 0), line.what  # to the byte
    # by the driver's count: graphs are an estimate from above, allocations are rounded up
    graphs = sum(size for what, size in engine.items() if "graph" in what)
    assert held - graphs <= taken + (4 << 20) and taken <= held + reserve + (64 << 20)


def test_three_shutdowns_return_the_memory() -> None:
    begin = free_memory()
    kept, texts, after = [], [], []
    for _ in range(3):
        llm = open_llm("cuda")
        kept.append(llm)
        texts.append(tokens_of(generate(llm, PROMPTS[0], GREEDY)[0]))
        assert begin - free_memory() >= 64 << 20  # the pages alone
        llm.shutdown()
        llm.shutdown()
        after.append(free_memory())
    assert texts[0] == texts[1] == texts[2]
    assert all(abs(n - begin) <= 0.01 * begin for n in after)
    assert max(after) - min(after) <= 8 << 20 and all(llm.closed for llm in kept)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "float32", "kv_cache_dtype": "auto", "indexer_kv_dtype": "auto"}, "dtype"),
    ({"kv_cache_dtype": "float32"}, "kv_cache_dtype|float32"),
    ({"device_ids": [99]}, "device"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size=2"),
    ({"kv_cache_memory_bytes": 1000}, "kv_cache_memory_bytes=1000"),
    ({"cuda_graph_batch_sizes": [0]}, "cuda_graph_batch_sizes"),
    ({"cuda_graph_batch_sizes": [1 << 40]}, "cuda_graph_batch_sizes"),
    ({"cuda_graph_batch_sizes": [9, 16]}, "max_num_seqs=8.*enforce_eager=True"),
    ({"cuda_graph_batch_sizes": [*range(1, 70)], "max_num_seqs": 80}, "at most 64"),
    ({"gpu_memory_utilization": float("nan")}, "gpu_memory_utilization=nan"),
    ({"gpu_memory_utilization": 1.01}, r"gpu_memory_utilization=1.01: it must lie in \(0, 1\]"),
    ({"shard": (8, 8)}, r"shard=\(8, 8\): \(rank, world\) with 0 <= rank < world"),
    ({"shard": (0, 3)}, "num_attention_heads 4 cannot be cut into 3"),
    ({"max_model_len": 1 << 22}, "max_model_len=4194304"),
    ({"block_size": 64}, "block_size"),
]


@pytest.mark.parametrize(("options", "name"), BAD)
def test_bad_settings_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        open_llm("cuda", **options)


def test_memory_that_is_short_comes_with_its_plan() -> None:
    before = free_memory()
    with pytest.raises(OutOfDeviceMemoryError, match="kv_cache_memory_bytes=") as error:
        open_llm("cuda", kv_cache_memory_bytes=1 << 50)
    assert error.value.plan is not None and "DOES NOT FIT" in repr(error.value.plan)
    assert before - free_memory() <= 8 << 20

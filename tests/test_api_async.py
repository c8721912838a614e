"""AsyncLLM and awaited handles: any running loop, several at once, cancelled tasks."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_models import ids_llm, text_llm

from minimax_m31 import (
    LLM,
    AsyncLLM,
    EngineClosedError,
    InvalidRequestError,
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


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    return [o.outputs[0].token_ids for o in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def settled(llm: LLM) -> bool:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        stats = llm.stats()
        if stats.num_running + stats.num_waiting == 0 and stats.num_blocks_used == 0:
            return True
        time.sleep(0.01)
    return False


def test_u29_streams_in_a_running_loop(llm: LLM) -> None:
    whole = llm.generate(PROMPTS[0], LONG)[0].outputs[0].token_ids

    async def main() -> None:
        engine = llm.as_async()
        lengths = []
        async for output in engine.generate(PROMPTS[0], LONG):
            tokens = output.outputs[0].token_ids
            assert tokens == whole[: len(tokens)]
            lengths.append(len(tokens))
            assert output.finished == (len(tokens) == len(whole))
        assert lengths == sorted(set(lengths))
        assert lengths[-1] == len(whole)
        assert len(lengths) > 10

    asyncio.run(main())


def test_kinds_of_output(llm: LLM, expected: list[list[int]]) -> None:
    async def main() -> None:
        engine = llm.as_async()
        delta = GREEDY.replace(output_kind=RequestOutputKind.DELTA)
        pieces = [o async for o in engine.generate(PROMPTS[1], delta)]
        assert sum((o.outputs[0].token_ids for o in pieces), []) == expected[1]
        assert pieces[0].prompt_token_ids == PROMPTS[1]
        final = GREEDY.replace(output_kind=RequestOutputKind.FINAL_ONLY)
        only = [o async for o in engine.generate(PROMPTS[1], final)]
        assert [o.outputs[0].token_ids for o in only] == [expected[1]]
        assert (await engine.generate_one(PROMPTS[1], GREEDY)).outputs[0].token_ids == expected[1]
        assert delta.output_kind is RequestOutputKind.DELTA

    asyncio.run(main())


def test_hundreds_at_once(llm: LLM, expected: list[list[int]]) -> None:
    async def main() -> list[list[int]]:
        engine = llm.as_async()
        outputs = await asyncio.gather(
            *(engine.generate_one(PROMPTS[i % len(PROMPTS)], GREEDY) for i in range(300))
        )
        return [o.outputs[0].token_ids for o in outputs]

    got = asyncio.run(main())
    assert got == [expected[i % len(PROMPTS)] for i in range(300)]
    names = [t.name for t in threading.enumerate() if t.name.startswith("minimax_m31")]
    assert len(names) <= 6  # not one for each request


def test_a_loop_that_is_closed_ends_its_streams(llm: LLM) -> None:
    """Even one whose tasks nobody cancelled."""
    loop = asyncio.new_event_loop()

    async def read() -> None:
        async for _ in llm.as_async().generate(PROMPTS[0], LONG):
            pass

    before = llm.stats().num_aborted
    task = loop.create_task(read())
    loop.run_until_complete(asyncio.sleep(0.05))
    assert not task.done()
    loop.close()
    assert settled(llm)
    assert llm.stats().num_aborted == before + 1
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_several_loops_at_once(llm: LLM, expected: list[list[int]]) -> None:
    engine = llm.as_async()
    got: dict[int, list[list[int]]] = {}

    async def some(k: int) -> None:
        async def last(i: int) -> list[int]:
            tokens: list[int] = []
            async for output in engine.generate(PROMPTS[i], GREEDY):
                tokens = output.outputs[0].token_ids
            return tokens

        got[k] = await asyncio.gather(*(last(i) for i in range(k, len(PROMPTS), 4)))

    threads = [threading.Thread(target=lambda k=k: asyncio.run(some(k))) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == {k: expected[k::4] for k in range(4)}


def test_uvloop(llm: LLM, expected: list[list[int]]) -> None:
    uvloop = pytest.importorskip("uvloop")
    engine = llm.as_async()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        output = runner.run(engine.generate_one(PROMPTS[2], GREEDY))
    assert output.outputs[0].token_ids == expected[2]


def test_leaving_the_loop_aborts(llm: LLM) -> None:
    async def main() -> None:
        engine = llm.as_async()
        stream = engine.generate(PROMPTS[0], LONG, "left")
        async for output in stream:
            assert not output.finished
            break
        await stream.aclose()
        assert "left" not in llm._active or llm.abort("left") == 0

    asyncio.run(main())
    assert settled(llm)


def test_cancelling_a_task_aborts(llm: LLM) -> None:
    async def main() -> None:
        engine = llm.as_async()
        aborted = llm.stats().num_aborted
        for work in (engine.generate_one(PROMPTS[0], LONG), _drain(engine)):
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert settled(llm)
        assert llm.stats().num_aborted == aborted + 2

    asyncio.run(main())


async def _drain(engine: AsyncLLM) -> None:
    async for _ in engine.generate(PROMPTS[1], LONG):
        pass


def test_a_timeout_around_a_request(llm: LLM) -> None:
    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.as_async().generate_one(PROMPTS[0], LONG), 0.1)

    asyncio.run(main())
    assert settled(llm)


def test_the_loop_is_not_held_up(llm: LLM) -> None:
    """Other tasks run on while requests do."""

    async def main() -> None:
        engine = llm.as_async()
        work = asyncio.gather(*(engine.generate_one(p, LONG) for p in PROMPTS[:8]))
        gaps = []
        while not work.done():
            before = time.monotonic()
            await asyncio.sleep(0.005)
            gaps.append(time.monotonic() - before)
        await work
        assert sorted(gaps)[len(gaps) // 2] < 0.05

    asyncio.run(main())


def test_errors_come_from_the_call(llm: LLM) -> None:
    async def main() -> None:
        engine = llm.as_async()
        with pytest.raises(InvalidRequestError, match="99999"):
            await engine.generate_one([1, 99999], GREEDY)
        with pytest.raises(InvalidRequestError, match="one prompt"):
            async for _ in engine.generate([[1], [2]], GREEDY):
                pass
        allowed = SamplingParams(allowed_token_ids=[3], logit_bias={3: float("-inf")}, max_tokens=4)
        with pytest.raises(InvalidRequestError, match="no token is allowed"):
            await engine.generate_one([1], allowed)

    asyncio.run(main())


def test_closing_ends_what_waits() -> None:
    async def main() -> None:
        async with AsyncLLM.of(ids_llm()) as engine:
            task = asyncio.ensure_future(engine.generate_one(PROMPTS[0], LONG))
            await asyncio.sleep(0.05)
        with pytest.raises(EngineClosedError):
            await task
        with pytest.raises(EngineClosedError):
            await engine.generate_one(PROMPTS[0], GREEDY)
        assert engine.closed

    asyncio.run(main())


def test_samples_of_one_prompt(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=5, max_tokens=8, ignore_eos=True)
    whole = llm.generate(PROMPTS[0], params)[0]

    async def main() -> None:
        engine = llm.as_async()
        assert (await engine.generate_one(PROMPTS[0], params)).outputs == whole.outputs
        last: dict[int, list[int]] = {}
        finished = []
        async for output in engine.generate(PROMPTS[0], params):
            last[output.outputs[0].index] = output.outputs[0].token_ids
            finished.append(output.finished)
        assert last == {o.index: o.token_ids for o in whole.outputs}
        assert finished == [False] * (len(finished) - 1) + [True]

    asyncio.run(main())


def test_chat(tmp_path: Path) -> None:
    questions = [[{"role": "user", "content": f"Say {word}."}] for word in ("one", "two", "six")]
    with text_llm(tmp_path / "model") as llm:
        params = SamplingParams(temperature=0, max_tokens=10)
        whole = llm.chat(questions, params, thinking="disabled", use_tqdm=False)

        async def main() -> None:
            engine = llm.as_async()
            got = await engine.chat(questions, params, thinking="disabled")
            assert [o.index for o in got] == [0, 1, 2]
            assert [o.outputs[0].message for o in got] == [o.outputs[0].message for o in whole]
            with pytest.raises(TypeError, match="thinking"):
                await engine.chat(questions[0], params, thinkin="disabled")

        asyncio.run(main())


def test_handles_are_awaited_from_any_loop(llm: LLM, expected: list[list[int]]) -> None:
    handles = [llm.submit(prompt, GREEDY) for prompt in PROMPTS[:8]]
    got: dict[int, list[int]] = {}

    async def wait_for(k: int) -> None:
        outputs = await asyncio.gather(*(_await(handle) for handle in handles[k::2]))
        got.update(
            {
                handles.index(h): o.outputs[0].token_ids
                for h, o in zip(handles[k::2], outputs, strict=True)
            }
        )

    async def _await(handle: object) -> object:
        return await handle  # type: ignore[misc]

    threads = [threading.Thread(target=lambda k=k: asyncio.run(wait_for(k))) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert got == dict(enumerate(expected[:8]))
    assert asyncio.run(_twice(handles[0])) == [expected[0]] * 2


async def _twice(handle: object) -> list[list[int]]:
    return [(await handle).outputs[0].token_ids for _ in range(2)]  # type: ignore[misc]


def test_a_loop_that_is_gone_harms_nobody(llm: LLM, expected: list[list[int]]) -> None:
    handle = llm.submit(PROMPTS[0], LONG.replace(max_tokens=400))
    loop = asyncio.new_event_loop()
    task = loop.create_task(_twice(handle))
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    assert handle.result(30).finished
    assert llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids == expected[0]
    del task
    gc.collect()


def test_threads_end_when_there_is_nothing_to_do() -> None:
    with ids_llm() as llm:
        handle = llm.submit(PROMPTS[0], GREEDY, on_token=lambda _: None)
        handle.result(30)
        end = time.monotonic() + 10
        while llm._dispatcher._thread is not None or llm._dispatcher.callbacks._thread is not None:
            assert time.monotonic() < end
            time.sleep(0.05)
        assert llm.submit(PROMPTS[0], GREEDY).result(30).finished  # and begin again

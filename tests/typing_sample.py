"""A program of a careful user: tests/test_typing.py checks that mypy --strict accepts it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from minimax_m31 import (
    LLM,
    AsyncLLM,
    CompletionOutput,
    ConfigError,
    Conversation,
    InvalidRequestError,
    MemoryPlan,
    Message,
    RequestHandle,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
    TextPrompt,
    Tokenizer,
    TokenScores,
    TokensPrompt,
    derive_seed,
)
from minimax_m31.compat.vllm import LLM as VllmLLM
from minimax_m31.compat.vllm import SamplingParams as VllmParams
from minimax_m31.integrations.records import EvalRecord, records
from minimax_m31.integrations.simple_evals import Mm31Sampler


def texts(llm: LLM, params: SamplingParams) -> Iterator[str]:
    prompts = ["a", [1, 2], TextPrompt(prompt="b"), TokensPrompt(prompt_token_ids=[3])]
    outputs: list[RequestOutput] = llm.generate(prompts, params, use_tqdm=False)
    for output in outputs:
        first: CompletionOutput = output.outputs[0]
        ids: list[int] = first.token_ids
        array: npt.NDArray[np.int32] = first.token_ids_np
        yield f"{first.text} {len(ids)} {array.sum()} {first.finish_reason}"
    for index, done in llm.generate_iter(prompts, min_finished=2, on_error="return"):
        yield f"{index} {done.error.message if done.error is not None else done.seed}"
    for piece in llm.generate_stream("a", output_kind=RequestOutputKind.DELTA):
        yield piece.outputs[0].text


def answers(llm: LLM) -> str:
    shape = StructuredOutputsParams(json={"type": "object"})
    params = SamplingParams(n=1, structured_outputs=shape, seed=derive_seed(1, 2)).replace(top_k=3)
    message: Message | None = (
        llm.chat([{"role": "user", "content": "a"}], params)[0].outputs[0].message
    )
    talk: Conversation = llm.run_tools([{"role": "user", "content": "a"}], [len], params)
    return (message.content if message is not None else "") + str(len(talk.token_ids))


def handles(llm: LLM) -> bool:
    handle: RequestHandle = llm.submit("a", on_token=lambda output: print(output.outputs[0].text))
    handle.add_done_callback(lambda one: print(one.done()))
    output: RequestOutput = handle.result(timeout=5)
    return output.finished and handle.abort()


async def gathered(llm: LLM) -> int:
    engine: AsyncLLM = llm.as_async()
    async for output in engine.generate("a", SamplingParams(max_tokens=3)):
        print(output.outputs[0].text)
    both = await asyncio.gather(engine.generate_one("a"), engine.generate_one([1, 2]))
    return sum(len(one.outputs) for one in both)


def scored(llm: LLM) -> float:
    scores: TokenScores = llm.score_tokens("a b", top_k=2)[0]
    pairs: list[tuple[float, bool]] = llm.loglikelihood(["a"], ["b"])
    return float(scores.logprobs.sum()) + pairs[0][0] + llm.perplexity("a")[0].perplexity


def fits() -> int:
    plan: MemoryPlan = LLM.plan("M3.1-Flash", gpu="8x H200", max_num_seqs=64)
    return plan.kv_capacity_tokens if plan.fits else plan.total("device", "weights")


def adapters(llm: LLM) -> list[EvalRecord]:
    other = VllmLLM("nano", max_num_seqs=2)
    outputs: list[RequestOutput] = other.generate("a", VllmParams(max_tokens=2))
    print(Mm31Sampler(llm)([{"role": "user", "content": "a"}]).response_text)
    return list(records(llm, outputs, SamplingParams()))


def main() -> None:
    try:
        with LLM("nano", max_num_seqs=4) as llm:
            tokenizer: Tokenizer = llm.get_tokenizer()
            print(tokenizer.decode(tokenizer.encode("a")), *texts(llm, SamplingParams()))
            print(
                answers(llm), handles(llm), asyncio.run(gathered(llm)), scored(llm), adapters(llm)
            )
    except ConfigError as error:
        print(error)
    except InvalidRequestError as error:
        print(error.param, error.value, error.outputs)


if __name__ == "__main__":
    main()

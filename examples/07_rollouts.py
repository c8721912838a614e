"""Rollouts for reinforcement learning, in the shape of GRPO: groups of samples with seeds of their
own, a reward, advantages, and the log-probabilities that a trainer recomputes.

python examples/07_rollouts.py [checkpoint folder]
"""

from __future__ import annotations

import sys

import numpy as np

from minimax_m31 import LLM, SamplingParams, derive_seed

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
GROUP, TEMPERATURE, SEED = 4, 1.5, 7


def reward(text: str, target: int) -> float:
    """1 for the right answer, less for every character beside it."""
    return float(str(target) in text) - 0.01 * len(text)


with LLM(model, max_num_seqs=16, deterministic="batch_invariant") as llm:
    sums = [(17, 25), (230, 45), (61, 12)]
    prompts = [
        llm.apply_chat_template(
            [{"role": "user", "content": f"What is {a} + {b}?"}], thinking="disabled"
        )
        for a, b in sums
    ]
    for step in range(2):
        # One request per group: its samples share the prompt's pages. log p at the temperature that
        # was drawn with, over the whole vocabulary.
        params = [
            SamplingParams(
                n=GROUP, temperature=TEMPERATURE, seed=derive_seed(SEED, step * 100 + i),
                logprobs=0, logprobs_mode="tempered_logprobs", flat_logprobs=True, max_tokens=16,
            )
            for i in range(len(prompts))
        ]  # fmt: skip
        losses, ratios, rewards = [], [], []
        for output, (a, b) in zip(llm.generate(prompts, params, use_tqdm=False), sums, strict=True):
            scored = np.array([reward(one.text, a + b) for one in output.outputs])
            advantages = (scored - scored.mean()) / (scored.std() + 1e-4)
            rewards.append(scored.mean())
            for one, advantage in zip(output.outputs, advantages, strict=True):
                # A trainer's forward pass over the same ids. Before any update the ratio is 1.
                again = llm.score_tokens(
                    [*output.prompt_token_ids, *one.token_ids],
                    start=len(output.prompt_token_ids), temperature=TEMPERATURE, use_tqdm=False,
                )[0].logprobs  # fmt: skip
                ratio = np.exp(again - one.token_logprobs)
                ratios.append(np.abs(ratio - 1).max())
                clipped = np.clip(ratio, 0.8, 1.2)
                losses.append(-np.minimum(ratio * advantage, clipped * advantage).mean())
        print(f"step {step}: reward {np.mean(rewards):+.3f}, loss {np.mean(losses):+.4f}", end=", ")
        print(f"largest |ratio - 1| {max(ratios):.1e}")
        # Here a trainer would take its step, and push the new weights.

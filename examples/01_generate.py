"""Generate: one prompt, several samples, log-probabilities, a stream.

python examples/01_generate.py [checkpoint folder]
"""

from __future__ import annotations

import sys

from minimax_m31 import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
with LLM(model, max_num_seqs=8) as llm:
    print(llm, "\n")
    has_text = llm.llm_engine.tokenizer is not None
    prompt = "17 + 25 =" if has_text else [5, 17, 42, 8]

    # Greedy: the most likely continuation.
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    one = llm.generate(prompt, greedy)[0].outputs[0]
    print("greedy: ", one.text if has_text else one.token_ids, "|", one.finish_reason)

    # Three samples of one prompt; the seed makes them repeatable.
    sampled = SamplingParams(n=3, temperature=0.8, seed=1, max_tokens=12, logprobs=0)
    for sample in llm.generate(prompt, sampled)[0].outputs:
        shown = sample.text if has_text else sample.token_ids
        print(f"sample {sample.index}:", shown, f"| log p {sample.cumulative_logprob:.2f}")

    # Tokens as they come.
    print("stream: ", end="")
    for piece in llm.generate_stream(prompt, greedy):
        part = piece.outputs[0]
        print(
            part.text if has_text else part.token_ids, end=" " if not has_text else "", flush=True
        )
    print("\n\n", llm.stats(), sep="")

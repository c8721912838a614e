"""Chat: thinking on and off, efforts, several turns, many conversations at once.

python examples/02_chat.py [checkpoint folder]
"""

from __future__ import annotations

import sys

from minimax_m31 import LLM, Conversation, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
greedy = SamplingParams(temperature=0.0, max_tokens=300)
question = [{"role": "user", "content": "What is 17 + 25?"}]

with LLM(model, max_num_seqs=8) as llm:
    # Thinking is an argument of the call; the answer comes apart into reasoning and content.
    for thinking in ("enabled", "disabled", "adaptive"):
        message = (
            llm.chat(question, greedy, thinking=thinking, use_tqdm=False)[0].outputs[0].message
        )
        print(f"{thinking}: {message.reasoning_content!r} -> {message.content!r}")

    # So is the effort: more of it, longer work.
    for effort in ("low", "medium", "high", "xhigh", "max"):
        output = llm.chat(
            question, greedy, thinking="enabled", reasoning_effort=effort, use_tqdm=False
        )[0].outputs[0]
        print(f"effort {effort}: {len(output.token_ids)} tokens -> {output.message.content!r}")

    # Many conversations in one call, each with its own thinking.
    both = [
        [{"role": "user", "content": "Spell the word garden."}],
        [{"role": "user", "content": "Which is larger, 412 or 398?"}],
    ]
    for output in llm.chat(both, greedy, thinking=["disabled", "enabled"], use_tqdm=False):
        print(f"conversation {output.index}: {output.outputs[0].message.content!r}")

    # Several turns. The token ids of earlier turns stay as they were sampled.
    talk = Conversation(llm, thinking="disabled")
    talk.say("My name is Ruth.", greedy)
    before = list(talk.token_ids)
    talk.say("What is my name?", greedy)
    assert talk.token_ids[: len(before)] == before
    print(talk)

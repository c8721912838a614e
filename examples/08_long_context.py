"""A long context: many questions to one text at once (asyncio), and which blocks and experts the
model chose while it read.

python examples/08_long_context.py [checkpoint folder [picture.png]]
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np

from minimax_m31 import LLM, SamplingParams

model = sys.argv[1] if len(sys.argv) > 1 else "nano"
codes = {40: ("silver rocket", "7042"), 190: ("golden statue", "3318"), 350: ("old clock", "9205")}
places = ("garden", "kitchen", "harbor", "cellar")
rows = [f"The red lamp was near the {places[i * 7 % 4]}." for i in range(400)]
for i, (thing, code) in codes.items():
    rows[i] = f"The code of the {thing} is {code}."
text = "Read the text and answer the question at the end.\n" + "\n".join(rows)


async def ask_all(llm: LLM) -> None:
    """Every question is a task; the pages of the text are computed once and shared."""
    engine, greedy = llm.as_async(), SamplingParams(temperature=0.0, max_tokens=60)

    async def ask(thing: str) -> str:
        messages = [{"role": "user", "content": f"{text}\n\nWhat is the code of the {thing}?"}]
        (output,) = await engine.chat(messages, greedy, thinking="disabled")
        return f"{thing}: {output.outputs[0].message.content}"

    print(await ask("silver rocket"))  # leaves the text in the prefix cache
    print(*await asyncio.gather(ask("golden statue"), ask("old clock")), sep="\n")


def show(name: str, counts: list[np.ndarray]) -> None:
    """A picture in characters: one row per layer; the last layers are those with a choice."""
    print(name)
    for layer, row in enumerate(counts, len(trace.experts) - len(counts)):
        print(f"  layer {layer:2d} |{''.join(' .:-=+*#%@'[int(9 * n / row.max())] for n in row)}|")


with LLM(model, max_num_seqs=8) as llm:
    asyncio.run(ask_all(llm))
    stats = llm.stats()
    print(f"prompt tokens {stats.num_prompt_tokens}, from the cache {stats.num_cached_tokens}")
    question = [{"role": "user", "content": f"{text}\n\nWhat is the code of the old clock?"}]
    ids = llm.apply_chat_template(question, thinking="disabled")
    trace = llm.trace(ids, what=("blocks", "experts"))
    last = [chosen[:, -1] for chosen in trace.blocks if chosen is not None]
    blocks = [np.bincount(row[row >= 0], minlength=-(-len(ids) // 128)) for row in last]
    experts = [np.bincount(e.ravel(), minlength=16) for e in trace.experts if e is not None]
    show(f"blocks of 128 that the last of {len(ids)} tokens read", blocks)
    show("tokens of each expert", experts)
    if len(sys.argv) > 2:
        import matplotlib.image

        matplotlib.image.imsave(sys.argv[2], np.array(experts), cmap="viridis")

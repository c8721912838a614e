"""Needles of 16K tokens read through the package twice: with the blocks that the index branch chooses, and with 16 random ones (the local block kept).

The right answer is given token by token; counted is how many of its tokens the model would have written itself.
Prints a line a needle: python random_blocks.py [needles]
"""

from __future__ import annotations

import sys
from typing import Any

import evaluate
import numpy as np
import numpy.typing as npt
from render import encode, generation_prompt, tokenizer

import minimax_m31

PAGE, TOP = 128, 16


def random_blocks(blocks: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[Any]:
    """[I, n, 16] i16 like blocks: of each position its own block and 15 others that it may see, ascending; -1 fills."""
    out = np.full_like(blocks, -1)
    n = blocks.shape[1]
    own = np.arange(n) // PAGE
    n_block = int(own.max()) + 1
    for head in range(blocks.shape[0]):
        key = rng.random((n, n_block))
        key[np.arange(n_block)[None] > own[:, None]] = 2  # not yet written
        key[np.arange(n), own] = -1
        pick = np.argsort(key, 1)[:, :TOP]
        pick = np.where(np.take_along_axis(key, pick, 1) < 2, pick, n_block)
        pick = np.sort(pick, 1)
        out[head, :, : pick.shape[1]] = np.where(pick < n_block, pick, -1)
    return out


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    needles = [
        r for r in evaluate.load_records() if "needle" in r and r["needle"]["tokens"] >= 15000
    ]
    rng = np.random.default_rng(0)
    with minimax_m31.LLM("nano", max_model_len=17_000, enable_prefix_caching=False) as llm:
        for r in needles[:: max(1, len(needles) // count)][:count]:
            prompt = encode(generation_prompt(evaluate.conversation(r, "disabled")))
            answer = tokenizer().encode(r["grade"]["answer"], add_special_tokens=False).ids
            ids = prompt + answer
            chosen = llm.trace(ids, what=("logits", "blocks"))
            assert chosen.blocks is not None
            forced = [None if b is None else random_blocks(b, rng) for b in chosen.blocks]
            rand = llm.trace(ids, what=("logits",), force_blocks=forced)
            hits = []
            for t in (chosen, rand):
                assert t.logits is not None
                best = t.logits[len(prompt) - 1 : len(ids) - 1].argmax(-1)
                hits.append(int((best == np.array(answer)).sum()))
            print(
                f"depth {r['needle']['depth']}: {hits[0]} of {len(answer)} tokens with the chosen blocks, "
                f"{hits[1]} with random ones",
                flush=True,
            )


if __name__ == "__main__":
    main()

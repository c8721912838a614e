"""The strings of the model's chat format that code must know, and how a half-seen one is held back.

Everything else about the format belongs to the chat template (what goes in) or to the parsers (what
comes out). Matching is always on text: a mark is one token normally, but a model may spell it in
pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

NAMESPACE = "]<]minimax[>["
THINK_OPEN = "<mm:think>"
THINK_CLOSE = "</mm:think>"
CALL_OPEN = NAMESPACE + "<tool_call>"
DOCUMENT_START = "]~!b["
TURN_START = "]~b]"
TURN_END = "[e~["
IMAGE = "]<]image[>["
VIDEO = "]<]video[>["

# Each string that must be exactly one added token, and its id where the vocabulary is the released
# one (200,064 embedding rows). Any other vocabulary may number them as it likes.
REQUIRED_TOKENS: dict[str, int] = {
    TURN_START: 200019,
    TURN_END: 200020,
    IMAGE: 200025,
    VIDEO: 200026,
    DOCUMENT_START: 200034,
    NAMESPACE: 200058,
    THINK_OPEN: 200059,
    THINK_CLOSE: 200060,
}
RELEASED_VOCAB_SIZE = 200_064


def held_suffix(text: str, marks: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of one of `marks`.

    The longest, not the shortest: the namespace mark repeats `]`, so the shortest would let the
    beginning of a mark escape.
    """
    longest = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), longest, -1):
            if text.endswith(mark[:size]):
                longest = size
                break
    return longest

"""vllm.inputs: what a prompt may be."""

from __future__ import annotations

from ...prompts import TextPrompt, TokensPrompt

PromptType = str | list[int] | TextPrompt | TokensPrompt

__all__ = ["PromptType", "TextPrompt", "TokensPrompt"]

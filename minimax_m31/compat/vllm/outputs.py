"""vllm.outputs: the engine's own results, whose fields have these names."""

from __future__ import annotations

from ...outputs import CompletionOutput, RequestOutput

__all__ = ["CompletionOutput", "RequestOutput"]

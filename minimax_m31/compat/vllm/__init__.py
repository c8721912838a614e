"""A drop-in for vLLM's public offline names: in the import lines of a script `vllm` becomes
`minimax_m31.compat.vllm`. It then runs, or stops where it constructs something, with the reason.

Every argument of vLLM's calls is in arguments.json: it works, it is accepted with its default (or
another value that means the same here), or it is refused by name. `__version__` is the version of
vLLM whose interface this is; `minimax_m31.__version__` is that of the engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .table import VERSION as __version__

if TYPE_CHECKING:
    from .engine_arguments import EngineArgs
    from .entrypoints.llm import LLM
    from .inputs import PromptType, TextPrompt, TokensPrompt
    from .outputs import CompletionOutput, RequestOutput
    from .sampling_params import SamplingParams

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineArgs",
    "PromptType",
    "RequestOutput",
    "SamplingParams",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]

_HOMES = {
    "LLM": "entrypoints.llm",
    "CompletionOutput": "outputs",
    "EngineArgs": "engine_arguments",
    "PromptType": "inputs",
    "RequestOutput": "outputs",
    "SamplingParams": "sampling_params",
    "TextPrompt": "inputs",
    "TokensPrompt": "inputs",
}

_GENERATION_ONLY = "this engine generates and scores text; it has no pooling models"
_NOT_HERE = {
    "AsyncEngineArgs": "minimax_m31.AsyncLLM takes the engine's arguments itself",
    "AsyncLLMEngine": "minimax_m31.AsyncLLM is the engine for asyncio",
    "LLMEngine": "the engine's loop runs in C: LLM.submit gives a handle for each request",
    "ModelRegistry": "one family of models is built in; none can be registered",
    "PoolingParams": _GENERATION_ONLY,
    "ClassificationOutput": _GENERATION_ONLY,
    "ClassificationRequestOutput": _GENERATION_ONLY,
    "EmbeddingOutput": _GENERATION_ONLY,
    "EmbeddingRequestOutput": _GENERATION_ONLY,
    "PoolingOutput": _GENERATION_ONLY,
    "PoolingRequestOutput": _GENERATION_ONLY,
    "ScoringOutput": _GENERATION_ONLY,
    "ScoringRequestOutput": _GENERATION_ONLY,
    "initialize_ray_cluster": "everything runs in this process: there are no workers",
}


def __getattr__(name: str) -> Any:
    if name in _NOT_HERE:
        raise ImportError(f"{__name__} has no {name}: {_NOT_HERE[name]}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

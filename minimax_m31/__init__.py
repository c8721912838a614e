"""minimax_m31: MiniMax-M3.1-Flash, offline, inside your process.

    from minimax_m31 import LLM, SamplingParams

    llm = LLM("path/to/checkpoint")
    print(llm.generate("The capital of France is", SamplingParams(max_tokens=16)))

Importing this loads nothing: every name below is fetched when it is first used.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

from .errors import (
    ConfigError,
    EngineClosedError,
    EngineDeadError,
    EngineForkedError,
    EngineSleepingError,
    GrammarError,
    InvalidRequestError,
    Mm31Error,
    OutOfDeviceMemoryError,
    PromptTooLongError,
    WeightsNotLoadedError,
)

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .chat.conversation import Conversation
    from .chat.display import display_stream
    from .chat.types import Delta, Message, ParseError, ToolCall
    from .engine_args import EngineArgs
    from .environment import build_info, collect_env, cuda_available
    from .handle import RequestHandle
    from .llm import LLM, live_engines, shutdown_all
    from .logprobs import FlatLogprobs, Logprob
    from .outputs import CompletionOutput, RequestError, RequestMetrics, RequestOutput
    from .params import (
        RepetitionDetectionParams,
        RequestOutputKind,
        SamplingParams,
        StructuredOutputsParams,
    )
    from .plan import MemoryPlan
    from .prompts import TextPrompt, TokensPrompt
    from .scores import EngineStats, MemoryReport, PerplexityResult, TokenScores, Trace
    from .seeds import derive_seed
    from .tokenizer import Tokenizer

__version__ = "0.1.0"

_HOMES = {
    "async_llm": ("AsyncLLM",),
    "chat.conversation": ("Conversation",),
    "chat.display": ("display_stream",),
    "chat.types": ("Delta", "Message", "ParseError", "ToolCall"),
    "engine_args": ("EngineArgs",),
    "environment": ("build_info", "collect_env", "cuda_available"),
    "handle": ("RequestHandle",),
    "llm": ("LLM", "live_engines", "shutdown_all"),
    "logprobs": ("FlatLogprobs", "Logprob"),
    "outputs": ("CompletionOutput", "RequestError", "RequestMetrics", "RequestOutput"),
    "params": (
        "RepetitionDetectionParams",
        "RequestOutputKind",
        "SamplingParams",
        "StructuredOutputsParams",
    ),
    "plan": ("MemoryPlan",),
    "prompts": ("TextPrompt", "TokensPrompt"),
    "scores": ("EngineStats", "MemoryReport", "PerplexityResult", "TokenScores", "Trace"),
    "seeds": ("derive_seed",),
    "tokenizer": ("Tokenizer",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "Conversation",
    "Delta",
    "EngineArgs",
    "EngineClosedError",
    "EngineDeadError",
    "EngineForkedError",
    "EngineSleepingError",
    "EngineStats",
    "FlatLogprobs",
    "GrammarError",
    "InvalidRequestError",
    "Logprob",
    "MemoryPlan",
    "MemoryReport",
    "Message",
    "Mm31Error",
    "OutOfDeviceMemoryError",
    "ParseError",
    "PerplexityResult",
    "PromptTooLongError",
    "RepetitionDetectionParams",
    "RequestError",
    "RequestHandle",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokenScores",
    "Tokenizer",
    "TokensPrompt",
    "ToolCall",
    "Trace",
    "WeightsNotLoadedError",
    "__version__",
    "build_info",
    "collect_env",
    "cuda_available",
    "derive_seed",
    "display_stream",
    "live_engines",
    "shutdown_all",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())


def _unbuilt(error: ImportError) -> str:
    """What to do when the compiled part cannot be loaded."""
    folder = os.path.dirname(os.path.abspath(__file__))
    source = os.path.dirname(folder)
    if not os.path.isfile(os.path.join(source, "setup.py")):
        return f"the compiled part of {__name__} in {folder} cannot be loaded ({error})"
    return (
        f"{folder} is the source folder, without a built extension ({error}): run "
        f"`pip install -e .` in {source}, or, when the package is installed elsewhere, run Python "
        "from another folder"
    )


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{home}")
    except ImportError as error:
        if "_core" in str(error):
            raise ImportError(_unbuilt(error)) from error
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

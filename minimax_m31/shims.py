"""Attributes of other engines that harnesses reach for, read-only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .llm import LLM


def _as_object(value: Any) -> Any:
    """A config.json as nested attributes."""
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _as_object(item) for key, item in value.items()})
    return value


class ModelConfigShim:
    """`max_model_len`, `hf_config`, `model`."""

    def __init__(self, max_model_len: int, raw_config: dict[str, Any], model: str) -> None:
        self.max_model_len = max_model_len
        self.model = model
        self.hf_config = _as_object(raw_config)
        text = getattr(self.hf_config, "text_config", None)
        self.hf_text_config = self.hf_config if text is None else text


class EngineShim:
    """`model_config`, `tokenizer`, `has_unfinished_requests()`."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    @property
    def model_config(self) -> ModelConfigShim:
        return self._llm.model_config

    @property
    def tokenizer(self) -> Any:
        return self._llm._tokenizer

    def get_tokenizer(self) -> Any:
        return self._llm.get_tokenizer()

    def has_unfinished_requests(self) -> bool:
        stats = self._llm.stats()
        return stats.num_running + stats.num_waiting > 0

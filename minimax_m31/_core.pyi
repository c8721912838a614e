"""Typed face of the C extension. Thin: every method is one call of csrc/mm.h with the GIL released
where it can wait.

Exceptions are the classes of minimax_m31.errors. Arrays handed out are copies or read-only views
that keep the engine's buffer alive only through the copy; bf16 never crosses this border.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt

ABI: int
PAGE: int
MAX_LIST: int

# (name, file index, dtype name as in safetensors, shape, offset in the file, bytes)
TensorEntry = tuple[str, int, str, tuple[int, ...], int, int]

def config_check(config: Mapping[str, Any]) -> None:
    """Raises ConfigError naming the field when the forward pass cannot run such a model. Keys:
    fields of mm_config.
    """

def page_bytes(
    config: Mapping[str, Any], kv_format: str, index_format: str, shard_rank: int, shard_world: int
) -> int:
    """Bytes of one page (128 tokens) over all layers on one rank."""

def plan(
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    files: Sequence[str] = ...,
    tensors: Sequence[TensorEntry] = ...,
    memory_total: int = ...,
    memory_free: int = ...,
) -> dict[str, Any]:
    """What Engine(...) with these arguments would take on its first rank, by the code that decides
    it there; nothing is loaded. memory_total > 0: on an imagined CUDA device of that many bytes,
    else on the backend of the options. Fields of mm_plan by name: lines as `Engine.memory`, weights
    by class, n_page (0: it does not fit; `problem` and `param` say why).
    """

def backends() -> list[tuple[str, bool, str]]:
    """(name, usable, text) of every backend."""

def log_drain() -> list[tuple[int, str]]:
    """Queued log lines of the core: (level, text)."""

def env_table() -> list[tuple[str, str, str]]:
    """(name, value, help) of every MM_* variable."""

def env_problems() -> list[tuple[str, str, bool]]:
    """(name, what is wrong, whether it is the value: else the name) of MM_* variables."""

@final
class Engine:
    """An open engine. Safe from any thread; a call from a forked child raises EngineForkedError."""

    def __init__(
        self,
        *,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        files: Sequence[str] = ...,
        tensors: Sequence[TensorEntry] = ...,
        eos_token_ids: Sequence[int] = ...,
        token_bytes: Sequence[bytes] | None = ...,
        progress: Callable[[int, int], None] | None = ...,
    ) -> None:
        """`options`: fields of mm_engine_options by name . Enums are the lower-case
        suffix of their C name everywhere ("auto", "bf16", "f32", "fp8", "nvfp4", "files", "dummy").

        Signals are polled while loading; `progress(bytes_done, bytes_total)` is called about ten
        times a second.
        """
    def waiter(self) -> Waiter: ...
    def submit(
        self, waiter: Waiter, prompt: npt.NDArray[np.int32], params: Mapping[str, Any]
    ) -> int:
        """`params`: fields of mm_request_params by name; lists as sequences, stop as list[bytes],
        enums as lower-case suffixes (logprob_mode "raw", think_start "adaptive"). Returns the
        id."""
    def submit_trace(
        self,
        waiter: Waiter,
        prompt: npt.NDArray[np.int32],
        *,
        logits: npt.NDArray[np.float32] | None,
        hidden: Sequence[npt.NDArray[np.float32]] | None,
        blocks: Sequence[npt.NDArray[np.int16] | None] | None,
        experts: Sequence[npt.NDArray[np.int16] | None] | None,
        expert_weights: Sequence[npt.NDArray[np.float32] | None] | None,
        force_blocks: Sequence[npt.NDArray[np.int16] | None] | None,
        force_experts: Sequence[npt.NDArray[np.int16] | None] | None,
        blocks_width: int,
    ) -> int:
        """A trace request: rows are written into the caller's arrays, which stay referenced until
        it is released.
        """
    def read(self, request_id: int, start: int = ...) -> dict[str, Any]:
        """Fields of mm_output by name. Arrays are copies of entries from token `start` on: token
        i32 [n], logprob_id/logprob/logprob_rank [n, width], sampling_logprob [n], prompt_* [rows,
        width]; error as (status name, message, param, index) or None; finish and stop as lower-case
        suffixes ("none", "stop", "length", "eos")."""
    def notify(self, request_id: int, n_tokens: int) -> None: ...
    def release(self, request_id: int) -> None: ...
    def abort(self, request_ids: Sequence[int] | None) -> int: ...
    def put_mask(self, request_id: int, i_token: int, words: npt.NDArray[np.uint32]) -> None: ...
    def reset_prefix_cache(self) -> None: ...
    def pause(self, how: str, timeout: float = ...) -> bool:
        """`how`: "none", "drain" (what was submitted runs to its end) or "freeze" (no step begins).
        Waits up to `timeout` seconds; True when that has been reached.
        """
    def stats(self) -> dict[str, float]: ...
    def memory(self) -> list[tuple[str, str, int]]: ...
    def info(self) -> dict[str, Any]: ...
    def close(self) -> None:
        """Idempotent. Later calls raise EngineClosedError."""
    @property
    def closed(self) -> bool: ...

@final
class Waiter:
    """Mailbox of one caller; one thread waits on it at a time."""

    def wait(self, timeout: float, cap: int = ...) -> list[int]:
        """Ids with news, [] after `timeout` seconds. Signals are looked at ten times a second
        (KeyboardInterrupt passes).
        """
    def close(self) -> None:
        """Aborts and releases its unfinished requests."""

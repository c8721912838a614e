"""Exceptions of the package.

All derive from `Mm31Error`, and each also from the builtin that existing scripts catch
(`ValueError`, `MemoryError`, `RuntimeError`), so `except ValueError` keeps working.
The C core raises these same classes (it imports this module once).
"""

from __future__ import annotations

from typing import Any


class Mm31Error(Exception):
    """Base of every exception that this package defines."""


class InvalidRequestError(Mm31Error, ValueError):
    """A request (prompt, message, sampling parameter) that cannot run as given.

    `param` names the argument, `value` is what was given, `index` is the position of the prompt or
    conversation in the call (None when the call has one), `errors` lists all problems found when
    there are several, `outputs` holds finished and partial outputs when a call raises after it
    began.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        value: Any = None,
        index: int | None = None,
        errors: list[InvalidRequestError] | None = None,
        outputs: list[Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.value = value
        self.index = index
        self.errors = errors if errors is not None else []
        self.outputs = outputs


class PromptTooLongError(InvalidRequestError):
    """The prompt (or prompt + max_tokens) does not fit the model length or the KV pool."""


class GrammarError(InvalidRequestError):
    """A structured-output constraint that cannot be compiled or enforced."""


class ConfigError(Mm31Error, ValueError):
    """An engine argument or a checkpoint that the engine cannot run."""


class OutOfDeviceMemoryError(Mm31Error, MemoryError):
    """Memory planned for the engine does not fit; `plan` holds the table when there is one."""

    def __init__(self, message: str, *, plan: Any = None) -> None:
        super().__init__(message)
        self.plan = plan


class EngineClosedError(Mm31Error, RuntimeError):
    """The engine was shut down."""


class EngineForkedError(Mm31Error, RuntimeError):
    """The engine was opened in another process."""


class EngineSleepingError(Mm31Error, RuntimeError):
    """The engine sleeps: wake it first."""


class WeightsNotLoadedError(Mm31Error, RuntimeError):
    """Weights were released and not loaded again."""


class EngineDeadError(Mm31Error, RuntimeError):
    """The engine failed earlier and cannot go on; the message carries the first cause.

    `restart_required` is True when the process itself must be restarted (a sticky device fault).
    """

    def __init__(self, message: str, *, restart_required: bool = False) -> None:
        super().__init__(message)
        self.restart_required = restart_required

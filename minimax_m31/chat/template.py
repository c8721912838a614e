"""Compiled chat templates: text in, prompt out, or a `chat_template` error with the template's own
words.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from jinja2 import meta
from jinja2.exceptions import TemplateError, TemplateSyntaxError

from ..errors import InvalidRequestError
from .budget import MAX_TEMPLATE, Budget, LimitExceeded, Limits, weigh
from .sandbox import ChatEnvironment


class ChatTemplate:
    """A template and what its text says about itself. Rendering is thread-safe."""

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise _error(f"the chat template must be text, not {type(source).__name__}")
        if len(source) > MAX_TEMPLATE:
            raise _error(
                f"the chat template has {len(source)} characters, more than {MAX_TEMPLATE}"
            )
        if "{{" not in source and "{%" not in source:
            shown = source if len(source) <= 60 else f"{source[:60]}..."
            raise _error(
                f"{shown!r} is no template (it would print the same for all messages): give the "
                "text of a Jinja template; of a file, Path(...).read_text()"
            )
        self.source = source
        self._environment = ChatEnvironment()
        try:
            self._template = self._environment.from_string(source)
            self.variables = frozenset(
                meta.find_undeclared_variables(self._environment.parse(source))
            )
        except TemplateSyntaxError as error:
            raise _error(f"line {error.lineno}: {error.message}") from error
        except (TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise _error(f"cannot be compiled: {type(error).__name__}: {error}") from error

    @property
    def reads_thinking_mode(self) -> bool:
        """True for the M3 family: the mode rendered decides where the parser starts."""
        return "thinking_mode" in self.variables

    def render(self, variables: Mapping[str, Any], limits: Limits | None = None) -> str:
        if limits is None:
            limits = Limits.for_input(weigh(dict(variables), 1 << 40))
        budget = Budget(limits)
        pieces: list[str] = []
        size = 0
        self._environment.enter(budget)
        try:
            for piece in self._template.generate(**variables):
                pieces.append(piece)
                size += len(piece)
                if size > limits.output:
                    raise LimitExceeded(f"the template writes more than {limits.output} characters")
                budget.check_clock()
        except RecursionError as error:
            raise _error("the template nests too deeply") from error
        except Exception as error:  # whatever a template can provoke is a fault of the template
            raise _error(str(error) or type(error).__name__) from error
        finally:
            self._environment.enter(None)
        return "".join(pieces)


@functools.lru_cache(maxsize=32)
def compile_template(source: str) -> ChatTemplate:
    return ChatTemplate(source)


def _error(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"chat template: {message}", param="chat_template")

"""Jinja environment for chat templates: renders as Hugging Face does, limits as in `budget.py`.

Sandboxed and immutable; trim_blocks, lstrip_blocks, loop controls, `{% generation %}`,
`raise_exception`, `strftime_now` and a `tojson` without HTML escapes. The limits need hooks where
Jinja has none, so the syntax tree is rewritten after parsing: loops count, `~` is measured,
literals are weighed, static text is charged. Every output, call, filter and the operators
+ * ** % pass through here anyway.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
from collections.abc import Callable
from typing import Any

import jinja2.ext
import jinja2.sandbox
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.visitor import NodeTransformer

from .budget import MAX_CALL_DEPTH, MAX_INT_BITS, MAX_RANGE, Budget, LimitExceeded, Limits, weigh

# HTML helpers whose cost is not linear in their input; no chat template needs them.
_REMOVED_FILTERS = ("urlize", "striptags", "pprint", "wordwrap", "xmlattr")
_PASSING_FILTERS = ("default", "d", "first", "last", "random", "min", "max", "attr")
_WIDTH_FILTERS = ("center", "indent", "batch", "slice", "truncate", "round")
_MAX_WIDTH = 100_000
_WIDE = re.compile(r"[0-9]{6,}")


class _Local(threading.local):
    budget: Budget | None = None


class ChatEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """One per compiled template text; the budget of a render is the current thread's."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[jinja2.ext.loopcontrols, GenerationBlock],
            finalize=self._finalize,
        )
        self._local = _Local()
        self._compile_budget = Limits()
        self.filters["tojson"] = _tojson
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name, function in list(self.filters.items()):
            self.filters[name] = self._guard_filter(name, function)
        self.filters.update(
            mm_loop=self._bind(lambda budget, value: budget.loop(value)),
            mm_concat=self._bind(_concat),
            mm_weigh=self._bind(lambda budget, value: budget.result(value)),
            mm_static=self._bind(_charge_static),
        )
        self.globals.pop("lipsum")
        self.globals["range"] = self._range
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    @property
    def budget(self) -> Budget:
        """The running render's budget; while compiling (constant folding) a fresh one."""
        return self._local.budget or Budget(self._compile_budget)

    def enter(self, budget: Budget | None) -> None:
        self._local.budget = budget

    # -- hooks of the environment --------------------------------------------------------------

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        return _Instrument(self).visit(tree)  # type: ignore[no-any-return]

    def _finalize(self, value: Any) -> Any:
        budget = self._local.budget
        if budget is not None:
            budget.write(len(value) if isinstance(value, str) else weigh(value, budget.cap))
        return value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, (int, float, complex, bytes, bytearray)):
            return (
                False  # to_bytes(10**10) and the like; templates do not need the methods of numbers
            )
        if isinstance(obj, str) and attr == "encode":
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget = self.budget
        if operator == "*":
            _check_multiply(budget, left, right)
        elif operator == "**":
            if isinstance(left, int) and isinstance(right, int) and right > 0:
                if left.bit_length() * right > MAX_INT_BITS:
                    raise LimitExceeded("the template computes with too large numbers")
        elif operator == "%" and isinstance(left, str):
            _check_printf(budget, left, right)
        elif (
            operator == "+"
            and isinstance(left, (str, list, tuple))
            and isinstance(right, type(left))
        ):
            budget.size(len(left) + len(right))
        return budget.result(super().call_binop(context, operator, left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        template = value.__self__
        inner = wrapped

        @functools.wraps(inner)
        def guarded(*args: Any, **kwargs: Any) -> str:
            _check_format(self.budget, template, (args, kwargs))
            return inner(*args, **kwargs)

        return guarded

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: B902
        budget = __self.budget
        budget.tick()
        if isinstance(__obj, LoopContext) and args:
            args = (budget.loop(args[0]), *args[1:])
        else:
            owner = getattr(__obj, "__self__", None)
            if isinstance(owner, str):
                args = _check_string_method(
                    budget, owner, getattr(__obj, "__name__", ""), args, kwargs
                )
        budget.depth += 1
        try:
            if budget.depth > MAX_CALL_DEPTH:
                raise LimitExceeded(f"the template nests calls deeper than {MAX_CALL_DEPTH}")
            return budget.result(super().call(__context, __obj, *args, **kwargs))
        finally:
            budget.depth -= 1

    # -- filters and globals -------------------------------------------------------------------

    def _bind(self, function: Callable[[Budget, Any], Any]) -> Callable[..., Any]:
        """A filter that runs at render time: pass_context keeps the optimiser from folding it."""

        @pass_context
        def bound(context: Context, value: Any) -> Any:
            budget = self.budget
            budget.tick()
            return function(budget, value)

        return bound

    def _guard_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0
        check = _FILTER_CHECKS.get(name)

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            budget = self.budget
            budget.tick()
            head, own = args[:passed], args[passed:]
            if name in _WIDTH_FILTERS:
                for number in (*own[1:], *kwargs.values()):
                    if isinstance(number, int) and abs(number) > _MAX_WIDTH:
                        raise LimitExceeded(f"{name}({number}) in the template is too wide")
            if check is not None:
                own = check(budget, own, kwargs)
            value = function(*head, *own, **kwargs)
            return value if name in _PASSING_FILTERS else budget.result(value)

        return guarded

    def _range(self, *args: int) -> range:
        out = range(*args)
        if len(out) > MAX_RANGE:
            raise LimitExceeded(f"range() of more than {MAX_RANGE} items in the template")
        return out


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks assistant text for training; it renders
    its body.
    """

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Instrument(NodeTransformer):
    """Put the hooks of the budget into a syntax tree."""

    def __init__(self, environment: ChatEnvironment) -> None:
        self._environment = environment

    def _filter(self, node: nodes.Expr, name: str, lineno: int) -> nodes.Filter:
        made = nodes.Filter(node, name, [], [], None, None, lineno=lineno)
        made.set_environment(self._environment)
        return made

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = self._filter(node.iter, "mm_loop", node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.Tuple(node.nodes, "load", lineno=node.lineno)
        parts.set_environment(self._environment)
        return self._filter(parts, "mm_concat", node.lineno)

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        static = sum(
            len(child.data) for child in node.nodes if isinstance(child, nodes.TemplateData)
        )
        self.generic_visit(node)
        if static:
            size = nodes.Const(static, lineno=node.lineno)
            size.set_environment(self._environment)
            node.nodes.insert(0, self._filter(size, "mm_static", node.lineno))
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(node, "mm_weigh", node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._filter(node, "mm_weigh", node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return node if node.ctx != "load" else self._filter(node, "mm_weigh", node.lineno)


# -- checks before something is built ----------------------------------------------------------


def _concat(budget: Budget, parts: tuple[Any, ...]) -> str:
    budget.build(
        sum(len(part) if isinstance(part, str) else weigh(part, budget.cap) for part in parts)
    )
    return "".join(map(str, parts))


def _charge_static(budget: Budget, size: int) -> str:
    budget.write(size)
    return ""


def _check_multiply(budget: Budget, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise LimitExceeded("the template computes with too large numbers")
        return
    for sequence, count in ((left, right), (right, left)):
        if isinstance(sequence, (str, list, tuple)) and isinstance(count, int) and count > 0:
            size = len(sequence) if isinstance(sequence, str) else weigh(sequence, budget.cap)
            budget.size(size * count)


def _check_printf(budget: Budget, template: str, values: Any) -> None:
    if _WIDE.search(template) or "*" in template:
        raise LimitExceeded("a width in a % format of the template is too large or computed")
    budget.size(len(template) + template.count("%") * weigh(values, budget.cap))


def _check_format(budget: Budget, template: str, values: Any) -> None:
    if _WIDE.search(template) or re.search(r"\{[^{}]*\{", template.replace("{{", "")):
        raise LimitExceeded("a width in a format() of the template is too large or computed")
    budget.size(len(template) + template.count("{") * weigh(values, budget.cap))


def _check_string_method(
    budget: Budget, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        for number in (*args, *kwargs.values()):
            if isinstance(number, int):
                budget.size(len(owner) + max(1, owner.count("\t")) * abs(number))
    elif (
        name == "replace"
        and len(args) >= 2
        and isinstance(args[0], str)
        and isinstance(args[1], str)
    ):
        budget.size(len(owner) + owner.count(args[0]) * len(args[1]))
    elif name == "translate" and args and isinstance(args[0], (dict, list, tuple, str)):
        table = args[0].values() if isinstance(args[0], dict) else args[0]
        longest = max((len(value) for value in table if isinstance(value, str)), default=1)
        budget.size(len(owner) * max(1, longest))
    elif name == "join" and args:
        parts = list(budget.loop(args[0]))
        budget.size(weigh(parts, budget.cap) + len(owner) * len(parts))
        return (parts, *args[1:])
    return args


_Args = tuple[Any, ...]


def _check_join(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    parts = list(budget.loop(args[0]))
    separator = args[1] if len(args) > 1 else kwargs.get("d", "")
    budget.size(weigh(parts, budget.cap) + len(str(separator)) * len(parts))
    return (parts, *args[1:])


def _check_replace(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    text = str(budget.result(args[0]))
    old = str(args[1] if len(args) > 1 else kwargs.get("old", ""))
    new = str(args[2] if len(args) > 2 else kwargs.get("new", ""))
    budget.size(len(text) + text.count(old) * len(new))
    return args


def _check_indent(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    width = args[1] if len(args) > 1 else kwargs.get("width", 4)
    each = len(width) if isinstance(width, str) else int(width)
    budget.size(len(args[0]) + (str(args[0]).count("\n") + 1) * each)
    return args


def _check_format_filter(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    _check_printf(budget, str(args[0]), (args[1:], kwargs))
    return args


def _check_tojson(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    indent = args[2] if len(args) > 2 else kwargs.get("indent")
    if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= 16):
        raise LimitExceeded("tojson(indent=...) of the template must be 0 to 16")
    # Escapes and separators: at most 6 characters for each one, and an indent of 16 at 32 levels.
    budget.size(weigh(args[0], budget.cap))
    return args


def _check_sum(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    start = args[2] if len(args) > 2 else kwargs.get("start", 0)
    if not isinstance(start, (int, float)):
        raise LimitExceeded("sum(start=...) of the template must be a number")
    return args


def _check_consumed(budget: Budget, args: _Args, kwargs: dict[str, Any]) -> _Args:
    return (budget.loop(args[0]), *args[1:]) if args else args


_FILTER_CHECKS: dict[str, Callable[[Budget, _Args, dict[str, Any]], _Args]] = {
    "join": _check_join,
    "replace": _check_replace,
    "indent": _check_indent,
    "format": _check_format_filter,
    "tojson": _check_tojson,
    "sum": _check_sum,
    "list": _check_consumed,
    "sort": _check_consumed,
    "unique": _check_consumed,
    "groupby": _check_consumed,
}


# -- what Hugging Face gives to templates ------------------------------------------------------


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: no HTML escapes, default separators, keys in the caller's order."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    if len(format) > 256 or re.search(r"[0-9]{3,}", format):
        raise SecurityError("strftime_now() of the template got an unreasonable format")
    return datetime.datetime.now().strftime(format)

"""Makes the API reference (docs/*.md) from the sources: signatures, docstrings, and the comments
beside the fields of dataclasses. Nothing is imported, so it needs no build.

    python docs/make_reference.py           writes the pages
    python docs/make_reference.py --check   exits 1 when one is not what this would write
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "minimax_m31"

# Page -> title, introduction, and (module, names). Every name of minimax_m31.__all__ is on one.
PAGES: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {
    "engine": (
        "The engine",
        "Opening it, giving it work, asking what it does. Everything here may be called from "
        "several threads at once.",
        {
            "llm": ("LLM",),
            "lifetime": ("live_engines", "shutdown_all"),
            "async_llm": ("AsyncLLM",),
            "handle": ("RequestHandle",),
            "engine_args": ("EngineArgs",),
            "plan": ("MemoryPlan",),
            "tokenizer": ("Tokenizer",),
            "environment": ("build_info", "collect_env", "cuda_available"),
        },
    ),
    "parameters": (
        "Prompts and parameters",
        "What a request is made of.",
        {
            "prompts": ("TextPrompt", "TokensPrompt"),
            "params": (
                "SamplingParams",
                "StructuredOutputsParams",
                "RepetitionDetectionParams",
                "RequestOutputKind",
            ),
            "seeds": ("derive_seed",),
        },
    ),
    "results": (
        "Results",
        "Plain data: picklable, without a reference to the engine. `to_dict()` gives JSON-able "
        "data in which no number is infinite.",
        {
            "outputs": (
                "RequestOutput",
                "CompletionOutput",
                "RequestMetrics",
                "SpecMetrics",
                "RequestError",
            ),
            "logprobs": ("Logprob", "FlatLogprobs"),
            "scores": ("TokenScores", "PerplexityResult", "Trace", "EngineStats", "MemoryReport"),
        },
    ),
    "chat": (
        "Chat",
        "Messages, tool calls, and conversations that keep their token ids.",
        {
            "chat.types": ("Message", "ToolCall", "FunctionCall", "Delta", "ParseError"),
            "chat.conversation": ("Conversation",),
            "chat.display": ("display_stream",),
        },
    ),
    "errors": (
        "Errors",
        "All derive from `Mm31Error`, and each from the builtin that existing scripts catch.",
        {
            "errors": (
                "Mm31Error",
                "InvalidRequestError",
                "PromptTooLongError",
                "GrammarError",
                "ConfigError",
                "OutOfDeviceMemoryError",
                "EngineClosedError",
                "EngineForkedError",
                "EngineSleepingError",
                "EngineDeadError",
                "WeightsNotLoadedError",
            ),
        },
    ),
    "integrations": (
        "Integrations",
        "Harnesses and trainers, each imported only with its module, and the drop-in for vLLM's "
        "offline names: `minimax_m31.compat.vllm`.",
        {
            "integrations.lm_eval": ("Mm31LM",),
            "integrations.inspect_ai": ("Mm31API",),
            "integrations.evalscope": ("Mm31API",),
            "integrations.simple_evals": ("Mm31Sampler", "SamplerResponse"),
            "integrations.trl": ("Rollouts", "params_of", "as_vllm"),
            "integrations.records": ("EvalRecord", "records", "write_records"),
            "compat.vllm.entrypoints.llm": ("LLM",),
            "compat.vllm.sampling_params": ("SamplingParams", "StructuredOutputsParams"),
        },
    ),
}
NOTE = "<!-- Made by docs/make_reference.py from the docstrings: edit those. -->\n"
_SHOWN_SPECIAL = ("__call__", "__await__", "__iter__", "__len__", "__getitem__")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclasses.dataclass
class Module:
    name: str
    tree: ast.Module
    comments: dict[int, str]  # line -> comment
    whole_line: set[int]  # lines that hold nothing else


@cache
def module(name: str) -> Module:
    path = PACKAGE / Path(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    found = Module(name, ast.parse(text), {}, set())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            found.comments[token.start[0]] = token.string.lstrip("# ").strip()
            if not token.line[: token.start[1]].strip():
                found.whole_line.add(token.start[0])
    return found


def definition(home: Module, name: str) -> tuple[Module, ast.ClassDef | Function] | None:
    """Where a name is defined, followed through the package's own imports."""
    for node in home.tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == name:
                return home, node
        elif isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    above = home.name.split(".")[: -node.level]
                    target = ".".join([*above, *(node.module or "").split(".")]).strip(".")
                    return definition(module(target), alias.name) if target else None
    return None


def members(home: Module, node: ast.ClassDef) -> Iterator[tuple[Module, ast.ClassDef]]:
    """A class and its bases in the package, nearest first."""
    yield home, node
    for base in node.bases:
        if isinstance(base, ast.Name):
            found = definition(home, base.id)
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield from members(found[0], found[1])


def text_of(node: ast.AST) -> str:
    found = ast.get_docstring(node)  # type: ignore[arg-type]
    return inspect.cleandoc(found) if found else ""


def decorators(node: Function | ast.ClassDef) -> set[str]:
    return {ast.unparse(d).split("(")[0].split(".")[-1] for d in node.decorator_list}


def signature(node: Function, name: str | None = None) -> str:
    """`name(arguments) -> type`, over several lines when it is long; no self or cls."""
    given = node.args
    parts: list[str] = []
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        if argument.arg not in ("self", "cls") or parts:
            parts.append(_argument(argument, default))
    if given.vararg is not None:
        parts.append("*" + _argument(given.vararg, None))
    elif given.kwonlyargs:
        parts.append("*")
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        parts.append(_argument(argument, default))
    if given.kwarg is not None:
        parts.append("**" + _argument(given.kwarg, None))
    back = "" if node.returns is None or name is not None else f" -> {ast.unparse(node.returns)}"
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    begin += node.name if name is None else name
    line = f"{begin}({', '.join(parts)}){back}"
    if len(line) <= 100:
        return line
    return f"{begin}(\n" + "".join(f"    {part},\n" for part in parts) + f"){back}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    kind = "" if argument.annotation is None else f": {ast.unparse(argument.annotation)}"
    if default is None:
        return f"{argument.arg}{kind}"
    return f"{argument.arg}{kind}{' = ' if kind else '='}{ast.unparse(default)}"


def fields(home: Module, node: ast.ClassDef) -> Iterator[str]:
    """The fields of a dataclass (or members of an enum), with the comments beside or above them."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            name, kind = item.target.id, f": {ast.unparse(item.annotation)}"
        elif isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
            name, kind = item.targets[0].id, ""
        else:
            continue
        if name.startswith("_") or "ClassVar" in kind:
            continue
        above: list[str] = []
        line = item.lineno - 1
        while line in home.whole_line:
            comment = home.comments[line]
            if comment.startswith("-- "):
                yield f"\n*{comment[3:]}*\n"
                break
            above.insert(0, comment)
            line -= 1
        comment = " ".join([*above, home.comments.get(item.end_lineno or 0, "")]).strip()
        value = "" if item.value is None else f" = {_default(item.value)}"
        yield f"- `{name}{kind}{value}`" + (f": {comment}" if comment else "")


def _default(value: ast.expr) -> str:
    text = ast.unparse(value)
    if isinstance(value, ast.Call) and text.startswith(("dataclasses.field", "field")):
        for keyword in value.keywords:
            if keyword.arg == "default_factory":
                return f"{ast.unparse(keyword.value)}()"
    return text


def class_text(
    home: Module, node: ast.ClassDef, title: str, with_bases: bool = True
) -> Iterator[str]:
    yield f"## {title}\n"
    chain = list(members(home, node)) if with_bases else [(home, node)]
    is_data = bool({"dataclass", "NamedTuple"} & decorators(node)) or any(
        ast.unparse(base) in ("NamedTuple", "TypedDict", "enum.Enum", "_Extras")
        for base in node.bases
    )
    begin = next(
        (f for _, c in chain for f in c.body if isinstance(f, Function) and f.name == "__init__"),
        None,
    )
    if begin is not None and not is_data:
        yield f"```python\n{signature(begin, node.name)}\n```\n"
    if text_of(node):
        yield text_of(node) + "\n"
    if is_data:
        lines = [line for where, one in reversed(chain) for line in fields(where, one)]
        if lines:
            yield "\n".join(lines).lstrip("\n") + "\n"
    seen: set[str] = set()
    for _, one in chain:
        for item in one.body:
            if isinstance(item, Function) and item.name not in seen:
                seen.add(item.name)
                if not item.name.startswith("_") or item.name in _SHOWN_SPECIAL:
                    yield from method_text(item)
            elif isinstance(item, ast.Assign) and isinstance(item.value, ast.Name):
                alias, of = ast.unparse(item.targets[0]), item.value.id
                if of in seen and not alias.startswith("_") and alias not in seen:
                    seen.add(alias)
                    yield f"### `{alias}`\n\nThe same as `{of}`.\n"


def method_text(node: Function) -> Iterator[str]:
    kinds = decorators(node)
    if "setter" in kinds or "overload" in kinds:
        return
    yield f"### `{node.name}`\n"
    if kinds & {"property", "cached_property"}:
        back = "" if node.returns is None else f": {ast.unparse(node.returns)}"
        yield f"```python\n{node.name}{back}\n```\n"
    else:
        mark = "@classmethod\n" if "classmethod" in kinds else ""
        yield f"```python\n{mark}{signature(node)}\n```\n"
    if text_of(node):
        yield text_of(node) + "\n"


def page(name: str) -> str:
    title, text, homes = PAGES[name]
    out = [f"{NOTE}\n# {title}\n", text + "\n"]
    for home, names in homes.items():
        is_inner = home.startswith(("integrations", "compat"))
        if is_inner and text_of(module(home).tree):
            out.append(f"# minimax_m31.{home}\n\n{text_of(module(home).tree)}\n")
        for one in names:
            found = definition(module(home), one)
            if found is None:
                raise SystemExit(f"minimax_m31.{home} has no {one}: see PAGES in {__file__}")
            where, node = found
            if isinstance(node, ast.ClassDef):
                out += class_text(where, node, one, with_bases=not is_inner)
            else:
                out.append(f"## {one}\n\n```python\n{signature(node)}\n```\n\n{text_of(node)}\n")
    return "\n".join(out).replace("\n\n\n", "\n\n").rstrip() + "\n"


def public_names() -> set[str]:
    for node in _init().body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value)) - {"__version__"}
    raise SystemExit("minimax_m31 has no __all__")


def _init() -> ast.Module:
    return ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))


def main(arguments: list[str]) -> int:
    shown = {one for _, _, homes in PAGES.values() for names in homes.values() for one in names}
    missing = public_names() - shown
    if missing:
        print(f"on no page: {', '.join(sorted(missing))}: add to PAGES", file=sys.stderr)
        return 1
    stale = []
    for name in PAGES:
        path, text = HERE / f"{name}.md", page(name)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if arguments != ["--check"]:
                path.write_text(text, encoding="utf-8")
    if arguments != ["--check"]:
        return 0
    if stale:
        print(f"not up to date: {', '.join(stale)}: python docs/make_reference.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

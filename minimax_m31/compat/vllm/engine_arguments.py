"""vLLM's engine arguments -> those of this engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ... import engine_args as own
from ...errors import ConfigError
from .table import ENGINE, bind, is_refused, refusal

# vLLM's name -> the name here, where they differ.
_RENAMED = {
    "cudagraph_capture_sizes": "cuda_graph_batch_sizes",
    "kv_offloading_size": "kv_offload_gb",
}
_SPECULATION = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
_OWN_NAMES = own.argument_names() - set(ENGINE)
# Configurations whose accepted keys are arguments here.
_OPENED = frozenset(("attention_config", "compilation_config"))
NONE_COUNTS = frozenset(("speculative_config",))  # None turns it off; elsewhere None is "not given"


def engine_arguments(given: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """(arguments of minimax_m31.LLM, the stream interval of calls that set none).

    Every problem is in one ConfigError: what the table refuses, and what the engine's own check
    says about the rest.
    """
    problems: list[str] = []
    out: dict[str, Any] = {}
    speculation: dict[str, Any] = {}
    interval = 1
    for name, value in given.items():
        entry = ENGINE.get(name)
        if entry is None:  # an argument that only this engine has
            out[name] = value
        elif is_refused(entry, value):
            problems.append(refusal(name, entry, value))
        elif entry.get("ignored") or (value is None and name not in NONE_COUNTS):
            continue
        elif name == "stream_interval":
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                problems.append(f"stream_interval={value!r}: 1 or more tokens")
            else:
                interval = value
        elif name in _SPECULATION:
            speculation[_SPECULATION[name]] = value
        elif entry["verdict"] == "same":
            out[_RENAMED.get(name, name)] = _plain(name, value)
        elif name == "distributed_executor_backend":
            # A process that drives one GPU alone launches nothing, whoever launched it.
            if value != "external_launcher" or given.get("tensor_parallel_size") not in (None, 1):
                out[name] = value
        elif name in _OPENED:
            out.update({_RENAMED.get(key, key): item for key, item in value.items()})
    if speculation:
        if out.get("speculative_config") is not None:
            problems.append("speculative_config: spec_method, spec_model, spec_tokens say it too")
        out["speculative_config"] = speculation
    _check(out, problems)
    return out, interval


def _plain(name: str, value: Any) -> Any:
    """The value in the words of this engine."""
    if name == "dtype" and type(value).__module__.partition(".")[0] == "torch":
        return str(value).removeprefix("torch.")
    if name == "allowed_local_media_path" and value == "":
        return None
    return value


def _check(values: dict[str, Any], problems: list[str]) -> None:
    try:
        own.EngineArgs(**values).check()
    except ConfigError as error:
        if not problems:
            raise
        problems.append(str(error))
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        text = "\n  ".join(problems)
        raise ConfigError(f"{len(problems)} arguments cannot be used:\n  {text}")


def bind_engine(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of vLLM's LLM(...), which also takes those that only this engine has."""
    return bind("LLM()", ENGINE, args, kwargs, _OWN_NAMES)


def _field(name: str, value: Any) -> tuple[str, Any, Any]:
    if isinstance(value, (list, dict)):
        make: Callable[[], Any] = value.copy
        return name, Any, dataclasses.field(default_factory=make)
    return name, Any, dataclasses.field(default=value)


def _own_default(name: str) -> Any:
    field = next(f for f in dataclasses.fields(own.EngineArgs) if f.name == name)
    return field.default


def _make_engine_args() -> Any:
    """A dataclass with vLLM's fields and defaults, followed by those of this engine."""
    fields = [
        _field(name, "nano" if name == "model" else entry["default"])
        for name, entry in ENGINE.items()
    ]
    fields += [_field(name, _own_default(name)) for name in sorted(_OWN_NAMES)]
    made = dataclasses.make_dataclass("EngineArgs", fields)
    made.__module__ = __name__
    made.__doc__ = "vLLM's engine arguments: `LLM(**dataclasses.asdict(args))`."
    return made


EngineArgs = _make_engine_args()

"""Engine arguments: what `LLM(...)` takes, what each value may be, and why some are refused.

`EngineArgs` is a plain dataclass; `check()` reports every problem at once in one ConfigError,
before any file is opened. Arguments of other engines that have one sensible value here are accepted
with that value only, and refused by name with the reason otherwise: a copied configuration runs, or
says what to change.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ConfigError, InvalidRequestError
from .params_check import LOGPROB_MODES
from .suggest import unknown_name
from .values import plain, plain_list, shown

PAGE = 128
BACKENDS = ("auto", "cpu", "ref", "cuda")
DTYPES = {
    "auto": "auto",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "f32",
    "f32": "f32",
    "float": "f32",
}
CACHE_DTYPES = {
    "auto": "auto",
    "bfloat16": "bf16",
    "bf16": "bf16",
    "float32": "f32",
    "f32": "f32",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "nvfp4": "nvfp4",
}
LOAD_FORMATS = ("auto", "safetensors", "dummy")
QUANTIZATIONS = (None, "modelopt_mixed", "nvfp4", "mxfp8", "compressed-tensors")
DETERMINISTIC = ("none", "run_to_run", "batch_invariant")
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_LISTS = frozenset({"shard", "device_ids", "cuda_graph_batch_sizes"})  # of integers
_I32_MAX, _F64_MAX = 2**31 - 1, sys.float_info.max


@dataclasses.dataclass(kw_only=True, repr=False)
class EngineArgs:
    """Every argument of LLM(...), with its default."""

    # -- what is run
    model: Any = "nano"
    tokenizer: Any = None
    skip_tokenizer_init: bool = False
    revision: str | None = None
    allow_download: bool = False
    trust_remote_code: bool = False  # accepted and ignored: no remote code is ever run
    load_format: str = "auto"
    dummy_context: bool = False  # dummy weights: caches hold noise, prompts are not computed
    dtype: str = "auto"
    quantization: str | None = None
    hf_overrides: dict[str, Any] | None = None
    verify: bool = False  # check every scale for NaN, also above 4 GB of them
    generation_config: str = "auto"
    override_generation_config: dict[str, Any] | None = None
    chat_template: str | None = None
    thinking: Any = None
    reasoning_effort: str | None = None
    language_model_only: bool = False
    # -- where it runs
    backend: str = "auto"
    threads: int | None = None
    shard: tuple[int, int] | None = None  # (rank, world): one tensor-parallel shard alone
    device_ids: Sequence[int] | None = None
    tensor_parallel_size: int = 1
    enable_expert_parallel: bool = False
    expert_parallel_size: int | None = None
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: Any = None
    # -- sizes
    max_model_len: int | str | None = "auto"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    enable_chunked_prefill: bool = True
    default_max_tokens: int = 32768
    block_size: int = PAGE
    enable_prefix_caching: bool = True
    # "bf16", "fp8", "nvfp4"; auto: fp8 on GPUs of sm_89 and newer, else bf16
    kv_cache_dtype: str = "auto"
    indexer_kv_dtype: str = "auto"
    gpu_memory_utilization: float = 0.90
    kv_cache_memory_bytes: int | None = None
    cpu_offload_gb: float = 0
    kv_offload_gb: float = 0
    swap_space: float | None = None
    # -- how it runs
    seed: int | None = None
    deterministic: str = "none"
    max_logprobs: int = 20
    logprobs_mode: str = "raw_logprobs"
    scheduling_policy: str = "fcfs"
    speculative_config: Any = "auto"
    enforce_eager: bool = False
    cuda_graph_batch_sizes: Any = "auto"
    compilation_config: Any = None
    attention_config: Any = None
    moe_backend: Any = None
    disable_custom_all_reduce: bool = False
    disable_log_stats: bool = False
    enable_sleep_mode: bool = True
    enable_return_routed_experts: bool = False
    enable_lora: bool = False
    # -- media
    limit_mm_per_prompt: dict[str, int] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    allowed_local_media_path: str | None = None
    allowed_media_domains: Sequence[str] = ()
    # -- around it
    tokenizer_threads: int | None = None
    step_timeout_s: float = 300  # of several GPUs that wait for each other; one never waits
    log_level: str | int = "WARNING"
    use_tqdm_on_load: bool = True
    replace: bool = False

    def __new__(cls, *args: Any, **kwargs: Any) -> EngineArgs:
        if args:
            raise TypeError("EngineArgs takes keyword arguments only")
        check_names("EngineArgs", kwargs)
        return super().__new__(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        """The one place where numbers of other libraries become Python's own."""
        object.__setattr__(self, name, plain_list(value) if name in _LISTS else plain(value))

    def check(self) -> None:
        """Raises one ConfigError with every problem of the arguments themselves."""
        problems = _Problems(self)
        _check_what(self, problems)
        _check_where(self, problems)
        _check_sizes(self, problems)
        _check_how(self, problems)
        problems.raise_all()

    def __repr__(self) -> str:
        values = {"model": self.model} | self.changed()
        return (
            f"EngineArgs({', '.join(f'{name}={shown(value)}' for name, value in values.items())})"
        )

    def changed(self) -> dict[str, Any]:
        """The arguments that differ from their defaults."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if _differs(getattr(self, f.name), f.default)
        }


def _differs(value: Any, default: Any) -> bool:
    try:
        return bool(value != default)
    except ValueError:  # an array, which no argument's default is
        return True


def _is(value: Any, *valid: Any) -> bool:
    """Whether `value` is one of these and of its type: True is no 1, and 1.0 is none."""
    for wanted in valid:
        if value is wanted:
            return True
        same = isinstance(value, type(wanted)) or (isinstance(wanted, bool) and type(value) is int)
        if same and (isinstance(wanted, bool) or not isinstance(value, bool)) and value == wanted:
            return True
    return False


# Names that other engines use for something that is an argument here, or that cannot be one.
_ELSEWHERE = {
    "max_tokens": "it belongs to SamplingParams(max_tokens=)",
    "temperature": "it belongs to SamplingParams(temperature=)",
    "top_p": "it belongs to SamplingParams(top_p=)",
    "tp": "its name is tensor_parallel_size",
    "tp_size": "its name is tensor_parallel_size",
    "device": "its name is backend ('cpu', 'cuda'), and device_ids for ordinals",
    "num_threads": "its name is threads",
    "n_threads": "its name is threads",
    "context_length": "its name is max_model_len",
    "n_ctx": "its name is max_model_len",
    "page_size": "pages hold 128 tokens: the model's attention blocks",
    "mem_fraction_static": "its name is gpu_memory_utilization",
    "model_path": "its name is model",
}


def argument_names() -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(EngineArgs))


def check_names(kind: str, given: Mapping[str, Any], others: Sequence[str] = ()) -> None:
    """`others`: names that the caller has taken out already, for the hint."""
    names = argument_names().union(others)
    for name in given:
        if name not in names:
            raise TypeError(unknown_name(f"{kind}()", name, names, _ELSEWHERE.get(name)))


class _Problems:
    """Collects problems, so that one error names all of them."""

    def __init__(self, args: EngineArgs) -> None:
        self.args = args
        self.found: list[str] = []

    def add(self, name: str, text: str) -> None:
        self.found.append(f"{name}={shown(getattr(self.args, name), 80)}: {text}")

    def choice(self, name: str, valid: Sequence[Any]) -> None:
        value = getattr(self.args, name)
        if _is(value, *valid):
            return
        near = (
            difflib.get_close_matches(value, [v for v in valid if isinstance(v, str)], 1)
            if isinstance(value, str)
            else []
        )
        hint = f"; did you mean {near[0]!r}?" if near else ""
        self.add(name, f"expected one of {', '.join(map(repr, valid))}{hint}")

    def integer(self, name: str, low: int, high: int, text: str) -> int | None:
        value = getattr(self.args, name)
        if type(value) is not int:
            self.add(name, f"an integer is needed, not {type(value).__name__}: {text}")
            return None
        if not low <= value <= high:
            self.add(name, text)
            return None
        return value

    def number(self, name: str) -> float | None:
        value = getattr(self.args, name)
        if type(value) not in (int, float) or not abs(value) <= _F64_MAX:
            kind = "" if isinstance(value, float) else f", not {type(value).__name__}"
            self.add(name, f"a finite number is needed{kind}")
            return None
        return float(value)

    def flags(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self.args, name), bool):
                self.add(name, "True or False is needed")

    def only(self, name: str, allowed: Sequence[Any], why: str) -> None:
        """An argument that has one sensible value here."""
        if not _is(getattr(self.args, name), *allowed):
            self.add(name, why)

    def raise_all(self) -> None:
        if len(self.found) == 1:
            raise ConfigError(self.found[0])
        if self.found:
            raise ConfigError(
                f"{len(self.found)} arguments cannot be used:\n  " + "\n  ".join(self.found)
            )


def _check_what(a: EngineArgs, p: _Problems) -> None:
    if not isinstance(a.model, (str, os.PathLike)) or not os.fspath(a.model):
        p.add("model", "a folder, or 'nano' for the checkpoint in the package, is needed")
    if (
        a.tokenizer is not None
        and not isinstance(a.tokenizer, (str, os.PathLike))
        and not hasattr(a.tokenizer, "encode")
    ):
        p.add("tokenizer", "a folder with a tokenizer.json, or a Tokenizer, is needed")
    if not isinstance(a.revision, (str, type(None))):
        p.add("revision", "the name of a branch, a tag or a commit is needed")
    p.flags(
        "skip_tokenizer_init",
        "allow_download",
        "trust_remote_code",
        "verify",
        "language_model_only",
        "dummy_context",
    )
    if a.dummy_context is True and not _is(a.load_format, "dummy"):
        p.add("dummy_context", "it leaves prompts uncomputed: only with load_format='dummy'")
    if _is(a.load_format, "sharded_state"):
        p.add("load_format", "not part of this version: use 'safetensors'")
    else:
        p.choice("load_format", LOAD_FORMATS)
    if _is(a.dtype, "float16", "half", "fp16"):
        p.add("dtype", "the model overflows in float16: use 'bfloat16', or 'float32' on a CPU")
    else:
        p.choice("dtype", tuple(DTYPES))
    p.choice("quantization", QUANTIZATIONS)
    if a.hf_overrides is not None and not isinstance(a.hf_overrides, Mapping):
        p.add("hf_overrides", "a dict of config fields is needed")
    if not isinstance(a.generation_config, str):
        p.add(
            "generation_config",
            "'auto', 'none' or 'vllm' (both: ignore the file), or a folder, is needed",
        )
    if a.override_generation_config is not None and not isinstance(
        a.override_generation_config, Mapping
    ):
        p.add("override_generation_config", "a dict of generation fields is needed")
    from .chat.thinking import check_effort, thinking_mode  # late: the chat package loads jinja2

    for check, name in ((thinking_mode, "thinking"), (check_effort, "reasoning_effort")):
        try:
            check(getattr(a, name))
        except InvalidRequestError as error:
            p.found.append(str(error))
    if a.chat_template is not None:
        from .chat.template import compile_template

        if not isinstance(a.chat_template, str):
            p.add("chat_template", "the text of a Jinja template is needed")
        else:
            try:
                compile_template(a.chat_template)
            except InvalidRequestError as error:
                p.found.append(str(error))
    p.only("enable_lora", (False,), "LoRA adapters are not supported")
    for name in ("limit_mm_per_prompt", "mm_processor_kwargs"):
        p.only(name, (None, {}), "images and video are not part of this version")
    path, domains = a.allowed_local_media_path, a.allowed_media_domains
    if path is not None and not isinstance(path, (str, os.PathLike)):
        p.add("allowed_local_media_path", "a folder is needed")
    if not isinstance(domains, (list, tuple)) or not all(isinstance(d, str) for d in domains):
        p.add("allowed_media_domains", "a list of host names is needed")


def _are_integers(value: Any, low: int, high: int) -> bool:
    return isinstance(value, (list, tuple)) and all(
        type(item) is int and low <= item <= high for item in value
    )


def _check_where(a: EngineArgs, p: _Problems) -> None:
    p.choice("backend", BACKENDS)
    if a.threads is not None:
        p.integer("threads", 1, 4096, "it must lie in 1 .. 4096; None takes the physical cores")
    if a.shard is not None:
        pair = a.shard if _are_integers(a.shard, 0, 64) and len(a.shard) == 2 else None
        if pair is None or pair[0] >= pair[1]:
            p.add("shard", "(rank, world) with 0 <= rank < world <= 64, both integers, is needed")
    if a.device_ids is not None:
        ids, size = a.device_ids, a.tensor_parallel_size
        if not _are_integers(ids, 0, _I32_MAX):
            p.add("device_ids", "a list of device ordinals, integers from 0 up, is needed")
        elif _is(size, 1, 2, 4, 8) and (len(ids) != size or len(set(ids)) != len(ids)):
            p.add("device_ids", f"{size} different ordinals are needed (tensor_parallel_size)")
        elif _is(a.backend, "cpu", "ref"):
            p.add("device_ids", f"backend={a.backend!r} uses no device")
    p.choice("tensor_parallel_size", (1, 2, 4, 8))
    if _is(a.tensor_parallel_size, 2, 4, 8):
        p.add("tensor_parallel_size", "several devices are not part of this version: use 1")
    for name, off in (("enable_expert_parallel", (False,)), ("expert_parallel_size", (None, 1))):
        p.only(name, off, "several devices are not part of this version: leave it out")
    p.only(
        "data_parallel_size",
        (1,),
        "run one process per replica, each with its own LLM and share of the prompts",
    )
    p.only(
        "pipeline_parallel_size",
        (1,),
        "layers are not split over devices: use tensor_parallel_size",
    )
    p.only("distributed_executor_backend", (None, "uni", "mp"), "everything runs in this process")


def _check_sizes(a: EngineArgs, p: _Problems) -> None:
    length = None
    if not _is(a.max_model_len, None, "auto", -1):
        text = f"1 to {_I32_MAX} tokens, or 'auto', are possible"
        length = p.integer("max_model_len", 1, _I32_MAX, text)
    p.integer("max_num_seqs", 1, 65536, "it must be 1 to 65536")
    rows = p.integer("max_num_batched_tokens", PAGE, 2**24, f"it must be {PAGE} to {2**24}")
    if rows is not None and rows % PAGE:
        below = rows // PAGE * PAGE
        p.add(
            "max_num_batched_tokens", f"it must be a multiple of {PAGE}: {below} or {below + PAGE}"
        )
    p.flags("enable_chunked_prefill", "enable_prefix_caching")
    if (
        a.enable_chunked_prefill is False
        and length is not None
        and rows is not None
        and length > rows
    ):
        p.add(
            "enable_chunked_prefill",
            f"a prompt of max_model_len={length} needs "
            f"max_num_batched_tokens={-(-length // PAGE) * PAGE}",
        )
    p.integer("default_max_tokens", 1, _I32_MAX, f"it must be 1 to {_I32_MAX}")
    p.only(
        "block_size",
        (PAGE, None),
        "a page is one block of the model's sparse attention: 128 tokens, nothing else",
    )
    p.choice("kv_cache_dtype", tuple(CACHE_DTYPES))
    p.choice("indexer_kv_dtype", tuple(CACHE_DTYPES))
    wants_f32 = _is(a.dtype, "float32", "f32", "float")
    for name in ("kv_cache_dtype", "indexer_kv_dtype"):
        if _is(getattr(a, name), "float32", "f32") and not wants_f32:
            p.add(name, "a float32 cache needs dtype='float32'")
    if _is(a.backend, "cuda") and wants_f32:
        p.add("dtype", "float32 runs on backend 'cpu' and 'ref' only")
    share = p.number("gpu_memory_utilization")
    if share is not None and not 0 < share <= 1:
        p.add("gpu_memory_utilization", "it must lie in (0, 1]")
    if a.kv_cache_memory_bytes is not None:
        text = f"it must be 1 to {2**62} bytes; None chooses them by what is free"
        p.integer("kv_cache_memory_bytes", 1, 2**62, text)
    if a.swap_space is not None:
        p.number("swap_space")
    for name in ("cpu_offload_gb", "kv_offload_gb"):
        p.only(name, (0, 0.0), "not part of this version: leave it 0")


def _check_how(a: EngineArgs, p: _Problems) -> None:
    if a.seed is not None:
        p.integer("seed", -(2**63), 2**64 - 1, "it must fit into 64 bits; None takes fresh entropy")
    p.choice("deterministic", DETERMINISTIC)
    text = f"it must be 0 to {_I32_MAX}, or -1 for the whole vocabulary"
    p.integer("max_logprobs", -1, _I32_MAX, text)
    p.choice("logprobs_mode", tuple(LOGPROB_MODES))
    p.choice("scheduling_policy", ("fcfs", "priority"))
    why = "speculative decoding is not part of this version: use None"
    p.only("speculative_config", (None, "auto"), why)
    p.flags(
        "enforce_eager",
        "disable_custom_all_reduce",
        "disable_log_stats",
        "enable_sleep_mode",
        "replace",
        "use_tqdm_on_load",
    )
    sizes = a.cuda_graph_batch_sizes
    if not _is(sizes, "auto", None) and (not _are_integers(sizes, 1, 65536) or not sizes):
        p.add(
            "cuda_graph_batch_sizes",
            "'auto' or a list of batch sizes, integers from 1 to 65536, is needed; "
            "enforce_eager=True captures nothing",
        )
    for name in ("compilation_config", "attention_config"):
        p.only(name, (None, {}), "none of its keys is implemented here")
    p.only("moe_backend", (None, "auto"), "the kernels are chosen by the backend")
    p.only(
        "enable_return_routed_experts",
        (False,),
        "not part of this version; LLM.trace(ids).experts has them",
    )
    if a.tokenizer_threads is not None:
        p.integer("tokenizer_threads", 1, 4096, "it must be 1 to 4096")
    timeout = p.number("step_timeout_s")
    if timeout is not None and timeout <= 0:
        p.add("step_timeout_s", "it must be above 0")
    if isinstance(a.log_level, str):
        if a.log_level.upper() not in LOG_LEVELS:
            p.add("log_level", f"expected one of {', '.join(LOG_LEVELS)}")
    else:
        text = f"expected one of {', '.join(LOG_LEVELS)}, or a number of logging's"
        p.integer("log_level", 0, _I32_MAX, text)


def log_level(value: str | int) -> int:
    return value if isinstance(value, int) else int(getattr(logging, str(value).upper()))

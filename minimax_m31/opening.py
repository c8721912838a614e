"""From engine arguments to an open engine: files, numbers, formats, sizes, and the one call that
loads.

Order: arguments, files, backend, sizes, load; each stage reports all its problems at once and
nothing is allocated before the last one. What "auto" became is in the result.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core
from .checkpoint import CheckpointInfo, read_checkpoint, read_config
from .core_params import EngineFacts
from .diagnostics import variables, wrong_library
from .engine_args import CACHE_DTYPES, DTYPES, PAGE, EngineArgs
from .errors import ConfigError, InvalidRequestError, OutOfDeviceMemoryError
from .params import SamplingParams
from .scores import format_bytes
from .seeds import MASK

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

logger = logging.getLogger("minimax_m31")

NANO = Path(__file__).resolve().parent / "nano"
HOST_SHARE = 0.5  # of the free host memory that "auto" sizes may plan for pages
PAGES_PER_SEQUENCE = 8  # that the default pool of a host plans for each sequence of a batch
_GENERATION_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclasses.dataclass
class Opened:
    engine: _core.Engine
    checkpoint: CheckpointInfo
    tokenizer: Tokenizer | None
    default_params: SamplingParams
    facts: EngineFacts
    info: dict[str, Any]  # what the core chose
    model_name: str
    load_seconds: float


def find_model(args: EngineArgs) -> Path:
    """The checkpoint's folder. "nano" is the package's own; a folder of that name is "./nano"."""
    name = os.fspath(args.model)
    if name == "nano":
        if (NANO / "config.json").is_file():
            return NANO
        raise ConfigError(
            "model='nano': this build of the package holds no trained checkpoint "
            "(minimax_m31/nano/config.json is "
            "missing): give the folder of a checkpoint, LLM('path/to/checkpoint')"
        )
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ConfigError(f"model={name!r} is a file: give the folder that holds config.json")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.startswith("."):
        return _cached_snapshot(name, args)
    raise ConfigError(
        f"model={name!r}: there is no such folder: give one that holds a checkpoint, or 'nano' "
        "(LLM.plan also takes 'M3.1-Flash')"
    )


def _cached_snapshot(name: str, args: EngineArgs) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ConfigError(
            f"model={name!r}: there is no such folder, and a Hub id needs huggingface_hub (pip "
            "install "
            "huggingface_hub) and a cached snapshot: or give the folder of a checkpoint"
        ) from None
    try:
        return Path(
            snapshot_download(
                name, revision=args.revision, local_files_only=not args.allow_download
            )
        )
    except Exception as error:  # many classes, none of them public API of every version
        raise ConfigError(
            f"model={name!r}: no snapshot of this Hub id is cached here ({error}); fetch it, give "
            "a folder, or "
            "allow_download=True"
        ) from error


def read_files(args: EngineArgs) -> tuple[CheckpointInfo, Path]:
    folder = find_model(args)
    if args.load_format == "dummy":
        info = read_config(folder, hf_overrides=args.hf_overrides)
    else:
        info = read_checkpoint(folder, hf_overrides=args.hf_overrides)
        wanted = {
            "nvfp4": "nvfp4",
            "modelopt_mixed": "nvfp4",
            "compressed-tensors": "nvfp4",
            "mxfp8": "mxfp8",
        }
        kind = wanted.get(args.quantization or "")
        if kind is not None and kind not in info.quantization:
            raise ConfigError(
                f"quantization={args.quantization!r}: the tensors of {folder} are "
                f"{info.quantization}; leave the "
                "argument out, the checkpoint says it"
            )
    return info, folder


def read_tokenizer(args: EngineArgs, folder: Path, n_vocab: int) -> Tokenizer | None:
    """None when there is none, or none is wanted: the engine then takes token ids only."""
    if args.skip_tokenizer_init:
        return None
    if args.tokenizer is None and not (folder / "tokenizer.json").is_file():
        return None
    from .tokenizer import Tokenizer  # late: the library takes a while to load

    if isinstance(args.tokenizer, Tokenizer):
        tokenizer = args.tokenizer
        if tokenizer.vocab_size > n_vocab:
            raise ConfigError(
                f"tokenizer: it has {tokenizer.vocab_size} ids, the model {n_vocab} embedding rows"
            )
    elif args.tokenizer is not None:
        tokenizer = Tokenizer.from_folder(args.tokenizer, vocab_size=n_vocab)
    else:
        tokenizer = Tokenizer.from_folder(folder, vocab_size=n_vocab)
    if args.chat_template is not None:
        state = tokenizer.__getstate__() | {"chat_template": args.chat_template}
        tokenizer = Tokenizer(**state)
    return tokenizer


def default_params(args: EngineArgs, info: CheckpointInfo) -> SamplingParams:
    """What a call without sampling_params uses: generation_config.json, unless the argument says
    otherwise.
    """
    fields: dict[str, Any] = {}
    source: dict[str, str] = {}
    layers: list[tuple[dict[str, Any], str]] = []
    if args.generation_config not in ("none", "vllm"):
        layers.append((info.generation_config, "  (generation_config.json)"))
    if args.override_generation_config:
        layers.append((dict(args.override_generation_config), "  (override_generation_config)"))
    for values, where in layers:
        for name in _GENERATION_FIELDS:
            if values.get(name) is not None:
                fields[name], source[name] = values[name], where
        if values.get("max_new_tokens") is not None:
            fields["max_tokens"], source["max_tokens"] = values["max_new_tokens"], where
        if values.get("do_sample") is False:
            fields["temperature"], source["temperature"] = 0.0, where
    try:
        params = SamplingParams(**fields)
    except InvalidRequestError as error:
        where = source.get(error.param or "", "").strip(" ()") or "generation_config"
        if where == "generation_config.json" and info.folder is not None:
            where = str(info.folder / where)
        raise ConfigError(f"{where}: {error}") from error
    object.__setattr__(params, "_source", source)
    return params


def choose_backend(args: EngineArgs) -> tuple[str, str]:
    """(name, its line of `backends()`). What was asked for, by the argument or by MM_BACKEND, is
    taken or refused; only a plain "auto" may choose the CPU where there is no GPU.
    """
    lines = {name: (usable, text) for name, usable, text in _core.backends()}
    name, asked = args.backend, f"backend={args.backend!r}"
    if name == "auto" and "MM_BACKEND" in variables():
        name = variables()["MM_BACKEND"]
        asked = f"MM_BACKEND={name}"
    if name != "auto":
        usable, text = lines.get(name, (False, "it is not part of this build"))
        if not usable:
            raise ConfigError(f"{asked} cannot be used: {text}")
        if name == "cuda" and DTYPES[args.dtype] == "f32":
            raise ConfigError(
                f"{asked} cannot run dtype={args.dtype!r}: float32 runs on backend 'cpu' and 'ref' "
                "only"
            )
        return name, text
    usable, text = lines.get("cuda", (False, ""))
    problem = "" if usable else wrong_library(text, variables())
    if problem:
        raise ConfigError(problem)
    if usable and DTYPES[args.dtype] != "f32":
        return "cuda", text
    logger.info("running on the CPU: %s", f"dtype={args.dtype!r}" if usable else text)
    return "cpu", lines["cpu"][1] if "cpu" in lines else ""


def free_host_bytes() -> int:
    """Memory that this process may still take: the system's, within the limits of its control group
    and of its address space (ulimit -v).
    """
    free = 1 << 62
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"MemAvailable:\s+(\d+) kB", file.read())
        if found is not None:
            free = int(found[1]) * 1024
        if limit != resource.RLIM_INFINITY:
            with open("/proc/self/statm", encoding="ascii") as file:
                free = min(free, limit - int(file.read().split()[0]) * resource.getpagesize())
        root = Path("/sys/fs/cgroup")
        most = (root / "memory.max").read_text().strip()
        if most != "max":
            free = min(free, int(most) - int((root / "memory.current").read_text()))
    except (OSError, ValueError):
        pass
    return max(0, free)


def _formats(args: EngineArgs, backend: str, line: str) -> tuple[str, str, str]:
    """(dtype, K/V cache, index cache)."""
    dtype = DTYPES[args.dtype]
    dtype = "bf16" if dtype == "auto" else dtype
    auto = "f32" if dtype == "f32" else "bf16"
    if backend == "cuda":
        found = re.search(r"sm_(\d+)", line)
        if found is not None and int(found[1]) >= 89:
            auto = "fp8"
    kv, index = CACHE_DTYPES[args.kv_cache_dtype], CACHE_DTYPES[args.indexer_kv_dtype]
    kv, index = (auto if kv == "auto" else kv), (auto if index == "auto" else index)
    if dtype == "f32" and (kv != "f32" or index != "f32"):
        raise ConfigError(
            f"dtype='float32' keeps float32 caches: kv_cache_dtype={args.kv_cache_dtype!r} and "
            f"indexer_kv_dtype={args.indexer_kv_dtype!r} must be 'auto' or 'float32'"
        )
    return dtype, kv, index


def _model_len(args: EngineArgs, info: CheckpointInfo, page: int, host_free: int | None) -> int:
    """`host_free`: free memory of a host backend, None on a device."""
    limit = info.max_model_len
    wanted = args.max_model_len
    if isinstance(wanted, int) and wanted > 0:
        if wanted > limit:
            raise ConfigError(
                f"max_model_len={wanted}: the model goes up to {limit} (max_position_embeddings)"
            )
        return wanted
    pages: float = limit
    if args.kv_cache_memory_bytes is not None:
        pages = args.kv_cache_memory_bytes // page
    elif host_free is not None:
        pages = host_free * HOST_SHARE // page - args.max_num_seqs
    fits = min(limit, int(max(0, pages)) * PAGE)
    if fits < 1:
        raise ConfigError(
            f"no page of the KV cache fits: one holds {PAGE} tokens and takes "
            f"{format_bytes(page)}; lower max_num_seqs "
            f"(now {args.max_num_seqs}), raise kv_cache_memory_bytes, or give max_model_len"
        )
    if fits < limit:
        logger.info("max_model_len: %d tokens fit (the model goes up to %d)", fits, limit)
    return fits


def _pool_bytes(args: EngineArgs, length: int, page: int, host_free: int | None) -> int:
    """Bytes of all pages; 0 leaves it to the core (a device's memory_fraction).

    On a host: one sequence of full length and a thousand tokens for each of the others, as far as
    half of the free memory goes. Pages are committed when they are first written.
    """
    if args.kv_cache_memory_bytes is not None or host_free is None:
        return args.kv_cache_memory_bytes or 0
    least = -(-length // PAGE) + args.max_num_seqs
    wanted = least + (PAGES_PER_SEQUENCE - 1) * args.max_num_seqs
    return page * max(least, min(wanted, int(host_free * HOST_SHARE) // page))


def dummy_formats(args: EngineArgs, info: CheckpointInfo) -> int:
    """Of weights that are made: 0 BF16, 1 as released, 2 MXFP8 experts too. An MXFP8 config that
    says nothing of its experts is M3's.
    """
    said = (
        info.raw_config.get("quantization_config")
        or (info.raw_config.get("text_config") or {}).get("quantization_config")
        or {}
    )
    method = args.quantization or said.get("quant_method")
    if method is None:
        return int(bool(said))
    has_experts = said.get("moe_quant_algo") or said.get("moe_quant_format")
    return 2 if method == "mxfp8" and not has_experts else 1


def engine_options(
    args: EngineArgs,
    info: CheckpointInfo,
    *,
    place: tuple[str, str] | None = None,
    host_free: int | None = None,
) -> dict[str, Any]:
    """Fields of mm_engine_options. `place`: a backend and its line of `backends()` that need not be
    here, `host_free`: free bytes of its host; a plan of another machine gives them.
    """
    backend, line = choose_backend(args) if place is None else place
    dtype, kv, index = _formats(args, backend, line)
    if dtype == "f32" and backend == "cuda":
        raise ConfigError("dtype='float32' runs on backend 'cpu' and 'ref' only")
    rank, world = args.shard if args.shard is not None else (0, 1)
    _core.config_check(info.config)
    page = _core.page_bytes(info.config, kv, index, rank, world)
    if args.kv_cache_memory_bytes is not None and args.kv_cache_memory_bytes < 2 * page:
        raise ConfigError(
            f"kv_cache_memory_bytes={args.kv_cache_memory_bytes}: a page of {PAGE} tokens takes "
            f"{page} bytes, and two are "
            "the least that can work"
        )
    if backend == "cuda":
        host_free = None
    elif host_free is None:
        host_free = free_host_bytes()
    length = _model_len(args, info, page, host_free)
    if not args.enable_chunked_prefill and args.max_num_batched_tokens < length:
        raise ConfigError(
            f"enable_chunked_prefill=False needs max_num_batched_tokens >= max_model_len "
            f"({length}), "
            f"it is {args.max_num_batched_tokens}"
        )
    options: dict[str, Any] = {
        "backend": backend,
        "load": "dummy" if args.load_format == "dummy" else "files",
        "dummy_seed": (args.seed or 0) & MASK,
        "dummy_quantized": dummy_formats(args, info),
        "dummy_context": int(args.dummy_context),
        "verify": int(args.verify),
        "dtype": dtype,
        "kv_format": kv,
        "index_format": index,
        "n_thread": args.threads or 0,
        "n_rank": args.tensor_parallel_size,
        "shard_rank": rank,
        "shard_world": world,
        "max_model_len": length,
        "max_num_seqs": args.max_num_seqs,
        "max_batched_tokens": args.max_num_batched_tokens,
        "kv_bytes": _pool_bytes(args, length, page, host_free),
        "memory_fraction": float(args.gpu_memory_utilization),
        "max_logprobs": info.config["n_vocab"]
        if args.max_logprobs == -1
        else min(args.max_logprobs, info.config["n_vocab"]),
        "batch_invariant": int(args.deterministic == "batch_invariant"),
        "enable_prefix_cache": int(args.enable_prefix_caching),
        "priority_policy": int(args.scheduling_policy == "priority"),
        "enforce_eager": int(args.enforce_eager),
    }
    if args.cuda_graph_batch_sizes not in ("auto", None):
        options["graph_size"] = [int(n) for n in args.cuda_graph_batch_sizes]
    if args.device_ids is not None:
        options["device"] = [int(i) for i in args.device_ids]
    return options


def open_engine(args: EngineArgs) -> Opened:
    args.check()
    began = time.monotonic()
    info, folder = read_files(args)
    tokenizer = read_tokenizer(args, folder, info.config["n_vocab"])
    params = default_params(args, info)
    options = engine_options(args, info)
    config = info.config
    if tokenizer is None:
        # Raw ids in, raw ids out: media placeholders are masked only where tokens become text.
        config = {**config, "never_token": []}
    bar = LoadBar(args.use_tqdm_on_load)
    try:
        engine = _core.Engine(
            config=config,
            options=options,
            files=[os.fspath(path) for path in info.files],
            tensors=info.tensors,
            eos_token_ids=info.eos_token_ids,
            token_bytes=None if tokenizer is None else tokenizer.token_bytes(),
            progress=bar,
        )
    except OutOfDeviceMemoryError as error:
        from .plan import attach_plan  # late: it imports this module

        attach_plan(error, args)
        raise
    finally:
        bar.close()
    chosen = engine.info()
    _warn_if_cut(args.max_model_len, chosen["max_model_len"])
    facts = EngineFacts(
        n_vocab=info.config["n_vocab"],
        max_model_len=chosen["max_model_len"],
        max_num_seqs=chosen["max_num_seqs"],
        max_logprobs=args.max_logprobs,
        default_max_tokens=args.default_max_tokens,
        logprobs_mode=args.logprobs_mode,
        has_priority=args.scheduling_policy == "priority",
        eos_token_ids=tuple(info.eos_token_ids),
    )
    name = "nano" if folder == NANO else str(folder)
    return Opened(engine, info, tokenizer, params, facts, chosen, name, time.monotonic() - began)


def _warn_if_cut(wanted: int | str | None, got: int) -> None:
    """A length that was asked for, and that the caches are too small for, is no detail of a log."""
    if isinstance(wanted, int) and got < wanted:
        warnings.warn(
            f"max_model_len={wanted}: the KV cache holds {got} tokens, and sequences end there: "
            "raise kv_cache_memory_bytes or gpu_memory_utilization, or lower max_model_len",
            stacklevel=5,  # whoever called LLM()
        )


class LoadBar:
    """Called by the core while it loads; a bar appears when loading takes longer than a second and
    someone looks.
    """

    def __init__(self, is_wanted: bool = True) -> None:
        self._is_wanted = is_wanted
        self._began = time.monotonic()
        self._bar: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if not self._is_wanted or total <= 0 or time.monotonic() - self._began < 1.0:
                return
            self._bar = _load_bar(total)
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _load_bar(total: int) -> Any:
    from .progress import _someone_looks, _tqdm

    make: Callable[..., Any] = _tqdm if _someone_looks() else _Silent
    return make(
        total=total,
        desc="Loading",
        unit="B",
        unit_scale=True,
        unit_divisor=1024,
        dynamic_ncols=True,
    )


class _Silent:
    n = 0

    def __init__(self, **_: Any) -> None:
        pass

    def update(self, n: int) -> None:
        self.n += n

    def close(self) -> None:
        pass

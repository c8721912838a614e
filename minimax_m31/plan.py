"""LLM.plan: what an engine would take of a machine's memory, before there is one.

The numbers come from the core: it runs the code that decides them when an engine opens, on a device
that is here or on an imagined one, and stops where loading would begin. Python adds the questions
around it: what a long context costs in every cache format, what fits, and what to change if nothing
does (each proposal is planned as well before it is made).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _core
from .checkpoint import INDEX, SINGLE, CheckpointInfo, read_checkpoint, read_config
from .engine_args import PAGE, EngineArgs, check_names
from .errors import ConfigError, Mm31Error, OutOfDeviceMemoryError
from .opening import choose_backend, engine_options, find_model, free_host_bytes
from .plan_devices import Device, device_of, parse_size, split_count
from .plan_release import is_release, release_config
from .values import plain

CLASS_TEXT = {
    "experts": "routed experts",
    "shared": "shared experts",
    "attention": "attention projections",
    "index": "index projections",
    "dense": "dense MLP",
    "embedding": "embedding",
    "head": "lm_head",
    "small": "norms and routers (f32)",
}
TP_SIZES = (1, 2, 4, 8)
CACHE_FORMATS = ("bf16", "fp8", "nvfp4")
MILLION = 1 << 20  # a "1M" context: the model's limit


@dataclasses.dataclass(frozen=True)
class PlanLine:
    """Bytes of one purpose on one GPU (or host). `where`: "device", "host", or "mapped" (the
    checkpoint's own pages).
    """

    group: str  # "weights", "caches", "work", "reserve"
    what: str
    where: str
    n_bytes: int


@dataclasses.dataclass(frozen=True)
class Change:
    """Arguments that would make it fit, and what they give."""

    arguments: dict[str, Any]
    capacity: int  # tokens of KV cache
    text: str


@dataclasses.dataclass(repr=False)
class MemoryPlan:
    """What an engine takes on one GPU, and what fits. Made by `LLM.plan`."""

    model: str
    formats: str
    device: Device
    n_gpu: int
    tensor_parallel_size: int
    arguments: dict[str, Any]  # fields of the core's options, as an engine would be opened
    lines: list[PlanLine]
    allowed: int  # bytes that this engine may use of one GPU
    fits: bool
    problem: str  # why it does not fit; "" when it does
    page_bytes: int
    index_page_bytes: int
    n_page: int  # pages for tokens
    max_model_len: int
    context_bytes: dict[str, dict[str, int]]  # per GPU, of 1M tokens: {"kv": {format: bytes}, ...}
    changes: list[Change]
    notes: list[str]

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens of all sequences together that the cache holds."""
        return self.n_page * PAGE

    @property
    def replicas(self) -> int:
        """Engines of this size that the GPUs hold, one process each."""
        return max(1, self.n_gpu // self.tensor_parallel_size)

    def total(self, where: str | None = None, group: str | None = None) -> int:
        """Bytes of one GPU (and of the host), all or of one place or group."""
        return sum(
            line.n_bytes
            for line in self.lines
            if (where is None or line.where == where) and (group is None or line.group == group)
        )

    def largest_context(self, n_seq: int = 1) -> int:
        """Tokens that each of `n_seq` sequences may grow to at once; 0 when they do not fit."""
        if n_seq < 1:
            raise ConfigError(f"n_seq={n_seq}: a number of sequences, 1 or more, is needed")
        if n_seq > self.arguments["max_num_seqs"]:
            return 0
        return min(self.max_model_len, self.n_page // n_seq * PAGE)

    def largest_batch(self, length: int) -> int:
        """Sequences of `length` tokens that run at once, at most max_num_seqs."""
        if length < 1:
            raise ConfigError(f"length={length}: a number of tokens, 1 or more, is needed")
        if length > self.max_model_len:
            return 0
        return int(min(self.arguments["max_num_seqs"], self.n_page // -(-length // PAGE)))

    def million_bytes(self, kv: str, index: str) -> int:
        """Bytes on one GPU of one context of 1M (2**20) tokens in these cache formats."""
        return self.context_bytes["kv"][kv] + self.context_bytes["index"][index]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain numbers, lists and strings."""
        lengths = [n for n in (8192, 65536, 262144, MILLION) if n <= self.max_model_len]
        sizes = [n for n in (1, 8, 64, 256) if n <= self.arguments["max_num_seqs"]]
        return {
            "model": self.model,
            "formats": self.formats,
            "device": dataclasses.asdict(self.device),
            "n_gpu": self.n_gpu,
            "tensor_parallel_size": self.tensor_parallel_size,
            "replicas": self.replicas,
            "arguments": dict(self.arguments),
            "lines": [dataclasses.asdict(line) for line in self.lines],
            "total": {
                where: self.total(where) for where in sorted({line.where for line in self.lines})
            },
            "allowed": self.allowed,
            "fits": self.fits,
            "problem": self.problem,
            "page_bytes": self.page_bytes,
            "n_page": self.n_page,
            "kv_capacity_tokens": self.kv_capacity_tokens,
            "max_model_len": self.max_model_len,
            "context_1m_bytes": {k: dict(v) for k, v in self.context_bytes.items()},
            "largest_context": {str(n): self.largest_context(n) for n in sizes},
            "largest_batch": {str(n): self.largest_batch(n) for n in lengths},
            "changes": [dataclasses.asdict(change) for change in self.changes],
            "notes": list(self.notes),
        }

    def plot(self) -> Any:
        """Bytes by purpose and the cost of 1M tokens: a matplotlib figure, or text without it."""
        from .plan_show import plot

        return plot(self)

    def __repr__(self) -> str:
        from .plan_show import text

        return text(self)

    def _repr_html_(self) -> str:
        from .plan_show import html

        return html(self)


# ---------------------------------------------------------------- what is asked


@dataclasses.dataclass
class Question:
    """One forecast: a model, a machine, arguments. Proposals are variations of it."""

    args: EngineArgs
    info: CheckpointInfo
    device: Device
    offload: int  # bytes of routed experts in host memory, per GPU
    host_free: int
    is_dummy: bool  # load_format="dummy" was asked for, not only used to count

    def options(self) -> dict[str, Any]:
        if self.device.kind == "host":
            place = None if self.device.is_here else ("cpu", "")
            return engine_options(self.args, self.info, place=place, host_free=self.host_free)
        place = None if self.device.is_here else ("cuda", f"sm_{self.device.cc}")
        return engine_options(self.args, self.info, place=place)

    def ask(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(options, forecast of the core)."""
        options = self.options()
        imagined = self.device.kind == "cuda" and not self.device.is_here
        found = _core.plan(
            self.info.config,
            options,
            files=[os.fspath(path) for path in self.info.files],
            tensors=self.info.tensors,
            memory_total=self.device.memory_total if imagined else 0,
            memory_free=self.device.memory_free if imagined else 0,
        )
        if self.offload:
            _offload(found, options, self.offload)
        return options, found

    def change(self, **changes: Any) -> Question:
        """The same with other engine arguments."""
        offload = changes.pop("cpu_offload_gb", None)
        return dataclasses.replace(
            self,
            args=dataclasses.replace(self.args, **changes),
            offload=self.offload if offload is None else int(offload * 1e9),
        )


def _offload(found: dict[str, Any], options: dict[str, Any], n_bytes: int) -> None:
    """The forecast with some of the experts in host memory: the rule of the core's plan over the
    smaller sum.
    """
    n_bytes = min(n_bytes, found["weights"]["experts"])
    lines = [
        (what, kind, size - n_bytes if what == "weights" else size)
        for what, kind, size in found["lines"]
    ]
    found["weights"] = {**found["weights"], "experts": found["weights"]["experts"] - n_bytes}
    found["lines"] = [*lines, ("experts in host memory", "host", n_bytes)]
    fixed = found["reserve"] + sum(size for _, kind, size in lines if kind == "device")
    share = int(options["memory_fraction"] * found["memory_total"])
    allowed = min(share, found["memory_free"])
    wanted = options["kv_bytes"]
    allowed = found["memory_free"] if wanted else allowed
    room = wanted or allowed - fixed
    n_page = max(0, room) // found["page_bytes"]
    if n_page >= 2 and fixed + n_page * found["page_bytes"] <= allowed:
        found["n_page"], found["problem"], found["param"] = n_page, "", ""


# ---------------------------------------------------------------- reading the arguments


def _model(source: Any, args: EngineArgs) -> tuple[CheckpointInfo, str, list[str]]:
    """(model, its name, notes). Weights are looked at (headers only) where they are."""
    overrides = args.hf_overrides
    notes: list[str] = []
    if isinstance(source, Mapping):
        return read_config(source, hf_overrides=overrides), "a config", notes
    if is_release(source) and not Path(source).is_dir():
        info = read_config(release_config(), hf_overrides=overrides)
        notes.append("the released model's numbers as built into this package")
        return info, "MiniMax-M3.1-Flash", notes
    path = Path(os.fspath(source)).expanduser()
    if path.is_file() and path.suffix == ".json":
        from .strict_json import parse_object

        raw = parse_object(path.read_bytes(), str(path))
        return read_config(raw, hf_overrides=overrides), path.name, notes
    folder = find_model(args)
    name = "nano" if os.fspath(source) == "nano" else str(folder)
    has_weights = (folder / INDEX).exists() or (folder / SINGLE).exists()
    if args.load_format == "dummy" or not has_weights:
        info = read_config(folder, hf_overrides=overrides)
        if args.load_format != "dummy":
            notes.append(f"no weights in {folder}: planned from config.json")
        return info, name, notes
    return read_checkpoint(folder, hf_overrides=overrides), name, notes


def _formats_text(info: CheckpointInfo, options: dict[str, Any]) -> str:
    if info.files:
        return info.quantization
    return (
        "bf16 (assumed: no quantization_config)",
        "nvfp4 experts, mxfp8 linears (assumed: as released)",
        "mxfp8 experts, mxfp8 linears (assumed: quantization_config names no other experts)",
    )[options["dummy_quantized"]]


def _device(gpu: Any, args: EngineArgs, host_memory: Any) -> Device:
    if isinstance(gpu, str) and gpu.lower() in ("cpu", "host", "ref"):
        gpu, on_host = None, True
    else:
        on_host = args.backend in ("cpu", "ref")
    if on_host and gpu is not None:
        raise ConfigError(
            f"gpu={gpu!r} with backend={args.backend!r}: that backend uses no GPU; leave one out"
        )
    if gpu is not None:
        return device_of(gpu)
    backend = args.backend if args.backend in ("cpu", "ref") else "cpu"
    if not on_host:
        backend, line = choose_backend(args)
        if backend == "cuda":
            tier = re.search(r"sm_(\d+)", line)
            cc = int(tier[1]) if tier else 80
            return Device(f"this machine's: {line}", "cuda", 0, 0, cc, is_here=True)
    free = free_host_bytes() if host_memory is None else parse_size(host_memory, "host_memory")
    name = "this machine" if host_memory is None else "a host"
    return Device(f"{name}'s {backend} backend", "host", free, free, is_here=True)


def _ranks(n_gpu: Any, counted: int | None, given: Any, device: Device) -> tuple[int, int]:
    """(GPUs, tensor_parallel_size)."""
    if n_gpu is not None and (type(n_gpu) is not int or n_gpu < 1):
        raise ConfigError(f"n_gpu={n_gpu!r}: a number of GPUs, 1 or more, is needed")
    if n_gpu is not None and counted is not None and n_gpu != counted:
        raise ConfigError(f"n_gpu={n_gpu}, but gpu says {counted}: leave one of them out")
    n = n_gpu if n_gpu is not None else counted
    if given is not None and (type(given) is not int or given not in TP_SIZES):
        raise ConfigError(f"tensor_parallel_size={given!r}: expected one of 1, 2, 4, 8")
    if device.kind == "host":
        if (n or 1) > 1 or (given or 1) > 1:
            raise ConfigError(
                f"n_gpu={n}, tensor_parallel_size={given}: a host backend runs one rank; leave "
                "them out"
            )
        return 1, 1
    if given is None:
        given = max(size for size in TP_SIZES if size <= (n or 1))
    if n is None:
        n = given
    if given > n:
        raise ConfigError(
            f"tensor_parallel_size={given} needs {given} GPUs, n_gpu is {n}: "
            f"use tensor_parallel_size={max(size for size in TP_SIZES if size <= n)}"
        )
    return n, given


def _engine_refuses(**arguments: Any) -> str:
    """What an engine of this version says to these arguments; "" when it takes them."""
    try:
        EngineArgs(**arguments).check()
    except ConfigError as error:
        return str(error)
    return ""


def make_plan(
    model: Any = "nano",
    *,
    gpu: Any = None,
    n_gpu: int | None = None,
    host_memory: Any = None,
    **engine_args: Any,
) -> MemoryPlan:
    """See LLM.plan."""
    check_names("LLM.plan", engine_args, ("gpu", "n_gpu", "host_memory"))
    gpu, counted = split_count(gpu)
    n_gpu = plain(n_gpu)
    given_tp = plain(engine_args.pop("tensor_parallel_size", None))
    offload_gb = plain(engine_args.pop("cpu_offload_gb", 0))
    if type(offload_gb) not in (int, float) or not 0 <= offload_gb < 1e9:
        raise ConfigError(f"cpu_offload_gb={offload_gb!r}: a number of GB, 0 or more, is needed")
    name = model if isinstance(model, (str, os.PathLike)) else "nano"
    if not isinstance(model, (str, os.PathLike, Mapping)):
        raise ConfigError(
            f"model={model!r}: a folder, a config as a dict, 'nano' or 'M3.1-Flash' is needed"
        )
    args = EngineArgs(model=name, **engine_args)
    args.check()
    device = _device(gpu, args, host_memory)
    n_gpu, tp = _ranks(n_gpu, counted, given_tp, device)
    if device.kind == "host":
        if offload_gb:
            raise ConfigError(
                f"cpu_offload_gb={offload_gb}: on a host backend all weights are in host memory "
                "already; leave it out"
            )
        backend = args.backend if args.backend in ("cpu", "ref") else "cpu"
        args = dataclasses.replace(args, backend=backend)
    is_dummy = args.load_format == "dummy"
    info, title, notes = _model(model, args)
    if not info.files:
        args = dataclasses.replace(args, load_format="dummy")
    args = dataclasses.replace(args, tensor_parallel_size=tp)
    host_free = device.memory_free if device.kind == "host" else free_host_bytes()
    if host_memory is not None:
        host_free = parse_size(host_memory, "host_memory")
    question = Question(args, info, device, int(offload_gb * 1e9), host_free, is_dummy)
    return _answer(question, title, notes, n_gpu, has_host=host_memory is not None)


def attach_plan(error: OutOfDeviceMemoryError, args: EngineArgs) -> None:
    """Gives the refusal of an engine its plan, with what to change. The refusal stays what it is
    when no plan can be made.
    """
    given = args.changed()
    given.pop("model", None)
    try:
        error.plan = make_plan(args.model, **given)
    except Mm31Error:
        error.plan = None


# ---------------------------------------------------------------- the answer


def _lines(found: dict[str, Any], *, is_dummy: bool) -> list[PlanLine]:
    """`is_dummy`: weights that are made, not mapped from files; f32 copies never are mapped."""
    on_host = found["is_host"]
    lines = []
    for name, size in found["weights"].items():
        is_copy = is_dummy or name == "small"
        place = ("host" if is_copy else "mapped") if on_host else "device"
        if size > 0:
            lines.append(PlanLine("weights", CLASS_TEXT[name], place, size))
    for what, kind, size in found["lines"]:
        if what == "weights":
            continue  # by class, above
        group = "weights" if what in ("rope table", "experts in host memory") else "work"
        lines.append(PlanLine(group, what, kind, size))
    n_page, index = found["n_page"], found["index_page_bytes"]
    caches = "host" if on_host else "device"
    lines.append(PlanLine("caches", "KV pages", caches, n_page * (found["page_bytes"] - index)))
    lines.append(PlanLine("caches", "index key pages", caches, n_page * index))
    lines.append(PlanLine("caches", "draft model and its pages", caches, 0))
    if found["reserve"]:
        lines.append(PlanLine("reserve", "left to the driver", "device", found["reserve"]))
    return lines


def _context_bytes(question: Question, world: int) -> dict[str, dict[str, int]]:
    """Bytes of 1M tokens on one GPU, in every format, K/V and index keys apart."""
    config = question.info.config
    dense = {**config, "layer_is_sparse": [0] * config["n_layer"], "n_index_head": 0,
             "index_dim": 0, "n_top_block": 0, "n_init_block": 0}  # fmt: skip
    pages = MILLION // PAGE
    formats = ("f32", *CACHE_FORMATS) if question.args.dtype == "float32" else CACHE_FORMATS
    kv = {f: pages * _core.page_bytes(dense, f, f, 0, world) for f in formats}
    index = {
        f: pages * _core.page_bytes(config, formats[0], f, 0, world) - kv[formats[0]]
        for f in formats
    }
    return {"kv": kv, "index": index}


def _answer(
    question: Question, title: str, notes: list[str], n_gpu: int, *, has_host: bool
) -> MemoryPlan:
    from .plan_changes import changes_for, host_notes, least_memory

    options, found = question.ask()
    tp = question.args.tensor_parallel_size
    device = question.device
    if device.kind == "cuda" and device.is_here:
        device = dataclasses.replace(
            device, memory_total=found["memory_total"], memory_free=found["memory_free"]
        )
    question = dataclasses.replace(question, device=device)
    share = int(options["memory_fraction"] * device.memory_total)
    allowed = min(share, device.memory_free)
    if options["kv_bytes"] or device.kind == "host":
        allowed = device.memory_free
    plan = MemoryPlan(
        model=title,
        formats=_formats_text(question.info, options),
        device=device,
        n_gpu=n_gpu,
        tensor_parallel_size=tp,
        arguments={k: v for k, v in options.items() if k not in ("dummy_seed", "verify")},
        lines=_lines(found, is_dummy=question.is_dummy),
        allowed=allowed,
        fits=found["n_page"] >= 2,
        problem=found["problem"],
        page_bytes=found["page_bytes"],
        index_page_bytes=found["index_page_bytes"],
        n_page=max(0, found["n_page"] - 1),
        max_model_len=options["max_model_len"],
        context_bytes=_context_bytes(question, tp),
        changes=[],
        notes=notes,
    )
    _add_notes(plan, question, has_host=has_host)
    notes.extend(host_notes(plan, question, has_host=has_host))
    wanted = question.args.max_model_len
    short = plan.fits and isinstance(wanted, int) and plan.kv_capacity_tokens < wanted
    if short:
        plan.problem = (
            f"the KV cache holds {plan.kv_capacity_tokens} tokens, less than "
            f"max_model_len={wanted}: sequences end at {plan.kv_capacity_tokens} tokens"
        )
    if device.kind == "cuda" and (not plan.fits or short):
        # a device that is here was asked once; its proposals are planned without it
        asked = dataclasses.replace(question, device=dataclasses.replace(device, is_here=False))
        plan.changes = changes_for(asked, plan, wanted if isinstance(wanted, int) else 0)
        least = "" if plan.fits else least_memory(asked, plan)
        if least:
            plan.notes.append(least)
    return plan


def _add_notes(plan: MemoryPlan, question: Question, *, has_host: bool) -> None:
    tp = plan.tensor_parallel_size
    if plan.device.kind == "cuda":
        if tp > 1 and _engine_refuses(tensor_parallel_size=tp):
            plan.notes.append(
                f"tensor_parallel_size={tp}: planned, but an engine of this version runs on one "
                "device only"
            )
        if question.offload and _engine_refuses(cpu_offload_gb=1):
            plan.notes.append(
                "cpu_offload_gb: planned, but an engine of this version keeps all weights on "
                "the device"
            )
        if not plan.device.is_here:
            plan.notes.append(
                f"{plan.device.name}: {plan.device.memory_total / 1e9:.1f} GB as a driver reports "
                f"them, {(plan.device.memory_total - plan.device.memory_free) / 1e9:.2f} GB taken "
                "by the process itself; on the machine, LLM.plan() asks the device"
            )
        _add_device_notes(plan, question)
        if tp < plan.n_gpu:
            plan.notes.append(
                f"{plan.n_gpu} GPUs hold {plan.replicas} engines of {tp}: one process each"
            )
    plan.notes.append("draft: speculative decoding is not part of this version, it takes nothing")


def _add_device_notes(plan: MemoryPlan, question: Question) -> None:
    """What devices newer than the kernels mean: other defaults than their users may expect."""
    cc = plan.device.cc
    if cc < 100:
        return
    plan.notes.append(
        f"sm_{cc}: runs the kernels for sm_80 and newer; the faster ones are for sm_90a only"
    )
    auto = [
        name
        for name in ("kv_cache_dtype", "indexer_kv_dtype")
        if getattr(question.args, name) == "auto"
    ]
    if auto:
        smaller = {"kv": plan.arguments["kv_format"], "index": plan.arguments["index_format"]}
        smaller |= {"kv" if name == "kv_cache_dtype" else "index": "nvfp4" for name in auto}
        now = plan.million_bytes(plan.arguments["kv_format"], plan.arguments["index_format"])
        gain = now / plan.million_bytes(smaller["kv"], smaller["index"])
        named = ", ".join(f"{name}='nvfp4'" for name in auto)
        plan.notes.append(
            f"caches: 'auto' is fp8 on sm_{cc} too; {named}, the format that this model was "
            f"trained with, holds {gain:.2f} times the tokens"
        )

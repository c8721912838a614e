"""The rules of `doctor`: facts in, one finding per check out. A finding that is not "ok" says what
to do about it. Each check is a known way in which a deployment goes wrong.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from .diagnostics import wrong_library
from .doctor_probe import CheckpointFacts, Facts

CUDA_NEEDED = 13000  # what the CUDA library of the package is built with
NCCL_NEEDED = 21800
FILES_NEEDED = 256
DEBUG = ("MM_CHECK", "MM_SYNC", "MM_PROFILE", "MM_PROBE", "MM_DUMP")
SLOW_DISKS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse", "sshfs", "lustre", "ceph", "glusterfs")
PIP_NCCL = "pip install nvidia-nccl-cu13"
GB = 10**9


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report. `status`: "ok", "warn" (works, but ...), "fail", "skip"."""

    name: str
    status: str
    text: str
    remedy: str = ""


def ok(name: str, text: str) -> Finding:
    return Finding(name, "ok", text)


def warn(name: str, text: str, remedy: str) -> Finding:
    return Finding(name, "warn", text, remedy)


def fail(name: str, text: str, remedy: str) -> Finding:
    return Finding(name, "fail", text, remedy)


def skip(name: str, text: str) -> Finding:
    return Finding(name, "skip", text)


# ---------------------------------------------------------------- machine


def check_python(f: Facts) -> Finding:
    version = ".".join(map(str, f.python))
    if f.implementation != "CPython" or f.python < (3, 11):
        return fail(
            "python", f"{f.implementation} {version}", "install CPython 3.11 or newer and pip there"
        )
    if f.system != "Linux":
        return fail("python", f"{f.system} is not supported", "use Linux (WSL 2 is one)")
    return ok("python", f"CPython {version}, {f.system} {f.machine}, {f.libc or 'unknown libc'}")


def check_packages(f: Facts) -> Finding:
    needed = ("numpy", "tokenizers", "jinja2", "tqdm", "pillow")
    missing = [name for name in needed if f.packages.get(name, "not installed") == "not installed"]
    if missing:
        return fail(
            "packages", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}"
        )
    major = f.packages["numpy"].split(".")[0]
    if major.isdigit() and int(major) < 2:
        return fail("packages", f"numpy {f.packages['numpy']}", "pip install -U 'numpy>=2.0'")
    if f.packages.get("llguidance", "not installed") == "not installed":
        return warn(
            "packages",
            "llguidance is not installed: structured outputs and forced tool calls are refused",
            'pip install "minimax-m31[structured]"',
        )
    shown = ", ".join(f"{name} {f.packages[name]}" for name in (*needed, "llguidance"))
    return ok("packages", shown)


def check_cpu(f: Facts) -> Finding:
    usable, text = f.backends.get("cpu", (False, "not part of this build"))
    if not usable:
        return fail("cpu", text, "build the package again: pip install --force-reinstall .")
    quota = f.cpu_quota
    if quota is not None and quota < f.cores:
        return warn(
            "cpu",
            f"{f.cores} cores are visible, the container may use {quota:g}: more threads than "
            "that stall each other",
            f"LLM(threads={max(1, int(quota))}), or raise the container's CPU limit",
        )
    return ok("cpu", f"{f.cores} cores; {text}")


def check_host_memory(f: Facts) -> Finding:
    free = f"{f.host_free / GB:.1f} of {f.host_total / GB:.1f} GB of host memory are free"
    if f.host_free < 2 * GB:
        return warn(
            "host memory", free, "close what uses it, or raise the container's memory limit"
        )
    return ok("host memory", free)


def check_limits(f: Facts) -> Finding:
    if f.max_mapped != -1:
        return fail(
            "limits",
            f"the address space is limited to {f.max_mapped} bytes: mapping a checkpoint fails",
            "ulimit -v unlimited",
        )
    if f.overcommit == 2:
        return warn(
            "limits",
            "vm.overcommit_memory is 2: caches that are reserved and not yet used count in full",
            "sysctl vm.overcommit_memory=0, or give kv_cache_memory_bytes",
        )
    if f.max_files < FILES_NEEDED:
        return fail(
            "limits",
            f"{f.max_files} open files are allowed: a checkpoint has more shards",
            "ulimit -n 4096",
        )
    return ok("limits", f"{f.max_files} open files, address space unlimited")


def check_variables(f: Facts) -> Finding:
    bad = {name: text for name, text, is_value in f.variable_problems if is_value}
    unknown = [name for name, _, is_value in f.variable_problems if not is_value]
    if f.dump_problem:
        bad["MM_DUMP"] = f.dump_problem
    chosen = f.mm_variables.get("MM_BACKEND")
    if chosen is not None:
        usable, why = f.backends.get(chosen, (False, "it is not part of this build"))
        if not usable:
            bad["MM_BACKEND"] = f"MM_BACKEND={chosen} cannot be used: {why}"
    others = f"; not known: {', '.join(unknown)}" if unknown else ""
    if bad:
        return fail(
            "variables",
            f"no engine opens: {'; '.join(bad.values())}{others}",
            f"correct them, or unset {' '.join([*bad, *unknown])}",
        )
    debug = [name for name in DEBUG if f.mm_variables.get(name, "0") not in ("", "0")]
    if debug:
        return warn(
            "variables",
            f"{', '.join(f'{n}={f.mm_variables[n]}' for n in debug)}: diagnostics that slow "
            f"every step{others}",
            f"unset {' '.join([*debug, *unknown])}",
        )
    if unknown:
        return warn(
            "variables",
            f"not known, so without effect: {', '.join(unknown)}",
            f"correct the name (known: {', '.join(f.known_variables)}), or unset it",
        )
    shown = ", ".join(f"{k}={v}" for k, v in f.mm_variables.items())
    return ok("variables", shown or "no MM_* variable is set")


# ---------------------------------------------------------------- GPU


def has_gpu_intent(f: Facts) -> bool:
    """Whether this machine looks as if it had a GPU."""
    return bool(f.device_files or f.driver_version or not f.driver_error)


_INIT_REMEDIES = {
    3: "the driver could not start: see dmesg, reload the kernel module, or restart the machine",
    34: "the loaded libcuda.so.1 is the toolkit's stub: take its folder (.../stubs) out of "
    "LD_LIBRARY_PATH",
    46: "the GPU is in use exclusively by another process or in a mode without compute: end the "
    "process, or nvidia-smi -c 0",
    100: "no GPU is visible: look at CUDA_VISIBLE_DEVICES, and start a container with --gpus all",
    101: "CUDA_VISIBLE_DEVICES names a device that does not exist: nvidia-smi -L lists them",
    304: "the operating system refuses access to the device files: start the container with "
    "--gpus all (NVIDIA container toolkit), or look at the rights of /dev/nvidia*",
    802: "the NVSwitch fabric is not ready: start the fabric manager of the driver's version "
    "(systemctl start nvidia-fabricmanager) and look at its log",
    803: "the kernel module and libcuda.so.1 are of different versions: restart the machine after "
    "a driver update; in a container take the host's driver libraries",
    804: "forward compatibility is not possible on this device: remove the cuda-compat package "
    "from LD_LIBRARY_PATH, or update the driver",
    999: "the driver failed: restart the machine (in a container also: --gpus all)",
}


def check_driver(f: Facts) -> Finding:
    if f.driver_error:
        if not f.device_files and not f.driver_version:
            return skip("driver", "no NVIDIA driver on this machine: backend 'cpu'")
        return fail(
            "driver",
            f"the kernel module is there, libcuda.so.1 is not ({f.driver_error})",
            "in a container: start it with --gpus all (NVIDIA container toolkit); else install "
            "the driver's user libraries (libcuda1)",
        )
    if f.init_error:
        remedy = _INIT_REMEDIES.get(f.init_error, "see dmesg; restart the machine")
        if f.environment.get("CUDA_VISIBLE_DEVICES") == "" and f.init_error == 100:
            remedy = "CUDA_VISIBLE_DEVICES is set and empty, which hides every GPU: unset it"
        name = f.init_name or "unknown"
        return fail("driver", f"cuInit failed with {f.init_error} ({name})", remedy)
    offered = f"{f.cuda_version // 1000}.{f.cuda_version % 1000 // 10}"
    module = f.driver_version or "unknown"
    if f.cuda_version < CUDA_NEEDED:
        return fail(
            "driver",
            f"driver {module} offers CUDA {offered}; the library needs {CUDA_NEEDED // 1000}.0",
            "update the NVIDIA driver to 580 or newer",
        )
    return ok("driver", f"driver {module}, CUDA {offered}")


def check_library(f: Facts) -> Finding:
    usable, text = f.backends.get("cuda", (False, "not part of this build"))
    if usable:
        return ok("CUDA library", text)
    wrong = wrong_library(text, f.mm_variables)
    if wrong:
        return fail("CUDA library", wrong, "correct MM_CUDA_SO, or unset it")
    if not has_gpu_intent(f):
        return skip("CUDA library", text)
    if "no CUDA library was built" in text or "build it" in text:
        remedy = "on a machine with nvcc (CUDA 13): MM_CUDA=1 pip install ."
    elif "version" in text and "extension" in text:
        remedy = "the extension and the library are of different builds: MM_CUDA=1 pip install ."
    else:
        remedy = "see the driver's line above; MM_LOG=debug says what was tried"
    return fail("CUDA library", text, remedy)


def check_gpus(f: Facts) -> Finding:
    if f.driver_error or f.init_error:
        return skip("GPUs", "no driver to ask")
    if not f.gpus:
        return fail("GPUs", "the driver sees no device", _INIT_REMEDIES[100])
    old = [g for g in f.gpus if g.cc < 80]
    if old:
        return fail(
            "GPUs",
            f"GPU {old[0].ordinal} ({old[0].name}) is sm_{old[0].cc}; kernels are built for sm_80 "
            "and newer",
            "hide it with CUDA_VISIBLE_DEVICES or device_ids, or use backend='cpu'",
        )
    mig = [g.ordinal for g in f.gpus if g.mig]
    if mig:
        return warn(
            "GPUs",
            f"MIG is on for GPU {', '.join(map(str, mig))}: an engine gets one slice, and slices "
            "cannot work together",
            "have MIG turned off for tensor parallelism (nvidia-smi -mig 0)",
        )
    kinds = {g.name for g in f.gpus}
    if len(kinds) > 1:
        return warn(
            "GPUs",
            f"different GPUs: {', '.join(sorted(kinds))}: the slowest and the smallest decide",
            "choose equal ones: device_ids, or CUDA_VISIBLE_DEVICES",
        )
    total = f.gpus[0].memory_total / GB
    return ok("GPUs", f"{len(f.gpus)} x {f.gpus[0].name}, sm_{f.gpus[0].cc}, {total:.1f} GB each")


def check_gpu_memory(f: Facts) -> Finding:
    known = [g for g in f.gpus if g.used is not None]
    if not known:
        return skip("GPU memory", "not known (no GPU, or no management library)")
    busy = [g for g in known if g.used is not None and g.used > 0.05 * g.memory_total]
    if busy:
        shown = ", ".join(f"GPU {g.ordinal}: {(g.used or 0) / GB:.1f} GB" for g in busy)
        return warn(
            "GPU memory",
            f"in use by other processes: {shown}; the KV cache shrinks by that",
            "end them (nvidia-smi lists them; engines that were killed may have left workers "
            "behind), or lower gpu_memory_utilization",
        )
    return ok("GPU memory", "free on every GPU")


def check_ecc(f: Facts) -> Finding:
    bad = [g for g in f.gpus if g.ecc_errors]
    if bad:
        return fail(
            "ECC",
            f"GPU {bad[0].ordinal}: {bad[0].ecc_errors} uncorrected memory errors",
            "reset or restart the machine; if it happens again, have the GPU replaced",
        )
    if all(g.ecc_errors is None for g in f.gpus):
        return skip("ECC", "not known")
    return ok("ECC", "no uncorrected errors")


def check_peers(f: Facts) -> Finding:
    if len(f.gpus) < 2:
        return skip("peer access", "one GPU or none")
    if f.environment.get("NCCL_P2P_DISABLE", "0") not in ("", "0"):
        return warn(
            "peer access",
            "NCCL_P2P_DISABLE is set: GPUs exchange through host memory",
            "unset NCCL_P2P_DISABLE",
        )
    if f.no_peer:
        a, b = f.no_peer[0]
        hint = " (an IOMMU is active: ACS may be the cause)" if f.iommu_groups else ""
        return fail(
            "peer access",
            f"GPU {a} cannot reach GPU {b} directly, {len(f.no_peer)} pairs in all{hint}",
            "use tensor_parallel_size=1 and one process per GPU, choose GPUs that are linked "
            "(nvidia-smi topo -m), or turn ACS / the IOMMU off in the machine's firmware",
        )
    return ok("peer access", f"all {len(f.gpus)} GPUs reach each other")


def check_nccl(f: Facts) -> Finding:
    if len(f.gpus) < 2:
        return skip("NCCL", "needed for tensor_parallel_size above 1 only")
    if not f.nccl_path:
        return fail("NCCL", f"not found ({f.nccl_error})", PIP_NCCL)
    v = f.nccl_version
    version = f"{v // 10000}.{v // 100 % 100}.{v % 100}"
    if v < NCCL_NEEDED:
        return fail(
            "NCCL", f"{f.nccl_path} is {version}, too old", "pip install -U nvidia-nccl-cu13"
        )
    if f.environment.get("NCCL_NVLS_ENABLE") == "1":
        return warn(
            "NCCL",
            f"{version}; NCCL_NVLS_ENABLE=1 forces NVLink multicast, which needs a ready fabric",
            "unset NCCL_NVLS_ENABLE if opening hangs",
        )
    return ok("NCCL", f"{version} at {f.nccl_path}")


def check_shm(f: Facts) -> Finding:
    if len(f.gpus) < 2:
        return skip("/dev/shm", "used by NCCL between several GPUs only")
    if f.shm_free < 256 << 20:
        return warn(
            "/dev/shm",
            f"{f.shm_free >> 20} MiB are free: NCCL may fail with a shared-memory error",
            "docker run --shm-size=1g (or --ipc=host)",
        )
    return ok("/dev/shm", f"{f.shm_free >> 20} MiB free")


MACHINE_CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    check_python,
    check_packages,
    check_cpu,
    check_host_memory,
    check_limits,
    check_variables,
    check_driver,
    check_library,
    check_gpus,
    check_gpu_memory,
    check_ecc,
    check_peers,
    check_nccl,
    check_shm,
)


# ---------------------------------------------------------------- checkpoint


def checkpoint_findings(c: CheckpointFacts, f: Facts) -> Iterator[Finding]:
    """What is known of a checkpoint's folder."""
    if c.problems:
        lfs = any("LFS" in p for p in c.problems)
        remedy = "git lfs pull" if lfs else "fetch the checkpoint again"
        yield fail("checkpoint files", "; ".join(c.problems[:5]), remedy)
    if c.error:
        yield fail("checkpoint", c.error, "fetch the checkpoint again, or give another folder")
        return
    yield ok("checkpoint", f"{c.n_file} files, {c.n_bytes / GB:.2f} GB, {c.formats}")
    if not c.has_tokenizer:
        yield warn(
            "tokenizer",
            "there is no tokenizer.json: only token ids, no text, stops or chat",
            "fetch it too, or LLM(tokenizer=folder)",
        )
    elif not c.has_template:
        yield warn(
            "tokenizer",
            "there is no chat template: chat() needs one",
            "fetch chat_template.jinja too, or LLM(chat_template=text)",
        )
    else:
        yield ok("tokenizer", "tokenizer.json and a chat template")
    fields = {k: v for k, v in c.generation.items() if k in _SAMPLING}
    if fields:
        shown = ", ".join(f"{k} {v}" for k, v in fields.items())
        yield ok("defaults", f"generation_config.json sets {shown} for calls without parameters")
    yield from _disk(c, f)


_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def _disk(c: CheckpointFacts, f: Facts) -> Iterator[Finding]:
    seconds = c.n_bytes / max(c.read_rate, 1.0)
    shown = f"{c.file_system or 'unknown file system'}, {c.read_rate / GB:.2f} GB/s"
    if c.cached:
        yield ok("disk", f"{shown} (from memory)")
    elif c.file_system.split(".")[0] in SLOW_DISKS and seconds > 60:
        yield warn(
            "disk",
            f"{shown}: a network file system; reading takes about {seconds:.0f} s",
            "copy the checkpoint to a local disk",
        )
    elif seconds > 600:
        yield warn(
            "disk",
            f"{shown}: reading the weights takes about {seconds / 60:.0f} minutes",
            "copy the checkpoint to a faster disk",
        )
    else:
        yield ok("disk", f"{shown}: the weights are read in about {seconds:.1f} s")
    runs_here = not f.gpus
    if runs_here and c.n_bytes > f.host_free:
        yield warn(
            "weights in memory",
            f"{c.n_bytes / GB:.1f} GB of weights, {f.host_free / GB:.1f} GB of free memory: "
            "they are read from the disk again and again",
            "a machine with more memory, or a GPU",
        )


def plan_finding(plan: Any) -> Finding:
    """A MemoryPlan of this machine as a finding."""
    if not plan.fits:
        remedy = plan.changes[0].text if plan.changes else "see python -m minimax_m31 plan"
        return fail("memory plan", plan.problem, remedy)
    return ok(
        "memory plan",
        f"{plan.device.name}: {plan.kv_capacity_tokens} tokens of KV cache, one sequence up to "
        f"{plan.largest_context(1)} tokens",
    )

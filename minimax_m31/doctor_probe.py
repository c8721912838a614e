"""What `doctor` looks at, as plain facts: the process, the machine, the driver, NCCL, the disk of a
checkpoint. Nothing here judges (doctor_checks.py does). The driver is asked through calls that need
no context; only the list of backends opens a device for a moment.
"""

from __future__ import annotations

import ctypes
import dataclasses
import glob
import importlib.util
import os
import platform
import re
import resource
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import _core
from .diagnostics import variables
from .environment import _version, build_info
from .opening import free_host_bytes

_PACKAGES = ("numpy", "tokenizers", "jinja2", "tqdm", "pillow", "llguidance", "ipywidgets")


@dataclasses.dataclass
class Gpu:
    """One device as the driver describes it without a context."""

    ordinal: int
    name: str
    memory_total: int
    cc: int
    used: int | None = None  # bytes taken by all processes; None: the management library is absent
    mig: bool | None = None
    ecc_errors: int | None = None  # uncorrected, since the driver was loaded


@dataclasses.dataclass
class Facts:
    """Everything that the checks judge."""

    python: tuple[int, ...] = (3, 11)
    implementation: str = "CPython"
    system: str = "Linux"
    machine: str = "x86_64"
    libc: str = ""
    build: dict[str, Any] = dataclasses.field(default_factory=dict)
    backends: dict[str, tuple[bool, str]] = dataclasses.field(default_factory=dict)
    packages: dict[str, str] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    mm_variables: dict[str, str] = dataclasses.field(default_factory=dict)
    known_variables: list[str] = dataclasses.field(default_factory=list)
    # (name, what is wrong, whether it is the value: else the name)
    variable_problems: list[tuple[str, str, bool]] = dataclasses.field(default_factory=list)
    dump_problem: str = ""  # of the folder that MM_DUMP names
    cores: int = 1
    cpu_quota: float | None = None  # cores that a control group allows
    host_total: int = 0
    host_free: int = 0
    overcommit: int = 0  # vm.overcommit_memory
    max_files: int = 1024
    max_mapped: int = -1  # RLIMIT_AS, -1 without a limit
    shm_free: int = 0
    # -- driver
    device_files: int = 0  # /dev/nvidia0, ...
    driver_version: str = ""  # of the kernel module
    driver_error: str = ""  # why libcuda cannot be loaded
    cuda_version: int = 0  # 13000: what the driver offers
    init_error: int = 0  # of cuInit; 0 is success
    init_name: str = ""
    gpus: list[Gpu] = dataclasses.field(default_factory=list)
    no_peer: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    iommu_groups: int = 0
    # -- NCCL
    nccl_path: str = ""
    nccl_version: int = 0  # 22900
    nccl_error: str = ""


@dataclasses.dataclass
class CheckpointFacts:
    """A checkpoint's folder and the disk below it."""

    folder: str
    error: str = ""  # what reading config and headers said
    problems: list[str] = dataclasses.field(default_factory=list)  # pointers, partial files
    n_bytes: int = 0
    n_file: int = 0
    formats: str = ""
    has_tokenizer: bool = False
    has_template: bool = False
    generation: dict[str, Any] = dataclasses.field(default_factory=dict)
    file_system: str = ""
    read_rate: float = 0.0  # bytes a second
    cached: bool = False  # the sample came from memory


# ---------------------------------------------------------------- machine


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""


def _meminfo(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _quota() -> float | None:
    parts = _text("/sys/fs/cgroup/cpu.max").split()
    if len(parts) == 2 and parts[0].isdigit():
        return int(parts[0]) / int(parts[1])
    return None


def _free(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return 0


def _dump_problem(name: str | None) -> str:
    """Why no probe can be written there; an engine finds out by making the folder."""
    if name is None:
        return ""
    path = Path(name)
    if path.exists() and not path.is_dir():
        return f"MM_DUMP={name} is no folder"
    if not os.access(path if path.exists() else path.parent, os.W_OK | os.X_OK):
        return f"MM_DUMP={name} cannot be written"
    return ""


_WATCHED = re.compile(r"CUDA_|NVIDIA_|NCCL_|LD_PRELOAD|LD_LIBRARY_PATH|OMP_NUM_THREADS|MM_")


def probe(environment: Mapping[str, str] | None = None) -> Facts:
    """Facts of this process and machine."""
    environ = os.environ if environment is None else environment
    facts = Facts(
        python=tuple(sys.version_info[:3]),
        implementation=platform.python_implementation(),
        system=platform.system(),
        machine=platform.machine(),
        libc=" ".join(platform.libc_ver()).strip(),
        build=build_info(),
        backends={name: (usable, text) for name, usable, text in _core.backends()},
        packages={name: _version(name) for name in _PACKAGES},
        environment={k: v for k, v in environ.items() if _WATCHED.match(k)},
        mm_variables=variables(),
        known_variables=[name for name, _, _ in _core.env_table()],
        variable_problems=_core.env_problems(),
        dump_problem=_dump_problem(variables().get("MM_DUMP")),
        cores=len(os.sched_getaffinity(0)),
        cpu_quota=_quota(),
        host_total=_meminfo("MemTotal"),
        host_free=free_host_bytes(),
        overcommit=int(_text("/proc/sys/vm/overcommit_memory") or 0),
        max_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        max_mapped=resource.getrlimit(resource.RLIMIT_AS)[0],
        shm_free=_free("/dev/shm"),
        device_files=len(glob.glob("/dev/nvidia[0-9]*")),
        iommu_groups=len(glob.glob("/sys/kernel/iommu_groups/*")),
    )
    module = re.search(r"Module\s+(\d+(?:\.\d+)+)", _text("/proc/driver/nvidia/version"))
    facts.driver_version = module[1] if module else ""
    _probe_driver(facts)
    _probe_nccl(facts)
    return facts


# ---------------------------------------------------------------- driver


def _probe_driver(facts: Facts) -> None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        facts.driver_error = str(error)
        return
    value = ctypes.c_int()
    if cuda.cuDriverGetVersion(ctypes.byref(value)) == 0:
        facts.cuda_version = value.value
    facts.init_error = int(cuda.cuInit(0))
    if facts.init_error != 0:
        name = ctypes.c_char_p()
        if cuda.cuGetErrorName(facts.init_error, ctypes.byref(name)) == 0 and name.value:
            facts.init_name = name.value.decode(errors="replace")
        return
    if cuda.cuDeviceGetCount(ctypes.byref(value)) != 0:
        return
    for i in range(value.value):
        gpu = _probe_gpu(cuda, i)
        if gpu is not None:
            facts.gpus.append(gpu)
    for a in range(len(facts.gpus)):
        for b in range(len(facts.gpus)):
            can = ctypes.c_int()
            if a != b and cuda.cuDeviceCanAccessPeer(ctypes.byref(can), a, b) == 0 and not can:
                facts.no_peer.append((a, b))
    _probe_management(facts)


def _probe_gpu(cuda: Any, i: int) -> Gpu | None:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(128)
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        cuda.cuDeviceGet(ctypes.byref(device), i)
        or cuda.cuDeviceGetName(name, 128, device)
        or cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    )
    if failed:
        return None
    cc = major.value * 10 + minor.value
    return Gpu(i, name.value.decode(errors="replace"), total.value, cc)


class _NvmlMemory(ctypes.Structure):
    _fields_ = [
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


def _probe_management(facts: Facts) -> None:
    """Memory in use, MIG, ECC, by the management library where it is. Its numbering ignores
    CUDA_VISIBLE_DEVICES, so it is asked only where that is not set.
    """
    if facts.environment.get("CUDA_VISIBLE_DEVICES") is not None:
        return
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return
    if nvml.nvmlInit_v2() != 0:
        return
    try:
        for gpu in facts.gpus:
            handle = ctypes.c_void_p()
            if nvml.nvmlDeviceGetHandleByIndex_v2(gpu.ordinal, ctypes.byref(handle)) != 0:
                continue
            memory = _NvmlMemory()
            if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
                gpu.used = int(memory.used)
            now, later = ctypes.c_uint(), ctypes.c_uint()
            if nvml.nvmlDeviceGetMigMode(handle, ctypes.byref(now), ctypes.byref(later)) == 0:
                gpu.mig = now.value == 1
            count = ctypes.c_ulonglong()
            if nvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0, ctypes.byref(count)) == 0:
                gpu.ecc_errors = int(count.value)
    finally:
        nvml.nvmlShutdown()


# ---------------------------------------------------------------- NCCL


def _nccl_candidates() -> list[str]:
    """Where it usually is: pip's packages, conda, what the loader finds."""
    found: list[str] = []
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        found += sorted(glob.glob(f"{folder}/nccl/lib/libnccl.so.*"))
    prefix = os.environ.get("CONDA_PREFIX")
    if prefix:
        found += sorted(glob.glob(f"{prefix}/lib/libnccl.so.*"))
    return [*found, "libnccl.so.2"]


def _probe_nccl(facts: Facts) -> None:
    for path in _nccl_candidates():
        try:
            library = ctypes.CDLL(path)
            version = ctypes.c_int()
            if library.ncclGetVersion(ctypes.byref(version)) != 0:
                raise OSError(f"{path}: ncclGetVersion failed")
        except (OSError, AttributeError) as error:
            facts.nccl_error = facts.nccl_error or str(error)
            continue
        facts.nccl_path, facts.nccl_version, facts.nccl_error = path, version.value, ""
        return


# ---------------------------------------------------------------- checkpoint

_SAMPLE = 64 << 20


def _file_system(path: Path) -> str:
    """Type of the mount that holds the path."""
    best, kind = "", ""
    real = os.path.realpath(path)
    for line in _text("/proc/mounts").splitlines():
        parts = line.split()
        if len(parts) > 2:
            mount = parts[1].replace("\\040", " ")
            inside = real == mount or real.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, parts[2]
    return kind


def _partial_files(folder: Path) -> list[str]:
    """Files that are not what their names say."""
    found = []
    for path in sorted(folder.iterdir()):
        if path.name.endswith((".incomplete", ".part", ".tmp", ".aria2")):
            found.append(f"{path.name} is a download that has not ended")
        elif path.is_symlink() and not path.exists():
            found.append(f"{path.name} is a link to a file that does not exist")
        elif path.suffix in (".safetensors", ".json") and path.is_file():
            if path.stat().st_size == 0:
                found.append(f"{path.name} is empty")
            elif path.stat().st_size < 1024:
                with open(path, "rb") as file:
                    if file.read(24) == b"version https://git-lfs.":
                        found.append(f"{path.name} is a Git LFS pointer, not the file itself")
    return found


def _read_rate(path: Path) -> tuple[float, bool]:
    """(bytes a second of a sample in the middle of the file, was it in memory?)."""
    size = path.stat().st_size
    n = min(size, _SAMPLE)
    with open(path, "rb", buffering=0) as file:
        offset = (size - n) // 2 // 4096 * 4096
        os.posix_fadvise(file.fileno(), offset, n, os.POSIX_FADV_DONTNEED)
        file.seek(offset)
        began, done = time.perf_counter(), 0
        while done < n:
            piece = file.read(min(8 << 20, n - done))
            if not piece:
                break
            done += len(piece)
        seconds = max(time.perf_counter() - began, 1e-9)
    rate = done / seconds
    return rate, n < _SAMPLE or rate > 8e9


def probe_checkpoint(folder: Path) -> CheckpointFacts:
    """Facts of a checkpoint: only headers and one sample are read."""
    from .checkpoint import read_checkpoint
    from .errors import ConfigError

    facts = CheckpointFacts(str(folder))
    if not folder.is_dir():
        facts.error = f"{folder}: no such folder"
        return facts
    facts.problems = _partial_files(folder)
    facts.file_system = _file_system(folder)
    facts.has_tokenizer = (folder / "tokenizer.json").is_file()
    facts.has_template = (folder / "chat_template.jinja").is_file()
    config = _text(str(folder / "tokenizer_config.json"))
    facts.has_template = facts.has_template or '"chat_template"' in config
    try:
        info = read_checkpoint(folder)
    except (ConfigError, OSError) as error:
        facts.error = str(error)
        return facts
    facts.n_bytes, facts.n_file, facts.formats = info.n_bytes, len(info.files), info.quantization
    facts.generation = dict(info.generation_config)
    largest = max((Path(f) for f in info.files), key=lambda p: p.stat().st_size)
    facts.read_rate, facts.cached = _read_rate(largest)
    return facts

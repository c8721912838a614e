"""Build of the compiled parts. The file system is the list of sources: what lies there is built.

    minimax_m31/_core          C core + Python glue, needs a C compiler only
    minimax_m31/libmm_cuda.so  kernels/cuda/*.cu, where nvcc is; opened at run time, not linked
    minimax_m31/_testing       tests/c/testing_ext.c + C core, only with MM_DEV=1

Variables: MM_CUDA=auto|0|1 (1: a missing nvcc is an error), MM_DEV=1 (warnings are errors,
invariants are checked, the test extension is built), MM_SANITIZE=address,undefined or thread,
MM_JOBS=n compilers at once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
PACKAGE = "minimax_m31"

CORE = ["csrc/**/*.c", "kernels/*.c", "kernels/ref/*.c", "kernels/cpu/*.c"]  # less csrc/py
CFLAGS = [
    "-std=gnu2x", "-O3", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-Wall", "-Wextra",
    "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes", "-Wundef", "-Wvla",
]  # fmt: skip

# One binary image per architecture that kernels are tuned for, and PTX that newer ones compile.
# Files named *_sm90a.cu use instructions that exist on sm_90a only. As in C, products and sums are
# fused only where that is written.
NVCC_FLAGS = [
    "-std=c++17", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-cudart", "static",
    "-Xcompiler", "-fPIC,-fvisibility=hidden,-Wall", "-Xfatbin", "-compress-all",
]  # fmt: skip
ARCHES = ["sm_80", "sm_89", "sm_90", "compute_80"]
HOPPER = ["sm_90a"]


def sources(*patterns: str) -> list[str]:
    """Files of the repository that match, relative to it, sorted: builds are reproducible."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def core_sources() -> list[str]:
    return [name for name in sources(*CORE) if not name.startswith("csrc/py/")]


def dev() -> bool:
    return os.environ.get("MM_DEV", "0") not in ("", "0")


def extra_flags() -> list[str]:
    flags = ["-Werror", "-DMM_DEV=1"] if dev() else []
    sanitize = os.environ.get("MM_SANITIZE", "")
    if sanitize not in ("", "0"):
        kinds = "address,undefined" if sanitize == "1" else sanitize
        flags += [f"-fsanitize={kinds}", "-fno-sanitize-recover=all"]
        flags += ["-fno-omit-frame-pointer", "-g"]
    return flags


def jobs() -> int:
    text = os.environ.get("MM_JOBS") or str(len(os.sched_getaffinity(0)))
    if not text.isdigit() or int(text) < 1:
        raise SystemExit(f"MM_JOBS={text}: it must be a number of at least 1")
    return int(text)


def is_current(obj: Path) -> bool:
    """True when `obj` is newer than everything its dependency file names."""
    deps = obj.with_suffix(".d")
    if not obj.exists() or not deps.exists():
        return False
    names = deps.read_text().split(":", 1)[1].replace("\\\n", " ").split()
    return all(Path(n).exists() and Path(n).stat().st_mtime < obj.stat().st_mtime for n in names)


def gencode(arches: list[str]) -> list[str]:
    return [f"-gencode=arch={a.replace('sm_', 'compute_')},code={a}" for a in arches]


def find_nvcc() -> str | None:
    """The CUDA compiler to use, None to build without one. MM_CUDA decides."""
    mode = os.environ.get("MM_CUDA", "auto")
    if mode not in ("auto", "0", "1"):
        raise SystemExit(f"MM_CUDA={mode}: it must be auto, 0 or 1")
    if mode == "0":
        return None
    spec = importlib.util.find_spec("nvidia")  # pip's packages
    pip = [f"{d}/cu13" for d in (spec and spec.submodule_search_locations) or ()]
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    bins = os.pathsep.join(f"{d}/bin" for d in ([home] if home else ["/usr/local/cuda", *pip]))
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=bins)
    why = "nvcc was not found" if nvcc is None else "there are no kernels/cuda/*.cu"
    if nvcc is not None and sources("kernels/cuda/*.cu"):
        return nvcc
    if mode == "1":
        raise SystemExit(f"MM_CUDA=1, but {why}")
    print(f"minimax_m31: CPU only, no CUDA library is built: {why}")
    return None


class BuildExt(build_ext):  # type: ignore[misc]  # setuptools ships no types
    """Compiles every file once, in parallel, and only when something it includes has changed."""

    def build_extensions(self) -> None:
        import numpy

        flags = CFLAGS + extra_flags()
        include = [str(ROOT), numpy.get_include(), *self.compiler.include_dirs]
        macros = [
            f"-D{m}=NPY_2_0_API_VERSION" for m in ("NPY_NO_DEPRECATED_API", "NPY_TARGET_VERSION")
        ]
        settings = repr((self.compiler.compiler_so, flags, include, NVCC_FLAGS))  # new: new objects
        temp = Path(self.build_temp).resolve() / hashlib.sha256(settings.encode()).hexdigest()[:8]

        def compile_one(name: str) -> str:
            obj = temp / Path(name).with_suffix(".o")
            obj.parent.mkdir(parents=True, exist_ok=True)
            if not is_current(obj):
                post = [*flags, "-MMD", "-MF", str(obj.with_suffix(".d"))]
                command = [*self.compiler.compiler_so, *(f"-I{d}" for d in include)]
                self.spawn_quietly([*command, *macros, "-c", name, "-o", str(obj), *post])
            return str(obj)

        names = sorted({name for ext in self.extensions for name in ext.sources})
        with ThreadPoolExecutor(jobs()) as pool:
            objects = dict(zip(names, pool.map(compile_one, names), strict=True))
        for ext in self.extensions:
            path = self.get_ext_fullpath(ext.name)
            post = ["-pthread", *[f for f in flags if f.startswith("-fsanitize=")]]
            parts = [objects[name] for name in ext.sources]
            self.compiler.link_shared_object(
                parts, path, libraries=["dl", "m"], extra_postargs=post
            )
        Path(self.cuda_path()).unlink(missing_ok=True)  # never ship the one of an earlier build
        nvcc = find_nvcc()
        if nvcc is not None:
            self.build_cuda(nvcc, temp)

    def spawn_quietly(self, command: list[str]) -> None:
        """Runs a compiler; its output stays in one piece although several run at once."""
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.stdout or done.stderr:
            print(done.stdout + done.stderr, end="", flush=True)
        if done.returncode != 0:
            raise SystemExit(f"this command failed ({done.returncode}): {' '.join(command)}")

    def cuda_path(self) -> str:
        return str(Path(self.get_ext_fullpath(f"{PACKAGE}._core")).with_name("libmm_cuda.so"))

    def build_cuda(self, nvcc: str, temp: Path) -> None:
        debug = ["-DMM_DEV=1", "-Xcompiler", "-Werror"] if dev() else []

        def compile_one(name: str) -> str:
            arches = HOPPER if name.endswith("_sm90a.cu") else ARCHES
            obj = temp / Path(name).with_suffix(".cu.o")
            obj.parent.mkdir(parents=True, exist_ok=True)
            if not is_current(obj):
                deps = ["-MMD", "-MF", str(obj.with_suffix(".d"))]
                command = [nvcc, *NVCC_FLAGS, *debug, *gencode(arches), f"-I{ROOT}", *deps]
                self.spawn_quietly([*command, "-c", name, "-o", str(obj)])
            return str(obj)

        with ThreadPoolExecutor(jobs()) as pool:
            objects = list(pool.map(compile_one, sources("kernels/cuda/*.cu")))
        link = [nvcc, "-shared", "-cudart", "static", f"-L{Path(nvcc).parents[1]}/lib"]
        link += ["-Xlinker", "--exclude-libs,ALL", "-Xcompiler", "-static-libstdc++,-static-libgcc"]
        self.spawn_quietly([*link, *objects, "-o", self.cuda_path(), "-lpthread", "-ldl"])

    def copy_extensions_to_source(self) -> None:
        """In-place and editable builds: setuptools copies the extensions, we the CUDA library."""
        super().copy_extensions_to_source()
        here = ROOT / PACKAGE / "libmm_cuda.so"
        built = Path(self.build_lib, PACKAGE, here.name)
        here.unlink(missing_ok=True)
        if built.exists():
            shutil.copy2(built, here)

    def get_outputs(self) -> list[str]:
        outputs = super().get_outputs()
        return [*outputs, self.cuda_path()] if Path(self.cuda_path()).exists() else outputs


def extensions() -> list[Extension]:
    found = [Extension(f"{PACKAGE}._core", core_sources() + sources("csrc/py/*.c"))]
    if dev() and (ROOT / "tests/c/testing_ext.c").exists():
        found.append(Extension(f"{PACKAGE}._testing", [*core_sources(), "tests/c/testing_ext.c"]))
    return found


if __name__ == "__main__":
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExt})

"""What the device itself can do, measured before anything else: bytes a second of a copy between
buffers, bytes a second of kernels that only read, and operations a second of a large bf16 matrix
product (random values). Through the driver and cuBLAS alone, so that the numbers do not depend on
the kernels that they judge.

Memory that is read and written in turns is slower than memory that is only read, as most of a
decode step's is: a floor divides bytes by the larger of the two bandwidths. What reads fastest is
not known beforehand, so `read_bandwidth` is the best of four routines of cuBLAS over one buffer far
larger than the L2 cache: a dot product, a sum of absolute values, and a matrix (stored either way)
times a vector. It is what a good public kernel reaches, not what the pins of the memory could."""

from __future__ import annotations

import ctypes
import glob
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from benchlib import Row

NOMINAL_BANDWIDTH = 4.3e12  # of an H200, where it cannot be measured
NOMINAL_RATE = 745e12


@dataclass(frozen=True)
class Ceilings:
    """Bytes and operations a second; what was not measured is 0."""

    device: str
    copy: float = 0.0  # read + written
    read: float = 0.0
    rate: float = 0.0
    read_by: str = ""  # the routine that read fastest

    @property
    def bandwidth(self) -> float:
        """What floors divide bytes by."""
        return max(self.copy, self.read) or NOMINAL_BANDWIDTH

    @property
    def products(self) -> float:
        """What floors divide operations by."""
        return self.rate or NOMINAL_RATE

    @property
    def is_measured(self) -> bool:
        return max(self.copy, self.read) > 0

    def text(self) -> str:
        """For notes: the bandwidth of the floors, and where it comes from."""
        source = "nominal" if not self.is_measured else "read" if self.read >= self.copy else "copy"
        return f"{self.bandwidth / 1e12:.3f} TB/s ({source})"

    def rows(self) -> list[Row]:
        where = f"device={self.device}"
        found = [
            Row("copy_bandwidth", where, f"{self.copy / 1e12:.4g}", "TB/s", note="read + written"),
            Row(
                "read_bandwidth",
                where,
                f"{self.read / 1e12:.4g}",
                "TB/s",
                note=f"best of cuBLAS: {self.read_by}",
            ),
            Row("matrix_rate", f"{where} bf16 8192^3", f"{self.rate / 1e12:.4g}", "TFLOP/s"),
        ]
        values = (self.copy, self.read, self.rate)
        return [row for row, value in zip(found, values, strict=True) if value > 0]


class Driver:
    """A few calls of the CUDA driver on the first device."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(96)
        self.call("cuDeviceGetName", name, 96, device)
        self.name = name.value.decode()

    def call(self, name: str, *args: Any) -> None:
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def memory_free(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def filled(self, n_bytes: int, tile: np.ndarray[Any, Any]) -> ctypes.c_uint64:
        """Device memory that holds the tile again and again."""
        p, done = ctypes.c_uint64(), min(tile.nbytes, n_bytes)
        self.call("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(n_bytes))
        source = tile.ctypes.data_as(ctypes.c_void_p)
        self.call("cuMemcpyHtoD_v2", p, source, ctypes.c_size_t(done))
        while done < n_bytes:
            n = min(done, n_bytes - done)
            to = ctypes.c_uint64(p.value + done)
            self.call("cuMemcpyDtoD_v2", to, p, ctypes.c_size_t(n))
            done += n
        self.call("cuCtxSynchronize")
        return p

    def best_seconds(self, run: Any, repeats: int = 10) -> float:
        begin, end = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(begin), 0)
        self.call("cuEventCreate", ctypes.byref(end), 0)
        best = float("inf")
        for _ in range(repeats):
            self.call("cuEventRecord", begin, None)
            run()
            self.call("cuEventRecord", end, None)
            self.call("cuEventSynchronize", end)
            ms = ctypes.c_float()
            self.call("cuEventElapsedTime", ctypes.byref(ms), begin, end)
            best = min(best, ms.value)
        for event in (begin, end):
            self.call("cuEventDestroy_v2", event)
        return best * 1e-3

    def copy_bandwidth(self, n_bytes: int = 2 << 30) -> float:
        """Bytes read plus bytes written per second."""
        noise = np.random.default_rng(0).integers(0, 2**63, 1 << 20, dtype=np.uint64)
        a, b = (self.filled(n_bytes, noise) for _ in range(2))
        seconds = self.best_seconds(
            lambda: self.call("cuMemcpyDtoDAsync_v2", b, a, ctypes.c_size_t(n_bytes), None)
        )
        for p in (a, b):
            self.call("cuMemFree_v2", p)
        return 2 * n_bytes / seconds

    def upload_bandwidth(self, n_bytes: int = 1 << 30) -> float:
        """Bytes per second from pinned memory of the host to the device."""
        host = ctypes.c_void_p()
        self.call("cuMemHostAlloc", ctypes.byref(host), ctypes.c_size_t(n_bytes), 0)
        if host.value is None:
            raise RuntimeError("cuMemHostAlloc gave no memory")
        ctypes.memset(host, 1, n_bytes)
        p = self.filled(n_bytes, np.zeros(1, np.uint64))
        seconds = self.best_seconds(
            lambda: self.call("cuMemcpyHtoDAsync_v2", p, host, ctypes.c_size_t(n_bytes), None), 3
        )
        self.call("cuMemFree_v2", p)
        self.call("cuMemFreeHost", host)
        return n_bytes / seconds

    def read_bandwidth(self, n_bytes: int = 4 << 30) -> tuple[float, str]:
        """Bytes read per second by the best of some routines of cuBLAS, and its name; 0 without
        cuBLAS. What they write is below a thousandth of what they read."""
        blas = Blas.open()
        if blas is None:
            return 0.0, ""
        noise = np.random.default_rng(2).normal(size=1 << 20).astype(np.float32)
        x = self.filled(n_bytes, noise)
        n = n_bytes // 4  # f32 values; below 2^31, as cuBLAS counts in int
        m = 1 << 14  # the matrix is m x n / m, column by column
        v, y = (self.filled(4 * max(m, n // m), noise) for _ in range(2))
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        half = ctypes.c_uint64(x.value + n // 2 * 4)
        matrix = (m, n // m, ctypes.byref(one), x, m, v, 1, ctypes.byref(zero), y, 1)
        calls: dict[str, Callable[[], None]] = {
            "dot": lambda: blas("cublasSdot_v2", n // 2, x, 1, half, 1, y),
            "asum": lambda: blas("cublasSasum_v2", n, x, 1, y),
            "gemv, transposed": lambda: blas("cublasSgemv_v2", 1, *matrix),
            "gemv": lambda: blas("cublasSgemv_v2", 0, *matrix),
        }
        seconds = {}
        for name, call in calls.items():
            on_device = name in ("dot", "asum")  # the result; else nothing waits for it
            blas("cublasSetPointerMode_v2", 1 if on_device else 0)
            call()  # loads the kernels
            seconds[name] = self.best_seconds(call)
        blas.close()
        for p in (x, v, y):
            self.call("cuMemFree_v2", p)
        best = min(seconds, key=lambda name: seconds[name])
        return n_bytes / seconds[best], best

    def matrix_rate(self, n: int = 8192) -> float:
        """Operations per second of a bf16 product of n x n matrices; 0 without cuBLAS."""
        blas = Blas.open()
        if blas is None:
            return 0.0
        x = np.random.default_rng(1).normal(size=1 << 20).astype(np.float32)
        tile = (x.view(np.uint32) >> 16).astype(np.uint16)
        a, b, c = (self.filled(2 * n * n, tile) for _ in range(3))
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        bf16, f32_sums, usual = 14, 68, -1  # CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT

        def product() -> None:
            # rows of A and of B lie along k, as activations and weights do
            operands = (a, bf16, n, b, bf16, n, ctypes.byref(zero), c, bf16, n)
            size = (1, 0, n, n, n, ctypes.byref(one))
            blas("cublasGemmEx", *size, *operands, f32_sums, usual)

        product()  # loads the kernel
        seconds = self.best_seconds(product)
        blas.close()
        for p in (a, b, c):
            self.call("cuMemFree_v2", p)
        return 2.0 * n**3 / seconds


class Blas:
    """A handle of cuBLAS."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.handle = library, ctypes.c_void_p()
        self._call("cublasCreate_v2", ctypes.byref(self.handle))

    @staticmethod
    def open() -> Blas | None:
        library = cublas()
        return None if library is None else Blas(library)

    def __call__(self, name: str, *args: Any) -> None:
        self._call(name, self.handle, *args)

    def close(self) -> None:
        self("cublasDestroy_v2")

    def _call(self, name: str, *args: Any) -> None:
        code = getattr(self.library, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")


def cublas() -> ctypes.CDLL | None:
    """cuBLAS of the system, of the CUDA toolkit or of a Python package, if there is one."""
    names = ["libcublas.so.13", "libcublas.so.12"]
    for pattern in ["/usr/local/cuda*/lib64/libcublas.so.1[23]"] + [
        f"{folder}/nvidia/*/lib/libcublas.so.1[23]" for folder in sys.path if folder
    ]:
        names += sorted(glob.glob(pattern), reverse=True)
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def open_driver() -> Driver | None:
    """None where there is no driver (the emulator)."""
    try:
        return Driver()
    except OSError:
        return None


def look_at_device() -> Ceilings:
    driver = open_driver()
    if driver is None:
        return Ceilings("no driver")
    read, read_by = driver.read_bandwidth()
    return Ceilings(driver.name, driver.copy_bandwidth(), read, driver.matrix_rate(), read_by)

"""What the device itself can do, measured before anything else: bytes a second of a copy between
buffers, and operations a second of a large bf16 matrix product (cuBLAS, random values). Through the
driver and cuBLAS alone, so that the numbers do not depend on the kernels that they judge."""

from __future__ import annotations

import ctypes
import glob
import sys
from typing import Any

import numpy as np

NOMINAL_BANDWIDTH = 4.3e12  # of an H200, where it cannot be measured
NOMINAL_RATE = 745e12


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

    def filled(self, n_bytes: int, tile: np.ndarray[Any, Any]) -> ctypes.c_uint64:
        """Device memory that holds the tile again and again."""
        p = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(p), ctypes.c_size_t(n_bytes))
        for at in range(0, n_bytes, tile.nbytes):
            self.call(
                "cuMemcpyHtoD_v2",
                ctypes.c_uint64(p.value + at),
                tile.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_size_t(min(tile.nbytes, n_bytes - at)),
            )
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

    def matrix_rate(self, n: int = 8192) -> float:
        """Operations per second of a bf16 product of n x n matrices; 0 without cuBLAS."""
        library = cublas()
        if library is None:
            return 0.0
        x = np.random.default_rng(1).normal(size=1 << 20).astype(np.float32)
        tile = (x.view(np.uint32) >> 16).astype(np.uint16)
        a, b, c = (self.filled(2 * n * n, tile) for _ in range(3))
        handle, one, zero = ctypes.c_void_p(), ctypes.c_float(1), ctypes.c_float(0)

        def check(name: str, *args: Any) -> None:
            code = getattr(library, name)(*args)
            if code != 0:
                raise RuntimeError(f"{name} returned {code}")

        bf16, f32_sums, usual = 14, 68, -1  # CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT

        def product() -> None:
            # rows of A and of B lie along k, as activations and weights do
            operands = (a, bf16, n, b, bf16, n, ctypes.byref(zero), c, bf16, n)
            size = (handle, 1, 0, n, n, n, ctypes.byref(one))
            check("cublasGemmEx", *size, *operands, f32_sums, usual)

        check("cublasCreate_v2", ctypes.byref(handle))
        product()  # loads the kernel
        seconds = self.best_seconds(product)
        check("cublasDestroy_v2", handle)
        for p in (a, b, c):
            self.call("cuMemFree_v2", p)
        return 2.0 * n**3 / seconds


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


def look_at_device(with_rate: bool = True) -> tuple[str, float, float]:
    """(name, copy bandwidth, matrix rate); what cannot be measured is 0, and all of it where there
    is no driver (the emulator)."""
    try:
        driver = Driver()
    except OSError:
        return "no driver", 0.0, 0.0
    return driver.name, driver.copy_bandwidth(), driver.matrix_rate() if with_rate else 0.0

"""The two weight formats, as quantiser and as straight-through fake quantiser: MXFP8 [1, 32] and NVFP4 with groups of 16.

MXFP8: per 32 inputs one E8M0 exponent b = ceil(log2(amax / 448)), elements E4M3. NVFP4: per matrix D = amax / 2688, per 16 inputs
s = E4M3(amax / (6 D)), elements E2M1 of w / (s D); the file stores 1 / D. Exporting uses the same functions as training.
"""

from __future__ import annotations

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e4m3(x: Tensor) -> Tensor:
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()


def mxfp8_parts(w: Tensor) -> tuple[Tensor, Tensor]:
    """Elements (float, exactly E4M3) [..., K/32, 32] and exponents b (int32) [..., K/32, 1]."""
    g = w.float().reshape(*w.shape[:-1], w.shape[-1] // 32, 32)
    amax = g.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    bits = (amax / 448.0).view(torch.int32)
    b = (bits >> 23) - 127 + ((bits & 0x7FFFFF) != 0).int()
    b = b.clamp(-126, 127)
    return e4m3(torch.ldexp(g, -b)), b


def mxfp8(w: Tensor) -> Tensor:
    c, b = mxfp8_parts(w)
    return torch.ldexp(c, b).reshape(w.shape)


def nvfp4_parts(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Magnitude index 0..7 (int) with sign bit 8 [..., N, K/16, 16], block scales (float, exactly E4M3), D [..., 1, 1, 1]."""
    g = w.float().reshape(*w.shape[:-1], w.shape[-1] // 16, 16)
    amax = g.abs().amax(-1, keepdim=True)
    d = (amax.amax((-3, -2, -1), keepdim=True) / 2688.0).clamp(min=1e-30)
    s = e4m3(amax / (6.0 * d))
    a = (g / torch.where(s == 0, 1.0, s * d)).abs()
    a = torch.where(s == 0, 0.0, a)
    code = (
        (a > 0.25).int()
        + (a >= 0.75).int()
        + (a > 1.25).int()
        + (a >= 1.75).int()
        + (a > 2.5).int()
        + (a >= 3.5).int()
        + (a > 5.0).int()
    )
    code = torch.where((g < 0) & (code > 0), code + 8, code)
    return code, s, d


def nvfp4(w: Tensor) -> Tensor:
    code, s, d = nvfp4_parts(w)
    mag = code & 7
    # 0 .5 1 1.5 2 3 4 6 without a table look-up: linear to 4 (value 2), then 3, 4, 6
    v = torch.where(mag <= 4, mag * 0.5, torch.where(mag == 7, 6.0, mag - 2.0))
    v = torch.where(code >= 8, -v, v)
    return (v * s * d).reshape(w.shape)


class Through(torch.autograd.Function):
    """Value of a quantised weight, gradient of the plain one."""

    @staticmethod
    def forward(ctx, w: Tensor, fmt: str) -> Tensor:  # type: ignore[override]
        return (mxfp8(w) if fmt == "mxfp8" else nvfp4(w)).to(torch.bfloat16)

    @staticmethod
    def backward(ctx, grad: Tensor):  # type: ignore[override]
        return grad.float(), None

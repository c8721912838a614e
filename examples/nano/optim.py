"""Muon for the matrices (orthogonalised momentum, batched over layers and experts), Adam for the rest; both in float32."""

from __future__ import annotations

import torch
from model import MXFP8, NVFP4, Params
from torch import Tensor


def orthogonal(g: Tensor) -> Tensor:
    """Five quintic Newton-Schulz steps on a batch of matrices [..., M, N], in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.mT if flip else x


class Optimizer:
    """step(lr): lr is the Muon rate; Adam rates are multiples of it."""

    def __init__(
        self,
        p: Params,
        decay: float = 0.02,
        adam: dict[str, float] | None = None,
        skip: tuple[str, ...] = (),
    ) -> None:
        self.p, self.decay, self.t = p, decay, 0
        self.scale = adam or {"embed": 1.0, "head": 0.5, "gate": 0.5}
        self.muon = [k for k in p if (k in MXFP8 or k in NVFP4) and k not in skip]
        self.adam = [k for k in p if k not in self.muon and k != "bias" and k not in skip]
        self.m = {k: torch.zeros_like(v) for k, v in p.items() if k != "bias"}
        self.v = {k: torch.zeros_like(p[k]) for k in self.adam}

    @torch.no_grad()
    def step(self, lr: float) -> None:
        self.t += 1
        for k in self.muon:
            w, g = self.p[k], self.p[k].grad
            if g is None:
                continue
            m = self.m[k].lerp_(g, 0.05)
            u = orthogonal(g.lerp(m, 0.95).flatten(0, -3))
            w.mul_(1 - lr * self.decay).add_(
                u.view_as(w), alpha=-lr * 0.2 * max(w.shape[-2:]) ** 0.5
            )
        b1, b2 = 0.9, 0.98
        for k in self.adam:
            w, g = self.p[k], self.p[k].grad
            if g is None:
                continue
            self.m[k].lerp_(g, 1 - b1)
            self.v[k].lerp_(g * g, 1 - b2)
            u = (self.m[k] / (1 - b1**self.t)) / ((self.v[k] / (1 - b2**self.t)).sqrt() + 1e-10)
            w.add_(u, alpha=-lr * self.scale.get(k, 1.0))
        for w in self.p.values():
            w.grad = None

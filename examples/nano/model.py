"""The M3.1 architecture in PyTorch at nano size, as functions over a dictionary of stacked parameters.

One tensor per kind, layers stacked in front ([L, out, in]), so that the optimizer works on batches of matrices. `prepare` makes the
bfloat16 weights of one step, plain or fake-quantised; `forward` runs packed training rows; inference lives in infer.py and uses
the same pieces. All experts are computed for all tokens and weighted by the router (0 for those not chosen): at this size one wide
product is faster than sorting tokens, and the result is that of the sparse layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from quant import Through
from torch import Tensor

Params = dict[str, Tensor]


@dataclass(frozen=True)
class Config:
    vocab: int = 1024
    hidden: int = 256
    layers: int = 8
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 128
    dense_layers: int = 1
    dense: int = 768
    experts: int = 16
    top_k: int = 4
    expert: int = 128
    block: int = 128
    top_blocks: int = 16
    rotary: int = 64
    theta: float = 5e6
    eps: float = 1e-6
    routed_scale: float = 2.0
    alpha: float = 1.702
    limit: float = 7.0

    def dict(self) -> dict[str, Any]:
        return asdict(self)


MXFP8 = ("wq", "wk", "wv", "wo", "wiq", "wik", "dg", "du", "dd", "sg", "su", "sd")
NVFP4 = ("w1", "w2", "w3")
INDEX = ("wiq", "wik", "iqn", "ikn")
FLOAT = ("gate", "bias", "ln1", "ln2", "norm", "qn", "kn", "iqn", "ikn")


def init(c: Config, seed: int, device: str) -> Params:
    gen = torch.Generator().manual_seed(seed)
    q, kv, lm, ld, h = (
        c.heads * c.head_dim,
        c.kv_heads * c.head_dim,
        c.layers - c.dense_layers,
        c.dense_layers,
        c.hidden,
    )

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=gen) * std

    s, depth = 1 / math.sqrt(h), 1 / math.sqrt(2 * c.layers)
    p = {
        "embed": normal(c.vocab, h, std=0.5),
        "head": normal(c.vocab, h, std=0.5 * s),
        "norm": torch.zeros(h),
        "ln1": torch.zeros(c.layers, h),
        "ln2": torch.zeros(c.layers, h),
        "wq": normal(c.layers, q, h, std=s),
        "wk": normal(c.layers, kv, h, std=s),
        "wv": normal(c.layers, kv, h, std=s),
        "wo": normal(c.layers, h, q, std=depth / math.sqrt(q)),
        "wiq": normal(c.layers, kv, h, std=s),
        "wik": normal(c.layers, c.head_dim, h, std=s),
        "dg": normal(ld, c.dense, h, std=s),
        "du": normal(ld, c.dense, h, std=s),
        "dd": normal(ld, h, c.dense, std=depth / math.sqrt(c.dense)),
        "gate": normal(lm, c.experts, h, std=s),
        "bias": torch.zeros(lm, c.experts),
        "w1": normal(lm, c.experts, c.expert, h, std=s),
        "w3": normal(lm, c.experts, c.expert, h, std=s),
        "w2": normal(lm, c.experts, h, c.expert, std=depth / math.sqrt(c.expert)),
        "sg": normal(lm, c.expert, h, std=s),
        "su": normal(lm, c.expert, h, std=s),
        "sd": normal(lm, h, c.expert, std=depth / math.sqrt(c.expert)),
    }
    for n in ("qn", "kn", "iqn", "ikn"):
        p[n] = torch.zeros(c.layers, c.head_dim)
    return {k: v.to(device).requires_grad_(k != "bias") for k, v in p.items()}


def prepare(p: Params, quantise: bool, dtype: torch.dtype = torch.bfloat16) -> Params:
    """Weights of one step (through the file formats if asked for), norms and router in float32."""
    out = {}
    for k, v in p.items():
        if k in FLOAT:
            out[k] = v.bfloat16().float() if quantise and k not in ("gate", "bias") else v
        elif quantise and (k in MXFP8 or k in NVFP4):
            out[k] = Through.apply(v, "mxfp8" if k in MXFP8 else "nvfp4").to(dtype)
        else:
            out[k] = v.bfloat16().to(dtype)
    return out


def rms(x: Tensor, w: Tensor, eps: float = 1e-6) -> Tensor:
    """Gemma norm: scale 1 + w, float32 inside, rounded once to the activation type."""
    v = x.float()
    return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * (1.0 + w)).to(x.dtype)


def rope_table(c: Config, n: int, device: str) -> Tensor:
    """[n, 2, rotary/2]: cos and sin, computed in float64."""
    inv = c.theta ** (-torch.arange(0, c.rotary, 2, dtype=torch.float64) / c.rotary)
    a = torch.arange(n, dtype=torch.float64)[:, None] * inv
    return torch.stack([a.cos(), a.sin()], 1).float().to(device)


def norm_rope(x: Tensor, w: Tensor, cs: Tensor, eps: float) -> Tensor:
    """x [B, T, heads, 128], cs [B, T, 2, 32]: per-head norm, then rotation of the first 64 dims in halves, one rounding."""
    v = x.float()
    v = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps) * (1.0 + w)
    half = cs.shape[-1]
    cos, sin = cs[:, :, None, 0], cs[:, :, None, 1]
    a, b, rest = v[..., :half], v[..., half : 2 * half], v[..., 2 * half :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)


def attn_in(
    x: Tensor, ln: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, qn: Tensor, kn: Tensor, cs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, T, H] to q [B, T, heads, 128], k and v [B, T, kv heads, 128]."""
    b, t, _ = x.shape
    h = rms(x, ln)
    q = norm_rope(F.linear(h, wq).view(b, t, -1, 128), qn, cs, 1e-6)
    k = norm_rope(F.linear(h, wk).view(b, t, -1, 128), kn, cs, 1e-6)
    v = F.linear(h, wv).view(b, t, -1, 128)
    return q, k, v


def index_in(
    x: Tensor, ln: Tensor, wiq: Tensor, wik: Tensor, iqn: Tensor, ikn: Tensor, cs: Tensor
) -> tuple[Tensor, Tensor]:
    """Index queries [B, T, kv heads, 128] and the shared index key [B, T, 128]."""
    b, t, _ = x.shape
    h = rms(x, ln)
    iq = norm_rope(F.linear(h, wiq).view(b, t, -1, 128), iqn, cs, 1e-6)
    ik = norm_rope(F.linear(h, wik).view(b, t, 1, 128), ikn, cs, 1e-6)
    return iq, ik[:, :, 0]


def swiglu(g: Tensor, u: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    g, u = g.float().clamp(max=limit), u.float().clamp(-limit, limit)
    return (u + 1.0) * g * torch.sigmoid(alpha * g)


def out_dense(
    x: Tensor, o: Tensor, wo: Tensor, ln: Tensor, dg: Tensor, du: Tensor, dd: Tensor
) -> Tensor:
    """o_proj, residual, norm, dense MLP, residual. o [B, T, heads * 128]."""
    x = x + F.linear(o, wo)
    h = rms(x, ln)
    return x + F.linear(swiglu(F.linear(h, dg), F.linear(h, du)).to(x.dtype), dd)


def route(h: Tensor, gate: Tensor, bias: Tensor, top_k: int, scale: float) -> Tensor:
    """Weights [B, T, E] in float32, 0 where not chosen."""
    p = torch.sigmoid(F.linear(h.float(), gate))
    s = p + bias
    keep = s >= s.topk(top_k, -1).values[..., -1:]
    w = p * keep
    return scale * w / w.sum(-1, keepdim=True)


def join(
    w1: Tensor, w3: Tensor, w2: Tensor, sg: Tensor, su: Tensor, sd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """All experts and the shared one as one wide MLP: gate and up [(E + 1) * I, H], down [H, (E + 1) * I]."""
    e, i, d = w1.shape
    return (
        torch.cat([w1.reshape(e * i, d), sg]),
        torch.cat([w3.reshape(e * i, d), su]),
        torch.cat([w2.permute(1, 0, 2).reshape(d, e * i), sd], 1),
    )


def wide_moe(
    x: Tensor,
    o: Tensor,
    wo: Tensor,
    ln: Tensor,
    gate: Tensor,
    bias: Tensor,
    wg: Tensor,
    wu: Tensor,
    wd: Tensor,
    top_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """o_proj, residual, norm, routed and shared experts, residual; and the routing weights."""
    x = x + F.linear(o, wo)
    h = rms(x, ln)
    w = route(h, gate, bias, top_k, scale)
    full = torch.cat([w, torch.ones_like(w[..., :1])], -1)
    a = (
        swiglu(F.linear(h, wg), F.linear(h, wu)).view(*h.shape[:-1], full.shape[-1], -1)
        * full[..., None]
    )
    return x + F.linear(a.to(x.dtype).flatten(-2), wd), w


def out_moe(
    x: Tensor,
    o: Tensor,
    wo: Tensor,
    ln: Tensor,
    gate: Tensor,
    bias: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    sg: Tensor,
    su: Tensor,
    sd: Tensor,
    top_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """wide_moe of separate experts; and the number of tokens of each expert."""
    x, w = wide_moe(x, o, wo, ln, gate, bias, *join(w1, w3, w2, sg, su, sd), top_k, scale)
    return x, (w > 0).float().sum((0, 1))


@dataclass
class Kernels:
    """The compiled or plain pieces. attend(q, k, v, mask) -> [B, heads, T, 128]."""

    attn_in: Callable[..., Any] = attn_in
    index_in: Callable[..., Any] = index_in
    out_dense: Callable[..., Any] = out_dense
    out_moe: Callable[..., Any] = out_moe
    attend: Callable[..., Any] = None  # type: ignore[assignment]
    rms: Callable[..., Any] = rms


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """mask [B, 1 or heads, T, S], True = may look."""
    r = q.shape[1] // k.shape[1]
    return F.scaled_dot_product_attention(
        q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1), attn_mask=mask
    )


def kernels(compiled: bool, flex: bool) -> Kernels:
    k = Kernels(attend=sdpa)
    if compiled:
        c: Callable[[Any], Any] = lambda f: torch.compile(f, dynamic=False)  # noqa: E731
        k = Kernels(c(attn_in), c(index_in), c(out_dense), c(out_moe), sdpa, c(rms))
    if flex:
        from torch.nn.attention.flex_attention import flex_attention

        fa = torch.compile(flex_attention, dynamic=False)
        k.attend = lambda q, kk, v, mask: fa(q, kk, v, block_mask=mask, enable_gqa=True)
    return k


@dataclass
class Trace:
    """What the index loss and the draft need from a forward pass."""

    load: list[Tensor]
    taps: list[Tensor]
    index_loss: Tensor | None = None


def forward(
    p: Params,
    c: Config,
    tokens: Tensor,
    cs: Tensor,
    mask: Any,
    k: Kernels,
    *,
    taps: tuple[int, ...] = (),
    index: Callable[..., Any] | None = None,
) -> tuple[Tensor, Trace]:
    """tokens [B, T] to the final hidden states (normed) [B, T, H]. `index(layer, x, cs, q, k)` may return a loss and a mask of its own for the layer."""
    n, t = tokens.shape
    x = F.embedding(
        tokens.reshape(1, -1), p["embed"]
    )  # [1, B * T, H]: one shape for all row lengths
    cs = cs.reshape(1, -1, *cs.shape[2:])
    rows = lambda a: a.view(n, t, *a.shape[2:]).transpose(1, 2)  # noqa: E731
    tr = Trace([], [])
    losses = []
    for i in range(c.layers):
        q, kk, v = k.attn_in(
            x, p["ln1"][i], p["wq"][i], p["wk"][i], p["wv"][i], p["qn"][i], p["kn"][i], cs
        )
        q, kk, v = rows(q), rows(kk), rows(v)
        m = mask
        if index is not None:
            loss, own = index(i, x, cs, q, kk)
            if loss is not None:
                losses.append(loss)
            m = own if own is not None else mask
        o = k.attend(q, kk, v, m).transpose(1, 2).reshape(1, n * t, -1)
        if i < c.dense_layers:
            x = k.out_dense(x, o, p["wo"][i], p["ln2"][i], p["dg"][i], p["du"][i], p["dd"][i])
        else:
            j = i - c.dense_layers
            x, load = k.out_moe(
                x,
                o,
                p["wo"][i],
                p["ln2"][i],
                p["gate"][j],
                p["bias"][j],
                p["w1"][j],
                p["w3"][j],
                p["w2"][j],
                p["sg"][j],
                p["su"][j],
                p["sd"][j],
                c.top_k,
                c.routed_scale,
            )
            tr.load.append(load)
        if i in taps:
            tr.taps.append(x.view(n, t, -1))
    if losses:
        tr.index_loss = torch.stack(losses).mean()
    return k.rms(x, p["norm"]).view(n, t, -1), tr

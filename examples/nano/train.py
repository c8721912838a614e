"""Trains nano: `main` = short rows; `long` = short rows and 16K rows, index branch, sparse attention, weights through the file formats.

    python train.py --main-seconds 240 --long-seconds 220 --out ck

Time, not steps, ends a run, and the learning rate follows the share of it that is spent. Loss: cross entropy on the assistant's tokens. Expert
balance: the routing bias moves against the load (no auxiliary loss). Index loss: KL from the block scores (maximum over the block's tokens)
to the attention mass that the layer's query heads give each earlier block, on sampled queries; it trains the index branch only.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import generate
import model as M
import numpy as np
import torch
import torch.nn.functional as F
from optim import Optimizer
from render import tokenizer
from torch import Tensor


def save(p: M.Params, folder: Path, c: M.Config, extra: dict[str, Any]) -> None:
    """bfloat16 weights (float32 router) in files below 16 MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    part: dict[str, Tensor] = {}
    parts, size = [part], 0
    for k, v in p.items():
        t = v.detach().cpu()
        t = t.float() if k in ("gate", "bias") else t.bfloat16()
        n = t.numel() * t.element_size()
        if size + n > 15_000_000:
            part = {}
            parts.append(part)
            size = 0
        part[k] = t
        size += n
    for i, x in enumerate(parts):
        torch.save(x, folder / f"w{i}.pt.tmp")
        (folder / f"w{i}.pt.tmp").rename(folder / f"w{i}.pt")
    (folder / "state.json").write_text(
        json.dumps({"config": c.dict(), "parts": len(parts), **extra})
    )


def load(folder: Path, device: str) -> tuple[M.Params, M.Config, dict[str, Any]]:
    state = json.loads((folder / "state.json").read_text())
    p: M.Params = {}
    for i in range(state["parts"]):
        p.update(torch.load(folder / f"w{i}.pt", map_location=device, weights_only=True))
    return (
        {k: v.float().requires_grad_(k != "bias") for k, v in p.items()},
        M.Config(**state["config"]),
        state,
    )


class Batch:
    """One microbatch on the device: tokens, targets, document numbers, RoPE rows."""

    def __init__(self, rows: np.ndarray, bos: int, table: Tensor, device: str) -> None:
        raw = torch.from_numpy(rows.astype(np.int32)).to(device, non_blocking=True)
        self.tokens = raw & 0x7FFF
        nxt = torch.roll(raw, -1, 1)
        nxt[:, -1] = 0
        self.target = nxt >= 0x8000
        self.next = (nxt & 0x7FFF).long()
        start = self.tokens == bos
        start[:, 0] = True
        self.doc = start.int().cumsum(1).int()
        at = torch.arange(rows.shape[1], device=device, dtype=torch.int32)
        first = torch.where(start, at, 0).cummax(1).values
        self.pos = (at - first).long()
        self.cs = table[self.pos]


def cross_entropy(hidden: Tensor, head: Tensor, b: Batch) -> Tensor:
    h = hidden[b.target]
    return F.cross_entropy(F.linear(h, head).float(), b.next[b.target])


class Sparse:
    """Index loss and block choice of one long microbatch, called once per layer by forward."""

    def __init__(
        self,
        p: M.Params,
        c: M.Config,
        b: Batch,
        k: M.Kernels,
        flex: bool,
        choose: bool,
        queries: int,
        gen: torch.Generator,
    ) -> None:
        self.p, self.c, self.b, self.k, self.flex, self.choose = p, c, b, k, flex, choose
        n, t = b.tokens.shape
        d = b.tokens.device
        self.nb = t // c.block
        w = b.target.float() * 8 + 1.0 / 16
        w[:, : 2 * c.block] = 1e-6
        self.at = torch.multinomial(w, min(queries, t // 2), generator=gen).sort(1).values
        pos = torch.arange(t, device=d)
        self.pos = pos
        qd = b.doc.gather(1, self.at)
        self.ok = (b.doc[:, None, :] == qd[:, :, None]) & (
            pos[None, None, :] <= self.at[:, :, None]
        )  # [B, Q, T]
        blk = torch.arange(self.nb, device=d)
        self.past = (self.ok.view(n, -1, self.nb, c.block).any(-1)) & (
            blk[None, None, :] < (self.at // c.block)[:, :, None]
        )

    def __call__(
        self, i: int, x: Tensor, cs: Tensor, q: Tensor, kk: Tensor
    ) -> tuple[Tensor | None, Any]:
        p, c = self.p, self.c
        iq, ik = self.k.index_in(
            x.detach(), p["ln1"][i].detach(), p["wiq"][i], p["wik"][i], p["iqn"][i], p["ikn"][i], cs
        )
        n, t = self.b.tokens.shape
        iq, ik = iq.view(n, t, c.kv_heads, -1).transpose(1, 2), ik.view(n, t, -1)
        loss = self.index_loss(q.detach(), kk.detach(), iq, ik)
        mask = self.mask(iq.detach(), ik.detach()) if self.choose else None
        return loss, mask

    def index_loss(self, q: Tensor, kk: Tensor, iq: Tensor, ik: Tensor) -> Tensor:
        c, (n, t) = self.c, self.b.tokens.shape
        scale = 1 / math.sqrt(c.head_dim)
        g, r = c.kv_heads, c.heads // c.kv_heads
        at = self.at[:, None, :, None]
        with torch.no_grad():
            qs = q.gather(2, at.expand(-1, c.heads, -1, c.head_dim)).view(n, g, -1, c.head_dim)
            s = (qs @ kk.mT).float().view(n, g, r, -1, t) * scale
            s = s.masked_fill(~self.ok[:, None, None], -1e30).softmax(-1)
            mass = s.view(n, g, r, -1, self.nb, c.block).sum(-1).mean(2) * self.past[:, None]
            total = mass.sum(-1)
            want = mass / (total[..., None] + 1e-9)
            weight = (total + 0.02) * self.past.any(-1)[:, None]
        iqs = iq.gather(2, at.expand(-1, g, -1, c.head_dim))
        z = (iqs @ ik[:, None].mT).float() * scale
        z = z.masked_fill(~self.ok[:, None], -1e30).view(n, g, -1, self.nb, c.block).amax(-1)
        logp = z.masked_fill(~self.past[:, None], -1e30).log_softmax(-1)
        kl = (want * ((want + 1e-9).log() - logp.clamp(min=-60))).sum(-1)
        return (kl * weight).sum() / weight.sum().clamp(min=1.0)

    @torch.no_grad()
    def mask(self, iq: Tensor, ik: Tensor) -> Any:
        sel = choose_blocks(iq, ik, self.b.doc, self.c)
        doc, r, block = self.b.doc, self.c.heads // self.c.kv_heads, self.c.block
        if self.flex:
            n, g, t, nb = sel.shape
            need = sel.view(n, g, nb, -1, nb).any(3)  # [B, kv heads, blocks of queries, blocks]
            return flex_mask(
                doc,
                lambda b, h, qi, ki: (
                    (doc[b, qi] == doc[b, ki]) & (qi >= ki) & sel[b, h // r, qi, ki // block]
                ),
                need.repeat_interleave(r, 1),
            )
        full = dense_mask(doc)
        return full & sel.repeat_interleave(r, 1).repeat_interleave(block, 3)


@torch.no_grad()
def choose_blocks(iq: Tensor, ik: Tensor, doc: Tensor, c: M.Config, chunk: int = 1024) -> Tensor:
    """Blocks each query may read, [B, kv heads, T, blocks]: the local one and the best 15 earlier ones that hold tokens of its document."""
    n, g, t, _ = iq.shape
    nb = t // c.block
    pos = torch.arange(t, device=iq.device)
    blk = torch.arange(nb, device=iq.device)
    lo, hi = doc.view(n, nb, c.block).amin(-1), doc.view(n, nb, c.block).amax(-1)
    out = torch.empty(n, g, t, nb, dtype=torch.bool, device=iq.device)
    for a in range(0, t, chunk):
        z = iq[:, :, a : a + chunk] @ ik[:, None].mT  # [B, g, chunk, T]
        d = doc[:, a : a + chunk]
        z = z.view(n, g, -1, nb, c.block)
        edge = (
            (lo[:, None] != hi[:, None])
            & (lo[:, None] <= d[..., None])
            & (hi[:, None] >= d[..., None])
        )  # block on a document border
        if bool(edge.any()):
            same = doc.view(n, 1, nb, c.block) == d[:, :, None, None]
            z = z.masked_fill(~same[:, None], -30000.0)
        s = z.amax(-1).float()
        local = (pos[a : a + chunk] // c.block)[:, None]
        vis = (
            (blk[None] < local)[None]
            & (lo[:, None] <= d[..., None])
            & (hi[:, None] >= d[..., None])
        )
        s = s.masked_fill(~vis[:, None], -1e30)
        s = s.masked_fill((blk[None] == local)[None, None], 1e30)
        k = min(c.top_blocks, nb)
        out[:, :, a : a + chunk] = s >= s.topk(k, -1).values[..., -1:]
        out[:, :, a : a + chunk] &= (vis | (blk[None] == local)[None])[:, None]
    return out


def dense_mask(doc: Tensor) -> Tensor:
    t = doc.shape[1]
    return (
        (doc[:, :, None] == doc[:, None, :])
        & torch.ones(t, t, dtype=torch.bool, device=doc.device).tril()
    )[:, None]


def flex_mask(doc: Tensor, mod: Any, need: Tensor | None = None) -> Any:
    """The block mask of `mod`, which looks no further back than a query's document; `need` [B, heads, blocks, blocks] says which blocks it may look at.
    Without it: document numbers rise along a row, so the blocks that a block of queries may need are a range, from the first that reaches into its first
    document to its own. No mask is evaluated to find them."""
    from torch.nn.attention.flex_attention import BlockMask

    n, t = doc.shape
    nb = t // 128
    if need is None:
        first = doc[:, ::128].contiguous()  # document of each block's first token [B, blocks]
        last = doc[:, 127::128].contiguous()
        start = torch.searchsorted(last, first).int()  # blocks that end before it
        at = torch.arange(nb, device=doc.device, dtype=torch.int32)
        num = (at + 1 - start)[:, None]
        idx = (start[..., None] + at).clamp(max=nb - 1)[:, None]
    else:
        num = need.sum(-1, dtype=torch.int32)
        idx = need.int().argsort(dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        num.contiguous(), idx.contiguous(), BLOCK_SIZE=128, mask_mod=mod, seq_lengths=(t, t)
    )


def document_mask(b: Batch, flex: bool) -> Any:
    doc = b.doc
    return (
        flex_mask(doc, lambda n, h, q, k: (doc[n, q] == doc[n, k]) & (q >= k))
        if flex
        else dense_mask(doc)
    )


def rate(long: bool, f: float, peak: float) -> float:
    """Learning rate at share f of a phase: warm-up, level, down to half; then down to zero over the long phase."""
    if not long:
        return peak * min(1.0, f / 0.02) * (1.0 if f < 0.6 else 1.0 - 0.5 * (f - 0.6) / 0.4)
    return peak * min(1.0, 0.2 + f / 0.02) * (1.0 - f)


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--main-seconds", type=float, default=0, help="0 leaves the phase out")
    a.add_argument("--long-seconds", type=float, default=0)
    a.add_argument(
        "--until", type=float, help="end the last phase at this time (seconds since 1970) instead"
    )
    a.add_argument("--steps", type=int, default=10**9, help="at most this many steps of each phase")
    a.add_argument("--short", type=int, default=32, help="rows of 2048 per step")
    a.add_argument("--long", type=int, default=4, help="rows of 16384 per step of the long phase")
    a.add_argument("--lr", type=float, default=4e-3, help="peak Muon rate of the main phase")
    a.add_argument("--long-lr", type=float, default=2e-3)
    a.add_argument(
        "--long-every",
        type=int,
        default=1,
        help="long rows in every n-th step of the long phase only",
    )
    a.add_argument("--init", type=Path)
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument(
        "--workers", type=int, default=12, help="data processes; 0: others fill the data folder"
    )
    a.add_argument("--data", type=Path, default=Path("/tmp/nano-data"))
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--no-compile", action="store_true")
    a.add_argument("--no-flex", action="store_true")
    a.add_argument("--save-every", type=float, default=120)
    a.add_argument(
        "--sparse-from",
        type=float,
        default=0.5,
        help="share of the long phase after which long rows use chosen blocks; above 1: never",
    )
    a.add_argument("--index-queries", type=int, default=192)
    o = a.parse_args()
    d, flex = o.device, not o.no_flex and o.device == "cuda"
    torch.manual_seed(o.seed)
    far = bool(o.long_seconds)
    procs = generate.start_both(o.seed, o.workers, o.data, far) if o.workers else []
    if o.init:
        p, c, _ = load(o.init, d)
    else:
        c = M.Config()
        p = M.init(c, o.seed, d)
    run = Run(o, p, c, flex)
    if o.main_seconds:
        run.phase(False, o.main_seconds, o.lr)
    if o.long_seconds:
        run.phase(True, o.long_seconds, o.long_lr)
    if d == "cuda":
        print(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
    for q in procs:
        q.terminate()


class Run:
    """Parameters, optimizer and data of a training run; `phase` trains for some seconds and saves."""

    def __init__(self, o: argparse.Namespace, p: M.Params, c: M.Config, flex: bool) -> None:
        self.o, self.p, self.c, self.flex, self.d = o, p, c, flex, o.device
        self.k = M.kernels(not o.no_compile, flex)
        self.opt = Optimizer(p)
        self.bos = tokenizer().token_to_id("]~!b[")
        self.table = M.rope_table(c, generate.LONG, o.device)
        self.short, self.longs = generate.Shards("short", o.data), generate.Shards("long", o.data)
        self.gen = torch.Generator(device=o.device).manual_seed(o.seed)
        self.clock, self.step, self.tokens = time.time(), 0, 0
        o.out.mkdir(parents=True, exist_ok=True)
        self.log = open(o.out / "log.jsonl", "a")
        print(
            f"{sum(v.numel() for v in p.values()) / 1e6:.2f} M parameters, device {o.device}, flex {flex}",
            flush=True,
        )

    def losses(
        self, long: bool, far_rows: bool, sparse: bool
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Total loss, its parts, and the load of the experts; counts tokens."""
        w = M.prepare(self.p, long)
        b = Batch(self.short.take(self.o.short), self.bos, self.table, self.d)
        h, tr = M.forward(w, self.c, b.tokens, b.cs, document_mask(b, self.flex), self.k)
        loss = cross_entropy(h, w["head"], b)
        self.tokens += b.tokens.numel()
        if not far_rows:
            return loss, {"loss": loss}, torch.stack(tr.load)
        lb = Batch(self.longs.take(self.o.long), self.bos, self.table, self.d)
        sp = Sparse(w, self.c, lb, self.k, self.flex, sparse, self.o.index_queries, self.gen)
        h, tl = M.forward(
            w,
            self.c,
            lb.tokens,
            lb.cs,
            None if sparse else document_mask(lb, self.flex),
            self.k,
            index=sp,
        )
        far = cross_entropy(h, w["head"], lb)
        assert tl.index_loss is not None
        self.tokens += lb.tokens.numel()
        return (
            loss + 0.5 * far + tl.index_loss,
            {"loss": loss, "long": far, "index": tl.index_loss},
            torch.stack(tr.load) + torch.stack(tl.load),
        )

    def phase(self, long: bool, seconds: float, peak: float) -> None:
        o, began, n = self.o, 0.0, 0
        saved = shown = entered = time.time()
        while True:
            if n == 3:  # compilation is over
                if self.d == "cuda":
                    torch.cuda.synchronize()
                began = saved = time.time()
                if o.until and (long or not o.long_seconds):
                    seconds = max(10.0, o.until - began)
                print(f"first steps took {began - entered:.1f} s", flush=True)
                self.tokens = 0
            f = (time.time() - began) / seconds if began else 0.0
            if f >= 1 or n >= o.steps:
                break
            total, parts, load = self.losses(
                long,
                long and n % o.long_every == 0 or long and n < 3,
                long and (f >= o.sparse_from or n < 2 and o.sparse_from <= 1),
            )
            total.backward()
            self.opt.step(rate(long, f, peak))
            with torch.no_grad():
                over = load - load.mean(-1, keepdim=True)
                self.p["bias"].sub_(over.sign() * (2e-4 if long else 1e-3))
                self.p["bias"].sub_(self.p["bias"].mean(-1, keepdim=True))
            n += 1
            self.step += 1
            if (n - 1) % 20 == 0 or n <= 3:
                now = time.time()
                rec = {
                    "phase": "long" if long else "main",
                    "step": self.step,
                    "t": round(now - self.clock, 1),
                    **{k: round(v.item(), 4) for k, v in parts.items()},
                    "lr": round(rate(long, f, peak), 6),
                    "tok_s": int(self.tokens / (now - began)) if began else 0,
                    "load": round((load.amax(-1) / load.mean(-1)).max().item(), 2),
                    "reused": self.short.reused + self.longs.reused,
                }
                self.log.write(json.dumps(rec) + "\n")
                self.log.flush()
                if now - shown > 15 or n <= 3:
                    print(json.dumps(rec), flush=True)
                    shown = now
                if not math.isfinite(rec["loss"]):
                    raise SystemExit("the loss is not finite")
                if began and now - saved > o.save_every:
                    save(self.p, o.out, self.c, {"step": self.step})
                    saved = now
        save(self.p, o.out, self.c, {"step": self.step})
        print(f"{n} steps, {self.tokens / 1e6:.1f} M tokens", flush=True)


if __name__ == "__main__":
    main()

"""Batched greedy decoding in PyTorch with a key-value cache and real block selection; for the evaluation table and the draft.

`weights` are those of model.prepare: plain bfloat16, or decoded from the file formats. Rows have different lengths and all start at
position 0. `select` says how blocks are chosen: 'index' (the index branch), 'random', 'dense' (no selection).
"""

from __future__ import annotations

from dataclasses import dataclass

import model as M
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Output:
    tokens: list[list[int]]
    read: float  # mean share of the visible blocks that decode steps read


class Decoder:
    def __init__(
        self, weights: M.Params, c: M.Config, select: str = "index", seed: int = 0
    ) -> None:
        self.w = {k: v.detach() for k, v in weights.items()}
        self.c, self.select = c, select
        w = self.w
        self.wide = [
            M.join(w["w1"][j], w["w3"][j], w["w2"][j], w["sg"][j], w["su"][j], w["sd"][j])
            for j in range(c.layers - c.dense_layers)
        ]
        self.device = self.w["embed"].device
        self.gen = torch.Generator(device=self.device).manual_seed(seed)

    def begin(self, rows: int, room: int) -> None:
        c = self.c
        room = (room + c.block - 1) // c.block * c.block
        self.room = room

        def cache(heads: int) -> Tensor:
            shape = (c.layers, rows, heads, room, c.head_dim)
            return torch.zeros(shape, dtype=self.w["embed"].dtype, device=self.device)

        self.k, self.v, self.ik = cache(c.kv_heads), cache(c.kv_heads), cache(1)
        self.table = M.rope_table(c, room, str(self.device))
        self.lens = torch.zeros(rows, dtype=torch.long, device=self.device)
        self.read_sum = self.read_n = 0.0

    def blocks(self, iq: Tensor, ik: Tensor, pos: Tensor, s: int) -> Tensor:
        """Chosen blocks [B, kv heads, T, s / block]."""
        c = self.c
        nb = s // c.block
        blk = torch.arange(nb, device=iq.device)
        local = (pos // c.block)[:, None, :, None]
        if self.select == "random":
            score = torch.rand(*iq.shape[:3], nb, generator=self.gen, device=iq.device)
        else:
            score = (iq.float() @ ik.float().mT).view(*iq.shape[:3], nb, c.block).amax(-1)
        score = score.masked_fill(blk > local, -torch.inf).masked_fill(blk == local, torch.inf)
        k = min(c.top_blocks, nb)
        keep = torch.zeros_like(score, dtype=torch.bool).scatter_(
            -1, score.topk(k, -1).indices, True
        )
        return keep & (blk <= local)

    @torch.no_grad()
    def step(
        self, tokens: Tensor, pos: Tensor, taps: tuple[int, ...] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """tokens, pos [B, T] (positions of new tokens, written to the cache); returns the normed hidden states and the taps."""
        c, w = self.c, self.w
        b, t = tokens.shape
        x = F.embedding(tokens, w["embed"])
        cs = self.table[pos]
        s = (int(pos.max()) // c.block + 1) * c.block
        at = torch.arange(s, device=x.device)
        seen = at[None, None] <= pos[:, :, None]  # [B, T, s]
        sparse = self.select != "dense" and s > c.block * c.top_blocks
        rows = torch.arange(b, device=x.device)[:, None]
        out_taps = []
        for i in range(c.layers):
            q, k, v = M.attn_in(
                x, w["ln1"][i], w["wq"][i], w["wk"][i], w["wv"][i], w["qn"][i], w["kn"][i], cs
            )
            iq, ik = M.index_in(
                x, w["ln1"][i], w["wiq"][i], w["wik"][i], w["iqn"][i], w["ikn"][i], cs
            )
            q, iq = q.transpose(1, 2), iq.transpose(1, 2)
            self.k[i][rows, :, pos] = k
            self.v[i][rows, :, pos] = v
            self.ik[i][rows, 0, pos] = ik
            mask = seen[:, None]
            if sparse:
                keep = self.blocks(iq, self.ik[i][:, :, :s], pos, s)
                if t == 1:
                    self.read_sum += float(keep.sum(-1).float().mean())
                    self.read_n += float((pos // c.block + 1).float().mean())
                mask = mask & keep.repeat_interleave(c.heads // c.kv_heads, 1).repeat_interleave(
                    c.block, 3
                )
            o = (
                M.sdpa(q, self.k[i][:, :, :s], self.v[i][:, :, :s], mask)
                .transpose(1, 2)
                .reshape(b, t, -1)
            )
            if i < c.dense_layers:
                x = M.out_dense(x, o, w["wo"][i], w["ln2"][i], w["dg"][i], w["du"][i], w["dd"][i])
            else:
                j = i - c.dense_layers
                x, _ = M.wide_moe(
                    x,
                    o,
                    w["wo"][i],
                    w["ln2"][i],
                    w["gate"][j],
                    w["bias"][j],
                    *self.wide[j],
                    c.top_k,
                    c.routed_scale,
                )
            if i in taps:
                out_taps.append(x)
        return M.rms(x, w["norm"]), out_taps

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.w["head"]).float()

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], limit: int, stop: int, chunk: int = 512) -> Output:
        b, longest = len(prompts), max(map(len, prompts))
        self.begin(b, longest + limit + 1)
        d = self.device
        ids = torch.zeros(b, longest, dtype=torch.long, device=d)
        for i, p in enumerate(prompts):
            ids[i, : len(p)] = torch.tensor(p)
        lens = torch.tensor([len(p) for p in prompts], device=d)
        last = torch.zeros(b, self.c.hidden, dtype=self.w["embed"].dtype, device=d)
        for a in range(0, longest, chunk):
            e = min(a + chunk, longest)
            pos = torch.arange(a, e, device=d).expand(b, -1)
            h, _ = self.step(ids[:, a:e], pos)
            here = (lens - 1 >= a) & (lens - 1 < e)
            last[here] = h[here, (lens - 1 - a)[here]]
        out = torch.full((b, limit), stop, dtype=torch.long, device=d)
        alive = torch.ones(b, dtype=torch.bool, device=d)
        tok = self.logits(last).argmax(-1)
        for n in range(limit):
            out[:, n] = torch.where(alive, tok, stop)
            alive &= tok != stop
            if n % 8 == 0 and not bool(alive.any()):
                break
            h, _ = self.step(tok[:, None], (lens + n)[:, None])
            tok = self.logits(h[:, 0]).argmax(-1)
        res = []
        for row in out.tolist():
            res.append(row[: row.index(stop)] if stop in row else row)
        return Output(res, self.read_sum / self.read_n if self.read_n else 1.0)

"""The DSpark draft of nano: two layers over three taps of the target, blocks of 7, Markov and confidence heads.

    python draft.py --init ck --seconds 100 --out ck/draft.pt

The target is frozen and runs with its quantised weights. For sampled anchors of packed rows, the block [anchor, noise x 6] looks at the context
(positions before the anchor, projected from the taps) and at itself, and learns the target's distribution of the next 7 tokens.
The accepted length is then measured offline on replies that the target itself decodes greedily for held-out prompts.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import generate
import model as M
import torch
import torch.nn.functional as F
from optim import Optimizer
from quant import Through
from render import tokenizer
from torch import Tensor
from train import Batch, dense_mask, load


@dataclass(frozen=True)
class DraftConfig:
    layers: int = 2
    ffn: int = 384
    window: int = 512
    block: int = 7
    rank: int = 64
    taps: tuple[int, ...] = (1, 4, 7)
    noise: int = 1021


LINEAR = ("wq", "wk", "wv", "wo", "dg", "du", "dd")
NORMS = ("hn", "fn", "ln1", "ln2", "qn", "kn")


def init(c: M.Config, d: DraftConfig, seed: int, device: str) -> M.Params:
    gen = torch.Generator().manual_seed(seed)
    q, kv, h, n = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.hidden, d.layers

    def normal(*shape: int, std: float) -> Tensor:
        return torch.randn(*shape, generator=gen) * std

    s = 1 / math.sqrt(h)
    p = {
        "fc": normal(h, h * len(d.taps), std=1 / math.sqrt(h * len(d.taps))),
        "hn": torch.zeros(h),
        "fn": torch.zeros(h),
        "m1": normal(c.vocab, d.rank, std=0.02),
        "m2": normal(c.vocab, d.rank, std=0.02),
        "cw": torch.zeros(1, h + d.rank),
        "cb": torch.zeros(1),
        "ln1": torch.zeros(n, h),
        "ln2": torch.zeros(n, h),
        "qn": torch.zeros(n, 128),
        "kn": torch.zeros(n, 128),
        "wq": normal(n, q, h, std=s),
        "wk": normal(n, kv, h, std=s),
        "wv": normal(n, kv, h, std=s),
        "wo": normal(n, h, q, std=0.3 / math.sqrt(q)),
        "dg": normal(n, d.ffn, h, std=s),
        "du": normal(n, d.ffn, h, std=s),
        "dd": normal(n, h, d.ffn, std=0.3 / math.sqrt(d.ffn)),
    }
    return {k: v.to(device).requires_grad_(True) for k, v in p.items()}


def prepare(p: M.Params, dtype: torch.dtype = torch.bfloat16) -> M.Params:
    return {
        k: Through.apply(v, "mxfp8").to(dtype)
        if k in LINEAR
        else v.bfloat16().float()
        if k in NORMS
        else v.bfloat16().to(dtype)
        for k, v in p.items()
    }


def block_states(
    w: M.Params,
    c: M.Config,
    d: DraftConfig,
    embed: Tensor,
    feats: Tensor,
    table: Tensor,
    ids: Tensor,
    at: Tensor,
    pos: Tensor,
    ctx_pos: Tensor,
    ok: Tensor,
) -> Tensor:
    """Final states [B, A, block, H] of A blocks per row.

    feats [B, T, taps * H]; ids [B, A] anchors at row index at [B, A] and position pos [B, A]; ctx_pos [B, T] positions of the context;
    ok [B, A, T] which context entries belong to the anchor's document and lie before it (the window is applied here).
    """
    b, t, _ = feats.shape
    a, g = ids.shape[1], d.block
    ctx = M.rms(F.linear(feats, w["fc"]), w["hn"])
    noise = torch.full((b, a, g), d.noise, device=ids.device)
    noise[:, :, 0] = ids
    x = F.embedding(noise.flatten(1), embed)
    rows = (pos[:, :, None] + torch.arange(g, device=ids.device)).flatten(1)
    cs, cs_ctx = table[rows], table[ctx_pos]
    near = ctx_pos[:, None, :] > rows[:, :, None] - d.window
    own = torch.arange(a, device=ids.device).repeat_interleave(g)
    mask = torch.cat(
        [ok.repeat_interleave(g, 1) & near, (own[:, None] == own[None]).expand(b, -1, -1)], -1
    )[:, None]
    for i in range(d.layers):
        q, k, v = M.attn_in(
            x, w["ln1"][i], w["wq"][i], w["wk"][i], w["wv"][i], w["qn"][i], w["kn"][i], cs
        )
        kc = M.norm_rope(F.linear(ctx, w["wk"][i]).view(b, t, -1, 128), w["kn"][i], cs_ctx, c.eps)
        vc = F.linear(ctx, w["wv"][i]).view(b, t, -1, 128)
        k, v = torch.cat([kc, k], 1), torch.cat([vc, v], 1)
        o = (
            M.sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask)
            .transpose(1, 2)
            .reshape(b, a * g, -1)
        )
        x = M.out_dense(x, o, w["wo"][i], w["ln2"][i], w["dg"][i], w["du"][i], w["dd"][i])
    return M.rms(x, w["fn"]).view(b, a, g, -1)


def loss_of(
    w: M.Params,
    c: M.Config,
    d: DraftConfig,
    target: M.Params,
    b: Batch,
    feats: Tensor,
    hidden: Tensor,
    table: Tensor,
    anchors: int,
    gen: torch.Generator,
) -> tuple[Tensor, dict[str, Tensor]]:
    n, t = b.tokens.shape
    g = d.block
    weight = b.target.float() + 1e-6
    weight[:, :8] = 1e-9
    weight[:, -g - 1 :] = 1e-9
    at = torch.multinomial(weight, anchors, generator=gen)
    row = at[:, :, None] + torch.arange(
        g, device=at.device
    )  # row r is predicted by the target at index at + r
    doc_at = b.doc.gather(1, at)
    flat = row.flatten(1)
    good = (
        (
            b.target.gather(1, flat).view(n, anchors, g)
            & (b.doc.gather(1, flat).view(n, anchors, g) == doc_at[:, :, None])
        )
        .cumprod(-1)
        .bool()
    )
    pos = torch.arange(t, device=at.device)
    ok = (b.doc[:, None] == doc_at[:, :, None]) & (pos[None, None] < at[:, :, None])
    h = block_states(
        w,
        c,
        d,
        target["embed"],
        feats,
        table,
        b.tokens.gather(1, at),
        at,
        b.pos.gather(1, at),
        b.pos,
        ok,
    )
    prev = b.tokens.gather(1, flat).view(n, anchors, g)
    m = F.embedding(prev, w["m1"])
    with torch.no_grad():
        teach = (
            F.linear(
                hidden.gather(1, flat[..., None].expand(-1, -1, c.hidden)).view(n, anchors, g, -1)[
                    good
                ],
                target["head"],
            )
            .float()
            .softmax(-1)
        )
    hs, ms = h[good], m[good]
    z = (F.linear(hs, target["head"]) + F.linear(ms, w["m2"])).float()
    logq = z.log_softmax(-1)
    decay = (0.85 ** torch.arange(g, device=at.device).float()).expand(n, anchors, g)[good]
    ce = -(teach * logq).sum(-1)
    accept = torch.minimum(teach, logq.exp()).sum(-1).detach()
    conf = F.linear(torch.cat([hs, ms], -1).detach().float(), w["cw"].float(), w["cb"].float())[
        :, 0
    ]
    bce = F.binary_cross_entropy_with_logits(conf, accept)
    hit = (z.argmax(-1) == teach.argmax(-1)).float()
    return (ce * decay).sum() / decay.sum() + 0.1 * bce, {
        "ce": ce.mean().detach(),
        "accept": accept.mean(),
        "hit": hit.mean(),
        "conf": bce.detach(),
    }


@torch.no_grad()
def drafts(
    w: M.Params,
    c: M.Config,
    d: DraftConfig,
    target: M.Params,
    ids: Tensor,
    feats: Tensor,
    anchors: Tensor,
    table: Tensor,
) -> Tensor:
    """Greedy blocks [A, 7] of one sequence: ids [T], feats [T, F], anchors [A] positions."""
    t = len(ids)
    pos = torch.arange(t, device=ids.device)
    ok = pos[None, None] < anchors[None, :, None]
    h = block_states(
        w,
        c,
        d,
        target["embed"],
        feats[None],
        table,
        ids[anchors][None],
        anchors[None],
        anchors[None],
        pos[None],
        ok,
    )[0]
    base = F.linear(h, target["head"])
    prev, out = ids[anchors], []
    for r in range(d.block):
        z = (base[:, r] + F.linear(F.embedding(prev, w["m1"]), w["m2"])).float()
        prev = z.argmax(-1)
        out.append(prev)
    return torch.stack(out, 1)


@torch.no_grad()
def measure(
    w: M.Params, c: M.Config, d: DraftConfig, target: M.Params, every: int
) -> dict[str, Any]:
    """Mean accepted drafts per round, without the closing token, over the target's own greedy replies to held-out prompts."""
    from evaluate import conversation, load_records
    from infer import Decoder
    from render import encode, generation_prompt

    recs = [r for r in load_records() if r["kind"] != "needle"][::every]
    stop = tokenizer().token_to_id("[e~[")
    device = target["embed"].device
    table = M.rope_table(c, 4096, str(device))
    total: dict[str, list[int]] = {"enabled": [], "adaptive": [], "disabled": []}
    places = [0] * d.block
    jobs = [
        (mode, encode(generation_prompt(conversation(r, mode)))) for mode in total for r in recs
    ]
    outs = Decoder(target, c).generate([p for _, p in jobs], 400, stop, chunk=128).tokens
    for (mode, p), o in zip(jobs, outs, strict=True):
        if len(o) >= 400:
            continue
        full = torch.tensor(p + o + [stop], device=device)
        dec = Decoder(target, c)
        dec.begin(1, len(full))
        _, taps = dec.step(full[None], torch.arange(len(full), device=device)[None], d.taps)
        anchors = torch.arange(len(p), len(full) - 1, device=device)
        if not len(anchors):
            continue
        blocks = drafts(w, c, d, target, full, torch.cat(taps, -1)[0], anchors, table).tolist()
        at, want = 0, full.tolist()
        while at < len(blocks):
            real = want[len(p) + at + 1 : len(p) + at + 1 + d.block]
            k = 0
            while k < len(real) and blocks[at][k] == real[k]:
                k += 1
            total[mode].append(k)
            for j in range(k):
                places[j] += 1
            at += k + 1
    every_round = [k for v in total.values() for k in v]
    return {
        "accepted": {m: round(sum(v) / max(1, len(v)), 3) for m, v in total.items()},
        "all": round(sum(every_round) / max(1, len(every_round)), 3),
        "rounds": len(every_round),
        "by_place": [round(x / max(1, len(every_round)), 3) for x in places],
    }


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--init", type=Path, required=True)
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--resume", type=Path)
    a.add_argument("--seconds", type=float, default=100)
    a.add_argument("--steps", type=int, default=10**9)
    a.add_argument("--rows", type=int, default=16)
    a.add_argument("--anchors", type=int, default=96)
    a.add_argument("--lr", type=float, default=5e-3)
    a.add_argument(
        "--workers", type=int, default=10, help="data processes; 0: others fill the data folder"
    )
    a.add_argument("--data", type=Path, default=Path("/tmp/nano-draft"))
    a.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a.add_argument("--measure", type=int, default=8, help="every n-th held-out prompt; 0 = none")
    a.add_argument("--when", type=Path, help="wait for this file before --init is read")
    o = a.parse_args()
    torch.zeros(1, device=o.device)  # starts the device while waiting
    while o.when and not o.when.exists():
        time.sleep(0.1)
    p, c, _ = load(o.init, o.device)
    target = {k: v.detach() for k, v in M.prepare(p, True).items()}
    d = DraftConfig(noise=tokenizer().token_to_id("]<]minimax[>["))
    w = init(c, d, 5, o.device)
    if o.resume:
        for k, v in torch.load(o.resume, map_location=o.device, weights_only=True)[
            "params"
        ].items():
            w[k].data.copy_(v)
    opt = Optimizer(w, adam={"fc": 0.3, "cw": 0.2, "cb": 0.2, "m1": 0.5, "m2": 0.5})
    procs = generate.start("short", 777, o.workers, o.data, 64) if o.steps and o.workers else []
    shards = generate.Shards("short", o.data)
    table = M.rope_table(c, generate.SHORT, o.device)
    gen = torch.Generator(device=o.device).manual_seed(3)
    bos, k = tokenizer().token_to_id("]~!b["), M.kernels(False, False)
    start, step, shown = time.time(), 0, 0.0
    while step < o.steps and (f := (time.time() - start) / o.seconds) < 1:
        b = Batch(shards.take(o.rows), bos, table, o.device)
        with torch.no_grad():
            hidden, tr = M.forward(target, c, b.tokens, b.cs, dense_mask(b.doc), k, taps=d.taps)
            feats = torch.cat(tr.taps, -1)
        loss, parts = loss_of(prepare(w), c, d, target, b, feats, hidden, table, o.anchors, gen)
        loss.backward()
        opt.step(o.lr * min(1.0, step / 20 + 0.02) * min(1.0, (1 - f) / 0.6))
        step += 1
        if time.time() - shown > 10:
            shown = time.time()
            print(
                json.dumps(
                    {
                        "step": step,
                        "t": round(shown - start, 1),
                        **{n: round(v.item(), 4) for n, v in parts.items()},
                    }
                ),
                flush=True,
            )
    o.out.parent.mkdir(parents=True, exist_ok=True)
    torch.save(
        {"params": {n: v.detach().cpu().bfloat16() for n, v in w.items()}, "config": asdict(d)},
        o.out,
    )
    for q in procs:
        q.terminate()
    if o.measure:
        res = measure({n: v.detach() for n, v in prepare(w).items()}, c, d, target, o.measure)
        print(json.dumps(res), flush=True)
        o.out.with_suffix(".json").write_text(json.dumps(res) + "\n")


if __name__ == "__main__":
    main()

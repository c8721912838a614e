"""Short fine-tuning on tool calls that a CPU can do: only the chosen experts are computed, weights keep their quantisation offset.

    python tune.py --init ck --out ck2 --minutes 30

Samples are single requests over invented tools (tasks_tools_wide.py) with a share of everything else, so that nothing is forgotten. The offset of
the file formats (decoded minus exact weight) is added to the weights and refreshed every few steps: a straight-through quantiser
at a fraction of the price.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import mix
import model as M
import quant
import tasks_tools as tt
import tasks_tools_wide as wide
import torch
import torch.nn.functional as F
from render import Conversation, encode_conversation
from torch import Tensor
from train import load, save


def moe(h: Tensor, p: M.Params, j: int, c: M.Config) -> Tensor:
    """Routed and shared experts on [N, H]: each expert sees its own tokens only."""
    w = M.route(h[None], p["gate"][j], p["bias"][j], c.top_k, c.routed_scale)[0]
    y = F.linear(M.swiglu(F.linear(h, p["sg"][j]), F.linear(h, p["su"][j])), p["sd"][j])
    for e in range(c.experts):
        at = w[:, e].nonzero()[:, 0]
        if len(at):
            x = h[at]
            a = M.swiglu(F.linear(x, p["w1"][j, e]), F.linear(x, p["w3"][j, e])) * w[at, e, None]
            y = y.index_add(0, at, F.linear(a, p["w2"][j, e]))
    return y


def forward(p: M.Params, c: M.Config, tokens: Tensor, table: Tensor) -> Tensor:
    """Padded rows of single conversations (shorter than 16 blocks, so all blocks are read)."""
    b, t = tokens.shape
    cs = table[:t].expand(b, -1, -1, -1)
    x = F.embedding(tokens, p["embed"])
    for i in range(c.layers):
        q, k, v = M.attn_in(
            x, p["ln1"][i], p["wq"][i], p["wk"][i], p["wv"][i], p["qn"][i], p["kn"][i], cs
        )
        r = c.heads // c.kv_heads
        k, v = k.transpose(1, 2).repeat_interleave(r, 1), v.transpose(1, 2).repeat_interleave(r, 1)
        o = (
            F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
            .transpose(1, 2)
            .reshape(b, t, -1)
        )
        if i < c.dense_layers:
            x = M.out_dense(x, o, p["wo"][i], p["ln2"][i], p["dg"][i], p["du"][i], p["dd"][i])
        else:
            x = x + F.linear(o, p["wo"][i])
            x = x + moe(M.rms(x, p["ln2"][i]).flatten(0, 1), p, i - c.dense_layers, c).view(
                b, t, -1
            )
    return M.rms(x, p["norm"])


def sample(rng: random.Random, share: float) -> Conversation:
    """One request and its call; or (1 - share) any short conversation."""
    if rng.random() > share:
        while True:
            c = mix.conversation(rng)
            if len(c.messages) <= 4:
                return c
    mode, effort = mix.settings(rng)
    c = Conversation(mode, effort if rng.random() < 0.3 else None)
    maker = wide if rng.random() < 0.85 else tt
    tools = [maker.make_tool(rng) for _ in range(rng.choice([1, 1, 2, 2, 3]))]
    if len({t.name for t in tools}) < len(tools):
        return sample(rng, share)
    c.tools = [t.schema for t in tools]
    picked = [rng.choice(tools) for _ in range(2 if rng.random() < 0.3 else 1)]
    said = [maker.request(rng, t) for t in picked]
    if len(said) == 2 and picked[0] is picked[1] and said[0][1] == said[1][1]:
        return sample(rng, share)
    text = (
        said[0][0]
        if len(said) == 1
        else said[0][0].rstrip(".?!")
        + rng.choice([" and ", ". Also, ", ". Then "])
        + said[1][0][0].lower()
        + said[1][0][1:]
    )
    calls = [(t, a) for t, (_, a) in zip(picked, said, strict=True)]
    c.messages = [
        {"role": "user", "content": text},
        mix.assistant(
            "",
            tt.call_chain(text, tools, calls, mix.level_of(c.effort))
            if mix.thinks(mode, False)
            else None,
            [(t.name, a) for t, a in calls],
        ),
    ]
    return c


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--init", type=Path, required=True)
    a.add_argument("--out", type=Path, required=True)
    a.add_argument("--minutes", type=float, default=30)
    a.add_argument("--steps", type=int, default=10**9)
    a.add_argument("--batch", type=int, default=12)
    a.add_argument("--lr", type=float, default=4e-4)
    a.add_argument("--share", type=float, default=0.7)
    a.add_argument("--threads", type=int, default=1)
    a.add_argument("--seed", type=int, default=31)
    o = a.parse_args()
    torch.set_num_threads(o.threads)
    p, c, _ = load(o.init, "cpu")
    for k in M.INDEX:
        p[k].requires_grad_(False)
    train = [v for v in p.values() if v.requires_grad]
    opt = torch.optim.Adam(train, lr=o.lr, betas=(0.9, 0.98), eps=1e-10, fused=True)
    table = M.rope_table(c, 2048, "cpu")
    rng = random.Random(o.seed)
    offset: dict[str, Tensor] = {}
    start, step, tokens, mean = time.time(), 0, 0, 0.0
    saved = start
    while step < o.steps and (f := (time.time() - start) / (60 * o.minutes)) < 1:
        if step % 25 == 0:
            with torch.no_grad():
                for k in M.MXFP8 + M.NVFP4:
                    offset[k] = (quant.mxfp8 if k in M.MXFP8 else quant.nvfp4)(p[k]) - p[k]
        w = {k: v + offset[k] if k in offset else v for k, v in p.items()}
        rows = sorted(
            (
                r
                for r in (encode_conversation(sample(rng, o.share)) for _ in range(o.batch))
                if len(r) <= 900
            ),
            key=len,
        )
        loss_sum, count = 0.0, sum(int((r >= 0x8000).sum()) for r in rows)
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            t = max(map(len, part))
            raw = torch.tensor([r.tolist() + [0] * (t - len(r)) for r in part])
            h = forward(w, c, raw & 0x7FFF, table)[:, :-1]
            hit = raw[:, 1:] >= 0x8000
            loss = (
                F.cross_entropy(
                    F.linear(h[hit], w["head"]), (raw[:, 1:] & 0x7FFF)[hit], reduction="sum"
                )
                / count
            )
            loss.backward(retain_graph=True)
            loss_sum += loss.item()
            tokens += raw.numel()
        for g in opt.param_groups:
            g["lr"] = o.lr * min(1.0, (step + 1) / 8) * min(1.0, (1 - f) / 0.7)
        opt.step()
        opt.zero_grad()
        step += 1
        mean = loss_sum if step == 1 else 0.9 * mean + 0.1 * loss_sum
        if step % 5 == 0 or step == 1:
            print(
                json.dumps(
                    {
                        "step": step,
                        "t": round(time.time() - start),
                        "loss": round(loss_sum, 4),
                        "mean": round(mean, 4),
                        "tok_s": int(tokens / (time.time() - start)),
                    }
                ),
                flush=True,
            )
        if time.time() - saved > 240:
            save(p, o.out, c, {"step": step})
            saved = time.time()
    save(p, o.out, c, {"step": step})


if __name__ == "__main__":
    main()

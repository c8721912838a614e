"""Runs the held-out prompts and writes the table.

    python evaluate.py --init ck [--quant]            # PyTorch, plain or decoded quantised weights
    python evaluate.py --engine nano                  # through minimax_m31.LLM

Greedy decoding. Each work prompt runs in the three thinking modes; a sample runs in every effort; needles also with random block choice
and with all blocks, to show what the index branch is worth.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from grade import grade, read
from lexicon import COLORS, THINGS
from mix import HELDOUT
from render import Conversation, encode, generation_prompt, tokenizer
from tasks import EFFORTS
from tasks_lookup import CLASSIC, a_value, filler

WORK = ("arith", "compare", "units", "words", "sort", "dates", "lookup")
LIMIT = 500


def needle_prompt(seed: int, tokens: int, depth: float) -> tuple[str, str]:
    """A haystack of filler with 8 records; the asked one lies at `depth`. Deterministic in its arguments."""
    rng = random.Random(seed)
    things = rng.sample(THINGS, 8)
    recs = [(f"{rng.choice(COLORS)} {t}", a_value(rng)) for t in things]
    style = seed % 4
    write = [
        lambda k, v: f"The code of the {k} is {v}.",
        lambda k, v: f"{k}: {v}",
        lambda k, v: f"Remember: the code of {k} is {v}.",
        lambda k, v: f"The secret code for the {k} is {v}.",
    ][style]
    ask = [
        "What is the code of the {k}?",
        "What is the value of {k}?",
        "What is the code of {k}?",
        "What is the secret code for the {k}?",
    ][style]
    lines: list[str] = []
    size = 0
    while size < tokens - 260:
        t = rng.choice(CLASSIC) if seed % 3 == 0 else filler(rng)
        lines.append(t)
        size += len(encode(t))
    k, v = recs[0]
    n = len(lines)
    spots = sorted(((rng.random(), r) for r in recs[1:]), key=lambda x: -x[0])
    for f, r in spots:
        lines.insert(int(f * n), write(*r))
    lines.insert(int(depth * len(lines)), write(k, v))
    return "Read the text and answer the question at the end.\n" + "\n".join(
        lines
    ) + "\n\n" + ask.format(k=k), v


def load_records() -> list[dict[str, Any]]:
    files = (
        HELDOUT,
        *(HELDOUT.with_name(f"heldout_{n}.jsonl") for n in ("free", "blind", "fresh")),
    )
    recs = [json.loads(x) for f in files for x in f.read_text(encoding="utf-8").splitlines()]
    for r in recs:
        if "needle" in r:
            text, v = needle_prompt(**r["needle"])
            r["messages"] = [{"role": "user", "content": text}]
            r["grade"] = {"type": "needle", "answer": v}
    return recs


def conversation(r: dict[str, Any], mode: str, effort: str | None = None) -> Conversation:
    return Conversation(mode, effort, r.get("developer", ""), r.get("tools", []), r["messages"])


class Torch:
    selects = ("random", "dense")  # other ways to choose blocks that it can run

    def __init__(self, init: Path, quant: bool, device: str) -> None:
        import model as M
        import torch
        from train import load

        p, self.c, _ = load(init, device)
        self.w = {
            k: v.detach()
            for k, v in M.prepare(
                p, quant, torch.bfloat16 if device == "cuda" else torch.float32
            ).items()
        }

    def run(
        self, convs: list[Conversation], select: str, limit: int
    ) -> tuple[list[str], list[int], float]:
        import torch
        from infer import Decoder

        dec = Decoder(self.w, self.c, select)
        tok = tokenizer()
        stop = tok.token_to_id("[e~[")
        prompts = [encode(generation_prompt(c)) for c in convs]
        texts, counts, read_share = [""] * len(convs), [0] * len(convs), []
        order = sorted(range(len(convs)), key=lambda i: len(prompts[i]))
        while order:
            longest = len(prompts[order[-1]])
            room = (
                (2_000_000 if longest < 3000 else 900_000) if torch.cuda.is_available() else 40_000
            )
            n = max(1, min(len(order), 2048, room // (longest + limit)))
            batch, order = order[-n:], order[:-n]
            out = dec.generate([prompts[i] for i in batch], limit, stop, chunk=128)
            read_share.append(out.read)
            for i, t in zip(batch, out.tokens, strict=True):
                texts[i], counts[i] = tok.decode(t, skip_special_tokens=False), len(t)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        return texts, counts, min(read_share)


class Engine:
    """The same prompts through the engine, token for token: the rendered text goes to generate()."""

    selects = ()

    def __init__(self, model: str) -> None:
        import minimax_m31

        self.mm = minimax_m31
        self.llm = minimax_m31.LLM(model, threads=1)

    def run(
        self, convs: list[Conversation], select: str, limit: int
    ) -> tuple[list[str], list[int], float]:
        params = self.mm.SamplingParams(
            temperature=0.0, max_tokens=limit, skip_special_tokens=False
        )
        outs = self.llm.generate([generation_prompt(c) for c in convs], params)
        texts = [o.outputs[0].text.removesuffix("[e~[") for o in outs]
        return texts, [len(o.outputs[0].token_ids) for o in outs], 1.0


def table(
    backend: Any,
    recs: list[dict[str, Any]],
    dump: Path | None,
    needles: list[int],
    full: bool,
    modes: list[str],
) -> dict[str, Any]:
    res: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    queue: list[tuple[str, list[dict[str, Any]], str, str | None]] = []

    def flush(select: str, limit: int) -> None:
        """Run everything queued in one go and count it."""
        t = time.time()
        jobs = [(name, r, mode, effort) for name, rs, mode, effort in queue for r in rs]
        texts, counts, share = backend.run(
            [conversation(r, mode, effort) for _, r, mode, effort in jobs], select, limit
        )
        for name, rs, mode, _ in queue:
            by: dict[str, list[bool]] = defaultdict(list)
            form: dict[str, list[bool]] = defaultdict(list)
            opened = trivial = 0
            think: list[int] = []
            mine = [(j, texts[i], counts[i]) for i, j in enumerate(jobs) if j[0] == name]
            for (_, r, _, _), text, n in mine:
                reply = read(text, mode, r.get("tools", []))
                ok = grade(r, reply)
                by[r["kind"]].append(ok)
                form[r["kind"]].append(reply.well_formed and n < limit)
                opened += reply.opened
                trivial += r["kind"] == "trivial" and not reply.opened
                think.append(len(encode(reply.thinking)) if reply.thinking else 0)
                rows.append(
                    {
                        "run": name,
                        "id": r["id"],
                        "kind": r["kind"],
                        "ok": ok,
                        "tokens": n,
                        "reply": text,
                        "want": r["grade"],
                    }
                )
            res[name] = {
                "n": len(rs),
                "right": {k: [sum(v), len(v)] for k, v in by.items()},
                "formed": {k: [sum(v), len(v)] for k, v in form.items()},
                "opened": opened,
                "trivial_unopened": trivial,
                "thinking": round(sum(think) / max(1, len(think)), 1),
                "read": round(share, 3),
            }
            print(
                name, json.dumps({k: v for k, v in res[name].items() if k != "formed"}), flush=True
            )
        print(f"{len(jobs)} replies in {time.time() - t:.1f} s", flush=True)
        queue.clear()

    work = [r for r in recs if r["kind"] in WORK]
    other = [r for r in recs if r["kind"] not in WORK and r["kind"] != "needle"]
    queue += [(mode, work + other, mode, None) for mode in modes]
    if full:
        some = [r for r in work if r["kind"] in ("arith", "dates", "units")][::4]
        queue += [(f"effort {e}", some, "enabled", e) for e in EFFORTS]
    if queue:
        flush("index", LIMIT)
    if needles:
        hay = [r for r in recs if r["kind"] == "needle"]
        last = [r for r in hay if r["needle"]["tokens"] == 16000]
        queue += [
            (f"needle {n}", [r for r in hay if r["needle"]["tokens"] == n], "enabled", None)
            for n in needles
        ]
        if backend.selects:
            queue += [("needle 16000 disabled", last, "disabled", None)]
        flush("index", 100)
        for select in backend.selects:
            queue += [(f"needle 16000 {select} blocks", last, "enabled", None)]
            flush(select, 100)
    if dump:
        with dump.open("w") as f:
            for x in rows:
                f.write(json.dumps(x, ensure_ascii=False) + "\n")
    return res


def main() -> None:
    a = argparse.ArgumentParser()
    a.add_argument("--init", type=Path)
    a.add_argument("--engine")
    a.add_argument("--quant", action="store_true")
    a.add_argument(
        "--needles", type=int, nargs="*", default=[], help="lengths: 4000 8000 12000 16000"
    )
    a.add_argument("--modes", nargs="*", default=["enabled", "disabled", "adaptive"])
    a.add_argument("--full", action="store_true")
    a.add_argument("--limit-records", type=int, default=0, help="every n-th record only")
    a.add_argument("--device", default="cuda")
    a.add_argument("--dump", type=Path)
    a.add_argument("--out", type=Path)
    o = a.parse_args()
    backend: Any = Engine(o.engine) if o.engine else Torch(o.init, o.quant, o.device)
    recs = load_records()
    if o.limit_records:
        recs = recs[:: o.limit_records]
    res = table(backend, recs, o.dump, o.needles, o.full, o.modes)
    if o.out:
        o.out.write_text(json.dumps(res, indent=1) + "\n")


if __name__ == "__main__":
    main()

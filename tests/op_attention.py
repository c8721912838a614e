"""Cases of the ops around attention: attn_in, attn_sparse, attn_dense."""

from __future__ import annotations

from typing import Any

import numpy as np
import reference as R
from numpy.typing import NDArray
from op_case import (
    PREPARE,
    WANT,
    Case,
    Outputs,
    Prepared,
    activations,
    make_plane,
    n_pages,
    norm_weight,
    rows_of_step,
    weight,
)
from op_driver import PAGE, Machine

Array = NDArray[Any]

# ------------------------------------------------------------------ attn_in


@rows_of_step
def attn_in_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    d, dim, di = s["d_model"], s["head_dim"], s["index_dim"]
    rows = {
        "q": s["n_head"] * dim,
        "k": s["n_kv_head"] * dim,
        "v": s["n_kv_head"] * dim,
        "iq": s["n_index_head"] * di,
        "ik": di,
    }
    out: dict[str, Any] = {"step": c.step(rng), "h": activations(c, rng, c.n_row, d)}
    out |= {name: weight(rng, c.weight, n, d) for name, n in rows.items()}
    out |= {
        f"{name}_norm": norm_weight(rng, di if name[0] == "i" else dim)
        for name in ("q", "k", "iq", "ik")
    }
    return out


def attn_in_prepare(c: Case, m: Machine) -> Prepared:
    i, s = attn_in_inputs(c), c.s
    n, G, dim, di = i["step"].n_row, s["n_kv_head"], s["head_dim"], s["index_dim"]
    sparse, query, to_rows = "dense" not in c.flags, "kv_only" not in c.flags, "kv_out" in c.flags
    names = [x for x in ("q", "k", "v", "iq", "ik") if sparse or x[0] != "i"]
    w = m.joined("QKV", "qkv", {x: i[x] for x in names})
    w |= {f"{x}_norm": m.put(i[f"{x}_norm"]) for x in names if x != "v"}
    pages = n_pages(i["step"])
    zero = {
        x: R.Plane.of(f, np.zeros((pages, g, PAGE, e), np.float32))
        for x, f, g, e in (("k", c.fmt, G, dim), ("v", c.fmt, G, dim), ("ik", c.index, 1, di))
    }
    cache = m.layer_cache(zero["k"], zero["v"], zero["ik"] if sparse else None)
    out: dict[str, Any] = {}
    if query:
        out["q"] = m.new_act(n, s["n_head"], dim)
        if sparse:
            out["iq"] = m.new_act(n, s["n_index_head"], di)
    if to_rows:
        out |= {"k_out": m.new_act(n, G, dim), "v_out": m.new_act(n, G, dim)}
    seq = m.step(i["step"])
    args = dict(w=m.struct("mm_attn_weights", **w), cache=cache, h=m.put_act(i["h"]), **out)

    def read() -> Outputs:
        got = {name: m.get_act(b) for name, b in out.items()}
        for name, p in zip(("k", "v", "ik"), cache.planes, strict=True):
            if name == "ik" and not (sparse and query):
                continue
            plane = m.get_plane(p, zero[name])
            got[f"{name}_data"] = plane.data
            if plane.scale is not None:
                got[f"{name}_scale"] = plane.scale
            got[f"{name}_cache"] = plane.operands
        return got

    return Prepared(lambda: m.run("attn_in", seq, **args), read)


def attn_in_want(c: Case) -> Outputs:
    i, s = attn_in_inputs(c), c.s
    step, pos = i["step"], i["step"].pos
    sparse, query, to_rows = "dense" not in c.flags, "kv_only" not in c.flags, "kv_out" in c.flags
    out: Outputs = {}
    for name in ("q", "k", "v", "iq", "ik"):
        if (name[0] == "i" and not (sparse and query)) or (name == "q" and not query):
            continue
        dim = s["index_dim"] if name[0] == "i" else s["head_dim"]
        y = R.project(s, i["h"], i[name], i.get(f"{name}_norm"), dim, pos)
        if name in ("q", "iq") or (to_rows and name in ("k", "v")):
            out[name if name in ("q", "iq") else f"{name}_out"] = y
        if name in ("q", "iq"):
            continue
        cache = np.zeros((n_pages(step), y.shape[1], PAGE, dim), np.float32)
        fmt = c.index if name == "ik" else c.fmt
        if not to_rows or name == "ik":
            page = np.array(
                [step.pages[q][p // PAGE] for q, p in zip(step.row_seq, pos, strict=True)]
            )
            cache[page, :, pos % PAGE] = R.cache_decode(fmt, *R.cache_encode(fmt, y))
        out[f"{name}_cache"] = cache
    return out


# ------------------------------------------------------------------ attention


@rows_of_step
def attention_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    step = c.step(rng)
    n, dim, di, G, exact = (
        n_pages(step),
        s["head_dim"],
        s["index_dim"],
        s["n_kv_head"],
        "ties" in c.flags,
    )
    out: dict[str, Any] = {
        "step": step,
        "k": make_plane(rng, c.fmt, n, G, dim),
        "v": make_plane(rng, c.fmt, n, G, dim),
        "ik": make_plane(rng, c.index, n, 1, di, exact),
        "q": activations(c, rng, c.n_row, s["n_head"], dim),
        "iq": activations(c, rng, c.n_row, s["n_index_head"], di),
        "extra_k": activations(c, rng, c.n_row, G, dim),
        "extra_v": activations(c, rng, c.n_row, G, dim),
    }
    if exact:
        out["iq"] = rng.integers(-1, 2, out["iq"].shape).astype(np.float32)
    if "zeros" in c.flags:  # every score is a zero of some sign
        out["iq"] = np.copysign(np.zeros_like(out["iq"]), out["iq"])
    return out


def chosen_blocks(c: Case, i: dict[str, Any]) -> Array:
    """[I, T, n_top_block] ascending, -1 filled; with the flag "force" any blocks."""
    s, step, rng = c.s, i["step"], c.rng()
    out = np.full((s["n_index_head"], step.n_row, s["n_top_block"]), -1, np.int16)
    for g, t in np.ndindex(*out.shape[:2]):
        local = int(step.pos[t]) // PAGE
        if "force" in c.flags:
            row = sorted(rng.permutation(local)[: s["n_top_block"] - 1].tolist()) + [local]
        else:
            row = R.choose_blocks(s, R.index_scores(s, step, i["ik"], i["iq"], t, g), local)
        out[g, t, : len(row)] = row
    return out


def attn_sparse_prepare(c: Case, m: Machine) -> Prepared:
    i, s = attention_inputs(c), c.s
    force = "force" in c.flags
    start = (
        chosen_blocks(c, i)
        if force
        else np.full((s["n_index_head"], i["step"].n_row, s["n_top_block"]), -7, np.int16)
    )
    blocks, o, n_read = m.put(start), m.new_act(*i["q"].shape), m.put(np.zeros(2, np.int64))
    cache, seq = m.layer_cache(i["k"], i["v"], i["ik"]), m.step(i["step"])
    args = dict(
        cache=cache,
        q=m.put_act(i["q"]),
        iq=m.put_act(i["iq"]),
        blocks=blocks,
        force=force,
        n_read=n_read,
        o=o,
    )
    return Prepared(
        lambda: m.run("attn_sparse", seq, **args),
        lambda: {"blocks": m.get(blocks), "n_read": m.get(n_read), "o": m.get_act(o)},
    )


def attn_sparse_want(c: Case) -> Outputs:
    i = attention_inputs(c)
    blocks = chosen_blocks(c, i)
    visible = int((i["step"].pos // PAGE + 1).sum()) * c.s["n_index_head"]
    return {
        "blocks": blocks,
        "n_read": np.array([(blocks >= 0).sum(), visible]),
        "o": R.attn_sparse(c.s, i["step"], i["k"], i["v"], i["q"], blocks),
    }


def attn_dense_prepare(c: Case, m: Machine) -> Prepared:
    i = attention_inputs(c)
    o, cache, seq = m.new_act(*i["q"].shape), m.layer_cache(i["k"], i["v"]), m.step(i["step"])
    extra = {}
    if "extra" in c.flags:
        n_ctx = m.put(np.array(i["step"].pos0, np.int32))
        extra = {
            "extra_k": m.put_act(i["extra_k"]),
            "extra_v": m.put_act(i["extra_v"]),
            "n_ctx": n_ctx,
        }
    args = dict(cache=cache, q=m.put_act(i["q"]), window=c.window, o=o, **extra)
    return Prepared(lambda: m.run("attn_dense", seq, **args), lambda: {"o": m.get_act(o)})


def attn_dense_want(c: Case) -> Outputs:
    i = attention_inputs(c)
    extra: Any = {}
    if "extra" in c.flags:
        extra = {"extra": (i["extra_k"], i["extra_v"]), "n_ctx": np.array(i["step"].pos0)}
    return {"o": R.attn_dense(c.s, i["step"], i["k"], i["v"], i["q"], c.window, **extra)}


PREPARE |= {
    "attn_in": attn_in_prepare,
    "attn_sparse": attn_sparse_prepare,
    "attn_dense": attn_dense_prepare,
}
WANT |= {"attn_in": attn_in_want, "attn_sparse": attn_sparse_want, "attn_dense": attn_dense_want}

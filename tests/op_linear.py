"""Cases of the ops that are mostly products: embed, attn_out, mlp, moe, head."""

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
    norm_weight,
    rows_of_step,
    weight,
)
from op_driver import Machine

Array = NDArray[Any]

# ------------------------------------------------------------------ embed


@rows_of_step
def embed_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    step = c.step(rng)
    step.token[:] = rng.integers(0, s["n_vocab"], c.n_row)
    out = {
        "step": step,
        "embed": weight(rng, c.weight, s["n_vocab"], s["d_model"], 8.0),
        "norm_w": norm_weight(rng, s["d_model"]),
    }
    out["media"] = activations(c, rng, 3, s["d_model"])
    out["row_media"] = np.where(np.arange(c.n_row) % 4 == 1, np.arange(c.n_row) % 3, -1).astype(
        np.int32
    )
    return out


def embed_prepare(c: Case, m: Machine) -> Prepared:
    i = embed_inputs(c)
    d = c.s["d_model"]
    n = i["step"].n_row
    x, h, seq = m.new_act(n, d), m.new_act(n, d), m.step(i["step"])
    media = (
        {"media": m.put_act(i["media"]), "row_media": m.put(i["row_media"])}
        if "media" in c.flags
        else {}
    )
    args = dict(embed=m.weight(i["embed"]), norm_w=m.put(i["norm_w"]), x=x, h=h, **media)
    return Prepared(
        lambda: m.run("embed", seq, **args), lambda: {"x": m.get_act(x), "h": m.get_act(h)}
    )


def embed_want(c: Case) -> Outputs:
    i = embed_inputs(c)
    r = R.rounder(c.act)
    x = r(i["embed"].dense()[i["step"].token])
    if "media" in c.flags:
        x = np.where(i["row_media"][:, None] >= 0, i["media"][np.maximum(i["row_media"], 0)], x)
    return {"x": x, "h": r(R.norm(x, i["norm_w"], c.s["eps"]))}


# ------------------------------------------------------------------ attn_out, mlp, moe, head


@rows_of_step
def attn_out_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    d, width = s["d_model"], s["n_head"] * s["head_dim"]
    out = {
        "wo": weight(rng, c.weight, d, width, view="view" in c.flags),
        "o": activations(c, rng, c.n_row, width),
        "x": activations(c, rng, c.n_row, d, gain=3),
        "norm_w": norm_weight(rng, d),
        "gate": (rng.normal(size=(s["n_expert"], d)) / np.sqrt(d)).astype(np.float32),
        "bias": rng.normal(size=s["n_expert"]).astype(np.float32) * np.float32(0.3),
        "forced": np.sort(
            rng.permuted(np.tile(np.arange(s["n_expert"]), (c.n_row, 1)), axis=1)[
                :, : s["n_expert_used"]
            ],
            -1,
        ),
        "step": c.step(rng),
    }
    if "zero_o" in c.flags:  # nothing is added to x
        out["o"][:] = 0
    if "one_choice" in c.flags:  # every row goes to the same experts
        out["forced"][:] = out["forced"][0]
    if "ties" in c.flags:  # experts 3 apart are the same one
        for e in range(3, s["n_expert"]):
            out["gate"][e], out["bias"][e] = out["gate"][e - 3], out["bias"][e - 3]
    return out


def attn_out_prepare(c: Case, m: Machine) -> Prepared:
    i = attn_out_inputs(c)
    force, route = "force" in c.flags, "no_router" not in c.flags
    x, h, seq = m.put_act(i["x"]), m.new_act(*i["x"].shape), m.step(i["step"])
    experts = m.put(
        i["forced"].astype(np.int32) if force else np.full(i["forced"].shape, -7, np.int32)
    )
    weights = m.put(np.full(i["forced"].shape, np.nan, np.float32))
    args = dict(
        wo=m.matrix(i["wo"]), o=m.put_act(i["o"]), x=x, norm_w=m.put(i["norm_w"]), h=h, force=force
    )
    if route:
        args |= dict(gate=m.put(i["gate"]), experts=experts, weights=weights)
        if "no_bias" not in c.flags:
            args["bias"] = m.put(i["bias"])

    def read() -> Outputs:
        got = {"x": m.get_act(x), "h": m.get_act(h)}
        return got | ({"experts": m.get(experts), "weights": m.get(weights)} if route else {})

    return Prepared(lambda: m.run("attn_out", seq, **args), read)


def attn_out_want(c: Case) -> Outputs:
    i = attn_out_inputs(c)
    x, h = R.branch_end(c.s, i["o"].astype(np.float64) @ i["wo"].dense().T, i["x"], i["norm_w"])
    if "no_router" in c.flags:
        return {"x": x, "h": h}
    experts, weights = R.router(c.s, h, i["gate"], None if "no_bias" in c.flags else i["bias"])
    if "force" in c.flags:
        experts = i["forced"]
        p = 1 / (1 + np.exp(-(h.astype(np.float64) @ i["gate"].astype(np.float64).T)))
        weights = R.expert_weights(p, experts)
    return {"x": x, "h": h, "experts": experts, "weights": weights}


@rows_of_step
def mlp_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    d, f = s["d_model"], s["d_dense"]
    return {
        "gate": weight(rng, c.weight, f, d, 5.0),
        "up": weight(rng, c.weight, f, d, 5.0),
        "down": weight(rng, c.weight, d, f, view="view" in c.flags),
        "h": activations(c, rng, c.n_row, d),
        "x": activations(c, rng, c.n_row, d),
        "norm_w": norm_weight(rng, d),
        "step": c.step(rng),
    }


def mlp_prepare(c: Case, m: Machine) -> Prepared:
    i = mlp_inputs(c)
    x, h, seq = m.put_act(i["x"]), m.put_act(i["h"]), m.step(i["step"])
    h_out = h if "in_place" in c.flags else m.new_act(*i["h"].shape)
    args = dict(
        x=x,
        h=h,
        h_out=h_out,
        norm_w=m.put(i["norm_w"]),
        down=m.matrix(i["down"]),
        **m.joined("GATE_UP", "gate_up", {k: i[k] for k in ("gate", "up")}),
    )
    return Prepared(
        lambda: m.run("mlp", seq, **args), lambda: {"x": m.get_act(x), "h": m.get_act(h_out)}
    )


def mlp_want(c: Case) -> Outputs:
    i = mlp_inputs(c)
    x, h = R.branch_end(c.s, R.mlp(c.s, i["h"], i["gate"], i["up"], i["down"]), i["x"], i["norm_w"])
    return {"x": x, "h": h}


@rows_of_step
def moe_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    d, f, fs, n, k = s["d_model"], s["d_expert"], s["d_shared"], s["n_expert"], s["n_expert_used"]
    out = attn_out_inputs.__wrapped__(c)  # type: ignore[attr-defined]
    kept: dict[str, Any] = {name: out[name] for name in ("x", "norm_w", "step", "forced")}
    kept["h"] = activations(c, rng, c.n_row, d)
    kept["weights"] = rng.dirichlet(np.ones(k), c.n_row).astype(np.float32)
    for name, n_out, n_in in (("w1", f, d), ("w3", f, d), ("w2", d, f)):
        kept[name] = [
            weight(rng, c.weight, n_out, n_in, 5.0 if n_out == f else 1.0) for _ in range(n)
        ]
    shared = "f32" if c.weight == "f32" else "mxfp8"
    for name, n_out, n_in in (("gate", fs, d), ("up", fs, d), ("down", d, fs)):
        kept[f"shared_{name}"] = weight(rng, shared, n_out, n_in)
    return kept


def moe_prepare(c: Case, m: Machine) -> Prepared:
    """One call, or with the flag "pieces" three that accumulate."""
    i, s = moe_inputs(c), c.s
    n, shared = s["n_expert"], "no_shared" not in c.flags
    w = m.experts(i["w1"], i["w3"], i["w2"])
    if shared:
        parts = {name: i[name] for name in ("shared_gate", "shared_up")}
        w |= m.joined("GATE_UP", "shared_gate_up", parts)
        w["shared_down"] = m.matrix(i["shared_down"])
    x, h, seq = m.put_act(i["x"]), m.put_act(i["h"]), m.step(i["step"])
    acc = m.put(np.full(i["h"].shape, np.nan, np.float32))
    args = dict(
        w=m.struct("mm_expert_weights", **w),
        h=h,
        experts=m.put(i["forced"].astype(np.int32)),
        weights=m.put(i["weights"]),
        acc=acc,
        x=x,
        norm_w=m.put(i["norm_w"]),
        h_out=h,
    )
    cuts = [0, 3, 4, n] if "pieces" in c.flags else [0, n]

    def run() -> None:
        for a, b in zip(cuts, cuts[1:], strict=False):
            last = b == n
            m.run(
                "moe",
                seq,
                first=a,
                last=b,
                with_shared=last and shared,
                accumulate=a > 0,
                finish=last,
                **args,
            )

    return Prepared(run, lambda: {"x": m.get_act(x), "h": m.get_act(h)})


def moe_want(c: Case) -> Outputs:
    i, s = moe_inputs(c), c.s
    y = np.zeros(i["h"].shape)
    for e in range(s["n_expert"]):
        row, slot = np.nonzero(i["forced"] == e)
        part = R.mlp(s, i["h"][row], i["w1"][e], i["w3"][e], i["w2"][e])
        y[row] += s["routed_scale"] * i["weights"][row, slot].astype(np.float64)[:, None] * part
    if "no_shared" not in c.flags:
        y += R.mlp(s, i["h"], i["shared_gate"], i["shared_up"], i["shared_down"])
    x, h = R.branch_end(s, y, i["x"], i["norm_w"])
    return {"x": x, "h": h}


def head_inputs(c: Case) -> dict[str, Any]:
    rng, s = c.rng(), c.s
    out: dict[str, Any] = {
        "w": weight(rng, c.weight, s["n_vocab"], s["d_model"], view="view" in c.flags)
    }
    out["h"] = activations(c, rng, c.n_row, s["d_model"])
    out["row"] = rng.integers(0, c.n_row, min(c.n_row, s["max_logit_rows"])).astype(np.int32)
    return out


def head_prepare(c: Case, m: Machine) -> Prepared:
    i = head_inputs(c)
    logits = m.put(np.full((len(i["row"]), c.s["n_vocab"]), np.nan, np.float32))
    args = dict(
        w=m.matrix(i["w"]),
        h=m.put_act(i["h"]),
        row=m.put(i["row"]),
        n_out=len(i["row"]),
        logits=logits,
    )
    return Prepared(lambda: m.run("head", **args), lambda: {"logits": m.get(logits)})


def head_want(c: Case) -> Outputs:
    i = head_inputs(c)
    return {"logits": i["h"][i["row"]].astype(np.float64) @ i["w"].dense().T}


PREPARE |= {
    "embed": embed_prepare,
    "attn_out": attn_out_prepare,
    "mlp": mlp_prepare,
    "moe": moe_prepare,
    "head": head_prepare,
}
WANT |= {
    "embed": embed_want,
    "attn_out": attn_out_want,
    "mlp": mlp_want,
    "moe": moe_want,
    "head": head_want,
}

"""The cases of every op: one table serves the tests (against NumPy and against ref) and the
measurements. Every op has one row, whole pages and a page +- 1, unequal lengths, each format."""

from __future__ import annotations

from typing import Any

import op_attention  # noqa: F401  (lists its ops)
import op_linear  # noqa: F401
from op_case import Case

F = frozenset
D128: dict[str, Any] = dict(d_model=128, n_head=4, head_dim=128, n_rotary=64, index_dim=128)
GQA16: dict[str, Any] = dict(n_head=16, n_kv_head=1, n_kv_head_total=1, n_index_head=1)
# One row, a page exactly, a page +- 1, unequal lengths, far positions.
DECODE = ((0, 1), (127, 1), (128, 1), (129, 2), (700, 1), (1500, 8))
MIXED = ((0, 129), (255, 1), (640, 70))

EMBED = [
    Case("embed", "one_row", rows=((0, 1),)),
    Case("embed", "bf16_table", act="bf16", weight="bf16", rows=((0, 7), (40, 3))),
    Case("embed", "media", act="bf16", rows=((3, 9),), flags=F({"media"})),
]
ATTN_IN = [
    Case("attn_in", "one_row", rows=((0, 1),)),
    Case("attn_in", "f32", rows=MIXED),
    Case(
        "attn_in",
        "d128",
        act="bf16",
        fmt="bf16",
        index="bf16",
        weight="bf16",
        rows=DECODE,
        sizes=D128,
    ),
    Case("attn_in", "mxfp8", act="bf16", fmt="bf16", index="bf16", weight="mxfp8", rows=MIXED),
    Case(
        "attn_in",
        "gqa16",
        act="bf16",
        fmt="bf16",
        index="bf16",
        weight="mxfp8",
        rows=DECODE,
        sizes=GQA16,
    ),
    Case("attn_in", "dense_layer", rows=((120, 20),), flags=F({"dense"})),
    Case("attn_in", "kv_only", rows=((120, 20),), flags=F({"dense", "kv_only"})),
    Case(
        "attn_in",
        "kv_out",
        act="bf16",
        fmt="bf16",
        index="bf16",
        rows=((120, 20), (5, 7)),
        flags=F({"dense", "kv_out"}),
    ),
    Case("attn_in", "far", rows=((4095, 1),)),
]
FORMATS = (
    ("f32", "f32", "f32"),
    ("bf16", "bf16", "bf16"),
    ("bf16", "fp8", "fp8"),
    ("bf16", "nvfp4", "nvfp4"),
    ("bf16", "bf16", "nvfp4"),
)
ATTN_SPARSE = [
    *(
        Case("attn_sparse", f"decode_{f}_{x}", act=a, fmt=f, index=x, rows=DECODE)
        for a, f, x in FORMATS
    ),
    *(
        Case("attn_sparse", f"f32_on_{f}", fmt=f, index=f, rows=((1000, 66),))
        for f in ("bf16", "fp8", "nvfp4")
    ),
    *(
        Case("attn_sparse", f"mixed_{f}_{x}", act=a, fmt=f, index=x, rows=MIXED)
        for a, f, x in FORMATS
    ),
    Case("attn_sparse", "one_row", rows=((0, 1),)),
    Case("attn_sparse", "chunk", rows=((0, 300),)),
    Case(
        "attn_sparse", "d128", act="bf16", fmt="bf16", index="bf16", rows=((1000, 66),), sizes=D128
    ),
    Case("attn_sparse", "gqa16", rows=DECODE, sizes=GQA16),
    Case("attn_sparse", "init_blocks", rows=((1400, 9),), sizes={"n_init_block": 2}),
    Case("attn_sparse", "init_fills_all", rows=((1400, 3),), sizes={"n_init_block": 9}),
    Case("attn_sparse", "top_1", rows=((200, 3),), sizes={"n_top_block": 1}),
    Case("attn_sparse", "ties", rows=((1900, 20), (3000, 3)), flags=F({"ties"})),
    Case("attn_sparse", "force", rows=((1000, 40), (3, 2)), flags=F({"force"})),
]
ATTN_DENSE = [
    *(Case("attn_dense", f"decode_{f}", act=a, fmt=f, rows=DECODE) for a, f, x in FORMATS[:4]),
    Case("attn_dense", "mixed", rows=MIXED),
    Case("attn_dense", "window", rows=((0, 129), (700, 5)), window=100),
    Case("attn_dense", "window_1", rows=((300, 5),), window=1),
    Case(
        "attn_dense",
        "window_wide",
        act="bf16",
        fmt="bf16",
        rows=((1000, 70),),
        window=256,
        sizes=D128,
    ),
    *(
        Case(
            "attn_dense",
            f"extra_{f}",
            act=a,
            fmt=f,
            rows=((130, 4), (0, 3), (255, 5)),
            window=w,
            flags=F({"extra"}),
        )
        for a, f, w in (
            ("f32", "f32", 0),
            ("bf16", "bf16", 130),
            ("bf16", "nvfp4", 0),
            ("bf16", "fp8", 3),
        )
    ),
]
ATTN_OUT = [
    Case("attn_out", "one_row", rows=((0, 1),)),
    Case("attn_out", "f32", rows=((0, 130),)),
    Case("attn_out", "bf16", act="bf16", weight="bf16", rows=((0, 70),)),
    Case("attn_out", "mxfp8_view", act="bf16", weight="mxfp8", rows=((0, 9),), flags=F({"view"})),
    Case(
        "attn_out", "no_router", act="bf16", weight="mxfp8", rows=((0, 9),), flags=F({"no_router"})
    ),
    Case("attn_out", "ties", rows=((0, 40),), flags=F({"ties"})),
    Case("attn_out", "no_bias", rows=((0, 40),), flags=F({"no_bias"})),
    Case("attn_out", "force", rows=((0, 40),), flags=F({"force"})),
    Case("attn_out", "all_experts", rows=((0, 4),), sizes={"n_expert_used": 8}),
    Case("attn_out", "many_experts", rows=((0, 20),), sizes={"n_expert": 128, "n_expert_used": 4}),
]
MLP = [
    Case("mlp", "one_row", rows=((0, 1),)),
    Case("mlp", "f32", rows=((0, 129),)),
    Case("mlp", "mxfp8", act="bf16", weight="mxfp8", rows=((0, 70),), flags=F({"in_place"})),
    Case("mlp", "nvfp4_view", act="bf16", weight="nvfp4", rows=((0, 3),), flags=F({"view"})),
]
MOE = [
    Case("moe", "one_row", rows=((0, 1),)),
    Case("moe", "f32", rows=((0, 130),)),
    Case("moe", "nvfp4", act="bf16", weight="nvfp4", rows=((0, 70),)),
    Case("moe", "nvfp4_decode", act="bf16", weight="nvfp4", rows=((0, 1), (5, 1), (9, 1))),
    Case("moe", "bf16", act="bf16", weight="bf16", rows=((0, 40),)),
    Case("moe", "pieces", weight="nvfp4", rows=((0, 40),), flags=F({"pieces"})),
    Case("moe", "no_shared", rows=((0, 20),), flags=F({"no_shared"})),
    Case("moe", "crowded", rows=((0, 300),), sizes={"n_expert": 4, "n_expert_used": 4}),
]
HEAD = [
    *(
        Case("head", f"{w}_{a}", act=a, weight=w, rows=((0, 20),))
        for w in ("f32", "bf16", "mxfp8", "nvfp4")
        for a in ("f32", "bf16")
    ),
    *(
        Case("head", f"view_{w}", act="bf16", weight=w, rows=((0, 5),), flags=F({"view"}))
        for w in ("f32", "bf16", "mxfp8", "nvfp4")
    ),
    Case("head", "one_row", rows=((0, 1),)),
    Case("head", "many_rows", rows=((0, 65),), weight="bf16"),
    Case("head", "wide", rows=((0, 3),), weight="bf16", sizes={"d_model": 208, "n_vocab": 1025}),
]
CASES: list[Case] = [*EMBED, *ATTN_IN, *ATTN_SPARSE, *ATTN_DENSE, *ATTN_OUT, *MLP, *MOE, *HEAD]

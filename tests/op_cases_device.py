"""Cases for backends with heads of 128 and bf16 activations, compared with ref: a rank's share of a
large model, every format of weights and caches, 1 to 8 rows a sequence, 64 rows and one more (where
the kernels for many rows begin), contexts in which the choice of blocks matters."""

from __future__ import annotations

from typing import Any

from op_case import Case

F = frozenset
# One KV head of eight query heads, 16 blocks of 128 keys: 2048 keys are read.
RANK: dict[str, Any] = dict(
    d_model=192,
    n_head=8,
    n_kv_head=1,
    n_kv_head_total=1,
    n_index_head=1,
    head_dim=128,
    index_dim=128,
    n_rotary=64,
    n_top_block=16,
)
LONG: dict[str, Any] = dict(RANK, max_model_len=1 << 20, n_rotary=8, max_rows=128)
# Whole pages and a page +- 1, below and above what is read, one to eight rows.
DECODE = ((0, 1), (127, 1), (128, 1), (2046, 3), (2047, 1), (2048, 1), (2500, 2), (3900, 8))
MIXED = ((0, 129), (2176, 67), (2300, 1))
MANY = tuple((1900 + 53 * i, 1) for i in range(36))
CACHES = (("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "nvfp4"), ("bf16", "nvfp4"), ("fp8", "bf16"))
WEIGHTS = ("f32", "bf16", "mxfp8", "nvfp4")


def group(n_head: int, n_kv_head: int) -> dict[str, Any]:
    heads = dict(n_kv_head=n_kv_head, n_kv_head_total=n_kv_head, n_index_head=n_kv_head)
    return dict(RANK, n_head=n_head, **heads)


def case(op: str, name: str, **fields: Any) -> Case:
    return Case(op, name, act="bf16", **({"sizes": RANK, "fmt": "bf16", "index": "bf16"} | fields))


ATTN_IN = [
    *(case("attn_in", f"{w}_{n}", weight=w, rows=((90, n),)) for w in WEIGHTS for n in (1, 64, 65)),
    *(
        case("attn_in", f"{k}_{i}", fmt=k, index=i, weight="mxfp8", rows=((100, 30), (7, 1)))
        for k, i in CACHES
    ),
    case("attn_in", "two_groups", weight="mxfp8", rows=DECODE, sizes=group(6, 2)),
    # rows of eight slices, which the kernel of the heads adds from 9 rows on
    *(
        case(
            "attn_in",
            f"long_rows_{w}_{n}",
            weight=w,
            rows=((100, n),),
            sizes=dict(RANK, d_model=3072),
        )
        for w in ("mxfp8", "bf16")
        for n in (8, 16, 40)
    ),
]
ATTN_SPARSE = [
    *(case("attn_sparse", f"decode_{k}_{i}", fmt=k, index=i, rows=DECODE) for k, i in CACHES),
    *(case("attn_sparse", f"mixed_{k}_{i}", fmt=k, index=i, rows=MIXED) for k, i in CACHES),
    *(
        case("attn_sparse", f"group_{h}_{g}_{n}", rows=((2500, n), (300, 1)), sizes=group(h, g))
        for h, g in ((1, 1), (3, 1), (10, 2), (16, 1))
        for n in (2, 20)
    ),
    *(
        case("attn_sparse", f"{f}_{n}", rows=((3100, n), (2600, 1)), flags=F({f}))
        for f in ("ties", "zeros", "force")
        for n in (3, 12)
    ),
    *(
        case("attn_sparse", f"top_{k}_{n}", rows=((3500, n),), sizes=dict(RANK, n_top_block=k))
        for k in (1, 2, 7, 24)
        for n in (2, 10)
    ),
    # a row a sequence: more than four pages for each SM, so that a block takes two
    *(
        case("attn_sparse", f"many_{k}", fmt=k, index=k, rows=MANY)
        for k in ("bf16", "fp8", "nvfp4")
    ),
    case("attn_sparse", "init", rows=((3500, 3),), sizes=dict(RANK, n_init_block=3)),
    case("attn_sparse", "top_64", rows=((9000, 2), (8190, 4)), sizes=dict(LONG, n_top_block=64)),
    case("attn_sparse", "far", rows=((200_000, 2), (5, 1)), sizes=LONG, flags=F({"alias"})),
]
ATTN_DENSE = [
    *(case("attn_dense", f"decode_{f}", fmt=f, rows=DECODE) for f in ("bf16", "fp8", "nvfp4")),
    *(case("attn_dense", f"mixed_{f}", fmt=f, rows=MIXED) for f in ("bf16", "fp8", "nvfp4")),
    *(
        case("attn_dense", f"window_{w}_{n}", rows=((1000, n), (130, 1)), window=w)
        for w in (1, 127, 128, 129, 700)
        for n in (2, 11)
    ),
    *(
        case("attn_dense", f"group_{h}_{g}_{n}", rows=((700, n), (300, 1)), sizes=group(h, g))
        for h, g in ((1, 1), (3, 1), (10, 2), (16, 1))
        for n in (2, 20)
    ),
]
ATTN_OUT = [
    *(case("attn_out", f"{w}_{n}", weight=w, rows=((0, n),)) for w in WEIGHTS for n in (1, 64, 65)),
    *(
        case(
            "attn_out",
            f"experts_{e}_{k}",
            weight="mxfp8",
            rows=((0, 33),),
            sizes=dict(RANK, n_expert=e, n_expert_used=k),
        )
        for e, k in ((4, 1), (4, 4), (31, 8), (128, 4), (256, 8))
    ),
    case("attn_out", "router_ties", rows=((0, 50),), flags=F({"ties"})),
    # so many rows that they fill the device without slices of the router's columns, and fewer
    *(
        case(
            "attn_out",
            f"router_many_{e}_{k}_{n}",
            weight="mxfp8",
            rows=((0, n),),
            sizes=dict(group(1, 1), d_model=d, n_expert=e, n_expert_used=k, max_rows=5000),
        )
        for e, k, d, n in ((128, 4, 784, 70), (31, 8, 784, 200), (256, 8, 416, 100))
    ),
    case(
        "attn_out",
        "router_many_4400",
        weight="mxfp8",
        rows=((0, 4400),),
        sizes=dict(group(1, 1), d_model=64, n_expert=128, n_expert_used=4, max_rows=5000),
    ),
    # so few columns that the slices of the product are left to the end of the branch
    *(
        case("attn_out", f"narrow_{w}_{n}", weight=w, rows=((0, n),), sizes=dict(RANK, d_model=64))
        for w in ("mxfp8", "bf16")
        for n in (9, 40)
    ),
]
MLP = [
    *(
        case("mlp", f"{w}_{n}", weight=w, rows=((0, n),))
        for w in WEIGHTS
        for n in (1, 8, 9, 64, 65, 200)
    ),
    # rows of eight slices, which are warps, blocks or follow each other in a block
    *(
        case(
            "mlp",
            f"long_rows_{w}_{n}",
            weight=w,
            rows=((0, n),),
            sizes=dict(RANK, d_model=3072, d_dense=160),
        )
        for w in ("mxfp8", "bf16")
        for n in (2, 16, 40)
    ),
    case("mlp", "view_1", weight="mxfp8", rows=((0, 1),), flags=F({"view", "in_place"})),
    case("mlp", "odd_sizes", weight="mxfp8", rows=((0, 70),), sizes=dict(RANK, d_dense=96)),
    *(
        case(
            "mlp",
            f"narrow_{w}_{n}",
            weight=w,
            rows=((0, n),),
            sizes=dict(RANK, d_model=64, d_dense=1024),
        )
        for w in ("mxfp8", "bf16")
        for n in (9, 40)
    ),
]
MOE = [
    *(case("moe", f"{w}_{n}", weight=w, rows=((0, n),)) for w in WEIGHTS for n in (1, 8, 64, 65)),
    *(
        case(
            "moe",
            f"experts_{e}_{k}_{n}",
            weight="nvfp4",
            rows=((0, n),),
            sizes=dict(RANK, n_expert=e, n_expert_used=k),
        )
        for e, k in ((4, 1), (128, 4), (32, 8))
        for n in (3, 64, 150)
    ),
    *(case("moe", f"{w}_{n}", weight=w, rows=((0, n),)) for w in WEIGHTS[1:] for n in (9, 33)),
    *(
        case(
            "moe",
            f"experts_4_1_{n}",
            weight="nvfp4",
            rows=((0, n),),
            sizes=dict(RANK, n_expert=4, n_expert_used=1),
        )
        for n in (5, 17, 36)
    ),
    case(
        "moe",
        "odd_sizes",
        weight="nvfp4",
        rows=((0, 21),),
        sizes=dict(RANK, d_model=224, d_expert=48, d_shared=96, n_expert=5, n_expert_used=3),
    ),
    case(
        "moe",
        "many_experts",
        weight="nvfp4",
        rows=((0, 40),),
        sizes=dict(RANK, d_expert=16, n_expert=700, n_expert_used=8),
    ),
    # rows so long that eight warps share each of them, as in the real model
    *(
        case(
            "moe",
            f"long_rows_{n}",
            weight="nvfp4",
            rows=((0, n),),
            sizes=dict(RANK, d_model=3072, n_expert=4, n_expert_used=2),
        )
        for n in (1, 9, 33)
    ),
    # so long that the rows of two experts do not always fit beside each other
    case(
        "moe",
        "longest_rows",
        weight="nvfp4",
        rows=((0, 20),),
        sizes=dict(RANK, d_model=6144, d_expert=32, d_shared=32, n_expert=6, n_expert_used=2),
    ),
    *(
        case("moe", f"one_choice_{n}", weight="nvfp4", rows=((0, n),), flags=F({"one_choice"}))
        for n in (1, 9, 64, 300)
    ),
    *(
        case("moe", f"{flag}_{n}", weight="nvfp4", rows=((0, n),), flags=F({flag}))
        for flag in ("pieces", "no_shared")
        for n in (5, 33, 90)
    ),
]
HEAD = [
    *(
        case("head", f"{w}_{n}", weight=w, rows=((0, n),), sizes=dict(RANK, n_vocab=1025))
        for w in WEIGHTS
        for n in (1, 8, 64)
    ),
    # few and many row tiles, slices short and long: each way in which a product of 9 to 64 rows
    # may be cut
    *(
        case(
            "head",
            f"cut_{w}_{n_out}_{d}_{n}",
            weight=w,
            rows=((0, n),),
            sizes=dict(RANK, d_model=d, n_vocab=n_out),
        )
        for w in ("mxfp8", "bf16")
        for n_out, d in ((48, 1536), (130, 4096), (400, 2048), (784, 384))
        for n in (13, 64)
    ),
]
DEVICE_CASES = [*ATTN_IN, *ATTN_SPARSE, *ATTN_DENSE, *ATTN_OUT, *MLP, *MOE, *HEAD]

# A million positions: scores of 8192 blocks for a row. Minutes on an emulated device.
MILLION = [
    case(
        "attn_sparse",
        f"million_{k}_{i}_{n}",
        fmt=k,
        index=i,
        rows=(((1 << 20) - n, n), (5000, 1)),
        sizes=LONG,
        flags=F({"alias"}),
    )
    for k, i, n in (
        *(("fp8", i, n) for i in ("bf16", "fp8", "nvfp4") for n in (1, 40)),
        ("bf16", "bf16", 1),
        ("nvfp4", "nvfp4", 40),
    )
]

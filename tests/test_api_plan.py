"""LLM.plan: equal to what an engine takes, right about what fits, and of use when it does not."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_models import GOLDEN, IDS_MODEL

from minimax_m31 import LLM, MemoryPlan, _core
from minimax_m31.errors import ConfigError
from minimax_m31.model_config import read_model_config
from minimax_m31.opening import NANO
from minimax_m31.plan import MILLION
from minimax_m31.plan_devices import device_of, known_devices, parse_size
from minimax_m31.plan_release import release_config

RELEASE = "M3.1-Flash"
MACHINES = ["8x H100", "8x H200", "4x H200", "2x H200", "4x B200", "4x B300"]
PAGE = 128


def held_by_what(plan: MemoryPlan, where: str, group: str) -> dict[str, int]:
    return {x.what: x.n_bytes for x in plan.lines if x.where == where and x.group == group}


# ---------------------------------------------------------------- against the engine

ENGINES: list[tuple[Any, dict[str, Any]]] = [
    (NANO, {}),
    (NANO, {"kv_cache_dtype": "fp8", "indexer_kv_dtype": "nvfp4", "max_num_seqs": 3}),
    (NANO, {"backend": "ref", "max_model_len": 777}),
    (NANO, {"kv_cache_memory_bytes": 50_000_000, "max_logprobs": 500}),
    (GOLDEN / "m31_d128_nvfp4", {"dtype": "float32"}),
    (GOLDEN / "m31_d128_nvfp4", {"max_num_batched_tokens": 1024, "threads": 2}),
    (IDS_MODEL, {"dtype": "float32", "max_num_seqs": 70}),
    (NANO, {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 3}}),
    (NANO, {"load_format": "dummy", "hf_overrides": {"num_local_experts": 40}}),
    (NANO, {"shard": (1, 2), "load_format": "dummy"}),
]


@pytest.mark.parametrize(("model", "changes"), ENGINES)
def test_plan_is_what_an_engine_takes(model: Path, changes: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {
        "backend": "cpu",
        "max_model_len": 2048,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "threads": 1,
        **changes,
    }
    plan = LLM.plan(model, **arguments)
    with LLM(model, skip_tokenizer_init=True, **arguments) as llm:
        report, info = llm.memory_report(), llm._info
    for kind in ("host", "mapped"):
        assert plan.total(kind) == pytest.approx(report.total(kind), rel=0.01), kind
    engine = {what: size for what, _, size in report.lines}
    work = held_by_what(plan, "host", "work") | held_by_what(plan, "host", "caches")
    for what, size in work.items():
        assert size == engine.get(what, 0), what  # to the byte
    assert (plan.n_page, plan.page_bytes) == (info["n_page"], info["page_bytes"])
    assert plan.max_model_len == llm.model_config.max_model_len
    assert plan.total("device") == 0 and plan.fits


def test_plan_of_weights_here_counts_the_files() -> None:
    plan = LLM.plan("nano", backend="cpu")
    files = sum(path.stat().st_size for path in NANO.glob("*.safetensors"))
    matrices = plan.total("mapped")
    assert 0.8 * files < matrices < files  # headers and what is kept as f32 are not in it


# ---------------------------------------------------------------- the released model


def params(world: int) -> dict[str, float]:
    """Weights of a rank by class, from the shapes of the release: codes and block scales."""
    c = read_model_config(release_config()).core
    d, layers, moe = c["d_model"], c["n_layer"], sum(c["layer_is_moe"])
    nvfp4, mxfp8 = 9 / 16, 33 / 32
    heads, kv = c["n_head"] // world, max(1, c["n_kv_head"] // world)
    attention = (2 * heads + 2 * kv) * c["head_dim"] * d * layers * mxfp8
    return {
        "routed experts": 3 * d * c["d_expert"] / world * c["n_expert"] * moe * nvfp4,
        "shared experts": 3 * d * c["d_shared"] / world * moe * mxfp8,
        "attention projections": attention,
        "index projections": (kv + 1) * c["index_dim"] * d * layers * mxfp8,
        "dense MLP": 3 * d * c["d_dense"] / world * (layers - moe) * mxfp8,
        "embedding": 2 * c["n_vocab"] * d,
        "lm_head": 2 * c["n_vocab"] * d / world,
        "norms and routers (f32)": 4 * d * (c["n_expert"] * moe + 2 * layers + 1),
    }


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_plan_of_the_release_counts_its_parameters(world: int) -> None:
    plan = LLM.plan(RELEASE, gpu="B300", n_gpu=world)
    weights = held_by_what(plan, "device", "weights")
    for what, expected in params(world).items():
        assert weights[what] == pytest.approx(expected, rel=0.002), what
    kv_heads = max(1, 4 // world)  # replicated on 8 ranks
    row = {"bf16": 256, "fp8": 128, "nvfp4": 64 + 8}
    for name, size in row.items():
        assert plan.context_bytes["kv"][name] == MILLION * 60 * 2 * kv_heads * size
        assert plan.context_bytes["index"][name] == MILLION * 60 * size
    assert plan.page_bytes == PAGE * 60 * 128 * (2 * kv_heads + 1)  # fp8


@pytest.mark.parametrize("machine", MACHINES)
def test_plan_of_known_machines_adds_up(machine: str) -> None:
    plan = LLM.plan(RELEASE, gpu=machine)
    assert plan.fits and plan.problem == ""
    assert plan.tensor_parallel_size == plan.n_gpu == int(machine[0])
    device = plan.total("device")
    assert device <= plan.allowed < device + plan.page_bytes  # not a page more would go in
    assert plan.allowed <= 0.9 * plan.device.memory_total
    caches = held_by_what(plan, "device", "caches")
    pages = caches["KV pages"] + caches["index key pages"]
    assert pages == (plan.n_page + 1) * plan.page_bytes
    for n in (1, 8, 64):
        length = plan.largest_context(n)
        assert plan.largest_batch(length) >= n
        if length < plan.max_model_len:
            assert plan.largest_batch(length + PAGE) < n
    assert plan.kv_capacity_tokens == plan.n_page * PAGE


def test_plan_knows_what_the_release_needs() -> None:
    capacity = {m: LLM.plan(RELEASE, gpu=m).kv_capacity_tokens for m in MACHINES}
    assert capacity["8x H200"] > 4_000_000 and capacity["4x H200"] > 2_500_000
    assert 100_000 < capacity["2x H200"] < 400_000  # all layers, little room
    assert capacity["8x H100"] > 1_500_000
    assert not LLM.plan(RELEASE, gpu="H200").fits
    smaller = LLM.plan(RELEASE, gpu="8x H200", kv_cache_dtype="nvfp4", indexer_kv_dtype="nvfp4")
    assert smaller.kv_capacity_tokens > 1.7 * capacity["8x H200"]


def test_plan_of_more_gpus_than_ranks_is_replicas() -> None:
    plan = LLM.plan(RELEASE, gpu="8x H200", tensor_parallel_size=4)
    assert (plan.n_gpu, plan.tensor_parallel_size, plan.replicas) == (8, 4, 2)
    assert any("8 GPUs hold 2 engines" in note for note in plan.notes)
    assert plan.kv_capacity_tokens == LLM.plan(RELEASE, gpu="4x H200").kv_capacity_tokens


# ---------------------------------------------------------------- when it does not fit


@pytest.mark.parametrize(
    "arguments",
    [
        {"gpu": "H200"},
        {"gpu": "2x H200", "max_model_len": 1 << 18},
        {"gpu": "2x H100"},
        {"gpu": "130GB", "n_gpu": 2},
        {"gpu": "RTX PRO 6000", "host_memory": "512GB"},
        {"gpu": "24GB", "host_memory": "512GB"},
    ],
)
def test_plan_proposes_only_what_fits(arguments: dict[str, Any]) -> None:
    plan = LLM.plan(RELEASE, **arguments)
    assert plan.problem and plan.changes
    wanted = arguments.get("max_model_len", 0)
    for change in plan.changes:
        changed = {**arguments, **change.arguments}
        n = change.arguments.get("tensor_parallel_size", 0)
        if n > plan.n_gpu:
            kind = arguments["gpu"].split("x ")[-1]
            changed |= {"gpu": kind, "n_gpu": n}
        tried = LLM.plan(RELEASE, **changed)
        assert tried.fits, change
        assert tried.kv_capacity_tokens == change.capacity
        assert change.capacity >= change.arguments.get("max_model_len", wanted)
        assert "fits" in change.text or "holds" in change.text


def test_plan_names_gpus_that_are_large_enough() -> None:
    plan = LLM.plan(RELEASE, gpu="8GB", host_memory="16GB")
    (note,) = (n for n in plan.notes if n.startswith("GPUs that hold it"))
    sizes = {int(n): int(gb) for n, gb in re.findall(r"(\d) x (\d+) GB", note)}
    assert sorted(sizes) == [1, 2, 4, 8]
    for n, gb in sizes.items():
        assert LLM.plan(RELEASE, gpu=f"{gb + 1}GB", n_gpu=n).kv_capacity_tokens >= 8192
        assert LLM.plan(RELEASE, gpu=f"{gb - 1}GB", n_gpu=n).kv_capacity_tokens < 8192


def test_plan_of_one_card_and_host_memory() -> None:
    plan = LLM.plan(RELEASE, gpu="48GB", host_memory="512GB", cpu_offload_gb=222)
    assert plan.fits
    lines = held_by_what(plan, "host", "weights")
    assert lines["experts in host memory"] == 222 * 10**9
    whole = LLM.plan(RELEASE, gpu="48GB")
    experts = held_by_what(whole, "device", "weights")["routed experts"]
    left = held_by_what(plan, "device", "weights")["routed experts"]
    assert experts - left == 222 * 10**9
    assert plan.total("device") <= plan.allowed
    small = LLM.plan(RELEASE, gpu="48GB", host_memory="64GB", cpu_offload_gb=222)
    assert not small.fits and "host memory" in small.problem


def test_plan_of_a_cpu_server() -> None:
    plan = LLM.plan(RELEASE, gpu="cpu", host_memory="768GB", max_model_len=131072)
    assert plan.fits and plan.total("device") == 0
    assert plan.total("mapped") == pytest.approx(sum(params(1).values()), rel=0.01)
    assert plan.largest_context() == 131072
    short = LLM.plan(RELEASE, gpu="cpu", host_memory="64GB", max_model_len=8192, max_num_seqs=4)
    assert any("re-reads" in note for note in short.notes)
    none = LLM.plan(RELEASE, gpu="cpu", host_memory="8GB", kv_cache_memory_bytes=32 << 30)
    assert not none.fits and "kv_cache_memory_bytes" in none.problem


def test_plan_says_what_this_version_cannot_run() -> None:
    plan = LLM.plan(RELEASE, gpu="8x H200")
    try:
        with LLM("nano", tensor_parallel_size=2):
            refused = False
    except ConfigError as error:
        refused = "not part of this version" in str(error)
    assert refused == any("one device only" in note for note in plan.notes)


# ---------------------------------------------------------------- what it takes, what it shows


def test_plan_takes_configs_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(release_config()))
    plans = [LLM.plan(m, gpu="8x H200") for m in (release_config(), path, tmp_path, RELEASE)]
    assert len({json.dumps([x.n_bytes for x in plan.lines]) for plan in plans}) == 1
    assert any("no weights in" in note for note in plans[2].notes)
    bench = Path(__file__).parent / "bench" / "m31_flash.json"
    same = LLM.plan(bench, gpu="8x H200")
    assert [x.n_bytes for x in same.lines] == [x.n_bytes for x in plans[0].lines]
    few = LLM.plan(RELEASE, gpu="H200", hf_overrides={"num_hidden_layers": 8})
    assert few.fits


def test_plan_formats_follow_the_config() -> None:
    """Experts of NVFP4 (M3.1), MXFP8 (M3-MXFP8), BF16 (M3); a dummy engine holds the same."""
    experts = {}
    for name, said in (
        ("nvfp4", release_config()["quantization_config"]),
        ("mxfp8", {"quant_method": "mxfp8", "weight_block_size": [1, 32]}),
        ("bf16", None),
    ):
        config = {**release_config(), "quantization_config": said}
        plan = LLM.plan(config, gpu="8x B300")
        assert plan.formats.startswith(name)
        experts[name] = held_by_what(plan, "device", "weights")["routed experts"]
    assert experts["mxfp8"] / experts["nvfp4"] == pytest.approx((33 / 32) / (9 / 16), rel=1e-4)
    assert experts["bf16"] / experts["nvfp4"] == pytest.approx(2 / (9 / 16), rel=1e-4)
    raw = json.loads((NANO / "config.json").read_text())
    size = {"load_format": "dummy", "max_model_len": 256, "max_num_seqs": 2, "backend": "cpu",
            "max_num_batched_tokens": 128}  # fmt: skip
    quantized = {key: None for key in raw["quantization_config"]}
    quantized |= {"quant_method": "mxfp8"}
    plan = LLM.plan(NANO, hf_overrides={"quantization_config": quantized}, **size)
    with LLM(NANO, hf_overrides={"quantization_config": quantized}, skip_tokenizer_init=True,
             **size) as llm:  # fmt: skip
        assert plan.total("host") == pytest.approx(llm.memory_report().total("host"), rel=0.001)
        assert len(llm.generate([[1, 2, 3]], use_tqdm=False)[0].outputs[0].token_ids) > 0
    assert plan.total("host") > LLM.plan(NANO, **size).total("host")


def test_plan_formats_follow_the_device() -> None:
    formats = {g: LLM.plan("nano", gpu=g).arguments["kv_format"] for g in ("A100", "H100", "B200")}
    assert formats == {"A100": "bf16", "H100": "fp8", "B200": "fp8"}


def test_plan_says_what_newer_devices_get() -> None:
    """B200: fp8 by default like an H200, and how many tokens the smaller caches hold."""
    plan = LLM.plan(RELEASE, gpu="4x B200")
    (note,) = (n for n in plan.notes if n.startswith("caches: 'auto' is fp8"))
    smaller = LLM.plan(RELEASE, gpu="4x B200", kv_cache_dtype="nvfp4", indexer_kv_dtype="nvfp4")
    gain = float(re.findall(r"holds ([\d.]+) times", note)[0])
    assert smaller.kv_capacity_tokens / plan.kv_capacity_tokens == pytest.approx(gain, rel=0.01)
    assert any("sm_100: runs the kernels for sm_80" in n for n in plan.notes)
    for other in (smaller, LLM.plan(RELEASE, gpu="4x H200")):
        assert not any("'auto'" in n for n in other.notes)
    half = LLM.plan(RELEASE, gpu="4x B200", kv_cache_dtype="nvfp4")
    (note,) = (n for n in half.notes if "'auto'" in n)
    assert "indexer_kv_dtype='nvfp4'" in note and ", kv_cache_dtype" not in note


def test_plan_shows_itself() -> None:
    plan = LLM.plan(RELEASE, gpu="8x H200")
    text, html = repr(plan), plan._repr_html_()
    for part in ("routed experts", "KV pages", "left to the driver", "KV capacity", "1M tokens"):
        assert part in text and part in html
    assert f"{plan.total('device'):,}" in text
    numbers = json.loads(json.dumps(plan.to_dict()))
    assert numbers["total"]["device"] == sum(
        line["n_bytes"] for line in numbers["lines"] if line["where"] == "device"
    )
    assert numbers["largest_context"]["1"] == plan.largest_context(1)
    bad = LLM.plan(RELEASE, gpu="24GB")
    assert "DOES NOT FIT" in repr(bad) and bad.problem in repr(bad)
    assert "&lt;" not in html and "<script" not in LLM.plan({**release_config()}, gpu="B300").model


def test_plan_draws_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LLM.plan(RELEASE, gpu="8x H200")
    if importlib.util.find_spec("matplotlib") is not None:
        figure = plan.plot()
        titles = [axis.get_title(loc="left") for axis in figure.axes]
        assert any("device" in t for t in titles) and any("1M" in t for t in titles)
        longest = max(bar.get_width() for axis in figure.axes for bar in axis.patches)
        assert longest == max(line.n_bytes for line in plan.lines)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    drawn = str(plan.plot())
    pages = held_by_what(plan, "device", "caches")["KV pages"]
    assert "KV pages" in drawn and f"{pages / 1e9:.3f} GB" in drawn and "kv nvfp4" in drawn


def test_plan_imports_no_plotting_and_opens_nothing() -> None:
    code = (
        "import sys; from minimax_m31 import LLM, live_engines; "
        "repr(LLM.plan('M3.1-Flash', gpu='8x H200')); "
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules; "
        "assert not live_engines()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"gpu": "H2000"}, "gpu='H2000'.*H200"),
    ({"gpu": ""}, "gpu=''"),
    ({"gpu": "80 XB"}, "gpu='80 XB'"),
    ({"gpu": 80}, "gpu=80: 80 bytes.*80GB"),
    ({"gpu": -5}, "gpu=-5"),
    ({"gpu": True}, "gpu=True"),
    ({"gpu": float("nan")}, "gpu=nan"),
    ({"gpu": "H200", "n_gpu": 0}, "n_gpu=0"),
    ({"gpu": "H200", "n_gpu": 2.5}, "n_gpu=2.5"),
    ({"gpu": "8x H200", "n_gpu": 4}, "n_gpu=4"),
    ({"gpu": "8x H200", "tensor_parallel_size": 3}, "tensor_parallel_size=3"),
    ({"gpu": "2x H200", "tensor_parallel_size": 8}, "needs 8 GPUs, n_gpu is 2.*size=2"),
    ({"gpu": "cpu", "n_gpu": 2}, "n_gpu=2"),
    ({"gpu": "H200", "backend": "cpu"}, "gpu='H200' with backend='cpu'"),
    ({"gpu": "cpu", "cpu_offload_gb": 3}, "cpu_offload_gb=3"),
    ({"gpu": "H200", "cpu_offload_gb": -1}, "cpu_offload_gb=-1"),
    ({"gpu": "H200", "host_memory": "much"}, "host_memory='much'"),
    ({"gpu": "H200", "max_model_len": 1 << 21}, "max_model_len=2097152.*1048576"),
    ({"gpu": "H200", "kv_cache_dtype": "fp4"}, "kv_cache_dtype='fp4'"),
    ({"gpu": "H200", "max_num_batched_tokens": 100}, "max_num_batched_tokens=100"),
    ({"gpu": "H200", "dtype": "float32"}, "float32"),
    ({"gpu": "H200", "hf_overrides": {"head_dim": 64}}, "head_dim"),
    ({"gpu": "H200", "hf_overrides": {"vocab_size": 600000}}, "vocabulary of 600000.*524288"),
    ({"gpu": "H200", "hf_overrides": {"num_experts_per_tok": 9}}, "9 of 128 experts"),
    ({"gpu": "H200", "hf_overrides": {"no_such": 1}}, "no_such"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_plan_refuses_with_value_and_remedy(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM.plan(RELEASE, **arguments)


def test_plan_refuses_other_models_and_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        LLM.plan("no/such/folder/here", gpu="H200")
    with pytest.raises(ConfigError, match="model=3"):
        LLM.plan(3, gpu="H200")
    with pytest.raises(ConfigError, match="num_hidden_layers is missing"):
        LLM.plan({"vocab_size": 10}, gpu="H200")
    with pytest.raises(TypeError, match="max_num_seqs"):
        LLM.plan(RELEASE, gpu="H200", max_seqs=3)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json"):
        LLM.plan(tmp_path, gpu="H200")


@pytest.mark.parametrize("name", known_devices())
def test_plan_devices_are_found_however_they_are_written(name: str) -> None:
    spellings: Iterator[str] = iter((name, name.lower(), name.replace(" ", "-"), f"NVIDIA {name}"))
    assert {device_of(text) for text in spellings} == {device_of(name)}
    assert 16 << 30 < device_of(name).memory_free < device_of(name).memory_total


def test_plan_questions_have_bounds() -> None:
    plan = LLM.plan(RELEASE, gpu="8x H200", max_model_len=65536, max_num_seqs=32)
    assert plan.largest_context(33) == plan.largest_batch(65537) == 0  # beyond the settings
    assert plan.largest_context(32) == 65536 and plan.largest_batch(1) == 32
    with pytest.raises(ConfigError, match="n_seq=0"):
        plan.largest_context(0)
    with pytest.raises(ConfigError, match="length=0"):
        plan.largest_batch(0)


def test_plan_sizes_are_read_as_they_are_written() -> None:
    sizes = {"80GB": 80 * 10**9, "1.5 GiB": 3 << 29, "17": 17, 5e9: 5 * 10**9, "2tb": 2 * 10**12}
    for text, size in sizes.items():
        assert parse_size(text, "gpu") == size


def test_plan_of_the_core_refuses_bad_options() -> None:
    config = read_model_config(release_config()).core
    good = {"backend": "cuda", "load": "dummy", "max_model_len": 4096}
    with pytest.raises(ConfigError, match="tensor_parallel_size is 0"):
        _core.plan(config, {**good, "n_rank": 0}, memory_total=1 << 40, memory_free=1 << 40)
    with pytest.raises(ConfigError, match="cannot be cut into 7"):
        _core.plan(config, {**good, "n_rank": 7}, memory_total=1 << 40, memory_free=1 << 40)
    with pytest.raises(TypeError, match="integer"):
        _core.plan(config, good, memory_total="much")
    with pytest.raises(TypeError):
        _core.plan(config)

"""Values of engine arguments and of SamplingParams, of every kind: what is meant is understood
(NumPy's integers are integers, arrays of them lists), the rest is refused by name, with what is
possible; no value ends in an error of Python itself.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from api_models import BACKEND, GOLDEN, IDS_MODEL
from test_cuda_golden import is_emulated

from minimax_m31 import LLM, ConfigError, EngineArgs, InvalidRequestError, SamplingParams
from minimax_m31.core_params import EngineFacts, make_plan

MODEL = GOLDEN / "m31_d128"  # of the sizes that a device's kernels take
HUGE = 10**5000  # Python prints no integer of so many digits

EMULATED = is_emulated()


def on_device(test: Callable[[], None]) -> Callable[[], None]:
    return test if EMULATED else pytest.mark.gpu(test)


class Three(enum.IntEnum):
    THREE = 3


class Odd:
    """Equal to nothing: who compares without looking at types first fails."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")


# (name, a value that is fine, the least, the most); None: no such limit
INTEGERS = [
    ("threads", 1, 1, 4096), ("tensor_parallel_size", 1, 1, 1),
    ("data_parallel_size", 1, 1, 1), ("pipeline_parallel_size", 1, 1, 1),
    ("expert_parallel_size", 1, 1, 1), ("max_model_len", 100, 1, 2**31 - 1),
    ("max_num_seqs", 100, 1, 65536), ("max_num_batched_tokens", 128, 128, 2**24),
    ("default_max_tokens", 100, 1, 2**31 - 1), ("block_size", 128, 128, 128),
    ("kv_cache_memory_bytes", 100, 1, 2**62), ("seed", 100, -(2**63), 2**64 - 1),
    ("max_logprobs", 100, -1, 2**31 - 1), ("tokenizer_threads", 100, 1, 4096),
    ("log_level", 10, 0, 2**31 - 1),
]  # fmt: skip
LISTS = ("shard", "device_ids", "cuda_graph_batch_sizes")
NO_INTEGERS = [
    True, False, np.True_, "3", b"3", 3.0, np.float32(3), np.float64(3), math.nan, math.inf, 3j,
    [3], (3,), {3}, {}, np.array([3, 4]), np.array([[3]]), np.array(["x", "y"]), Odd(),
]  # fmt: skip
ANYTHING = [
    None, 0, 1, -1, 2**31, 2**64, -(2**70), HUGE, np.int64(3), np.uint8(3), np.str_("auto"), 0.5,
    "", "auto", "x" * 300, [], [1], ["a"], {"a": 1}, range(3), np.array(5), np.array([]),
    np.zeros((2, 2)), object(), iter([1]), *NO_INTEGERS,
]  # fmt: skip
FACTS = EngineFacts(
    n_vocab=256, max_model_len=1000, max_num_seqs=4, max_logprobs=20, default_max_tokens=100,
    logprobs_mode="raw_logprobs", has_priority=False, eos_token_ids=(1,),
)  # fmt: skip


def refusal(**arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        EngineArgs(**arguments).check()
    return str(caught.value)


def names(kind: type, types: str) -> list[str]:
    return [f.name for f in dataclasses.fields(kind) if re.search(types, str(f.type))]


# -- engine arguments ------------------------------------------------------------------------------


def test_every_integer_argument_is_in_the_table() -> None:
    listed = {name for name, *_ in INTEGERS} | {"device_ids", "shard", "limit_mm_per_prompt"}
    assert set(names(EngineArgs, r"\bint\b")) == listed


@pytest.mark.parametrize(("name", "good", "least", "most"), INTEGERS)
def test_integers_of_every_library(name: str, good: int, least: int, most: int) -> None:
    kinds = [np.int64, np.uint64, np.int16, lambda n: np.array(n)]
    for value in (good, *(kind(good) for kind in kinds)):
        args = EngineArgs(**{name: value})
        assert type(getattr(args, name)) is int and getattr(args, name) == good
        args.check()
    for value in (least, most):
        EngineArgs(**{name: value}).check()
    args = EngineArgs()
    setattr(args, name, np.int64(good))  # also when it is set later
    assert type(getattr(args, name)) is int
    assert type(getattr(dataclasses.replace(args, **{name: Three.THREE}), name)) is int


@pytest.mark.parametrize(("name", "good", "least", "most"), INTEGERS)
def test_what_is_no_integer(name: str, good: int, least: int, most: int) -> None:
    for value in NO_INTEGERS:
        assert refusal(**{name: value}).startswith(f"{name}=")
    for value in (least - 1, most + 1, HUGE, -HUGE):
        if (name, value) == ("max_model_len", -1):
            continue
        text = refusal(**{name: value})
        shown = str(value) if abs(value) < HUGE else r"-?<\d+ bits>|<\d+ bits>"
        assert re.match(rf"{name}=({shown}): ", text), text


def test_what_is_possible_is_named() -> None:
    for value in (0, 2**63, -1):
        assert str(2**62) in refusal(kv_cache_memory_bytes=value)
    assert f"1 to {2**31 - 1} tokens" in refusal(max_model_len=0)
    assert f"0 to {2**31 - 1}, or -1" in refusal(max_logprobs=2**31)
    assert "expected one of 1, 2, 4, 8" in refusal(tensor_parallel_size="1")
    text = refusal(max_num_batched_tokens="256", enable_chunked_prefill=False, max_model_len=1024)
    assert text.startswith("max_num_batched_tokens='256': an integer is needed, not str")


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(EngineArgs)])
def test_no_value_is_an_error_of_python(name: str) -> None:
    n_refused = 0
    for value in ANYTHING:
        args = EngineArgs(**{name: value})
        try:
            args.check()
        except ConfigError as error:
            assert name.split("_")[0] in str(error), str(error)
            n_refused += 1
        else:
            assert repr(args).startswith("EngineArgs(model=")
    assert n_refused > 0 or name in ("mm_processor_kwargs",)


def test_a_value_of_an_odd_kind_beside_others() -> None:
    """The rules that look at two arguments."""
    for value in (np.array(["a", "b"]), np.array([1, 2]), Odd(), "256", None, HUGE):
        for pair in (
            {"enable_chunked_prefill": value, "max_model_len": 1024},
            {"enable_chunked_prefill": False, "max_model_len": value},
            {"device_ids": [0], "backend": value},
            {"device_ids": [0], "tensor_parallel_size": value},
            {"dtype": value, "kv_cache_dtype": "float32"},
            {"dtype": "float32", "backend": value},
            {"dummy_context": True, "load_format": value},
            {"enable_expert_parallel": value, "expert_parallel_size": value},
        ):
            try:
                EngineArgs(**pair).check()
            except ConfigError as error:
                assert any(name in str(error) for name in pair)


@pytest.mark.parametrize(
    "value", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), [np.int64(1), np.uint8(2)]]
)
def test_lists_of_integers(value: Any) -> None:
    for name in LISTS:
        args = EngineArgs(**{name: value})
        held = getattr(args, name)
        assert list(held) == [1, 2] and {type(item) for item in held} == {int}
    EngineArgs(cuda_graph_batch_sizes=value, shard=value).check()
    EngineArgs(device_ids=np.array([0])).check()


@pytest.mark.parametrize("name", LISTS)
def test_what_is_no_list_of_integers(name: str) -> None:
    for value in (
        [True, 2], (False, 2), [1.0, 2.0], ["1", "2"], np.array([1.0, 2.0]), np.array([True]),
        {1, 2}, {1: 2}, "12", b"12", 5, iter([1, 2]), [[1, 2]], np.ones((1, 2), int), [-1, 2],
        [1, 2**40], [HUGE, 1], np.array(["1"]), [None], Odd(), [Odd()],
    ):  # fmt: skip
        assert refusal(**{name: value}).startswith(f"{name}="), value


def test_floats_of_every_library() -> None:
    for value in (np.float32(0.5), np.float16(0.5), np.longdouble(0.5), np.array(0.5)):
        args = EngineArgs(gpu_memory_utilization=value, step_timeout_s=np.int32(5))
        args.check()
        assert type(args.gpu_memory_utilization) is float and args.gpu_memory_utilization == 0.5
    for wrong in (np.float32(math.nan), np.float32(1.5), True, "0.5", HUGE, np.array([0.5])):
        assert "gpu_memory_utilization=" in refusal(gpu_memory_utilization=wrong)


# -- the engine and its plan -----------------------------------------------------------------------


def opened(**arguments: Any) -> LLM:
    given: dict[str, Any] = {
        "backend": BACKEND, "dtype": "float32", "max_model_len": 256, "max_num_seqs": 2,
        "max_num_batched_tokens": 128, "threads": 1,
    }  # fmt: skip
    return LLM(IDS_MODEL, **{**given, **arguments})


def test_an_engine_opened_with_numpy() -> None:
    with opened(
        max_model_len=np.int64(200), kv_cache_memory_bytes=np.int64(8 << 20),
        max_num_seqs=np.int32(3), threads=np.uint8(1), seed=np.int64(7), max_logprobs=np.int64(5),
        max_num_batched_tokens=np.int64(256), gpu_memory_utilization=np.float32(0.5),
        cuda_graph_batch_sizes=np.array([1, 2]), default_max_tokens=np.int64(4),
        hf_overrides={"image_token_index": np.int64(3), "rms_norm_eps": np.float32(1e-6)},
    ) as llm:  # fmt: skip
        assert (llm._info["max_model_len"], llm._info["max_num_seqs"]) == (200, 3)
        params = SamplingParams(
            max_tokens=np.int64(3), temperature=np.float32(0), ignore_eos=np.True_,
            logprobs=np.int64(2), stop_token_ids=np.array([300 - 256]), seed=np.int64(3),
        )  # fmt: skip
        (out,) = llm.generate([np.array([1, 2, 3])], params, use_tqdm=False)
        assert 1 <= len(out.outputs[0].token_ids) <= 3
        json.dumps(llm.fingerprint())
    limit = json.loads((IDS_MODEL / "config.json").read_text())["text_config"][
        "max_position_embeddings"
    ]
    with pytest.raises(ConfigError, match=f"max_model_len={limit + 1}: the model goes up to"):
        opened(max_model_len=np.int64(limit + 1))


def test_a_plan_with_numpy() -> None:
    numbers = {"max_model_len": 1024, "max_num_seqs": 4, "tensor_parallel_size": 1, "n_gpu": 1}
    plain = LLM.plan(MODEL, gpu="H100", **numbers)
    same = LLM.plan(MODEL, gpu="H100", **{name: np.int64(n) for name, n in numbers.items()})
    assert same.max_model_len == 1024 and same.to_dict() == plain.to_dict()
    for name, value in (
        ("n_gpu", True), ("n_gpu", "1"), ("n_gpu", np.array([1, 2])), ("tensor_parallel_size", "1"),
        ("tensor_parallel_size", 1.0), ("tensor_parallel_size", np.array([1, 2])),
        ("tensor_parallel_size", True), ("cpu_offload_gb", math.nan), ("cpu_offload_gb", math.inf),
        ("cpu_offload_gb", "1"), ("cpu_offload_gb", np.array([1.0, 2.0])),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"^{name}="):
            LLM.plan(MODEL, gpu="H100", **{name: value})


def test_overrides_with_numpy() -> None:
    def total(kind: Any) -> int:
        freq = {"num_hidden_layers": kind(2), "moe_layer_freq": kind([1, 0]), "rope_theta": kind(1)}
        return LLM.plan(MODEL, gpu="H100", load_format="dummy", hf_overrides=freq).total("device")

    assert total(np.array) == total(lambda value: value)
    with pytest.raises(ConfigError, match="num_hidden_layers is True, expected an integer"):
        LLM.plan(MODEL, gpu="H100", hf_overrides={"num_hidden_layers": np.True_})


def test_a_shard_that_cannot_be_cut() -> None:
    with pytest.raises(ConfigError, match=r"^shard=\(0, 3\): a world of 1, 2 works: .* 3 equal"):
        LLM.plan("M3.1-Flash", gpu="H100", shard=(0, 3), hf_overrides={"vocab_size": 200066})
    with pytest.raises(ConfigError, match=r"^shard=\(1, 3\): a world of 1(, \d+)* works: "):
        opened(shard=np.array([1, 3]))
    with pytest.raises(ConfigError, match="^tensor_parallel_size=8: 1(, [24])* ranks work: "):
        LLM.plan(MODEL, gpu="8x H100", tensor_parallel_size=8)


@on_device
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"^device_ids=\[63\]: this process sees \d+ GPU"):
        LLM(MODEL, backend="cuda", device_ids=[63], max_model_len=256, max_num_seqs=2)


def test_batch_sizes_to_capture() -> None:
    def plan(sizes: Any, most: int) -> None:
        LLM.plan(MODEL, gpu="H100", cuda_graph_batch_sizes=sizes, max_num_seqs=most)

    plan(range(1, 65), 400)
    plan(range(1, 400), 64)
    with pytest.raises(ConfigError, match="^cuda_graph_batch_sizes: 399 of its .*400, at most 64 "):
        plan(range(1, 400), 400)
    with pytest.raises(ConfigError, match="^cuda_graph_batch_sizes: all of them .*max_num_seqs=4"):
        plan([8, 16], 4)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.004])
@pytest.mark.parametrize("pages", [None, 32 << 20, 20 << 30])
@pytest.mark.parametrize("rows", [2**24, 2**21, 8192])
@pytest.mark.parametrize("gpu", ["8GB", "2GB", "1.1GB"])
def test_what_a_refusal_proposes_fits(share: float, pages: Any, rows: int, gpu: str) -> None:
    """The steps of 2**24 rows take 111 GB: what is proposed must be planned and found to fit."""
    given: dict[str, Any] = {
        "max_num_batched_tokens": rows, "kv_cache_memory_bytes": pages, "max_model_len": 256,
        "max_num_seqs": 4, "gpu_memory_utilization": share,
    }  # fmt: skip
    plan = LLM.plan(MODEL, gpu=gpu, **given)
    if plan.fits:
        return
    found = re.search(r"GB[^;]*; (.*) fits$", plan.problem)
    if found is None:  # then the least of everything is too much
        assert "no setting of the pages or of the step is small enough" in plan.problem
        least = {"max_num_batched_tokens": 128, "kv_cache_memory_bytes": 2 * plan.page_bytes}
        assert not LLM.plan(MODEL, gpu=gpu, **(given | least)).fits
        return
    for name, value in re.findall(r"(\w+)=([\d.]+)", found[1]):
        given[name] = float(value) if "." in value else int(value)
    assert given["max_num_batched_tokens"] <= rows
    assert LLM.plan(MODEL, gpu=gpu, **given).fits, plan.problem


# -- sampling parameters ---------------------------------------------------------------------------

COUNTS = [
    "n", "top_k", "min_tokens", "max_tokens", "thinking_token_budget", "prompt_logprob_start",
    "stream_interval", "routed_experts_prompt_start",
]  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_sampling_parameters(name: str) -> None:
    more = {"prompt_logprobs": 1} if name == "prompt_logprob_start" else {}
    for value in (3, np.int64(3), np.uint8(3), Three.THREE):
        params = SamplingParams(**more, **{name: value})
        assert type(getattr(params, name)) is int and getattr(params, name) == 3
        assert type(getattr(SamplingParams(**more).replace(**{name: value}), name)) is int
    for value in (2**31, 2**63, HUGE):
        with pytest.raises(InvalidRequestError, match=f"^{name}=.*: it must be at most "):
            SamplingParams(**more, **{name: value})
    for value in (-2, -HUGE, *NO_INTEGERS):
        with pytest.raises(InvalidRequestError, match=f"^{name}="):
            SamplingParams(**more, **{name: value})


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(SamplingParams) if f.name != "extra_args"]
)
def test_no_value_of_a_parameter_is_an_error_of_python(name: str) -> None:
    n_refused = 0
    for value in ANYTHING:
        try:
            params = SamplingParams(**{name: value})
            repr(params)
            make_plan(params, FACTS, None)
        except InvalidRequestError:
            n_refused += 1
    assert n_refused > 0


def test_lists_of_ids_with_numpy() -> None:
    ids = np.array([5, 5, 6])
    for name in names(SamplingParams, r"^list\[int\]"):
        params = SamplingParams(**{name: ids})
        assert getattr(params, name) == [5, 5, 6] and params.changed() == {name: [5, 5, 6]}
        make_plan(params, FACTS, None)
        with pytest.raises(InvalidRequestError, match=f"^{name}="):
            SamplingParams(**{name: iter([5])})  # could be read only once

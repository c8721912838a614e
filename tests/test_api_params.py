"""SamplingParams and EngineArgs: names, values, messages. No engine is opened."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from minimax_m31 import ConfigError, EngineArgs, InvalidRequestError, SamplingParams, derive_seed
from minimax_m31.core_params import EngineFacts, make_plan
from minimax_m31.params import RepetitionDetectionParams, field_names, per_prompt
from minimax_m31.params_check import check_against_engine

BAD_VALUES = [
    ("n", 0), ("n", True), ("n", 2.0),
    ("temperature", -0.1), ("temperature", float("inf")), ("temperature", float("nan")),
    ("temperature", "1"),
    ("top_k", -2), ("top_k", 1.5),
    ("top_p", 0.0), ("top_p", 1.01), ("top_p", float("nan")),
    ("min_p", -0.01), ("min_p", 1.5),
    ("repetition_penalty", 0.0), ("repetition_penalty", float("inf")),
    ("frequency_penalty", 2.5), ("presence_penalty", -2.5),
    ("logit_bias", {"1": 1.0}), ("logit_bias", {1: float("inf")}), ("logit_bias",
    {1: float("nan")}), ("logit_bias", [1]),
    ("logit_bias", {-1: 0.0}),
    ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("allowed_token_ids", ["a"]),
    ("bad_words", "word"), ("bad_words", [""]), ("bad_words", [1]),
    ("min_tokens", -1), ("max_tokens", -1), ("max_tokens", 1.0),
    ("stop", ""), ("stop", ["a", ""]), ("stop", [1]), ("stop_scope", "thinking"),
    ("stop_token_ids", [-5]), ("stop_token_ids", "12"), ("stop_token_ids", [1.5]),
    ("seed", 2**64), ("seed", 1.5), ("seed", "x"),
    ("logprobs", -2), ("logprobs", 1.5), ("prompt_logprobs", -3), ("logprobs_mode", "raw"),
    ("logprob_token_ids", [-1]), ("prompt_logprob_start", 3),
    ("truncate_prompt_tokens", 0), ("truncate_prompt_tokens", -2), ("truncation_side", "centre"),
    ("thinking_token_budget", -2), ("stream_interval", 0), ("output_kind", "delta"),
    ("repetition_detection", {"max_pattern": 3}), ("repetition_detection", {"max_pattern_size": 3,
    "min_count": 1}),
    ("structured_outputs", {"json": "{}", "regex": "a"}), ("structured_outputs", {}), ("extra_args",
    [1]),
    ("ignore_eos", "yes"), ("detokenize", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_VALUES)
def test_bad_value_names_field_and_value(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert str(caught.value).startswith(f"{name}=")


def test_every_field_has_a_bad_value_or_takes_anything() -> None:
    covered = {name for name, _ in BAD_VALUES}
    free = {
        "include_stop_str_in_output", "return_sampling_logprob", "flat_logprobs",
        "skip_special_tokens",
        "spaces_between_special_tokens", "skip_reading_prefix_cache", "prompt_logprob_token_ids",
        "trace_decode_token_ids", "return_routed_experts", "routed_experts_prompt_start",
    }  # fmt: skip
    assert field_names() == covered | free


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("temprature", "temperature"),
        ("max_token", "max_tokens"),
        ("top_K", "top_k"),
        ("stop_tokens_ids", "stop_token_ids"),
    ],
)
def test_unknown_field_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(TypeError, match=near):
        SamplingParams(**{name: 1})
    with pytest.raises(TypeError, match=near):
        SamplingParams().replace(**{name: 1})
    with pytest.raises(AttributeError, match=near):
        setattr(SamplingParams(), name, 1)


@pytest.mark.parametrize("name", ["best_of", "use_beam_search"])
def test_removed_names_say_so(name: str) -> None:
    with pytest.raises(TypeError, match="does not exist here"):
        SamplingParams(**{name: 1})


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="keyword arguments only"):
        SamplingParams(1)


def test_greedy_samples_would_be_equal() -> None:
    with pytest.raises(InvalidRequestError, match="n=2"):
        SamplingParams(n=2, temperature=0)


def test_min_tokens_above_max_tokens() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(min_tokens=5, max_tokens=4)
    assert caught.value.param == "min_tokens"


def test_a_change_is_checked_when_the_engine_takes_it() -> None:
    params = SamplingParams()
    params.top_p = 7.0
    with pytest.raises(InvalidRequestError, match="top_p"):
        params.validate()


def test_clone_shares_nothing_mutable() -> None:
    extra = {"id": object()}
    params = SamplingParams(stop=["a"], logit_bias={3: 1.0}, extra_args=extra)
    copy = params.clone()
    assert copy == params
    assert copy.stop is not params.stop
    assert copy.logit_bias is not params.logit_bias
    assert copy.extra_args is extra


def test_pickle_and_replace() -> None:
    params = SamplingParams(
        max_tokens=3,
        repetition_detection=RepetitionDetectionParams(max_pattern_size=4, min_count=3),
    )
    assert pickle.loads(pickle.dumps(params)) == params
    other = params.replace(max_tokens=4)
    assert (params.max_tokens, other.max_tokens) == (3, 4)
    with pytest.raises(InvalidRequestError):
        params.replace(top_p=0)


def test_repr_is_short_and_shows_what_was_changed() -> None:
    assert repr(SamplingParams(max_tokens=3)) == "SamplingParams(max_tokens=3)"
    assert len(repr(SamplingParams(allowed_token_ids=list(range(100_000))))) < 200


def test_from_optional_understands_other_names() -> None:
    params = SamplingParams.from_optional(
        max_new_tokens=7,
        sampling_seed=5,
        stop_seqs=["x"],
        do_sample=False,
        top_p=None,
        logit_bias={"4": 1000},
    )
    assert (params.max_tokens, params.seed, params.stop, params.temperature) == (7, 5, ["x"], 0.0)
    assert params.logit_bias == {4: 100.0}
    with pytest.raises(TypeError, match="given twice"):
        SamplingParams.from_optional(max_tokens=1, max_new_tokens=2)
    with pytest.raises(TypeError, match="contradicts"):
        SamplingParams.from_optional(do_sample=False, temperature=0.5)


def test_per_prompt() -> None:
    default, one = SamplingParams(), SamplingParams(max_tokens=1)
    assert per_prompt(None, 2, default) == [default, default]
    assert per_prompt(one, 3, default) == [one] * 3
    for wrong in ([one], "greedy", {"max_tokens": 3}, [one, None]):
        with pytest.raises(InvalidRequestError) as caught:
            per_prompt(wrong, 2, default)
        assert caught.value.param == "sampling_params"


FACTS = EngineFacts(256, 2048, 8, 20, 32768, "raw_logprobs", False, (249,))


@pytest.mark.parametrize(
    "fields",
    [{"stop_token_ids": [256]}, {"logit_bias": {300: 1.0}}, {"allowed_token_ids": [0, 999]},
    {"logprobs": 21},
     {"prompt_logprobs": -1}, {"return_routed_experts": True}, {"logprob_token_ids": [256]}],
)  # fmt: skip
def test_what_only_an_engine_knows(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_against_engine(SamplingParams(**fields), FACTS.n_vocab, FACTS.max_logprobs)
    assert caught.value.param in fields


@pytest.mark.parametrize(
    "fields",
    [{"stop": "x"}, {"bad_words": ["x"]}, {"thinking_token_budget": 4}, {"stop_scope": "content"}],
)
def test_text_parameters_need_a_tokenizer(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="tokenizer") as caught:
        make_plan(SamplingParams(**fields), FACTS, None)
    assert caught.value.param in fields


def test_plan_is_a_snapshot() -> None:
    params = SamplingParams(stop_token_ids=[5, 5, 6], logprob_token_ids=[1, 1], ignore_eos=True)
    plan = make_plan(params, FACTS, None)
    params.stop_token_ids.append(7)
    assert plan.core["stop_token"] == [5, 6]
    assert plan.core["logprob_token"] == [1]
    assert plan.top == 0
    assert plan.end_ids == frozenset({5, 6})


def test_derive_seed() -> None:
    assert derive_seed(42, 0) == 42
    seeds = {derive_seed(s, j) for s in range(64) for j in range(64)}
    assert len(seeds) == 64 * 64 - 0
    assert all(0 <= s < 2**64 for s in seeds)
    with pytest.raises(ValueError, match="sample_index"):
        derive_seed(1, -1)
    assert derive_seed(np.int64(42), np.int32(3)) == derive_seed(42, 3)  # type: ignore[arg-type]
    for wrong in ("1", 1.0, None, True):
        with pytest.raises(InvalidRequestError, match="^seed="):
            derive_seed(wrong, 1)  # type: ignore[arg-type]


# ---------------------------------------------------------------- engine arguments

BAD_ARGUMENTS = [
    ("backend", "gpu"), ("dtype", "float16"), ("dtype", "int8"), ("load_format", "gguf"),
    ("load_format", "sharded_state"),
    ("quantization", "awq"), ("threads", 0), ("shard", (2, 2)), ("device_ids", ["0"]),
    ("tensor_parallel_size", 3),
    ("tensor_parallel_size", 2), ("pipeline_parallel_size", 2), ("data_parallel_size", 2),
    ("max_model_len", 0),
    ("max_model_len", "long"), ("max_num_seqs", 0), ("max_num_batched_tokens", 100),
    ("max_num_batched_tokens", 200),
    ("block_size", 16), ("kv_cache_dtype", "int8"), ("kv_cache_dtype", "float32"),
    ("indexer_kv_dtype", "fp4"),
    ("gpu_memory_utilization", 0.0), ("gpu_memory_utilization", 1.2), ("kv_cache_memory_bytes", 0),
    ("cpu_offload_gb", 1),
    ("kv_offload_gb", 1), ("max_logprobs", -2), ("logprobs_mode", "raw"), ("speculative_config",
    "dspark"),
    ("scheduling_policy", "lifo"), ("seed", 1.5), ("deterministic", True), ("hf_overrides", 3),
    ("thinking", "sometimes"), ("reasoning_effort", "extreme"), ("enable_return_routed_experts",
    True),
    ("log_level", "LOUD"), ("step_timeout_s", 0), ("tokenizer_threads", 0), ("moe_backend", "x"),
    ("chat_template", "{% for"), ("chat_template", "templates/mine.jinja"), ("chat_template", 3),
    ("distributed_executor_backend", "ray"), ("default_max_tokens", 0), ("enable_lora", True),
    ("model", 3),
    ("limit_mm_per_prompt", {"image": 2}), ("compilation_config", {"level": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_ARGUMENTS)
def test_bad_engine_argument(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name.split("_")[0]):
        EngineArgs(**{name: value}).check()


def test_all_problems_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineArgs(max_num_seqs=0, dtype="float16", block_size=64).check()
    for name in ("max_num_seqs", "dtype", "block_size"):
        assert name in str(caught.value)


def test_unknown_engine_argument() -> None:
    for name, near in (
        ("max_seqs", "max_num_seqs"),
        ("tensor_parallel", "tensor_parallel_size"),
        ("gpu_memory", "gpu_memory_utilization"),
    ):
        with pytest.raises(TypeError, match=near):
            EngineArgs(**{name: 1})
    with pytest.raises(TypeError, match="SamplingParams"):
        EngineArgs(temperature=1)


def test_engine_arguments_are_shown_briefly() -> None:
    assert repr(EngineArgs()) == "EngineArgs(model='nano')"
    assert repr(EngineArgs(max_num_seqs=4)) == "EngineArgs(model='nano', max_num_seqs=4)"


def test_accepted_no_ops() -> None:
    EngineArgs(
        trust_remote_code=True, swap_space=4, disable_custom_all_reduce=True,
        disable_log_stats=True, enforce_eager=True,
        distributed_executor_backend="mp", quantization="modelopt_mixed", moe_backend="auto",
        max_model_len=None,
    ).check()  # fmt: skip

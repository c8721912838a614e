"""The drop-in for vLLM's offline names: each of its arguments does what its verdict says, and a
script runs after changing its import lines.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)

from minimax_m31 import ConfigError, InvalidRequestError
from minimax_m31.compat import vllm
from minimax_m31.compat.vllm.engine_arguments import bind_engine, engine_arguments
from minimax_m31.compat.vllm.entrypoints.llm import LLM
from minimax_m31.compat.vllm.sampling_params import (
    BeamSearchParams,
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from minimax_m31.compat.vllm.table import CALLS, ENGINE

TESTS = Path(__file__).resolve().parent
GOLDEN = json.loads((TESTS / "golden" / "vllm_arguments.json").read_text())["arguments"]
ENGINE_CALLS = ("LLM", "LLM(**kwargs) = EngineArgs")
PARAM_CLASSES = {
    "SamplingParams": SamplingParams,
    "StructuredOutputsParams": StructuredOutputsParams,
    "RepetitionDetectionParams": RepetitionDetectionParams,
}


class Other:
    """A value that no argument has by default."""


def each(*calls: str) -> list[Any]:
    return [
        pytest.param(call, name, told, id=f"{call.split('(')[0]}-{name}")
        for call in calls
        for name, told in GOLDEN[call].items()
    ]


def engine(**given: Any) -> dict[str, Any]:
    return engine_arguments(bind_engine((), {"model": "nano", **given}))[0]


def plain(default: Any) -> Any:
    """A default as a caller writes it: where vLLM makes an object, None."""
    is_code = isinstance(default, str) and (default.endswith(")") or default.isupper())
    return None if is_code or (isinstance(default, str) and "." in default) else default


# Another value of every argument that works, and what the engine is then told.
ANOTHER: dict[str, tuple[Any, dict[str, Any]]] = {
    "model": ("./nano", {"model": "./nano"}),
    "tokenizer": ("folder", {"tokenizer": "folder"}),
    "skip_tokenizer_init": (True, {"skip_tokenizer_init": True}),
    "trust_remote_code": (True, {}),
    "allowed_local_media_path": ("/data", {"allowed_local_media_path": "/data"}),
    "allowed_media_domains": (["a.org"], {"allowed_media_domains": ["a.org"]}),
    "dtype": ("float32", {"dtype": "float32"}),
    "quantization": ("nvfp4", {"quantization": "nvfp4"}),
    "revision": ("main", {"revision": "main"}),
    "chat_template": ("{{ messages }}", {"chat_template": "{{ messages }}"}),
    "seed": (7, {"seed": 7}),
    "gpu_memory_utilization": (0.5, {"gpu_memory_utilization": 0.5}),
    "enforce_eager": (True, {"enforce_eager": True}),
    "disable_custom_all_reduce": (True, {}),
    "hf_token": ("secret", {}),
    "hf_overrides": ({"rope_theta": 1.0}, {"hf_overrides": {"rope_theta": 1.0}}),
    "kv_cache_memory_bytes": (1 << 26, {"kv_cache_memory_bytes": 1 << 26}),
    "load_format": ("safetensors", {"load_format": "safetensors"}),
    "kv_cache_dtype": ("fp8", {"kv_cache_dtype": "fp8"}),
    "max_model_len": (4096, {"max_model_len": 4096}),
    "cudagraph_capture_sizes": ([1, 2], {"cuda_graph_batch_sizes": [1, 2]}),
    "block_size": (128, {"block_size": 128}),
    "enable_prefix_caching": (False, {"enable_prefix_caching": False}),
    "max_num_batched_tokens": (1024, {"max_num_batched_tokens": 1024}),
    "max_num_seqs": (3, {"max_num_seqs": 3}),
    "max_logprobs": (-1, {"max_logprobs": -1}),
    "logprobs_mode": ("processed_logprobs", {"logprobs_mode": "processed_logprobs"}),
    "disable_log_stats": (True, {}),
    "language_model_only": (True, {"language_model_only": True}),
    "enable_chunked_prefill": (True, {"enable_chunked_prefill": True}),
    "scheduling_policy": ("priority", {"scheduling_policy": "priority"}),
    "log_level": ("ERROR", {"log_level": "ERROR"}),
    "generation_config": ("vllm", {"generation_config": "vllm"}),
    "enable_sleep_mode": (True, {"enable_sleep_mode": True}),
    "override_generation_config": (
        {"top_k": 3},
        {"override_generation_config": {"top_k": 3}},
    ),
    "use_tqdm_on_load": (False, {"use_tqdm_on_load": False}),
    "async_scheduling": (False, {}),
    "stream_interval": (4, {}),
}
# Works by its verdict; this build of the engine may say, by name, that it cannot do it yet.
OWN_WORD = {
    "tensor_parallel_size": (2, "tensor_parallel_size"),
    "device_ids": ([0, 1, 2], "device_ids"),
    "cpu_offload_gb": (-1, "cpu_offload_gb"),
    "enable_return_routed_experts": ("yes", "enable_return_routed_experts"),
    "mm_processor_kwargs": (3, "mm_processor_kwargs"),
    "spec_method": ("no such method", "speculative_config"),
    "spec_model": ("folder", "speculative_config"),
    "spec_tokens": (-1, "speculative_config"),
    "enable_expert_parallel": ("yes", "enable_expert_parallel"),
    "limit_mm_per_prompt": (3, "limit_mm_per_prompt"),
    "speculative_config": ("no such method", "speculative_config"),
    "kv_offloading_size": (-1, "kv_offload_gb"),
}
ALSO = {
    "runner": ["generate"],
    "convert": ["none"],
    "tokenizer_mode": ["hf"],
    "structured_outputs_config": [{"backend": "auto"}, {"backend": "guidance"}],
    "attention_config": [{"indexer_kv_dtype": "fp8"}],
    "compilation_config": [{"cudagraph_capture_sizes": [1, 2]}],
    "distributed_executor_backend": ["mp", "uni", "external_launcher"],
    "pipeline_parallel_size": [1],
    "data_parallel_size": [1],
    "moe_backend": ["auto"],
}


def test_the_table_is_up_to_date_and_complete() -> None:
    done = subprocess.run(
        [sys.executable, str(TESTS / "make_compat_arguments.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sum(map(len, GOLDEN.values())) == sum(map(len, CALLS.values())) == 339
    same = {n for call in ENGINE_CALLS for n, e in GOLDEN[call].items() if e["verdict"] == "same"}
    assert same == set(ANOTHER) | set(OWN_WORD)
    assert {n for call in ENGINE_CALLS for n, e in GOLDEN[call].items() if "also" in e} == set(ALSO)


@pytest.mark.parametrize(("call", "name", "told"), each(*ENGINE_CALLS))
def test_a14_engine_arguments_are_as_their_verdict(
    call: str, name: str, told: dict[str, Any]
) -> None:
    default = "nano" if name == "model" else plain(told["default"])
    engine(**{name: default})
    engine(**{name: None if name != "model" else "nano"})
    for value in ALSO.get(name, ()):
        engine(**{name: value})
    if name in ANOTHER:
        value, expected = ANOTHER[name]
        assert engine(**{name: value}) == {"model": "nano", **expected}
        return
    value, word = OWN_WORD.get(name, (Other(), name))
    with pytest.raises(ConfigError) as caught:
        engine(**{name: value})
    assert word in str(caught.value)
    if told["verdict"] == "default":
        assert told["why"] in str(caught.value)


def test_all_refusals_come_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        LLM("nano", runner="pooling", enable_lora=True, max_num_seqs=0)
    for word in ("runner='pooling'", "enable_lora=True", "max_num_seqs=0", "generation only"):
        assert word in str(caught.value)
    with pytest.raises(TypeError, match="max_num_seqs"):
        LLM("nano", max_num_seq=4)
    with pytest.raises(ConfigError, match="backend"):
        engine(structured_outputs_config={"backend": "xgrammar"})
    assert engine(structured_outputs_config={"backend": "auto"}) == {"model": "nano"}


def test_engine_args_as_a_dict_are_accepted() -> None:
    args = vllm.EngineArgs(model="nano", max_num_seqs=4, backend="cpu")
    assert {f.name for f in dataclasses.fields(args)} >= set(ENGINE)
    values = engine_arguments(bind_engine((), dataclasses.asdict(args)))[0]
    assert values["max_num_seqs"] == 4 and values["seed"] == 0
    assert values["speculative_config"] is None


SAMPLING: dict[str, Any] = {
    "n": 2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 3,
    "stop": ["x"],
    "stop_token_ids": [3],
    "ignore_eos": True,
    "max_tokens": 16,
    "min_tokens": 2,
    "logprobs": 2,
    "prompt_logprobs": 2,
    "prompt_logprob_token_ids": [4],
    "prompt_logprob_start": 1,
    "logprob_token_ids": [4],
    "flat_logprobs": True,
    "detokenize": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "output_kind": RequestOutputKind.FINAL_ONLY,
    "stream_interval": 2,
    "skip_clone": True,
    "output_text_buffer_length": 9,
    "structured_outputs": {"regex": "a+"},
    "logit_bias": {3: 1.0},
    "allowed_token_ids": [3],
    "extra_args": {"a": 1},
    "bad_words": ["x"],
    "skip_reading_prefix_cache": True,
    "thinking_token_budget": 5,
    "repetition_detection": RepetitionDetectionParams(4, 2, 3),
    "routed_experts_prompt_start": 1,
    "trace_decode_token_ids": [3],
}
STRUCTURED: dict[str, Any] = {
    "json": {"type": "object"},
    "regex": "a+",
    "choice": ["a", "b"],
    "grammar": 'start: "a"',
    "json_object": True,
    "disable_any_whitespace": True,
    "disable_additional_properties": True,
    "structural_tag": {"type": "structural_tag"},
}
REPETITION = {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 3}
NEEDS = {"prompt_logprob_start": {"prompt_logprobs": 1}}  # has no effect alone, which is an error
VALUES = {
    "SamplingParams": SAMPLING,
    "StructuredOutputsParams": STRUCTURED,
    "RepetitionDetectionParams": REPETITION,
}


@pytest.mark.parametrize(("call", "name", "told"), each(*PARAM_CLASSES))
def test_a14_params_are_as_their_verdict(call: str, name: str, told: dict[str, Any]) -> None:
    make = PARAM_CLASSES[call]
    make(**{name: plain(told["default"])})
    if told["verdict"] != "same":
        with pytest.raises(InvalidRequestError) as caught:
            make(**{name: Other()})
        assert name in str(caught.value) and told["why"] in str(caught.value)
        return
    value = VALUES[call][name]
    made = make(**{name: value, **NEEDS.get(name, {})})
    if "no effect" in told.get("note", ""):
        assert made == make() or name == "spaces_between_special_tokens"
    elif name == "disable_any_whitespace":
        assert made.whitespace == "compact"
    elif name == "structured_outputs":
        assert made.structured_outputs.regex == "a+"
    else:
        assert getattr(made, name) == value


def test_params_take_positions_and_are_plain_data() -> None:
    params = SamplingParams(2, 0.5, 0.25)
    assert (params.n, params.presence_penalty, params.frequency_penalty) == (2, 0.5, 0.25)
    params.skip_clone = True  # type: ignore[misc]
    params.max_tokens = 9
    assert pickle.loads(pickle.dumps(params)) == params == params.clone()
    assert dataclasses.replace(params, n=3).n == 3
    with pytest.raises(TypeError, match="multiple values"):
        SamplingParams(2, n=3)
    with pytest.raises(TypeError, match="temperature"):
        SamplingParams(temperatur=0.5)
    nested = SamplingParams(structured_outputs={"choice": ["a"], "disable_any_whitespace": True})
    assert nested.structured_outputs.whitespace == "compact"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", GOLDEN["BeamSearchParams"])
def test_beam_search_is_refused(name: str) -> None:
    with pytest.raises(NotImplementedError, match="beam search"):
        BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, name: 2})


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        "nano", max_num_seqs=4, max_model_len=2048, default_max_tokens=64, replace=True
    ) as engine:
        yield engine


QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)
CALL_VALUES: dict[str, Any] = {
    "prompts": ["a", "b"],
    "messages": [QUESTION, QUESTION],
    "sampling_params": GREEDY,
    "use_tqdm": False,
    "priority": [0],
    "chat_template": "{{ messages[0]['content'] }}",
    "add_generation_prompt": False,
    "continue_final_message": True,
    "tools": [TOOL],
    "chat_template_kwargs": {"enable_thinking": False},
    "chat_template_content_format": "openai",
    "tokenization_kwargs": {"truncate_prompt_tokens": 3, "add_special_tokens": False},
}


@pytest.mark.parametrize(("call", "name", "told"), each("generate", "chat"))
def test_a14_calls_are_as_their_verdict(
    llm: LLM, call: str, name: str, told: dict[str, Any]
) -> None:
    def run(**given: Any) -> list[Any]:
        first = {"prompts": "17 +"} if call == "generate" else {"messages": QUESTION}
        return getattr(llm, call)(**{**first, "sampling_params": GREEDY, **given})

    if told["default"] != "required":
        base = run(**{name: plain(told["default"])})
        assert len(base[0].outputs[0].token_ids) <= 4 or name == "sampling_params"
    if name in CALL_VALUES:
        given = {name: CALL_VALUES[name]}
        if name == "continue_final_message":
            given |= {
                "add_generation_prompt": False,
                "messages": [*QUESTION, {"role": "assistant", "content": "It is"}],
            }
        out = run(**given)
        assert all(len(o.outputs[0].token_ids) <= 4 for o in out)
        if name == "tokenization_kwargs":
            assert len(out[0].prompt_token_ids) <= 3
    if told["verdict"] == "default" or name == "mm_processor_kwargs":
        with pytest.raises(InvalidRequestError) as caught:
            run(**{name: Other()})
        assert name in str(caught.value)
        assert told.get("why", "") in str(caught.value)


def test_positions_and_what_the_engine_has_beside(llm: LLM) -> None:
    out = llm.generate(["17 +", "x"], GREEDY, False)
    assert [o.index for o in out] == [0, 1]
    assert llm.chat(QUESTION, GREEDY, False, thinking="disabled")[0].outputs[0].message.content
    delta = SamplingParams(max_tokens=3, output_kind=RequestOutputKind.DELTA, temperature=0.0)
    assert len(llm.generate("17 +", delta)[0].outputs[0].token_ids) == 3
    assert delta.output_kind is RequestOutputKind.DELTA  # the caller's object stays as it was
    for name in ("beam_search", "encode", "embed", "classify", "score", "apply_model"):
        with pytest.raises(NotImplementedError, match=name):
            getattr(llm, name)("x")
    with pytest.raises(TypeError, match="sampling_params"):
        llm.generate("x", sampling_param=GREEDY)


def test_stream_interval_of_the_engine() -> None:
    with LLM("nano", max_num_seqs=2, max_model_len=512, stream_interval=4, replace=True) as one:
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        sizes = [len(o.outputs[0].token_ids) for o in one.generate_stream("17 +", params)]
    assert sum(sizes) == 9 and len(sizes) <= 4, sizes


def test_other_public_names_are_import_errors_with_a_reason() -> None:
    for name in ("PoolingParams", "ModelRegistry", "LLMEngine", "AsyncLLMEngine"):
        with pytest.raises(ImportError, match=name):
            exec(f"from minimax_m31.compat.vllm import {name}")
    with pytest.raises(ImportError, match="LoRA"):
        exec("from minimax_m31.compat.vllm.lora.request import LoRARequest")
    assert (
        vllm.__version__ == json.loads((TESTS / "golden/vllm_arguments.json").read_text())["vllm"]
    )


SCRIPT = """
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import StructuredOutputsParams, RequestOutputKind
from vllm.outputs import RequestOutput
from vllm.inputs import PromptType, TextPrompt
from vllm.entrypoints.llm import LLM as SameLLM

def main():
    assert SameLLM is LLM
    llm = LLM(model="nano", tensor_parallel_size=1, dtype="auto", seed=0, max_model_len=1024,
              gpu_memory_utilization=0.9, enforce_eager=True, trust_remote_code=True,
              disable_log_stats=True, max_num_seqs=8)
    prompts = ["Hello, my name is", TextPrompt(prompt="The capital of France is"),
               TokensPrompt(prompt_token_ids=[3, 4, 5])]
    params = SamplingParams(n=2, temperature=0.8, top_p=0.95, max_tokens=6, logprobs=1, seed=5)
    outputs = llm.generate(prompts, params)
    for output in outputs:
        assert isinstance(output, RequestOutput) and output.finished
        print(repr(output.prompt), [(o.text, o.finish_reason) for o in output.outputs])
        assert len(output.outputs[0].logprobs) == len(output.outputs[0].token_ids)
        first = output.outputs[0].logprobs[0]
        token = output.outputs[0].token_ids[0]
        assert first[token].logprob <= 0 and first[token].rank >= 1
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False,
                                         add_generation_prompt=True)
    print(len(llm.generate(text, SamplingParams(max_tokens=3))[0].outputs[0].token_ids))
    print(llm.chat([{"role": "user", "content": "What is 17 + 25?"}],
                   SamplingParams(temperature=0, max_tokens=64))[0].outputs[0].text)

if __name__ == "__main__":
    main()
"""


def test_a14_a_script_runs_after_changing_its_imports() -> None:
    """A14: only the import lines change."""
    script = SCRIPT.replace("from vllm", "from minimax_m31.compat.vllm")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Hello, my name is" in done.stdout and "42" in done.stdout
    refused = script.replace("enforce_eager=True", "enable_lora=True")
    done = subprocess.run([sys.executable, "-c", refused], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ConfigError: enable_lora=True: LoRA" in done.stderr


def test_use_tqdm_on_load_turns_the_bar_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from minimax_m31 import opening

    made: list[int] = []

    def make(total: int) -> Any:
        made.append(total)
        return opening._Silent()

    monkeypatch.setattr(opening, "_load_bar", make)
    for is_wanted in (False, True):
        bar = opening.LoadBar(is_wanted)
        bar._began -= 5  # loading has taken long enough to show one
        bar(1, 10)
        bar.close()
    assert made == [10]

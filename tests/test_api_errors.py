"""Wrong input gets one error that says what, with which value, and what to do; others of the call
are not harmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from api_models import IDS_MODEL, ids_llm, make_text_model, text_llm

from minimax_m31 import (
    LLM,
    ConfigError,
    EngineClosedError,
    InvalidRequestError,
    Mm31Error,
    PromptTooLongError,
    SamplingParams,
    _core,
)

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with ids_llm() as engine:
        yield engine


@pytest.mark.parametrize(
    "prompt",
    [3, 3.5, None, b"bytes", [], [1.5, 2], [True, False], [[]], [1, "a"], [1, None], [-1, 2], [256],
    [2**40], [2**70],
     np.zeros((2, 3), np.int32), np.zeros(3, np.float32), np.zeros(0, np.int32), {"promt": "x"}, {},
     {"prompt": 3},
     {"prompt_token_ids": "12"}, {"prompt_token_ids": []}, {"prompt_token_ids": [999]},
     {"prompt_token_ids": [1], "cache_salt": 3},
     [[1], [2, 300]], [[1], 5], {1, 2}],
)  # fmt: skip
def test_bad_prompt(llm: LLM, prompt: object) -> None:
    if isinstance(prompt, list) and not prompt:
        assert llm.generate(prompt) == []
        return
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate(prompt, GREEDY)
    assert caught.value.param is not None
    assert len(llm.generate([1], GREEDY)) == 1


def test_index_names_the_prompt(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate([[1], [2], "text"], GREEDY)
    assert caught.value.index == 2
    assert "tokenizer" in str(caught.value)
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate("text", GREEDY)
    assert caught.value.index is None


def test_too_long(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError, match="2048"):
        llm.generate([1] * 2048, GREEDY)
    with pytest.raises(PromptTooLongError) as caught:
        llm.generate([[1], [1] * 3000, [2]], GREEDY)
    assert caught.value.index == 1
    assert caught.value.outputs is not None
    assert len(caught.value.outputs) == 3


def test_on_error_return_keeps_the_others(llm: LLM) -> None:
    out = llm.generate([[1], [1] * 3000, "text", [2], [999]], GREEDY, on_error="return")
    assert [o.error is None for o in out] == [True, False, False, True, False]
    assert out[1].error.code == "too_long"
    assert out[2].error.param == "prompt"
    assert out[4].outputs[0].finish_reason == "error"
    assert len(out[3].outputs[0].token_ids) == 4


def test_a_raised_error_aborts_only_its_call(llm: LLM) -> None:
    handle = llm.submit([5], SamplingParams(max_tokens=300, ignore_eos=True))
    with pytest.raises(PromptTooLongError):
        llm.generate([[1], [1] * 3000], GREEDY)
    assert len(handle.result(timeout=60).outputs[0].token_ids) == 300
    assert llm.stats().num_blocks_used == 0


@pytest.mark.parametrize(
    ("kwargs", "param"),
    [({"on_error": "ignore"}, "on_error"), ({"timeout": 0}, "timeout"), ({"priority": 1},
    "priority"),
     ({"request_ids": ["a", "b"]}, "request_ids"), ({"tokenization_kwargs": {"padding": True}},
     "tokenization_kwargs"),
     ({"lora_request": object()}, "lora_request")],
)  # fmt: skip
def test_bad_call_arguments(llm: LLM, kwargs: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate([1], GREEDY, **kwargs)
    assert caught.value.param == param


def test_masks_that_leave_nothing_end_the_request_with_an_error(llm: LLM) -> None:
    params = SamplingParams(
        allowed_token_ids=[249], min_tokens=3, max_tokens=5
    )  # 249 is the end token
    with pytest.raises(InvalidRequestError) as caught:
        llm.generate([1], params)
    assert caught.value.outputs is not None
    out = llm.generate([[1], [2]], [params, GREEDY], on_error="return")
    assert out[0].outputs[0].finish_reason == "error"
    assert out[0].error is not None
    assert out[1].error is None


def test_score_and_trace_arguments(llm: LLM) -> None:
    for kwargs in (
        {"start": 0},
        {"top_k": -2},
        {"token_ids": [300]},
        {"temperature": 0},
        {"top_k": 21},
    ):
        with pytest.raises(InvalidRequestError):
            llm.score_tokens([1, 2], **kwargs)
    with pytest.raises(InvalidRequestError, match="what"):
        llm.trace([1, 2], what="attention")
    with pytest.raises(InvalidRequestError, match="force_blocks"):
        llm.trace([1, 2], force_blocks=[None])
    with pytest.raises(InvalidRequestError, match="shape"):
        llm.trace([1, 2], force_experts=[None, np.zeros((3, 2)), None])
    with pytest.raises(InvalidRequestError):
        llm.compute_logits([300])
    with pytest.raises(PromptTooLongError):
        llm.compute_logits([1] * 3000)


def test_closed_engine() -> None:
    engine = ids_llm()
    handle = engine.submit([1], SamplingParams(max_tokens=1900, ignore_eos=True))
    engine.shutdown()
    for call in (
        lambda: engine.generate([1]), lambda: engine.stats(), lambda: engine.trace([1]),
        lambda: engine.submit([1]),
        lambda: engine.memory_report(), lambda: engine.score_tokens([1]),
        lambda: engine.reset_prefix_cache(),
        lambda: engine.abort_all(), lambda: handle.result(timeout=10),
        lambda: next(engine.generate_stream([1])),
    ):  # fmt: skip
        with pytest.raises(EngineClosedError):
            call()
    engine.shutdown()


def test_shutdown_while_another_thread_waits() -> None:
    import threading

    engine = ids_llm()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            engine.generate(
                [[i + 1] for i in range(30)],
                SamplingParams(max_tokens=1900, ignore_eos=True),
                use_tqdm=False,
            )
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    while engine.stats().num_running == 0:
        pass
    engine.shutdown()
    worker.join(10)
    assert not worker.is_alive()
    assert isinstance(errors[0], EngineClosedError)


# ---------------------------------------------------------------- chat


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with text_llm(tmp_path_factory.mktemp("text")) as engine:
        yield engine


USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("messages", "kwargs", "param"),
    [
        ("hi", {}, "messages"), ({"role": "user"}, {}, "messages"), ([], {}, "messages"),
        ([{"role": "usr", "content": "x"}], {}, "messages[0].role"),
        (USER, {"thinking": "maybe"}, "thinking"), (USER, {"reasoning_effort": "huge"},
        "reasoning_effort"),
        (USER, {"thinking": ["enabled"]}, "thinking"), ([USER, USER], {"thinking": ["enabled"]},
        "thinking"),
        (USER, {"continue_final_message": True}, "continue_final_message"),
        (USER, {"chat_template": "{{ oops"}, "chat_template"),
        (USER, {"tools": [{"type": "function", "function": {"name": "f", "description": "d",
                                                            "parameters": {"type": "object",
                                                            "properties": {}}}}],
                "tool_choice": "requird"}, "tool_choice"),
    ],
)  # fmt: skip
def test_bad_chat(text: LLM, messages: object, kwargs: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        text.chat(messages, GREEDY, **kwargs)
    assert caught.value.param == param


def test_bad_chat_names_the_conversation(text: LLM) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        text.chat([USER, [{"role": "bad", "content": "x"}]], GREEDY)
    assert caught.value.index == 1


def test_chat_without_a_tokenizer(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        llm.chat(USER)
    with pytest.raises(InvalidRequestError, match="tokenizer"):
        llm.get_tokenizer()


def test_skip_tokenizer_init(tmp_path: Path) -> None:
    with text_llm(tmp_path / "m", skip_tokenizer_init=True) as engine:
        with pytest.raises(InvalidRequestError, match="tokenizer"):
            engine.generate("x", GREEDY)
        assert engine.generate([1], GREEDY)[0].outputs[0].text == ""


# ---------------------------------------------------------------- opening


def test_nano_is_there_or_says_so() -> None:
    from minimax_m31.opening import NANO

    if not (NANO / "config.json").exists():
        with pytest.raises(ConfigError, match="nano"):
            LLM()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"model": "/nonexistent/folder"}, "no such folder"),
        ({"model": str(IDS_MODEL / "config.json")}, "is a file"),
        ({"model": "someone/some-model"}, "Hub id"),
        ({"backend": "gpu"}, "backend"),
        ({"max_model_len": 2**30}, "max_model_len"),
        ({"tokenizer": "/nonexistent"}, "tokenizer.json"),
        ({"quantization": "nvfp4"}, "quantization"),
        ({"hf_overrides": {"hidden_sise": 3}}, "hidden_sise"),
        ({"dtype": "float32", "kv_cache_dtype": "bf16"}, "float32"),
        ({"kv_cache_memory_bytes": 10}, "kv_cache_memory_bytes"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 128, "max_model_len": 1024},
        "enable_chunked_prefill"),
    ],
)  # fmt: skip
def test_bad_opening(kwargs: dict[str, object], words: str) -> None:
    arguments = {
        "model": IDS_MODEL,
        "backend": "cpu",
        "max_num_seqs": 2,
        "max_model_len": 256,
        **kwargs,
    }
    with pytest.raises(ConfigError, match=words):
        LLM(**arguments)


def test_unknown_argument() -> None:
    with pytest.raises(TypeError, match="max_num_seqs"):
        LLM(IDS_MODEL, max_seqs=4)


def test_cuda_without_a_library_says_why() -> None:
    usable = {name: ok for name, ok, _ in _core.backends()}
    if usable.get("cuda"):
        pytest.skip("CUDA can be used here")
    with pytest.raises(ConfigError, match="cuda"):
        LLM(IDS_MODEL, backend="cuda")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((IDS_MODEL / name).read_bytes())
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="model.safetensors"):
        LLM(tmp_path, backend="cpu")


def test_a_tokenizer_larger_than_the_model(tmp_path: Path) -> None:
    folder = make_text_model(tmp_path / "m")
    with pytest.raises(ConfigError, match="rows"):
        LLM(IDS_MODEL, tokenizer=str(folder), backend="cpu")


# ---------------------------------------------------------------- the extension itself


def test_core_checks_its_arguments(llm: LLM) -> None:
    engine = llm._core
    waiter = engine.waiter()
    one = np.array([1], np.int32)
    for bad in ({"max_token": 1}, {"logprob_mode": "raw_logprobs"}, {"stop": "x"},
    {"max_tokens": 2**40}, {"seed": -1},
                {"bias_token": [1]}, {"bad_words": [[]]}, {"temperature": "x"}):  # fmt: skip
        with pytest.raises((TypeError, Mm31Error)):
            engine.submit(waiter, one, bad)
    with pytest.raises(TypeError):
        engine.submit(waiter, np.zeros((1, 1), np.int32), {})
    with pytest.raises(Mm31Error):
        engine.read(10**9)
    engine.release(10**9)
    assert engine.abort([10**9]) == 0
    assert waiter.wait(0.01) == []
    waiter.close()
    waiter.close()
    with pytest.raises(EngineClosedError):
        waiter.wait(0.01)


def test_core_config_check_names_the_field(llm: LLM) -> None:
    _core.config_check(llm._config)
    with pytest.raises(ConfigError, match="n_layer"):
        _core.config_check({k: v for k, v in llm._config.items() if k != "n_layer"})
    with pytest.raises(ConfigError):
        _core.config_check({**llm._config, "head_dim": 7})
    with pytest.raises(TypeError, match="nonsense"):
        _core.config_check({**llm._config, "nonsense": 7})
    assert _core.page_bytes(llm._config, "f32", "f32", 0, 1) == 2 * _core.page_bytes(
        llm._config, "bf16", "bf16", 0, 1
    )

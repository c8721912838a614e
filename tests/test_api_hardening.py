"""Hostile input: every wrong value is refused by name, before anything runs, and nothing is printed
that the caller did not ask for.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from api_models import BACKEND, IDS_MODEL, ids_llm, text_llm

import minimax_m31
from minimax_m31 import (
    LLM,
    ConfigError,
    Conversation,
    EngineClosedError,
    InvalidRequestError,
    RequestOutputKind,
    SamplingParams,
)
from minimax_m31.__main__ import main
from minimax_m31.checkpoint import read_config
from minimax_m31.model_config import read_model_config

HOME = Path(minimax_m31.__path__[0]).parent
FEW = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
HALF = "ab\ud800c"  # half of a surrogate pair


@pytest.fixture(scope="module")
def ids() -> Iterator[LLM]:
    with ids_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    with text_llm(tmp_path_factory.mktemp("text")) as llm:
        yield llm


def run(
    code: str, *, home: Path = HOME, cwd: str = "/", module: bool = False
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *(["-m", *code.split()] if module else ["-c", code])],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(home)},
    )


# -- the package itself ----------------------------------------------------------------------------


def test_the_source_folder_without_its_extension_says_what_to_do(tmp_path: Path) -> None:
    shutil.copytree(
        HOME / "minimax_m31",
        tmp_path / "minimax_m31",
        ignore=shutil.ignore_patterns("*.so", "nano", "__pycache__"),
    )
    (tmp_path / "setup.py").write_text("")
    # An editable install would lend its own extension to this copy.
    missing = "raise ImportError(\"cannot import name '_core'\")\n"
    (tmp_path / "minimax_m31/_core.py").write_text(missing)
    done = run("minimax_m31 info", home=tmp_path, cwd=str(tmp_path), module=True)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "source folder" in line and "pip install -e ." in line and "another folder" in line
    done = run("from minimax_m31 import LLM", home=tmp_path, cwd=str(tmp_path))
    assert "source folder, without a built extension" in done.stderr.splitlines()[-1]


def test_the_command_refuses_no_context(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "--model", str(IDS_MODEL), "--ids", "1", "--backend", BACKEND]
    assert main([*command, "--max-model-len", "0"]) == 1
    assert "max_model_len=0" in capsys.readouterr().err


def test_a_daemon_thread_is_silent_at_exit() -> None:
    code = f"""
import sys, threading, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from api_models import ids_llm
from minimax_m31 import SamplingParams
llm = ids_llm()
params = SamplingParams(max_tokens=1500, ignore_eos=True)
def work(): llm.generate([[1, 2]] * 4, params, use_tqdm=False)
def again():
    while True: llm.trace([1, 2, 3])
for target in (work, again): threading.Thread(target=target, daemon=True).start()
time.sleep(0.3)
print("end")
"""
    done = run(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# -- numbers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 1e300),
        ("temperature", 3.5e38),
        ("temperature", 10**400),
        ("top_p", 1e-46),
        ("min_p", 1e-46),
        ("repetition_penalty", 1e39),
        ("repetition_penalty", 1e-320),
        ("repetition_penalty", 1e-40),
        ("logit_bias", {1: 1e300}),
        ("logit_bias", {1: -1e300}),
        ("logit_bias", {1: 10**400}),
        ("max_tokens", 10**400),
        ("seed", 10**400),
    ],
)
def test_numbers_that_the_core_cannot_hold(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}=") as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_a_number_that_cannot_be_printed() -> None:
    for field in ("temperature", "max_tokens"):
        with pytest.raises(InvalidRequestError, match=f"^{field}=<33216 bits>"):
            SamplingParams(**{field: 10**9999})


def test_numbers_that_it_can_hold() -> None:
    SamplingParams(temperature=3.4e38, top_p=1e-40, repetition_penalty=1.2e-38)
    SamplingParams(temperature=1e-46, logit_bias={1: -float("inf"), 2: 3.4e38})


@pytest.mark.parametrize("value", [1e-40, 1e-6, 0, 1e300, 10**400, "x"])
def test_score_temperature(ids: LLM, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="^temperature=") as caught:
        ids.score_tokens([1, 2, 3], temperature=value, use_tqdm=False)
    assert caught.value.value == value


def test_score_temperature_at_its_ends(ids: LLM) -> None:
    for value in (1e-5, 3.4e38):
        (scores,) = ids.score_tokens([1, 2, 3], temperature=value, use_tqdm=False)
        assert np.isfinite(scores.logprobs).all()


# -- text ------------------------------------------------------------------------------------------


def test_half_a_surrogate_pair_in_parameters() -> None:
    for field, value in (("stop", ["x", HALF]), ("bad_words", ["x", HALF])):
        with pytest.raises(InvalidRequestError, match=rf"{field}\[1\]: character 2 is U\+D800"):
            SamplingParams(**{field: value})
    with pytest.raises(InvalidRequestError, match="character 2"):
        SamplingParams(stop=HALF)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (HALF, "prompt"),
        ({"prompt": HALF}, "prompt"),
        ({"prompt": "a", "cache_salt": HALF}, "cache_salt"),
    ],
)
def test_half_a_surrogate_pair_in_a_prompt(text: LLM, prompt: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"character 2 is U\+D800") as caught:
        text.generate(["a", prompt], FEW, use_tqdm=False)
    assert (caught.value.param, caught.value.index) == (param, 1)
    good, bad = text.generate(["a", prompt], FEW, use_tqdm=False, on_error="return")
    assert good.error is None and len(good.outputs[0].token_ids) == 2
    assert bad.error is not None and bad.error.param == param
    with pytest.raises(InvalidRequestError, match="character 2"):
        text.score_tokens([prompt], use_tqdm=False)
    with pytest.raises(InvalidRequestError, match="character 2"):
        text.submit(prompt, FEW)


def test_half_a_surrogate_pair_in_a_message(text: LLM) -> None:
    def chat(content: Any) -> list[Any]:
        return [{"role": "system", "content": "x"}, {"role": "user", "content": content}]

    for content in (HALF, [{"type": "text", "text": HALF}]):
        with pytest.raises(InvalidRequestError, match=r"messages\[\d\].*character 2") as caught:
            text.chat([chat("a"), chat(content)], FEW, use_tqdm=False)
        assert (caught.value.param, caught.value.index) == ("messages", 1)
        good, bad = text.chat([chat("a"), chat(content)], FEW, use_tqdm=False, on_error="return")
        assert good.error is None
        assert bad.error is not None and bad.error.param == "messages"
    with pytest.raises(InvalidRequestError, match="half of a surrogate pair"):
        text.apply_chat_template(chat(HALF))
    tokenizer = text.get_tokenizer()
    for call in (
        tokenizer.encode,
        tokenizer.encode_untrusted,
        lambda t: tokenizer.batch_encode([t]),
    ):
        with pytest.raises(InvalidRequestError, match="character 2"):
            call(HALF)


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "param"),
    [
        ({"timeout": "x"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"request_ids": 5}, "request_ids"),
        ({"request_ids": [[5]]}, "request_ids"),
        ({"request_ids": [5]}, "request_ids"),
        ({"request_ids": [None]}, "request_ids"),
        ({"request_ids": [""]}, "request_ids"),
        ({"request_ids": ""}, "request_ids"),
        ({"tokenization_kwargs": 5}, "tokenization_kwargs"),
        ({"use_tqdm": "yes"}, "use_tqdm"),
        ({"use_tqdm": None}, "use_tqdm"),
    ],
)
def test_keywords_of_generate(ids: LLM, keywords: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{param}=") as caught:
        ids.generate([1, 2], FEW, **{"use_tqdm": False, **keywords})
    assert caught.value.param == param


def test_keywords_of_submit(ids: LLM) -> None:
    for keywords in ({"request_id": 5}, {"request_id": ""}, {"on_token": 5}):
        with pytest.raises(InvalidRequestError):
            ids.submit([1, 2], FEW, **keywords)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="generate_stream"):
        ids.submit([1, 2], FEW.replace(output_kind=RequestOutputKind.DELTA))
    for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY, None):
        out = ids.submit([1, 2], FEW.replace(output_kind=kind)).result(timeout=30)
        assert out.finished and len(out.outputs[0].token_ids) == 2


def test_keywords_of_abort(ids: LLM) -> None:
    for value in (5, None, [[1]], [5], b"x"):
        with pytest.raises(InvalidRequestError, match="^request_ids="):
            ids.abort(value)  # type: ignore[arg-type]
    assert ids.abort(["nobody"]) == 0


@pytest.mark.parametrize(
    "keywords",
    [
        {"tools": 5},
        {"tools": "x"},
        {"tools": {"type": "function"}},
        {"add_generation_prompt": "x"},
        {"continue_final_message": 1},
        {"parallel_tool_calls": None},
    ],
)
def test_keywords_of_chat(text: LLM, keywords: dict[str, Any]) -> None:
    (param,) = keywords
    with pytest.raises(InvalidRequestError, match=f"^{param}=") as caught:
        text.chat([{"role": "user", "content": "x"}], FEW, use_tqdm=False, **keywords)
    assert caught.value.param == param


def test_keywords_of_trace(ids: LLM) -> None:
    layers = len(ids.trace([1, 2], what="experts").experts or ())
    for keywords in (
        {"what": 5},
        {"what": [5]},
        {"force_blocks": ["abc"]},
        {"force_blocks": ["abc"] * layers},
    ):
        with pytest.raises(InvalidRequestError):
            ids.trace([1, 2], **keywords)  # type: ignore[arg-type]
    experts = ids.trace([1, 2], what="experts").experts
    assert experts is not None
    for value in (0.5, float("nan"), 70000, -2, "abc", 10**400):
        forced = [None if e is None else np.full(e.shape, value) for e in experts]
        with pytest.raises(InvalidRequestError, match=r"^force_experts\[\d\]"):
            ids.trace([1, 2], force_experts=forced)
    again = ids.trace([1, 2], what="experts", force_experts=experts).experts
    assert again is not None
    for a, b in zip(again, experts, strict=True):
        assert (a is None and b is None) or np.array_equal(a, b)


@pytest.mark.parametrize(
    "prompt",
    [
        [1, True],
        [1, np.bool_(True)],
        {"prompt_token_ids": {1: 2}},
        {"prompt_token_ids": {1, 2}},
        {"prompt_token_ids": b"ab"},
        {"prompt_token_ids": [1, False]},
    ],
)
def test_prompts_that_are_no_ids(ids: LLM, prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ids.generate(prompt, FEW, use_tqdm=False)
    assert caught.value.param == "prompt_token_ids"


def test_an_empty_prompt_is_an_error_of_its_own(ids: LLM) -> None:
    for empty in ([], np.zeros(0, dtype=np.int64), {"prompt_token_ids": []}):
        good, bad = ids.generate([[1, 2], empty], FEW, use_tqdm=False, on_error="return")
        assert good.error is None and len(good.outputs[0].token_ids) == 2
        assert bad.error is not None and "empty" in bad.error.message
        stream = list(ids.generate_stream([[1, 2], empty], FEW, on_error="return"))
        assert [out.index for out in stream if out.error is not None] == [1]
        with pytest.raises(InvalidRequestError, match="empty") as caught:
            ids.generate([[1, 2], empty], FEW, use_tqdm=False)
        assert caught.value.index == 1


def test_other_kinds(text: LLM) -> None:
    for wrong in ("abc", [1.5], [True], [None], 2.0):
        with pytest.raises(InvalidRequestError, match="^ids="):
            text.get_tokenizer().decode(wrong)  # type: ignore[arg-type]
    assert text.get_tokenizer().decode(np.asarray([65])) == text.get_tokenizer().decode(65)
    for bias in ({"x": 1}, {None: 1}, {1.5: 1}, {"1": "high"}):
        with pytest.raises(InvalidRequestError, match="^logit_bias="):
            SamplingParams.from_optional(logit_bias=bias)
    assert SamplingParams.from_optional(logit_bias={"3": 500}).logit_bias == {3: 100.0}


def test_what_is_no_conversation(text: LLM) -> None:
    for wrong in (5, None, "", [], object()):
        with pytest.raises(InvalidRequestError, match="^message="):
            Conversation(text).say(wrong)
    for engine in ("nano", None, text.as_async()):
        with pytest.raises(TypeError, match="an open LLM is needed, not"):
            Conversation(engine)
    with pytest.raises(InvalidRequestError, match="^text_or_token_ids=5"):
        text.parse_output(5, start="enabled")  # type: ignore[arg-type]
    talk = [{"role": "user", "content": "a"}]
    for path in ("templates/mine.jinja", "", "no expression"):
        with pytest.raises(InvalidRequestError, match="is no template.*read_text"):
            text.chat(talk, FEW, chat_template=path, use_tqdm=False)


def test_a_conversation_of_several_threads_loses_no_turn(text: LLM) -> None:
    talk = Conversation(text)
    threads = [threading.Thread(target=talk.say, args=(f"{i}", FEW)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [m["role"] for m in talk.messages] == ["user", "assistant"] * 6
    assert sorted(m["content"] for m in talk.messages[::2]) == [str(i) for i in range(6)]
    assert len(talk.outputs) == 6 and talk.outputs[-1].prompt_token_ids == talk.token_ids[:-2]


def test_warm_up_takes_lists_of_numbers(ids: LLM) -> None:
    for name in ("batch_sizes", "lengths"):
        for wrong in (3, "8", [0], [-1], [1.5], [True]):
            with pytest.raises(InvalidRequestError, match=f"^{name}="):
                ids.warmup(**{name: wrong})
    before = ids.stats().num_finished
    ids.warmup((1, 2), [5])
    assert ids.stats().num_finished == before + 3


def test_ids_that_stand_for_no_token(text: LLM) -> None:
    tokenizer = text.get_tokenizer()
    assert tokenizer.convert_ids_to_tokens([-1, 10**9]) == [None, None]
    with pytest.raises(InvalidRequestError, match="^ids="):
        tokenizer.convert_ids_to_tokens(["a"])  # type: ignore[list-item]


def test_names_of_a_plan_are_suggested() -> None:
    with pytest.raises(TypeError, match="did you mean .*gpu"):
        LLM.plan("nano", gpus=3)


def test_a_limit_of_the_address_space_is_seen() -> None:
    """ulimit -v, as batch systems set it: sizes that are chosen fit into it."""
    code = (
        "import resource; from minimax_m31.opening import free_host_bytes; "
        "before = free_host_bytes(); "
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY)); "
        "print(before, free_host_bytes())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    before, limited = map(int, done.stdout.split())
    assert 0 < limited < 1 << 30 and limited < before


# -- checkpoints -----------------------------------------------------------------------------------


def config(**changes: Any) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((IDS_MODEL / "config.json").read_text())
    raw["text_config"].update(changes)
    return raw


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "192"}, "hidden_size is '192', expected an integer"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, expected an integer in -2147"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps is 'x', expected a number"),
        ({"rms_norm_eps": 10**310}, "expected a finite number in -1e300 .. 1e300"),
    ],
)
def test_messages_about_a_config(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read_model_config(config(**changes))


def test_end_tokens_beyond_the_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="minimax_m31"):
        info = read_config(config(eos_token_id=[1, 70000], bos_token_id=80000))
    assert info.eos_token_ids == [1]
    assert "eos_token_id [70000] and bos_token_id [80000] outside vocab_size" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="minimax_m31"):
        assert read_config(config(eos_token_id=70000)).eos_token_ids == []
    assert "no end token is left" in caplog.text


def test_a_generation_config_that_cannot_be_run(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        if (IDS_MODEL / name).exists():
            shutil.copy(IDS_MODEL / name, tmp_path / name)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": "hot"}))
    with pytest.raises(ConfigError, match=r"generation_config\.json: temperature='hot'") as caught:
        LLM(tmp_path, backend=BACKEND, max_model_len=512, load_format="dummy")
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(ConfigError, match="override_generation_config: top_p=7"):
        ids_llm(override_generation_config={"top_p": 7})


def test_values_of_the_wrong_kind_are_named() -> None:
    with LLM("nano", max_model_len=256) as llm:
        for schema in (5, True, []):
            with pytest.raises(InvalidRequestError, match=f"json={re.escape(repr(schema))}"):
                llm.generate("x", SamplingParams(structured_outputs={"json": schema}))
        with pytest.raises(InvalidRequestError, match="choice is a list"):
            llm.generate("x", SamplingParams(structured_outputs={"choice": "ab"}))
        for ids in (None, 5):
            with pytest.raises(InvalidRequestError, match=f"{ids} is not a flat list"):
                llm.answer_ids(ids, start="disabled")  # type: ignore[arg-type]
        handle = llm.submit("x", SamplingParams(max_tokens=2, ignore_eos=True))
        with pytest.raises(InvalidRequestError, match="timeout='x'"):
            handle.result(timeout="x")  # type: ignore[arg-type]
        assert len(handle.result(timeout=30).outputs[0].token_ids) == 2
    with pytest.raises(EngineClosedError), llm:
        pass
    for name, value, limit in (("max_num_seqs", 65537, 65536), ("tokenizer_threads", 5000, 4096)):
        with pytest.raises(ConfigError, match=f"{name}={value}: it must be 1 to {limit}"):
            LLM("nano", **{name: value})

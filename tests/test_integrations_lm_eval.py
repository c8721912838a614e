"""lm-evaluation-harness on this engine, with local tasks of each kind, against the same numbers
computed from logits by the harness's own rules (A9).
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("minimax_m31._core", reason="the extension is not built", exc_type=ImportError)
pytest.importorskip("lm_eval", reason='lm-eval is not installed: pip install ".[lm-eval]"')

from lm_eval.api.instance import Instance
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from minimax_m31 import LLM, ConfigError, InvalidRequestError
from minimax_m31.integrations.lm_eval import Mm31LM

WORDS = [
    {"context": "What is 17 + 25? The answer is", "choices": ["42", "17", "forty"], "gold": 0},
    {"context": "The capital of France is", "choices": ["Paris", "Rome", "blue"], "gold": 0},
    {"context": "Monday, Tuesday,", "choices": ["Wednesday", "sun", "ten"], "gold": 0},
]
COMMON = {"dataset_path": "json", "test_split": "test", "metadata": {"version": 1}}
TASKS: list[dict[str, Any]] = [
    {
        "task": "local_choice",
        "output_type": "multiple_choice",
        "doc_to_text": "{{context}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    {
        "task": "local_last_word",
        "output_type": "loglikelihood",
        "doc_to_text": "{{context}} ",
        "doc_to_target": "{{choices[gold]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    {
        "task": "local_generation",
        "output_type": "generate_until",
        "doc_to_text": "What is {{17 + gold}} + 25?",
        "doc_to_target": "{{42 + gold}}",
        "generation_kwargs": {"until": ["\n\n", "."], "max_gen_toks": 200, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("nano", max_num_seqs=16, max_model_len=1024, replace=True) as engine:
        yield engine


@pytest.fixture
def tasks(tmp_path: Path) -> list[dict[str, Any]]:
    data = tmp_path / "words.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in WORDS))
    return [
        {**COMMON, **task, "dataset_kwargs": {"data_files": {"test": str(data)}}} for task in TASKS
    ]


def evaluate(lm: Mm31LM, tasks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return simple_evaluate(
        model=lm,
        tasks=tasks,
        task_manager=TaskManager(include_defaults=False),
        bootstrap_iters=0,
        **more,
    )


def by_the_rules(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """The harness's definition, from the logits of one forward pass."""
    tokenizer = llm.get_tokenizer()
    n_blank = len(context) - len(context.rstrip())
    if n_blank:
        continuation = context[-n_blank:] + continuation
        context = context[:-n_blank]
    before = tokenizer.encode(context)
    whole = tokenizer.encode(context + continuation)
    if not before:
        before, whole = [tokenizer.document_start_id], [tokenizer.document_start_id, *whole]
    logits = llm.compute_logits(whole).astype(np.float64)
    total, greedy = 0.0, True
    for at in range(len(before), len(whole)):
        row = logits[at - 1]
        top = row.max()
        total += row[whole[at]] - top - math.log(np.exp(row - top).sum())
        greedy &= int(row.argmax()) == whole[at]
    return total, greedy


def instances(kind: str, arguments: list[tuple[Any, ...]]) -> list[Instance]:
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


def test_a9_loglikelihoods_follow_the_rules(llm: LLM) -> None:
    lm = Mm31LM(llm, use_tqdm=False)
    pairs = [
        (row["context"] + end, " " * (not end) + choice)
        for row in WORDS
        for choice in row["choices"]
        for end in ("", " ", "\n")
    ]
    pairs += [("", "Hello there"), ("  ", "x"), ("a", "b" * 40)]
    found = lm.loglikelihood(instances("loglikelihood", pairs))
    for pair, (total, greedy) in zip(pairs, found, strict=True):
        expected, is_greedy = by_the_rules(llm, *pair)
        assert total == pytest.approx(expected, abs=1e-4), pair
        assert greedy == is_greedy, pair
    as_ids = [((a, b), *lm._encode_pair(a, b)) for a, b in pairs[:9]]
    assert lm._loglikelihood_tokens(as_ids) == found[:9]
    assert lm.loglikelihood([]) == []


def test_rolling_predicts_every_token_once(llm: LLM) -> None:
    lm = Mm31LM(llm, use_tqdm=False)
    text = "What is 17 + 25? The answer is 42. " * 3
    (total,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]))
    assert total == pytest.approx(by_the_rules(llm, "", text)[0], abs=1e-3)


def test_generate_until_follows_the_kwargs(llm: LLM) -> None:
    lm = Mm31LM(llm, use_tqdm=False)
    asked = [
        ("17 + 25 =", {"until": ["\n"], "max_gen_toks": 5}),
        ("17 + 25 =", {"until": "2", "max_gen_toks": 50, "do_sample": False}),
        ("17 + 25 =", {"max_new_tokens": 4, "do_sample": True, "temperature": 0.7, "seed": 3}),
    ]
    first, second, third = lm.generate_until(instances("generate_until", asked))
    assert "\n" not in first and "2" not in second
    whole = llm.generate("17 + 25 =", _greedy(50), use_tqdm=False)[0].outputs[0].text
    assert second == whole.split("2")[0]
    drawn = _greedy(4).clone()
    drawn.temperature, drawn.seed = 0.7, 3
    assert third == llm.generate("17 + 25 =", drawn, use_tqdm=False)[0].outputs[0].text
    with pytest.raises(InvalidRequestError, match="num_beams"):
        lm.generate_until(instances("generate_until", [("a", {"num_beams": 4})]))
    with pytest.raises(TypeError, match="temprature"):
        lm.generate_until(instances("generate_until", [("a", {"temprature": 4})]))


def _greedy(n: int) -> Any:
    from minimax_m31 import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=n, skip_special_tokens=False)


def test_a9_tasks_of_each_kind(llm: LLM, tasks: list[dict[str, Any]]) -> None:
    lm = Mm31LM(llm, use_tqdm=False)
    results = evaluate(lm, tasks)["results"]
    choice = results["local_choice"]
    expected = [
        max(range(3), key=lambda i: by_the_rules(llm, row["context"], " " + row["choices"][i])[0])
        for row in WORDS
    ]
    assert choice["acc,none"] == pytest.approx(np.mean([e == 0 for e in expected]))
    words = [by_the_rules(llm, row["context"] + " ", row["choices"][0]) for row in WORDS]
    assert results["local_last_word"]["perplexity,none"] == pytest.approx(
        math.exp(-np.mean([total for total, _ in words])), rel=1e-3
    )
    assert results["local_last_word"]["acc,none"] == pytest.approx(np.mean([g for _, g in words]))


def test_chat_tasks_see_the_content_only(llm: LLM, tasks: list[dict[str, Any]]) -> None:
    """The thinking of this question holds the stop string; the answer comes whole all the same."""
    lm = Mm31LM(llm, use_tqdm=False, enable_thinking=True, max_gen_toks=200)
    generation = [task for task in tasks if task["task"] == "local_generation"]
    out = evaluate(lm, generation, apply_chat_template=True, log_samples=True)
    samples = out["samples"]["local_generation"]
    answers = [sample["resps"][0][0] for sample in samples]
    assert answers == ["42"] * 3 and out["results"]["local_generation"]["exact_match,none"] == 1.0
    # The same object continues plain texts as they are, and knows rendered ones it has not made.
    kwargs = {"max_gen_toks": 200}
    plain = llm.generate("17 + 25 =", _greedy(200), use_tqdm=False)[0].outputs[0].text
    rendered = lm.apply_chat_template([{"role": "user", "content": "What is 17 + 25?"}])
    asked = instances("generate_until", [("17 + 25 =", kwargs), (rendered, kwargs)])
    fresh = Mm31LM(llm, use_tqdm=False, enable_thinking=True)
    assert lm.generate_until(asked) == fresh.generate_until(asked) == [plain, "42"]
    with pytest.raises(ConfigError, match="enable_thinking"):
        lm.loglikelihood(instances("loglikelihood", [("a", "b")]))


def test_properties_and_bad_arguments(llm: LLM) -> None:
    lm = Mm31LM(llm, batch_size="auto")
    tokenizer = llm.get_tokenizer()
    assert lm.eot_token_id == tokenizer.eos_token_id
    assert lm.prefix_token_id == tokenizer.document_start_id
    assert (lm.max_length, lm.max_gen_toks) == (1024, 256)
    assert lm.tokenizer_name == Mm31LM(llm).tokenizer_name
    assert lm.chat_template(True) == tokenizer.chat_template and lm.chat_template(False) is None
    with pytest.raises(ConfigError, match="think_end_token"):
        Mm31LM(llm, think_end_token="</think>")
    with pytest.raises(ConfigError, match="open already"):
        Mm31LM(llm, max_num_seqs=4)


def test_command_line(tmp_path: Path, tasks: list[dict[str, Any]]) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "choice.yaml").write_text(json.dumps(tasks[0]))  # JSON is YAML
    out = tmp_path / "out"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "minimax_m31",
            "lm-eval",
            "--model",
            "minimax_m31",
            "--model_args",
            "pretrained=nano,max_model_len=512,max_num_seqs=4",
            "--tasks",
            "local_choice",
            "--include_path",
            str(folder),
            "--output_path",
            str(out),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "local_choice" in done.stdout
    assert list(out.rglob("results*.json"))

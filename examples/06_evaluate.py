"""Evaluation: log-probabilities of given texts, and lm-evaluation-harness on a local task.

python examples/06_evaluate.py [checkpoint folder]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from minimax_m31 import LLM


def lm_eval_sums(llm: LLM) -> str:
    """A task made of a JSON file, as the harness runs it."""
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager

        from minimax_m31.integrations.lm_eval import Mm31LM
    except ImportError:
        return 'not installed: pip install "minimax-m31[lm-eval]"'
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "sums.jsonl")
        rows = [{"question": f"What is {a} + 25?", "answer": str(a + 25)} for a in range(10, 26)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        task = {
            "task": "sums",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "{{question}}",
            "doc_to_target": "{{answer}}",
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 300},
            "metric_list": [{"metric": "exact_match"}],
        }
        lm = Mm31LM(llm, enable_thinking=True, use_tqdm=False)
        options = {"apply_chat_template": True, "task_manager": TaskManager(include_defaults=False)}
        found = simple_evaluate(lm, tasks=[task], bootstrap_iters=0, **options)
    return f"exact match {found['results']['sums']['exact_match,none']}"


with LLM(sys.argv[1] if len(sys.argv) > 1 else "nano", max_num_seqs=16) as llm:
    question = [{"role": "user", "content": "What is 17 + 25?"}]
    context = llm.apply_chat_template(question, thinking="disabled", tokenize=False)
    # How likely each answer is after its question, and whether greedy decoding would give it.
    answers = ["42", "43", "Paris"]
    scored = llm.loglikelihood([context] * len(answers), answers, use_tqdm=False)
    for answer, (logprob, is_greedy) in zip(answers, scored, strict=True):
        print(f"log p({answer!r}) = {logprob:.3f}{'  <- greedy' if is_greedy else ''}")
    # Token by token: the prompt is a list of ids, scored from where the answer begins.
    ids = llm.get_tokenizer().encode(context + "43")
    scores = llm.score_tokens(ids, start=len(ids) - 2, top_k=1, use_tqdm=False)[0]
    print("ranks of the digits of 43:", scores.ranks.tolist())
    print("lm-eval:", lm_eval_sums(llm))

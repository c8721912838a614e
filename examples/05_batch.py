"""A batch to a file of JSON lines that can be interrupted and resumed; answers that fit a schema.

python examples/05_batch.py [answers.jsonl [checkpoint folder]]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from minimax_m31 import LLM, SamplingParams, StructuredOutputsParams

path = Path(sys.argv[1] if len(sys.argv) > 1 else "answers.jsonl")
model = sys.argv[2] if len(sys.argv) > 2 else "nano"
questions = {f"sum-{a}": f"What is {a} + 25?" for a in range(10, 40)}
schema = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}
params = SamplingParams(
    temperature=0.0, max_tokens=300, structured_outputs=StructuredOutputsParams(json=schema)
)

# What is in the file already is not asked again. A line that an interruption cut short is dropped.
done: dict[str, int] = {}
kept = []
for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        continue
    done[row["id"]] = row["answer"]
    kept.append(line + "\n")
path.write_text("".join(kept), encoding="utf-8")
left = [name for name in questions if name not in done]
print(f"{len(done)} done, {len(left)} left")

with LLM(model, max_num_seqs=16, log_level="ERROR") as llm, path.open("a", encoding="utf-8") as out:
    # The text of a conversation is a prompt like any other; results come as they finish.
    prompts = [
        llm.apply_chat_template(
            [{"role": "user", "content": questions[name]}], thinking="disabled", tokenize=False
        )
        for name in left
    ]
    for index, output in llm.generate_iter(prompts, params, on_error="return", use_tqdm=False):
        if output.error is not None:
            print(left[index], "failed:", output.error.message)
            continue
        answer = json.loads(output.outputs[0].text)["answer"]
        out.write(json.dumps({"id": left[index], "answer": answer}) + "\n")
        out.flush()
        done[left[index]] = answer

right = sum(done.get(name) == int(name.split("-")[1]) + 25 for name in questions)
print(f"{len(done)} answers in {path.name}, {right} right")

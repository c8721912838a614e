"""Adapters for evaluation harnesses and trainers. Each module imports its package when it is
imported itself; nothing here is loaded by `import minimax_m31`.

| module | for |
|---|---|
| `lm_eval` | lm-evaluation-harness: the model "minimax_m31" |
| `inspect_ai` | Inspect: the provider "minimax_m31/..." |
| `evalscope` | EvalScope: the same, synchronous |
| `simple_evals` | simple-evals: a sampler |
| `trl` | TRL: rollouts for its trainers; this engine in the place of vLLM |
| `records` | what was run, as JSON lines |
"""

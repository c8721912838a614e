"""Completions for TRL's trainers.

`Rollouts(llm)` is a `rollout_func`: the trainer hands it prompts, it answers with token ids and the
log-probabilities that the trainer would compute for them (full vocabulary, logits divided by the
temperature).

    trainer = GRPOTrainer(model, reward_funcs=..., args=args, train_dataset=rows,
                          processing_class=tokenizer, rollout_func=Rollouts(llm))

The engine's weights are those that it was opened with: the trainer's steps do not reach them. To
follow it, save model and tokenizer every few steps (`save_pretrained`), close the engine and open
the folder: `rollouts.llm = LLM(folder)`. Importance weights from the returned log-probabilities
cover the steps between.

TRL can also be told to use vLLM: it writes `from vllm import LLM, SamplingParams`, calls
`llm.generate` and reads `outputs[i].outputs[j].token_ids`. `as_vllm()` makes those imports find
`minimax_m31.compat.vllm`, in this process and until it is left:

    with as_vllm():
        from trl import GRPOTrainer
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ..compat import vllm as drop_in
from ..llm import LLM
from ..params import SamplingParams
from ..params_check import bad

# Fields of TRL's arguments that say how completions are drawn, by their names here.
_FIELDS = {
    "max_completion_length": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}

_MODULES = ("sampling_params", "outputs", "inputs", "entrypoints", "entrypoints.llm")


@contextlib.contextmanager
def as_vllm() -> Iterator[None]:
    """Inside, `import vllm` and its submodules give the drop-in. A vLLM that was imported before is
    an error: its classes are in use.
    """
    if "vllm" in sys.modules and sys.modules["vllm"] is not drop_in:
        raise RuntimeError("vllm is imported in this process: enter as_vllm() before anything does")
    names = {"vllm": drop_in}
    for name in _MODULES:
        names[f"vllm.{name}"] = importlib.import_module(f"{drop_in.__name__}.{name}")
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


class Rollouts:
    """A `rollout_func` for `GRPOTrainer`.

    Prompts are texts, conversations (rendered as `llm.chat` would, `chat_args` as there: thinking,
    tools, ...) or lists of token ids. `sampling_params=None` takes the trainer's arguments
    (temperature, top_p, max_completion_length, generation_kwargs, ...). Equal prompts in a row are
    the samples of one request and share its prompt.
    """

    def __init__(
        self, llm: LLM, sampling_params: SamplingParams | None = None, **chat_args: Any
    ) -> None:
        if sampling_params is not None and not isinstance(sampling_params, SamplingParams):
            raise bad("sampling_params", sampling_params, "a SamplingParams is needed")
        self.llm = llm
        self.sampling_params = sampling_params
        self.chat_args = chat_args

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """`prompt_ids`, `completion_ids` and `logprobs`, one of each for each prompt."""
        params = self.sampling_params or params_of(trainer.args)
        params = params.replace(
            logprobs=0, logprobs_mode="tempered_logprobs", detokenize=False, n=1
        )
        groups = [(prompt, len(list(same))) for prompt, same in itertools.groupby(prompts)]
        # one sample of a greedy request is all of them
        counts = [1 if params.temperature == 0 else n for _, n in groups]
        outputs = self.llm.generate(
            [self._tokens(prompt) for prompt, _ in groups],
            [params.replace(n=n) for n in counts],
            use_tqdm=False,
        )
        made: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for output, (_, n) in zip(outputs, groups, strict=True):
            for one in itertools.islice(itertools.cycle(output.outputs), n):
                values = one.token_logprobs
                assert values is not None  # logprobs=0 was asked for
                made["prompt_ids"].append(list(output.prompt_token_ids))
                made["completion_ids"].append(list(one.token_ids))
                made["logprobs"].append([float(value) for value in values])
        return made

    def _tokens(self, prompt: Any) -> Any:
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            return {"prompt_token_ids": self.llm.apply_chat_template(prompt, **self.chat_args)}
        return {"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt


def params_of(args: Any) -> SamplingParams:
    """The sampling parameters in a trainer's arguments (GRPOConfig and its kin)."""
    given = {ours: getattr(args, theirs, None) for theirs, ours in _FIELDS.items()}
    extra = getattr(args, "generation_kwargs", None) or {}
    return SamplingParams.from_optional(**given | extra)

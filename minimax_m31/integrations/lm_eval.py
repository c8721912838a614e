"""The model "minimax_m31" of lm-evaluation-harness (`pip install "minimax-m31[lm-eval]"`).

    from minimax_m31.integrations.lm_eval import Mm31LM
    lm_eval.simple_evaluate(model=Mm31LM(llm), tasks=["hellaswag"])

or `python -m minimax_m31 lm-eval --model minimax_m31 --model_args pretrained=FOLDER --tasks ...`.
Requests are not batched here: the engine takes all of them and fills its batch by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
except ImportError as error:
    raise ImportError(
        f'lm-evaluation-harness cannot be imported ({error}): pip install "minimax-m31[lm-eval]"'
    ) from error

from ..chat.marks import DOCUMENT_START, THINK_CLOSE
from ..chat.thinking import thinking_mode
from ..errors import ConfigError, InvalidRequestError
from ..llm import LLM
from ..params import SamplingParams
from ._answers import answer_rendered

logger = logging.getLogger("minimax_m31")

MAX_GEN_TOKS = 256  # the harness's own default
# Names of one limit, first one wins.
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_MEANINGLESS = {"num_beams": (1, None), "use_cache": (True, False, None)}  # values that say nothing


@register_model("minimax_m31")
class Mm31LM(TemplateLM):
    """`pretrained`: an LLM, or what LLM takes as its model; other keywords are the engine's.

    `enable_thinking` (None: the model decides) and `reasoning_effort` are for tasks with
    --apply_chat_template: the answer that a task sees is then the content without the thinking, and
    its stop strings do not end the thinking. `batch_size` and `device` (which the harness's command
    line sets by itself) have no effect: `backend` says where the engine runs.
    """

    def __init__(
        self,
        pretrained: Any = "nano",
        *,
        enable_thinking: Any = None,
        reasoning_effort: str | None = None,
        think_end_token: str | None = None,
        max_gen_toks: int = MAX_GEN_TOKS,
        max_length: int | None = None,
        prefix_token_id: int | None = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
        device: str | None = None,
        use_tqdm: bool = True,
        **engine_args: Any,
    ) -> None:
        super().__init__()
        del batch_size, max_batch_size, device
        self._thinking = thinking_mode(enable_thinking)
        self._effort = reasoning_effort
        if think_end_token not in (None, THINK_CLOSE):
            raise ConfigError(
                f"think_end_token={think_end_token!r}: this model's is {THINK_CLOSE!r}, and is "
                "known without saying"
            )
        if max_length is not None:
            engine_args.setdefault("max_model_len", max_length)
        self._owns = not isinstance(pretrained, LLM)
        if isinstance(pretrained, LLM):
            if engine_args:
                raise ConfigError(
                    f"{', '.join(sorted(engine_args))}: the engine is open already; give these to "
                    "LLM(...)"
                )
            self.llm = pretrained
        else:
            self.llm = LLM(pretrained, **engine_args)
        self.tokenizer = self.llm.get_tokenizer()
        self._max_gen_toks = int(max_gen_toks)
        self._prefix = prefix_token_id
        self._use_tqdm = use_tqdm
        self._start: str | None = None  # thinking state in which answers of conversations begin

    # -- what the harness asks ---------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        found = self.tokenizer.eos_token_id
        if found is None:
            raise ConfigError("tokenizer_config.json names no eos_token")
        return found

    @property
    def prefix_token_id(self) -> int:
        """Stands for an empty context: the token that opens a document."""
        return self.tokenizer.document_start_id if self._prefix is None else self._prefix

    @property
    def max_length(self) -> int:
        return int(self.llm.model_config.max_model_len)

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        """Vocabulary and chat template, by their hash: requests are cached under it."""
        return f"minimax_m31-{hash(self.tokenizer) & (2**64 - 1):016x}"

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        """Nothing is ever added: prompts carry their marks."""
        return self.tokenizer.encode(string)

    def tok_decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(tokens)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if isinstance(chat_template, str):
            raise ConfigError(
                f"apply_chat_template={chat_template!r}: this model has one template; give True"
            )
        return self.tokenizer.require_chat_template() if chat_template else None

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The text of a conversation; without a generation prompt its last turn is continued."""
        from ..chat.render import render

        default_thinking, default_effort = self.llm.chat_defaults
        rendered = render(
            chat_history,
            self.tokenizer.require_chat_template(),
            None,
            default_thinking if self._thinking is None else self._thinking,
            default_effort if self._effort is None else self._effort,
            add_generation_prompt,
            not add_generation_prompt,
        )
        self._start = rendered.parser_start
        return rendered.prompt

    # -- scores ------------------------------------------------------------------------------------

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._refuse_thinking("loglikelihood")
        pairs = [request.args for request in requests]
        scores = self.llm.loglikelihood(
            [context for context, _ in pairs],
            [continuation for _, continuation in pairs],
            prefix_token_id=self.prefix_token_id,
            use_tqdm=self._use_tqdm and not disable_tqdm,
        )
        for pair, score in zip(pairs, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", pair, score)
        return scores

    def _loglikelihood_tokens(
        self, requests: Any, disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        self._refuse_thinking("loglikelihood")
        return self.llm.loglikelihood(
            [context for _, context, _ in requests],
            [continuation for _, _, continuation in requests],
            prefix_token_id=self.prefix_token_id,
            use_tqdm=self._use_tqdm and not disable_tqdm,
        )

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        self._refuse_thinking("loglikelihood_rolling")
        documents = [request.args for request in requests]
        found = self.llm.perplexity(
            [text for (text,) in documents],
            prefix_token_id=self.prefix_token_id,
            use_tqdm=self._use_tqdm and not disable_tqdm,
        )
        out = [one.logprob for one in found]
        for document, total in zip(documents, out, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", document, total)
        return out

    def _refuse_thinking(self, kind: str) -> None:
        if self._thinking == "enabled":
            raise ConfigError(
                f"enable_thinking: a {kind} task scores a given answer, which nothing thinks about "
                "first; use enable_thinking=False, or a generation task"
            )

    # -- generation --------------------------------------------------------------------------------

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        asked = [request.args for request in requests]
        made: dict[str, SamplingParams] = {}  # equal arguments share their parameters
        params = []
        for _, given in asked:
            key = repr(sorted(given.items()))
            if key not in made:
                made[key] = self._params(given)
            params.append(made[key])
        starts = [self._start_of(context) for context, _ in asked]
        outputs = answer_rendered(
            self.llm,
            [context for context, _ in asked],
            params,
            starts,
            self._use_tqdm and not disable_tqdm,
        )
        n_cut = sum(output.num_truncated_tokens > 0 for output in outputs)
        if n_cut:
            logger.warning("%d prompts were too long with max_gen_toks and lost their start", n_cut)
        out = []
        for (context, given), start, output in zip(asked, starts, outputs, strict=True):
            text = output.outputs[0].text
            if start is not None:
                text = self.llm.parse_output(text, start=start).content
            out.append(text)
            self.cache_hook.add_partial("generate_until", (context, given), text)
        return out

    def _start_of(self, context: str) -> str | None:
        """The thinking state in which the answer to a text begins; None: it is no conversation."""
        if not context.startswith(DOCUMENT_START):
            return None
        if self._start is None:  # the harness has the rendered texts from its cache
            self.apply_chat_template([{"role": "user", "content": "?"}])
        return self._start

    def _params(self, given: Mapping[str, Any]) -> SamplingParams:
        """Sampling parameters from a task's generation_kwargs; greedy unless it samples."""
        values = dict(given)
        until = values.pop("until", None) or []
        limits = [values.pop(name, None) for name in _LIMITS]
        limit = next((value for value in limits if value is not None), self._max_gen_toks)
        sample = values.pop("do_sample", None)
        temperature = float(values.pop("temperature", None) or 0.0)
        if sample is None:
            sample = temperature > 0
        elif sample and temperature == 0:
            temperature = 1.0
        for name, nothing in _MEANINGLESS.items():
            value = values.pop(name, None)
            if value not in nothing:
                raise InvalidRequestError(f"generation_kwargs: {name}={value!r} is not possible")
        values.setdefault("skip_special_tokens", False)
        return SamplingParams.from_optional(
            max_tokens=int(limit),
            stop=[word for word in ([until] if isinstance(until, str) else until) if word],
            temperature=temperature if sample else 0.0,
            truncate_prompt_tokens=-1,
            **values,
        )

    def close(self) -> None:
        """Closes the engine, unless it was given."""
        if self._owns:
            self.llm.shutdown()


def main(arguments: Sequence[str]) -> int:
    """The harness's own command line, with the model registered."""
    import sys

    from lm_eval.__main__ import cli_evaluate

    kept = sys.argv
    sys.argv = ["minimax_m31 lm-eval", *arguments]
    try:
        cli_evaluate()
    finally:
        sys.argv = kept
    return 0

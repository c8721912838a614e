"""Streams: outputs while a call runs.

A stream is a call whose mailbox is woken every few tokens. Each piece of news becomes a
RequestOutput that holds what is new (DELTA), everything so far (CUMULATIVE) or, for FINAL_ONLY,
nothing until the end. Text appears as soon as it can no longer change: no half characters, no
beginnings of stop strings. First and last pieces are never delayed.
"""

from __future__ import annotations

from typing import Any

from .calls import Call, Job
from .core_params import Plan
from .outputs import CompletionOutput, RequestOutput
from .params import RequestOutputKind
from .results import (
    completion,
    dead_end,
    error_record,
    exception_of,
    logprob_rows,
    metrics,
    prompt_rows,
    text_cut,
)
from .seeds import derive_seed
from .text import IncrementalText, TextTable, view


class _Sample:
    """One growing sequence: how much of it was handed out."""

    def __init__(self, plan: Plan, table: TextTable | None, raw_text: bool) -> None:
        self.sent = 0
        p = plan.params
        self.text: IncrementalText | None = None
        self.whole: list[str] = []
        if table is not None and p.detokenize:
            self.text = IncrementalText(
                table,
                skip_special=p.skip_special_tokens and not raw_text,
                stops=plan.stops,
                end_ids=plan.end_ids,
                include_stop=p.include_stop_str_in_output,
            )

    def push(
        self,
        core: dict[str, Any],
        table: TextTable | None,
        tokens: list[int],
        all_tokens: list[int],
    ) -> str:
        if self.text is None:
            return ""
        if core["finish"] == "none":
            piece = self.text.push(tokens)
        else:
            assert table is not None
            piece = self.text.finish(tokens, text_cut(core, table, all_tokens))
        self.whole.append(piece)
        return piece


class StreamCall(Call):
    """Iterating gives (index, RequestOutput) for every piece of news."""

    def __init__(
        self,
        *args: Any,
        output_kind: RequestOutputKind = RequestOutputKind.DELTA,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._kind = output_kind
        self._growing: dict[int, _Sample] = {}

    def _collect(self, core_id: int) -> None:
        entry = self._flying.get(core_id)
        if entry is None:
            return
        job, sample = entry
        state = self._growing.get(core_id)
        if state is None:
            state = self._growing[core_id] = _Sample(job.plan, self.llm._table, self._raw_text)
        cumulative = self._kind is not RequestOutputKind.DELTA
        core = self.engine.read(core_id, 0 if cumulative else state.sent)
        ended = core["finish"] != "none"
        if core["n_token"] == state.sent and not ended:
            return
        whole = core if cumulative or not ended else self.engine.read(core_id)
        if job.plan.grammar is not None:
            dead_end(core)
            dead_end(whole)
        tokens = core["token"].tolist()
        before = state.sent
        state.sent = core["n_token"]
        new = tokens[before:] if cumulative else tokens
        piece = state.push(core, self.llm._table, new, whole["token"].tolist())
        if ended:
            del self._flying[core_id], self._growing[core_id]
            self.engine.release(core_id)
            job.samples[sample] = whole
            if core["finish"] == "error" and self._raise:
                raise exception_of(core["error"], job.index)
        if self._kind is RequestOutputKind.FINAL_ONLY and not ended:
            return
        out = self._sample_output(job, sample, core, "".join(state.whole) if cumulative else piece)
        if before > 0 and not cumulative:
            out.prompt_token_ids = []  # only the first piece repeats the prompt
        self._decorate(job, out, piece)
        self._ready.append((job.index, out))
        if job.is_done:
            self.llm._forget_job(job.request_id, job)

    def _decorate(self, job: Job, out: RequestOutput, piece: str) -> None:
        """Adds to an output before it is given away. `piece`: the text that is new."""

    def _sample_output(
        self, job: Job, sample: int, core: dict[str, Any], text: str
    ) -> RequestOutput:
        plan, table = job.plan, self.llm._table
        seed = derive_seed(job.seed, sample)
        one: CompletionOutput = completion(core, plan, None, index=sample, seed=seed)
        one.logprobs = logprob_rows(core, plan, table)
        one.text = text
        ended = one.finish_reason is not None
        failed = None if core["error"] is None else exception_of(core["error"], job.index)
        done = job.samples[sample]
        if ended and done is not None and table is not None:
            tokens = done["token"].tolist()
            cut, include = text_cut(done, table, tokens), plan.params.include_stop_str_in_output
            shown = view(table, tokens, cut, skip_special=False, include_stop=include)
            one.num_text_tokens = shown.num_text_tokens  # of the whole sequence
        return RequestOutput(
            request_id=job.request_id,
            index=job.index,
            prompt=job.prompt,
            prompt_token_ids=job.ids.tolist(),
            prompt_logprobs=prompt_rows(core, plan, table) if sample == 0 and ended else None,
            outputs=[one],
            finished=job.is_done,
            num_cached_tokens=core["n_cached"],
            num_truncated_tokens=job.num_truncated,
            metrics=metrics([core]),
            seed=job.seed,
            weight_version=core["weight_version"],
            extra_args=plan.params.extra_args,
            error=None if failed is None else error_record(failed),
        )

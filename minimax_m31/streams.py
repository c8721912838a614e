"""Streams: outputs while a request runs.

A growing sequence is read whenever somebody wants to see it; each look becomes a RequestOutput that
holds what is new (DELTA), everything so far (CUMULATIVE) or, for FINAL_ONLY, nothing until the end.
Text appears as soon as it can no longer change: no half characters, no beginnings of stop strings.
First and last pieces are never delayed.
"""

from __future__ import annotations

from typing import Any

from .calls import Call, Job
from .core_params import Plan
from .outputs import RequestOutput
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

_PER_TOKEN = ("token", "logprob_id", "logprob", "logprob_rank", "sampling_logprob")


def tail(core: dict[str, Any], start: int) -> dict[str, Any]:
    """What the core would report from token `start` on, from all that it reported."""
    if start == 0:
        return core
    cut = {name: None if core[name] is None else core[name][start:] for name in _PER_TOKEN}
    return core | cut


class Growth:
    """One growing sequence as one reader sees it: how much of it was handed out."""

    def __init__(self, plan: Plan, table: TextTable | None, raw_text: bool) -> None:
        self.sent = 0
        self.ids: list[int] = []
        self._table = table
        self._text: IncrementalText | None = None
        self._whole: list[str] = []
        p = plan.params
        if table is not None and p.detokenize:
            self._text = IncrementalText(
                table,
                skip_special=p.skip_special_tokens and not raw_text,
                stops=plan.stops,
                end_ids=plan.end_ids,
                include_stop=p.include_stop_str_in_output,
            )

    def advance(self, core: dict[str, Any], whole: dict[str, Any], first: int) -> str:
        """The text that is new. `core` holds the tokens from `first` on, `whole` all of them once
        the sequence has ended."""
        tokens = core["token"].tolist()[self.sent - first :]
        self.ids += tokens
        self.sent = core["n_token"]
        if self._text is None:
            return ""
        if core["finish"] == "none":
            piece = self._text.push(tokens)
        else:
            assert self._table is not None
            piece = self._text.finish(tokens, text_cut(whole, self._table, whole["token"].tolist()))
        self._whole.append(piece)
        return piece

    @property
    def text(self) -> str:
        if len(self._whole) > 1:
            self._whole = ["".join(self._whole)]
        return self._whole[0] if self._whole else ""


def first_needed(plan: Plan, growth: Growth, cumulative: bool) -> int:
    """From which token on a piece has to be read: what was handed out is known, but its rows of
    log-probabilities are not kept.
    """
    has_rows = plan.top is not None or plan.params.return_sampling_logprob
    return 0 if cumulative and has_rows else growth.sent


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
        self._growing: dict[int, Growth] = {}

    def _collect(self, core_id: int) -> None:
        entry = self._flying.get(core_id)
        if entry is None:
            return
        job, sample = entry
        growth = self._growing.get(core_id)
        if growth is None:
            growth = self._growing[core_id] = self._growth(job)
        cumulative = self._kind is RequestOutputKind.CUMULATIVE
        start = first_needed(job.plan, growth, cumulative)
        core = self.engine.read(core_id, start)
        ended = core["finish"] != "none"
        if core["n_token"] == growth.sent and not ended:
            return
        whole = core if start == 0 or not ended else self.engine.read(core_id)
        if job.plan.grammar is not None:
            dead_end(core, job.grammar_problem)
            dead_end(whole, job.grammar_problem)
        if ended:
            del self._flying[core_id], self._growing[core_id]
            self.engine.release(core_id)
            job.samples[sample] = whole
            if core["finish"] == "error" and self._raise:
                raise exception_of(core["error"], job.index)
            if job.is_done:
                self._count_finished(job)
        if self._kind is RequestOutputKind.FINAL_ONLY:
            if job.is_done:
                self.llm._forget_job(job.request_id, job)
                self._ready.append((job.index, self._result(job)))
            return
        out = self._piece(job, sample, growth, core, whole, start, cumulative, job.is_done)
        self._ready.append((job.index, out))
        if job.is_done:
            self.llm._forget_job(job.request_id, job)

    def _growth(self, job: Job) -> Growth:
        return Growth(job.plan, self.llm._table, self._raw_text)

    def _decorate(self, job: Job, out: RequestOutput, piece: str) -> None:
        """Adds to an output before it is given away. `piece`: the text that is new."""

    def _piece(
        self,
        job: Job,
        sample: int,
        growth: Growth,
        core: dict[str, Any],
        whole: dict[str, Any],
        start: int,
        cumulative: bool,
        finished: bool,
    ) -> RequestOutput:
        """What a reader gets to see of a sample: all of it, or what is new. `core` was read from
        token `start` on.
        """
        plan, table = job.plan, self.llm._table
        before = growth.sent
        new_text = growth.advance(core, whole, start)
        one = completion(core, plan, None, index=sample, seed=derive_seed(job.seed, sample))
        one.logprobs = logprob_rows(core, plan, table)
        one.text = growth.text if cumulative else new_text
        if cumulative and start > 0:
            one.token_ids = list(growth.ids)
            one.num_text_tokens += start
            one.weight_versions = [(0, core["weight_version"])]
        ended = one.finish_reason is not None
        failed = None if core["error"] is None else exception_of(core["error"], job.index)
        if ended and table is not None:
            tokens = whole["token"].tolist()
            cut, include = text_cut(whole, table, tokens), plan.params.include_stop_str_in_output
            shown = view(table, tokens, cut, skip_special=False, include_stop=include)
            one.num_text_tokens = shown.num_text_tokens  # of the whole sequence
        repeats_prompt = cumulative or before == 0  # only the first delta holds it
        out = RequestOutput(
            request_id=job.request_id,
            index=job.index,
            prompt=job.prompt,
            prompt_token_ids=job.ids.tolist() if repeats_prompt else [],
            prompt_logprobs=prompt_rows(core, plan, table) if sample == 0 and ended else None,
            outputs=[one],
            finished=finished,
            num_cached_tokens=core["n_cached"],
            num_truncated_tokens=job.num_truncated,
            metrics=metrics([core]),
            seed=job.seed,
            weight_version=core["weight_version"],
            extra_args=plan.params.extra_args,
            error=None if failed is None else error_record(failed),
        )
        self._decorate(job, out, new_text)
        return out

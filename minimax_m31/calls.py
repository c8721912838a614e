"""One call of generate, chat or score: prompts go into the engine through a window, results come
out as they finish.

The window bounds what is in flight (a few times the engine's batch), so a million prompts keep
memory flat: a prompt is encoded when its turn comes, its result is read and released when it is
done. n samples of a prompt are n requests of one group, which share the prompt's pages. Each call
has a mailbox of its own: calls from several threads do not see each other's requests.
"""

from __future__ import annotations

import atexit
import dataclasses
import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .core_params import Plan, prompt_logprob_start
from .diagnostics import drain_log
from .errors import EngineClosedError, InvalidRequestError, Mm31Error
from .outputs import RequestOutput
from .prompts import IdArray, Prompt, need_tokenizer, read_prompt, salt_number, to_ids, truncate
from .results import (
    completion,
    dead_end,
    error_record,
    exception_of,
    metrics,
    prompt_rows,
    unstarted_output,
)
from .seeds import MASK, derive_seed

if TYPE_CHECKING:
    from ._core import Engine, Waiter
    from .llm import LLM
    from .progress import Progress
    from .structured import Constraint

WINDOW = 4  # times max_num_seqs: requests in flight
LEAST_WINDOW = 256
ENCODE = 64  # prompts encoded at once
WAIT_S = 0.1  # longest wait between looks at progress and time

_groups = itertools.count(1)
_exiting = threading.Event()
_watch_exit = threading.Lock()
_exit_watched = False
T = TypeVar("T")


def watch_exit() -> None:
    """Notes when the interpreter begins to exit. Called after an engine's finaliser was made, so
    that this runs before it.
    """
    global _exit_watched
    with _watch_exit:
        if not _exit_watched:
            _exit_watched = True
            atexit.register(_exiting.set)


def is_exiting() -> bool:
    """The interpreter has begun to exit."""
    return _exiting.is_set()


def leave_at_exit(error: BaseException) -> None:
    """Ends a daemon thread without a word when the exit of the interpreter closed its engine: its
    call cannot go on, and nobody is left to hear why.
    """
    if (
        isinstance(error, EngineClosedError)
        and is_exiting()
        and threading.current_thread() is not threading.main_thread()
    ):
        raise SystemExit from None


@dataclasses.dataclass(slots=True)
class Job:
    """One prompt of a call, while it is in flight."""

    index: int
    request_id: str
    plan: Plan
    prompt: str | None
    ids: IdArray
    max_tokens: int
    capped: bool  # max_tokens is the engine's default, not the context
    num_truncated: int
    seed: int
    priority: int
    salt: int
    think_start: str | None = None
    group: int = 0
    core_ids: list[int] = dataclasses.field(default_factory=list)
    samples: list[dict[str, Any] | None] = dataclasses.field(default_factory=list)
    submitted: int = 0
    grammar_problem: str = ""  # why a constraint could not be followed any further
    aborted: bool = False

    @property
    def is_done(self) -> bool:
        return all(core is not None for core in self.samples)

    def drop_unsubmitted(self) -> None:
        """The samples that did not begin will not."""
        del self.samples[self.submitted :]


# What a call knows about prompt i: (prompt, plan, think_start). Called when the prompt's turn
# comes.
Source = Callable[[int], tuple[Prompt, Plan, "str | None"]]


class BaseCall(Generic[T]):
    """Iterating gives (index, result) as prompts finish; leaving the loop, or an exception, aborts
    the rest.

    What a result is, is up to the subclass: `_result` of a job, `_refused` of a prompt that never
    ran.
    """

    def __init__(
        self,
        llm: LLM,
        count: int,
        source: Source,
        *,
        progress: Progress | None = None,
        priority: Sequence[int] | None = None,
        request_ids: Sequence[str] | None = None,
        raise_errors: bool = True,
        timeout: float | None = None,
        raw_text: bool = False,
        notify: int = 0,
        min_finished: int | None = None,
        waiter: Waiter | None = None,
    ) -> None:
        """`min_finished`: after that many results the rest ends with what it has. `waiter`: one
        that is shared with others, and outlives the call.
        """
        self.llm = llm
        self.engine: Engine = llm._engine()
        self.count = count
        self._source = source
        self._progress = progress
        self._priority = priority
        self._request_ids = request_ids
        self._raise = raise_errors
        self._deadline = None if timeout is None else llm._now() + timeout
        self._raw_text = raw_text
        self._notify = notify
        self._window = max(LEAST_WINDOW, WINDOW * llm._facts.max_num_seqs)
        self._next = 0  # prompts taken from the source
        self._queue: deque[Job] = deque()  # encoded, samples left to submit
        self._flying: dict[int, tuple[Job, int]] = {}  # core id -> job, sample
        self._constraints: dict[int, Constraint] = {}  # core id -> state of its grammar
        self._ready: deque[tuple[int, T]] = deque()
        self._expired = False
        self._enough = min_finished
        self._n_finished = 0
        self._left = range(0)  # prompts that will not begin
        self.names: set[str] = set()  # request ids in the engine; kept by Bookkeeping
        self._aborted_ids: set[str] = set()  # of prompts that wait for their turn
        self.partial: dict[int, T] = {}  # filled when the call is cut short
        self._owns_waiter = waiter is None
        self.waiter: Waiter = self.engine.waiter() if waiter is None else waiter

    def _result(self, job: Job) -> T:
        """The result of a job, complete or cut short."""
        raise NotImplementedError

    def _refused(
        self,
        index: int,
        request_id: str,
        prompt: str | None,
        ids: list[int],
        error: Exception | None,
    ) -> T:
        """The result of a prompt that never ran; `error` is None when time was up."""
        raise NotImplementedError

    # -- driving -----------------------------------------------------------------------------------

    def __iter__(self) -> Generator[tuple[int, T], None, None]:
        try:
            while True:
                self._fill()
                while self._ready:
                    yield self._ready.popleft()
                if not self._flying:
                    if self._next >= self.count and not self._queue:
                        break
                    continue
                for core_id in self.waiter.wait(WAIT_S, cap=4096):
                    self._feed_mask(core_id)
                    self._collect(core_id)
                if self._progress is not None:
                    self._progress.tick(self.engine.stats)
                drain_log()
                self._watch_clock()
            for index in self._left:
                yield index, self._refused(index, self._id_of(index), None, [], None)
        except BaseException as error:
            leave_at_exit(error)
            self.stop()
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Aborts and releases what is left. Idempotent."""
        self.llm._forget(self)
        if not self.engine.closed:
            if self._owns_waiter:
                self.waiter.close()
            else:
                for core_id in self._flying:
                    self.engine.release(core_id)
        self._flying.clear()
        self._constraints.clear()

    def stop(self) -> None:
        """Ends everything in flight at once and keeps what there is in `partial`."""
        if self.engine.closed:
            return
        jobs = {id(job): job for job, _ in self._flying.values()}
        try:
            self.engine.abort(list(self._flying))
            for core_id, (job, sample) in list(self._flying.items()):
                core = self.engine.read(core_id)
                if core["finish"] == "none":
                    core["finish"] = "abort"
                job.samples[sample] = core
        except Mm31Error:  # the engine went away under us: what was read stays
            pass
        for job in jobs.values():
            self.partial[job.index] = self._result(job)
        self.partial.update(self._ready)

    # -- into the engine ---------------------------------------------------------------------------

    def _fill(self) -> None:
        while len(self._flying) < self._window:
            if not self._queue:
                if self._next >= self.count or self._expired:
                    return
                room = self._window - len(self._flying)
                self._encode(min(ENCODE, room, self.count - self._next))
                continue
            job = self._queue[0]
            if job.aborted or job.request_id in self._aborted_ids:
                self._queue.popleft()
                self._end_early(job)
                continue
            try:
                self._submit_next(job)
            except (InvalidRequestError, NotImplementedError) as error:
                self._queue.popleft()
                self._fail(job, error)
                continue
            if job.submitted == len(job.samples):
                self._queue.popleft()

    def _encode(self, count: int) -> None:
        """Makes jobs of the next prompts; texts are encoded together, on the library's threads."""
        begin = self._next
        self._next += count
        taken: list[tuple[int, Prompt, Plan, str | None]] = []
        for index in range(begin, begin + count):
            try:
                taken.append((index, *self._source(index)))
            except (Mm31Error, NotImplementedError) as error:
                self._refuse(index, None, [], error)
        texts = [p.text for _, p, _, _ in taken if p.ids is None and p.text is not None]
        encoded: Iterator[list[int]] = iter(())
        if texts:
            try:
                tokenizer = need_tokenizer(self.llm._tokenizer, "a text prompt", "prompt")
            except InvalidRequestError as error:
                for index, prompt, _, _ in taken:
                    if prompt.ids is None:
                        error.index = index
                        self._refuse(index, prompt.text, [], error)
                taken = [item for item in taken if item[1].ids is not None]
            else:
                encoded = iter(
                    tokenizer.batch_encode(texts, num_threads=self.llm._encode_threads(len(texts)))
                )
        for index, prompt, plan, start in taken:
            ids: Any = prompt.ids if prompt.ids is not None else next(encoded)
            try:
                self._queue.append(self._job(index, prompt, ids, plan, start))
            except (Mm31Error, NotImplementedError) as error:
                self._refuse(index, prompt.text, [], error)

    def _job(
        self, index: int, prompt: Prompt, ids: Any, plan: Plan, think_start: str | None
    ) -> Job:
        facts, p = self.llm._facts, plan.params
        array = to_ids(ids, index, facts.n_vocab)
        text, cut = prompt.text, 0
        if p.truncate_prompt_tokens is not None:
            keep = p.truncate_prompt_tokens
            if keep == -1:
                keep = facts.max_model_len - (1 if p.max_tokens is None else p.max_tokens)
                if keep < 1:
                    raise InvalidRequestError(
                        f"truncate_prompt_tokens=-1: max_tokens={p.max_tokens} leaves no room in "
                        f"{facts.max_model_len}",
                        param="truncate_prompt_tokens",
                        index=index,
                    )
            short = truncate(array, keep, p.truncation_side)
            cut = len(array) - len(short)
            if cut and text is not None and self.llm._table is not None:
                text = self.llm._table.join(short.tolist(), skip_special=False).decode(
                    "utf-8", "replace"
                )
            array = short
        max_tokens, capped = p.max_tokens, False
        if max_tokens is None:
            room = max(1, facts.max_model_len - len(array))
            max_tokens = min(room, facts.default_max_tokens)
            capped = max_tokens < room
            if p.min_tokens > max_tokens:
                raise InvalidRequestError(
                    f"min_tokens={p.min_tokens} does not fit: at most {max_tokens} tokens can be "
                    "generated",
                    param="min_tokens",
                    index=index,
                )
        return Job(
            index=index,
            request_id=self._id_of(index),
            plan=plan,
            prompt=text,
            ids=array,
            max_tokens=max_tokens,
            capped=capped,
            num_truncated=cut,
            seed=self.llm._seed_of(p),
            priority=0 if self._priority is None else self._priority[index],
            salt=salt_number(prompt.salt),
            think_start=think_start,
            group=next(_groups) if p.n > 1 else 0,
            samples=[None] * p.n,
        )

    def _submit_next(self, job: Job) -> None:
        sample = job.submitted
        core = dict(job.plan.core)
        core["max_tokens"] = job.max_tokens
        core["seed"] = derive_seed(job.seed, sample) & MASK
        core["priority"] = job.priority
        core["salt"] = job.salt
        core["group"] = job.group
        core["notify_tokens"] = self._notify
        if job.plan.prompt_top is not None and sample == 0:
            core["n_prompt_logprob"] = job.plan.prompt_top
            core["prompt_logprob_start"] = prompt_logprob_start(job.plan.params, len(job.ids))
        else:
            core.pop("prompt_logprob_token", None)
        try:
            core_id = self.engine.submit(self.waiter, job.ids, core)
        except InvalidRequestError as error:
            error.index = job.index
            raise
        job.submitted += 1
        job.core_ids.append(core_id)
        self._flying[core_id] = (job, sample)
        if job.plan.grammar is not None:
            from .structured import Constraint

            constraint = Constraint(self.llm._grammars(), job.plan.grammar, job.think_start)
            self._constraints[core_id] = constraint
            self._put_mask(core_id, job, constraint)
        if sample == 0:
            self.llm._remember(job.request_id, self, job)

    # -- out of it ---------------------------------------------------------------------------------

    def _feed_mask(self, core_id: int) -> None:
        """The mask of a constrained sequence's next token, once its last one is known."""
        constraint = self._constraints.get(core_id)
        if constraint is None:
            return
        core = self.engine.read(core_id, constraint.n_seen)
        if core["finish"] != "none":
            del self._constraints[core_id]
        elif len(core["token"]):
            constraint.advance(core["token"].tolist())
            self._put_mask(core_id, self._flying[core_id][0], constraint)

    def _put_mask(self, core_id: int, job: Job, constraint: Constraint) -> None:
        mask = constraint.mask()
        job.grammar_problem = job.grammar_problem or constraint.problem
        self.engine.put_mask(core_id, constraint.n_seen, mask)

    def _collect(self, core_id: int) -> None:
        entry = self._flying.get(core_id)
        if entry is None:
            return
        job, sample = entry
        core = self.engine.read(core_id)
        if core["finish"] == "none":
            return
        if job.plan.grammar is not None:
            dead_end(core, job.grammar_problem)
        del self._flying[core_id]
        self.engine.release(core_id)
        job.samples[sample] = core
        if core["finish"] == "error" and self._raise:
            self._flush_job(job)
            raise exception_of(core["error"], job.index)
        if job.is_done:
            self._flush_job(job)

    def _flush_job(self, job: Job) -> None:
        self.llm._forget_job(job.request_id, job)
        self._ready.append((job.index, self._result(job)))
        self._count_finished(job)
        if self._progress is not None:
            self._progress.finished(
                len(job.ids), sum(core["n_token"] for core in job.samples if core is not None)
            )

    def _count_finished(self, job: Job) -> None:
        if self._enough is None or any(
            core is None or core["finish"] in ("abort", "error") for core in job.samples
        ):
            return
        self._n_finished += 1
        if self._n_finished >= self._enough:
            self._cut_short()

    def _fail(self, job: Job, error: Exception) -> None:
        self.llm._forget_job(job.request_id, job)
        for core_id in job.core_ids:  # earlier samples of the same prompt
            if self._flying.pop(core_id, None) is not None:
                self.engine.release(core_id)
        self._refuse(job.index, job.prompt, job.ids.tolist(), error, job.request_id)

    def _refuse(
        self, index: int, prompt: str | None, ids: list[int], error: Exception, request_id: str = ""
    ) -> None:
        if isinstance(error, InvalidRequestError) and error.index is None:
            error.index = index
        if self._raise:
            raise error
        self._ready.append(
            (index, self._refused(index, request_id or self._id_of(index), prompt, ids, error))
        )
        if self._progress is not None:
            self._progress.finished(0, 0)

    def _id_of(self, index: int) -> str:
        return self.llm._new_request_id() if self._request_ids is None else self._request_ids[index]

    def _end_early(self, job: Job) -> None:
        """A job that waits for room will not go on: what has begun of it is its result."""
        job.drop_unsubmitted()
        if not job.samples:
            self.llm._forget_job(job.request_id, job)
            ids = job.ids.tolist()
            self._ready.append(
                (job.index, self._refused(job.index, job.request_id, job.prompt, ids, None))
            )
        elif job.is_done:
            self._flush_job(job)

    def abort_waiting(self, request_id: str) -> None:
        """Notes (from any thread) that a prompt which the caller named is not to begin."""
        if self._request_ids is not None and request_id in self._request_ids:
            self._aborted_ids.add(request_id)

    def expire(self) -> None:
        """Asks (from any thread) that everything ends with what it has, and that nothing more
        begins.
        """
        self._deadline = 0.0

    def _watch_clock(self) -> None:
        if self._deadline is not None and self.llm._now() >= self._deadline:
            self._cut_short()

    def _cut_short(self) -> None:
        """What runs ends with what it has; the others do not begin."""
        if self._expired:
            return
        self._expired = True
        self.engine.abort(list(self._flying))
        while self._queue:
            self._end_early(self._queue.popleft())
        self._left = range(self._next, self.count)  # as their turn comes: they may be a million
        self._next = self.count


class Call(BaseCall[RequestOutput]):
    """The call of generate and chat."""

    def _result(self, job: Job) -> RequestOutput:
        done = [(j, core) for j, core in enumerate(job.samples) if core is not None]
        table, plan = self.llm._table, job.plan
        out = RequestOutput(
            request_id=job.request_id,
            index=job.index,
            prompt=job.prompt,
            prompt_token_ids=job.ids.tolist(),
            finished=job.is_done,
            num_truncated_tokens=job.num_truncated,
            seed=job.seed,
            extra_args=plan.params.extra_args,
        )
        for j, core in done:
            seed = derive_seed(job.seed, j)
            out.outputs.append(
                completion(core, plan, table, index=j, seed=seed, raw_text=self._raw_text)
            )
            if core["error"] is not None and out.error is None:
                out.error = error_record(exception_of(core["error"], job.index))
        if done:
            first = done[0][1]
            out.num_cached_tokens = first["n_cached"]
            out.weight_version = first["weight_version"]
            out.metrics = metrics([core for _, core in done])
            if done[0][0] == 0:
                out.prompt_logprobs = prompt_rows(first, plan, table)
        if job.capped and any(core["stop"] == "max_tokens" for _, core in done):
            self.llm._warn_capped(job.max_tokens)
        return out

    def _refused(
        self,
        index: int,
        request_id: str,
        prompt: str | None,
        ids: list[int],
        error: Exception | None,
    ) -> RequestOutput:
        return unstarted_output(error, request_id=request_id, index=index, prompt=prompt, ids=ids)


def plans_source(prompts: Sequence[Any], plans: Sequence[Plan]) -> Source:
    """The source of `generate`: prompts are read when their turn comes; one plan for all, or one
    each.
    """

    def take(index: int) -> tuple[Prompt, Plan, str | None]:
        plan = plans[0] if len(plans) == 1 else plans[index]
        return read_prompt(prompts[index], index), plan, None

    return take

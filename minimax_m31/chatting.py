"""Chat on top of a call: conversations are checked together, rendered and encoded one by one as
their turn comes, and what comes back is parsed into messages."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .calls import Call, Job, Source
from .chat.grammar import forced_call_grammar, single_call_grammar
from .chat.parser import StreamParser, parse
from .chat.render import PreparedChat, Rendered, prepare, render_prepared
from .core_params import Plan, make_plan
from .errors import InvalidRequestError
from .handle import HandleCall
from .outputs import RequestOutput
from .params import SamplingParams
from .params_check import bad, check_unicode
from .prompts import Prompt, need_tokenizer
from .results import text_cut
from .streams import StreamCall
from .structured import load_llguidance
from .text import view

if TYPE_CHECKING:
    from .chat.types import Delta
    from .llm import LLM
    from .structured import Grammar


@dataclasses.dataclass
class ChatArgs:
    """The arguments of `chat` that are not about sampling."""

    thinking: Any = None
    reasoning_effort: Any = None
    tools: Iterable[Any] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    reasoning_history: str = "auto"
    allow_special_tokens_in_text: bool = False


def split_conversations(messages: Any) -> tuple[list[Any], bool]:
    """(conversations, whether there was a single one)."""
    if isinstance(messages, Mapping):
        raise InvalidRequestError(
            "messages must be a list of messages: [{'role': 'user', 'content': ...}]",
            param="messages",
            value=messages,
        )
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise InvalidRequestError(
            f"messages must be a list of dicts with 'role' and 'content', not "
            f"{type(messages).__name__}",
            param="messages",
            value=messages,
        )
    if messages and all(isinstance(item, (list, tuple)) for item in messages):
        return list(messages), False
    return [messages], True


def _per_conversation(value: Any, name: str, count: int, single: bool) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if single or len(value) != count:
        raise InvalidRequestError(
            f"{name} has {len(value)} entries for {count} conversation(s): give one value, or one "
            "for each",
            param=name,
            value=value,
        )
    return list(value)


def prepare_all(llm: LLM, messages: Any, args: ChatArgs) -> tuple[list[PreparedChat], bool]:
    """Checks every conversation before any is rendered."""
    conversations, single = split_conversations(messages)
    need_tokenizer(llm._tokenizer, "chat", "messages")
    assert llm._tokenizer is not None
    count = len(conversations)
    thinking = _per_conversation(args.thinking, "thinking", count, single)
    effort = _per_conversation(args.reasoning_effort, "reasoning_effort", count, single)
    template = llm._tokenizer.require_chat_template(args.chat_template)
    for name in ("parallel_tool_calls", "add_generation_prompt", "continue_final_message",
                 "allow_special_tokens_in_text"):  # fmt: skip
        if not isinstance(getattr(args, name), bool):
            raise bad(name, getattr(args, name), "True or False is needed")
    if args.tools is not None and (
        not isinstance(args.tools, Iterable) or isinstance(args.tools, (str, bytes, Mapping))
    ):
        raise bad("tools", args.tools, "a list of functions or tool schemas is needed")
    tools = None if args.tools is None else list(args.tools)
    out = []
    for i, conversation in enumerate(conversations):
        try:
            prepared = prepare(
                conversation,
                template,
                tools,
                thinking[i],
                effort[i],
                args.add_generation_prompt,
                args.continue_final_message,
                args.reasoning_history,
                args.tool_choice,
                args.chat_template_kwargs,
                default_thinking=llm._args.thinking,
                default_effort=llm._args.reasoning_effort,
            )
            _refuse_unsupported(prepared)
        except InvalidRequestError as error:
            if not single:
                error.index = i
            raise
        out.append(prepared)
    return out, single


def _refuse_unsupported(chat: PreparedChat) -> None:
    if chat.media:
        raise NotImplementedError(
            "messages hold images or video, which are not part of this version"
        )


def encode(llm: LLM, rendered: Rendered, args: ChatArgs) -> list[int]:
    assert llm._tokenizer is not None
    check_unicode("messages", rendered.prompt, where="the rendered conversation")
    if args.allow_special_tokens_in_text:
        return llm._tokenizer.encode(rendered.prompt)
    return llm._tokenizer.encode_chat(rendered.prompt, rendered.spans)


def _check_message(value: Any, where: str, index: int) -> None:
    """Every text of a message is text."""
    if isinstance(value, str):
        check_unicode("messages", value, index, where)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _check_message(key, f"a key of {where}", index)
            _check_message(item, f"{where}[{key!r}]", index)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _check_message(item, f"{where}[{i}]", index)


class Chats:
    """The conversations of one call, as a source of prompts; remembers how each answer is to be
    parsed.
    """

    def __init__(
        self, llm: LLM, prepared: list[PreparedChat], params: list[SamplingParams], args: ChatArgs
    ) -> None:
        self._llm = llm
        self._prepared = prepared
        self.params = params
        self._args = args
        self._plans: dict[tuple[int, str], Plan] = {}
        self._added = None if llm._tokenizer is None else tuple(llm._tokenizer.added_tokens)
        self.parse_as: dict[int, tuple[str, list[dict[str, Any]] | None]] = {}
        self._grammar: list[Grammar | None] = []
        for i, item in enumerate(params):
            try:
                self._plan(item, "adaptive")
                self._grammar.append(self._call_grammar(prepared[i], item))
            except InvalidRequestError as error:
                if len(prepared) > 1:
                    error.index = i
                raise

    def _plan(self, params: SamplingParams, start: str) -> Plan:
        key = (id(params), start)
        if key not in self._plans:
            self._plans[key] = make_plan(
                params,
                self._llm._facts,
                self._llm._tokenizer,
                think_start=start,
                grammars=self._llm._grammars,
            )
        return self._plans[key]

    def _call_grammar(self, chat: PreparedChat, params: SamplingParams) -> Grammar | None:
        """What tool_choice and parallel_tool_calls force; None when they force nothing."""
        parallel = self._args.parallel_tool_calls
        if chat.forced_tool is None and (parallel or not chat.tools):
            return None
        param = "parallel_tool_calls" if chat.forced_tool is None else "tool_choice"
        if params.structured_outputs is not None:
            raise InvalidRequestError(
                f"structured_outputs and {param} constrain the same answer: give one of them",
                param="structured_outputs",
                value=params.structured_outputs,
            )
        load_llguidance(param)
        text = (
            single_call_grammar(chat.tools)
            if chat.forced_tool is None
            else forced_call_grammar(chat.tools, chat.tool_choice, parallel)
        )
        return self._llm._grammars(param).compile(text, param=param)

    def take(self, index: int) -> tuple[Prompt, Plan, str | None]:
        chat = self._prepared[index]
        for i, message in enumerate(chat.messages):
            _check_message(message, f"messages[{i}]", index)
        rendered = render_prepared(chat, self._added)
        self.parse_as[index] = (rendered.parser_start, rendered.tools or None)
        ids = encode(self._llm, rendered, self._args)
        plan = self._plan(self.params[index], rendered.parser_start)
        grammar = self._grammar[index]
        if grammar is not None:
            plan = plan.constrained(grammar)
        return Prompt(rendered.prompt, ids), plan, rendered.parser_start

    @property
    def source(self) -> Source:
        return self.take


class _ParsesAnswers(Call):
    """Answers get a `message`; `text` keeps everything, marks included, so that its spans can be
    looked up.
    """

    chats: Chats
    parse: bool = True

    def _result(self, job: Job) -> RequestOutput:
        out = super()._result(job)
        table = self.llm._table
        if not self.parse or table is None:
            return out
        start, tools = self.parse_as(job)
        for one in out.outputs:
            core = job.samples[one.index]
            assert core is not None
            cut = text_cut(core, table, one.token_ids)
            text = view(table, one.token_ids, cut, skip_special=False, include_stop=False).text
            one.message = parse(
                text, start, tools, finish_reason=one.finish_reason, stop_reason=one.stop_reason
            )
        return out

    def parse_as(self, job: Job) -> tuple[str, list[dict[str, Any]] | None]:
        return self.chats.parse_as.pop(job.index, ("adaptive", None))


class ChatCall(_ParsesAnswers):
    """The call of `chat`."""


class ChatHandleCall(_ParsesAnswers, HandleCall):
    """One conversation that was submitted without waiting; looked at more than once."""

    def __init__(self, llm: LLM, chats: Chats, i: int, *, parse: bool, **kwargs: Any) -> None:
        super().__init__(llm, lambda _: chats.take(i), raw_text=parse, **kwargs)
        self.chats, self.parse, self._i = chats, parse, i

    def parse_as(self, job: Job) -> tuple[str, list[dict[str, Any]] | None]:
        return self.chats.parse_as.get(self._i, ("adaptive", None))

    def _result(self, job: Job) -> RequestOutput:
        out = super()._result(job)
        out.index = self._i
        return out


class ChatStreamCall(_ParsesAnswers, StreamCall):
    """Pieces get `delta`s: what each adds to the message. The last piece of a sample holds the
    whole message.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._parsers: dict[tuple[int, int], StreamParser] = {}

    def _decorate(self, job: Job, out: RequestOutput, piece: str) -> None:
        if not self.parse:
            return
        one = out.outputs[0]
        key = (job.index, one.index)
        parser = self._parsers.get(key)
        if parser is None:
            start, tools = self.chats.parse_as.get(job.index, ("adaptive", None))
            parser = self._parsers[key] = StreamParser(start, tools)
        deltas: list[Delta] = parser.feed(piece)
        if one.finish_reason is not None:
            deltas += parser.finish()
            del self._parsers[key]
            one.message = parser.message(one.finish_reason, one.stop_reason)
        one.deltas = deltas

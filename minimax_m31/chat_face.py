"""The chat half of LLM: whole answers, streams, rounds of tool calls, and the two ends of a call by
themselves (what is fed to the model, how its text is read)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from .bookkeeping import Bookkeeping
from .outputs import RequestOutput
from .params import RequestOutputKind, SamplingParams, per_prompt
from .progress import Progress
from .suggest import unknown_name

if TYPE_CHECKING:
    from .chat.conversation import Conversation
    from .chat.types import Message
    from .chatting import ChatArgs, ChatHandleCall, Chats
    from .llm import LLM


class ChatFace(Bookkeeping):
    """Base of LLM: the methods about messages."""

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        thinking: Any = None,
        reasoning_effort: Any = None,
        tools: Any = None,
        tool_choice: Any = "auto",
        parallel_tool_calls: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: dict[str, Any] | None = None,
        reasoning_history: str = "auto",
        allow_special_tokens_in_text: bool = False,
        parse: bool = True,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: int | Sequence[int] | None = None,
        request_ids: Sequence[str] | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation (a list of messages) or several. Each answer's `message` is
        parsed into reasoning, content and tool calls."""
        from .chatting import ChatArgs, ChatCall

        args = ChatArgs(
            thinking,
            reasoning_effort,
            tools,
            tool_choice,
            parallel_tool_calls,
            add_generation_prompt,
            continue_final_message,
            chat_template,
            chat_template_kwargs,
            reasoning_history,
            allow_special_tokens_in_text,
        )
        llm = cast("LLM", self)
        chats, count = self._chats(messages, sampling_params, args)
        common = llm._common(count, priority, request_ids, on_error, timeout)
        call = ChatCall(
            llm,
            count,
            chats.source,
            progress=Progress(count, use_tqdm, "Chats"),
            raw_text=parse,
            **common,
        )
        call.chats, call.parse = chats, parse
        return llm._gather(call)

    def chat_stream(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        output_kind: RequestOutputKind | None = None,
        parse: bool = True,
        priority: int | Sequence[int] | None = None,
        on_error: str = "raise",
        timeout: float | None = None,
        **chat_args: Any,
    ) -> Iterator[RequestOutput]:
        """As `chat`, while the answers grow; each piece's `outputs[0].deltas` say what it adds to
        the message.
        """
        from .chatting import ChatStreamCall

        llm = cast("LLM", self)
        chats, count = self._chats(
            messages, sampling_params, _chat_args("chat_stream()", chat_args)
        )
        first = chats.params[0] if count else llm._default_params
        kind = output_kind or first.output_kind or RequestOutputKind.DELTA
        call = ChatStreamCall(
            llm,
            count,
            chats.source,
            output_kind=kind,
            raw_text=parse,
            notify=min((p.stream_interval or 1 for p in chats.params), default=1),
            **llm._common(count, priority, None, on_error, timeout),
        )
        call.chats, call.parse = chats, parse
        return llm._stream(call)

    def _chat_calls(
        self,
        messages: Any,
        sampling_params: Any,
        *,
        parse: bool = True,
        priority: int = 0,
        **chat_args: Any,
    ) -> list[ChatHandleCall]:
        """One request for each conversation, not yet submitted."""
        from .chatting import ChatHandleCall

        llm = cast("LLM", self)
        chats, count = self._chats(messages, sampling_params, _chat_args("chat()", chat_args))
        return [
            ChatHandleCall(
                llm,
                chats,
                i,
                parse=parse,
                **llm._common(1, priority or None, None, "raise", None),
            )
            for i in range(count)
        ]

    def run_tools(
        self,
        messages: Sequence[Any],
        tools: Iterable[Callable[..., Any]],
        sampling_params: SamplingParams | None = None,
        *,
        max_rounds: int = 8,
        **chat_args: Any,
    ) -> Conversation:
        """Answers, runs the tools that the model calls and feeds their results back, until an
        answer without calls or `max_rounds` answers. Every turn is in the conversation returned.

        `tools` are Python functions; their annotations and docstrings describe them. What one
        raises goes to the model as text.
        """
        from .chat.conversation import run_tools

        return run_tools(self, messages, tools, sampling_params, max_rounds=max_rounds, **chat_args)

    def apply_chat_template(self, messages: Any, *, tokenize: bool = True, **chat_args: Any) -> Any:
        """Exactly what `chat` would feed the model: token ids, or the text. Keywords as in `chat`;
        a list of conversations gives a list."""
        from .chat.render import render_prepared
        from .chatting import encode, prepare_all

        llm = cast("LLM", self)
        args = _chat_args("apply_chat_template()", chat_args)
        prepared, single = prepare_all(llm, messages, args)
        added = tuple(llm.get_tokenizer().added_tokens)
        rendered = [render_prepared(item, added) for item in prepared]
        out = [encode(llm, item, args) if tokenize else item.prompt for item in rendered]
        return out[0] if single else out

    def parse_output(
        self,
        text_or_token_ids: str | Sequence[int],
        *,
        start: str,
        tools: Iterable[Any] | None = None,
    ) -> Message:
        """Reads a stored answer (text with its marks, or token ids) as `chat` reads its own.

        `start`: the thinking state that the answer began in: "enabled", "disabled" or "adaptive".
        """
        from .chat.parser import parse_output

        tokenizer = (
            None if isinstance(text_or_token_ids, str) else cast("LLM", self).get_tokenizer()
        )
        return parse_output(text_or_token_ids, start=start, tools=tools, tokenizer=tokenizer)

    def answer_ids(
        self, token_ids: Sequence[int], sampling_params: SamplingParams | None = None, *, start: str
    ) -> RequestOutput:
        """Continues a rendered conversation given as token ids. `start`: the thinking state that
        the answer begins in, which budgets, stop strings and constraints depend on."""
        from .calls import Call
        from .core_params import make_plan
        from .prompts import Prompt, to_ids

        llm = cast("LLM", self)
        llm._engine()
        ids = to_ids(token_ids, 0, llm._facts.n_vocab, "token_ids").tolist()
        params = per_prompt(sampling_params, 1, llm._default_params)[0]
        plan = make_plan(
            params, llm._facts, llm._tokenizer, think_start=start, grammars=llm._grammars
        )
        prompt = Prompt(None, ids)
        common = llm._common(1, None, None, "raise", None)
        return llm._gather(Call(llm, 1, lambda _: (prompt, plan, start), **common))[0]

    @property
    def chat_defaults(self) -> tuple[Any, Any]:
        """(thinking, reasoning_effort) of calls that give none."""
        return self._args.thinking, self._args.reasoning_effort

    def _chats(self, messages: Any, params: Any, args: ChatArgs) -> tuple[Chats, int]:
        from .chatting import Chats, prepare_all

        llm = cast("LLM", self)
        llm._engine()
        prepared, _ = prepare_all(llm, messages, args)
        each = per_prompt(params, len(prepared), llm._default_params)
        return Chats(llm, prepared, each, args), len(prepared)


def _chat_args(function: str, given: dict[str, Any]) -> ChatArgs:
    from .chatting import ChatArgs

    names = {field.name for field in dataclasses.fields(ChatArgs)}
    for name in given:
        if name not in names:
            raise TypeError(unknown_name(function, name, names))
    return ChatArgs(**given)

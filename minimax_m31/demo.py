"""`python -m minimax_m31 demo`: a tour of what the package does, in well under a minute.

Thinking on and off, two efforts, a tool round trip, a batch, a long text, and what the engine did.
Answers are written as they are made; a terminal gets colours and wrapped lines, a pipe the same
words without them. A checkpoint without a tokenizer is shown by token ids.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from .describe import facts

if TYPE_CHECKING:
    from .llm import LLM
    from .params import SamplingParams
    from .scores import EngineStats

STYLES = {"title": "1", "dim": "2", "good": "32", "bad": "33", "name": "36"}
BATCH = (
    ("What is 15% of 240?", "36"),
    ("Sort these numbers: 42, 7, 19, 3", "3, 7, 19, 42"),
    ("Write the word 'engine' backwards.", "enigne"),
    ("What date is 10 days after March 25?", "April 4"),
    ("How many meters are 3.5 kilometers?", "3500 meters"),
    ("Which is larger, 9.9 or 9.11?", "9.9"),
    ("How many letters are in the word elephant?", "8"),
    ("What is the capital of Norway?", "Oslo"),
)


def get_weather(city: str) -> str:
    """Get the current weather of a city.

    Args:
        city: Name of the city.
    """
    return f'{{"sky": "cloudy", "temperature": {5 + len(city)}}}'


class Screen:
    """Text on a stream: styles and line breaks where a terminal shows it, plain lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.colour = self.terminal and not os.environ.get("NO_COLOR")
        self.width = 10**9
        if self.terminal:
            self.width = max(32, min(100, shutil.get_terminal_size().columns))
        self.column, self.indent = 0, 9
        self.word: list[tuple[str, str]] = []  # the parts of a word that has not ended, with styles

    def styled(self, text: str, style: str) -> str:
        return f"\033[{STYLES[style]}m{text}\033[0m" if self.colour and style and text else text

    def _break(self) -> None:
        self.stream.write("\n" + " " * self.indent)
        self.column = self.indent

    def _end_word(self) -> None:
        if (
            self.column > self.indent
            and self.column + sum(len(w) for w, _ in self.word) > self.width
        ):
            self._break()
        for text, style in self.word:
            while self.column + len(text) > self.width:  # longer than a line
                room = self.width - self.column
                self.stream.write(self.styled(text[:room], style))
                text = text[room:]
                self._break()
            self.stream.write(self.styled(text, style))
            self.column += len(text)
        self.word.clear()

    def write(self, text: str, style: str = "") -> None:
        """Adds to the current line. A word is shown when it has ended: words stay whole."""
        for part in re.findall(r"\n| |[^ \n]+", text):
            if part not in ("\n", " "):
                if self.word and self.word[-1][1] == style:
                    self.word[-1] = (self.word[-1][0] + part, style)
                else:
                    self.word.append((part, style))
                continue
            self._end_word()
            if part == "\n":
                self._break()
            elif self.column < self.width:
                self.stream.write(" ")
                self.column += 1
        self.stream.flush()

    def line(self, text: str = "", style: str = "") -> None:
        self.write(text, style)
        self._end_word()
        self.stream.write("\n")
        self.stream.flush()
        self.column = 0

    def title(self, text: str) -> None:
        self.line()
        self.line(text, "title")

    def label(self, name: str) -> None:
        self.write(f"{name:>7}  ", "name")


def _params(max_tokens: int) -> SamplingParams:
    from .params import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


def _verdict(screen: Screen, answer: str, want: str) -> None:
    said = answer.strip().rstrip(".").casefold()
    if said in (want.casefold(), want.casefold().split()[0]):
        screen.write("  right", "good")
    else:
        screen.write(f"  (right is {want})", "bad")


def _ask(
    screen: Screen,
    llm: LLM,
    messages: list[dict[str, Any]],
    max_tokens: int,
    want: str = "",
    **chat_args: Any,
) -> Any:
    """Streams one answer to the screen and returns its message."""
    now = ""
    began, output = time.monotonic(), None
    for output in llm.chat_stream(messages, _params(max_tokens), **chat_args):
        for delta in output.outputs[0].deltas or ():
            for name, text in (("thinks", delta.reasoning_content), ("says", delta.content)):
                if not text or (now != name and not text.strip()):
                    continue
                if now != name:
                    if now:
                        screen.line()
                    screen.label(name)
                    now, text = name, text.lstrip()
                screen.write(text, "dim" if name == "thinks" else "")
    assert output is not None
    one = output.outputs[0]
    if want:
        _verdict(screen, "" if one.message is None else one.message.content or "", want)
    for call in [] if one.message is None else one.message.tool_calls or ():
        if now:
            screen.line()
        now = "calls"
        screen.label("calls")
        screen.write(f"{call.function.name} {call.function.arguments}")
    count, spent = output.metrics.num_generation_tokens, time.monotonic() - began
    screen.line(f"  [{count} tokens, {spent:.2f} s]", "dim")
    return one.message


def _user(screen: Screen, question: str) -> list[dict[str, Any]]:
    screen.label("you")
    screen.line(question)
    return [{"role": "user", "content": question}]


def _tools(screen: Screen, llm: LLM, max_tokens: int) -> None:
    messages = _user(screen, "What is the weather in Lisbon and in Oslo?")
    message = _ask(screen, llm, messages, max_tokens, thinking="enabled", tools=[get_weather])
    if message is None or not message.tool_calls:
        return
    messages.append(message.to_dict())
    for call in message.tool_calls:
        try:
            result = get_weather(**call.parsed_arguments())
        except (TypeError, ValueError) as error:  # the model's arguments, so anything
            result = f"error: {error}"
        screen.label("tool")
        screen.line(result)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    _ask(screen, llm, messages, max_tokens, thinking="enabled", tools=[get_weather])


def _batch(screen: Screen, llm: LLM, max_tokens: int) -> None:
    began = time.monotonic()
    chats = [[{"role": "user", "content": question}] for question, _ in BATCH]
    outputs = llm.chat(chats, _params(max_tokens), thinking="enabled", use_tqdm=False)
    spent = time.monotonic() - began
    for (question, want), output in zip(BATCH, outputs, strict=True):
        message = output.outputs[0].message
        answer = " ".join((message.content or "").split()) if message is not None else ""
        screen.write(f"  {question:<44}", "dim")
        screen.write(f"{answer or '(no answer yet: --max-tokens)'}")
        _verdict(screen, answer, want)
        screen.line()
    count = sum(output.metrics.num_generation_tokens for output in outputs)
    screen.line(f"  [{count} tokens in {spent:.2f} s, {count / spent:.0f} tok/s]", "dim")


def long_text(lines: int, codes: dict[int, tuple[str, str]]) -> str:
    """A text of `lines` lines; line `i` of `codes` holds the code of a thing."""
    colours, things = "red blue green white black".split(), "lamp gate clock bottle ladder".split()
    rows = []
    for i in range(lines):
        thing, place = (
            things[(i * 7 + i // 5) % 5],
            ("garden", "kitchen", "harbor", "cellar")[i % 4],
        )
        rows.append(f"The {colours[i % 5]} {thing} was near the {place}.")
    for i, (thing, code) in codes.items():
        rows[i] = f"The code of the {thing} is {code}."
    return "\n".join(rows)


def _long(screen: Screen, llm: LLM, max_tokens: int) -> None:
    """Two questions to one long text: the second finds the text in the prefix cache."""
    codes = {60: ("silver rocket", "7042"), 250: ("golden statue", "3318")}
    text = "Read the text and answer the question at the end.\n" + long_text(330, codes)
    for thing, code in codes.values():
        question = f"What is the code of the {thing}?"
        messages = [{"role": "user", "content": f"{text}\n\n{question}"}]
        count = len(llm.apply_chat_template(messages, thinking="disabled"))
        if count + max_tokens > llm.model_config.max_model_len:
            screen.line("  left out: --max-model-len is too short for it", "dim")
            return
        screen.label("you")
        screen.line(f"(a text of {count:,} tokens) {question}")
        before = llm.stats()
        _ask(screen, llm, messages, max_tokens, code, thinking="disabled")
        _blocks(screen, before, llm.stats())


def _blocks(screen: Screen, before: EngineStats, after: EngineStats) -> None:
    read = after.num_attention_blocks_read - before.num_attention_blocks_read
    held = after.num_attention_blocks_held - before.num_attention_blocks_held
    cached = after.num_cached_tokens - before.num_cached_tokens
    share = f"{100 * read / max(1, held):.0f} %"
    found = f"{cached:,} tokens were in the cache; " if cached else ""
    screen.line(f"  [{found}attention read {read:,} of {held:,} blocks held: {share}]", "dim")


def _show_facts(screen: Screen, llm: LLM, opened: float) -> None:
    known = dict(facts(llm))
    times = f"opened in {opened:.2f} s, weights in {known['loaded in']}"
    for name, text in (
        ("model", f"{known['model']}, {known['weights']}"),
        ("runs on", f"{known['backend']}; {times}"),
        ("holds", known["KV cache"]),
    ):
        screen.label(name)
        screen.line(text)


def show_chat(llm: LLM, max_tokens: int, opened: float, stream: TextIO | None = None) -> None:
    """The whole tour of a model that talks; `opened` is how long the engine took to open."""
    screen = Screen(sys.stdout if stream is None else stream)
    _show_facts(screen, llm, opened)

    screen.title("Thinking on and off")
    product = _user(screen, "What is 47 times 36?")
    for mode, thinking in (("on", "enabled"), ("off", "disabled")):
        screen.label(mode)
        screen.line(f"thinking={thinking!r}")
        _ask(screen, llm, product, max_tokens, "1692", thinking=thinking)

    screen.title("Two efforts")
    days = _user(screen, "What day of the week is 12 days after Wednesday?")
    for effort in ("low", "max"):
        screen.label("effort")
        screen.line(f"reasoning_effort={effort!r}")
        _ask(screen, llm, days, max_tokens, "Monday", thinking="enabled", reasoning_effort=effort)

    screen.title("A tool: a Python function that the model may call")
    _tools(screen, llm, max_tokens)

    screen.title(f"A batch of {len(BATCH)}, answered together")
    _batch(screen, llm, max_tokens)

    screen.title("A long text: a token reads at most 16 blocks of 128")
    _long(screen, llm, max_tokens)

    screen.title("What the engine did")
    show_stats(screen, llm)


def show_ids(llm: LLM, max_tokens: int, opened: float, stream: TextIO | None = None) -> None:
    """The tour of a model that has no tokenizer."""
    from .params import SamplingParams

    screen = Screen(sys.stdout if stream is None else stream)
    _show_facts(screen, llm, opened)
    screen.line()
    params = SamplingParams(
        temperature=0.0, max_tokens=min(max_tokens, 24), ignore_eos=True, logprobs=0
    )
    most = max(1, llm.get_vocab_size() - 8)  # the last ids may be special
    prompts: Sequence[list[int]] = [
        [(start + 5 * i) % most for i in range(length)]
        for start, length in ((3, 12), (20, 200), (7, 700))
    ]
    for output in llm.generate(prompts, params, use_tqdm=False):
        one = output.outputs[0]
        screen.line(f"{len(output.prompt_token_ids)} ids -> {' '.join(map(str, one.token_ids))}")
        first = f"first token after {1000 * output.metrics.ttft:.0f} ms"
        screen.line(f"  log p {one.cumulative_logprob:.3f}, {first}", "dim")
    again = llm.generate(prompts[-1], params, use_tqdm=False)[0]
    screen.line(
        f"the last prompt again: {again.num_cached_tokens} of {len(again.prompt_token_ids)} "
        "ids came from the cache\n"
    )
    show_stats(screen, llm)


def show_stats(screen: Screen, llm: LLM) -> None:
    stats = llm.stats()
    busy = max(1e-9, stats.step_time_total)
    computed = stats.num_prompt_tokens - stats.num_cached_tokens
    speed = (computed + stats.num_generation_tokens) / busy
    read, held = stats.num_attention_blocks_read, stats.num_attention_blocks_held
    share = f"{100 * stats.attention_density:.0f} %"
    for name, text in (
        ("answers", f"{stats.num_finished}, {stats.num_generation_tokens:,} tokens written"),
        (
            "prompts",
            f"{stats.num_prompt_tokens:,} tokens, {stats.num_cached_tokens:,} from the cache",
        ),
        ("time", f"{busy:.2f} s in {stats.num_steps:,} steps: {speed:.0f} tok/s in and out"),
        ("blocks", f"attention read {read:,} of {held:,} held: {share}"),
    ):
        screen.label(name)
        screen.line(text)

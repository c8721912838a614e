"""What a notebook user meets: cells that are run again, interrupts, bars, what an object shows at
the end of a cell, and top-level await. One test runs a real kernel.
"""

from __future__ import annotations

import ast
import copy
import gc
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_models import SMALL, ids_llm, rss_bytes, text_llm, threads_of_process

import minimax_m31
from minimax_m31 import (
    LLM,
    OutOfDeviceMemoryError,
    RequestOutput,
    SamplingParams,
    lifetime,
    live_engines,
    plots,
    progress,
)

HOME = str(Path(minimax_m31.__path__[0]).parent)
TESTS = str(Path(__file__).parent)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
PROMPT = [5, 17, 3]
MB = 1 << 20


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with ids_llm() as engine:
        yield engine


# ---------------------------------------------------------------- lifetime


def test_n2_a_cell_that_is_run_again_takes_over() -> None:
    first = ids_llm()
    second = ids_llm(replace=True)
    assert first.closed
    assert live_engines() == [second]
    second.shutdown()


def test_n2_memory_that_is_short_names_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real, tries = lifetime.open_engine, []

    def short_of_memory(args: Any) -> Any:
        tries.append(len(live_engines()))
        if live_engines():
            raise OutOfDeviceMemoryError("no room", plan="the plan")
        return real(args)

    monkeypatch.setattr(lifetime, "open_engine", short_of_memory)
    held = ids_llm()
    monkeypatch.setattr(sys.modules["__main__"], "my_engine", held, raising=False)
    with pytest.raises(OutOfDeviceMemoryError, match=r"`my_engine\.shutdown\(\)`") as caught:
        ids_llm()
    assert caught.value.plan == "the plan"
    monkeypatch.undo()
    monkeypatch.setattr(lifetime, "open_engine", short_of_memory)
    held.cycle = held  # type: ignore[attr-defined]
    del held, caught
    gc.collect(0)
    tries.clear()
    with ids_llm() as fits:  # nobody holds the first one any more: it is collected
        assert live_engines() == [fits]


def test_a2_n3_ten_engines_with_references_kept() -> None:
    keep: list[object] = []
    sizes = []
    threads = threads_of_process()
    for _ in range(10):
        llm = ids_llm(max_num_seqs=16)
        outputs = llm.generate([[i + 1] * 200 for i in range(16)], GREEDY, use_tqdm=False)
        keep += [llm, outputs, llm.llm_engine]
        llm.shutdown()
        sizes.append(rss_bytes())
        # at most: an idle dispatch thread of an earlier test may end meanwhile
        assert threads_of_process() <= threads
    tokens = [[o.outputs[0].token_ids for o in keep[i]] for i in range(1, 30, 3)]  # type: ignore
    assert all(one == tokens[0] for one in tokens)
    assert sizes[-1] - sizes[1] < 8 * MB, [size // MB for size in sizes]


# ---------------------------------------------------------------- interrupts


def _interrupt_at(after: float, sent: list[float]) -> threading.Timer:
    def send() -> None:
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    return timer


def test_a3_n4_u09_fifty_random_moments() -> None:
    """Encoding, prefill, decode: each time the call ends at once, what there is is kept, and the
    next call equals an undisturbed one.
    """
    rng = random.Random(11)
    words = "the a of to and in is it you that".split()
    prompts = [" ".join(rng.choices(words, k=200)) for _ in range(80)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM("nano", seed=1, **SMALL) as llm:
        short = params.replace(max_tokens=4)
        expected = [o.outputs[0].token_ids for o in llm.generate(prompts[:1], short)]
        late = n_cut = 0
        for _ in range(50):
            sent: list[float] = []
            timer = threading.Thread()
            try:
                timer = _interrupt_at(rng.uniform(0.0, 0.12), sent)
                llm.generate(prompts, params, use_tqdm=False)
                timer.join()
                time.sleep(1)
            except KeyboardInterrupt:
                late += time.monotonic() - sent[0] > 0.5
            if timer.ident is not None:
                timer.join()
            n_cut += any(o is not None and not o.error for o in llm.last_partial or [])
            again = llm.generate(prompts[:1], short, use_tqdm=False)
            assert [o.outputs[0].token_ids for o in again] == expected
        assert late <= 1  # the machine may stop everybody for a moment
        assert n_cut > 25
        assert llm._active == {}


LOAD = """
import os, random, signal, sys, threading, time
sys.path.insert(0, {tests!r})
from api_models import IDS_MODEL, ids_llm, rss_bytes, threads_of_process
from minimax_m31 import LLM, SamplingParams, live_engines
big = dict(hidden_size=512, num_hidden_layers=3, intermediate_size=512, num_local_experts=32)
ids_llm().shutdown()
before, rng, late, size = threads_of_process(), random.Random(1), 0, 0
for i in range(50):
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    timer = threading.Timer(rng.uniform(0.0, 0.2), send)
    try:
        timer.start()
        while True:
            LLM(IDS_MODEL, backend="cpu", load_format="dummy", hf_overrides=big, max_model_len=256,
                max_num_seqs=2, threads=1).shutdown()
    except KeyboardInterrupt:
        late += time.monotonic() - sent[0] > 0.5
    timer.join()
    if i == 10:
        size = rss_bytes()
llm = ids_llm()
ok = llm.generate([1, 2], SamplingParams(max_tokens=3, ignore_eos=True))[0].finished
llm.shutdown()
print(late <= 1, len(live_engines()), threads_of_process() - before, rss_bytes() - size < 32 << 20,
      ok)
"""


def test_a3_n4_fifty_interrupts_while_loading() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(tests=TESTS)], capture_output=True, text=True,
        timeout=300, cwd="/", env={**os.environ, "PYTHONPATH": HOME},
    )  # fmt: skip
    assert (done.returncode, done.stdout.strip()) == (0, "True 0 0 True True"), done.stderr


# ---------------------------------------------------------------- bars and logs


class Bar:
    """In place of tqdm: counts."""

    made: list[Bar] = []

    def __init__(self, total: int, **_: Any) -> None:
        self.total, self.n, self.shown, self.closed = total, 0, [], False
        Bar.made.append(self)

    def update(self, n: int) -> None:
        self.n += n

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.shown.append((time.monotonic(), text))

    def close(self) -> None:
        self.closed = True


def test_n5_one_bar_per_call(llm: LLM, caplog: pytest.LogCaptureFixture, capsys: Any,
                             monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    Bar.made = []
    llm.generate([[i + 1] for i in range(20)], LONG.replace(max_tokens=300), use_tqdm=Bar)
    (bar,) = Bar.made
    assert (bar.total, bar.n, bar.closed) == (20, 20, True)
    gaps = [b - a for (a, _), (b, _) in zip(bar.shown, bar.shown[1:], strict=False)]
    assert all(gap > 0.09 for gap in gaps)
    assert all("tok/s" in text and "cache hits" in text for _, text in bar.shown)
    llm.generate([[1], [2]], GREEDY)  # nobody looks: a line in the log now and then
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "LOG_S", 0.05)
    with caplog.at_level(logging.INFO, "minimax_m31"):
        llm.generate([[1], [2]], LONG)
    assert "of 2 done" in caplog.text


def test_n11_messages_go_through_the_logger(caplog: pytest.LogCaptureFixture, capfd: Any) -> None:
    ids_llm(max_model_len=2048, kv_cache_memory_bytes=3 << 20, max_num_seqs=2).shutdown()
    assert "KV pool holds" in caplog.text  # a message of the core
    ids_llm(log_level="ERROR").shutdown()
    assert logging.getLogger("minimax_m31").level == logging.ERROR
    ids_llm().shutdown()
    assert logging.getLogger("minimax_m31").level == logging.WARNING
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


# ---------------------------------------------------------------- what objects show


def test_n8_an_engine_at_the_end_of_a_cell() -> None:
    llm = ids_llm()
    html = llm._repr_html_()
    for word in ("ready", "KV cache", "max_model_len", "deterministic", "held"):
        assert word in html
    llm.shutdown()
    assert "closed" in repr(llm)
    assert "closed" in llm._repr_html_()
    assert len(repr(llm).splitlines()) == 1


def test_n9_outputs_at_the_end_of_a_cell(tmp_path: Path) -> None:
    with text_llm(tmp_path / "model") as llm:
        params = SamplingParams(n=8, seed=1, max_tokens=300, logprobs=3, ignore_eos=True)
        outputs = llm.generate(["<b>some text & more</b> " * 20] * 4, params, use_tqdm=False)
    for output in outputs:
        assert len(repr(output).splitlines()) <= 10
        assert len(repr(output)) < 6000
        html = output._repr_html_()
        assert "<b>some" not in html
        assert "&lt;b&gt;some" in html
    assert len(repr(outputs).splitlines()) <= 40


def test_n10_plots(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm.generate([PROMPT] * 4, GREEDY, use_tqdm=False)
    stats, report = llm.stats(), llm.memory_report()
    assert 0 < stats.step_time_p50 <= stats.step_time_p99
    assert stats.step_time_p50 * stats.num_steps < 20 * stats.step_time_total
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for text in (stats.plot(), report.plot()):
        assert isinstance(text, plots.TextChart)
        assert "#" in text
        assert repr(text) == str(text)
    assert "finished" in stats.plot()
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    for figure in (stats.plot(), report.plot()):
        assert figure.get_axes()
        assert "Figure" in type(figure).__name__
        # a cell shows it, although nobody said %matplotlib inline
        assert figure._repr_png_().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules  # no window system, no global figures


def test_n13_what_can_be_pickled_and_copied(tmp_path: Path) -> None:
    with text_llm(tmp_path / "model") as llm:
        params = SamplingParams(max_tokens=5, logprobs=2, prompt_logprobs=1, ignore_eos=True)
        output = llm.generate("some text", params)[0]
        scores = llm.score_tokens(["some text"], use_tqdm=False)[0]
        tokenizer = llm.get_tokenizer()
        for value in (output, params, scores, llm.stats(), llm.memory_report()):
            assert type(pickle.loads(pickle.dumps(value))) is type(value)
            copy.deepcopy(value)
            copy.copy(value)
        assert pickle.loads(pickle.dumps(output)) == output
        assert copy.deepcopy(output) == output
        assert pickle.loads(pickle.dumps(tokenizer)).encode("some text") == tokenizer.encode(
            "some text"
        )
        for engine in (llm, llm.as_async()):
            for function in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="inside the worker"):
                    function(engine)
    referents = _reachable(output)
    assert not any(type(value).__name__ in ("LLM", "Engine", "Waiter") for value in referents)


def _reachable(root: object, most: int = 20000) -> list[object]:
    """What an object keeps alive, classes, modules and functions left out."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo and len(seen) < most:
        value = todo.pop()
        if id(value) in seen or isinstance(value, (type, type(sys), type(_reachable))):
            continue
        seen[id(value)] = value
        todo += gc.get_referents(value)
    return list(seen.values())


def test_to_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    with text_llm(tmp_path / "model") as llm:
        output: RequestOutput = llm.generate("some text", SamplingParams(n=3, max_tokens=4))[0]
    frame = output.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["index"]) == [0, 1, 2]
    assert list(frame["token_ids"]) == [o.token_ids for o in output.outputs]
    assert set(frame["prompt"]) == {"some text"}


# ---------------------------------------------------------------- a kernel


CELLS = [
    "import os, signal, sys, threading, time\n"
    f"sys.path[:0] = [{HOME!r}, {TESTS!r}]\n"
    "from api_models import ids_llm\n"
    "from minimax_m31 import SamplingParams, live_engines\n"
    "greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)\n"
    "long = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)\n"
    "llm = ids_llm()\n"
    "llm",
    "outputs = llm.generate([[5, 17, 3], [7]], greedy)\noutputs",
    "engine = llm.as_async()\n"
    "one = await engine.generate_one([5, 17, 3], greedy)\n"
    "async for last in engine.generate([5, 17, 3], greedy):\n"
    "    pass\n"
    "handle = await llm.submit([5, 17, 3], greedy)\n"
    "print(one.outputs[0].token_ids == last.outputs[0].token_ids == outputs[0].outputs[0].token_ids"
    " == handle.outputs[0].token_ids)",
    "def stop():\n"
    "    global sent\n"
    "    sent = time.monotonic()\n"
    "    os.kill(os.getpid(), signal.SIGINT)\n"
    "for call in (lambda: llm.generate([[i + 1] for i in range(40)], long, use_tqdm=False),\n"
    "             lambda: list(llm.generate_stream([[1], [2]], long)),\n"
    "             lambda: llm.submit([1], long).result()):\n"
    "    timer = threading.Timer(0.2, stop)\n"
    "    timer.start()\n"
    "    try:\n"
    "        while True:\n"
    "            call()\n"
    "    except KeyboardInterrupt:\n"
    "        print(time.monotonic() - sent < 0.5, end=' ')\n"
    "    llm.abort_all()\n"
    "print(llm.generate([5, 17, 3], greedy)[0].outputs[0].token_ids == one.outputs[0].token_ids)",
    "from minimax_m31 import LLM, display_stream\n"
    "nano = LLM('nano', threads=1, max_model_len=512, max_num_seqs=4, seed=1)\n"
    "question = [{'role': 'user', 'content': 'What is 17 + 25?'}]\n"
    "short = SamplingParams(temperature=0, max_tokens=120)\n"
    "said = display_stream(nano.chat_stream(question, short, thinking='enabled'))\n"
    "print(repr(said.content))",
    "llm = ids_llm(replace=True)\nprint(len(live_engines()))\nllm.stats().plot()",
    "llm.shutdown()\nprint(len(live_engines()), 'closed' in repr(llm), 'closed' in repr(engine))",
]


def test_n1_n2_n4_n6_n7_n8_n9_in_a_kernel() -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    nbclient.NotebookClient(book, timeout=120, kernel_name="python3").execute()

    def texts(cell: int) -> str:
        return "".join(o.get("text", "") for o in book.cells[cell].outputs)

    flat = [(i, o) for i, cell in enumerate(book.cells) for o in cell.outputs]
    assert [o for _, o in flat if o.output_type == "error"] == []
    written = [(i, o.text) for i, o in flat if o.get("name") == "stderr"]
    assert {i for i, _ in written} <= {1}  # the bar, as text where there are no widgets
    assert "".join(text for _, text in written).strip().startswith(("Prompts:", "")[not written :])
    shown = book.cells[0].outputs[-1].data
    assert "<table>" in shown["text/html"]
    assert shown["text/plain"].startswith("LLM(")
    assert book.cells[1].outputs[-1].data["text/plain"].count("RequestOutput(") == 2
    assert texts(2) == "True\n"
    assert texts(3) == "True True True True\n"
    streamed, said = texts(4).rstrip("\n").rsplit("\n", 1)
    assert streamed.startswith("[thinking] ")
    assert ast.literal_eval(said) in streamed
    assert texts(5).startswith("1\n")
    assert texts(6) == "0 True True\n"

"""What importing does and does not do: time, side effects, forks. Each case runs in a fresh
interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import minimax_m31

# The folder this test session imports from, whichever way it was installed.
HOME = str(Path(minimax_m31.__path__[0]).parent)


def run(code: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, cwd="/",
        env={**os.environ, "PYTHONPATH": HOME, **env},
    )  # fmt: skip


def value(code: str) -> str:
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def test_import_is_fast() -> None:
    code = (
        "import time; t = time.perf_counter(); import minimax_m31; print(time.perf_counter() - t)"
    )
    assert min(float(value(code)) for _ in range(3)) < 0.3


def test_import_loads_nothing_heavy() -> None:
    code = (
        "import sys, minimax_m31; print([m for m in ('numpy', 'tokenizers', 'jinja2', 'tqdm', "
        "'PIL', 'torch', "
        "'minimax_m31._core') if m in sys.modules])"
    )
    assert value(code) == "[]"


def test_import_changes_nothing_global() -> None:
    code = """
import os, sys, logging, signal, threading, warnings, asyncio, atexit
import numpy, tokenizers, jinja2  # they change what they like
def state():
    root = logging.getLogger()
    return (dict(os.environ), root.handlers[:], root.level, signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGTERM), threading.active_count(), warnings.filters[:],
            sys.path[:], sys.excepthook, sys.displayhook, os.getcwd(), sys.getswitchinterval(),
            asyncio.get_event_loop_policy.__module__)
before = state()
import minimax_m31
minimax_m31.LLM, minimax_m31.SamplingParams, minimax_m31.Tokenizer, minimax_m31.EngineArgs
after = state()
print([i for i, (a, b) in enumerate(zip(before, after)) if a != b])
"""
    assert value(code) == "[]"


def test_every_public_name_exists() -> None:
    code = (
        "import minimax_m31 as m; "
        "print([n for n in m.__all__ if not hasattr(m, n)], set(m.__all__) <= set(dir(m)))"
    )
    assert value(code) == "[] True"


def test_unknown_name_is_an_attribute_error() -> None:
    assert value(
        "import minimax_m31\ntry: minimax_m31.nope\nexcept AttributeError as e: print(e)"
    ).endswith("'nope'")


def test_second_import_does_not_register_twice() -> None:
    code = """
import logging, sys, minimax_m31
for name in [n for n in sys.modules if n.startswith('minimax_m31') and n != 'minimax_m31._core']:
    del sys.modules[name]
import minimax_m31
print(len(logging.getLogger('minimax_m31').handlers))
"""
    assert int(value(code)) <= 2


OPEN = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from api_models import ids_llm
from minimax_m31 import SamplingParams, EngineForkedError
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
llm = ids_llm()
params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
first = llm.generate([1, 2, 3], params)[0].outputs[0].token_ids
"""


def test_exit_with_a_live_engine_is_silent_and_quick() -> None:
    done = run(OPEN + "keep = [llm]\nprint('end')", timeout=60)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_exit_while_a_stream_runs() -> None:
    code = (
        OPEN
        + "s = llm.generate_stream([1, 2], SamplingParams(max_tokens=1500, ignore_eos=True))\n"
        + "next(s)\nprint('end')"
    )
    done = run(code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")


def test_exit_code_is_kept() -> None:
    assert run(OPEN + "sys.exit(7)").returncode == 7


def test_forked_child_is_refused_and_frees_nothing() -> None:
    code = (
        OPEN
        + """
pid = os.fork()
if pid == 0:
    codes = []
    for call in (lambda: llm.generate([1], params), lambda: llm.stats(), lambda: llm.trace([1]),
                 lambda: llm.submit([1])):
        try:
            call()
        except EngineForkedError:
            codes.append(0)
        except BaseException as e:
            print('child got', type(e), e, flush=True)
            codes.append(1)
    llm.shutdown()
    del llm
    sys.exit(sum(codes) + (len(codes) != 4))
_, status = os.waitpid(pid, 0)
again = llm.generate([1, 2, 3], params)[0].outputs[0].token_ids
print(os.waitstatus_to_exitcode(status), again == first)
"""
    )
    done = run(code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0 True", "")


def test_child_opens_its_own_engine() -> None:
    code = (
        OPEN
        + """
pid = os.fork()
if pid == 0:
    mine = ids_llm()
    ok = mine.generate([1, 2, 3], params)[0].outputs[0].token_ids == first
    mine.shutdown()
    os._exit(0 if ok else 1)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    done = run(code)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0", "")

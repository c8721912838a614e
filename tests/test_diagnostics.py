"""MM_* variables through the Python face: MM_BACKEND, who sees the lines of the logger, what
`doctor` and `info` say of wrong variables, and that every variable that is listed is read.

The variables are read once per process, so each case is a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_models import IDS_MODEL, ROOT, ids_llm

import minimax_m31
from minimax_m31 import ConfigError, _core, opening
from minimax_m31.engine_args import EngineArgs

HOME = str(Path(minimax_m31.__path__[0]).parent)
OPEN = """
import sys
sys.path.insert(0, {tests!r})
from api_models import ids_llm
from minimax_m31 import ConfigError, SamplingParams
def go(llm):
    llm.generate([1, 2, 3], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
""".format(tests=str(ROOT / "tests"))


def run(command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    """With no MM_* variables but these."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MM_")}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
        env={**kept, "PYTHONPATH": HOME, **env},
    )


def code(text: str, **env: str) -> tuple[str, str]:
    """(output, what went to standard error) of a program that ends well."""
    done = run(["-c", OPEN + text], **env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


# ---------------------------------------------------------------- MM_BACKEND


def test_backend_auto_is_what_the_variable_says() -> None:
    text = "llm = ids_llm('auto')\nprint(llm._info['backend'])"
    assert code(text, MM_BACKEND="ref") == ("ref", "")
    assert code(text, MM_BACKEND="CPU") == ("cpu", "")
    assert code(text.replace("'auto'", "'cpu'"), MM_BACKEND="ref") == ("cpu", "")  # asked for


def test_backend_variable_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    text = "try: ids_llm('auto')\nexcept ConfigError as e: print(e)"
    missing = str(tmp_path / "no.so")
    said, _ = code(text, MM_BACKEND="cuda", MM_CUDA_SO=missing)
    assert said.startswith(f"MM_BACKEND=cuda cannot be used: MM_CUDA_SO={missing} cannot be read")
    said, _ = code(text, MM_CUDA_SO=missing)  # nor does the CPU replace a library that was named
    assert said.startswith(f"MM_CUDA_SO={missing} cannot be read")
    said, _ = code(text.replace("'auto'", "'cuda', dtype='auto'"), MM_CUDA_SO=missing)
    assert said.startswith(f"backend='cuda' cannot be used: MM_CUDA_SO={missing} ")
    said, _ = code(text, MM_BACKEND="ref cpu")
    assert said.startswith("MM_BACKEND=ref cpu: it must be one of")


def choose(
    monkeypatch: pytest.MonkeyPatch,
    has_cuda: bool,
    chosen: str | None,
    *,
    problem: str = "no driver",
    library: str | None = None,
    **args: Any,
) -> str:
    lines = [("cuda", has_cuda, "sm_90a" if has_cuda else problem), ("cpu", True, "avx2")]
    monkeypatch.setattr(opening, "_core", SimpleNamespace(backends=lambda: lines))
    found = {"MM_BACKEND": chosen, "MM_CUDA_SO": library}
    monkeypatch.setattr(opening, "variables", lambda: {k: v for k, v in found.items() if v})
    return opening.choose_backend(EngineArgs(model="nano", **args))[0]


def test_backend_choice_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, True, None) == "cuda"
    assert choose(monkeypatch, True, None, dtype="float32") == "cpu"
    assert choose(monkeypatch, True, "cpu") == "cpu"
    assert choose(monkeypatch, True, "cuda") == "cuda"
    assert choose(monkeypatch, True, "cuda", backend="cpu", dtype="float32") == "cpu"
    with pytest.raises(ConfigError, match="MM_BACKEND=cuda cannot run dtype='float32'"):
        choose(monkeypatch, True, "cuda", dtype="float32")
    with pytest.raises(ConfigError, match="backend='cuda' cannot run dtype='float32'"):
        choose(monkeypatch, True, None, backend="cuda", dtype="float32")


def test_backend_choice_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(monkeypatch, False, None) == "cpu"
    with pytest.raises(ConfigError, match="MM_BACKEND=cuda cannot be used: no driver"):
        choose(monkeypatch, False, "cuda")
    with pytest.raises(ConfigError, match="MM_BACKEND=ref cannot be used: it is not part"):
        choose(monkeypatch, False, "ref")
    # a library that was named: it may find no driver, but not be of another build
    assert choose(monkeypatch, False, None, library="/a.so") == "cpu"
    old = "the CUDA library is of version 3, the extension of 4; build both again"
    assert choose(monkeypatch, False, None, problem=old) == "cpu"
    with pytest.raises(ConfigError, match=r"MM_CUDA_SO=/a.so: the CUDA library is of version 3"):
        choose(monkeypatch, False, None, problem=old, library="/a.so")


# ---------------------------------------------------------------- the list of variables


def test_every_listed_variable_is_read_and_documented() -> None:
    fields = dict(
        re.findall(
            r'\{"(MM_\w+)".*?FIELD\((\w+)\)', (ROOT / "csrc/base/env.c").read_text(), re.DOTALL
        )
    )
    assert set(fields) == {name for name, _, _ in _core.env_table()}
    sources = [
        path.read_text()
        for folder in ("csrc", "kernels")
        for path in (ROOT / folder).rglob("*.c")
        if path.name != "env.c"
    ]
    for name, field in fields.items():
        read = re.compile(rf"\b(env|mm_env_get\(\))->{field}\b")
        assert any(read.search(text) for text in sources), f"{name} is read by nothing"
    section = (ROOT / "docs/README.md").read_text().split("\n## Variables")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `(MM_\w+)", section, re.M)) == set(fields)


# ---------------------------------------------------------------- who sees the lines


def test_profile_tables_come_when_the_engine_closes() -> None:
    _, said = code("with ids_llm() as llm:\n    go(llm)\n    print('open')", MM_PROFILE="1")
    assert re.search(r"minimax_m31 WARNING: .*attn_in", said), said
    _, said = code("llm = ids_llm()\ngo(llm)\ndel llm", MM_PROFILE="1")  # the collector closes it
    assert "attn_in" in said
    _, said = code("llm = ids_llm()\ngo(llm)", MM_PROFILE="2")  # the interpreter's end does
    assert "minimax_m31 WARNING: " in said and "step" in said


def test_diagnostics_are_seen_without_logging_set_up() -> None:
    run_one = "with ids_llm() as llm: go(llm)"
    assert code(run_one) == ("", "")
    assert "MM_CHECK=1: every op" in code(run_one, MM_CHECK="1")[1]
    assert "probe hidden layer 0: n " in code(run_one, MM_PROBE="hidden,0")[1]
    assert "MM_GRPAH is not known" in code(run_one, MM_GRPAH="0")[1]
    # off, or silent by nature
    assert code(run_one, MM_CHECK="0", MM_PROFILE="0", MM_GRAPH="0", MM_THREADS="1")[1] == ""


def test_a_program_that_sets_up_logging_keeps_it() -> None:
    own = "import logging\nlogging.basicConfig(format='mine: %(message)s')\n"
    begin, end = "llm = ids_llm()\n", "go(llm); llm.shutdown()"
    for text in (own + begin + end, begin + own + end):
        _, said = code(text, MM_PROBE="hidden,0")
        assert said.count("mine: probe hidden") > 0
        assert said.count("mine: probe hidden") == said.count("probe hidden")
    # a handler of the logger itself is one, too
    _, said = code(
        own.replace("logging.basicConfig", "h = logging.StreamHandler(sys.stdout)#")
        + "logging.getLogger('minimax_m31').addHandler(h)\n"
        + begin
        + end,
        MM_PROBE="hidden,0",
    )
    assert said == ""


def test_log_variable_sets_the_level() -> None:
    run_one = "with ids_llm('auto', log_level='ERROR') as llm: go(llm)"
    assert "minimax_m31 INFO: running on the CPU: " in code(run_one, MM_LOG="info")[1]
    assert code(run_one, MM_LOG="error")[1] == ""
    level = (
        "import logging\n"
        "ids_llm(log_level='ERROR')\n"
        "print(logging.getLogger('minimax_m31').level)"
    )
    assert code(level, MM_LOG="debug")[0] == "10" and code(level)[0] == "40"


def test_lines_of_an_engine_that_did_not_open_are_seen() -> None:
    text = "try: ids_llm()\nexcept ConfigError as e: print('refused')"
    said, lines = code(text, MM_PROBE="nosuch", MM_GRPAH="1")
    assert said == "refused" and "MM_GRPAH is not known" in lines


def test_length_that_is_cut_is_a_warning() -> None:
    small = {"kv_cache_memory_bytes": 3 << 20, "max_num_seqs": 2}
    with pytest.warns(UserWarning, match=r"max_model_len=2048: the KV cache holds \d+ ") as found:
        ids_llm(**small).shutdown()
    assert len(found) == 1 and found[0].filename.endswith("api_models.py")  # where LLM() is called
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids_llm(**small, max_model_len="auto").shutdown()
        ids_llm().shutdown()


# ---------------------------------------------------------------- doctor and info


@pytest.mark.parametrize(
    ("env", "status", "check", "says"),
    [
        ({"MM_GRAPH": "7"}, 1, "variables", "MM_GRAPH=7: it must be a number from 0 to 1"),
        ({"MM_LOG": "loud"}, 1, "variables", "MM_LOG=loud: it must be one of"),
        ({"MM_GRPAH": "0"}, 0, "variables", "without effect: MM_GRPAH"),
        ({"MM_NCCL_SO": "/x"}, 0, "variables", "without effect: MM_NCCL_SO"),
        ({"MM_CUDA_SO": "/nowhere.so"}, 1, "CUDA library", "MM_CUDA_SO=/nowhere.so cannot be read"),
        ({"MM_CUDA_SO": "/etc"}, 1, "CUDA library", "MM_CUDA_SO=/etc is a folder"),
        ({"MM_CUDA_SO": "etc"}, 1, "CUDA library", "MM_CUDA_SO=./etc is a folder"),
        ({"MM_CUDA_SO": "/" + "a" * 1023}, 1, "CUDA library", "longer than 1023 characters"),
        ({"MM_BACKEND": "cuda", "MM_CUDA_SO": "/x"}, 1, "variables", "MM_BACKEND=cuda cannot be"),
        ({"MM_DUMP": "/dev/null"}, 1, "variables", "MM_DUMP=/dev/null is no folder"),
        ({"MM_DUMP": "/no/where"}, 1, "variables", "MM_DUMP=/no/where cannot be written"),
    ],
)
def test_doctor_tells_of_wrong_variables(
    env: dict[str, str], status: int, check: str, says: str
) -> None:
    done = run(["-m", "minimax_m31", "doctor", "--json"], **env)
    report = json.loads(done.stdout)
    found = {finding["name"]: finding for finding in report["findings"]}[check]
    assert says in found["text"] and found["remedy"]
    assert found["status"] == ("fail" if status else "warn")
    others = [f for f in report["findings"] if f["status"] == "fail"]
    assert done.returncode == (1 if others else 0) and bool(others) >= bool(status)


def test_info_tells_of_wrong_variables() -> None:
    done = run(["-m", "minimax_m31", "info"], MM_GRAPH="7", MM_GRPAH="0", MM_THREADS="1")
    assert "  WRONG: MM_GRAPH=7: it must be" in done.stdout
    assert "  WRONG: environment variable MM_GRPAH is not known" in done.stdout
    assert "  MM_THREADS=1\n" in done.stdout
    assert run(["-m", "minimax_m31", "info"]).stdout.count("WRONG") == 0


def test_variables_hold_any_bytes() -> None:
    done = run(["-m", "minimax_m31", "info", "--json"], MM_CUDA_SO="/\udcff.so", MM_DUMP="\udcfe")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["variables"]["MM_CUDA_SO"] == "/\ufffd.so"


def test_commands_of_a_program_obey_the_variables() -> None:
    command = ["-m", "minimax_m31", "generate", "--model", str(IDS_MODEL), "--ids", "1,2,3"]
    done = run([*command, "--max-tokens", "2"], MM_BACKEND="cuda", MM_CUDA_SO="/nowhere.so")
    assert done.returncode == 1 and done.stderr.startswith("ConfigError: MM_BACKEND=cuda cannot")

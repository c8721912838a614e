"""plan, doctor, bench and generate -o on the command line; all rules of doctor on made-up facts."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from api_models import BACKEND, GOLDEN, IDS_MODEL

from minimax_m31.__main__ import main
from minimax_m31.doctor import diagnose, judge
from minimax_m31.doctor_checks import MACHINE_CHECKS, Finding, checkpoint_findings, plan_finding
from minimax_m31.doctor_probe import CheckpointFacts, Facts, Gpu, probe, probe_checkpoint
from minimax_m31.opening import NANO
from minimax_m31.plan import make_plan

GB = 10**9
IDS = ["--model", str(IDS_MODEL), "--max-model-len", "512", "--backend", BACKEND, "--threads", "1"]


# ---------------------------------------------------------------- plan


def test_cli_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "M3.1-Flash", "--gpu", "8x H200", "--max-model-len", "1M"]) == 0
    shown = capsys.readouterr().out
    assert "8 x H200, tensor_parallel_size 8" in shown and "KV capacity" in shown
    command = ["plan", "M3.1-Flash", "--gpu", "H200", "--n-gpu", "4", "--kv-cache-dtype", "nvfp4"]
    assert main([*command, "--max-num-seqs", "16", "--tp", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    asked = make_plan(
        "M3.1-Flash",
        gpu="H200",
        n_gpu=4,
        tensor_parallel_size=2,
        kv_cache_dtype="nvfp4",
        max_num_seqs=16,
    )
    assert plan["kv_capacity_tokens"] == asked.kv_capacity_tokens
    assert plan["replicas"] == 2 and plan["arguments"]["kv_format"] == "nvfp4"


def test_cli_plan_says_no_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "M3.1-Flash", "--gpu", "24GB"]) == 1
    shown = capsys.readouterr().out
    assert "DOES NOT FIT" in shown and "what to change" in shown
    assert main(["plan", "M3.1-Flash", "--gpu", "X9"]) == 1
    assert capsys.readouterr().err.startswith("ConfigError: gpu='X9'")
    with pytest.raises(SystemExit):
        main(["plan", "--max-model-len", "12Q"])
    assert "'12Q'" in capsys.readouterr().err


# ---------------------------------------------------------------- bench


def test_cli_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    command = ["bench", "--model", str(IDS_MODEL), "--backend", BACKEND, "--threads", "1"]
    command += ["--prompts", "16,64", "--batches", "1,4", "--output-len", "8", "--repeats", "1"]
    assert main([*command, "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    result = json.loads(out.read_text())
    rows = [(r["what"], r["batch"], r["prompt"]) for r in result["rows"]]
    assert rows == [("prefill", 1, 16), ("prefill", 1, 64), ("decode", 1, 16), ("decode", 4, 16)]
    for row in result["rows"]:
        assert row["tokens_per_s"] > 0
        per_token = row["ms"] / 1e3 / (row["prompt"] if row["what"] == "prefill" else row["batch"])
        assert per_token * row["tokens_per_s"] == pytest.approx(1)
    assert result["machine"]["backend"].startswith(BACKEND) and result["date"]
    assert "tokens/s" in shown and "decode" in shown


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--output-len", "1"], "--output-len 1"),
        (["--repeats", "0"], "--repeats 0"),
        (["-o", "no/such/folder/x.json"], "no/such/folder"),
    ],
)
def test_cli_bench_refuses(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", str(IDS_MODEL), *flags]) == 1
    assert says in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "--batches", "1,x"])


# ---------------------------------------------------------------- generate -o


def generate(*flags: str) -> int:
    prompts = ["--ids", "1,2,3", "--ids", "4", "--ids", "5,6"]
    return main(["generate", *IDS, *prompts, "--temperature", "0", "--max-tokens", "4", *flags])


def lines_of(path: Path) -> dict[int, list[int]]:
    outputs = [json.loads(line) for line in path.read_text().splitlines()]
    return {o["index"]: o["outputs"][0]["token_ids"] for o in outputs}


def test_cli_generate_writes_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.jsonl"
    assert generate("-o", str(path)) == 0
    whole = lines_of(path)
    assert sorted(whole) == [0, 1, 2] and all(len(ids) == 4 for ids in whole.values())
    capsys.readouterr()
    assert generate("-o", str(path)) == 1
    assert "--resume continues it" in capsys.readouterr().err
    # a run that was cut off: one whole line, and half of another
    kept = path.read_text().splitlines()[1]
    path.write_text(kept + "\n" + kept[:40])
    assert generate("-o", str(path), "--resume") == 0
    assert "2 of 3 prompts were run" in capsys.readouterr().out
    assert lines_of(path) == whole
    assert len(path.read_text().splitlines()) == 3
    assert generate("-o", str(path), "--resume") == 0
    assert "0 of 3 prompts were run" in capsys.readouterr().out


def test_cli_generate_refuses_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"index": 0, "prompt": "x", "prompt_token_ids": [9]}\n')
    for flags, says in (
        (["-o", str(tmp_path / "no" / "x.jsonl")], "is missing; make it"),
        (["-o", str(tmp_path)], "is a folder"),
        (["-o", str(other), "--resume"], "line 1 belongs to another prompt"),
        (["--resume"], "give it with -o"),
    ):
        assert generate(*flags) == 1
        assert says in capsys.readouterr().err
    other.write_text("[]\n")
    assert generate("-o", str(other), "--resume") == 1
    assert "line 1 is no output" in capsys.readouterr().err


# ---------------------------------------------------------------- doctor


def test_cli_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(NANO), "--backend", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    names = {f["name"]: f["status"] for f in found["findings"]}
    assert names["checkpoint"] == names["memory plan"] == names["tokenizer"] == "ok"
    assert found["healthy"]
    assert main(["doctor", "no/such/folder"]) == 1
    shown = capsys.readouterr().out
    assert "FAIL  checkpoint" in shown and "->" in shown


def test_doctor_leaves_the_process_as_it_was() -> None:
    code = (
        "import os, signal; from minimax_m31.doctor import diagnose; "
        "e = dict(os.environ); s = signal.getsignal(signal.SIGINT); diagnose(); "
        "assert dict(os.environ) == e and signal.getsignal(signal.SIGINT) is s"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# The calls that the probe makes, as a driver with two devices would answer them.
DRIVER = r"""
#include <string.h>
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuInit(unsigned f) { (void)f; return INIT; }
int cuGetErrorName(int e, const char **n)
{ *n = e == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "?"; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, d ? "Two" : "One", (size_t)n); return 0; }
int cuDeviceTotalMem_v2(size_t *n, int d) { *n = ((size_t)140 + (size_t)d) << 30; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { (void)d; *v = a == 75 ? 9 : 0; return 0; }
int cuDeviceCanAccessPeer(int *v, int a, int b) { *v = a < b; return 0; }
"""
MANAGEMENT = r"""
static int at[2] = {0, 1};
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = &at[i]; return 0; }
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *m)
{ m[0] = 1ull << 37; m[1] = 0; m[2] = *(int *)h ? 5ull << 30 : 0; return 0; }
int nvmlDeviceGetMigMode(void *h, unsigned *a, unsigned *b)
{ *a = *b = (unsigned)*(int *)h; return 0; }
int nvmlDeviceGetTotalEccErrors(void *h, int t, int c, unsigned long long *n)
{ (void)t; (void)c; *n = *(int *)h ? 7 : 0; return 0; }
int ncclGetVersion(int *v) { *v = 22907; return 0; }
"""
PROBE = """
import dataclasses, json
from minimax_m31.doctor_probe import probe
f = probe()
print(json.dumps({k: v for k, v in dataclasses.asdict(f).items() if k.startswith(("gpu", "no_peer",
    "nccl", "init", "cuda", "driver_error"))}))
"""


def probe_with(folder: Path, init: int, **env: str) -> dict[str, Any]:
    """Facts found in a process that sees such a driver."""
    cc = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    assert cc is not None
    libraries = {
        "libcuda.so.1": DRIVER, "libnvidia-ml.so.1": MANAGEMENT, "libnccl.so.2": MANAGEMENT,
    }  # fmt: skip
    for name, code in libraries.items():
        source = folder / f"{name}.c"
        source.write_text(code)
        command = [cc, "-shared", "-fPIC", f"-DINIT={init}", source, "-o", folder / name]
        subprocess.run(command, check=True)
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env={
            **{k: v for k, v in os.environ.items() if k not in ("CUDA_VISIBLE_DEVICES",)},
            "LD_LIBRARY_PATH": str(folder),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def test_doctor_asks_the_driver(tmp_path: Path) -> None:
    found = probe_with(tmp_path, 0)
    one, two = found["gpus"]
    assert (one["name"], one["memory_total"], one["cc"]) == ("One", 140 << 30, 90)
    assert (one["used"], one["mig"], one["ecc_errors"]) == (0, False, 0)
    assert (two["name"], two["used"], two["mig"], two["ecc_errors"]) == ("Two", 5 << 30, True, 7)
    assert found["no_peer"] == [[1, 0]] and found["cuda_version"] == 13000
    assert found["nccl_version"] == 22907 and found["driver_error"] == ""
    hidden = probe_with(tmp_path, 0, CUDA_VISIBLE_DEVICES="1")
    assert [g["used"] for g in hidden["gpus"]] == [None, None]  # numbered differently: not asked


def test_doctor_hears_the_driver_refuse(tmp_path: Path) -> None:
    found = probe_with(tmp_path, 802)
    assert found["init_error"] == 802 and "NOT_READY" in found["init_name"] and not found["gpus"]
    facts = gpu_facts(init_error=802, init_name=found["init_name"], gpus=[])
    assert "fabric" in {f.name: f for f in judge(facts)}["driver"].remedy


def cpu_facts(**changes: Any) -> Facts:
    """A healthy machine without a GPU."""
    names = ("numpy", "tokenizers", "jinja2", "tqdm", "pillow", "llguidance")
    facts = Facts(
        packages=dict.fromkeys(names, "2.1"),
        backends={"cpu": (True, "avx2"), "cuda": (False, "no CUDA library was built")},
        cores=8,
        host_total=64 * GB,
        host_free=50 * GB,
        driver_error="libcuda.so.1: cannot open shared object file",
    )
    return dataclasses.replace(facts, **changes)


def gpu_facts(n: int = 2, **changes: Any) -> Facts:
    """A healthy machine with GPUs."""
    facts = cpu_facts(
        backends={"cpu": (True, "avx2"), "cuda": (True, "sm_90a, NVIDIA H200")},
        device_files=n,
        driver_version="580.82.07",
        driver_error="",
        cuda_version=13000,
        gpus=[Gpu(i, "NVIDIA H200", 150 * GB, 90, GB, False, 0) for i in range(n)],
        nccl_path="libnccl.so.2",
        nccl_version=22900,
        shm_free=8 << 30,
    )
    return dataclasses.replace(facts, **changes)


def gpu(**changes: Any) -> list[Gpu]:
    good = gpu_facts().gpus
    return [dataclasses.replace(good[0], **changes), good[1]]


def test_doctor_finds_healthy_machines_healthy() -> None:
    for facts in (cpu_facts(), gpu_facts(), gpu_facts(1, nccl_path="", shm_free=0)):
        assert {f.status for f in judge(facts)} <= {"ok", "skip"}
    real = probe()
    assert len(judge(real)) == len(MACHINE_CHECKS)
    assert real.host_total > real.host_free > 0 and real.cores >= 1


ILL: list[tuple[str, Facts, str, str, str]] = [
    # check, facts, status, what it says, what the remedy says
    ("python", cpu_facts(python=(3, 10, 1)), "fail", "3.10.1", "3.11"),
    ("python", cpu_facts(system="Darwin"), "fail", "Darwin", "Linux"),
    ("packages", cpu_facts(packages={"numpy": "2.0"}), "fail", "tokenizers", "pip install"),
    (
        "packages",
        cpu_facts(packages={**cpu_facts().packages, "numpy": "1.26.4"}),
        "fail",
        "1.26.4",
        "numpy>=2.0",
    ),
    (
        "packages",
        cpu_facts(packages={**cpu_facts().packages, "llguidance": "not installed"}),
        "warn",
        "llguidance",
        "structured",
    ),
    ("cpu", cpu_facts(backends={}), "fail", "not part", "pip install"),
    ("cpu", cpu_facts(cpu_quota=2.0), "warn", "8 cores", "threads=2"),
    ("host memory", cpu_facts(host_free=GB), "warn", "1.0 of 64.0", "limit"),
    ("limits", cpu_facts(max_mapped=GB), "fail", str(GB), "ulimit -v"),
    ("limits", cpu_facts(overcommit=2), "warn", "overcommit", "kv_cache_memory_bytes"),
    ("limits", cpu_facts(max_files=64), "fail", "64 open files", "ulimit -n"),
    (
        "variables",
        cpu_facts(mm_variables={"MM_CHECK": "1"}),
        "warn",
        "MM_CHECK=1",
        "unset MM_CHECK",
    ),
    (
        "variables",
        cpu_facts(variable_problems=[("MM_GRAPH", "MM_GRAPH=7: it must be 0 or 1", True)]),
        "fail",
        "no engine opens: MM_GRAPH=7",
        "unset MM_GRAPH",
    ),
    (
        "variables",
        cpu_facts(
            variable_problems=[
                ("MM_GRAPH", "MM_GRAPH=7: it must be 0 or 1", True),
                ("MM_GRPAH", "MM_GRPAH is not known", False),
            ]
        ),
        "fail",
        "not known: MM_GRPAH",
        "unset MM_GRAPH MM_GRPAH",
    ),
    (
        "variables",
        cpu_facts(
            variable_problems=[("MM_GRPAH", "MM_GRPAH is not known", False)],
            known_variables=["MM_GRAPH"],
        ),
        "warn",
        "without effect: MM_GRPAH",
        "known: MM_GRAPH",
    ),
    (
        "variables",
        cpu_facts(mm_variables={"MM_BACKEND": "cuda"}),
        "fail",
        "MM_BACKEND=cuda cannot be used: no CUDA library was built",
        "unset MM_BACKEND",
    ),
    (
        "variables",
        cpu_facts(mm_variables={"MM_DUMP": "/a"}, dump_problem="MM_DUMP=/a is no folder"),
        "fail",
        "MM_DUMP=/a is no folder",
        "unset MM_DUMP",
    ),
    ("driver", gpu_facts(driver_error="no file"), "fail", "kernel module", "--gpus all"),
    ("driver", gpu_facts(init_error=34), "fail", "34", "stub"),
    ("driver", gpu_facts(init_error=802), "fail", "802", "fabric"),
    ("driver", gpu_facts(init_error=803), "fail", "803", "restart"),
    ("driver", gpu_facts(init_error=804), "fail", "804", "cuda-compat"),
    ("driver", gpu_facts(init_error=100), "fail", "100", "CUDA_VISIBLE_DEVICES"),
    (
        "driver",
        gpu_facts(init_error=100, environment={"CUDA_VISIBLE_DEVICES": ""}),
        "fail",
        "100",
        "set and empty",
    ),
    ("driver", gpu_facts(init_error=12345), "fail", "12345", "dmesg"),
    ("driver", gpu_facts(cuda_version=12080), "fail", "12.8", "580"),
    (
        "CUDA library",
        gpu_facts(backends={"cuda": (False, "no CUDA library was built (x does not exist)")}),
        "fail",
        "no CUDA library",
        "MM_CUDA=1",
    ),
    (
        "CUDA library",
        gpu_facts(backends={"cuda": (False, "the CUDA library is of version 3, the extension 4")}),
        "fail",
        "version 3",
        "different builds",
    ),
    (
        "CUDA library",
        gpu_facts(backends={"cuda": (False, "the library was built with 13.0; install a driver")}),
        "fail",
        "built with",
        "driver's line",
    ),
    (
        "CUDA library",
        gpu_facts(backends={"cuda": (False, "/a.so is not whole; build it on a machine with")}),
        "fail",
        "not whole",
        "MM_CUDA=1",
    ),
    (
        "CUDA library",
        cpu_facts(backends={"cuda": (False, "MM_CUDA_SO=/a is a folder; give the path")}),
        "fail",
        "MM_CUDA_SO=/a is a folder",
        "unset",
    ),
    (
        "CUDA library",
        cpu_facts(
            mm_variables={"MM_CUDA_SO": "/a.so"},
            backends={"cuda": (False, "the CUDA library is of version 3, the extension of 4")},
        ),
        "fail",
        "MM_CUDA_SO=/a.so: the CUDA library is of version 3",
        "unset it",
    ),
    ("GPUs", gpu_facts(gpus=[]), "fail", "no device", "CUDA_VISIBLE_DEVICES"),
    ("GPUs", gpu_facts(gpus=gpu(cc=75, name="T4")), "fail", "sm_75", "device_ids"),
    ("GPUs", gpu_facts(gpus=gpu(mig=True)), "warn", "MIG", "-mig 0"),
    ("GPUs", gpu_facts(gpus=gpu(name="NVIDIA L4")), "warn", "NVIDIA L4", "equal"),
    ("GPU memory", gpu_facts(gpus=gpu(used=90 * GB)), "warn", "GPU 0: 90.0 GB", "nvidia-smi"),
    ("ECC", gpu_facts(gpus=gpu(ecc_errors=3)), "fail", "3 uncorrected", "replaced"),
    ("peer access", gpu_facts(no_peer=[(0, 1)]), "fail", "GPU 0", "topo -m"),
    (
        "peer access",
        gpu_facts(environment={"NCCL_P2P_DISABLE": "1"}),
        "warn",
        "NCCL_P2P_DISABLE",
        "unset",
    ),
    ("NCCL", gpu_facts(nccl_path="", nccl_error="no file"), "fail", "no file", "nvidia-nccl-cu13"),
    ("NCCL", gpu_facts(nccl_version=21403), "fail", "2.14.3", "-U nvidia-nccl-cu13"),
    ("NCCL", gpu_facts(environment={"NCCL_NVLS_ENABLE": "1"}), "warn", "multicast", "unset"),
    ("/dev/shm", gpu_facts(shm_free=64 << 20), "warn", "64 MiB", "--shm-size"),
]


@pytest.mark.parametrize(("name", "facts", "status", "says", "remedy"), ILL)
def test_doctor_finds_what_is_wrong(
    name: str, facts: Facts, status: str, says: str, remedy: str
) -> None:
    found = {finding.name: finding for finding in judge(facts)}[name]
    assert found.status == status
    assert says in found.text and remedy in found.remedy


def test_doctor_has_a_remedy_for_every_failure() -> None:
    for _, facts, _, _, _ in ILL:
        for finding in judge(facts):
            assert bool(finding.remedy) == (finding.status in ("warn", "fail")), finding


def good_checkpoint(**changes: Any) -> CheckpointFacts:
    facts = CheckpointFacts(
        "m", n_bytes=250 * GB, n_file=50, formats="nvfp4 experts", has_tokenizer=True,
        has_template=True, file_system="ext4", read_rate=3e9,
    )  # fmt: skip
    return dataclasses.replace(facts, **changes)


@pytest.mark.parametrize(
    ("changes", "name", "status", "says"),
    [
        ({}, "disk", "ok", "3.00 GB/s"),
        ({"read_rate": 1e8}, "disk", "warn", "minutes"),
        ({"file_system": "nfs4", "read_rate": 1e9}, "disk", "warn", "network"),
        ({"file_system": "fuse.sshfs", "read_rate": 1e9}, "disk", "warn", "network"),
        ({"cached": True}, "disk", "ok", "from memory"),
        ({"has_tokenizer": False}, "tokenizer", "warn", "tokenizer.json"),
        ({"has_template": False}, "tokenizer", "warn", "chat template"),
        ({"generation": {"temperature": 1.0}}, "defaults", "ok", "temperature 1.0"),
        ({"error": "2 of 5 shards are missing"}, "checkpoint", "fail", "2 of 5"),
        ({}, "weights in memory", "warn", "250.0 GB of weights, 50.0 GB of free"),
    ],
)
def test_doctor_judges_checkpoints(
    changes: dict[str, Any], name: str, status: str, says: str
) -> None:
    found = {f.name: f for f in checkpoint_findings(good_checkpoint(**changes), cpu_facts())}
    assert found[name].status == status and says in found[name].text


def lfs_pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")


def cut(folder: Path) -> None:
    data = (NANO / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def partial(folder: Path) -> None:
    (folder / "model-00002.safetensors.incomplete").write_bytes(b"x")


def dangling(folder: Path) -> None:
    (folder / "model.safetensors").symlink_to(folder / "blob-that-is-gone")


def empty(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lfs_pointer, "Git LFS pointer"),
        (cut, "truncated"),
        (partial, "has not ended"),
        (dangling, "does not exist"),
        (empty, "is empty"),
    ],
)
def test_doctor_looks_at_files(make: Callable[[Path], None], says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((NANO / "config.json").read_bytes())
    make(tmp_path)
    findings = list(checkpoint_findings(probe_checkpoint(tmp_path), cpu_facts()))
    failed = [f for f in findings if f.status == "fail"]
    assert any(says in f.text for f in failed) and all(f.remedy for f in failed)


def test_doctor_measures_the_disk(tmp_path: Path) -> None:
    facts = probe_checkpoint(GOLDEN / "m31_d128_nvfp4")
    assert facts.error == "" and facts.n_file >= 1 and facts.read_rate > 0 and facts.file_system


def test_doctor_tells_of_a_plan_that_does_not_fit() -> None:
    bad: Finding = plan_finding(make_plan("M3.1-Flash", gpu="H200"))
    assert bad.status == "fail" and "tensor_parallel_size=2" in bad.remedy
    assert plan_finding(make_plan("M3.1-Flash", gpu="8x H200")).status == "ok"
    refused = {f.name: f for f in diagnose(str(NANO), backend="cpu", dtype="float16").findings}
    assert refused["memory plan"].status == "fail" and "float16" in refused["memory plan"].text

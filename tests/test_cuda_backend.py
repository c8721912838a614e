"""The backend "cuda" around its kernels: machines that cannot run it, shapes it refuses, memory,
faults. Machines are played by the emulated library, so those tests need it (MM_CUDA_SO)."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest
from c_structs import CONSTANTS, make
from checkpoint_files import GOLDEN
from op_driver import (
    ACT,
    BACKENDS,
    CACHE,
    IS_EMULATED,
    Machine,
    _testing,
    backend,
    device_shape,
    shape,
)
from test_ops_backend import OPEN_CUDA, run_python

CUDA = [b for b in BACKENDS if b.values == ("cuda",)]
needs_emulator = pytest.mark.skipif(
    not IS_EMULATED, reason="MM_CUDA_SO names no emulated library (tests/emu/build.sh)"
)


def opened(**env: str) -> str:
    return run_python(OPEN_CUDA.format(path=_testing.__file__, name="cuda"), **env).strip()


@needs_emulator
@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"EMU_DRIVER": "12040"}, "driver supports CUDA 12.4, the library was built with 13.0"),
        ({"EMU_DRIVER": "0"}, "no NVIDIA driver is loaded; install the NVIDIA driver"),
        ({"EMU_DEVICES": "0"}, "shows no GPU to this process"),
        ({"EMU_CC": "75"}, "has compute capability 7.5; 8.0 or newer is needed"),
    ],
)
def test_cuda_says_why_a_machine_cannot_run_it(env: dict[str, str], says: str) -> None:
    text = opened(**env)
    assert text.startswith('unsupported: backend "cuda": ') and says in text


TIER = OPEN_CUDA.replace('["name"]', '["tier"]')


@needs_emulator
@pytest.mark.parametrize(
    ("env", "tier"),
    [
        ({"EMU_CC": "90"}, "sm_90a"),
        ({"EMU_CC": "90", "MM_TIER": "generic"}, "generic on sm_90"),
        ({"EMU_CC": "80"}, "generic on sm_80"),
        ({"EMU_CC": "120"}, "generic on sm_120"),
    ],
)
def test_cuda_tier_follows_the_device(env: dict[str, str], tier: str) -> None:
    code = TIER.format(path=_testing.__file__, name="cuda")
    assert run_python(code, **env).strip() == tier


GATHER = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
from op_driver import Machine, shape
try:
    with Machine("cuda", shape()) as m:
        x, row = m.put(np.zeros((9, 48), np.uint8)), m.put(np.zeros(4, np.int32))
        out = m.new((4, 48), np.uint8)
        m.run("gather_rows", **{{"in": x}}, row=row, n_row=4, n_bytes=48, out=out)
except RuntimeError as e:
    print(e)
"""


def gather(**env: str) -> str:
    tests = os.path.dirname(os.path.abspath(__file__))
    return run_python(GATHER.format(tests=tests), **env).strip()


@needs_emulator
def test_cuda_fault_says_what_it_is_and_how_to_find_the_op() -> None:
    text = gather(EMU_FAULT="gather_rows")
    assert text.startswith("device: cuda: waiting for the device: cudaErrorIllegalAddress: ")
    assert "in this or an earlier op" in text and "MM_SYNC=1 names the op" in text
    text = gather(EMU_FAULT="gather_rows", MM_SYNC="1")
    assert text.startswith("device: cuda: gather_rows: cudaErrorIllegalAddress: ")
    assert "cannot be used by this process any more: start a new process" in text
    assert "MM_SYNC" not in text


@pytest.mark.gpu
@pytest.mark.skipif(IS_EMULATED, reason="an emulated device does not survive a bad address")
def test_a_bad_address_is_told_by_a_real_device() -> None:
    far = GATHER.replace("np.zeros(4, np.int32)", "np.full(4, 2**31 - 1, np.int32)")
    code = far.format(tests=os.path.dirname(os.path.abspath(__file__)))
    text = run_python(code, MM_SYNC="0").strip()
    assert text.startswith("device: cuda: waiting for the device: cudaErrorIllegalAddress: "), text
    assert "in this or an earlier op" in text and "MM_SYNC=1 names the op" in text
    text = run_python(code, MM_SYNC="1").strip()
    assert text.startswith("device: cuda: gather_rows: cudaErrorIllegalAddress: "), text


ENGINE = """
from minimax_m31 import LLM, EngineDeadError, Mm31Error, SamplingParams
try:
    llm = LLM({folder!r}, backend="cuda", max_model_len=512, max_num_seqs=2,
              kv_cache_memory_bytes=16 << 20, skip_tokenizer_init=True)
except Mm31Error as e:
    raise SystemExit(print("refused", type(e).__name__, e))
for _ in range(2):
    try:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=3), use_tqdm=False)
        print("fine")
    except EngineDeadError as e:
        print("dead", e)
llm.shutdown()
print("closed", llm.closed)
"""


# the engine is opened again in the process whose device died
AGAIN = """
try:
    LLM({folder!r}, backend="cuda", max_model_len=512, skip_tokenizer_init=True)
except Mm31Error as e:
    print("refused", type(e).__name__, e)
"""


@needs_emulator
def test_opening_again_after_a_fault_asks_for_a_new_process() -> None:
    code = (ENGINE + AGAIN).format(folder=str(GOLDEN / "m31_d128"))
    *_, last = run_python(code, EMU_FAULT="moe_gate_up", MM_SYNC="1").splitlines()
    assert last.startswith("refused ConfigError backend='cuda' cannot be used: cuda: "), last
    assert "start a new process" in last and "nvidia-smi" not in last


def engine(**env: str | None) -> list[str]:
    return run_python(ENGINE.format(folder=str(GOLDEN / "m31_d128")), **env).splitlines()


@needs_emulator
def test_engine_ends_with_the_cause_of_a_fault_and_shuts_down() -> None:
    first, later, closed = engine(EMU_FAULT="moe_gate_up", MM_SYNC="1")
    cause = "cuda: moe_gate_up: cudaErrorIllegalAddress: an illegal memory access"
    assert first.startswith(f"dead {cause}") and closed == "closed True"
    assert later.startswith(f"dead the engine failed earlier: {cause}")
    # without MM_SYNC the steps that warm up meet it: nothing opens, and what to do is said
    (text,) = engine(EMU_FAULT="moe_gate_up")
    assert text.startswith("refused EngineDeadError cuda: ") and "MM_SYNC=1 names the op" in text
    assert engine() == ["fine", "fine", "closed True"]


# a kernel of another module traps, in the context that the engine lives in
TRAP = """
import ctypes
def trap():
    cu = ctypes.CDLL("libcuda.so.1")
    code = b".version 8.0\\n.target sm_80\\n.address_size 64\\n.visible .entry t() {{ trap; }}\\n"
    context, module, kernel = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert cu.cuInit(0) == 0
    assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cu.cuCtxSetCurrent(context) == 0
    assert cu.cuModuleLoadData(ctypes.byref(module), code) == 0
    assert cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"t") == 0
    assert cu.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
"""


@pytest.mark.gpu
@pytest.mark.skipif(IS_EMULATED, reason="there is no driver to launch a trap with")
def test_a_fault_of_a_real_device_ends_the_engine_with_its_cause() -> None:
    code = TRAP + ENGINE.replace('print("fine")', 'print("fine"); trap()') + AGAIN
    fine, first, later, closed, again = run_python(
        code.replace("range(2)", "range(3)").format(folder=str(GOLDEN / "m31_d128"))
    ).splitlines()
    assert fine == "fine" and closed == "closed True"
    assert first.startswith("dead cuda: "), first
    assert "cannot be used by this process any more: start a new process" in first
    assert later == first.replace("dead ", "dead the engine failed earlier: ")
    assert again.startswith("refused ConfigError backend='cuda' cannot be used: cuda: "), again
    assert "start a new process" in again


@needs_emulator
@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"EMU_DRIVER": "12040"}, "install the NVIDIA driver 580 or newer"),
        ({"EMU_CC": "75"}, 'choose another device or backend="cpu"'),
        ({"EMU_MEMORY": "200000000"}, "(0.20 of 0.20 GB are free)"),
        ({"MM_CUDA_SO": "/nowhere.so"}, "MM_CUDA_SO=/nowhere.so cannot be read"),
    ],
)
def test_engine_is_refused_with_the_remedy(env: dict[str, str], says: str) -> None:
    (text,) = engine(**env)
    assert text.startswith("refused ") and says in text


@needs_emulator
def test_cuda_out_of_memory_says_how_much() -> None:
    code = (
        "from minimax_m31 import _testing\n"
        "b = _testing.open('cuda')\n"
        "try:\n    _testing.alloc(b, 5_000_000)\n"
        "except RuntimeError as e:\n    print(e)\n"
        "p = _testing.alloc(b, 900_000)\n_testing.free(b, p)\n_testing.alloc(b, 900_000)\n"
    )
    text = run_python(code, EMU_MEMORY="1000000")
    assert text.startswith("nomem: ")
    assert "5000000 bytes of device memory asked" in text and "of 1000000 bytes free" in text


@needs_emulator
def test_cuda_refuses_another_version_of_the_core() -> None:
    library = ctypes.CDLL(os.environ["MM_CUDA_SO"])
    said: list[bytes] = []
    setter = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_char_p
    )

    class Services(ctypes.Structure):
        _fields_ = [
            ("size", ctypes.c_uint32),
            ("error_set", setter),
            ("log", ctypes.c_void_p),
            ("tier", ctypes.c_char_p),
            ("sync", ctypes.c_int32),
            ("graph", ctypes.c_int32),
        ]

    @setter
    def error_set(status: int, param: bytes, index: int, text: bytes) -> int:
        said.append(text)
        return status

    services = Services(ctypes.sizeof(Services), error_set, None, None, 0, 1)
    out = ctypes.c_void_p(7)
    status = library.mm_cuda_backend(
        CONSTANTS["MM_ABI"] + 1, ctypes.byref(services), None, ctypes.byref(out)
    )
    assert status == CONSTANTS["MM_E_UNSUPPORTED"] and out.value is None
    assert b"build both again" in said[0]


@pytest.mark.parametrize("name", CUDA)
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"act": "f32"}, 'dtype="bfloat16"'),
        ({"kv_format": "f32"}, "not as float32"),
        ({"index_format": "f32"}, "not as float32"),
        ({"head_dim": 64}, "head_dim is 64"),
        ({"index_dim": 64}, "index_dim 64"),
        ({"n_head": 34}, "34 query heads for 2 KV heads"),
        ({"n_head": 3}, "3 query heads for 2 KV heads"),
        ({"n_rotary": 130}, "130 rotary dims"),
        ({"n_rotary": 20}, "20 rotary dims of a head of 128; a multiple of 8"),
        ({"n_head": 130, "n_kv_head": 65, "n_index_head": 65}, "65 KV heads on a rank"),
        ({"n_index_head": 1}, "1 index heads for 2 KV heads"),
        ({"n_top_block": 65}, "65 blocks per query"),
        ({"n_expert_used": 9}, "9 of 8 experts"),
        ({"n_expert": 2048}, "3 of 2048 experts"),
        ({"d_model": 100}, "d_model is 100"),
        ({"d_model": 16400}, "d_model is 16400; on this rank it must be a multiple of 16 up to"),
        ({"d_dense": 32768}, "d_dense is 32768"),
        ({"n_vocab": 600000}, "a vocabulary of 600000; up to 524288 ids"),
        ({"d_expert": 40}, "d_expert is 40"),
    ],
)
def test_cuda_refuses_shapes_and_names_the_remedy(
    change: dict[str, Any], says: str, name: str
) -> None:
    sizes = {**device_shape(shape()), **change}
    values = dict(sizes, act=ACT[sizes["act"]])
    values |= {k: CACHE[sizes[k]] for k in ("kv_format", "index_format")}
    with pytest.raises(RuntimeError, match="unsupported: cuda: ") as e:
        _testing.context(backend(name), bytes(make("mm_op_shape", **values)), 0)
    assert says in str(e.value)


@pytest.mark.parametrize("name", CUDA)
def test_cuda_moves_empty_and_odd_pieces(name: str) -> None:
    with Machine(name, shape()) as m:
        for n in (0, 1, 3, 257):
            x = np.arange(n).astype(np.uint8)
            assert np.array_equal(m.get(m.put(x)), x)

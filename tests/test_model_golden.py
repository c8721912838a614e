"""Golden checkpoints through the engine: logits, log-probabilities, streams, choices, tokens.

float32 is held to the tolerance of golden/README.md on every host backend; bf16 is judged by its
median, and by every position once the choices are forced. The last tests make the known mistakes on
purpose and look at how far they move the logits: a comparison that cannot fail shows nothing.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import test_cuda_golden
from checkpoint_files import GOLDEN, golden
from tolerances import GOLDEN_LOGITS_ABS

from minimax_m31 import LLM, InvalidRequestError, SamplingParams, _core
from minimax_m31.safetensors import read_header

# what is in each golden.safetensors: lengths of prompts, lengths before greedy decoding
LENGTHS = {
    "m31_d128": [1, 127, 128, 129, 700, 2600],
    "m3_d128": [1, 127, 128, 129, 700, 2600],
    "m31_d128_nvfp4": [1, 127, 128, 129, 700, 2600],
    "m31_dspark": [129, 700],
    "text_d32": [1, 127, 129, 700, 1500],
}
BACKENDS = ["ref", "cpu"]

Array = npt.NDArray[Any]
Opened = tuple[LLM, str, str]  # engine, case, backend


def open_llm(folder: Path, backend: str, dtype: str = "float32", **kwargs: Any) -> LLM:
    usable = {name: (ok, text) for name, ok, text in _core.backends()}
    ok, text = usable[backend]
    if not ok:
        pytest.skip(f"backend {backend}: {text}")
    return LLM(
        str(folder),
        backend=backend,
        dtype=dtype,
        max_model_len=2816,
        max_num_seqs=4,
        max_num_batched_tokens=1024,  # longer prompts run in chunks
        skip_tokenizer_init=True,
        **kwargs,
    )


def lengths_for(case: str, backend: str) -> list[int]:
    """ref is slow: where logits were compared already, it leaves out the longest prompt."""
    return [n for n in LENGTHS[case] if backend != "ref" or n <= 700]


@pytest.fixture(scope="module", params=[(b, c) for b in BACKENDS for c in LENGTHS], ids="-".join)
def opened(request: pytest.FixtureRequest) -> Iterator[Opened]:
    backend, case = request.param
    with open_llm(GOLDEN / case, backend) as llm:
        yield llm, case, backend


def greedy_lengths(case: str) -> list[int]:
    return sorted(
        int(k[6:].split(".")[0])
        for k in golden(case)
        if k.startswith("greedy") and k.endswith("tokens")
    )


# ---------------------------------------------------------------- float32


def test_golden_files_hold_what_is_compared() -> None:
    for case, lengths in LENGTHS.items():
        found = sorted(
            int(k[3:].split(".")[0])
            for k in golden(case)
            if k.endswith("input_ids") and k[:3] == "len"
        )
        assert found == lengths, case
    assert greedy_lengths("m31_d128") == [120, 760]


def test_trace_matches(opened: Opened) -> None:
    llm, case, _ = opened
    g = golden(case)
    n_layer = sum(k.startswith("len129.hidden.") for k in g)
    n_compared = 0
    for n in LENGTHS[case]:
        at = g[f"len{n}.positions"]
        t = llm.trace(g[f"len{n}.input_ids"], what=("hidden", "blocks", "experts", "logits"))
        assert t.logits is not None and t.hidden is not None
        assert t.blocks is not None and t.experts is not None and t.expert_weights is not None
        assert t.logits.dtype == np.float32 and t.logits.shape == (n, g[f"len{n}.logits"].shape[1])
        assert np.abs(t.logits[at] - g[f"len{n}.logits"]).max() < GOLDEN_LOGITS_ABS, n
        for i in range(n_layer):
            hidden = g[f"len{n}.hidden.{i}"]
            limit = GOLDEN_LOGITS_ABS * np.abs(hidden).max() / 10
            assert np.abs(t.hidden[i][at] - hidden).max() < max(limit, 2e-5), (n, i)
            if f"len{n}.blocks.{i}" in g:
                np.testing.assert_array_equal(
                    t.blocks[i], g[f"len{n}.blocks.{i}"], f"len {n} layer {i}"
                )
                n_compared += 1
            else:
                assert t.blocks[i] is None
            if f"len{n}.experts.{i}" in g:
                np.testing.assert_array_equal(
                    t.experts[i], g[f"len{n}.experts.{i}"], f"len {n} layer {i}"
                )
                weights = t.expert_weights[i]
                assert weights is not None
                assert np.abs(weights[at] - g[f"len{n}.expert_weights.{i}"]).max() < 2e-5
                n_compared += 1
            else:
                assert t.experts[i] is None
    assert n_compared >= 2 * len(LENGTHS[case])


def test_compute_logits_is_the_trace(opened: Opened) -> None:
    llm, case, _ = opened
    ids = golden(case)["len129.input_ids"]
    traced = llm.trace(ids, what=("logits",)).logits
    np.testing.assert_array_equal(llm.compute_logits(ids.tolist()), traced)


def test_logprobs_match(opened: Opened) -> None:
    llm, case, backend = opened
    g = golden(case)
    lengths = [n for n in lengths_for(case, backend) if n > 1]
    scores = llm.score_tokens([g[f"len{n}.input_ids"].tolist() for n in lengths])
    for n, score in zip(lengths, scores, strict=True):
        assert score.logprobs.shape == (n - 1,)
        assert np.abs(score.logprobs - g[f"len{n}.logprobs"]).max() < GOLDEN_LOGITS_ABS, n


def test_greedy_tokens_match(opened: Opened) -> None:
    llm, case, _ = opened
    g = golden(case)
    lengths = greedy_lengths(case)
    prompts = [{"prompt_token_ids": g[f"greedy{n}.prompt"].tolist()} for n in lengths]
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    for n, out in zip(lengths, llm.generate(prompts, params, use_tqdm=False), strict=True):
        tokens = g[f"greedy{n}.tokens"].tolist()
        assert list(out.outputs[0].token_ids) == tokens, n
        logits = llm.compute_logits([*g[f"greedy{n}.prompt"].tolist(), *tokens[:-1]])[-24:]
        assert np.abs(logits - g[f"greedy{n}.logits"]).max() < GOLDEN_LOGITS_ABS, n


# ---------------------------------------------------------------- bf16


def nmse(a: Array, b: Array) -> Array:
    """Squared error over squared norm, per position."""
    return ((a - b) ** 2).sum(-1) / (b**2).sum(-1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", LENGTHS)
def test_bf16_is_close_in_the_median_and_everywhere_when_forced(case: str, backend: str) -> None:
    g = golden(case)
    n_layer = sum(k.startswith("len129.hidden.") for k in g)
    free: list[Array] = []
    with open_llm(GOLDEN / case, backend, "bfloat16") as llm:
        for n in lengths_for(case, backend):
            ids, at = g[f"len{n}.input_ids"], g[f"len{n}.positions"]
            free.append(nmse(llm.compute_logits(ids)[at], g[f"len{n}.logits"]))
            forced = llm.trace(
                ids,
                what=("logits", "blocks", "experts"),
                force_blocks=[g.get(f"len{n}.blocks.{i}") for i in range(n_layer)],
                force_experts=[g.get(f"len{n}.experts.{i}") for i in range(n_layer)],
            )
            assert forced.logits is not None and forced.blocks is not None
            assert forced.experts is not None
            error = nmse(forced.logits[at], g[f"len{n}.logits"])
            assert error.max() < 2e-3, (n, at[error.argmax()], error.max())
            for i in range(n_layer):
                if f"len{n}.experts.{i}" in g:
                    np.testing.assert_array_equal(forced.experts[i], g[f"len{n}.experts.{i}"])
    every = np.concatenate(free)
    assert 1e-6 < np.median(every) < 1e-3, np.median(every)


@pytest.mark.parametrize("case", test_cuda_golden.CASES)
def test_how_near_a_device_must_be_to_ref_in_bf16(case: str) -> None:
    """The judge of test_cuda_golden.py. It cannot ask for an NMSE of 1e-4 at every position of a
    whole model: a change of eps that moves the factors of norms by no more than f32 sums differ
    moves ref by more than that, with every choice forced. Small mistakes move it further still."""
    n, what, ids = 129, test_cuda_golden.WHAT, golden(case)["len129.input_ids"]
    with open_llm(GOLDEN / case, "ref", "bfloat16") as ref:
        want = ref.trace(ids, what=what)
    usual = test_cuda_golden.noise(case, "bf16", "bf16", {n: want})[n]
    assert 1e-4 < usual.max() < 1e-3, usual.max()
    assert test_cuda_golden.is_near(usual, usual)
    for mistake in ({"rope_theta": 4.5e6}, {"swiglu_limit": 6.5}):
        with open_llm(
            GOLDEN / case, "ref", "bfloat16", hf_overrides={"text_config": mistake}
        ) as ref:
            got = ref.trace(ids, what=what, force_blocks=want.blocks, force_experts=want.experts)
        assert not test_cuda_golden.is_near(nmse(got.logits, want.logits), usual), mistake


# ---------------------------------------------------------------- mistakes made on purpose


def mistake_error(folder: Path, case: str, n: int, **overrides: Any) -> float:
    """Largest logit error of the case with a changed config."""
    g = golden(case)
    backend = "cpu" if dict((b, ok) for b, ok, _ in _core.backends())["cpu"] else "ref"
    with open_llm(folder, backend, hf_overrides=overrides or None) as llm:
        logits = llm.compute_logits(g[f"len{n}.input_ids"])[g[f"len{n}.positions"]]
    return float(np.abs(logits - g[f"len{n}.logits"]).max())


@pytest.mark.parametrize(
    ("overrides", "known"),
    [
        ({"sparse_topk_blocks": 32}, 3.2),  # full attention
        ({"sparse_topk_blocks": 5}, 2.6),
        ({"sparse_init_block": 1}, 2.5),
        ({"swiglu_limit": 1e9}, 3.5),  # no clamp
        ({"routed_scaling_factor": 1.0}, 2.4),
        ({"rope_theta": 1e4}, 4.3),
        ({"rotary_dim": 128, "partial_rotary_factor": 1.0}, 4.8),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else "",
)
def test_config_mistakes_are_as_large_as_published(overrides: dict[str, Any], known: float) -> None:
    assert abs(mistake_error(GOLDEN / "m31_d128", "m31_d128", 2600, **overrides) - known) < 0.06


def rewrite(source: Path, out: Path, change: Callable[[str, bytes], bytes]) -> None:
    """A copy of a one-file checkpoint with changed bytes of tensors."""
    shutil.copyfile(source / "config.json", out / "config.json")
    path = source / "model.safetensors"
    data = bytearray(path.read_bytes())
    for t in read_header(path):
        old = bytes(data[t.offset : t.offset + t.n_bytes])
        new = change(t.name, old)
        assert len(new) == len(old)
        data[t.offset : t.offset + t.n_bytes] = new
    (out / "model.safetensors").write_bytes(data)


def swap_nibbles(name: str, data: bytes) -> bytes:
    if not name.endswith(".weight_packed"):
        return data
    b = np.frombuffer(data, np.uint8)
    return (b << 4 | b >> 4).tobytes()


def no_routing_bias(name: str, data: bytes) -> bytes:
    return bytes(len(data)) if name.endswith("e_score_correction_bias") else data


def router_in_bf16(name: str, data: bytes) -> bytes:
    if not name.endswith("block_sparse_moe.gate.weight"):
        return data
    u = np.frombuffer(data, np.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) & np.uint32(0xFFFF0000)).astype(np.uint32).tobytes()


def swap_index_heads(name: str, data: bytes) -> bytes:
    if ".index_q_proj.weight" not in name:
        return data
    return data[len(data) // 2 :] + data[: len(data) // 2]


@pytest.mark.parametrize(
    ("change", "least"),
    [(swap_nibbles, 1.0), (no_routing_bias, 1.0), (router_in_bf16, 1e-3), (swap_index_heads, 1.0)],
)
def test_weight_mistakes_are_visible(
    tmp_path: Path, change: Callable[[str, bytes], bytes], least: float
) -> None:
    case = "m31_d128_nvfp4"
    rewrite(GOLDEN / case, tmp_path, lambda _, data: data)
    assert mistake_error(tmp_path, case, 700) < GOLDEN_LOGITS_ABS
    rewrite(GOLDEN / case, tmp_path, change)
    assert mistake_error(tmp_path, case, 700) > least


def test_one_global_scale_for_w1_and_w3_is_visible(tmp_path: Path) -> None:
    case = "m31_d128_nvfp4"
    path = GOLDEN / case / "model.safetensors"
    data = path.read_bytes()
    suffix = ".w1.weight_global_scale"
    first = {
        t.name.removesuffix(suffix): data[t.offset : t.offset + 4]
        for t in read_header(path)
        if t.name.endswith(suffix)
    }

    def w1_for_w3(name: str, old: bytes) -> bytes:
        return (
            first[name.rpartition(".w3.")[0]] if name.endswith(".w3.weight_global_scale") else old
        )

    rewrite(GOLDEN / case, tmp_path, w1_for_w3)
    assert mistake_error(tmp_path, case, 700) > 0.1


def test_decode_scale_read_as_encode_scale_is_visible(tmp_path: Path) -> None:
    case = "m31_d128_nvfp4"

    def invert(name: str, old: bytes) -> bytes:
        if not name.endswith("weight_global_scale"):
            return old
        return struct.pack("<f", 1.0 / struct.unpack("<f", old)[0])

    rewrite(GOLDEN / case, tmp_path, invert)
    assert not mistake_error(tmp_path, case, 129) < 1.0


def test_released_config_is_what_the_cases_follow() -> None:
    for case in LENGTHS:
        text = json.loads((GOLDEN / case / "config.json").read_text())["text_config"]
        assert text["routed_scaling_factor"] == 2.0 and text["swiglu_limit"] == 7.0
        assert text["sparse_attention_config"]["sparse_local_block"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_forced_choices_are_used_and_checked(backend: str) -> None:
    g = golden("m31_d128")
    ids = g["len700.input_ids"]
    blocks = [g[f"len700.blocks.{i}"].copy() for i in range(4)]
    experts = [None, None, *(g[f"len700.experts.{i}"].copy() for i in (2, 3))]
    blocks[1][:, 640:, :] = [0, 1, 2, 5]
    experts[3][:] = [1, 5, 9, 15]
    what = ("logits", "blocks", "experts")
    with open_llm(GOLDEN / "m31_d128", backend) as llm:
        t = llm.trace(ids, what=what, force_blocks=blocks, force_experts=experts)
        assert t.blocks is not None and t.experts is not None and t.logits is not None
        np.testing.assert_array_equal(t.blocks[1], blocks[1])
        np.testing.assert_array_equal(t.experts[3], experts[3])
        at = g["len700.positions"]
        assert np.abs(t.logits[at] - g["len700.logits"]).max() > 0.1
        for layer, position, row in (
            (1, 5, [0, 3, -1, -1]),
            (0, 690, [3, 2, 1, 0]),
            (2, 0, [-1] * 4),
        ):
            wrong: list[Any] = [b.copy() for b in blocks]
            wrong[layer][1, position] = row
            with pytest.raises(InvalidRequestError, match="force_blocks"):
                llm.trace(ids, what=what, force_blocks=wrong)
        for row in ([1, 5, 9, 16], [1, 1, 2, 3], [-1, 0, 1, 2]):
            bad: list[Any] = [None, None, None, experts[3].copy()]
            bad[3][17] = row
            with pytest.raises(InvalidRequestError, match="force_experts"):
                llm.trace(ids, what=what, force_experts=bad)
        right = llm.compute_logits(ids)[at]  # the engine goes on after a refusal
        assert np.abs(right - g["len700.logits"]).max() < GOLDEN_LOGITS_ABS

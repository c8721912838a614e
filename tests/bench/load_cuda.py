"""How fast a checkpoint goes from files to the device.

    python tests/bench/load_cuda.py [--layers 2] [--folder F] [--opens 2] [--out F] [--small]

Writes a checkpoint of `layers` full MoE layers in the released layout (NVFP4 experts, MXFP8
linears, one file a layer, an index; random codes, a short vocabulary), 4.2 GB a layer, and opens it
through the ordinary path. It was just written, so its pages are in the system's cache if memory has
room: what is timed is mapping, upload and packing, not the disk. Each open ends with a few greedy
tokens, which random but finite weights can give. Beside it: the same model with dummy weights, of
which nothing is read (it comes first, so it alone creates the device's context), and the rate of
copies from pinned memory as the floor.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from bench_cuda_step import device_name, model_config
from benchlib import Row, add_rows
from device_ceiling import open_driver
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
VOCAB = 16384
# name, dtype of safetensors, shape
Tensor = tuple[str, str, tuple[int, ...]]
ITEM = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}


def config_of(layers: int, small: bool) -> dict[str, Any]:
    config = model_config(layers, small)
    text = config["text_config"]
    text |= {"moe_layer_freq": [1] * layers, "vocab_size": VOCAB}
    text |= {"bos_token_id": VOCAB - 1, "eos_token_id": VOCAB - 2}
    return config


def mxfp8(name: str, n_out: int, n_in: int) -> list[Tensor]:
    return [
        (f"{name}.weight", "F8_E4M3", (n_out, n_in)),
        (f"{name}.weight_scale_inv", "U8", (n_out, n_in // 32)),
    ]


def nvfp4(name: str, n_out: int, n_in: int) -> list[Tensor]:
    return [
        (f"{name}.weight_packed", "U8", (n_out, n_in // 2)),
        (f"{name}.weight_scale", "F8_E4M3", (n_out, n_in // 16)),
        (f"{name}.weight_global_scale", "F32", (1,)),
        (f"{name}.input_global_scale", "F32", (1,)),
    ]


def layer_tensors(text: dict[str, Any], i: int) -> Iterator[Tensor]:
    base, d, dim = f"language_model.model.layers.{i}.", text["hidden_size"], text["head_dim"]
    sparse = text["sparse_attention_config"]
    heads, kv = text["num_attention_heads"], text["num_key_value_heads"]
    index = sparse["sparse_index_dim"]
    attn, moe = f"{base}self_attn.", f"{base}block_sparse_moe."
    yield from mxfp8(f"{attn}q_proj", heads * dim, d)
    yield from mxfp8(f"{attn}k_proj", kv * dim, d)
    yield from mxfp8(f"{attn}v_proj", kv * dim, d)
    yield from mxfp8(f"{attn}o_proj", d, heads * dim)
    yield from mxfp8(f"{attn}index_q_proj", sparse["sparse_num_index_heads"] * index, d)
    yield from mxfp8(f"{attn}index_k_proj", index, d)
    for name, n in (("q", dim), ("k", dim), ("index_q", index), ("index_k", index)):
        yield f"{attn}{name}_norm.weight", "BF16", (n,)
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{base}{name}.weight", "BF16", (d,)
    yield f"{moe}gate.weight", "F32", (text["num_local_experts"], d)
    yield f"{moe}e_score_correction_bias", "F32", (text["num_local_experts"],)
    shared, width = text["shared_intermediate_size"], text["intermediate_size"]
    yield from mxfp8(f"{moe}shared_experts.gate_proj", shared, d)
    yield from mxfp8(f"{moe}shared_experts.up_proj", shared, d)
    yield from mxfp8(f"{moe}shared_experts.down_proj", d, shared)
    for e in range(text["num_local_experts"]):
        yield from nvfp4(f"{moe}experts.{e}.w1", width, d)
        yield from nvfp4(f"{moe}experts.{e}.w3", width, d)
        yield from nvfp4(f"{moe}experts.{e}.w2", d, width)


def other_tensors(text: dict[str, Any]) -> Iterator[Tensor]:
    size = (text["vocab_size"], text["hidden_size"])
    yield "language_model.model.embed_tokens.weight", "BF16", size
    yield "language_model.model.norm.weight", "BF16", (text["hidden_size"],)
    yield "language_model.lm_head.weight", "BF16", size


class Noise:
    """Bytes of a tensor: pieces of one block for each kind, so that writing is bound by memory and
    not by random numbers. Values have the size of a trained model's, and none is NaN."""

    def __init__(self, n_bytes: int = 32 << 20) -> None:
        rng = np.random.default_rng(0)

        def codes(low: int, high: int) -> Bytes:
            return rng.integers(low, high, n_bytes, np.uint8)

        normal = rng.standard_normal(n_bytes // 4, np.float32) * np.float32(0.01)
        e4m3 = codes(0, 256)
        e4m3[(e4m3 & 0x7F) == 0x7F] -= 1  # NaN
        self.block: dict[str, Bytes] = {
            "weight_packed": codes(0, 256),
            "weight_scale": codes(64, 80),  # 2 to 7.5
            "weight_scale_inv": codes(112, 115),  # 2^-15 to 2^-13
            "F8_E4M3": e4m3,
            "F32": normal.view(np.uint8),
            "BF16": (normal.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
        }
        self.turn = 0

    def write(self, f: BinaryIO, tensor: Tensor, n_bytes: int) -> None:
        name, dtype, _ = tensor
        last = name.rsplit(".", 1)[1]
        if last == "weight_global_scale":  # divides
            f.write(np.float32(1000.0).tobytes())
            return
        if last == "input_global_scale":
            f.write(np.float32(64.0).tobytes())
            return
        block = self.block.get(last, self.block.get(dtype))
        if block is None or len(block) < 4096:
            raise ValueError(f"{name}: no bytes for {dtype}")
        while n_bytes > 0:
            self.turn = (self.turn + 4096) % (len(block) // 2)
            piece = block[self.turn : self.turn + n_bytes]
            f.write(piece.data)
            n_bytes -= len(piece)


def write_file(path: Path, tensors: list[Tensor], noise: Noise) -> int:
    """One safetensors file; its bytes of tensors."""
    header: dict[str, Any] = {}
    at = 0
    for name, dtype, shape in tensors:
        n = ITEM[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            begin, end = header[tensor[0]]["data_offsets"]
            noise.write(f, tensor, end - begin)
    return at


def write_checkpoint(folder: Path, config: dict[str, Any]) -> int:
    """Files of a layer each, the rest, the index and config.json; bytes of all tensors."""
    text, noise = config["text_config"], Noise()
    parts = [list(layer_tensors(text, i)) for i in range(text["num_hidden_layers"])]
    parts.append(list(other_tensors(text)))
    total, where = 0, dict[str, str]()
    for i, tensors in enumerate(parts):
        name = f"model-{i + 1:05}-of-{len(parts):05}.safetensors"
        total += write_file(folder / name, tensors, noise)
        where |= {tensor[0]: name for tensor in tensors}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    return total


def open_once(folder: Path, load_format: str, backend: str = "cuda") -> tuple[float, list[int]]:
    """Seconds from the call to the first possible step, and the tokens of a short answer."""
    from minimax_m31 import LLM, SamplingParams

    began = time.perf_counter()
    llm = LLM(
        str(folder),
        backend=backend,
        load_format=load_format,
        seed=1,
        max_model_len=1024,
        max_num_seqs=1,
        max_num_batched_tokens=512,
        gpu_memory_utilization=0.95,
        cuda_graph_batch_sizes=[1],
        skip_tokenizer_init=True,
    )
    seconds = time.perf_counter() - began
    with llm:
        params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, detokenize=False)
        output = llm.generate([[5, 6, 7]], params, use_tqdm=False)[0].outputs[0]
        if output.finish_reason != "length":
            raise RuntimeError(
                f"the loaded model ended with {output.finish_reason!r}, not 'length'"
            )
        return seconds, list(output.token_ids)


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    config = config_of(options.layers, options.small)
    free = shutil.disk_usage(folder).free
    layer = sum(ITEM[t[1]] * int(np.prod(t[2])) for t in layer_tensors(config["text_config"], 0))
    need = int(1.1 * layer * options.layers) + (1 << 30)
    if free < need:
        raise SystemExit(
            f"{folder} has {free / 1e9:.1f} GB free, {need / 1e9:.1f} are needed: give --folder, "
            "or fewer --layers"
        )
    began = time.perf_counter()
    total = write_checkpoint(folder, config)
    print(f"wrote {total / 1e9:.2f} GB in {time.perf_counter() - began:.1f} s", flush=True)
    driver = open_driver()
    upload = driver.upload_bandwidth() if driver else 0.0
    where = f"layers={options.layers} GB={total / 1e9:.2f} files={options.layers + 1}"
    rows, answers = [], []
    if upload:
        rows.append(Row("upload_bandwidth", "pinned, 1 GiB", f"{upload / 1e9:.4g}", "GB/s"))
    dummy, _ = open_once(folder, "dummy")
    rows.append(Row("load", f"{where} dummy", f"{dummy:.3f}", "s", note="no file is read"))
    for i in range(options.opens):
        seconds, tokens = open_once(folder, "auto")
        answers.append(tokens)
        note = f"{total / 1e9 / seconds:.2f} GB/s, files in the page cache"
        floor = f"{total / upload:.3f}" if upload else ""
        rows.append(Row("load", f"{where} open={i + 1}", f"{seconds:.3f}", "s", floor, note=note))
    if any(tokens != answers[0] for tokens in answers):
        raise RuntimeError(f"the same files gave other tokens when opened again: {answers}")
    for row in rows:
        print(f"{row.name} {row.params}: {row.value} {row.unit} {row.note}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=2, help="MoE layers of 4.2 GB")
    parser.add_argument("--opens", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written, then removed")
    parser.add_argument("--small", action="store_true", help="a narrow model: tries the script")
    parser.add_argument("--out", type=Path, help="default: the device's file in results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        rows = measure(options, Path(name))
    print(f"rows are in {add_rows(rows, options.out, device_name())}")


if __name__ == "__main__":
    main()

"""This engine in the place of vLLM, for trainers that import it by that name.

TRL writes `from vllm import LLM, SamplingParams` and then calls `llm.generate`, reads
`outputs[i].outputs[j].token_ids` and the log-probabilities of sampled tokens. `as_vllm()` makes
those imports find `minimax_m31.compat.vllm`, in this process and until it is left:

    with as_vllm():
        from trl import GRPOTrainer
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator

from ..compat import vllm as drop_in

_MODULES = ("sampling_params", "outputs", "inputs", "entrypoints", "entrypoints.llm")


@contextlib.contextmanager
def as_vllm() -> Iterator[None]:
    """Inside, `import vllm` and its submodules give the drop-in. A vLLM that was imported before is
    an error: its classes are in use.
    """
    if "vllm" in sys.modules and sys.modules["vllm"] is not drop_in:
        raise RuntimeError("vllm is imported in this process: enter as_vllm() before anything does")
    names = {"vllm": drop_in}
    for name in _MODULES:
        names[f"vllm.{name}"] = importlib.import_module(f"{drop_in.__name__}.{name}")
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module

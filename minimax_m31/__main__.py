"""python -m minimax_m31 info | generate | chat | demo | plan | doctor | bench | lm-eval"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import (
    __version__,
    _unbuilt,
    cli_bench,
    cli_doctor,
    cli_jsonl,
    cli_lm_eval,
    cli_plan,
)
from .errors import ConfigError, Mm31Error

if TYPE_CHECKING:
    from .chat.types import Delta, Message
    from .llm import LLM
    from .outputs import RequestOutput
    from .params import SamplingParams


def _engine_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="nano", help="checkpoint folder (default: the one in the package)"
    )
    parser.add_argument("--backend", default="auto", choices=("auto", "cpu", "ref", "cuda"))
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int, default=8)
    parser.add_argument("--load-format", default="auto")


def _sampling_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--seed", type=int)
    parser.add_argument("-n", type=int, default=1, help="samples")
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")


def _open(options: argparse.Namespace) -> LLM:
    from .llm import LLM

    return LLM(
        options.model,
        backend=options.backend,
        dtype=options.dtype,
        threads=options.threads,
        max_model_len="auto" if options.max_model_len is None else options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        load_format=options.load_format,
    )


def _params(llm: LLM, options: argparse.Namespace) -> SamplingParams:
    changes = {
        name: getattr(options, name) for name in ("temperature", "top_p", "top_k", "seed", "n")
    }
    return llm.get_default_sampling_params().replace(
        max_tokens=options.max_tokens,
        **{name: value for name, value in changes.items() if value is not None},
    )


def run_info(options: argparse.Namespace) -> int:
    """What this build is, which backends work, and (with --model) what a checkpoint is."""
    from .environment import collect_env

    env = collect_env()
    if options.model is not None:
        from .checkpoint import read_checkpoint
        from .engine_args import EngineArgs
        from .opening import find_model

        info = read_checkpoint(find_model(EngineArgs(model=options.model)))
        env["checkpoint"] = {
            "folder": str(info.folder),
            "files": len(info.files),
            "tensors": len(info.tensors),
            "unused": len(info.unused),
            "bytes": info.n_bytes,
            "formats": info.quantization,
            "layers": info.config["n_layer"],
            "hidden": info.config["d_model"],
            "experts": info.config["n_expert"],
            "vocabulary": info.config["n_vocab"],
            "max_model_len": info.max_model_len,
        }
    if options.json:
        print(json.dumps(env, indent=2))
        return 0
    print(f"minimax_m31 {env['version']}, Python {env['python']}, {env['platform']}")
    for name, text in env["backends"].items():
        print(f"  backend {name}: {text}")
    print(
        f"  packages: {', '.join(f'{name} {version}' for name, version in env['packages'].items())}"
    )
    print(f"  trained checkpoint in the package: {'yes' if env['nano'] else 'no'}")
    for name, value in env["variables"].items():
        print(f"  {name}={value}")
    for text in env["variable_problems"]:
        print(f"  WRONG: {text}")
    for name, value in env.get("checkpoint", {}).items():
        print(f"  checkpoint {name}: {value}")
    return 0


def _parse_ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise SystemExit(
            f"--ids {text!r}: numbers separated by commas or blanks are needed"
        ) from None


def run_generate(options: argparse.Namespace) -> int:
    """Continue prompts: strings, --ids, or lines of standard input when there is none."""
    prompts: list[Any] = [*options.prompt, *(_parse_ids(text) for text in options.ids)]
    if not prompts:
        prompts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if options.output is not None:
        cli_jsonl.check_path(options.output, options.resume)
    elif options.resume:
        raise ConfigError("--resume continues a file: give it with -o")
    with _open(options) as llm:
        if options.output is not None:
            params = _params(llm, options)
            n = cli_jsonl.write_outputs(llm, prompts, params, options.output, options.resume)
            print(f"{n} of {len(prompts)} prompts were run, written to {options.output}")
            return 0
        for output in llm.generate(prompts, _params(llm, options)):
            if options.json:
                print(output.to_json(), flush=True)
                continue
            for one in output.outputs:
                shown = (
                    one.text if llm._tokenizer is not None else " ".join(map(str, one.token_ids))
                )
                print(shown, flush=True)
    return 0


def run_chat(options: argparse.Namespace) -> int:
    """Questions of one conversation: given, lines of standard input, or typed. Answers stream."""
    if options.n != 1:
        raise ConfigError(f"-n {options.n}: a conversation goes on with one answer: leave it out")
    pending = list(options.prompt)
    is_typed = not pending and sys.stdin.isatty()
    if not pending and not is_typed:
        pending = [line.strip() for line in sys.stdin if line.strip()]
    with _open(options) as llm:
        params = _params(llm, options)
        messages: list[dict[str, Any]] = []
        while True:
            if pending:
                question = pending.pop(0)
            elif not is_typed:
                return 0
            else:
                try:
                    question = input("> ")
                except (EOFError, KeyboardInterrupt):
                    return 0
            messages.append({"role": "user", "content": question})
            how: dict[str, Any] = {
                "thinking": options.thinking,
                "reasoning_effort": options.effort,
            }
            if options.json:
                (output,) = llm.chat(messages, params, use_tqdm=False, **how)
                print(output.to_json(), flush=True)
                message = output.outputs[0].message
            else:
                message = _show_answer(llm.chat_stream(messages, params, **how))
            if message is not None:
                messages.append(message.to_dict())


def _show_answer(pieces: Iterable[RequestOutput]) -> Message | None:
    """Writes an answer as it comes. The thinking goes to a terminal only: to standard error when
    the answer is piped away.
    """
    aside = sys.stdout if sys.stdout.isatty() else sys.stderr
    message = None
    is_thinking = False
    for piece in pieces:
        for delta in piece.outputs[0].deltas or ():
            if delta.reasoning_content:
                aside.write(delta.reasoning_content if is_thinking else _thought(delta))
                aside.flush()
                is_thinking = True
            if delta.content:
                if is_thinking:
                    aside.write("\n\n")
                    is_thinking = False
                sys.stdout.write(delta.content)
                sys.stdout.flush()
        message = piece.outputs[0].message
    if is_thinking:  # the answer ended there
        aside.write("\n")
    print(flush=True)
    return message


def _thought(delta: Delta) -> str:
    return f"[thinking] {delta.reasoning_content}"


def run_demo(options: argparse.Namespace) -> int:
    """A short tour: thinking, efforts, a tool, a batch, a long text, and how fast."""
    from . import demo
    from .opening import NANO

    print(f"minimax_m31 {__version__}")
    if options.model == "nano" and not (NANO / "config.json").is_file():
        options.model = str(_small_checkpoint())
        print("no trained checkpoint in this build: this shows a tiny random one, by token ids")
    began = time.monotonic()
    with _open(options) as llm:
        opened = time.monotonic() - began
        show = demo.show_ids if llm.llm_engine.tokenizer is None else demo.show_chat
        show(llm, options.max_tokens, opened)
    return 0


def _small_checkpoint() -> Path:
    """The small random checkpoint of the repository, for builds without a trained one."""
    folder = Path(__file__).resolve().parents[1] / "tests" / "golden" / "m31_d128_nvfp4"
    if not (folder / "config.json").is_file():
        raise ConfigError(
            "there is no trained checkpoint in this build (minimax_m31/nano) and no tests/golden "
            "beside the package: python -m minimax_m31 demo --model path/to/checkpoint"
        )
    return folder


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m minimax_m31", description="MiniMax-M3.1-Flash, offline."
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help=run_info.__doc__)
    info.add_argument("--model", help="also describe this checkpoint")
    info.add_argument("--json", action="store_true")
    info.set_defaults(run=run_info)
    generate = commands.add_parser("generate", help=run_generate.__doc__)
    _engine_flags(generate)
    _sampling_flags(generate)
    cli_jsonl.add_flags(generate)
    generate.add_argument("prompt", nargs="*")
    generate.add_argument("--ids", action="append", default=[], help="a prompt as token ids: 1,2,3")
    generate.set_defaults(run=run_generate)
    chat = commands.add_parser("chat", help=run_chat.__doc__)
    _engine_flags(chat)
    _sampling_flags(chat)
    chat.add_argument("prompt", nargs="*")
    chat.add_argument("--thinking", choices=("enabled", "disabled", "adaptive"))
    chat.add_argument("--effort", choices=("low", "medium", "high", "xhigh", "max"))
    chat.set_defaults(run=run_chat)
    demo = commands.add_parser("demo", help=run_demo.__doc__)
    _engine_flags(demo)
    demo.add_argument("--max-tokens", type=int, default=400)
    demo.set_defaults(run=run_demo)
    cli_plan.add_to(commands)
    cli_doctor.add_to(commands)
    cli_bench.add_to(commands)
    cli_lm_eval.add_to(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(argv)
    try:
        return int(options.run(options))
    except (Mm31Error, NotImplementedError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        if "pip install" in str(error):  # an optional package, and the line that installs it
            print(f"ImportError: {error}", file=sys.stderr)
            return 1
        if "_core" not in str(error):
            raise
        said = str(error) if isinstance(error.__cause__, ImportError) else _unbuilt(error)
        print(f"ImportError: {said}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())

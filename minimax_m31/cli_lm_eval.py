"""python -m minimax_m31 lm-eval ...: hands over to lm-evaluation-harness, with the model
"minimax_m31" registered (the harness itself loads no plug-ins).
"""

from __future__ import annotations

import argparse
from typing import Any


def run_lm_eval(options: argparse.Namespace) -> int:
    """lm-evaluation-harness's own command line: --model minimax_m31 --tasks ..."""
    from .integrations.lm_eval import main

    return main(options.arguments)


def add_to(commands: Any) -> None:
    """The subcommand; everything behind its name belongs to the harness."""
    parser = commands.add_parser(
        "lm-eval", help=run_lm_eval.__doc__, add_help=False, prefix_chars="\0"
    )
    parser.add_argument("arguments", nargs="*")
    parser.set_defaults(run=run_lm_eval)

"""python -m minimax_m31 doctor: is this machine ready, and what to do if not."""

from __future__ import annotations

import argparse
import json
from typing import Any


def add_to(commands: Any) -> None:
    doctor = commands.add_parser("doctor", help=run_doctor.__doc__)
    doctor.add_argument(
        "model", nargs="?", help="also look at this checkpoint, and whether it fits this machine"
    )
    doctor.add_argument("--backend", choices=("auto", "cpu", "ref", "cuda"))
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=run_doctor)


def run_doctor(options: argparse.Namespace) -> int:
    """Checks machine, driver, NCCL, disk, memory, a checkpoint; says what to do; 1 if one fails."""
    from .doctor import diagnose

    arguments = {} if options.backend is None else {"backend": options.backend}
    found = diagnose(options.model, **arguments)
    print(json.dumps(found.to_dict(), indent=2) if options.json else str(found))
    return 0 if found.healthy else 1

"""doctor: is this machine ready, and if not, what to do. Facts come from doctor_probe.py, rules
from doctor_checks.py; this runs them and shows what they found.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .doctor_checks import MACHINE_CHECKS, Finding, checkpoint_findings, fail, plan_finding
from .doctor_probe import Facts, probe, probe_checkpoint
from .errors import ConfigError, Mm31Error

_MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL", "skip": "-   "}


@dataclasses.dataclass(repr=False)
class Diagnosis:
    """All findings, in the order of the checks."""

    findings: list[Finding]

    @property
    def healthy(self) -> bool:
        """True when nothing failed (warnings are allowed)."""
        return all(finding.status != "fail" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "healthy": self.healthy,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

    def __repr__(self) -> str:
        width = max((len(finding.name) for finding in self.findings), default=0)
        lines = []
        for finding in self.findings:
            lines.append(f"{_MARKS[finding.status]}  {finding.name:<{width}}  {finding.text}")
            if finding.remedy:
                lines.append(f"      {'':<{width}}  -> {finding.remedy}")
        counts = {s: sum(f.status == s for f in self.findings) for s in _MARKS}
        lines.append(
            f"{counts['ok']} ok, {counts['warn']} warnings, {counts['fail']} failures, "
            f"{counts['skip']} not applicable"
        )
        return "\n".join(lines)


def judge(facts: Facts) -> list[Finding]:
    """Findings about the machine."""
    return [check(facts) for check in MACHINE_CHECKS]


def diagnose(model: Any = None, **engine_args: Any) -> Diagnosis:
    """Looks at this machine, and with `model` at a checkpoint and whether it fits. `engine_args`:
    those of the engine that is to be opened.
    """
    facts = probe()
    findings = judge(facts)
    if model is not None:
        findings += _model_findings(model, facts, engine_args)
    return Diagnosis(findings)


def _model_findings(model: Any, facts: Facts, engine_args: dict[str, Any]) -> list[Finding]:
    from .engine_args import EngineArgs
    from .opening import find_model
    from .plan import make_plan

    try:
        folder = Path(find_model(EngineArgs(model=model)))
    except ConfigError as error:
        return [fail("checkpoint", str(error), "give the folder of a checkpoint")]
    checkpoint = probe_checkpoint(folder)
    findings = list(checkpoint_findings(checkpoint, facts))
    if checkpoint.error:
        return findings
    try:
        findings.append(plan_finding(make_plan(model, **engine_args)))
    except Mm31Error as error:
        findings.append(fail("memory plan", str(error), "see python -m minimax_m31 plan"))
    return findings

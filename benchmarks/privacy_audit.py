"""Audits `configs/expert-pool.yaml` under every mechanism; table and picture in `docs/results/`.

    python benchmarks/privacy_audit.py [--canaries 4000] [--trainings 2000]

Noise comes from a seed here, drawn by the code that draws a run's noise, so that the page can be
reproduced.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _scores import provenance
from _sizes import RESULTS, sized
from canary_runs import HEADING

from platform.cli.trying import draw
from platform.config import load_config
from platform.experiment.planning import Surroundings, plan_run
from platform.experiment.privacy_auditing.audit import FAMILY_WISE_ERROR, AuditPlan, audit_run
from platform.experiment.privacy_auditing.outcome import ChannelAudit
from platform.rounds.observing import SilentObserver

COMMON = ("privacy.noise_source=seeded", "device=cpu")
INDEPENDENT = "pool.noise=independent"
SETTINGS: dict[str, tuple[str, ...]] = {
    "upload_noise": (),
    "upload_noise, discrete": ("privacy.noise_distribution=discrete_gaussian",),
    "upload_noise, adaptive clip": (INDEPENDENT, "privacy.adaptive_clipping={}"),
    "distributed_noise": ("privacy.mechanism=distributed_noise",),
    "distributed_noise, Skellam": (
        "privacy.mechanism=distributed_noise",
        "privacy.noise_distribution=skellam",
    ),
    "central_noise": ("privacy.mechanism=central_noise",),
    "dp_sgd": (
        "privacy.mechanism=dp_sgd",
        "privacy.clipping_norm=null",
        "privacy.relation=add_or_remove_one",
        "privacy.sampling_probability=0.25",
    ),
    "dp_sgd, whole batches": (
        "privacy.mechanism=dp_sgd",
        "privacy.clipping_norm=null",
        "privacy.relation=add_or_remove_one",
        "privacy.sampling_probability=1.0",
    ),
}
EXPLANATION = f"""
Each line is one release of one client in one round: an upload, a pool entry, or under dp_sgd a
whole local training, in which the audit looks at update, pool entry and personal state. Anyone who
guesses a fair coin from a release is wrong with probability at least Phi(-mu / 2). The interval
of mu is that of the decision, at a family-wise error of {FAMILY_WISE_ERROR:g} over all
checks of a run; a build is refuted if the interval lies above the claim. Under dp_sgd the audit
sees less than the claim: it looks for a record in one direction, and the record's part in sampled
batches varies.
The one-run bound on epsilon (95%) decides nothing. Power is the probability that the audit would
detect halved noise. Under `same` a pool entry is the upload itself, so both lines state one claim.
"""


@dataclass(frozen=True)
class Line:
    """One channel under one setting."""

    setting: str
    audit: ChannelAudit
    seconds: float

    @property
    def label(self) -> str:
        """The label in the plot."""
        return f"{self.setting}: {self.audit.channel}"

    def row(self) -> str:
        """The line of the table."""
        result = self.audit.result
        low, high = result.mu_interval
        verdict = "not refuted" if self.audit.passed else "**refuted**"
        return (
            f"| {self.setting} | {self.audit.channel} | {result.canaries} | "
            f"{result.claimed_mu:.3f} | {result.estimated_mu:.3f} | {low:.2f} to {high:.2f} | "
            f"{result.claimed_epsilon:.2f} | {result.epsilon_lower_bound_95:.2f} | "
            f"{result.power:.3f} | {self.seconds:.0f} | {verdict} |"
        )


def measure(setting: str, overrides: Sequence[str], canaries: int, folder: Path) -> list[Line]:
    storage = f"storage.url=sqlite:///{folder}/sotto.db"
    config = load_config(Path("expert-pool"), [*COMMON, *overrides, storage])
    run = plan_run(config, SilentObserver(), Surroundings())
    start = time.perf_counter()
    audits = audit_run(AuditPlan(run, canaries), lambda channel, done, total: None)
    seconds = (time.perf_counter() - start) / len(audits)
    lines = [Line(setting, audit, seconds) for audit in audits]
    for line in lines:
        print(line.row(), flush=True)
    return lines


def report(lines: Sequence[Line]) -> str:
    header = (
        "| setting | channel | canaries | claimed mu | seen mu | interval | claimed eps | "
        "seen eps | power | seconds | verdict |"
    )
    return "\n".join(
        [
            "# A run with an expert pool under audit",
            "",
            *provenance(),
            header,
            "|" + "---|" * 11,
            *(line.row() for line in lines),
            EXPLANATION,
            "![Scores of canaries beside what is claimed](privacy-audit.svg)",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--canaries", type=int, default=sized(4000, 100))
    parser.add_argument("--trainings", type=int, default=sized(2000, 100))
    parser.add_argument("--output", type=Path, default=RESULTS / "privacy-audit.md")
    options = parser.parse_args()
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as folder:
        for setting, overrides in SETTINGS.items():
            number = options.trainings if "dp_sgd" in setting else options.canaries
            lines += measure(setting, overrides, number, Path(folder))
    kept = ""
    if options.output.is_file():
        # `canary_runs.py` measures runs under audit by their own canaries.
        kept = "".join(options.output.read_text("utf-8").partition(HEADING)[1:])
    options.output.write_text(report(lines) + (kept and "\n" + kept), encoding="utf-8")
    audits, labels = [line.audit for line in lines], [line.label for line in lines]
    for suffix in (".svg", ".png"):
        draw(audits, options.output.with_suffix(suffix), labels)


if __name__ == "__main__":
    main()

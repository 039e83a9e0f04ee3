"""A new run's first records: its folder, its row, and the first entry of its audit log."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import yaml

from methods import Registry
from platform.config import RunConfig, SeedConfig, dump_config
from platform.disk.files import write_text
from platform.disk.log_files import config_digest
from platform.disk.opening import run_folder, transaction
from platform.experiment.environment import environment
from platform.experiment.method_origins import origin_document
from platform.parties.identities import enrolment_of, fingerprint_of
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.run import RunTerms
from storage import Database


def new_run_id(config: RunConfig, now: datetime) -> str:
    """Return name, time and two random bytes, so that two runs of one second differ."""
    return f"{config.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def record_run(
    database: Database,
    run_id: str,
    terms: RunTerms,
    registry: Registry,
    *,
    classes: Sequence[str],
    device: str,
    canaries: str | None = None,
) -> Path:
    """Write down that a run exists, with all that is fixed in advance.

    Args:
        database: The coordinator's.
        run_id: The run.
        terms: What it follows.
        registry: Where its method is from.
        classes: The classes that are told apart.
        device: Where torch computes here.
        canaries: What commits to the key of an audit's canaries, None without.

    Returns:
        The run's folder.
    """
    config = terms.config
    text, facts = dump_config(config), environment(device)
    digest = config_digest(text)
    # First, so that a run that the database knows has its configuration beside it.
    folder = run_folder(config.storage.url, run_id)
    code = origin_document(registry, config.method.name)
    effective = {
        "noise_multiplier": terms.budget.noise_multiplier,
        "seeds": {purpose: config.seed_of(purpose) for purpose in SeedConfig.model_fields},
        "classes": list(classes),
        "environment": facts,
        **({} if code is None else {"method_from": code}),
    }
    write_text(folder / "config.yaml", text)
    write_text(folder / "effective.yaml", yaml.safe_dump(effective, sort_keys=False))
    with transaction(database) as uow:
        uow.runs.create(
            run_id,
            name=config.name,
            config_json=json.dumps(config.model_dump(mode="json")),
            config_digest=digest,
            versions_json=json.dumps(facts),
        )
        trail = AuditTrail(uow.audit, run_id)
        known = enrolment_of(config, terms.protection.terms)
        enrolled, source = fingerprint_of(known), config.phase_two_of
        trail.run_created(digest, enrolled, source, method=code, canaries=canaries)
    return folder

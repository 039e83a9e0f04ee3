"""Every command that prints JSON has a schema, which is strict; what runs write is held to theirs.

What commands print is held to its schema wherever a test calls one (`tests/trunk/_schemas.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator

from platform.cli.app import app
from platform.cli.client_app import client_app
from platform.cli.schemas import SCHEMAS, schema_of
from tests.trunk._schemas import require_published

OPEN = {"axes", "detail", "partition", "says", "method"}
"""Keys whose content is of the user's configuration, or has a format of its own."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*path, name))
    if any("--json" in parameter.opts for parameter in command.params):
        yield path


PRINTING = [
    ".".join((program, *words))
    for program, typed in (("coordinator", app), ("client", client_app))
    for words in commands(typer.main.get_command(typed))
]


def test_every_command_that_prints_json_has_a_schema_and_no_other_has_one():
    others = {"error", "summary", "metrics-line", "federation-line", "privacy-report"}
    assert SCHEMAS.keys() - others == set(PRINTING) and len(PRINTING) > 40


def loose(schema: Any, path: str = "") -> Iterator[str]:
    """Objects in a schema that may have any further key."""
    if isinstance(schema, dict):
        is_object = schema.get("type") == "object" or "properties" in schema
        if is_object and schema.get("additionalProperties", True) is True:
            yield path
        for key, value in schema.items():
            yield from loose(value, f"{path}/{key}")
    if isinstance(schema, list):
        for index, value in enumerate(schema):
            yield from loose(value, f"{path}/{index}")


def test_every_schema_is_strict_and_one_is_held_to_what_schemas_are():
    for name in SCHEMAS:
        schema = schema_of(name)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert [path for path in loose(schema) if not OPEN & set(path.split("/"))] == [], name
    Draft202012Validator.check_schema(schema_of("summary"))


@pytest.mark.slow
def test_every_schema_is_valid():
    for name in SCHEMAS:
        Draft202012Validator.check_schema(schema_of(name))


def test_what_a_run_writes_is_as_published(noised_run, plain_run):
    for run in (noised_run, plain_run):
        summary = json.loads((run.folder / "summary.json").read_text())
        require_published("summary", summary)
        lines = (run.folder / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == len(summary["rounds"])
        for line in lines:
            require_published("metrics-line", json.loads(line))


def test_a_privacy_report_is_held_to_its_schema(sotto, plain_run):
    place = ("--storage", plain_run.storage.url, "--format", "json")
    report = sotto("report", plain_run.run_id, *place).document
    require_published("privacy-report", report)
    section = report["sections"][2]
    for part in (report, section, section["blocks"][0], report["rests_on"][0]):
        part["new"] = 1
        with pytest.raises(AssertionError, match="privacy-report: "):
            require_published("privacy-report", report)
        del part["new"]
    require_published("privacy-report", report)

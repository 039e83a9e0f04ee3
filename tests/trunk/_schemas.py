"""Holds what commands print in tests to the published schemas, whatever else a test asks of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from platform.cli.schemas import SCHEMAS, schema_of

CONFIG = "CONFIG"


@cache
def validator(name: str) -> Draft202012Validator:
    """What holds documents to a schema, which is valid itself."""
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def require_published(name: str, document: Any) -> None:
    """Requires a document to be as its schema says, and names the first place that is not."""
    for error in validator(name).iter_errors(document):
        while error.context:
            error = max(error.context, key=lambda each: len(each.absolute_path))
        where = "/".join(map(str, error.absolute_path))
        raise AssertionError(f"{name}: {where}: {error.message[:500]}")


def schema_name(program: str, arguments: Sequence[str]) -> str:
    """The schema of what a command line prints; of a file in a command's place the client's."""
    for words in (".".join(arguments[:2]), *arguments[:1], CONFIG):
        if f"{program}.{words}" in SCHEMAS:
            return f"{program}.{words}"
    raise AssertionError(f"no schema for {program} {arguments}")


def makes_report(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for a privacy report as JSON, on stdout."""
    asked = list(arguments)
    is_json = "json" in asked and asked[asked.index("json") - 1] == "--format"
    return asked[:1] == ["report"] and is_json and "--output" not in asked


def require_published_answer(
    program: str, arguments: Sequence[str], *, code: int, out: str, err: str
) -> None:
    """Requires all that a command printed under `--json` to be as its schema says."""
    if makes_report(arguments):
        if out:
            require_published("privacy-report", json.loads(out))
    elif out:
        name = schema_name(program, arguments)
        try:
            documents = [json.loads(out)]
        except json.JSONDecodeError:
            documents = [json.loads(line) for line in out.splitlines()]
        for document in documents:
            require_published(name, document)
    elif code:
        failure = json.loads(err.splitlines()[-1])
        require_published("error", failure)
        assert failure["exit_code"] == code

"""The pytest plugin: it adds options that choose plug-ins, and lists the broken rules after a run.

An entry point loads this file in every pytest run where Sotto is installed. So the file imports
nothing else of Sotto, and does nothing if the run does not include the contract.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

INI = "sotto_plugins"
RULE = "sotto_rule"
"""Under this name, a failed test's report holds the broken rule and the case."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the folder as a key of an ini file too."""
    group = parser.getgroup("sotto", "Sotto's contract of plug-ins")
    group.addoption(
        "--plugins",
        metavar="DIR",
        dest=INI,
        help="Check the plug-ins of this folder; their code is run.",
    )
    group.addoption(
        "--data-root", metavar="DIR", default="data", help="`task.root` of data sets; default data."
    )
    parser.addini(INI, "Folder whose plug-ins `--pyargs platform.contract` checks.", default="")


def chosen_folder(config: pytest.Config) -> Path | None:
    """Return the folder from the option, else from the ini file; None if neither names one."""
    option = config.getoption(INI, None)
    if option is not None:
        return Path(config.invocation_params.dir, option)
    written = _written(config)
    if not written:
        return None
    return Path(config.rootpath if config.inipath is None else config.inipath.parent, written)


def _written(config: pytest.Config) -> str:
    try:
        return str(config.getini(INI))
    except (KeyError, ValueError):
        # An install that is older than this file has not registered the key.
        return ""


def rule_of(function: object) -> str:
    """Return a test's rule: the first paragraph of its docstring, on one line."""
    paragraph = (function.__doc__ or "").strip().partition("\n\n")[0]
    return re.sub(r"\s+", " ", paragraph)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the broken rules at the end, with the plug-ins that broke them."""
    broken: dict[str, list[str]] = {}
    for report in (
        *terminalreporter.stats.get("failed", ()),
        *terminalreporter.stats.get("error", ()),
    ):
        told = dict(getattr(report, "user_properties", ())).get(RULE)
        if told is not None:
            rule, case = told
            broken.setdefault(str(rule), [])
            if case not in broken[str(rule)]:
                broken[str(rule)].append(str(case))
    if not broken:
        return
    terminalreporter.section("rules of the contract that are broken")
    for rule, cases in broken.items():
        terminalreporter.line(f"{', '.join(cases)}: {rule}")

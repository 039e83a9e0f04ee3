"""`sotto`, as an install puts it beside the interpreter: from any folder, whichever the install."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repository._source import ROOT
from tests.repository.conftest import Environment, run

KINDS = ("wheel_environment", "editable_environment")


@pytest.fixture(params=KINDS)
def installed(request: pytest.FixtureRequest) -> Environment:
    environment: Environment = request.getfixturevalue(request.param)
    return environment


@pytest.fixture
def script(installed: Environment) -> Path:
    return installed.python.with_name("sotto")


def completed(script: Path, folder: Path, *words: str) -> set[str]:
    """What bash is told that the last word may become."""
    told = {"_SOTTO_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("sotto", *words))}
    done = subprocess.run(
        [str(script)],
        env={**os.environ, **told, "COMP_CWORD": str(len(words))},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize("words", [(), ("run",), ("client",), ("client", "receipts", "verify")])
def test_it_answers_under_its_own_name(script: Path, tmp_path: Path, words: tuple[str, ...]):
    out = run(script, *words, "--help", cwd=tmp_path)
    assert out.startswith(f"Usage: {' '.join(('sotto', *words))} [OPTIONS]")


def test_a_folder_named_platform_is_not_in_its_way(script: Path, tmp_path: Path):
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "__init__.py").write_text("raise SystemExit('the wrong one')\n")
    assert run(script, "methods", "--help", cwd=tmp_path).startswith("Usage: sotto methods")


@pytest.mark.parametrize("module", ["platform.coordinator", "platform.client"])
def test_the_modules_answer_under_theirs(installed: Environment, tmp_path: Path, module: str):
    out = installed.run("-m", module, "--help", cwd=tmp_path)
    assert out.startswith(f"Usage: python -m {module} [OPTIONS]")


def test_the_data_holders_commands_are_the_same(script: Path, tmp_path: Path):
    example = (ROOT / "platform" / "holder" / "example.yaml").read_text("utf-8")
    assert run(script, "client", "example", cwd=tmp_path) == example.strip()
    made = run(script, "client", "keys", "create", "one.key", cwd=tmp_path)
    assert made.startswith("public key") and (tmp_path / "one.key").is_file()


@pytest.mark.parametrize(
    "words", [["sotto"], ["sotto", "client"], ["platform.coordinator"], ["platform.client"]]
)
def test_the_version_says_whether_it_is_a_checkout(
    request: pytest.FixtureRequest, tmp_path: Path, words: list[str]
):
    for kind in KINDS:
        environment: Environment = request.getfixturevalue(kind)
        first = (
            [environment.python.with_name("sotto"), *words[1:]]
            if words[0] == "sotto"
            else [environment.python, "-m", *words]
        )
        said = run(*first, "--version", cwd=tmp_path)
        home = {
            "wheel_environment": f"installed in {environment.site_packages}",
            "editable_environment": f"a checkout in {environment.source}",
        }
        assert said == f"sotto 0.1.0, {home[kind]}"


def test_a_checkout_that_nobody_installed_knows_its_version():
    said = run(sys.executable, "-m", "platform.coordinator", "--version", cwd=ROOT)
    assert said.startswith(f"sotto 0.1.0, a checkout in {ROOT}")


@pytest.mark.parametrize(
    ("words", "among", "never"),
    [
        (("re",), {"report", "restore"}, {"runs"}),
        (("client", ""), {"budget", "receipts"}, {"report"}),
        (("client", "receipts", ""), {"verify", "export"}, {"check"}),
        (("run", "--phase"), {"--phase-two-of"}, {"--seed"}),
    ],
)
def test_bash_is_told_what_a_word_may_become(
    script: Path, tmp_path: Path, words: tuple[str, ...], among: set[str], never: set[str]
):
    found = completed(script, tmp_path, *words)
    assert among <= found and not never & found


def test_bash_completes_by_what_the_script_prints(script: Path, tmp_path: Path):
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("there is no bash on this machine")
    program = f"""
PATH={script.parent}:$PATH
eval "$(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 sotto --show-completion bash)"
complete -p sotto
COMP_WORDS=(sotto client rec); COMP_CWORD=2
_sotto_completion sotto
echo "${{COMPREPLY[@]}}"
"""
    said = run(shell, "-c", program, cwd=tmp_path).splitlines()
    assert said[0].endswith("-F _sotto_completion sotto") and said[-1] == "receipts"
    assert list(tmp_path.iterdir()) == []

"""`parity.py`: a fault of a made-up official repository is seen, and another commit is refused."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
OFFICIAL = """
from absent_library import trainer

@trainer.register()
class Server:
    def mean(self, updates, shares):
        return sum(u * s for u, s in zip(updates, shares))

    def mean_without_the_last(self, updates, shares):
        return sum(u * s for u, s in zip(updates[:-1], shares))
"""
ADAPTER = """
import importlib
import numpy as np

def compare(folder):
    server = importlib.import_module("official_server").Server()
    updates, shares = [np.array([4.0, 0.0]), np.array([0.0, 8.0])], [0.25, 0.75]
    ours = np.average(updates, axis=0, weights=shares)
    yield "mean", server.mean(updates, shares), ours
    yield "mean of all but one", server.mean_without_the_last(updates, shares), ours
"""


def git(folder: Path, *command: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *command], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import parity

    return parity


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An official repository of one file, whose adapter the comparison's process can import."""
    folder = tmp_path / "someone+official"
    folder.mkdir()
    (folder / "official_server.py").write_text(OFFICIAL)
    git(folder, "init", "--quiet")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "published")
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "made_up.py").write_text(ADAPTER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "adapters"))
    return folder


def compared(parity: ModuleType, official: Path) -> object:
    head = git(official, "rev-parse", "HEAD")
    repository = parity.Repository("someone/official", head, ".", ("absent_library",))
    return parity.Compared(repository, "made_up:compare")


def test_a_fault_of_the_published_code_is_seen_and_the_right_part_is_not(
    parity: ModuleType, official: Path
):
    found = parity.compare(compared(parity, official), official)
    same, different = found["rows"]
    assert found["stand_ins"] == ["absent_library"]
    assert (same["values"], same["absolute"]) == (2, 0.0)
    # Ours is (1, 6); without the last client the published code has (1, 0).
    assert (different["absolute"], different["relative"], different["largest"]) == (6.0, 6.0, 1.0)
    assert [bool(parity.mark(row)) for row in found["rows"]] == [False, True]
    assert parity.worst(found["rows"]) is different
    # The user's folder is as it was.
    assert git(official, "status", "--porcelain", "--ignored") == ""


def test_another_commit_and_changed_code_are_refused(parity: ModuleType, official: Path):
    pinned = compared(parity, official)
    (official / "official_server.py").write_text(OFFICIAL.replace("sum(", "max("))
    with pytest.raises(parity.Refused, match=r"official_server\.py"):
        parity.compare(pinned, official)
    git(official, "commit", "--quiet", "-am", "another")
    with pytest.raises(parity.Refused, match=git(official, "rev-parse", "HEAD")):
        parity.compare(pinned, official)
    with pytest.raises(parity.Refused, match="none"):
        parity.require_commit(official.parent, pinned.repository)


def test_every_method_is_ours_and_has_a_whole_commit_and_an_adapter(parity: ModuleType):
    from methods.interface.registry import Registry

    assert set(parity.METHODS) <= set(Registry().available())
    for one in parity.METHODS.values():
        module, _, function = one.adapter.partition(":")
        text = (ROOT / "benchmarks" / f"{module}.py").read_text()
        assert f"def {function}(" in text or f'"{function}": Case(' in text
        assert len(bytes.fromhex(one.repository.commit)) == 20

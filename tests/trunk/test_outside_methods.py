"""Methods from a folder and from packages: found, recorded, held to, and never smuggled in."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
import yaml

from methods import BUILT_IN_METHODS, BrokenPlugin, Registry, UnknownMethod
from platform.config import load_config
from platform.config.loading import validate_options
from platform.errors import ConfigError, RunStopped
from platform.experiment.planning import Surroundings
from platform.results.sweeping.grid import SweepRequest, build_grid
from platform.results.sweeping.running import run_cell
from tests.contract._momentum import METHOD, PRESET, write_momentum
from tests.trunk._runs import NONE, SMALL, Command, Storage, opened

SHORT = (NONE, "rounds=1")
SHA256 = hashlib.sha256(METHOD.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_momentum(tmp_path / "mine")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def ask(config: Path, storage: Storage, *more: str) -> tuple[str, ...]:
    ours = ("method.name=momentum", *SHORT)
    settings = [word for setting in ours for word in ("--set", setting)]
    return ("run", str(config), *settings, "--storage", storage.url, *more)


def detail_of(storage: Storage, run_id: str) -> dict:
    query = "SELECT detail FROM audit WHERE run_id = ? AND action = 'run.created'"
    ((text,),) = storage.rows(query, run_id)
    return json.loads(text)


@pytest.mark.slow
def test_a_folders_method_runs_and_the_records_name_its_code(sotto, config, storage, folder):
    answer = sotto(*ask(config, storage, "--plugins", str(folder), "--json"))
    assert answer.code == 0, answer.err
    run_id = answer.document["run_id"]
    told = {"kind": "folder", "where": str(folder), "sha256": SHA256}
    assert detail_of(storage, run_id)["method"] == told
    effective = yaml.safe_load((storage.folder / run_id / "effective.yaml").read_text())
    assert effective["method_from"] == told
    # Whatever builds the method asks for the folder again; no record brings code in by itself.
    export = ("export", run_id, "--storage", storage.url, "--output", str(folder.parent / "out"))
    refused = sotto(*export)
    assert refused.code == 2 and f"run {run_id}: its method 'momentum'" in refused.err
    assert sotto(*export, "--plugins", str(folder)).code == 0


def test_a_run_goes_on_with_the_same_file_only_wherever_it_lies(folder, storage, tmp_path):
    place = Storage(storage.folder, Surroundings.with_plugins(folder))
    with opened(place.create("method={name: momentum}", *SHORT)) as simulation:
        run_id = simulation.run_id
    with pytest.raises(ConfigError, match=rf"'momentum', .* {folder}"):
        storage.reopen(run_id)
    ran = tmp_path / "ran"
    other = write_momentum(tmp_path / "other", ("VARIANTS", f"open({str(ran)!r}, 'w')\nVARIANTS"))
    with pytest.raises(RunStopped, match="'momentum' is of"):
        Storage(storage.folder, Surroundings.with_plugins(other)).reopen(run_id)
    assert not ran.exists(), "code that is refused must not have run"
    moved = write_momentum(tmp_path / "moved")
    with opened(Storage(storage.folder, Surroundings.with_plugins(moved)).reopen(run_id)) as again:
        assert again.run_id == run_id


def test_a_sweep_does_not_take_over_runs_of_another_file(config, storage, folder):
    what = {"configs": (str(config),), "methods": ("momentum",), "settings": SHORT}
    request = SweepRequest(**what, folder=folder, storage=storage.url)
    before = build_grid(request).cells[0]
    assert before.code == SHA256
    write_momentum(folder, ("momentum: float = 0.9", "momentum: float = 0.8"))
    after = build_grid(request).cells[0]
    assert after.identity != before.identity
    with pytest.raises(ConfigError, match=r"--plugins: .*'momentum' has changed"):
        run_cell(before.run, before.code, Surroundings.with_plugins(folder))


@pytest.mark.parametrize("key", ["methods", "method.folder"])
def test_no_key_of_a_configuration_names_code(key: str, folder: Path, config: Path) -> None:
    own = Surroundings()
    with pytest.raises(ConfigError, match="not a known"):
        validate_options(
            own.registry, load_config(config, (f"{key}={folder}",), own.sources).method
        )


FROZEN = "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Config: ...\n"


def written(text: str, name: str = "momentum.py"):
    return lambda folder: (folder / name).write_text(text)


def without_options(folder: Path) -> None:
    (folder / "momentum.yaml").write_text("name: momentum\n")
    (folder / "momentum.py").write_text(f"{FROZEN}def build(config, task): return object()\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (written("1 / 0\n"), "ZeroDivisionError: division"),
        (written("raise SystemExit(0)\n"), "SystemExit: 0"),
        (written("def build(config, task): ...\n"), "no frozen dataclass Config"),
        (written(FROZEN), "no function build"),
        (written(f"{FROZEN}def build(config, task): ...\n"), "momentum; valid: none"),
        (without_options, "without needs"),
        (written(METHOD, "promptfl.py"), "'promptfl' is a module"),
        (written(METHOD, "my-method.py"), "'my-method.py' is no"),
        (lambda folder: (folder / "momentum.py").unlink(), "holds no plug-in"),
        (lambda folder: (folder / "momentum.yaml").unlink(), "'momentum' has no preset"),
        (lambda folder: folder.rename(folder.parent / "gone"), "is no folder"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(sotto, config, storage, folder, spoil, said):
    spoil(folder)
    answer = sotto(*ask(config, storage, "--plugins", str(folder)))
    assert answer.code == 2 and all(said in line for line in answer.err.splitlines())
    assert not storage.file.exists()


def test_the_list_has_the_folders_methods_and_no_tests(sotto: Command, folder: Path) -> None:
    for name in ("test_momentum.py", "conftest.py", "_shared.py"):
        (folder / name).write_text("raise ImportError\n")
    listed = sotto("methods", "--plugins", str(folder), "--json").document
    mine = {method["name"] for method in listed} - set(BUILT_IN_METHODS.available())
    assert mine == {"momentum"}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Installs a package with entry points: its metadata and modules lie on the path."""
    site = tmp_path / "site"

    def do(points: dict[str, str], text: str = METHOD, package: str = "others") -> Path:
        facts = site / f"{package}-2.0.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (facts / "entry_points.txt").write_text("\n".join(("[sotto.methods]", *lines, "")))
        inner = site / f"{package}_{tmp_path.name}"
        inner.mkdir()
        (inner / "__init__.py").write_text("")
        (inner / "momentum.py").write_text(text)
        (inner / "momentum.yaml").write_text(PRESET)
        monkeypatch.syspath_prepend(str(site))
        return inner

    return do


@pytest.mark.slow
def test_an_installed_packages_method_runs(sotto, config, storage, install, tmp_path):
    module = f"others_{tmp_path.name}.momentum"
    install({"momentum": module})
    answer = sotto(*ask(config, storage, "--json"))
    assert answer.code == 0, answer.err
    told = {"kind": "package", "where": f"others 2.0, {module}", "sha256": SHA256}
    assert detail_of(storage, answer.document["run_id"])["method"] == told


def test_nothing_of_a_package_is_imported_before_it_is_named(install, tmp_path: Path) -> None:
    module = f"others_{tmp_path.name}.momentum"
    install({"momentum": module}, "raise RuntimeError\n")
    registry = Registry()
    assert "momentum" in registry.available()
    assert registry.config_type("promptfl")
    assert module not in sys.modules
    with pytest.raises(BrokenPlugin, match=r"others 2\.0, cannot be"):
        registry.config_type("momentum")
    assert "momentum" not in BUILT_IN_METHODS.available()


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ({"promptfl": "os"}, r"'promptfl' is a module of methods and .* others 2\."),
        ({"mine": "os:path"}, r"sotto\.methods: 'mine' = 'os:path'"),
        ({"my-method": "os"}, r"sotto\.methods: 'my-method' = 'os'"),
    ],
)
def test_an_entry_point_that_cannot_be_used_is_refused(install, points, said: str) -> None:
    install(points)
    with pytest.raises(BrokenPlugin, match=said):
        Registry().available()


def test_two_packages_may_not_offer_one_name(install) -> None:
    install({"mine": "os"})
    install({"mine": "sys"}, package="rivals")
    with pytest.raises(BrokenPlugin, match="'mine' is an"):
        Registry().available()


def test_a_name_outside_the_list_is_refused_and_never_imported(folder, tmp_path):
    ran = tmp_path / "ran"
    (folder / "_private.py").write_text(f"open({str(ran)!r}, 'w')\n")
    registry = Surroundings.with_plugins(folder).registry
    asks = (registry.config_type, registry.info, lambda name: registry.build(name, None, None))
    for name in ("_private", "momentum.py", "os", "../mine/momentum", "/momentum"):
        for ask in asks:
            with pytest.raises(UnknownMethod, match=r"method\.name: .* valid: .*momentum"):
                ask(name)
    assert not ran.exists()

"""`--reference`: the published settings of every table are whole, and some of them by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from platform.config import RunConfig, Sources, load_config
from platform.errors import ConfigError
from tests.papers._page import Command, commands, optimiser
from tests.trunk._runs import Command as Sotto
from tests.trunk._runs import command_line

PUBLISHED = Sources(as_published=True)


def load(name: str, *overrides: str, method: str | None = None) -> RunConfig:
    named = () if method is None else (f"method.name={method}",)
    return load_config(Path("papers") / name, (*named, *overrides), PUBLISHED)


@pytest.mark.slow
@pytest.mark.parametrize("command", commands(), ids=lambda command: command.output)
def test_every_command_of_the_page_takes_it(command: Command) -> None:
    """Each cell is valid, and has the seed, method and axes of the cell without."""
    plain, published = command.grid(), command.grid(as_published=True)
    for one, other in zip(plain.cells, published.cells, strict=True):
        assert (one.method, one.seed, one.axes) == (other.method, other.seed, other.axes)
        assert one.identity != other.identity
        assert other.run.task.clients == one.run.task.clients


@pytest.mark.parametrize("table", ["1-pacs", "2-office_home", "3-vlcs", "4-domainnet", "6-pacs"])
def test_trip(table: str) -> None:
    run = load(f"trip/table-{table}")
    assert optimiser(run) == ("adamw", 5e-4, 0.0, 0.01)
    assert (run.training.betas, run.training.eps) == ((0.9, 0.98), 1e-7)
    # The rate of the fifteenth round: 0.8 to the power of fourteen.
    assert run.training.factor(15, 15) == pytest.approx(0.0439804651)
    options = run.method.options
    assert [options[key] for key in ("experts", "context_tokens", "beta")] == [8, 32, 1.0]
    assert (options["expert_init"], options["clustering"]) == ("equal", "published")
    assert options["average_rounds"] == run.rounds == 15


def test_few_shots_are_dealt_out_as_published() -> None:
    for name in ("pfedmoap/table-7-oxford_pets", "fedpgp/table-10-oxford_pets"):
        partition, seeds = load(name).task.partition, load(name).seeds
        assert (partition.slices, partition.fewest_classes) == ("rounded", 1)
        # The same classes and shots for all seeds.
        assert (seeds.class_map, seeds.shots) == (2023, 2023)
    partition = load("pfedmoap/table-2-cifar10").task.partition
    assert (partition.kind, partition.minimum, partition.minimum_test) == ("dirichlet", 10, 10)
    partition = load("pfedmoap/table-4-office_caltech10").task.partition
    assert (partition.minimum, partition.minimum_test) == (2, 2)
    for name, alpha in (("pfedmoap/table-2-cifar100", 0.5), ("fedpgp/table-5-cifar100", 0.3)):
        partition, seeds = load(name).task.partition, load(name).seeds
        assert (partition.kind, partition.alpha) == ("hierarchical_dirichlet", alpha)
        assert (partition.minimum, partition.minimum_test, seeds.shots) == (None, None, 12345)


def test_pfedmoap_and_fedpgp() -> None:
    options = load("pfedmoap/table-1-dtd").method.options
    assert [options[key] for key in ("select", "gate_scale", "gate_pool", "moe_similarity")] == [
        *("random", "10", "stride", "dot")
    ]
    assert load("pfedmoap/table-1-dtd", method="fedotp").method.options["entropy"] == 0.01
    assert load("pfedmoap/table-3-domainnet10", method="prompt_fedprox").method.options["mu"] == 0.0
    options = load("fedpgp/table-5-cifar100").method.options
    assert (options["mu"], options["clip_reference"], options["bottleneck"]) == (
        *(0.5, "placeholder", 8),
    )


def test_pm_moe() -> None:
    def options(method: str, data: str = "mnist") -> dict[str, Any]:
        return load(f"pm-moe/table-1-{data}", method=method).method.options

    assert options("moon")["mu"] == options("fedprox")["mu"] == 0.0
    babu = options("fedbabu")
    assert (babu["fine_tune"], babu["fine_tuning_rounds"]) == ("all", 50)
    gen = options("fedgen")
    assert [gen[key] for key in ("noise_width", "hidden_width", "generator_rate")] == [
        *(512, 512, 0.005)
    ]
    assert (gen["generator_steps"], gen["noise"], gen["ensemble"]) == (1000, "uniform", "mean")
    assert load("pm-moe/table-1-mnist", method="fedrep").training.local_epochs == 2
    assert load("pm-moe/table-1-mnist").task.validation_share == 0.0
    assert (options("dbe")["fasttext"], options("dbe", "ag_news")["fasttext"]) == (
        *("plain", "published"),
    )
    assert (options("dbe")["mean_weight"], options("dbe", "ag_news")["mean_weight"]) == (25.0, 0.05)
    gate = load("pm-moe/table-3-ag_news").method.options
    assert (gate["gamma"], gate["first_relu"], gate["dropout"]) == (0.0, True, 0.1)
    assert dict(gate["base_options"]) == {"network": "fasttext", "fasttext": "published"}
    both = load("pm-moe/table-4-ag_news").method.options
    assert (both["wiring"], both["fasttext"], both["dropout"]) == ("published", "published", 0.1)


@pytest.mark.parametrize(
    ("table", "method", "named"),
    [
        ("pfedmoap/table-8-domainnet10", "pfedmoap", {"pool", "gate", "optimiser", "fp16"}),
        ("pfedmoap/table-1-dtd", "coop", {"optimiser", "fp16"}),
        ("fedpgp/table-1-dtd", "promptfl", {"optimiser", "client"}),
        ("trip/table-4-domainnet", "trip", {"fp16", "captions"}),
        ("pm-moe/table-3-ag_news", "pm_moe", {"test", "gate"}),
    ],
)
def test_what_is_left_out_is_said(table: str, method: str, named: set[str]) -> None:
    plain = load_config(Path("papers") / table, (f"method.name={method}",)).remarks
    said = " ".join(set(load(table, method=method).remarks) - set(plain))
    assert said.startswith("--reference leaves out")
    assert {word for word in ("pool", "gate", "optimiser", "fp16", *named) if word in said} == named
    assert not any("--reference" in text for text in plain)


@pytest.mark.parametrize(
    ("config", "method", "sentence"),
    [
        ("papers/trip/table-1-pacs", "coop", "trip/table-1 has no published settings of 'coop'; "),
        ("quickstart", None, "has no published settings; valid: a packaged configuration of a"),
    ],
)
def test_what_has_no_published_settings(config: str, method: str | None, sentence: str) -> None:
    named = () if method is None else (f"method.name={method}",)
    with pytest.raises(ConfigError, match=sentence):
        load_config(Path(config), named, PUBLISHED)


def test_an_unknown_key_of_a_reference_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trip").mkdir()
    (tmp_path / "trip" / "table-1.yaml").write_text("methods: {trip: {}}\nevery: {}\n")
    with pytest.raises(ConfigError, match="has 'every'"):
        sources = Sources(references=tmp_path, as_published=True)
        load_config(Path("papers/trip/table-1-pacs"), (), sources)


@pytest.fixture
def sotto(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sotto:
    return command_line(monkeypatch, capsys)


def test_the_commands(sotto: Sotto) -> None:
    shown = sotto("configs", "papers/trip/table-1-pacs", "--reference", "--json").document
    assert (shown["name"], shown["method"]["experts"]) == ("trip-table-1-pacs-published", 8)
    text = sotto("configs", "papers/trip/table-1-pacs", "--reference").out
    assert "(trip): 67 captions" in text
    assert yaml.safe_load(text) == shown
    for command in ("run", "configs"):
        refused = sotto(command, "--reference")
        assert refused.code == 2 and refused.err.startswith("error: --reference: ")
    refused = sotto("sweep", "papers/trip/table-1-pacs", "--reference", "--method=coop")
    assert "trip/table-1 has no published settings of 'coop'" in refused.err

"""The papers' configurations say what the papers say."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.config import RunConfig, Sources, load_config
from platform.errors import ConfigError
from tests.papers._published import CLIP_SETS, PAPERS, TABLES, Table, name_of

# PM-MoE's are `test_pm_moe_configs.py`'s.
FILES = sorted(p for p in PAPERS.rglob("*.yaml") if p.parent.name != "pm-moe")


def load(name: str) -> RunConfig:
    return load_config(Path("papers") / name)


def stated(config: RunConfig) -> Table:
    task, training = config.task, config.training
    return Table(
        *(task.model.name, config.rounds, task.clients, config.cohort_size),
        *(training.local_epochs, training.batch_size, training.learning_rate, task.shots),
        *(task.partition.kind, task.partition.alpha, config.evaluation.protocol),
        *(training.optimizer, training.momentum),
        options=config.method.options,
    )


def test_every_table_has_its_files_and_no_other():
    assert [name_of(path) for path in FILES] == sorted(TABLES)
    assert len(TABLES) == 71


@pytest.mark.parametrize("name", sorted(TABLES))
def test_a_file_is_what_its_paper_says(name):
    config = load(name)
    paper, file = name.split("/")
    assert stated(config) == TABLES[name]
    assert config.name == name.replace("/", "-")
    assert (config.method.name, config.task.dataset) == (paper, file.split("-", 2)[2])
    assert config.task.model.pretrained == "openai"
    assert (config.task.root, config.seed, config.evaluation.selection) == ("data", 0, "last")
    weight_decay = 0.01 if paper == "trip" else 5e-4
    assert config.training.weight_decay == weight_decay
    assert config.training.local_steps is None
    if paper == "pfedmoap":
        require_a_pool_that_can_be_served(config)
    # Only table 6 of pFedMoAP is private.
    if not name.startswith("pfedmoap/table-6-"):
        assert config.privacy.mechanism == "none"


def require_a_pool_that_can_be_served(config: RunConfig) -> None:
    full = config.cohort_size == config.task.clients
    assert config.method.options["experts"] < config.task.clients
    # Everybody's entry of the round before, or everybody's newest one however old it is (Eq. 7).
    assert config.pool.minimum == (config.task.clients if full else 2)
    assert config.pool.generations == (1 if full else config.rounds)


@pytest.mark.parametrize("data", CLIP_SETS)
def test_table_6_of_pfedmoap_is_private(data):
    privacy = load(f"pfedmoap/table-6-{data}").privacy
    # sqrt(2 ln(1.25 / 0.05)) / 50 = 0.0507
    assert (privacy.mechanism, privacy.relation) == ("upload_noise", "replace_one")
    assert (privacy.noise_multiplier, privacy.target_delta) == (0.0507, 0.05)
    assert privacy.clipping_norm == load_config(Path("published-preset")).privacy.clipping_norm


@pytest.fixture
def sources(tmp_path):
    packaged = tmp_path / "configs"
    (packaged / "deep" / "er").mkdir(parents=True)
    text = "name: found\nmethod: {name: coop}\ntraining: {local_steps: 1}\n"
    (packaged / "deep" / "er" / "one.yaml").write_text(text)
    (tmp_path / "outside.yaml").write_text(text)
    return Sources(configs=packaged)


@pytest.mark.parametrize("name", ["../outside", "deep/../../outside", "deep/er/../er/one", "deep"])
def test_a_name_does_not_leave_the_packaged_folder(sources, name):
    with pytest.raises(ConfigError, match="is no file"):
        load_config(Path(name), sources=sources)

"""`advise`: on which measured cell an answer rests, by hand, and what the command says."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import norm
from typer.main import get_command

from platform.cli.app import app
from platform.config import load_config
from platform.mechanisms import BUILT_IN
from platform.results.advice import (
    Advice,
    Asked,
    advise,
    best,
    best_arm,
    cells_of,
    measured,
)

HEAD = (
    "data,clients,images,classes_each,groups,epsilon,way,seeds,all,alone,gain,low,high,"
    "own_gain,own_low,own_high,source"
)
# At epsilon 8: a gain is not shown with 100 clients, and is with 200 and 400.
ROWS = measured(
    f"""{HEAD}
h/m,400,16,all,0,8,sums,10,78,70,8,5,11,,,,page
h/m,100,16,all,0,8,sums,10,71,70,1,-1,3,-2,-3,-1,page
h/m,100,16,all,0,8,alone: text,10,70,70,0,0,0,0,0,0,page
h/m,200,16,all,0,8,sums,10,74,70,4,3,5,-2,-3,-1,page
h/m,200,16,all,0,8,"sums, at_home: select",10,75,70,5,2,8,0.5,-0.5,1.5,page
h/m,200,16,all,0,8,alone: words,10,69,70,,,,,,,page
h/m,200,16,all,0,8,alone: text,10,70,70,,,,,,,page
h/m,50,16,2,0,8,sums,10,60,50,10,8,12,,,,page
h/m,300,16,all,1,8,experts,10,60,50,10,8,12,,,,page
"""
)
ASKED = Asked(
    **{"clients": 200, "images": 16, "classes_each": "all", "groups": False, "epsilon": 8.0},
    **{"mechanism": "distributed_noise", "relation": "replace_one"},
)
MU = {8.0: 1.66603, 2.0: 0.50155}
"""Of the Gaussian mechanism at delta 1e-5."""


def asking(clients: int, **changes: object) -> Advice:
    asked = replace(ASKED, clients=clients, **changes)
    return advise(asked, BUILT_IN.facts_of(asked.mechanism), ROWS)


def rests_on(advice: Advice) -> int | None:
    return advice.cell[0].clients if advice.cell else None


@pytest.mark.parametrize(
    ("clients", "basis", "way", "fewest"),
    [
        (1_000, 400, "sums", 200),
        (400, 400, "sums", 200),
        (399, 200, "sums", 200),
        (200, 200, "sums", 200),
        (199, 100, None, 200),
        (99, 100, None, 200),
    ],
)
def test_advice_rests_on_the_strongest_cell_that_is_not_above(clients, basis, way, fewest):
    found = asking(clients)
    assert rests_on(found) == basis and found.fewest_clients == fewest
    assert (found.use and found.use.way) == way
    assert (found.reason is None) == (way is not None)


def test_an_interval_that_reaches_zero_and_a_cell_out_of_reach_have_their_own_reasons():
    assert "not above 0" in asking(199).reason
    assert "nothing measured" in asking(99).reason and asking(99).own is None


def test_epsilon_counts_by_the_gaussian_trade_off():
    for epsilon, mu in MU.items():
        tails = norm.cdf(mu / 2 - epsilon / mu), norm.cdf(-mu / 2 - epsilon / mu)
        assert tails[0] - math.exp(epsilon) * tails[1] == pytest.approx(1e-5, rel=1e-3)
    # 200 x 1.66603 / 0.50155 = 664.35
    assert rests_on(asking(665, epsilon=2.0)) == 200
    assert rests_on(asking(664, epsilon=2.0)) == 100
    assert asking(664, epsilon=2.0).fewest_clients == 665
    # A smaller delta takes more noise for the same epsilon.
    assert rests_on(asking(200, delta=1e-6)) == 100


def test_less_noise_counts_by_what_all_uploads_save_and_noise_of_each_client_by_the_root():
    # Uploads in cones have a sensitivity of sqrt(2) C and of C: 200 / sqrt(2) = 141.4.
    assert rests_on(asking(142, relation="add_or_remove_one")) == 200
    assert rests_on(asking(141, relation="add_or_remove_one")) == 100
    alone = {"mechanism": "upload_noise"}
    assert rests_on(asking(40_000, **alone)) == 200
    assert rests_on(asking(39_999, **alone)) == 100
    assert asking(39_999, **alone).fewest_clients == 40_000
    assert asking(10_000, **alone).fewest_clients == 40_000
    assert rests_on(asking(200, mechanism="central_noise")) == 200


def test_no_gain_of_a_weaker_cell_counts_beyond_one_without_a_gain():
    lucky = [replace(row, clients=50) for row in ROWS if row.clients == 400]
    for clients, basis, fewest in ((400, 400, 200), (150, 100, 200), (99, 50, 50), (49, 50, 50)):
        asked = replace(ASKED, clients=clients)
        found = advise(asked, BUILT_IN.facts_of(asked.mechanism), [*ROWS, *lucky])
        assert (rests_on(found), found.fewest_clients) == (basis, fewest)
        assert (found.use is None) == (clients in (150, 49))


def test_other_kinds_of_federations_are_other_cells():
    assert rests_on(asking(60, classes_each=3)) == 50
    assert rests_on(asking(300, groups=True)) == 300
    nothing = asking(300, groups=True, classes_each=2)
    assert (rests_on(nothing), nothing.use, nothing.alone) == (None, None, None)


def test_the_best_way_is_the_surest_and_the_best_arm_the_most_accurate():
    found = asking(200)
    assert (found.use.way, found.use.low, found.alone) == ("sums", 3.0, "text")
    assert (found.own.way, found.own.own_low) == ("sums, at_home: select", -0.5)
    assert (found.at_home, asking(199).at_home) == ("select", "shared")
    assert asking(199).own.way == "sums"


def test_what_the_numbers_do_not_say_is_noted():
    assert asking(200).notes == []
    bare = asking(2, mechanism="none", epsilon="inf")
    assert rests_on(bare) == 400 and bare.fewest_clients is None
    assert "nothing protects" in bare.notes[0]
    record = asking(100_000, mechanism="dp_sgd")
    assert record.use is None and "record" in record.notes[0]
    assert "server" in asking(200, mechanism="central_noise").notes[0]
    for images, noted in ((8, 0), (32, 0), (7, 1), (33, 1)):
        assert len(asking(200, images=images).notes) == noted
    assert "2 classes" in asking(60, classes_each=5).notes[0]


def test_of_two_cells_of_one_strength_the_one_with_more_alike_clients_counts():
    few = [replace(row, images=4) for row in ROWS if row.clients == 200]
    for rows in (ROWS + few, few + ROWS):
        for images, expected in ((5, 4), (12, 16)):
            asked = replace(ASKED, images=images)
            found = advise(asked, BUILT_IN.facts_of(asked.mechanism), rows)
            assert found.cell[0].images == expected


def test_the_table_that_ships_is_whole():
    for cell in cells_of(measured()):
        assert best(cell) is not None and best_arm(cell) is not None
        for row in cell:
            assert row.gain is None or row.low <= row.gain <= row.high


def test_every_measured_way_can_be_configured():
    for row in measured():
        assert bool(row.keys) == ("; " in row.way)
    for text in {row.settings for row in measured() if row.settings}:
        load_config(Path("handwriting"), text.split(" | "))


def test_the_keys_of_a_way_by_hand():
    row = replace(ROWS[0], settings="rounds=3 | method.context_init=a photo of a | task.model=null")
    expected = {"rounds": 3, "method.context_init": "a photo of a", "task.model": None}
    assert row.keys == expected
    assert ROWS[0].keys == {}


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.cli.advising.measured", lambda: ROWS)


DECLARED = ("--clients", "200", "--images", "40", "--classes-each", "all", "--epsilon", "8")


@pytest.mark.usefixtures("table")
def test_people_get_the_advice_in_ten_lines_and_the_cell(sotto):
    lines = sotto("advise", *DECLARED).out.splitlines()
    told = lines[: next(i for i, line in enumerate(lines) if line.startswith("measured: "))]
    assert 4 <= len(told) <= 10
    text = " ".join(told)
    for word in ("use sums", "+4.0 [+3.0, +5.0]", "(text)", "select", "fewer than 200", "40"):
        assert word in text
    rows = [line.split()[0] for line in lines if line.startswith(("sums", "alone:"))]
    assert rows == ["sums", "sums,", "alone:", "alone:"]
    assert "stay alone" in sotto("advise", *DECLARED, "--clients", "99").out


@pytest.mark.usefixtures("table")
def test_a_configuration_declares_its_numbers_and_options_override_them(sotto, tmp_path: Path):
    asked = json.loads(sotto("advise", "handwriting", "--json").out)["asked"]
    assert asked == {
        **{"clients": 240, "images": 16, "classes_each": "all", "groups": False, "epsilon": 8.0},
        **{"mechanism": "distributed_noise", "relation": "replace_one", "delta": 1e-5},
    }
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "extends: handwriting\n"
        "task:\n  senses: clients\n  shots: 8\n"
        "  partition: {kind: pathological, classes_per_client: 2, images_per_client: null}\n"
        "privacy: {relation: add_or_remove_one, target_delta: 1.0e-6}\n"
    )
    changed = {"images": 16, "classes_each": 2, "groups": True, "delta": 1e-6}
    changed["relation"] = "add_or_remove_one"
    assert json.loads(sotto("advise", str(mine), "--json").out)["asked"] == asked | changed
    options = ("--clients", "9", "--epsilon", "2", "--classes-each", "3", "--groups")
    found = json.loads(sotto("advise", "handwriting", *options, "--json").out)["asked"]
    overridden = {"clients": 9, "epsilon": 2.0, "classes_each": 3, "groups": True}
    assert found == asked | overridden
    found = json.loads(sotto("advise", "handwriting", "--mechanism", "none", "--json").out)
    assert found["asked"]["epsilon"] == "inf" and found["fewest_clients"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ("--clients: missing", "--images: missing", "--epsilon: missing")),
        ((*DECLARED, "--epsilon", "nan"), ("--epsilon: nan",)),
        ((*DECLARED, "--epsilon", "0"), ("--epsilon: 0.0",)),
        ((*DECLARED, "--clients", "0"), ("--clients", "0")),
        ((*DECLARED, "--classes-each", "some"), ("--classes-each: 'some'", "all")),
        ((*DECLARED, "--mechanism", "magic"), ("--mechanism: 'magic'", "central_noise")),
        ((*DECLARED, "--mechanism", "none"), ("--epsilon", "none")),
        (("comparison", "--epsilon", "8"), ("none",)),
    ],
)
def test_bad_input_is_refused(sotto, arguments, words):
    answer = sotto("advise", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert all(word in answer.err for word in words)


def test_there_is_no_folder_mode(sotto, tmp_path: Path):
    """What a folder holds is private: neither CONFIG nor an option takes one."""
    assert sotto("advise", str(tmp_path), *DECLARED).code == 2
    command = get_command(app).commands["advise"]
    paths = [one.name for one in command.params if one.type.name in ("path", "file", "directory")]
    assert paths == ["config"]
    assert "reads no folder" in " ".join(sotto("advise", "--help").out.split())

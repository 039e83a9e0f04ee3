"""AG News: texts out of a table, and methods that look at images refuse them."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform.data.catalogue import require_modality
from platform.errors import ConfigError
from tests.drawn.arrays import TOPICS, draw_ag_news
from tests.trunk.loaders._refusing import assert_missing, load, refused

LINE = '"{}","A title","A description"\n'


def write(root: Path, text: str, part: str = "test") -> None:
    (root / "ag_news" / f"{part}.csv").write_text(text, newline="")


@pytest.mark.parametrize("names", [True, False])
def test_four_topics_of_five_and_two(tmp_path: Path, names: bool):
    data = load("ag_news", draw_ag_news(tmp_path, 5, 2, names=names))
    assert (data.classes, data.domains, data.modality) == (TOPICS, ("news",), "texts")
    for split, each in ((data.train, 5), (data.test, 2)):
        assert split.labels.tolist() == [0, 1, 2, 3] * each
        assert len(split.images) == 0
        assert split.num_examples == len(split.texts) == 4 * each
    assert data.train.texts[6] == 'train title 6 All of "Business", and 6'
    # Under the name of the published archive as well.
    (tmp_path / "ag_news").rename(tmp_path / "ag_news_csv")
    assert load("ag_news", tmp_path).train.num_examples == 20


def test_classes_are_those_of_the_publication(tmp_path: Path):
    root = draw_ag_news(tmp_path, classes=3)
    assert "names 3 classes; valid: the 4 as published" in refused("ag_news", root)
    names = root / "ag_news/classes.txt"
    names.write_text("\n".join(TOPICS[::-1]))
    assert refused("ag_news", root).endswith("class 0 'Sci/Tech'; valid: 'World', as published")
    names.unlink()
    assert "no training example of class 'Sci/Tech'" in refused("ag_news", root)


def test_line_ends_quotes_and_empty_lines(tmp_path: Path):
    draw_ag_news(tmp_path)
    write(tmp_path, '\ufeff"4"," a ""b"" ","one,\ntwo\u2028 three"\r\n\r\n1,plain,\r\n')
    test = load("ag_news", tmp_path).test
    assert test.texts == ('a "b" one,\ntwo\u2028 three', "plain")
    assert test.labels.tolist() == [3, 0]


def test_a_missing_file(tmp_path: Path):
    draw_ag_news(tmp_path)
    assert_missing("ag_news", tmp_path, tmp_path / "ag_news" / "test.csv")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (LINE.format(1) + LINE.format(5), "label 5 at example 1; valid: 1 to 4"),
        (LINE.format("one"), "no class, title and description at line 1"),
        (LINE.format("9" * 30), "no class, title and description at line 1"),
        (LINE.format(1) + '"2","only a title"\n', "no class, title and description at line 2"),
        (LINE.format(1) + '"2","never closed\n', "is damaged at line"),
        ("", "ag_news has no test example"),
    ],
)
def test_tables_that_are_wrong(tmp_path: Path, text: str, reason: str):
    draw_ag_news(tmp_path)
    write(tmp_path, text)
    assert reason in refused("ag_news", tmp_path)


def test_methods_of_images_are_refused(tmp_path: Path):
    data = load("ag_news", draw_ag_news(tmp_path))
    with pytest.raises(ConfigError) as caught:
        require_modality(data, "coop", {"features", "domains"})
    text = str(caught.value)
    assert text.startswith("task.dataset: ag_news holds texts and coop needs images; valid: ")
    assert "ag_news" not in text.partition("valid: ")[2]
    # Nothing is looked at, or at something else.
    require_modality(data, "coop", {"domains", "text"})

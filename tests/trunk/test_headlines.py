"""The generated texts: in AG News' layout, from a seed, and neither trivial nor hopeless."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from platform.config import parse_config
from platform.data.catalogue import DataRequest, dataset_info, load_dataset
from platform.data.loaders.embedded import PAPERS, TOPICS, headlines, headlines_dataset
from platform.data.loading import load_task_data
from platform.errors import ConfigError
from tests.drawn.arrays import write_ag_news

TREE = {
    "name": "texts",
    "method": {"name": "fedavg"},
    "training": {"local_steps": 1},
    "task": {"dataset": "headlines", "clients": 2, "shots": 8, "test_per_class": 6},
}


def test_the_loader_of_ag_news_reads_the_very_same_texts(tmp_path: Path):
    data, parts = headlines_dataset(7, 30, 11), headlines(7, 30, 11)
    pairs = [[(one.title, one.description) for one in part] for part in parts]
    labels = [split.labels.tolist() for split in (data.train, data.test)]
    root = write_ag_news(tmp_path, train=(pairs[0], labels[0]), test=(pairs[1], labels[1]))
    read = load_dataset("ag_news", DataRequest(root=root))
    for ours, theirs in ((data.train, read.train), (data.test, read.test)):
        assert ours.texts == theirs.texts
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_array_equal(ours.domains, theirs.domains)
    assert (TOPICS, PAPERS) == (read.classes, read.domains)
    # Commas and quotes are what the layout has trouble with.
    assert all(any(mark in text for text in data.train.texts or ()) for mark in ',"')


def test_it_is_listed_and_sized_like_shapes():
    info = dataset_info("headlines")
    assert (info.modality, info.classes, info.layout) == ("texts", TOPICS, ())
    data = load_task_data(parse_config(TREE))
    assert (data.dataset.train.num_examples, data.dataset.test.num_examples) == (4 * 8, 4 * 6)
    assert [len(client.train) for client in data.clients] == [2 * 8] * 2
    everywhere = load_task_data(parse_config(TREE, ("task.partition.kind=iid",)))
    assert [len(client.train) for client in everywhere.clients] == [4 * 8] * 2


def test_all_there_are_cannot_be_asked_for():
    with pytest.raises(ConfigError, match=r"task\.shots: null .*headlines makes as many"):
        parse_config(TREE, ("task.shots=null",))


def test_a_domain_that_it_has_not_is_refused():
    with pytest.raises(ConfigError, match=r"task\.domains: 'sketch' is unknown in headlines"):
        load_task_data(parse_config(TREE, ("task.domains=[sketch]",)))


def test_the_seed_decides_and_the_sizes_do_not():
    few, many, other = (headlines(*s) for s in ((3, 2, 4), (3, 5, 9), (4, 2, 4)))
    for each, more, part in ((2, 5, 0), (4, 9, 1)):
        for label in range(4):
            first = few[part][label * each : (label + 1) * each]
            assert first == many[part][label * more : label * more + each]
            assert not {one.text for one in first} & {one.text for one in other[part]}
    assert headlines(3, 2, 4) == few


def test_no_text_is_there_twice():
    train, test = headlines(0, 500, 500)
    assert len({one.text for one in (*train, *test)}) == len(train) + len(test) == 4000


@pytest.mark.parametrize("seed", [0, 1])
def test_counting_words_is_good_and_not_perfect(seed: int):
    """A logistic regression on word counts, fitted to 100 examples of each topic."""
    data = headlines_dataset(seed, 100, 250)
    counts = CountVectorizer()
    rows = counts.fit_transform(data.train.texts)
    model = LogisticRegression(max_iter=1000).fit(rows, data.train.labels)
    score = model.score(counts.transform(data.test.texts), data.test.labels)
    assert 0.8 < score < 0.95


def test_a_title_alone_says_less_than_the_text():
    """Titles are a part of the text, which no single template gives away."""
    train, test = headlines(0, 100, 250)
    labels, answers = np.repeat(range(4), 100), np.repeat(range(4), 250)
    scores = []
    for of in (lambda one: one.title, lambda one: one.text):
        counts = CountVectorizer()
        model = LogisticRegression(max_iter=1000)
        model.fit(counts.fit_transform(map(of, train)), labels)
        scores.append(model.score(counts.transform(map(of, test)), answers))
    assert 0.3 < scores[0] < scores[1] - 0.1

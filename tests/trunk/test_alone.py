"""The heads of a client alone, against hand-worked numbers, refits and other programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks import _alone as alone


def rows(*shape: int, seed: int = 0) -> alone.Array:
    """Random rows of length one."""
    return alone.unit(np.random.default_rng(seed).normal(size=shape))


def drawn(number: int, width: int, classes: int) -> alone.Shots:
    return alone.Shots(rows(number, width, seed=1), np.arange(number) % classes, classes)


def test_ss_text_by_hand() -> None:
    """Classes 0 and 1 have a shot each, so n_c / N is a half; class 2 keeps its text."""
    shots = alone.Shots(np.array([[0.6, 0.8], [0.0, 1.0]]), np.array([0, 1]), 3)
    text = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    expected = [[1 / 2**0.5, 1 / 2**0.5], [0, 1], [-1, 0]]
    found = alone.ss_text(shots, text, 10.0)(np.eye(2))
    np.testing.assert_allclose(found, 10 * np.array(expected).T, atol=1e-12)
    equal = alone.ss_text(shots, text, 10.0, by_share=False)(np.eye(2))
    np.testing.assert_allclose(equal[:, 0], 10 * np.array([7, 8]) / 113**0.5)


@pytest.mark.parametrize("number", [5, 30])
def test_ridge_residuals_are_those_of_refits(number: int) -> None:
    shots, text = drawn(number, 12, 3), rows(3, 12)
    features, onehot, weight = shots.features, shots.onehot, 0.3
    found = alone.left_out_residuals(features, onehot - features @ text.T, weight)
    for row in range(number):
        rest = np.arange(number) != row
        gram = features[rest].T @ features[rest] + weight * np.eye(12)
        right = features[rest].T @ onehot[rest] + weight * text.T
        expected = onehot[row] - features[row] @ np.linalg.solve(gram, right)
        np.testing.assert_allclose(found[row], expected, atol=1e-10)


def test_lp_plus_steps_are_the_inverse_curvature_of_two_equal_classes() -> None:
    """The loss is steepest where each of two classes has probability 1/2.

    The published step of the factors is a sixteenth of that.
    """
    shots, text = drawn(9, 4, 2), rows(2, 4)

    def loss(row: alone.Array, factor: float) -> float:
        first = shots.features @ row + factor * shots.features @ text[top]
        scores = np.stack([first, np.zeros(9)], axis=1)
        return -alone.likelihood(scores, shots.labels) / 9

    top = int(np.square(shots.features @ text.T).sum(axis=0).argmax())
    size, zero = 1e-3, np.zeros(4)
    steps, signs = np.eye(4) * size, ((1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1))
    hessian = [
        [sum(sign * loss(one * a + two * b, 0.0) for one, two, sign in signs) for a in steps]
        for b in steps
    ]
    largest = np.linalg.eigvalsh(hessian).max() / (4 * size**2)
    rate, factor_rate = alone.lp_plus_steps(shots.features, text)
    assert 1 / largest == pytest.approx(rate, rel=1e-3)
    curvature = (loss(zero, size) - 2 * loss(zero, 0.0) + loss(zero, -size)) / size**2
    assert 1 / curvature == pytest.approx(16 * factor_rate, rel=1e-3)


def planted(words: alone.Array) -> alone.Candidates:
    """Six texts of four classes, of which the first two are templates."""
    texts = rows(6, 4, 8)
    return alone.Candidates(texts, 2, words, 20.0)


def test_searches_find_the_planted_words() -> None:
    """The shots say what class 0 means; class 1, whose name suits that word too, gets another."""
    texts = planted(rows(5, 8))
    shots = alone.Shots(alone.unit(texts.features[3, :2] + 0.1), np.array([0, 1]), 4)
    found = alone.arms(shots, texts)
    scores = found["word search"]()(texts.features[3])
    assert scores.argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert found["template search"]()(np.eye(8)) == pytest.approx(
        20 * texts.features[alone.fits(shots, texts)[:2].argmax()].T
    )
    words = np.eye(8)[:4]
    usual = alone.unit(np.array([[3, 1, 0, 0], [3, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 3]]))
    usual = np.pad(usual, ((0, 0), (0, 4)))
    texts = alone.Candidates(usual[None], 1, words, 20.0)
    shots = alone.Shots(words[:1], np.array([0]), 4)
    assert alone.matched(shots, texts).argmax(axis=1).tolist() == [0, 1, 2, 3]
    shots = alone.Shots(words[1:2], np.array([0]), 4)
    assert alone.matched(shots, texts).argmax(axis=1).tolist() == [1, 0, 2, 3]


def test_class_means_are_those_of_a_loop() -> None:
    shots, images = drawn(10, 6, 3), rows(20, 6)
    shots = alone.Shots(shots.features, shots.labels, 4)
    scores = alone.class_means(shots)(images)
    for image, found in zip(images, scores, strict=True):
        for label in range(3):
            mean = np.mean(
                [x for x, y in zip(shots.features, shots.labels, strict=True) if y == label], 0
            )
            assert found[label] == pytest.approx(image @ mean / np.linalg.norm(mean))
    assert 3 not in scores.argmax(axis=1)


def test_a_value_that_only_remembers_shots_is_not_chosen() -> None:
    shots = drawn(8, 20, 2)

    def fit(some: alone.Shots):
        def of_value(value: str) -> alone.Head:
            if value == "constant":
                return lambda features: np.zeros((len(features), 2))
            return lambda features: 50 * (features @ some.features.T > 0.999) @ some.onehot + [9, 0]

        return of_value

    assert alone.choose(shots, ("remembers", "constant"), fit)(shots.features).max() == 0


def test_the_probe_is_that_of_scikit_learn() -> None:
    shots = drawn(30, 8, 3)
    found = alone.logistic(shots.features, shots.onehot, np.zeros((3, 8)), 0.05)
    other = LogisticRegression(C=20, fit_intercept=False, tol=1e-8, max_iter=1000)
    np.testing.assert_allclose(
        found, other.fit(shots.features, shots.labels).coef_, atol=5e-3, rtol=1e-3
    )


@pytest.mark.parametrize("held_back", [True, False])
def test_clap_descends_as_torch_does(held_back: bool) -> None:
    """Class 3 has no shots; it takes the mean of the others' weights."""
    shots, text = drawn(9, 6, 3), rows(4, 6)
    shots = alone.Shots(shots.features, shots.labels, 4)
    images, labels, anchor = map(torch.tensor, (shots.features, shots.labels, text))
    told = torch.softmax(10 * images @ anchor.T, dim=1)
    pull = [told[labels == c, c].mean().item() for c in range(3)]
    pull = torch.tensor([*pull, sum(pull) / 3]) * held_back
    learnt = anchor.clone().requires_grad_(True)
    descent = torch.optim.SGD([learnt], lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, 300)
    for _ in range(300):
        scores = 10 * images @ torch.nn.functional.normalize(learnt, dim=1).T
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss = loss + (pull * (learnt - anchor).square().sum(dim=1)).mean()
        descent.zero_grad()
        loss.backward()
        descent.step()
        schedule.step()
    expected = 10 * torch.nn.functional.normalize(learnt, dim=1).detach().numpy().T
    found = alone.clap(shots, text, 10.0, held_back=held_back)(np.eye(6))
    np.testing.assert_allclose(found, expected, atol=1e-4)

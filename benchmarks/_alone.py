"""A client alone, at its best: few-shot heads on frozen CLIP features, of the client's own images.

None needs validation images. Constants are those of the published code, hyper-parameters come from
closed rules or from leaving shots out, and never from test images. Clients train nothing together
and send nothing. Image and text features have length one. A head maps image features (m, d) to
scores (m, C) of all classes; the greatest one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import log_softmax, softmax

Array = NDArray[np.float64]
Head = Callable[[Array], Array]
Value = TypeVar("Value")

FOLDS: Final = 16
"""Most folds of cross-validation on the shots; up to as many shots, each is left out alone."""
TRAINED_FOLDS: Final = 4
"""Folds for heads that are trained anew in each."""
NEVER: Final = -1e9
"""Score of a class that a head does not know."""


@dataclass(frozen=True)
class Shots:
    """A client's training images: features (n, d), labels (n,), and the number C of all classes."""

    features: Array
    labels: NDArray[np.int64]
    classes: int

    @property
    def onehot(self) -> Array:
        """Labels as rows of the identity, (n, C)."""
        return np.eye(self.classes)[self.labels]

    @property
    def counts(self) -> Array:
        """Number of shots of each class, (C,)."""
        return np.bincount(self.labels, minlength=self.classes).astype(np.float64)

    @property
    def sums(self) -> Array:
        """Sum of each class's features, (C, d)."""
        return self.onehot.T @ self.features

    @property
    def means(self) -> Array:
        """Mean of each class's features, zero for a class without shots, (C, d)."""
        return self.sums / np.maximum(self.counts, 1)[:, None]

    def only(self, chosen: NDArray[np.bool_]) -> Shots:
        """Some of the shots."""
        return Shots(self.features[chosen], self.labels[chosen], self.classes)


@dataclass(frozen=True)
class Candidates:
    """Texts for the classes, which differ in a template or a word.

    Attributes:
        features: (K, C, d); the first is the usual caption.
        templates: How many are templates; the others put a word before the class name.
        words: Features (W, d) of what else images may show: the usual caption of single words.
        scale: The model's factor of cosines.
    """

    features: Array
    templates: int
    words: Array
    scale: float


def unit(rows: Array) -> Array:
    """Rows at length one; zero stays zero."""
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def linear(weights: Array, bias: Array | float = 0.0) -> Head:
    """A head of weights (C, d) and a bias."""
    return lambda features: features @ weights.T + bias


def likelihood(scores: Array, labels: NDArray[np.int64]) -> float:
    """Sum of the logarithms of the right classes' probabilities."""
    return float(log_softmax(scores, axis=-1)[np.arange(len(labels)), labels].sum())


def choose(
    shots: Shots,
    grid: Iterable[Value],
    fit: Callable[[Shots], Callable[[Value], Head]],
    most_folds: int = FOLDS,
) -> Head:
    """The head of the value under which the other shots give left-out shots most likelihood."""
    values, number = list(grid), len(shots.labels)
    told = np.zeros(len(values))
    folds = np.empty(number, np.int64)
    # In the order of labels, so that each fold has as few shots of a class as may be.
    folds[np.argsort(shots.labels, kind="stable")] = np.arange(number) % min(most_folds, number)
    for fold in range(folds.max() + 1) if number > 1 else ():
        out, of_value = shots.only(folds == fold), fit(shots.only(folds != fold))
        told += [likelihood(of_value(value)(out.features), out.labels) for value in values]
    return fit(shots)(values[int(told.argmax())])


# Words and templates.


def fits(shots: Shots, texts: Candidates) -> Array:
    """Log-likelihood of the shots under each candidate text, (K,)."""
    scores = texts.scale * np.einsum("nd,kcd->knc", shots.features, texts.features)
    right = log_softmax(scores, axis=-1)[:, np.arange(len(shots.labels)), shots.labels]
    return np.asarray(right.sum(axis=1))


def averaged(shots: Shots, texts: Candidates) -> Head:
    """The mean prediction over all candidates, weighted by the shots' likelihood (Bayes' rule)."""
    weights = softmax(fits(shots, texts))
    kept = np.flatnonzero(weights > 1e-4)

    def predict(features: Array) -> Array:
        told = softmax(texts.scale * np.einsum("nd,kcd->knc", features, texts.features[kept]), -1)
        return np.log(np.einsum("k,knc->nc", weights[kept], told) + 1e-300)

    return predict


def matched(shots: Shots, texts: Candidates) -> Array:
    """Elimination by bare names: each class gets one word, no two the same; features (C, d).

    A word suits a class as well as the shots say, and a class without shots as well as the text of
    its bare name says. The assignment is the most likely one (Hungarian method), so a word that own
    shots fix is taken from all other names. Needs as many words as classes.
    """
    usual, words = texts.features[0], texts.words
    if len(words) < len(usual):
        return usual
    suits = log_softmax(texts.scale * usual @ words.T, axis=1)
    seen = log_softmax(texts.scale * shots.features @ words.T, axis=1)
    suits = np.where(shots.counts[:, None] > 0, shots.onehot.T @ seen, suits)
    _, places = linear_sum_assignment(suits, maximize=True)
    return words[places]


# Closed forms.


def class_means(shots: Shots) -> Head:
    """Nearest class mean by cosine; a class without shots is never chosen."""
    return linear(unit(shots.means), np.where(shots.counts > 0, 0.0, NEVER))


def ss_text(shots: Shots, text: Array, scale: float, *, by_share: bool = True) -> Head:
    """SS-Text (2506.17500): t_c + scale (n_c / N) times the sum of the class's shots.

    The published code brings the rows to length one at inference. Without `by_share` the sum's
    factor is the scale alone.
    """
    share = shots.counts / shots.counts.sum() if by_share else np.ones(shots.classes)
    return linear(scale * unit(text + scale * share[:, None] * shots.sums))


def shrunk_means(shots: Shots, text: Array, scale: float) -> Head:
    """Class means, shrunk towards texts that the difference of images and texts is taken from.

    Both sides are centred over the held classes, so that classes with and without shots compare.
    The row of a class of n shots has the weight n / (n + k); k and the images' factor are chosen.
    """

    def fit(some: Shots) -> Callable[[tuple[float, float]], Head]:
        held = some.counts > 0
        texts = text - text[held].mean(axis=0)
        images = some.means - some.means[held].mean(axis=0)

        def of_value(value: tuple[float, float]) -> Head:
            weight = (some.counts / (some.counts + value[0]))[:, None]
            return linear(scale * (texts + weight * (value[1] * images - texts)))

        return of_value

    return choose(shots, product((1e-3, 0.3, 1.0, 3.0, 10.0, 100.0), (0.5, 1.0, 2.0)), fit)


def left_out_residuals(features: Array, residuals: Array, weight: float) -> Array:
    """Residuals (n, C) of a ridge regression for each row, were it left out: r_i / (1 - H_ii)."""
    basis, singular, _ = np.linalg.svd(features, full_matrices=False)
    hat = basis * (singular**2 / (singular**2 + weight))
    left = 1 - (hat * basis).sum(axis=1)
    return (residuals - hat @ (basis.T @ residuals)) / left[:, None]


def text_ridge(
    shots: Shots, text: Array, scale: float, *, factors: Iterable[float] = (1.0,)
) -> Head:
    """Ridge regression on the labels around the text: (X'X + l I)^-1 (X'Y + l f T).

    Leaving one shot out chooses l, and f among `factors`.
    """

    def error(value: tuple[float, float]) -> float:
        left = shots.onehot - value[1] * shots.features @ text.T
        return float(np.square(left_out_residuals(shots.features, left, value[0])).sum())

    weight, factor = min(product(np.geomspace(1e-3, 1e3, 25), factors), key=error)
    gram = shots.features.T @ shots.features + weight * np.eye(text.shape[1])
    return linear(np.linalg.solve(gram, shots.sums.T + weight * factor * text.T).T)


def centred_ridge(shots: Shots, text: Array, scale: float) -> Head:
    """`text_ridge` around the text less its mean over classes, times a factor that is chosen."""
    return text_ridge(shots, text - text.mean(axis=0), scale, factors=(0.5, 1.0, 2.0, 4.0, 8.0))


def gda(shots: Shots, text: Array, scale: float) -> Head:
    """CLIP-GDA (2402.04087): one covariance of all classes, added to the text with a factor.

    The covariance is that of the code, d ((N - 1) S + tr(S) I)^+. Classes without shots have the
    text alone.
    """

    def fit(some: Shots) -> Callable[[float], Head]:
        around, held = some.features - some.means[some.labels], some.counts > 0
        spread = around.T @ around
        shrunk = spread + np.trace(spread) / max(len(around) - 1, 1) * np.eye(text.shape[1])
        rows = text.shape[1] * some.means @ np.linalg.pinv(shrunk, hermitian=True)
        bias = -0.5 * (rows * some.means).sum(axis=1) - np.log(held.sum())
        return lambda factor: linear(scale * text + factor * rows, factor * bias * held)

    return choose(shots, np.geomspace(1e-4, 100.0, 7), fit)


SIZES: Final = tuple(product(np.geomspace(0.1, 50.0, 20), repeat=2))
"""Alpha and beta of Tip-Adapter, over the published ranges."""


def tip_adapter(
    shots: Shots, text: Array, scale: float, *, sizes: Sequence[tuple[float, float]] = SIZES
) -> Head:
    """Tip-Adapter (2207.09519), training-free; alpha and beta with the own row left out."""
    onehot = shots.onehot

    def scored(features: Array, near: Array, alpha: float, beta: float) -> Array:
        return scale * features @ text.T + alpha * np.exp(-beta * (1 - near)) @ onehot

    near = shots.features @ shots.features.T
    np.fill_diagonal(near, -np.inf)
    told = [likelihood(scored(shots.features, near, *pair), shots.labels) for pair in sizes]
    best = sizes[int(np.argmax(told))]
    return lambda features: scored(features, features @ shots.features.T, *best)


def own_first(shots: Shots, text: Array, scale: float) -> Head:
    """A head for own classes, and the text among the other classes' names for all other images.

    An image is of an own class if it is nearer to a class mean than half-way between the shots'
    own classes and other own classes. With one shot of each class, than other classes are.
    """
    near = shots.features @ shots.features.T
    same = shots.labels[:, None] == shots.labels
    alike = near[same & ~np.eye(len(near), dtype=bool)]
    other = near[~same]
    bounds = [part for part in (other.max(initial=-1.0), alike.min(initial=2.0)) if -1 < part < 2]
    border, held = float(np.mean(bounds or [1.0])), shots.counts > 0
    means = class_means(shots)

    def predict(features: Array) -> Array:
        own, texts = means(features), features @ text.T
        is_own = own.max(axis=1, keepdims=True) >= border
        # The margin of 4 is more than cosines can differ.
        return np.where(held, np.where(is_own, own + 4, own - 4), texts)

    return predict


# Training.


def logistic(features: Array, onehot: Array, start: Array, decay: float) -> Array:
    """Weights (C, d) that minimise cross-entropy + decay / 2 |W - start|^2, by L-BFGS.

    The change lies in the span of the features, so it is sought among as many numbers as images.
    """
    basis = np.linalg.svd(features, full_matrices=False)[2]
    inputs, offset = features @ basis.T, features @ start.T
    shape, labels = (len(start), len(basis)), onehot.argmax(axis=1)

    def loss(flat: Array) -> tuple[float, Array]:
        change = flat.reshape(shape)
        scores = offset + inputs @ change.T
        value = 0.5 * decay * np.square(change).sum() - likelihood(scores, labels)
        return value, ((softmax(scores, axis=1) - onehot).T @ inputs + decay * change).ravel()

    found = minimize(
        *(loss, np.zeros(np.prod(shape))), jac=True, method="L-BFGS-B", options={"maxiter": 200}
    )
    return start + found.x.reshape(shape) @ basis


def text_probe(shots: Shots, text: Array, scale: float) -> Head:
    """Logistic regression that starts at the text and is held to it; the decay is chosen."""

    def fit(some: Shots) -> Callable[[float], Head]:
        return lambda decay: linear(logistic(some.features, some.onehot, scale * text, decay))

    return choose(shots, (1e-4, 1e-3, 1e-2, 0.1, 1.0), fit, TRAINED_FOLDS)


def linear_probe(shots: Shots) -> Head:
    """Logistic regression on the held classes (CLIP, appendix A.3); the decay is chosen."""
    # Without a text, a class whose only shot is left out tells nothing, whatever the decay.
    held = np.flatnonzero(shots.counts)
    own = Shots(shots.features, np.searchsorted(held, shots.labels), len(held))
    probe = text_probe(own, np.zeros((len(held), shots.features.shape[1])), 1.0)

    def predict(features: Array) -> Array:
        scores = np.full((len(features), shots.classes), NEVER)
        scores[:, held] = probe(features)
        return scores

    return predict


def lp_plus_steps(features: Array, text: Array) -> tuple[float, float]:
    """LP++'s steps for weights, 4 N / lambda_max(X'X), and factors, N / (4 max_c sum (x t_c)^2)."""
    number = len(features)
    factors = np.square(features @ text.T).sum(axis=0).max()
    return 4 * number / np.linalg.norm(features, 2) ** 2, number / (4 * factors)


def lp_plus(shots: Shots, text: Array, scale: float, *, steps: int = 300) -> Head:
    """LP++ (2404.02285): scores x (w_c + a_c t_c) + b_c; fixed steps, the last one counts.

    Starts, momentum and one step of a after ten of w are those of the code; a step of a takes its
    own gradient, which the code adds to all earlier ones. The code picks an epoch on validation.
    """
    features, onehot, held = shots.features, shots.onehot, shots.counts > 0
    texts = features @ text.T
    rate, factor_rate = lp_plus_steps(features, text)
    weights, bias = shots.sums, np.zeros(shots.classes)
    of_own = (onehot * texts).sum(axis=0) / np.maximum(shots.counts, 1)
    factors = np.full(shots.classes, 250 * of_own[held].mean())
    moved, moved_bias = np.zeros_like(weights), np.zeros_like(bias)
    for step in range(1, steps + 1):
        wrong = softmax(features @ weights.T + bias + texts * factors, axis=1) - onehot
        wrong /= len(features)
        moved = 0.9 * moved + wrong.T @ features
        moved_bias = 0.9 * moved_bias + wrong.sum(axis=0)
        weights, bias = weights - rate * moved, bias - rate * moved_bias
        if step % 10 == 0:
            factors = factors - factor_rate * (wrong * texts).sum(axis=0)
    return linear(weights + factors[:, None] * text, bias)


def clap(shots: Shots, text: Array, scale: float, *, held_back: bool = True) -> Head:
    """CLAP (2312.12730): cross-entropy plus the mean of l_c |w_c - t_c|^2, from the text on.

    l_c is the zero-shot probability of the class on its shots, and the mean of these for a class
    without any. SGD 0.1, momentum 0.9, decay 5e-4, 300 epochs, cosine. Without `held_back` it is
    ZS-LP. The published code sees each image in 20 crops; here each is one feature.
    """
    onehot, held = shots.onehot, shots.counts > 0
    told = softmax(scale * shots.features @ text.T, axis=1)
    own = (onehot * told).sum(axis=0) / np.maximum(shots.counts, 1)
    pull = np.where(held, own, own[held].mean())[:, None] * held_back / len(text)
    rows, moved, steps = text, np.zeros_like(text), 300
    for step in range(steps):
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        wrong = softmax(scale * shots.features @ (rows / length).T, axis=1) - onehot
        slope = scale * wrong.T @ shots.features / len(wrong)
        # The scores take rows at length one, so they move at right angles to themselves.
        slope = (slope - (slope * rows).sum(axis=1, keepdims=True) * rows / length**2) / length
        moved = 0.9 * moved + slope + 2 * pull * (rows - text) + 5e-4 * rows
        rows = rows - 0.05 * (1 + np.cos(np.pi * step / steps)) * moved
    return linear(scale * unit(rows))


# The portfolios.

AROUND_TEXT: Final[Mapping[str, Callable[[Shots, Array, float], Head]]] = {
    "own means first": own_first,
    "SS-Text": ss_text,
    "SS-Text, equal": partial(ss_text, by_share=False),
    "shrunk means": shrunk_means,
    "text ridge": text_ridge,
    "text ridge, centred": centred_ridge,
    "CLIP-GDA": gda,
    "Tip-Adapter": tip_adapter,
    # The published start of its search on ImageNet.
    "Tip-Adapter, fixed": partial(tip_adapter, sizes=[(1.17, 1.0)]),
    "LP++": lp_plus,
    "CLAP": clap,
    "ZS-LP": partial(clap, held_back=False),
    "probe to text": text_probe,
}
"""Heads around one text of each class, by name."""


def arms(shots: Shots, texts: Candidates) -> dict[str, Callable[[], Head]]:
    """Every arm of a client alone by its name, as a function that fits its head."""
    likely, split = fits(shots, texts), texts.templates
    word = texts.features[max((0, *range(split, len(likely))), key=likely.__getitem__)]
    alone = {
        "zero-shot": texts.features[0],
        "zero-shot, mean of templates": unit(texts.features[:split].mean(axis=0)),
        "template search": texts.features[likely[:split].argmax()],
        "word search": word,
        "elimination": matched(shots, texts),
    }
    found = {name: partial(linear, texts.scale * text) for name, text in alone.items()}
    found["words averaged"] = partial(averaged, shots, texts)
    found["class means"] = partial(class_means, shots)
    found["linear probe"] = partial(linear_probe, shots)
    for name, head in AROUND_TEXT.items():
        found[name] = partial(head, shots, alone["zero-shot"], texts.scale)
        found[f"{name}, found text"] = partial(
            head, shots, texts.features[likely.argmax()], texts.scale
        )
    return found


def pooled(shots: Shots, texts: Candidates) -> Mapping[str, Head]:
    """Heads on all clients' images together, without any privacy: the ceiling, by name."""
    return {
        "pooled nearest mean": class_means(shots),
        "pooled ridge": text_ridge(shots, np.zeros_like(texts.features[0]), 1.0),
        "pooled text ridge": text_ridge(shots, texts.features[0], 1.0),
        "pooled linear probe": linear_probe(shots),
    }


def accuracy(scores: Array, labels: NDArray[Any]) -> float:
    """Share of images whose greatest score is the right class's; NaN without images."""
    return float((scores.argmax(axis=1) == labels).mean()) if len(labels) else np.nan

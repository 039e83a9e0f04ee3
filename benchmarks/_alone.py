"""A client alone, at its best: few-shot heads on frozen CLIP features, of the client's own images.

None needs validation images. Constants are those of the published code, hyper-parameters come from
closed rules or from leaving shots out, and never from test images. Clients train nothing together
and send nothing. Image and text features have length one. A head maps image features (m, d) to
scores (m, C) of all classes; the greatest one counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import log_softmax, softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

Array = NDArray[np.float64]
Head = Callable[[Array], Array]
Value = TypeVar("Value")

FOLDS: Final = 16
"""Most folds of cross-validation on the shots; up to as many shots, each is left out alone."""
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
    """Texts for the classes: names (K,) and features (K, C, d); the first is the usual caption.

    Attributes:
        templates: How many of them are templates; the others put a word before the class name.
        words: Features (W, d) of single words, the usual caption's with the word as its class.
        is_name: Whether a word is a class name, (W,).
        scale: The model's factor of cosines.
    """

    names: tuple[str, ...]
    features: Array
    templates: int
    words: Array
    is_name: NDArray[np.bool_]
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


def choose(shots: Shots, grid: Iterable[Value], fit: Callable[[Shots, Value], Head]) -> Value:
    """The value under which heads of the other shots give left-out shots the most likelihood."""
    folds = np.arange(len(shots.labels)) % min(FOLDS, len(shots.labels))

    def told(value: Value) -> float:
        total = 0.0
        for fold in range(folds.max() + 1):
            out = shots.only(folds == fold)
            total += likelihood(fit(shots.only(folds != fold), value)(out.features), out.labels)
        return total

    return max(grid, key=told) if len(shots.labels) > 1 else next(iter(grid))


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

    A word that is not itself a class name suits a class as well as the shots say, and a class
    without shots as well as its bare name's text says. The assignment is the most likely one
    (Hungarian method): what the own shots fix is taken from the other names. With fewer such words
    than classes, class names count as words too.
    """
    usual = texts.features[0]
    words = texts.words[~texts.is_name]
    words = texts.words if len(words) < len(usual) else words
    if len(words) < len(usual):
        return usual
    suits = log_softmax(texts.scale * usual @ words.T, axis=1)
    seen = log_softmax(texts.scale * shots.features @ words.T, axis=1)
    held = shots.counts > 0
    suits[held] = (shots.onehot.T @ seen)[held]
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

    def fit(some: Shots, value: tuple[float, float]) -> Head:
        held = some.counts > 0
        pull, gain = value
        texts = text - text[held].mean(axis=0)
        images = some.means - some.means[held].mean(axis=0)
        weight = (some.counts / (some.counts + pull))[:, None]
        return linear(scale * (texts + weight * (gain * images - texts)))

    grid = product((1e-3, 0.3, 1.0, 3.0, 10.0, 100.0), (0.5, 1.0, 2.0))
    return fit(shots, choose(shots, grid, fit))


def left_out_residuals(features: Array, residuals: Array, weight: float) -> Array:
    """Residuals (n, C) of a ridge regression for each row, were it left out: r_i / (1 - H_ii)."""
    gram = features @ features.T
    hat = np.linalg.solve(gram + weight * np.eye(len(gram)), gram)
    return (residuals - hat @ residuals) / (1 - np.diag(hat))[:, None]


def text_ridge(shots: Shots, text: Array, *, factors: Iterable[float] = (1.0,)) -> Head:
    """Ridge regression on the labels around the text: (X'X + l I)^-1 (X'Y + l f T).

    Leaving one shot out chooses l, and f among `factors`.
    """

    def error(value: tuple[float, float]) -> float:
        weight, factor = value
        left = shots.onehot - factor * shots.features @ text.T
        return float(np.square(left_out_residuals(shots.features, left, weight)).sum())

    weight, factor = min(product(np.geomspace(1e-3, 1e3, 25), factors), key=error)
    gram = shots.features.T @ shots.features + weight * np.eye(text.shape[1])
    return linear(np.linalg.solve(gram, shots.sums.T + weight * factor * text.T).T)


def gda(shots: Shots, text: Array, scale: float) -> Head:
    """CLIP-GDA (2402.04087): one covariance of all classes, added to the text with a factor."""
    width = text.shape[1]

    def fit(some: Shots, factor: float) -> Head:
        around = some.features - some.means[some.labels]
        spread = around.T @ around / max(len(around) - 1, 1)
        number = len(around) - 1
        inverse = width * np.linalg.pinv(number * spread + np.trace(spread) * np.eye(width))
        held = some.counts > 0
        rows = some.means @ inverse
        bias = np.log(np.maximum(held, 1e-12) / held.sum()) - 0.5 * (rows * some.means).sum(axis=1)
        bias = np.where(held, bias, 0.0)
        return linear(scale * text + factor * rows, factor * bias)

    return fit(shots, choose(shots, np.geomspace(1e-4, 100.0, 7), fit))


def tip_scores(
    affinity: Array, onehot: Array, text_scores: Array, alpha: float, beta: float
) -> Array:
    """Tip-Adapter's scores: the text's, plus alpha times the cache's (affinity (m, n))."""
    return text_scores + alpha * np.exp(-beta * (1 - affinity)) @ onehot


def tip_adapter(shots: Shots, text: Array, scale: float) -> Head:
    """Tip-Adapter (2207.09519), training-free; alpha and beta with the own row left out."""
    affinity = shots.features @ shots.features.T
    np.fill_diagonal(affinity, -np.inf)
    texts, onehot = scale * shots.features @ text.T, shots.onehot
    sizes = np.geomspace(0.1, 50.0, 20)
    alpha, beta = max(
        product(sizes, sizes),
        key=lambda pair: likelihood(tip_scores(affinity, onehot, texts, *pair), shots.labels),
    )
    return lambda features: tip_scores(
        features @ shots.features.T, onehot, scale * features @ text.T, alpha, beta
    )


def own_first(shots: Shots, text: Array) -> Head:
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


def linear_probe(shots: Shots) -> Head:
    """Logistic regression on the held classes (CLIP, appendix A.3): L-BFGS, weight decay chosen."""
    held = np.flatnonzero(shots.counts)
    if len(held) < 2:
        return class_means(shots)

    def fit(some: Shots, strength: float) -> Head:
        left = np.flatnonzero(some.counts)
        if len(left) < 2:
            return class_means(some)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = LogisticRegression(C=strength, max_iter=1000).fit(some.features, some.labels)

        def predict(features: Array) -> Array:
            # A class without shots gets a large but finite loss, the same for every strength.
            scores = np.full((len(features), shots.classes), -50.0)
            told = model.decision_function(features)
            scores[:, left] = np.stack([-told / 2, told / 2], 1) if told.ndim == 1 else told
            return scores

        return predict

    return fit(shots, choose(shots, np.logspace(-2, 6, 9), fit))


def text_probe(shots: Shots, text: Array, scale: float) -> Head:
    """Logistic regression that starts at the text and is held to it; the decay is chosen."""
    start = scale * text

    def fit(some: Shots, decay: float) -> Head:
        features, onehot = some.features, some.onehot

        def loss(flat: Array) -> tuple[float, Array]:
            change = flat.reshape(start.shape)
            scores = features @ (start + change).T
            gradient = (softmax(scores, axis=1) - onehot).T @ features + decay * change
            value = -likelihood(scores, some.labels) + 0.5 * decay * np.square(change).sum()
            return value, gradient.ravel()

        found = minimize(
            *(loss, np.zeros(start.size)), jac=True, method="L-BFGS-B", options={"maxiter": 100}
        )
        return linear(start + found.x.reshape(start.shape))

    return fit(shots, choose(shots, np.logspace(-4, 1, 6), fit))


def lp_plus_steps(features: Array, text: Array) -> tuple[float, float]:
    """LP++'s steps for weights, 4 N / lambda_max(X'X), and factors, N / (4 max_c sum (x t_c)^2)."""
    number = len(features)
    factors = np.square(features @ text.T).sum(axis=0).max()
    return 4 * number / np.linalg.norm(features, 2) ** 2, number / (4 * factors)


def lp_plus(shots: Shots, text: Array, *, steps: int = 300) -> Head:
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
    told = softmax(scale * shots.features @ text.T, axis=1)
    held = shots.counts > 0
    own = (shots.onehot * told).sum(axis=0) / np.maximum(shots.counts, 1)
    pull = torch.tensor(np.where(held, own, own[held].mean()) * held_back)
    anchor, features = torch.tensor(text), torch.tensor(shots.features)
    labels, rows = torch.tensor(shots.labels), torch.tensor(text, requires_grad=True)
    descent = torch.optim.SGD([rows], lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(descent, 300)
    for _ in range(300):
        scores = scale * features @ torch.nn.functional.normalize(rows, dim=1).T
        loss = torch.nn.functional.cross_entropy(scores, labels)
        loss = loss + (pull * (rows - anchor).square().sum(dim=1)).mean()
        descent.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        descent.step()
        schedule.step()
    return linear(scale * unit(rows.detach().numpy()))


# The portfolios.


def arms(shots: Shots, texts: Candidates) -> Iterator[tuple[str, Callable[[], Head]]]:
    """Every arm of a client alone by its name; its head is made when it is called."""
    scale, usual, likely = texts.scale, texts.features[0], fits(shots, texts)
    mean = unit(texts.features[: texts.templates].mean(axis=0))
    template = int(likely[: texts.templates].argmax())
    words = [0, *range(texts.templates, len(likely))]
    word = words[int(likely[words].argmax())]
    found = texts.features[likely.argmax()]
    pairs = matched(shots, texts)
    yield "zero-shot", lambda: linear(scale * usual)
    yield "zero-shot, mean of templates", lambda: linear(scale * mean)
    yield "template search", lambda: linear(scale * texts.features[template])
    yield "word search", lambda: linear(scale * texts.features[word])
    yield "word and template search", lambda: linear(scale * found)
    yield "words and templates averaged", lambda: averaged(shots, texts)
    yield "elimination", lambda: linear(scale * pairs)
    yield "class means", lambda: class_means(shots)
    yield "linear probe", lambda: linear_probe(shots)
    for name, text in {"": usual, ", found text": found, ", elimination": pairs}.items():
        yield f"own means first{name}", lambda text=text: own_first(shots, text)
        yield f"SS-Text{name}", lambda text=text: ss_text(shots, text, scale)
        yield (
            f"SS-Text, equal{name}",
            lambda text=text: ss_text(shots, text, scale, by_share=False),
        )
        yield f"shrunk means{name}", lambda text=text: shrunk_means(shots, text, scale)
        yield f"text ridge{name}", lambda text=text: text_ridge(shots, text)
        yield (
            f"text ridge, scaled{name}",
            lambda text=text: text_ridge(shots, text - text.mean(0), factors=(0.5, 1, 2, 4, 8)),
        )
        yield f"CLIP-GDA{name}", lambda text=text: gda(shots, text, scale)
        yield f"Tip-Adapter{name}", lambda text=text: tip_adapter(shots, text, scale)
        yield f"LP++{name}", lambda text=text: lp_plus(shots, text)
        yield f"CLAP{name}", lambda text=text: clap(shots, text, scale)
        yield f"ZS-LP{name}", lambda text=text: clap(shots, text, scale, held_back=False)
        yield f"probe to text{name}", lambda text=text: text_probe(shots, text, scale)


def pooled(shots: Shots, texts: Candidates) -> Mapping[str, Head]:
    """Heads on all clients' images together, without any privacy: the ceiling, by name."""
    return {
        "pooled nearest mean": class_means(shots),
        "pooled ridge": text_ridge(shots, np.zeros_like(texts.features[0])),
        "pooled text ridge": text_ridge(shots, texts.features[0]),
        "pooled linear probe": linear_probe(shots),
    }


def accuracy(scores: Array, labels: NDArray[Any]) -> float:
    """Share of images whose greatest score is the right class's."""
    return float((scores.argmax(axis=1) == labels).mean())

"""The data sets without files: `shapes`, `homonyms`, `digits`, `headlines` and `held_by_clients`.

`digits` holds the 1,797 scans of handwritten digits, 8x8 pixels, that scikit-learn ships (UCI
Machine Learning Repository, "Optical Recognition of Handwritten Digits", test part), enlarged to
the size that the tiny CLIP takes. They are real data on a machine without a network, and much
harder than `shapes` for a model that was trained without digits.

`headlines` holds short news texts of four topics, made from a seed. It stands in for AG News
(Zhang, Zhao and LeCun, 2015) where there are no files: the same four topics, and of each example a
title and a description, which the text joins with a space. All topics share the templates of the
sentences and differ in the nouns: most nouns belong to the topic, some to another topic, some to
no topic. A classifier that counts words is therefore good and not perfect. Each topic of training
texts and of test texts has its own stream of random numbers: a larger number of texts in one stream
changes no other stream, and leaves its own first texts as they are.

`held_by_clients` stands for the images in each client's own folder in a federation. Only the client
reads its folder; the coordinator knows the public list of classes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from methods.errors import unknown
from platform.config.rules import HELD
from platform.data.catalogue import BY_CLIENT, DataRequest, DatasetInfo
from platform.data.dataset import Dataset, Indices, Split
from platform.data.homonyms import BY_STYLE, SENSE_OF_STYLE, SENSES, homonyms_dataset
from platform.data.homonyms import CLASSES as NAMES
from platform.data.shapes import CLASSES as SHAPES
from platform.data.shapes import DOMAINS as STYLES
from platform.data.shapes import Part, shapes_dataset
from platform.errors import ConfigError

DIGITS: Final = (
    *("zero", "one", "two", "three", "four"),
    *("five", "six", "seven", "eight", "nine"),
)
SCANS: Final = ("scan",)

_TEST_PART: Final = 0.25
# The scans count the ink of 4x4 blocks of a bitmap: 0 to 16.
_FULL_INK: Final = 16


def scans() -> tuple[NDArray[np.uint8], Indices]:
    """Return scikit-learn's scans, (1797, 8, 8), and their labels."""
    # Imported late: scikit-learn takes longer to import than everything else here.
    from sklearn.datasets import load_digits

    found = load_digits()
    grey = np.round(np.asarray(found.images) * (255 / _FULL_INK)).astype(np.uint8)
    return grey, np.asarray(found.target, dtype=np.int64)


def enlarged(grey: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return square images (n, S, S) as (n, side, side)."""
    bicubic = Image.Resampling.BICUBIC
    large = (Image.fromarray(image).resize((side, side), bicubic) for image in grey)
    return np.stack([np.asarray(image) for image in large])


def digits_dataset(seed: int, image_size: int = 32) -> Dataset:
    """Load the digits in their file's order; the seed draws a quarter of each class for testing."""
    grey, labels = scans()
    images = np.repeat(enlarged(grey, image_size)[..., None], 3, axis=-1)
    rng, is_test = np.random.default_rng(seed), np.zeros(len(labels), dtype=np.bool_)
    for label in range(len(DIGITS)):
        rows = np.flatnonzero(labels == label)
        is_test[rng.permutation(rows)[: round(_TEST_PART * len(rows))]] = True
    every = Split(images, labels, np.zeros_like(labels))
    train, test = (every.only(np.flatnonzero(rows)) for rows in (~is_test, is_test))
    return Dataset(name="digits", classes=DIGITS, domains=SCANS, train=train, test=test)


TOPICS: Final = ("World", "Sports", "Business", "Sci/Tech")
PAPERS: Final = ("news",)

OWN_SHARE: Final = 0.55
"""Share of the nouns that are the topic's own."""
OTHER_SHARE: Final = 0.2
"""Share of the nouns that belong to another topic; the rest belongs to no topic."""

_NOUNS: Final[Mapping[str, tuple[str, ...]]] = {
    "World": (
        *("minister", "border", "embassy", "treaty", "parliament", "election", "president"),
        *("ceasefire", "capital", "province", "refugees", "summit", "envoy", "rebels", "army"),
        *("peace talks", "flood relief", "coalition", "premier", "referendum", "monarchy"),
        *("diplomats", "harbour city", "village", "aid convoy", "council", "protest", "island"),
        *("delegation", "cabinet", "voters", "observers", "opposition", "sanctions"),
    ),
    "Sports": (
        *("striker", "coach", "season", "final", "tournament", "goal", "league", "stadium"),
        *("sprinter", "marathon", "medal", "referee", "pitcher", "home run", "innings"),
        *("penalty", "quarterback", "playoffs", "champion", "relay", "serve", "racket", "rookie"),
        *("midfielder", "overtime", "title race", "swimmer", "jersey", "captain", "fans"),
        *("match", "defence", "bench", "trophy"),
    ),
    "Business": (
        *("shares", "profit", "merger", "quarter", "bank", "investors", "earnings", "retailer"),
        *("interest rate", "bonds", "oil price", "factory", "exports", "chief executive", "debt"),
        *("dividend", "takeover", "airline", "jobs", "payroll", "currency", "budget", "sales"),
        *("forecast", "insurer", "warehouse", "lender", "stock market", "inflation", "revenue"),
        *("contract", "brand", "supplier", "bid"),
    ),
    "Sci/Tech": (
        *("software", "satellite", "browser", "chip", "laboratory", "researchers", "telescope"),
        *("network", "server", "virus patch", "genome", "robot", "spacecraft", "download"),
        *("operating system", "search engine", "laptop", "battery", "orbit", "fossil", "sensor"),
        *("password", "code", "wireless", "database", "cell study", "comet", "handset", "launch"),
        *("screen", "users", "processor", "website", "experiment"),
    ),
}
_PLAIN_NOUNS: Final = (
    *("plan", "group", "report", "decision", "week", "crowd", "team", "question", "change"),
    *("meeting", "road", "door", "letter", "morning", "story", "record", "project", "family"),
    *("result", "deal", "problem", "house", "list", "offer", "picture", "step", "visit", "word"),
)
_VERBS: Final = (
    *("backs", "delays", "faces", "follows", "helps", "hits", "joins", "leads", "loses", "meets"),
    *("needs", "opens", "passes", "praises", "questions", "shakes", "slows", "tops", "wins"),
)
_QUALITIES: Final = (
    *("big", "brief", "careful", "final-day", "fresh", "late", "long", "new", "quiet", "rare"),
    *("second", "sharp", "small", "strong", "sudden", "surprise", "third"),
)
_PLACES: Final = (
    *("ASHFORD", "BRIDGETON", "EAST HAVEN", "GREENVALE", "LAKEMOUTH", "MILLBROOK", "NORTHPORT"),
    *("OAKRIDGE", "RIVERTON", "SOUTHGATE", "STONEFIELD", "WESTBURY"),
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_TITLES: Final = (
    "{noun} {verb} {noun}",
    "{quality} {noun} {verb} {noun} after {noun}",
    "{noun} and {noun}: a {quality} {noun}",
    "{noun} {verb} {quality} {noun}, {noun} waits",
    "Why the {noun} {verb} the {noun}",
)
_OPENINGS: Final = (
    "{place} - The {noun} {verb} a {quality} {noun} on {day}, and the {noun} {verb} the {noun}.",
    "{place} - A {quality} {noun} that {verb} the {noun} is {number} days old, the {noun} said.",
    "This {noun} {verb} the {quality} {noun} for the {number}th time since {day}, said one {noun}.",
    '"The {noun} {verb} every {noun}," said the {noun} in {place} on {day}.',
)
_ENDINGS: Final = (
    "The {noun}, with {number} others, {verb} the {quality} {noun}.",
    "It is a {quality} {noun} for the {noun} that {verb} the {noun}.",
    "Near {place} the {noun} {verb} one {noun}; {number} of them came by {day}.",
)


@dataclass(frozen=True)
class Headline:
    """One example, with the columns of AG News."""

    title: str
    description: str

    @property
    def text(self) -> str:
        """Both, with a space between them."""
        return f"{self.title} {self.description}"


def headlines(seed: int, train_per_class: int, test_per_class: int) -> tuple[list[Headline], ...]:
    """Make training and test examples, both ordered by topic; the numbers are of each topic."""
    sides: dict[Part, list[Headline]] = {Part.TRAIN: [], Part.TEST: []}
    counts = {Part.TRAIN: train_per_class, Part.TEST: test_per_class}
    for (part, made), label in itertools.product(sides.items(), range(len(TOPICS))):
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(part), label)))
        for _ in range(counts[part]):
            title, opening, ending = (
                _filled(rng, _one_of(rng, of), label) for of in (_TITLES, _OPENINGS, _ENDINGS)
            )
            made.append(Headline(title[:1].upper() + title[1:], f"{opening} {ending}"))
    return tuple(sides.values())


def headlines_dataset(seed: int, train_per_class: int, test_per_class: int) -> Dataset:
    """Return `headlines` of the same arguments as a data set."""
    train, test = headlines(seed, train_per_class, test_per_class)
    return Dataset(
        name="headlines", classes=TOPICS, domains=PAPERS, train=_texts(train), test=_texts(test)
    )


def _texts(examples: Sequence[Headline]) -> Split:
    labels = np.repeat(np.arange(len(TOPICS)), len(examples) // len(TOPICS)).astype(np.int64)
    none = np.zeros((0, 0, 0, 3), np.uint8)
    return Split(none, labels, np.zeros_like(labels), tuple(one.text for one in examples))


def _filled(rng: np.random.Generator, template: str, label: int) -> str:
    """Return a template with a random word in each of its places."""
    words = {"verb": _VERBS, "quality": _QUALITIES, "place": _PLACES, "day": _DAYS}
    pieces = template.split("{")
    made = pieces[0]
    for piece in pieces[1:]:
        slot, _, rest = piece.partition("}")
        if slot == "number":
            made += str(rng.integers(4, 20)) + rest
            continue
        chosen: Sequence[str] = words.get(slot, _PLAIN_NOUNS)
        if slot == "noun":
            draw = rng.random()
            if draw < OWN_SHARE:
                chosen = _NOUNS[TOPICS[label]]
            elif draw < OWN_SHARE + OTHER_SHARE:
                others = [name for name in TOPICS if name != TOPICS[label]]
                chosen = _NOUNS[_one_of(rng, others)]
        made += _one_of(rng, chosen) + rest
    return made


def _one_of(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]


INFOS = (
    DatasetInfo(
        name="shapes",
        title="Twenty shapes in six drawing styles, rendered from the seed",
        classes=SHAPES,
        domains=STYLES,
        source="rendered",
    ),
    DatasetInfo(
        name="homonyms",
        title="One word solves it, so it shows no gain of sharing: shapes under other names",
        classes=NAMES,
        domains=STYLES,
        source="rendered",
        senses=SENSES,
    ),
    DatasetInfo(
        name="digits",
        title="1,797 scanned handwritten digits (UCI, as bundled with scikit-learn)",
        classes=DIGITS,
        domains=SCANS,
        source="scikit-learn",
    ),
    DatasetInfo(
        name="headlines",
        title="Short news texts of AG News' four topics, made from the seed",
        classes=TOPICS,
        domains=PAPERS,
        source="generated",
        modality="texts",
    ),
    DatasetInfo(
        name=HELD,
        title="What each client of a federation has in its own folder",
        classes=(),
        domains=(),
        source="the clients' folders",
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Render `shapes` or `homonyms`, split `digits`, or write `headlines`."""
    if name == HELD:
        raise ConfigError(
            f"task.dataset: {name} is read by each client in its own folder only; "
            "valid here: a simulation's data set, such as client_folders"
        )
    draws = request.draws
    known = {info.name: info.domains for info in INFOS}[name]
    domains = request.chosen_domains(name, known)
    if name == "digits":
        return digits_dataset(request.split_seed)
    if name == "headlines":
        return headlines_dataset(draws.seed, draws.train_per_class, draws.test_per_class)
    train, test = (
        math.ceil(count / len(domains)) for count in (draws.train_per_class, draws.test_per_class)
    )
    if name == "homonyms":
        dealt = request.senses
        if dealt == BY_STYLE:
            senses = (np.array([[SENSES.index(SENSE_OF_STYLE[name])] for name in domains]),) * 2
        elif isinstance(dealt, tuple):
            # Of rows, which are ordered by style.
            senses = (dealt[0].reshape(len(domains), -1), dealt[1].reshape(len(domains), -1))
        else:
            # Where clients have senses, rows get their sense after the partition.
            one = SENSES[0] if dealt in (None, BY_CLIENT) else dealt
            if one not in SENSES:
                raise ConfigError(unknown("task.senses", one, (BY_STYLE, BY_CLIENT, *SENSES)))
            senses = (np.full((len(domains), 1), SENSES.index(one)),) * 2
        return homonyms_dataset(
            draws.seed, train, test, senses=senses, domains=domains, stream=draws.stream
        )
    return shapes_dataset(draws.seed, train, test, domains=domains, stream=draws.stream)

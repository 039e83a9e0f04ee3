"""The data set `headlines`: short news texts of four topics, from a seed and nothing else.

It stands in for AG News (Zhang, Zhao and LeCun, 2015) where there are no files: the same four
topics, and of each example a title and a description, which the text joins with a space. All
sentences are made from templates that the topics have in common. What tells a topic is which nouns
stand in them: most are its own, some another topic's, some nobody's; so a classifier that counts
words is good and not perfect.

Training and test texts, and the topics, have streams of random numbers of their own: more texts of
one never change those of another, and the first ones of many are those of few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from platform.data.dataset import Dataset, Split

CLASSES: Final = ("World", "Sports", "Business", "Sci/Tech")
DOMAINS: Final = ("news",)

OWN_SHARE: Final = 0.55
"""Share of the nouns that are the topic's own."""
OTHER_SHARE: Final = 0.2
"""Share of the nouns that are another topic's; the rest is nobody's."""

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


class _Part(IntEnum):
    """Whose texts; the number is a spawn key and must never change."""

    TRAIN = 1
    TEST = 2


@dataclass(frozen=True)
class Headline:
    """One example, as AG News has it in its columns."""

    title: str
    description: str

    @property
    def text(self) -> str:
        """Both, with a space between them."""
        return f"{self.title} {self.description}"


def headlines(seed: int, train_per_class: int, test_per_class: int) -> tuple[list[Headline], ...]:
    """Make training and test examples.

    Args:
        seed: Seed of all texts, not negative.
        train_per_class: Number of training examples of each topic.
        test_per_class: Number of test examples of each topic.

    Returns:
        Training and test examples, both ordered by topic.
    """
    sides = ((_Part.TRAIN, train_per_class), (_Part.TEST, test_per_class))
    return tuple(
        [one for label in range(len(CLASSES)) for one in _written(seed, part, label, count)]
        for part, count in sides
    )


def headlines_dataset(seed: int, train_per_class: int, test_per_class: int) -> Dataset:
    """Return the same as a data set; the arguments are those of `headlines`."""
    train, test = headlines(seed, train_per_class, test_per_class)
    return Dataset(
        name="headlines", classes=CLASSES, domains=DOMAINS, train=_split(train), test=_split(test)
    )


def _split(examples: Sequence[Headline]) -> Split:
    labels = np.repeat(np.arange(len(CLASSES)), len(examples) // len(CLASSES)).astype(np.int64)
    none = np.zeros((0, 0, 0, 3), np.uint8)
    return Split(none, labels, np.zeros_like(labels), tuple(one.text for one in examples))


def _written(seed: int, part: _Part, label: int, count: int) -> Iterator[Headline]:
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(part), label)))
    for _ in range(count):
        title = _filled(rng, _one_of(rng, _TITLES), label)
        opening, ending = (_filled(rng, _one_of(rng, of), label) for of in (_OPENINGS, _ENDINGS))
        yield Headline(title[:1].upper() + title[1:], f"{opening} {ending}")


def _filled(rng: np.random.Generator, template: str, label: int) -> str:
    """Return a template with a draw of its own in each of its places."""
    pieces = template.split("{")
    made = pieces[0]
    for piece in pieces[1:]:
        slot, _, rest = piece.partition("}")
        made += _word(rng, slot, label) + rest
    return made


def _word(rng: np.random.Generator, slot: str, label: int) -> str:
    match slot:
        case "noun":
            return _one_of(rng, _nouns(rng, label))
        case "number":
            return str(rng.integers(4, 20))
        case _:
            words = {"verb": _VERBS, "quality": _QUALITIES, "place": _PLACES, "day": _DAYS}
            return _one_of(rng, words[slot])


def _nouns(rng: np.random.Generator, label: int) -> Sequence[str]:
    """Return whose noun comes next."""
    draw = rng.random()
    if draw < OWN_SHARE:
        return _NOUNS[CLASSES[label]]
    if draw >= OWN_SHARE + OTHER_SHARE:
        return _PLAIN_NOUNS
    others = [name for name in CLASSES if name != CLASSES[label]]
    return _NOUNS[_one_of(rng, others)]


def _one_of(rng: np.random.Generator, words: Sequence[str]) -> str:
    return words[int(rng.integers(len(words)))]

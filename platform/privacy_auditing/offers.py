"""The game behind offers: does anything but settings decide how a data holder answers them?

An offer costs a coordinator nothing: no round is held and no row is charged. So a hostile one
offers run after run, each with another value of a key that a split, a draw or a list could depend
on, to holders with the same settings and folders of their own. Accepted or declined, each answer
must be the same bytes whatever lies in the folder, and also where nothing does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from platform.privacy_auditing.outcome import Game
from platform.wire.codec import Envelope
from platform.wire.outside_rounds import Offer, decode_acceptance, encode_offer
from platform.wire.transport import Dropout, Handler, answer

OFFERS: Final = "offers"
SHARES: Final = (0.001, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
"""Shares for validation, from less than one image of nearly any class to nearly all of it."""
COUNTS: Final = (1, 2, 3, 4, 8, 16, 64, 256)
MakeHost = Callable[[Path], Handler]
"""Makes what answers for a data holder whose images lie in a folder, with a store of its own."""


@dataclass(frozen=True, kw_only=True)
class OfferAudit(Game):
    """What the game gave.

    Attributes:
        offers: How many offers each holder was made.
        accepted: How many of them at least one holder accepted.
        split: How many of them were not answered by all holders alike.
    """

    channel = OFFERS
    words = (
        "{offers} offers to holders of other folders, {accepted} accepted; {split} not answered by "
        "all alike"
    )
    offers: int
    accepted: int
    split: int


def hostile_offers(offer: Offer) -> dict[str, Offer]:
    """Return the offers of a coordinator that wants to know what lies in a folder, by what is new.

    Args:
        offer: One that a holder could accept; each of the others differs from it in one key, and in
            the name of the run.
    """
    offers = {}
    for number, (path, value) in enumerate(_changes(json.loads(offer.config))):
        tree = json.loads(offer.config)
        section, key = path.split(".")
        tree[section][key] = value
        run_id = f"{offer.envelope.run_id}-{number}"
        config = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
        offers[f"{path} = {value}"] = replace(offer, envelope=Envelope(run_id, 0, 0), config=config)
    return offers


def _changes(tree: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for share in SHARES:
        yield "task.validation_share", share
    for key in ("task.shots", "task.test_per_class", "secure_aggregation.largest_weight"):
        for count in COUNTS:
            yield key, count
    classes = tree["federation"]["classes"]
    yield "federation.classes", classes[::-1]
    yield "federation.classes", ["a class that nobody has an image of"]
    for name in classes:
        yield "federation.classes", [name]
        yield "federation.classes", [other for other in classes if other != name] or [f"no {name}"]


def audit_offers(
    make_host: MakeHost, folders: Mapping[str, Path], offers: Mapping[str, Offer]
) -> OfferAudit:
    """Make every offer to a holder of each folder and compare what they say.

    Args:
        make_host: Makes what answers for a holder; its settings are the same for all folders.
        folders: Folders of images by what lies in them, at least two; one need not be there.
        offers: By what each is about, as `hostile_offers` returns them.
    """
    said: dict[str, list[bytes | str]] = {}
    for name, folder in folders.items():
        host = make_host(folder)
        said[name] = [_answer(host, encode_offer(offer)) for offer in offers.values()]
    reasons, accepted = [], 0
    for about, *answers in zip(offers, *said.values(), strict=True):
        accepted += any(_is_accepted(one) for one in answers)
        if len(set(answers)) > 1:
            others = [name for name, one in zip(said, answers, strict=True) if one != answers[0]]
            reasons.append(f"{about}: {_listed(others)} is not answered as {next(iter(said))!r} is")
    return OfferAudit(
        offers=len(offers), accepted=accepted, split=len(reasons), reasons=tuple(reasons)
    )


def _answer(host: Handler, message: bytes) -> bytes | str:
    """Return what a coordinator gets to see: an answer, or why there is none."""
    try:
        said = answer(host, message)
    # Whatever it is, the coordinator sees that there is no answer.
    except Exception as error:
        return type(error).__name__
    return said.reason if isinstance(said, Dropout) else said


def _is_accepted(said: bytes | str) -> bool:
    return isinstance(said, bytes) and not decode_acceptance(said).reasons


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))

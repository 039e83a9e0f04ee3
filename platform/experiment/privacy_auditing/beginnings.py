"""The games that begin before there are examples: with offers, and with clients' folders.

**Offers.** An offer costs a coordinator nothing: it needs no round and no charged row. A hostile
coordinator makes many offers to holders with the same settings but different folders. Each offer
changes one key that a split, a draw or a list could depend on. Each answer must be the same bytes
for all contents of the folder, and also without a folder.

**Folders.** The game writes the folders of two clients, reads and encodes them by the run's own
settings, and trains on them. Each client answers the first broadcast, with noise from a seed. Then
the game replaces the content of one client's folder. The other client must send the same numbers,
and everything without noise must look the same for the changed client. If records are the unit, the
game also adds, removes or replaces one image; the set of all other training images must stay the
same.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from platform.config import RunConfig, parse_config
from platform.config.randomness import stream
from platform.config.sections import PartitionConfig
from platform.data.loading import load_task_data
from platform.data.preparing import frozen_model, plain_encoders
from platform.experiment.dealing import Records, deal_examples, differing, records_of
from platform.experiment.federating import offered, plan_federation
from platform.experiment.joining import host_of
from platform.experiment.planning import Surroundings
from platform.experiment.privacy_auditing.hostile_rounds import (
    FailureGame,
    Seen,
    first_message,
    play,
)
from platform.experiment.privacy_auditing.outcome import Game
from platform.holder.settings import load_holder
from platform.wire.codec import Envelope
from platform.wire.outside_rounds import Offer, decode_acceptance, encode_offer
from platform.wire.transport import Dropout, Handler, answer

OFFERS: Final = "offers"
SHARES: Final = (0.001, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
"""Shares for validation, from less than one image of most classes to nearly all images."""
COUNTS: Final = (1, 2, 3, 4, 8, 16, 64, 256)
MakeHost = Callable[[Path], Handler]
"""Makes the handler of a data holder for a folder of images, with a store of its own."""


@dataclass(frozen=True, kw_only=True)
class OfferAudit(Game):
    """The outcome of the game with offers, accepted or answered differently.

    Attributes:
        offers: Number of offers to each holder.
        accepted: Number of offers that at least one holder accepted.
        split: Number of offers that the holders answered differently.
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
    """Return offers that ask for a folder's content, by the changed key.

    Each differs from the acceptable offer in one key, and in the run's name.
    """
    counted = ("task.shots", "task.test_per_class", "secure_aggregation.largest_weight")
    classes = json.loads(offer.config)["federation"]["classes"]
    changes: list[tuple[str, Any]] = [("task.validation_share", share) for share in SHARES]
    changes += [(key, count) for key in counted for count in COUNTS]
    lists = [classes[::-1], ["a class that nobody has an image of"]]
    for name in classes:
        lists += [[name], [other for other in classes if other != name] or [f"no {name}"]]
    changes += [("federation.classes", names) for names in lists]
    offers = {}
    for number, (path, value) in enumerate(changes):
        tree = json.loads(offer.config)
        section, key = path.split(".")
        tree[section][key] = value
        run_id = f"{offer.envelope.run_id}-{number}"
        config = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
        offers[f"{path} = {value}"] = replace(offer, envelope=Envelope(run_id, 0, 0), config=config)
    return offers


def audit_offers(
    make_host: MakeHost, folders: Mapping[str, Path], offers: Mapping[str, Offer]
) -> OfferAudit:
    """Make every offer to a holder of each folder and compare the answers.

    There are at least two folders of images, by their content; a folder may be missing.
    """
    said: dict[str, list[bytes | str]] = {}
    for name, folder in folders.items():
        host = make_host(folder)
        said[name] = [_answer(host, encode_offer(offer)) for offer in offers.values()]
    reasons, accepted = [], 0
    for about, *answers in zip(offers, *said.values(), strict=True):
        accepted += any(
            isinstance(one, bytes) and not decode_acceptance(one).reasons for one in answers
        )
        if len(set(answers)) > 1:
            others = [name for name, one in zip(said, answers, strict=True) if one != answers[0]]
            listed = ", ".join(map(repr, others))
            reasons.append(f"{about}: {listed} is not answered as {next(iter(said))!r} is")
    return OfferAudit(
        offers=len(offers), accepted=accepted, split=len(reasons), reasons=tuple(reasons)
    )


def _answer(host: Handler, message: bytes) -> bytes | str:
    """Return the answer that a coordinator sees, or the reason for a missing answer."""
    try:
        said = answer(host, message)
    # After any error the coordinator sees that there is no answer.
    except Exception as error:
        return type(error).__name__
    return said.reason if isinstance(said, Dropout) else said


FOLDERS: Final = "folders"
CLIENTS: Final = ("changed", "other")
EACH, SHOWN, SIDE = 6, 3, 8
"""Number of images in a class, of classes with images, and of pixels along an image's side."""
Content = Mapping[int, range]
"""Numbers of a folder's images, by their label."""


@dataclass(frozen=True, kw_only=True)
class FolderAudit(Game):
    """The outcome of the game with folders, and how often it replaced one client's folder."""

    channel = FOLDERS
    words = "other content took the place of one client's folder {folders} times"
    mechanism: str
    folders: int


_Played = tuple[Mapping[str, Records], tuple[Seen, ...]]
"""The records of two clients with their sides, and the view of each client's round."""


def audit_folders(game: FailureGame) -> FolderAudit:
    """Write, read and train on every folder; a method of texts has no folder."""
    config, reasons, count = game.run.terms.config, [], 0
    contents = {} if "text" in game.profile.method.needs else _contents(game)
    with tempfile.TemporaryDirectory(prefix="sotto-audit-") as place:
        before = None
        for name, (content, changes) in contents.items():
            now = _play(game, Path(place), content)
            before = before or now
            count += now is not before
            reasons += [f"{name}: {problem}" for problem in _problems(before, now, changes)]
    return FolderAudit(mechanism=config.privacy.mechanism, folders=count, reasons=tuple(reasons))


def _contents(game: FailureGame) -> dict[str, tuple[Content, int | None]]:
    """Return the first folder and its replacements, with the number of changed records."""
    first = {label: range(EACH) for label in range(min(SHOWN, len(game.run.learning.classes)))}
    found: dict[str, tuple[Content, int | None]] = {
        "the first folder": (first, 0),
        "a third of the images": ({label: range(0, EACH, 3) for label in first}, None),
        "thrice the images": ({label: range(3 * EACH) for label in first}, None),
        "images of one class": ({0: range(2 * EACH)}, None),
        "other images": ({label: range(100, 100 + EACH) for label in first}, None),
    }
    if game.run.terms.protection.training is not None:
        found |= {
            "an image more": ({**first, 0: range(EACH + 1)}, 1),
            "an image less": ({**first, 0: range(EACH - 1)}, 1),
            "an image for another": ({**first, 0: range(1, EACH + 1)}, 2),
        }
    return found


def _play(game: FailureGame, place: Path, content: Content) -> _Played:
    """Play with this folder for the first client; the second folder is always the same."""
    learning, whole = game.run.learning, {label: range(EACH) for label in range(SHOWN)}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root, names = Path(folder) / "images", Path(folder) / "names.txt"
        names.write_text("".join(f"c{n} {name}\n" for n, name in enumerate(learning.classes)))
        for number, (client, images) in enumerate(zip(CLIENTS, (content, whole), strict=True)):
            _write(root / client, images, len(learning.classes), seed=number)
        config = _reading(game, root, names)
        data, method = load_task_data(config), game.profile.method
        backbone = frozen_model(config.task.model, learning.device, config.plugins)
        encoders = plain_encoders(backbone, method.pixel_size)
        train, _ = deal_examples(data, method, encoders, config.evaluation.protocol)
        # Noise and batches depend on a client's position alone.
        randomness = replace(game.profile.randomness, noise_source="seeded")
        seeded = replace(game, profile=replace(game.profile, randomness=randomness))
        number, told = first_message(seeded)
        seen = [
            play(seeded, told, examples, number, streams=position)
            for position, examples in enumerate(train.values())
        ]
        return records_of(config, data), tuple(seen)


def _write(folder: Path, content: Content, classes: int, seed: int) -> None:
    for label in range(classes):
        (folder / f"c{label}").mkdir(parents=True)
    for label, numbers in content.items():
        for number in numbers:
            rng = stream(seed, "audit's images", label, number)
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"c{label}" / f"{number}.png")


def _reading(game: FailureGame, root: Path, names: Path) -> RunConfig:
    """Return the run's configuration for two clients with folders of their own."""
    config = game.run.terms.config
    is_by_record = game.run.terms.protection.training is not None
    folders = {
        **{"dataset": "client_folders", "root": str(root), "class_names": str(names)},
        **{"layout": None, "senses": None, "held_out_domain": None},
        **{"clients": len(CLIENTS), "new_clients": 0, "domains": CLIENTS},
        "partition": PartitionConfig(kind="domain"),
        # If records are the unit, a number of shots is refused: one record displaces another.
        "shots": None if is_by_record else config.task.shots,
    }
    task = config.task.model_copy(update=folders)
    evaluation = config.evaluation.model_copy(update={"protocol": "client_mean"})
    return config.model_copy(update={"task": task, "evaluation": evaluation})


def _problems(before: _Played, now: _Played, changes: int | None) -> Iterator[str]:
    """Yield a sentence for each observation that wrongly depends on a folder."""
    (records, (own, other)), (records_now, (own_now, other_now)) = before, now
    moved = differing(records, records_now)
    if moved.keys() - {CLIENTS[0]}:
        yield "another client has other records"
    if changes is not None and moved.get(CLIENTS[0], Records()).total() != changes:
        yield "the side of another image changes"
    if own.facts != own_now.facts or other.facts != other_now.facts:
        yield "clients differ in visible data without noise"
    if not np.array_equal(_numbers(other), _numbers(other_now)):
        yield "another client sends other numbers"


def _numbers(seen: Seen) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.zeros(0) if seen.vector is None else seen.vector


# --- offers --------------------------------------------------------------------------------------

_CLASSES = ("circle", "square", "star")
_FEDERATION: Final[Mapping[str, Any]] = {
    "name": "audit",
    "device": "cpu",
    "federation": {"clients": ["a", "b", "c"], "classes": list(_CLASSES)},
    "task": {"dataset": "held_by_clients", "clients": 3},
    "method": {"name": "promptfl", "context_tokens": 2},
    "training": {"local_steps": 1, "batch_size": 4, "learning_rate": 0.05},
    "privacy": {"mechanism": "upload_noise", "clipping_norm": 0.1, "noise_multiplier": 4.0},
    "secure_aggregation": {"enabled": False},
    "evaluation": {"local_twins": False, "worth_of_sharing": False},
}
_LIMITS: Final = {"epsilon_total": None, "epsilon_per_run": None, "smallest_sum": 1}


def audit_holders(surroundings: Surroundings) -> OfferAudit:
    """Make every offer of a hostile coordinator to data holders with different folders."""
    config = parse_config(_FEDERATION, sources=surroundings.sources)
    facts = plan_federation(config, surroundings)[1]
    offers = hostile_offers(Offer(Envelope("audit", 0, 0), offered(config), facts))
    with tempfile.TemporaryDirectory(prefix="sotto-audit-") as place:
        folders = {
            "a few images of each class": _held(Path(place) / "few", [4] * 3),
            "many of one class": _held(Path(place) / "many", [0, 0, 40]),
            "no image": _held(Path(place) / "none", [0] * 3),
            "no folder": Path(place) / "nowhere",
        }

        def host(folder: Path) -> Handler:
            own = Path(tempfile.mkdtemp(dir=place))
            settings = {
                **{"name": "a", "data": {"root": str(folder)}, "storage": str(own / "store")},
                **{"device": "cpu", "limits": _LIMITS},
            }
            (own / "client.yaml").write_text(json.dumps(settings))
            holder = load_holder(own / "client.yaml")
            return host_of(holder, surroundings, lambda line: None).handle

        return audit_offers(host, folders, offers)


def _held(root: Path, counts: list[int]) -> Path:
    content = {label: range(count) for label, count in enumerate(counts)}
    _write(root, content, len(counts), seed=0)
    for label, name in enumerate(_CLASSES):
        (root / f"c{label}").rename(root / name)
    return root

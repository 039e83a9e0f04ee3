"""The games that begin before there are examples: at clients' folders on a disk, and at offers.

The other games begin at a client's examples. Here the folders of two clients are drawn and written,
read by the run's own settings of a task, encoded and trained on, and each client answers the first
broadcast as ever, its noise from a seed. Then other content takes the place of one client's folder.
The other client must send the very same numbers, and of the one all that is not noised must look
the same. Where records are the unit an image is added, taken away or replaced besides, and no other
image may come to be trained on, or cease to be.

A data holder decides on offers before any round: see `platform.privacy_auditing.offers`.
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

from methods import Examples
from platform.bootstrap import Surroundings
from platform.bootstrap.federating import offered, plan_federation
from platform.bootstrap.joining import host_of
from platform.config import RunConfig, parse_config
from platform.config.randomness import stream
from platform.config.sections import PartitionConfig
from platform.data.loading import load_task_data
from platform.data.preparing import frozen_model, plain_encoders
from platform.experiment.dealing import Records, deal_examples, differing, records_of
from platform.holder.settings import load_holder
from platform.privacy_auditing.failures import FailureGame, Seen, first_message, play
from platform.privacy_auditing.offers import OfferAudit, audit_offers, hostile_offers
from platform.privacy_auditing.outcome import Game
from platform.wire.codec import Envelope
from platform.wire.outside_rounds import Offer
from platform.wire.transport import Handler

FOLDERS: Final = "folders"
CLIENTS: Final = ("changed", "other")
EACH, SHOWN, SIDE = 6, 3, 8
"""Images of each class, classes that have any, and pixels of an image's side."""
Content = Mapping[int, range]
"""Numbers of a folder's images, by their label."""


@dataclass(frozen=True, kw_only=True)
class FolderAudit(Game):
    """What the game with folders gave.

    Attributes:
        mechanism: What protects the clients.
        folders: How often other content took the place of one client's folder.
    """

    channel = FOLDERS
    words = "other content took the place of one client's folder {folders} times"
    mechanism: str
    folders: int


@dataclass(frozen=True)
class _Played:
    """What came of two clients' folders.

    Attributes:
        records: What each client holds, and on which side.
        seen: What is seen of each client.
    """

    records: Mapping[str, Records]
    seen: tuple[Seen, ...]


def audit_folders(game: FailureGame) -> FolderAudit:
    """Write, read and train on every folder; a method of texts looks at none.

    Args:
        game: The run; its client's data play no part.
    """
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
    """Return the first folder and others in its place, with how many records that changes."""
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
    """Return what comes of a folder of the first client; the other's is always the same."""
    learning, whole = game.run.learning, {label: range(EACH) for label in range(SHOWN)}
    with tempfile.TemporaryDirectory(dir=place) as folder:
        root, names = Path(folder) / "images", Path(folder) / "names.txt"
        names.write_text("".join(f"c{n} {name}\n" for n, name in enumerate(learning.classes)))
        for number, (client, images) in enumerate(zip(CLIENTS, (content, whole), strict=True)):
            _write(root / client, images, len(learning.classes), seed=number)
        config = _reading(game, root, names)
        data, method = load_task_data(config), game.profile.method
        backbone = frozen_model(config.task.model, learning.device)
        encoders = plain_encoders(backbone, method.pixel_size)
        train, _ = deal_examples(data, method, encoders, config.evaluation.protocol)
        return _Played(records_of(config, data), tuple(_sent(game, tuple(train.values()))))


def _sent(game: FailureGame, data: tuple[Examples, ...]) -> Iterator[Seen]:
    """Yield what is seen of each client, its noise and its batches by its place alone."""
    randomness = replace(game.profile.randomness, noise_source="seeded")
    seeded = replace(game, profile=replace(game.profile, randomness=randomness))
    number, told = first_message(seeded)
    for position, examples in enumerate(data):
        yield play(seeded, told, examples, number, streams=position)


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
        # A fixed number of shots is refused where each record is a unit, as one displaces another.
        "shots": None if is_by_record else config.task.shots,
    }
    task = config.task.model_copy(update=folders)
    evaluation = config.evaluation.model_copy(update={"protocol": "client_mean"})
    return config.model_copy(update={"task": task, "evaluation": evaluation})


def _problems(before: _Played, now: _Played, changes: int | None) -> Iterator[str]:
    """Yield what depends on a folder and may not."""
    moved = differing(before.records, now.records)
    if moved.keys() - {CLIENTS[0]}:
        yield "another client has other records"
    if changes is not None and moved.get(CLIENTS[0], Records()).total() != changes:
        yield "the side of another image changes"
    (own, other), (own_now, other_now) = before.seen, now.seen
    if own.facts != own_now.facts or other.facts != other_now.facts:
        yield "clients are told apart by what is not noised"
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
    """Make every offer of a hostile coordinator to data holders with other folders.

    Args:
        surroundings: What holders take from outside.
    """
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
        return audit_offers(_hosts(Path(place), surroundings), folders, offers)


def _held(root: Path, counts: list[int]) -> Path:
    content = {label: range(count) for label, count in enumerate(counts)}
    _write(root, content, len(counts), seed=0)
    for label, name in enumerate(_CLASSES):
        (root / f"c{label}").rename(root / name)
    return root


def _hosts(place: Path, surroundings: Surroundings) -> Callable[[Path], Handler]:
    def host(folder: Path) -> Handler:
        own = Path(tempfile.mkdtemp(dir=place))
        settings = {
            **{"name": "a", "data": {"root": str(folder)}, "storage": str(own / "store")},
            **{"device": "cpu", "limits": _LIMITS},
        }
        (own / "client.yaml").write_text(json.dumps(settings))
        return host_of(load_holder(own / "client.yaml"), surroundings, lambda line: None).handle

    return host

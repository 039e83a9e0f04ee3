"""`export` and `predict`: what a run trained, as files and at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from methods import Arrays, ClientView
from platform.bootstrap import Surroundings, reopen_run
from platform.cli.access import require_summary
from platform.cli.output import console, fraction, print_json, table
from platform.data.catalogue import dataset_info
from platform.disk.files import write_bytes, write_text
from platform.disk.transactions import transaction
from platform.errors import ConfigError
from platform.experiment.model_card import model_card
from platform.experiment.simulation import Simulation
from platform.parties.profile import PersonalState
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.observing import SilentObserver
from platform.wire.codec import decode_arrays

MOST_BYTES: Final = 1_000_000
"""Of one text that is classified."""


@dataclass(frozen=True, kw_only=True)
class TrainedModel:
    """What a finished run can predict with.

    Attributes:
        simulation: The run.
        summary: Its report.
        broadcast: The shared parameters after the last round.
        state: The chosen client's personal part; empty for the shared prompts alone.
        client: That client's name, None for the shared prompts alone.
    """

    simulation: Simulation
    summary: Mapping[str, Any]
    broadcast: Arrays
    state: PersonalState
    client: str | None


@contextmanager
def load_trained(
    run_id: str,
    storage: str,
    surroundings: Surroundings,
    *,
    client: int | None,
    read_only: bool,
) -> Iterator[TrainedModel]:
    """Load a finished run, to be read only or to say in its audit log what is made of it.

    Its database is closed when the block ends.

    Raises:
        UnknownRun: If there is no such run, or it has not finished.
        ConfigError: If there is no such client.
    """
    summary = require_summary(run_id, storage)
    simulation = reopen_run(
        *(summary["run_id"], storage, SilentObserver(), surroundings), read_only=read_only
    )
    with simulation.database:
        yield _trained(simulation, summary, client)


def _trained(
    simulation: Simulation, summary: Mapping[str, Any], client: int | None
) -> TrainedModel:
    run, clients = simulation.run, simulation.population.clients
    with run.records.read() as uow:
        latest = uow.states.latest(run.source)
    # A run that could afford no round has the state that it started from.
    state = run.terms.initial_state() if latest is None else decode_arrays(latest.blob)
    names = list(clients)
    if client is None:
        broadcast = run.terms.method.broadcast(state)
        return TrainedModel(
            simulation=simulation,
            summary=summary,
            broadcast=broadcast,
            state=PersonalState({}, ()),
            client=None,
        )
    if client >= len(names):
        raise ConfigError(f"--client: {client} is not valid; it must be 0 to {len(names) - 1}")
    name = names[client]
    return TrainedModel(
        simulation=simulation,
        summary=summary,
        broadcast=run.terms.method.broadcast(state, name),
        state=clients[name].state(run.terms.final_attempt),
        client=name,
    )


def export_command(
    run_id: str,
    storage: str,
    surroundings: Surroundings,
    *,
    output: Path | None,
    client: int | None,
    as_json: bool,
) -> None:
    """Write `prompts.safetensors` and `MODEL_CARD.md`.

    Raises:
        UnknownRun: If there is no such run, or it has not finished.
        ConfigError: If there is nothing to export.
    """
    from safetensors.numpy import save

    part = "shared prompts" if client is None else "shared prompts and one personal part"
    with load_trained(run_id, storage, surroundings, client=client, read_only=False) as model:
        arrays = _export_arrays(model)
        with transaction(model.simulation.database) as uow:
            AuditTrail(uow.audit, model.simulation.run_id).exported(part)
    folder = output if output is not None else Path("exports") / model.simulation.run_id
    header = {"run_id": model.simulation.run_id, "method": str(model.summary["method"])}
    write_bytes(folder / "prompts.safetensors", save(arrays, header))
    write_text(folder / "MODEL_CARD.md", model_card(model.simulation, model.summary, arrays, part))
    files = [str(folder / name) for name in ("prompts.safetensors", "MODEL_CARD.md")]
    if as_json:
        print_json({"run_id": model.simulation.run_id, "files": files, "tensors": sorted(arrays)})
        return
    console().print("\n".join(files))


def predict_command(
    run_id: str,
    files: Sequence[Path],
    storage: str,
    surroundings: Surroundings,
    *,
    client: int | None,
    as_json: bool,
) -> None:
    """Classify image files, or text files with one text each.

    Raises:
        UnknownRun: If there is no such run, or it has not finished.
        ConfigError: If a file is no image or text, as the run's data set has them, or the method
            has no prediction without a client.
    """
    # Files first: to set up a run can take long, and is in vain where a file is mistyped.
    what = dataset_info(require_summary(run_id, storage)["dataset"]).modality.removesuffix("s")
    read = read_text if what == "text" else read_image
    examples = [read(path) for path in files]
    with load_trained(run_id, storage, surroundings, client=client, read_only=True) as model:
        if client is None and not model.broadcast and model.simulation.learning.method.learns:
            raise ConfigError(
                f"--client: {model.summary['method']} shares nothing, so a client must be chosen; "
                f"valid: 0 to {len(model.simulation.population.clients) - 1}"
            )
        rows = [
            {what: str(path), **_classify(model, example)}
            for path, example in zip(files, examples, strict=True)
        ]
    if as_json:
        print_json(rows)
        return
    shown = [(row[what], row["class"], fraction(row["probability"])) for row in rows]
    console().print(table(None, (what, "class", "probability"), shown))


def read_image(path: Path) -> NDArray[np.uint8]:
    """Return an image file as RGB (H, W, 3).

    Raises:
        ConfigError: If it is missing or no image.
    """
    from PIL import Image

    try:
        with Image.open(path) as image:
            return np.array(image.convert("RGB"), np.uint8)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise ConfigError(f"FILES: {str(path)!r} is no readable image file") from error


def read_text(path: Path) -> str:
    """Return a text file as one text, without the white space around it.

    Raises:
        ConfigError: If it is missing, not UTF-8, or larger than any text is read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        text = data.decode("utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"FILES: {str(path)!r} is no readable UTF-8 text file") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"FILES: {str(path)!r} is too large; valid: up to {MOST_BYTES:,} bytes")
    return text


def _classify(model: TrainedModel, example: NDArray[np.uint8] | str) -> dict[str, Any]:
    learning = model.simulation.learning
    batch = learning.batch_of((example,) if isinstance(example, str) else example[None])
    logits = learning.method.predict(
        ClientView(model.broadcast, model.state.experts, model.state.personal),
        batch,
        learning.classes,
    )[0]
    odds = np.exp(logits - logits.max())
    best = int(logits.argmax())
    return {"class": learning.classes[best], "probability": float(odds[best] / odds.sum())}


def _export_arrays(model: TrainedModel) -> dict[str, NDArray[Any]]:
    arrays = {f"shared.{name}": np.ascontiguousarray(a) for name, a in model.broadcast.items()}
    for name, array in model.state.personal.items():
        arrays[f"personal.{name}"] = np.ascontiguousarray(array)
    for position, expert in enumerate(model.state.experts):
        for name, array in expert.items():
            arrays[f"expert.{position}.{name}"] = np.ascontiguousarray(array)
    if not arrays:
        raise ConfigError(
            f"--client: {model.summary['method']} shares nothing; choose a client with --client, "
            "if the method trains at all"
        )
    return arrays

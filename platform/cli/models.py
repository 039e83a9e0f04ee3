"""`export` and `predict`: write the trained prompts of a run to files, and classify with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from methods import ClientView
from platform.cli.output import Whole, answer, fraction, table
from platform.data.catalogue import dataset_info
from platform.data.dataset import MOST_BYTES as LARGEST_IMAGE
from platform.data.dataset import decode
from platform.data.loaders import _files
from platform.disk.files import write_bytes, write_text
from platform.disk.opening import transaction
from platform.errors import ConfigError, DataError, renamed
from platform.experiment.exported_models import (
    Exported,
    TrainedModel,
    exported_accuracy,
    model_card,
)
from platform.experiment.planning import Surroundings, reopen_run
from platform.experiment.simulation import Simulation
from platform.parties.profile import view_of
from platform.results.reading import require_summary
from platform.rounds.audit_trail import AuditTrail
from platform.rounds.observing import SilentObserver
from platform.rounds.run import decode_state

MOST_BYTES: Final = 1_000_000
"""Most bytes of a text to classify."""


@contextmanager
def load_trained(
    run_id: str, storage: str, surroundings: Surroundings, *, client: int | None, read_only: bool
) -> Iterator[tuple[Simulation, Mapping[str, Any], TrainedModel]]:
    """Load a finished run, its summary and its model; its database is closed when the block ends.

    Without a client the model is the shared prompts; `read_only` leaves the audit log as it is.
    """
    summary = require_summary(run_id, storage, surroundings.sources)
    simulation = reopen_run(
        *(summary["run_id"], storage, SilentObserver(), surroundings), read_only=read_only
    )
    with simulation.database:
        run, clients = simulation.run, simulation.population.clients
        with run.records.read() as uow:
            latest = uow.states.latest(run.source)
        # A run that could afford no round has the state that it started from.
        state = run.terms.initial_state() if latest is None else decode_state(latest.blob)[0]
        method, names = run.terms.method, list(clients)
        if client is None:
            view = ClientView(method.broadcast(state), (), {})
        elif client >= len(names):
            raise ConfigError(f"--client: {client} is not valid; it must be 0 to {len(names) - 1}")
        else:
            own = clients[names[client]].state(run.terms.final_attempt)
            view = view_of(method.broadcast(state, names[client]), own)
        learning = simulation.learning
        model = TrainedModel(
            method=method, view=view, classes=learning.classes, batch_of=learning.batch_of
        )
        yield simulation, summary, model


def export_command(
    run_id: str,
    storage: str,
    folder: Path | None,
    *,
    output: Path | None,
    client: int | None,
    as_json: bool,
) -> None:
    """Write `prompts.safetensors` and `MODEL_CARD.md`."""
    from safetensors.numpy import save

    part = "shared prompts" if client is None else "shared prompts and one personal part"
    surroundings = Surroundings.with_plugins(folder)
    loading = load_trained(run_id, storage, surroundings, client=client, read_only=False)
    with loading as (simulation, summary, model):
        arrays = model.arrays()
        if not arrays:
            raise ConfigError(
                f"--client: {summary['method']} shares nothing; choose a client with --client, if "
                "the method trains at all"
            )
        with transaction(simulation.database) as uow:
            AuditTrail(uow.audit, simulation.run_id).exported(part)
        name = None if client is None else list(simulation.population.clients)[client]
        accuracy = exported_accuracy(model.method, model.view, simulation.learning.evaluation, name)
        exported = Exported(part=part, client=client, arrays=arrays, accuracy=accuracy)
    found = simulation.run_id
    place = output if output is not None else Path("exports") / found
    header = {"run_id": found, "method": str(summary["method"])}
    files = [place / name for name in ("prompts.safetensors", "MODEL_CARD.md")]
    write_bytes(files[0], save(arrays, header))
    write_text(files[1], model_card(simulation, summary, exported))
    document = {"run_id": found, "files": [*map(str, files)], "tensors": sorted(arrays)}
    answer(document, *map(Whole, files), as_json=as_json)


def predict_command(
    run_id: str,
    files: Sequence[Path],
    storage: str,
    folder: Path | None,
    *,
    client: int | None,
    as_json: bool,
) -> None:
    """Classify image files, or text files with one text each."""
    surroundings = Surroundings.with_plugins(folder)
    # Files first: setting up a run can take long, and would be in vain if a file is mistyped.
    found = require_summary(run_id, storage, surroundings.sources)
    info = dataset_info(found["dataset"], surroundings.registry.plugins)
    what = info.modality.removesuffix("s")
    read = read_text if what == "text" else read_image
    examples = [read(path) for path in files]
    loading = load_trained(run_id, storage, surroundings, client=client, read_only=True)
    with loading as (simulation, summary, model):
        if client is None and not model.view.broadcast and model.method.learns:
            raise ConfigError(
                f"--client: {summary['method']} shares nothing, so a client must be chosen; "
                f"valid: 0 to {len(simulation.population.clients) - 1}"
            )
        print_classes(model, what, dict(zip(files, examples, strict=True)), as_json=as_json)


def print_classes(
    model: TrainedModel,
    what: str,
    examples: Mapping[Path, NDArray[np.uint8] | str],
    *,
    as_json: bool,
) -> None:
    """Print the class of each example, by its file; `what` is the word: `image` or `text`."""
    rows = [{what: str(path), **model.classify(each)} for path, each in examples.items()]
    shown = [(row[what], row["class"], fraction(row["probability"])) for row in rows]
    answer(rows, table(None, (what, "class", "probability"), shown), as_json=as_json)


def read_image(path: Path) -> NDArray[np.uint8]:
    """Return an image file as RGB (H, W, 3); a file that is not an image is refused."""
    try:
        return decode(_files.read_bounded(path, LARGEST_IMAGE), str(path))
    except DataError as error:
        raise ConfigError(
            f"FILES: {str(path)!r} is not a readable image file; valid: a PNG or JPEG, for example"
        ) from error


def read_text(path: Path) -> str:
    """Return a UTF-8 file of at most `MOST_BYTES` as one text, without white space around it."""
    try:
        return _files.read_text(path, MOST_BYTES).removeprefix("\ufeff").strip()
    except DataError as error:
        raise ConfigError(renamed(str(error), {"task.root": "FILES"})) from error

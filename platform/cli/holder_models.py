"""`predict`, `export` and `evaluate` of a data holder: its own model, which never leaves here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from platform.bootstrap import Surroundings
from platform.bootstrap.joining import own_model
from platform.cli.models import print_classes, read_image
from platform.cli.output import console, fraction, print_json
from platform.disk.files import write_bytes
from platform.errors import ConfigError
from platform.holder.settings import load_holder


def predict_command(config: Path, run_id: str, files: Sequence[Path], *, as_json: bool) -> None:
    """Classify image files with the holder's own model.

    Raises:
        UnknownRun: If no run of this name has ended here.
        ConfigError: If a file is no image.
    """
    settings = load_holder(config)
    examples = {path: read_image(path) for path in files}
    found = own_model(settings, run_id, Surroundings())
    print_classes(found.model, "image", examples, as_json=as_json)


def evaluate_command(config: Path, run_id: str, *, as_json: bool) -> None:
    """Print accuracy on the holder's own test images.

    Raises:
        UnknownRun: If no run of this name has ended here.
    """
    found = own_model(load_holder(config), run_id, Surroundings())
    accuracy = found.accuracy()
    if as_json:
        print_json({"run_id": run_id, "accuracy": accuracy, "test_images": found.tested})
        return
    if accuracy is None:
        console().print("there are no test images here that can be read; see `check`")
        return
    console().print(f"accuracy {fraction(accuracy)} on {found.tested} own test images")


def export_command(config: Path, run_id: str, output: Path, *, as_json: bool) -> None:
    """Write the holder's own model as one safetensors file.

    Raises:
        UnknownRun: If no run of this name has ended here.
        ConfigError: If the file exists, or nothing was trained.
    """
    from safetensors.numpy import save

    if output.exists():
        raise ConfigError(f"FILE: {str(output)!r} exists already; valid is a new file")
    arrays = own_model(load_holder(config), run_id, Surroundings()).model.arrays()
    if not arrays:
        raise ConfigError(f"RUN: {run_id} trained nothing that could be exported")
    write_bytes(output, save(arrays, {"run_id": run_id}))
    if as_json:
        print_json({"run_id": run_id, "file": str(output), "tensors": sorted(arrays)})
        return
    console().print(str(output), soft_wrap=True)

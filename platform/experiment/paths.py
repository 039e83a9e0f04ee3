"""Paths of a configuration, which hold in whatever folder a run goes on."""

from __future__ import annotations

from pathlib import Path

from platform.config import RunConfig
from platform.data.catalogue import dataset_info, user_path


def with_absolute_paths(config: RunConfig) -> RunConfig:
    """Return a run may be resumed from another folder than it was started in."""
    if dataset_info(config.task.dataset).layout:
        root = str(user_path(config.task.root).resolve())
        names = config.task.class_names
        if names is not None:
            names = str(user_path(names, "task.class_names").resolve())
        task = config.task.model_copy(update={"root": root, "class_names": names})
        config = config.model_copy(update={"task": task})
    public = config.public_data
    if public is not None and public.root is not None:
        root = str(user_path(public.root, "public_data.root").resolve())
        public = public.model_copy(update={"root": root})
        config = config.model_copy(update={"public_data": public})
    section = config.secure_aggregation
    if section.enrolment is None:
        return config
    found = section.model_copy(update={"enrolment": str(Path(section.enrolment).resolve())})
    return config.model_copy(update={"secure_aggregation": found})

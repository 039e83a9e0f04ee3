"""`held_by_clients`: what each client of a federation has in its own folder.

Nobody but the client reads it; what the coordinator knows is the public list of classes.
"""

from __future__ import annotations

from platform.config.rules import HELD
from platform.data.catalogue import DataRequest, DatasetInfo
from platform.data.dataset import Dataset
from platform.errors import ConfigError

INFOS = (
    DatasetInfo(
        name=HELD,
        title="What each client of a federation has in its own folder",
        classes=(),
        domains=(),
        source="the clients' folders",
    ),
)


def load(name: str, request: DataRequest) -> Dataset:
    """Refuse: there is nothing that could be read in one place.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"task.dataset: {name} is read by each client in its own folder, and by nobody else; valid "
        "here: a simulation's data set, such as client_folders"
    )

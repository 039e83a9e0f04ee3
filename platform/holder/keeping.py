"""What a data holder's process keeps of each run beside its store: a file a kind.

The offer that was accepted, the parting with which the run ended, and the statement of having left.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from platform.disk.files import erase, write_bytes
from platform.errors import ProtocolError
from storage.files import make_folder

KEPT: Final = "offers"
"""Their folder, in the client's storage folder."""
Kind = Literal["offer", "parting", "left"]
RUN_NAME: Final = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
"""What the name of a run looks like that becomes a file's name."""


@dataclass(frozen=True)
class Keeping:
    """What is kept of runs.

    Attributes:
        storage: The client's storage folder.
    """

    storage: Path

    def place(self, run_id: str, kind: Kind) -> Path:
        """Return where it lies, whether it is there or not.

        Raises:
            ProtocolError: If the run's name is none.
        """
        if re.fullmatch(RUN_NAME, run_id) is None:
            raise ProtocolError("message: the run's name is not valid")
        return self.storage / KEPT / f"{run_id}.{kind}"

    def read(self, run_id: str, kind: Kind) -> bytes | None:
        """Return what is kept, None where nothing is.

        Raises:
            ProtocolError: If the run's name is none.
        """
        try:
            return self.place(run_id, kind).read_bytes()
        except FileNotFoundError:
            return None

    def keep(self, run_id: str, kind: Kind, data: bytes) -> None:
        """Keep it, whole or not at all.

        Raises:
            ProtocolError: If the run's name is none.
        """
        place = self.place(run_id, kind)
        make_folder(place.parent)
        write_bytes(place, data)

    def erase(self, run_id: str, kind: Kind) -> None:
        """Write zeros over what is kept, and delete it; does nothing where nothing is."""
        erase(self.place(run_id, kind))

    def runs(self, kind: Kind) -> list[str]:
        """Return the runs of which this is kept, sorted."""
        ending = f".{kind}"
        found = (self.storage / KEPT).glob(f"*{ending}")
        names = (path.name.removesuffix(ending) for path in found)
        return sorted(name for name in names if re.fullmatch(RUN_NAME, name))

    def going_on(self) -> list[str]:
        """Return the runs that were accepted and are not over, sorted."""
        over = {*self.runs("parting"), *self.runs("left")}
        return [run_id for run_id in self.runs("offer") if run_id not in over]


def may_be_kept(name: str) -> bool:
    """Return whether a file may have this name, from the storage folder on."""
    kinds = "|".join(get_args(Kind))
    return re.fullmatch(rf"{re.escape(KEPT)}/{RUN_NAME}\.({kinds})", name) is not None

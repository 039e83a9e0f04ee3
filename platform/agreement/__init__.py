"""The agreement of a run's records, which is checked before a statement uses a number from them.

A run leaves its traces in several places: rounds, states, pool and ledger of the coordinator, its
audit log, the clients' own ledgers, and the files of its folder. The run wrote all of them at the
same time, so each is a witness of the others. Before a statement prices epsilon, this package
compares all of them and names a record that differs. It repairs nothing.
"""

from __future__ import annotations

from platform.agreement.checking import (
    Fault,
    disagreements,
    erased_folders,
    faults_of,
    registry_disagreements,
    require_agreement,
    unknown_charges,
)
from platform.agreement.reading import Agreed, RunRecords, read_records
from platform.agreement.trail import OwnLedger
from platform.protection.charging import stored_tree

__all__ = [
    "Agreed",
    "Fault",
    "OwnLedger",
    "RunRecords",
    "disagreements",
    "erased_folders",
    "faults_of",
    "read_records",
    "registry_disagreements",
    "require_agreement",
    "stored_tree",
    "unknown_charges",
]

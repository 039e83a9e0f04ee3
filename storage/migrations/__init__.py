"""The schema's history, one file per step in ``versions``; driven by ``storage.schema``.

A step that was ever released is never edited: a new one is added. Rebuilding a table (Alembic's
batch mode) drops its triggers, so a step that rebuilds ``audit`` or ``ledger`` creates them again.
"""

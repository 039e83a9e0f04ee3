"""Steps of the schema, found by Alembic through their ``revision`` and ``down_revision``.

A revision's name is the schema's version (``storage.schema``). A step that was kept is never
changed again: what changes later is a step of its own, and the databases in ``tests/vectors`` that
older versions wrote must come through it with what is in them.
"""

"""Steps of the schema, found by Alembic through their ``revision`` and ``down_revision``.

A revision's name is the schema's version (``storage.schema``). A released step is never changed:
each later change is a step of its own. The databases in ``tests/vectors`` that older versions wrote
must come through every step with their contents.
"""

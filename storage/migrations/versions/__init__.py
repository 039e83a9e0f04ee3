"""Steps of the schema, found by Alembic through their ``revision`` and ``down_revision``."""

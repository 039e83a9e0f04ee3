"""`schemas`: which there are, or one of them."""

from __future__ import annotations

from platform.cli.output import console, print_json, table
from platform.cli.schemas.catalogue import SCHEMAS, schema_of


def schemas_command(name: str | None, *, as_json: bool) -> None:
    """Print one schema as JSON, or the names of all.

    Args:
        name: Of the schema; None for the list.
        as_json: Whether the list is JSON too.

    Raises:
        ConfigError: If there is none of this name.
    """
    if name is not None:
        print_json(schema_of(name))
        return
    titles = [(each, found.title) for each, found in sorted(SCHEMAS.items())]
    if as_json:
        print_json([{"name": each, "title": title} for each, title in titles])
    else:
        console().print(table(None, ("schema", "what it is of"), titles))

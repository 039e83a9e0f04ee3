"""Types of columns, which SQLite and a server are to take alike; kept migrations name them.

Text is compared byte by byte, as SQLite does, whatever a server's language, and integers have 64
bits. SQLite is told what it was always told.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

TEXT: Final = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INTEGER: Final = sa.Integer().with_variant(sa.BigInteger(), "postgresql")

"""The live page: a web server that shows what records say, and changes nothing.

It knows sheets of tables, plots and words, and whoever draws them up (`Records`); what a run, a
budget or an audit log is, it does not know. What it shows is therefore what the command line shows.
"""

from __future__ import annotations

from platform.page.sheets import Cell, Field, Gauge, Plot, Point, Records, Sheet, Table

__all__ = ["Cell", "Field", "Gauge", "Plot", "Point", "Records", "Sheet", "Table"]

"""The privacy budget report: one document for a person who is not a cryptographer.

A pure function turns a run's agreed records into a document value; renderers turn that into HTML,
PDF or plain data. What a run spent is priced in `platform.agreement`, and nowhere here anew but for
what nobody else states: one release alone, and shares of noise that colluding clients know.
"""

from __future__ import annotations

from platform.reports.report import Report, budget_report

__all__ = ["Report", "budget_report"]

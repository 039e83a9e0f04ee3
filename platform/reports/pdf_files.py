"""A report as a tagged PDF (PDF/UA-1), laid out from its HTML page.

WeasyPrint lays out; it needs Pango, a library of the operating system, so it is an extra. Nothing
is fetched while it works: an address that a text had smuggled in would end it.
"""

from __future__ import annotations

from typing import Any, Final

from platform.reports.html_pages import html_page
from platform.reports.report import Report

VARIANT: Final = "pdf/ua-1"


def pdf_file(report: Report) -> bytes:
    """Return a report as a tagged PDF.

    Raises:
        ImportError: If WeasyPrint is not installed.
        OSError: If Pango is not installed.
    """
    weasyprint = load_weasyprint()
    # Whatever would be fetched ends the work: there is nothing in a report that would need it.
    nothing = weasyprint.urls.URLFetcher(allowed_protocols=(), fail_on_errors=True)
    page = weasyprint.HTML(string=html_page(report), url_fetcher=nothing)
    made: bytes = page.write_pdf(pdf_variant=VARIANT, finisher=_say_scopes)
    return made


def _say_scopes(document: Any, pdf: Any) -> None:
    """Say of each header cell whether it is of its column or its row (PDF/UA-1, 7.5).

    Cells name their headers, but the header above a column of headers is named by none.
    """
    found: list[Any] = [one for one in pdf.objects if isinstance(one, dict) and "S" in one]
    elements = {one.reference: one for one in found}
    for cell in elements.values():
        if cell["S"] == "/TH":
            group = elements[elements[cell["P"]]["P"]]
            cell["A"]["Scope"] = "/Column" if group["S"] == "/THead" else "/Row"


def load_weasyprint() -> Any:
    """Return the module that lays out; it loads Pango when it is imported.

    Raises:
        ImportError: If it is not installed.
        OSError: If Pango is not installed.
    """
    import weasyprint

    return weasyprint

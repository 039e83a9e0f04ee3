"""A report as a tagged PDF (PDF/UA-1), laid out from its HTML page.

WeasyPrint lays out; it needs Pango, a library of the operating system, so it is an extra. Nothing
is fetched while it works: an address that a text had smuggled in would end it.
"""

from __future__ import annotations

from typing import Any, Final

from platform.errors import ConfigError
from platform.reports.html_pages import html_page
from platform.reports.report import Report

VARIANT: Final = "pdf/ua-1"


def pdf_file(report: Report) -> bytes:
    """Return a report as a tagged PDF.

    Raises:
        ConfigError: If WeasyPrint or Pango is not installed.
    """
    weasyprint = require_weasyprint()
    # Whatever would be fetched ends the work: there is nothing in a report that would need it.
    nothing = weasyprint.urls.URLFetcher(allowed_protocols=(), fail_on_errors=True)
    page = weasyprint.HTML(string=html_page(report), url_fetcher=nothing)
    made: bytes = page.write_pdf(pdf_variant=VARIANT)
    return made


def require_weasyprint() -> Any:
    """Return the module that lays out.

    Raises:
        ConfigError: If it, or Pango, is not installed.
    """
    try:
        import weasyprint
    except ImportError as error:
        raise ConfigError(
            "--format: pdf needs WeasyPrint, which is not installed; valid: table, json, html, or "
            "pdf after `pip install 'sotto[pdf]'`"
        ) from error
    except OSError as error:
        # It loads Pango when it is imported.
        raise ConfigError(
            "--format: pdf needs the library Pango, which is not installed; valid: table, json, "
            "html, or pdf after `apt-get install libpango-1.0-0 libpangoft2-1.0-0`"
        ) from error
    return weasyprint

"""A report as a tagged PDF (PDF/UA-1), laid out from its HTML page.

WeasyPrint lays out; it needs Pango, a library of the operating system, so it is an extra. Nothing
is fetched while it works: every address is refused, whatever a text could smuggle in.
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
    page = weasyprint.HTML(string=html_page(report), url_fetcher=_refuse)
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


def _refuse(url: str, *_: Any, **__: Any) -> Any:
    raise ValueError(f"nothing is fetched for a report, and {url!r} would be")

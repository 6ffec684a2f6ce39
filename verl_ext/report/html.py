"""`report.html`: one file that needs nothing else, neither a network nor a script."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from verl_ext import __version__
from verl_ext.feature import load
from verl_ext.report.files import write_atomic
from verl_ext.report.read import read_run
from verl_ext.report.sections import Page, Section, arranged
from verl_ext.report.style import STYLE

REPORT_FILE = "report.html"


def build_report(
    run_dir: str | Path, *, out: str | Path | None = None, sections: Iterable[str] = (), plots: Iterable[str] = ()
) -> Path:
    """Writes the report of a run, in one go, and returns its path.

    Without matplotlib the report is written all the same, with a notice in the place of the figures.

    Args:
        run_dir: a folder that `read_run` understands, or one file of a run.
        out: the file to write; by default `report.html` in that folder.
        sections: dotted names of sections of features, below the curves. Loaded for a run of nereus only.
        plots: dotted names of their figures, likewise.

    Raises:
        NereusError: there is no record of a run, or it cannot be read.
        OSError: the report cannot be written.
    """
    source = Path(run_dir)
    run = read_run(source)
    if out is None:
        out = (source if source.is_dir() else source.parent) / REPORT_FILE
    if run.info is None:
        sections, plots = (), ()
    try:
        from verl_ext.report.figures import draw_all
    except ImportError as error:
        page = Page(run, [], [], no_plots=str(error))
    else:
        figures, left_out = draw_all(run, [load(name) for name in plots])
        page = Page(run, figures, left_out)
    return write_atomic(Path(out), render(page, arranged([load(name) for name in sections])))


def render(page: Page, sections: Iterable[Section]) -> str:
    """The whole page as HTML."""
    body = "\n".join(section(page) for section in sections)
    # The policy forbids every request, so that a mistake in a later section cannot turn into one.
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="generator" content="nereus {escape(__version__)}">
<link rel="icon" href="data:,">
<title>{escape(page.title)} \u00b7 nereus run report</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{body}
<footer>Written by nereus {escape(__version__)}.</footer>
</main>
</body>
</html>
"""

"""The figures of a report, as SVG for the page and PNG for a README. Needs matplotlib (the `plots` extra)."""

from __future__ import annotations

import html
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from verl_ext.errors import NereusError
from verl_ext.report.drawing import SMALL
from verl_ext.report.files import write_atomic
from verl_ext.report.findings import verdict
from verl_ext.report.model import RunData
from verl_ext.report.plots import PLOTS, Plot, declared_plots
from verl_ext.report.theme import DARK, LIGHT, PAGE, Theme, adapt


@dataclass(frozen=True)
class Drawn:
    """A figure as it goes into the page."""

    name: str
    title: str
    caption: str
    span: int
    """Thirds of a wide screen that it takes."""
    narrow: str
    wide: str | None


def draw_all(run: RunData, own: Sequence[Plot] = ()) -> tuple[list[Drawn], list[str]]:
    """Draws every figure that has data.

    Args:
        own: figures of features, besides those of every run and the generic ones of declared metrics.

    Returns:
        The figures, and for each one left out a sentence that says why.
    """
    drawn, left_out = [], []
    for plot in (*PLOTS, *declared_plots(run), *own):
        if not plot.needs(run):
            left_out.append(f"{plot.title}: not drawn, this run logged none of {plot.wanted}.")
            continue
        wide = _svg(plot, run, plot.wide, True) if plot.wide else None
        narrow = _svg(plot, run, plot.size, False)
        drawn.append(Drawn(plot.name, plot.title, plot.caption(run), plot.span, narrow, wide))
    return drawn, left_out


def save_png(
    run: RunData,
    path: str | Path,
    *,
    theme: Literal["light", "dark"] = "light",
    only: Collection[str] = (),
    dpi: int = 120,
) -> Path:
    """Writes the figures of a run as one picture of 16 inches width.

    Args:
        path: the picture; written in one go.
        theme: white or near-black background.
        only: names of figures (reward, gap, kl, length, health, time, validation); empty for all with data.
        dpi: pixels an inch.

    Raises:
        NereusError: none of the figures has data.
        OSError: the file cannot be written.
    """
    asked = [plot for plot in PLOTS if not only or plot.name in only]
    plots = [plot for plot in asked if plot.needs(run)]
    if not plots:
        raise NereusError(
            "the run has nothing to draw",
            where=str(run.path),
            expected="at least one of " + "; ".join(plot.wanted for plot in asked),
            got=f"{len(run.records)} records without them",
            change="wait for the first step, or name another run",
        )
    colours = LIGHT if theme == "light" else DARK
    rows = _rows(plots)
    with _look(colours):
        figure = Figure(
            figsize=(16, 1 + 4.2 * len(rows)),
            dpi=dpi,
            layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12),
        )
        figure.set_facecolor(colours["card"])
        title = run.info.title if run.info and run.info.title else run.path.resolve().name
        figure.suptitle(f"{title}\n{verdict(run)}", x=0.012, ha="left", fontsize=16, color=colours["ink"])
        bands = figure.subfigures(len(rows), 1, squeeze=False)
        for band, row in zip(bands[:, 0], rows, strict=True):
            band.set_facecolor("none")
            empty = 3 - sum(plot.span for plot in row)
            widths = [plot.span for plot in row] + ([empty] if empty else [])
            cells = band.subfigures(1, len(widths), squeeze=False, width_ratios=widths)[0]
            for cell, plot in zip(cells, row, strict=False):
                cell.set_facecolor("none")
                cell.suptitle(plot.title, x=0.02, ha="left", fontsize=14, color=colours["ink"], weight="bold")
                plot.draw(cell, run, colours, plot.span > 1)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", facecolor=colours["card"])
    return write_atomic(Path(path), buffer.getvalue())


def _rows(plots: list[Plot]) -> list[list[Plot]]:
    rows: list[list[Plot]] = []
    for plot in plots:
        if rows and sum(known.span for known in rows[-1]) + plot.span <= 3:
            rows[-1].append(plot)
        else:
            rows.append([plot])
    return rows


@contextmanager
def _look(theme: Theme, salt: str = "nereus") -> Iterator[None]:
    """matplotlib's own defaults with ours on top, whatever a matplotlibrc says; as before afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.sans-serif": ["DejaVu Sans"],
                "font.size": SMALL,
                "text.color": theme["ink"],
                # A dollar sign in a label is a dollar sign.
                "text.parse_math": False,
                "axes.labelcolor": theme["muted"],
                "svg.fonttype": "none",
                "svg.hashsalt": salt,
            }
        )
        yield


def _svg(plot: Plot, run: RunData, size: tuple[int, int], wide: bool) -> str:
    name = plot.name + ("-wide" if wide else "")
    # The salt makes the ids of clip paths and markers the same in every build and different in every figure.
    with _look(PAGE, salt=name):
        figure = Figure(
            figsize=(size[0] / 72, size[1] / 72),
            dpi=72,
            layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.04),
        )
        figure.patch.set_visible(False)
        plot.draw(figure, run, PAGE, wide)
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    label = html.escape(f"{plot.title}. {plot.caption(run)}", quote=True)
    return adapt(buffer.getvalue(), name, label)

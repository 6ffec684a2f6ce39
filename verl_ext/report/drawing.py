"""How the figures are drawn: axes, lines, panels and bars in the colours of a theme. Needs matplotlib.

Only matplotlib's object interface is used: no pyplot, no display, no state that outlives a figure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import Formatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from verl_ext.report.findings import short
from verl_ext.report.theme import Theme

# CSS pixels: the page shows a figure at about the size it was drawn.
SMALL = 11.0
# More points than a figure has pixels only make the file larger.
_MOST_POINTS = 1200


@dataclass(frozen=True)
class Series:
    """One metric as drawn: finite points and the steps where it was not finite."""

    steps: list[int]
    values: list[float]
    broken: list[int]

    @classmethod
    def of(cls, pairs: tuple[list[int], list[float]]) -> Series:
        """Splits steps and values as `RunData.series` returns them."""
        points = [(step, value) for step, value in zip(*pairs, strict=True) if math.isfinite(value)]
        broken = [step for step, value in zip(*pairs, strict=True) if not math.isfinite(value)]
        return cls([step for step, _ in points], [value for _, value in points], broken)


def smoothing_window(count: int) -> int:
    """Steps in the moving mean: a twelfth of the run, odd, at most 101; 1 (none) for fewer than 12 steps."""
    return 1 if count < 12 else min(101, max(3, (count // 12) | 1))


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred moving mean; at the ends, the mean of what is there."""
    half = window // 2
    totals = [0.0]
    for value in values:
        totals.append(totals[-1] + value)
    spans = [(max(0, i - half), min(len(values), i + half + 1)) for i in range(len(values))]
    return [(totals[high] - totals[low]) / (high - low) for low, high in spans]


def thin(steps: Sequence[int], values: Sequence[float]) -> tuple[list[int], list[float]]:
    """At most about `_MOST_POINTS` points: every bucket's lowest and highest, so that no spike is lost."""
    size = math.ceil(2 * len(steps) / _MOST_POINTS)
    if len(steps) <= _MOST_POINTS:
        return list(steps), list(values)
    keep: set[int] = {0, len(steps) - 1}
    for start in range(0, len(steps), size):
        bucket = range(start, min(start + size, len(steps)))
        keep |= {min(bucket, key=values.__getitem__), max(bucket, key=values.__getitem__)}
    return [steps[i] for i in sorted(keep)], [values[i] for i in sorted(keep)]


class PlainFormatter(Formatter):
    """Tick labels with as many digits as tell them apart, and exponents in the label itself."""

    def __call__(self, value: float, pos: int | None = None) -> str:
        return short(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """One label for each tick."""
        gaps = [high - low for low, high in pairwise(values) if high > low]
        top = max((abs(value) for value in values), default=0.0)
        if not gaps or top == 0:
            return [short(value) for value in values]
        step = min(gaps)
        if top < 1e-3 or top >= 1e6:
            digits = max(0, math.floor(math.log10(top)) - math.floor(math.log10(step) + 1e-9))
            return ["0" if abs(v) < step / 100 else _exponent(v, digits) for v in values]
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        # 0.25 steps need two digits although their size is of the first.
        if any(abs(v - round(v, digits)) > step / 100 for v in values):
            digits += 1
        return [f"{0.0 if abs(v) < step / 100 else v:,.{digits}f}" for v in values]


def _exponent(value: float, digits: int) -> str:
    mantissa, _, power = f"{value:.{digits}e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(power)}"


def dress(ax: Axes, theme: Theme, *, x_axis: bool = True) -> None:
    """Gives axes the look of the report: a light horizontal grid, no box, whole steps below."""
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(theme["grid"])
    ax.set_facecolor("none")
    ax.grid(axis="y", color=theme["grid"], linewidth=0.8)
    ax.set_axisbelow(True)
    ax.tick_params(length=0, colors=theme["muted"], labelsize=SMALL, labelbottom=x_axis)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(PlainFormatter())
    ax.margins(x=0.015, y=0.09)


def line(ax: Axes, series: Series, colour: str, *, label: str, smoothed: bool, faint: float = 0.32) -> int:
    """Draws a metric: faint as logged and strong as its moving mean where `smoothed`, else strong as logged.

    Returns:
        The number of steps in the moving mean; 1 where there is none.
    """
    steps, values = series.steps, series.values
    window = smoothing_window(len(steps)) if smoothed else 1
    if window > 1:
        ax.plot(*thin(steps, values), color=colour, alpha=faint, linewidth=1.1)
    marker = "o" if len(steps) <= 30 and window == 1 else ""
    strong = smooth(values, window)
    ax.plot(*thin(steps, strong), color=colour, linewidth=2, marker=marker, markersize=3.5, label=label)
    return window


def mark_broken(ax: Axes, steps: Sequence[int], theme: Theme) -> None:
    """Crosses along the bottom where a metric was NaN or infinite."""
    if steps:
        ax.plot(
            list(steps),
            [0.04] * len(steps),
            transform=ax.get_xaxis_transform(),
            linestyle="none",
            marker="x",
            markersize=5.5,
            markeredgewidth=1.6,
            color=theme["alert"],
            label="not finite",
            clip_on=False,
        )


def legend(ax: Axes, theme: Theme, *, columns: int) -> None:
    """The names of the lines in a row above the axes."""
    handles, labels = ax.get_legend_handles_labels()
    ax.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=SMALL,
        labelcolor=theme["ink"],
        handlelength=1.1,
        handletextpad=0.5,
        columnspacing=1.3,
        borderaxespad=0.1,
        borderpad=0.2,
    )


def panels(
    container: FigureBase,
    theme: Theme,
    rows: Sequence[tuple[str, Series, str]],
    *,
    percent: Sequence[str] = (),
) -> list[Axes]:
    """One strip a metric, one above the other with the same steps and a scale each.

    Args:
        rows: (name, series, colour role) from top to bottom.
        percent: names whose values are shares, shown from 0 to 100 % unless one is outside.
    """
    grid = container.subplots(len(rows), 1, sharex=True, squeeze=False)
    axes: list[Axes] = [row[0] for row in grid]
    for index, (ax, (name, series, role)) in enumerate(zip(axes, rows, strict=True)):
        dress(ax, theme, x_axis=index == len(rows) - 1)
        line(ax, series, theme[role], label=name, smoothed=True)
        mark_broken(ax, series.broken, theme)
        ax.yaxis.set_major_locator(MaxNLocator(nbins=4 if len(rows) < 3 else 3, steps=[1, 2, 2.5, 5, 10]))
        ax.set_title(name, loc="left", fontsize=SMALL, color=theme[role], pad=4)
        last = short(series.values[-1]) if series.values else "not finite"
        if name in percent and series.values and 0 <= min(series.values) <= max(series.values) <= 1:
            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            ax.set_ylim(-0.04, 1.04)
            ax.set_yticks([0, 0.5, 1])
            last = f"{series.values[-1]:.0%}"
        ax.set_title(f"last {last}", loc="right", fontsize=SMALL, color=theme["muted"], pad=4)
    return axes


def log_scale(ax: Axes, positive: Sequence[float], *, room_below: bool) -> float:
    """A logarithmic y axis over whole decades; returns its lower end.

    Args:
        positive: the values to be shown, all above zero.
        room_below: leave one decade free for marks of values that are exactly zero.
    """
    # Beyond what float32 can tell apart there is nothing to read off an axis.
    low = max(-45, math.floor(math.log10(min(positive))) - (1 if room_below else 0))
    high = min(45, math.ceil(math.log10(max(positive))))
    high = high if high > low else low + 1
    ax.set_yscale("log")
    ax.set_ylim(10.0**low, 10.0**high)
    ax.yaxis.set_major_locator(LogLocator(base=10, numticks=7))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _exponent(value, 0) if value < 1e-2 else short(value)))
    return float(10.0**low)

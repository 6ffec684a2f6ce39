"""The figure of where a step's time goes: one stacked bar a step. Needs matplotlib."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from matplotlib.figure import FigureBase

from verl_ext.report import names
from verl_ext.report.drawing import SMALL, dress, legend
from verl_ext.report.findings import duration
from verl_ext.report.model import RunData
from verl_ext.report.theme import PHASE_COLOURS, Theme

_MOST_BARS = 90


@dataclass(frozen=True)
class Breakdown:
    """Seconds of each phase, bar by bar."""

    steps: list[float]
    parts: dict[str, list[float]]
    """Phase -> seconds; the last ones may be `smaller phases` and `other`."""
    bucket: int
    """Steps in one bar; more than 1 when the run has too many, and then each bar is their mean."""

    @property
    def totals(self) -> list[float]:
        """Seconds of each whole bar."""
        return [sum(seconds) for seconds in zip(*self.parts.values(), strict=True)]


def breakdown(run: RunData) -> Breakdown:
    """Splits `timing_s/step` into its phases; `other` is what no timer covers, never below zero.

    At most eight phases are told apart: the longest ones. The rest are added up as `smaller phases`.
    """
    keys = names.phases(run.keys)
    rows: list[tuple[int, float, dict[str, float]]] = []
    for step, record in zip(run.steps, run.records, strict=True):
        whole = names.number(record.get(names.STEP_SECONDS))
        if whole is None or not math.isfinite(whole):
            continue
        values = {key: names.number(record.get(key)) or 0.0 for key in keys}
        rows.append((step, whole, {key: value if math.isfinite(value) else 0.0 for key, value in values.items()}))
    totals = {key: sum(values[key] for _, _, values in rows) for key in keys}
    largest = sorted(keys, key=lambda key: -totals[key])[: len(PHASE_COLOURS)]
    shown = [key for key in keys if key in largest and totals[key] > 0]
    parts = {key[len(names.TIMING_PREFIX) :]: [values[key] for _, _, values in rows] for key in shown}
    if len(keys) > len(largest):
        rest = [key for key in keys if key not in largest]
        parts["smaller phases"] = [sum(values[key] for key in rest) for _, _, values in rows]
    parts["other"] = [max(0.0, whole - sum(values.values())) for _, whole, values in rows]
    bucket = max(1, math.ceil(len(rows) / _MOST_BARS))
    chunks = range(0, len(rows), bucket)
    return Breakdown(
        [statistics.fmean(step for step, _, _ in rows[i : i + bucket]) for i in chunks],
        {name: [statistics.fmean(seconds[i : i + bucket]) for i in chunks] for name, seconds in parts.items()},
        bucket,
    )


def ceiling(totals: list[float]) -> float | None:
    """Where to cut the y axis when a few bars (a compiling first step) would flatten the others, or None."""
    usual = 4 * statistics.median(totals)
    tall = [total for total in totals if total > usual]
    if not tall or usual == 0 or len(tall) > max(1, len(totals) // 20):
        return None
    return 1.35 * max(total for total in totals if total <= usual)


def draw_step_time(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    """Draws the bars; one that is cut off carries its true height as a number."""
    data = breakdown(run)
    ax = container.subplots()
    dress(ax, theme)
    base = [0.0] * len(data.steps)
    totals = data.totals
    whole = sum(totals) or 1.0
    colours = dict(zip((n for n in data.parts if n not in ("other", "smaller phases")), PHASE_COLOURS, strict=False))
    gap = data.steps[1] - data.steps[0] if len(data.steps) > 1 else 1.0
    for name, seconds in data.parts.items():
        share = sum(seconds) / whole
        label = f"{name} {share:.0%}" if share >= 0.01 or share == 0 else f"{name} <1%"
        colour = theme[colours.get(name, "muted" if name == "smaller phases" else "rest")]
        ax.bar(data.steps, seconds, bottom=base, width=0.78 * gap, color=colour, label=label, linewidth=0)
        base = [low + height for low, height in zip(base, seconds, strict=True)]
    top = ceiling(totals)
    if top is not None:
        ax.set_ylim(0, top)
        for index, (step, total) in enumerate(zip(data.steps, totals, strict=True)):
            if total > top:
                right = index < len(totals) / 2
                ax.annotate(
                    f"\u2191 {duration(total)}",
                    (step + (0.45 if right else -0.45) * gap, top),
                    xytext=(2 if right else -2, -3),
                    textcoords="offset points",
                    va="top",
                    ha="left" if right else "right",
                    fontsize=SMALL,
                    color=theme["ink"],
                )
    ax.margins(x=0.01)
    if data.bucket > 1:
        ax.set_xlabel(f"step (each bar: mean of {data.bucket} steps)", fontsize=SMALL)
    legend(ax, theme, columns=5 if wide else 2)

"""What the figures of a report are: their data, their words, and how each one is drawn. Needs matplotlib."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import FigureBase

from verl_ext.report import names
from verl_ext.report.drawing import (
    SMALL,
    Series,
    dress,
    legend,
    line,
    log_scale,
    mark_broken,
    panels,
    smoothing_window,
)
from verl_ext.report.findings import alike, ends, short
from verl_ext.report.model import DeclaredMetric, RunData
from verl_ext.report.step_time import draw_step_time
from verl_ext.report.theme import SERIES, Theme

# CSS pixels: drawn at about the size they are read at, so that letters are no smaller on a phone.
NARROW = (360, 270)
_MOST_LINES = 6
_MOST_STRIPS = 4
_GAP_HINT = "verl logs them with actor_rollout_ref.rollout.calculate_log_probs=True"


@dataclass(frozen=True)
class Plot:
    """What a figure is: its data, its words, and how to draw it into a figure or a part of one."""

    name: str
    title: str
    needs: Callable[[RunData], list[str]]
    """The metrics it draws that this run has; empty means that there is nothing to draw."""
    wanted: str
    """The metrics it would draw, for the notice that it was left out."""
    draw: Callable[[FigureBase, RunData, Theme, bool], None]
    """Draws into a container; the last argument is whether it is the wide form."""
    caption: Callable[[RunData], str]
    size: tuple[int, int] = NARROW
    """Size of the form for a phone or a third of a wide screen, in CSS pixels."""
    span: int = 1
    """Thirds of a wide screen that it takes."""
    wide: tuple[int, int] | None = None
    """Size of a second form for wide screens, in CSS pixels."""


def _present(*keys: str) -> Callable[[RunData], list[str]]:
    return lambda run: [key for key in keys if run.series(key)[0]]


def _range(run: RunData, key: str) -> str:
    steps, values = run.finite(key)
    if not steps:
        return f"{key} is not finite at any step."
    return f"{short(values[0])} at step {steps[0]}, {short(values[-1])} at step {steps[-1]}."


def _smoothing_note(run: RunData, key: str) -> str:
    window = smoothing_window(len(run.finite(key)[0]))
    return f" Strong line: mean of {window} steps; faint line: as logged." if window > 1 else ""


def spread(levels: list[float], gap: float) -> list[float]:
    """Heights for labels of ascending `levels`, each at its level or above it, at least `gap` apart."""
    heights: list[float] = []
    for level in levels:
        heights.append(max(level, heights[-1] + gap) if heights else level)
    return heights


def _draw_reward(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    key = _present(*names.REWARD)(run)[0]
    series = Series.of(run.series(key))
    ax = container.subplots()
    dress(ax, theme)
    line(ax, series, theme["blue"], label=key, smoothed=True)
    mark_broken(ax, series.broken, theme)
    baselines = run.info.baselines if run.info else {}
    first, last, _ = ends(series.values) if series.values else (0.0, 0.0, 0)
    shown = [*series.values, *baselines.values()]
    ordered = sorted(baselines.items(), key=lambda item: item[1])
    # A line of text is about a seventeenth of the axis high, a tenth where the figure is small.
    span = max(shown) - min(0.0, *shown) if shown else 0.0
    heights = spread([level for _, level in ordered], span / (17 if wide else 10))
    for (label, level), height in zip(ordered, heights, strict=True):
        ax.axhline(level, color=theme["orange"], linestyle=(0, (1, 2)), linewidth=1.6)
        # At the end where the curve is further away, so that neither hides the other.
        left = abs(first - level) > abs(last - level)
        ax.annotate(
            f"{label} {short(level)}",
            (0.0 if left else 1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(4 if left else -4, 3),
            textcoords="offset points",
            ha="left" if left else "right",
            fontsize=SMALL,
            color=theme["orange"],
        )
    if shown and min(shown) >= 0 and min(shown) < 0.4 * max(shown):
        ax.set_ylim(bottom=0)
    if series.values:
        ax.annotate(
            alike(first, last)[1],
            (series.steps[-1], last),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL + 2,
            weight="bold",
            color=theme["blue"],
            annotation_clip=False,
        )
    for step in run.resumed_at:
        ax.axvline(step - 0.5, color=theme["muted"], linewidth=1, linestyle=(0, (4, 3)))
        ax.annotate(
            "resumed",
            (step - 0.5, 1.0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(4, 0),
            textcoords="offset points",
            va="top",
            fontsize=SMALL,
            color=theme["muted"],
        )
    if wide:
        ax.set_xlabel("step", fontsize=SMALL)


def _reward_caption(run: RunData) -> str:
    key = _present(*names.REWARD)(run)[0]
    labels = ", ".join(f"{label} ({short(value)})" for label, value in (run.info.baselines if run.info else {}).items())
    dotted = f" Dotted: {labels}." if labels else ""
    return f"{key} by step: {_range(run, key)}{_smoothing_note(run, key)}{dotted}"


def _draw_gap(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    ax = container.subplots()
    dress(ax, theme)
    all_series = {key: Series.of(run.series(key)) for key in _present(names.GAP_MAX, names.GAP_MEAN)(run)}
    positive = [value for series in all_series.values() for value in series.values if value > 0]
    floor = None
    if positive:
        zeros = any(value == 0 for series in all_series.values() for value in series.values)
        floor = log_scale(ax, positive, room_below=zeros)
    for key, series in all_series.items():
        colour = theme["purple"] if key == names.GAP_MAX else theme["teal"]
        label = "largest" if key == names.GAP_MAX else "mean"
        above = [(s, v) for s, v in zip(series.steps, series.values, strict=True) if v > 0 or floor is None]
        points = Series([s for s, _ in above], [v for _, v in above], [])
        # Single steps matter here; only where there are more than can be told apart does a mean help.
        line(ax, points, colour, label=label, smoothed=len(run.records) > 200)
        at_zero = [step for step, value in zip(series.steps, series.values, strict=True) if value == 0]
        if floor is not None and at_zero:
            ax.plot(
                at_zero,
                [floor * 1.5] * len(at_zero),
                linestyle="none",
                marker="v",
                markersize=4,
                color=colour,
                label=f"{label}: exactly 0",
            )
    mark_broken(ax, sorted({step for series in all_series.values() for step in series.broken}), theme)
    legend(ax, theme, columns=3)


def _gap_caption(run: RunData) -> str:
    steps, values = run.finite(names.GAP_MAX)
    most = f"At most {short(max(values))}, at step {steps[values.index(max(values))]}. " if steps else ""
    return (
        f"{most}Difference of the probability that trainer and rollout give to a sampled token: "
        "the largest of the step and the mean."
    )


def _draw_kl(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    keys = _present(*names.KL)(run)[:4]
    panels(container, theme, [(key, Series.of(run.series(key)), SERIES[i]) for i, key in enumerate(keys)])


def _draw_length(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    keys = _present(names.RESPONSE_LENGTH, names.CLIP_RATIO)(run)
    roles = {names.RESPONSE_LENGTH: "green", names.CLIP_RATIO: "amber"}
    rows = [(key, Series.of(run.series(key)), roles[key]) for key in keys]
    panels(container, theme, rows, percent=[names.CLIP_RATIO])


def _length_caption(run: RunData) -> str:
    return "Tokens per response, and the share of responses as long as the longest of the step."


def _draw_health(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    keys = _present(names.ENTROPY, names.GRAD_NORM)(run)
    roles = {names.ENTROPY: "indigo", names.GRAD_NORM: "orange"}
    panels(container, theme, [(key, Series.of(run.series(key)), roles[key]) for key in keys])


def _validation_keys(run: RunData) -> list[str]:
    return [key for key in run.keys if key.startswith(names.VALIDATION_CORE_PREFIX) and run.series(key)[0]]


def _draw_validation(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
    ax = container.subplots()
    dress(ax, theme)
    broken: set[int] = set()
    for key, role in zip(_validation_keys(run)[:_MOST_LINES], SERIES, strict=False):
        series = Series.of(run.series(key))
        line(ax, series, theme[role], label=key[len(names.VALIDATION_CORE_PREFIX) :], smoothed=False)
        broken |= set(series.broken)
    mark_broken(ax, sorted(broken), theme)
    legend(ax, theme, columns=3 if wide else 1)


def _validation_caption(run: RunData) -> str:
    more = len(_validation_keys(run)) - _MOST_LINES
    return "verl's val-core metrics." + (f" {more} more are in the table of the last step." if more > 0 else "")


def _time_caption(run: RunData) -> str:
    outside = sum(value for value in run.finite(names.VALIDATION_SECONDS)[1])
    note = f" Validation ({short(outside)} s in all) runs outside the step and is not in it." if outside else ""
    words = "Seconds a step by phase; \u201cother\u201d is the step less its timed phases. Shares are of the run."
    return words + note


def _time_keys(run: RunData) -> list[str]:
    whole = [value for value in run.finite(names.STEP_SECONDS)[1] if math.isfinite(value)]
    return [names.STEP_SECONDS] if whole else []


def _explain(run: RunData, keys: tuple[str, ...]) -> str:
    sentences = [f"{key}: {names.MEANINGS[key]}" for key in _present(*keys)(run)[:4]]
    return "; ".join(sentences) + "."


def declared_plots(run: RunData) -> list[Plot]:
    """A figure for each feature of the run that declared metrics, with a strip a metric."""
    by_feature: dict[str, list[DeclaredMetric]] = {}
    for metric in run.info.metrics if run.info else []:
        by_feature.setdefault(metric["feature"], []).append(metric)
    return [_declared_plot(feature, metrics[:_MOST_STRIPS]) for feature, metrics in by_feature.items()]


def _declared_plot(feature: str, metrics: list[DeclaredMetric]) -> Plot:
    keys = [metric["name"] for metric in metrics]

    def draw(container: FigureBase, run: RunData, theme: Theme, wide: bool) -> None:
        present = _present(*keys)(run)
        axes = panels(container, theme, [(key, Series.of(run.series(key)), SERIES[i]) for i, key in enumerate(present)])
        for ax, key in zip(axes, present, strict=True):
            healthy = next(metric["healthy"] for metric in metrics if metric["name"] == key)
            for level in healthy or ():
                if math.isfinite(level):
                    ax.axhline(level, color=theme["muted"], linestyle=(0, (1, 2)), linewidth=1.2)

    def said(metric: DeclaredMetric) -> str:
        unit = f" ({metric['unit']})" if metric["unit"] else ""
        return f"{metric['name']}{unit}: {metric['meaning']}"

    words = "; ".join(map(said, metrics)) + ". Dotted: the range in which it counts as working."
    name = re.sub(r"[^a-z0-9]+", "-", feature.lower())
    return Plot(f"feature-{name}", feature, _present(*keys), " and ".join(keys), draw, lambda run: words)


PLOTS: tuple[Plot, ...] = (
    Plot(
        "reward",
        "Reward",
        needs=_present(*names.REWARD),
        wanted=" and ".join(names.REWARD),
        draw=_draw_reward,
        caption=_reward_caption,
        span=3,
        wide=(1080, 350),
    ),
    Plot(
        "gap",
        "Rollout/trainer gap",
        needs=_present(names.GAP_MAX, names.GAP_MEAN),
        wanted=f"{names.GAP_MAX} and {names.GAP_MEAN} ({_GAP_HINT})",
        draw=_draw_gap,
        caption=_gap_caption,
    ),
    Plot(
        "kl",
        "KL divergence",
        needs=_present(*names.KL),
        wanted=", ".join(names.KL),
        draw=_draw_kl,
        caption=lambda run: _explain(run, names.KL),
    ),
    Plot(
        "length",
        "Response length",
        needs=_present(names.RESPONSE_LENGTH, names.CLIP_RATIO),
        wanted=f"{names.RESPONSE_LENGTH} and {names.CLIP_RATIO}",
        draw=_draw_length,
        caption=_length_caption,
    ),
    Plot(
        "health",
        "Entropy and gradient norm",
        needs=_present(names.ENTROPY, names.GRAD_NORM),
        wanted=f"{names.ENTROPY} and {names.GRAD_NORM}",
        draw=_draw_health,
        caption=lambda run: _explain(run, (names.ENTROPY, names.GRAD_NORM)),
    ),
    Plot(
        "time",
        "Where a step's time goes",
        needs=_time_keys,
        wanted=names.STEP_SECONDS,
        draw=draw_step_time,
        caption=_time_caption,
        size=(360, 330),
        span=2,
        wide=(730, 270),
    ),
    Plot(
        "validation",
        "Validation",
        needs=_validation_keys,
        wanted="verl's val-core/... metrics (trainer.test_freq)",
        draw=_draw_validation,
        caption=_validation_caption,
        span=3,
        wide=(1080, 280),
    ),
)

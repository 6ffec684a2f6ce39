"""What the numbers of a run say: the verdict, the key numbers, and what needs a person's attention."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from verl_ext.report import names
from verl_ext.report.model import RunData


@dataclass(frozen=True)
class Card:
    """One key number: what it is, its value, a line of context."""

    label: str
    value: str
    context: str
    alert: bool = False
    missing: bool = False


def short(value: float) -> str:
    """A number as a person writes it: 0.86, 3e-07, 1,234."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e6:
        digits = f"{value:.1e}"
        return digits.replace(".0e", "e")
    if size >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.3g}"
    return text if "e" not in text else f"{value:.0f}"


def alike(first: float, last: float) -> tuple[str, str]:
    """Two numbers to be compared, with the same number of digits and enough of them to tell the two apart."""
    if max(abs(first), abs(last)) >= 1000 or max(abs(first), abs(last)) < 0.01:
        return short(first), short(last)
    least = 3 if max(abs(first), abs(last)) < 0.1 else 2
    for digits in range(least, 6):
        if first == last or round(first, digits) != round(last, digits):
            break
    return f"{first:.{digits}f}", f"{last:.{digits}f}"


def duration(seconds: float) -> str:
    """Seconds as a person writes them: 0.45 s, 28.7 s, 3 min 20 s, 2 h 05 min."""
    if not 60 <= seconds < 1e8:
        return f"{short(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def _count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def reward_key(run: RunData) -> str | None:
    """The first of verl's reward metrics that this run logged a finite value of."""
    return next((key for key in names.REWARD if run.finite(key)[0]), None)


def ends(values: Sequence[float]) -> tuple[float, float, int]:
    """Mean of the first and of the last few values, and how many: a tenth of them, from one to ten."""
    few = max(1, min(10, len(values) // 10))
    return statistics.fmean(values[:few]), statistics.fmean(values[-few:]), few


def verdict(run: RunData) -> str:
    """The run in one line: what the reward did in how many steps, how far rollout and trainer were apart."""
    if not run.records:
        return "no step recorded"
    parts = []
    key = reward_key(run)
    count = len(run.finite(key)[0]) if key else len(run.records)
    steps = _count(count, "step")
    if key is None:
        parts.append(f"{steps}, no reward logged")
    else:
        first, last, _ = ends(run.finite(key)[1])
        parts.append("reward {} \u2192 {}".format(*alike(first, last)) + f" over {steps}")
    gaps = run.series(names.GAP_MAX)[1]
    finite = [gap for gap in gaps if math.isfinite(gap)]
    if finite:
        broken = len(gaps) - len(finite)
        but = f", but not finite at {_count(broken, 'step')}" if broken else ""
        parts.append(f"rollout/trainer gap at most {short(max(finite))}{but}")
    else:
        parts.append("rollout/trainer gap not finite at any step" if gaps else "rollout/trainer gap not measured")
    return "; ".join(parts)


def cards(run: RunData) -> list[Card]:
    """The key numbers of a run; one that was not logged says so instead of being left out."""
    found = [_reward(run), _gap(run), _length(run), _seconds(run), _throughput(run)]
    if run.info is not None and run.info.processes:
        found.append(Card("Processes", str(len(run.info.processes)), "asked, and right in every answer"))
    return found


def _missing(label: str, why: str) -> Card:
    return Card(label, "not logged", why, missing=True)


def _reward(run: RunData) -> Card:
    key = reward_key(run)
    if key is None:
        return _missing("Reward", f"no {' or '.join(names.REWARD)}")
    first, last, few = ends(run.finite(key)[1])
    span = "the first step" if few == 1 else f"the first {few} steps"
    before, after = alike(first, last)
    return Card("Reward", after, f"{before} over {span}" if len(run.records) > 1 else key)


def _gap(run: RunData) -> Card:
    label = "Rollout/trainer gap"
    steps, values = run.finite(names.GAP_MAX)
    if not steps:
        why = "never finite" if run.series(names.GAP_MAX)[0] else "needs rollout.calculate_log_probs"
        return _missing(label, why)
    worst = max(range(len(values)), key=values.__getitem__)
    broken = len(run.series(names.GAP_MAX)[0]) - len(steps)
    context = f"largest of any token, step {steps[worst]}"
    context += f"; not finite at {_count(broken, 'step')}" if broken else ""
    return Card(label, short(values[worst]), context, alert=bool(broken))


def _length(run: RunData) -> Card:
    values = run.finite(names.RESPONSE_LENGTH)[1]
    if not values:
        return _missing("Response length", f"no {names.RESPONSE_LENGTH}")
    first, last, _ = ends(values)
    clip = run.finite(names.CLIP_RATIO)[1]
    share = f"{clip[-1]:.0%}" if clip and 0 <= clip[-1] <= 1 else short(clip[-1]) if clip else ""
    context = f"tokens, from {short(first)}" + (f"; {share} as long as the longest" if clip else "")
    return Card("Response length", short(last), context)


def _seconds(run: RunData) -> Card:
    values = run.finite(names.STEP_SECONDS)[1]
    if not values:
        return _missing("Time per step", f"no {names.STEP_SECONDS}")
    context = f"median; {duration(sum(values))} in all" + (f", first {duration(values[0])}" if len(values) > 1 else "")
    return Card("Time per step", duration(statistics.median(values)), context)


def _throughput(run: RunData) -> Card:
    values = run.finite(names.THROUGHPUT)[1]
    if not values:
        return _missing("Throughput", f"no {names.THROUGHPUT}")
    return Card("Throughput", short(statistics.median(values)), "tokens per second and GPU, median")


def warnings(run: RunData) -> list[str]:
    """Everything about a run that a person should know before trusting its curves, one sentence each."""
    return [*run.warnings, *_non_finite(run), *_missing_steps(run), *_overlaps(run)]


def _non_finite(run: RunData) -> list[str]:
    found = []
    for key in run.keys:
        if key in names.SUMMARY_KEYS:
            continue
        bad = [step for step, value in zip(*run.series(key), strict=True) if not math.isfinite(value)]
        if bad:
            found.append(f"{key} is NaN or infinite at {_steps(bad)}.")
    return found


def _steps(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    shown = ", ".join(map(str, steps[:6]))
    return f"steps {shown}" + (f" and {len(steps) - 6} more" if len(steps) > 6 else "")


def _missing_steps(run: RunData) -> list[str]:
    steps = run.steps
    if len(steps) < 2 or steps[-1] - steps[0] + 1 == len(steps):
        return []
    # Before the first training step verl may log a validation; what counts is a hole between steps.
    holes = [step for low, high in pairwise(steps) for step in range(low + 1, min(high, low + 50))]
    return [f"No record of {_steps(holes)}."]


def _overlaps(run: RunData) -> list[str]:
    parts = names.phases(run.keys)
    over = []
    for step, record in zip(run.steps, run.records, strict=True):
        whole = names.number(record.get(names.STEP_SECONDS))
        known = sum(value for key in parts if (value := names.number(record.get(key))) is not None)
        if whole is not None and known > whole * 1.01 + 0.01:
            over.append(step)
    return [f"The timers of {_steps(over)} add up to more than {names.STEP_SECONDS}: some overlap."] if over else []

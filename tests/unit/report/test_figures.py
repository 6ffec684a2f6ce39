from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import matplotlib

from verl_ext.errors import NereusError
from verl_ext.report import RunData, RunInfo, read_run, summarise
from verl_ext.report.drawing import PlainFormatter, smooth, smoothing_window, thin
from verl_ext.report.figures import draw_all, save_png
from verl_ext.report.plots import spread
from verl_ext.report.step_time import breakdown, ceiling


def run_of(*metrics: dict[str, float], **fields: object) -> RunData:
    records = tuple(summarise(step, values) for step, values in enumerate(metrics, start=1))
    return RunData(path=Path("x"), source="nereus", files=(), records=records, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def figures(troubled_run: Path) -> dict[str, str]:
    drawn, left_out = draw_all(read_run(troubled_run))
    assert left_out == []
    return {figure.name: figure.narrow for figure in drawn} | {f"{f.name}-wide": f.wide for f in drawn if f.wide}


def test_every_figure_is_drawn_and_is_xml(figures: dict[str, str]) -> None:
    assert {"reward", "gap", "kl", "length", "health", "time", "validation"} <= set(figures)
    for svg in figures.values():
        assert ElementTree.fromstring(svg).get("role") == "img"


def test_ids_of_a_page_are_unique_and_references_resolve(figures: dict[str, str]) -> None:
    page = "".join(figures.values())
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', page)) <= set(ids)


def test_every_colour_follows_the_page(figures: dict[str, str]) -> None:
    page = "".join(figures.values())
    assert "var(--ink)" in page and "var(--blue)" in page
    assert set(re.findall(r"#[0-9a-f]{6}\b", page)) == set()


def test_text_is_text_in_the_font_of_the_page(figures: dict[str, str]) -> None:
    assert "best constant &lt;answer&gt; 0.25" in figures["reward-wide"]
    assert "var(--font)" in figures["gap"] and "DejaVu" not in "".join(figures.values())


def test_the_same_run_gives_the_same_picture(figures: dict[str, str], page: str) -> None:
    assert all(svg in page for svg in figures.values())


def test_figures_without_data_are_left_out_with_the_reason() -> None:
    drawn, left_out = draw_all(run_of({"critic/score/mean": 0.5}, {"critic/score/mean": 0.6}))
    assert [figure.name for figure in drawn] == ["reward"]
    assert len(left_out) == 6 and any("training/rollout_probs_diff_max" in reason for reason in left_out)


@pytest.mark.parametrize("gap", [[0.0, 0.0], [math.nan, math.inf], [1e-7], [0.0, 1e-8, math.nan]])
def test_a_gap_of_zero_or_nan_can_be_drawn(gap: list[float]) -> None:
    drawn, _ = draw_all(run_of(*({"training/rollout_probs_diff_max": value} for value in gap)))
    svg = drawn[0].narrow
    assert ("not finite" in svg) == any(not math.isfinite(value) for value in gap)
    assert ("exactly 0" in svg) == (0.0 in gap and any(value > 0 for value in gap))


def test_a_dollar_sign_in_a_label_is_no_formula() -> None:
    info = RunInfo(command=[], started_at="", baselines={"cost $5_$ $6": 0.5})
    drawn, _ = draw_all(run_of({"critic/score/mean": 0.5}, info=info))
    assert "cost $5_$ $6" in drawn[0].narrow


def test_matplotlib_is_left_as_it_was() -> None:
    with matplotlib.rc_context({"text.color": "#123456"}):
        draw_all(run_of({"critic/score/mean": 0.5}))
        assert matplotlib.rcParams["text.color"] == "#123456"


def test_png_for_a_readme(tmp_path: Path, troubled_run: Path) -> None:
    path = save_png(read_run(troubled_run), tmp_path / "run.png", theme="dark", only=("reward", "gap"), dpi=40)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and [file.name for file in tmp_path.iterdir()] == ["run.png"]


def test_png_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NereusError, match="nothing to draw"):
        save_png(run_of({"a": 1}), tmp_path / "run.png")
    assert list(tmp_path.iterdir()) == []


def test_the_parts_of_a_step_add_up_to_it() -> None:
    data = breakdown(run_of({"timing_s/gen": 1, "timing_s/adv": 0.5, "timing_s/testing": 9, "timing_s/step": 2}))
    assert data.parts == {"gen": [1.0], "adv": [0.5], "other": [0.5]} and data.totals == [2.0]


def test_many_steps_share_a_bar_and_many_phases_a_colour() -> None:
    step = {f"timing_s/p{i}": 1.0 + i for i in range(12)} | {"timing_s/step": 80.0}
    data = breakdown(run_of(*[step] * 200))
    assert data.bucket == 3 and len(data.steps) == 67
    assert "smaller phases" in data.parts and len(data.parts) == 10
    assert data.totals == pytest.approx([80.0] * 67)


def test_one_slow_step_does_not_flatten_the_others() -> None:
    assert ceiling([28.0, 1.0, 1.0, 1.0]) == pytest.approx(1.35)
    assert ceiling([1.0, 1.2, 1.0]) is None and ceiling([0.0, 0.0]) is None
    assert ceiling([9.0, 9.0, 1.0, 1.0, 1.0]) is None


def test_smoothing_keeps_a_constant_and_short_runs() -> None:
    assert smooth([2.0] * 9, 5) == pytest.approx([2.0] * 9)
    assert smooth([0.0, 3.0, 0.0], 3) == pytest.approx([1.5, 1.0, 1.5])
    assert smoothing_window(11) == 1 and smoothing_window(60) == 5 and smoothing_window(10**6) == 101


def test_thinning_keeps_the_spikes() -> None:
    values = [0.0] * 10_000
    values[4321], values[777] = 5.0, -5.0
    steps, kept = thin(range(10_000), values)
    assert len(steps) <= 1300 and {5.0, -5.0} <= set(kept) and steps == sorted(steps)


@pytest.mark.parametrize(
    ("ticks", "labels"),
    [
        ([0.0, 0.25, 0.5], ["0.00", "0.25", "0.50"]),
        ([0.0, 2e-9, 4e-9], ["0", "2e-9", "4e-9"]),
        ([0, 500, 1000], ["0", "500", "1,000"]),
        ([113.38, 113.39], ["113.38", "113.39"]),
        ([1e7, 1.5e7], ["1e7", "1.5e7"]),
        ([-5e-8, 0.0, 5e-8], ["-5e-8", "0", "5e-8"]),
    ],
)
def test_tick_labels_tell_ticks_apart(ticks: list[float], labels: list[str]) -> None:
    assert PlainFormatter().format_ticks(ticks) == labels


def test_labels_of_close_baselines_are_spread_and_far_ones_stay():
    assert spread([0.06, 0.12, 0.23, 0.25, 0.9], 0.06) == pytest.approx([0.06, 0.12, 0.23, 0.29, 0.9])

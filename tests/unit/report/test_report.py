from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from verl_ext.errors import NereusError
from verl_ext.report import RunInfo, RunWriter, build_report, summarise
from verl_ext.report.sections import Page, section, shell
from verl_ext.report.theme import ROLES

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Balance(HTMLParser):
    """Checks that every element is closed where it should be, and collects attributes that load something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.headings: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without the time that figures take."""
    figures = pytest.importorskip("verl_ext.report.figures")
    monkeypatch.setattr(figures, "draw_all", lambda run, own: ([], ["left out for this test."]))


def small_run(folder: Path, **fields: object) -> Path:
    with RunWriter(folder) as writer:
        writer.write_run(RunInfo(command=["x"], started_at="now", **fields))  # type: ignore[arg-type]
        writer.append(summarise(1, {"critic/score/mean": 0.5}))
    return folder


def test_the_page_is_well_formed_with_headings_in_order(page: str) -> None:
    parsed = Balance()
    parsed.feed(page)
    assert parsed.open == []
    levels = [int(heading[1]) for heading in parsed.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in pairwise(levels))


def test_the_page_loads_nothing(page: str) -> None:
    parsed = Balance()
    parsed.feed(page)
    assert all(value.startswith(("#", "data:")) for value in parsed.loads)
    assert re.findall(r"url\((?!#)", page) == []
    assert "@import" not in page and "<script" not in page
    assert "http://" not in page and "https://" not in page
    assert "default-src 'none'" in page


def test_the_page_has_a_dark_mode_a_phone_and_a_print_form(page: str) -> None:
    assert "@media (prefers-color-scheme: dark)" in page and "@media print" in page
    assert 'name="viewport"' in page and "@media (max-width:720px)" in page
    assert all(page.count(f"--{role}:") >= 2 for role in ROLES)


def test_every_section_is_there(page: str) -> None:
    for name in ("stopped", "numbers", "curves", "active", "events", "versions", "command", "notes", "last"):
        assert f'<section id="{name}"' in page
    assert page.index('id="curves"') < page.index('id="active"') < page.index('id="command"') < page.index('id="last"')
    for name in ("reward", "gap", "kl", "length", "health", "time", "validation", "feature-routing-replay"):
        assert f'id="figure-{name}"' in page


def test_the_verdict_and_the_key_numbers_are_at_the_top(page: str) -> None:
    top = page[: page.index('id="curves"')]
    assert re.search(r"reward 0\.\d+ \u2192 0\.\d+ over 20 steps; rollout/trainer gap at most \de-07|\d\.\de-07", top)
    assert "asked, and right in every answer" in top


def test_what_a_person_must_know_is_said(page: str) -> None:
    notes = page[page.index('id="notes"') :]
    assert "cannot be read" in notes
    assert "resumed at step 19; 2 superseded" in notes
    assert "actor/grad_norm is NaN or infinite at step 7" in notes


def test_a_feature_is_shown_with_what_proves_it_and_what_it_set(page: str) -> None:
    active = page[page.index('id="active"') : page.index('id="events"')]
    assert "<b>routing replay</b> on R3" in active and "<b>expert LoRA</b> off" in active
    assert "patch verl-a-patch applied in actor 0" in active
    assert "a.b" in active and "[1]" in active


def test_what_a_feature_declared_is_drawn_and_explained(page: str) -> None:
    figure = page[page.index('id="figure-feature-routing-replay"') :]
    assert "nereus/routing/replayed_fraction (share): routes that were &lt;replayed&gt;" in figure
    assert "routes that were &lt;replayed&gt;" in page[page.index('id="last"') :]


def test_how_the_run_stopped_and_what_happened_is_said(page: str) -> None:
    stopped = page[page.index('id="stopped"') : page.index('id="numbers"')]
    assert "training, step 20" in stopped and "it &lt;stopped&gt;" in stopped and "change:   look" in stopped
    assert "no &lt;routes&gt; arrived" in page[page.index('id="events"') : page.index('id="versions"')]


def test_everything_from_outside_is_escaped(page: str) -> None:
    assert "Sums &lt;b&gt;&amp; more&lt;/b&gt;" in page and "<b>& more" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "best constant &lt;answer&gt;" in page


def test_the_command_is_there_to_paste(page: str) -> None:
    assert "&#x27;trainer.project_name=two words&#x27;" in page


def test_the_last_step_shows_every_metric_with_ours_first(page: str) -> None:
    last = page[page.index('id="last"') :]
    assert "nereus/routing/replayed_fraction" in last and "perf/throughput" in last
    assert last.index("nereus/routing") < last.index("critic/score/mean")


def test_a_long_command_has_an_override_a_line() -> None:
    arguments = ["python3", "-m", "main", *(f"some.long.option_{i}=value {i}" for i in range(5))]
    lines = shell(arguments).split(" \\\n    ")
    assert lines[0] == "python3 -m main" and len(lines) == 6 and lines[1] == "'some.long.option_0=value 0'"
    assert shell(["python3", "x=1"]) == "python3 x=1"


def test_without_matplotlib_the_report_is_written_and_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run(tmp_path)
    monkeypatch.setitem(sys.modules, "verl_ext.report.figures", None)
    page = build_report(tmp_path).read_text(encoding="utf-8")
    assert "pip install &quot;verl-nereus[plots]&quot;" in page and "Figures are missing" in page
    assert '<section id="active"' in page and "<svg" not in page
    assert "1 warning<" in page


def test_a_stock_run_is_reported_beside_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    (tmp_path / "train.log").write_text("step:1 - critic/score/mean:0.5\n")
    path = build_report(tmp_path / "train.log")
    page = path.read_text(encoding="utf-8")
    assert path == tmp_path / "report.html"
    assert "made without nereus" in page and "source: console (train.log)" in page


def test_a_failing_build_leaves_the_old_report_and_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch)
    small_run(tmp_path)
    path = build_report(tmp_path)
    old, files = path.read_bytes(), sorted(tmp_path.iterdir())

    def broken(page: Page) -> str:
        raise RuntimeError("broken section")

    monkeypatch.setitem(sys.modules, "a_feature_page", SimpleNamespace(broken=broken))
    with pytest.raises(RuntimeError):
        build_report(tmp_path, sections=["a_feature_page:broken"])
    monkeypatch.setattr("verl_ext.report.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        build_report(tmp_path)
    assert path.read_bytes() == old and sorted(tmp_path.iterdir()) == files


def test_a_feature_can_add_a_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    small_run(tmp_path / "run")

    def mine(page: Page) -> str:
        return section("mine", "My <feature>", f"<p>{len(page.run.records)} record</p>")

    monkeypatch.setitem(sys.modules, "a_feature_page", SimpleNamespace(mine=mine))
    page = build_report(tmp_path / "run", out=tmp_path / "other.html", sections=["a_feature_page:mine"]).read_text()
    assert page.index('id="curves"') < page.index('id="mine"') < page.index('id="active"')
    assert 'id="mine"' in page and "My &lt;feature&gt;" in page and not (tmp_path / "run" / "report.html").exists()


def test_a_stock_run_has_no_section_of_a_feature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    (tmp_path / "train.log").write_text("step:1 - critic/score/mean:0.5\n")
    assert build_report(tmp_path, sections=["no_such_module:at_all"]).exists()


def test_many_equal_processes_share_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)
    processes = [{"process": f"actor {i}", "role": "actor", "host": "n", "code": "1"} for i in range(64)]
    processes[7]["host"] = "m"
    page = build_report(small_run(tmp_path, processes=processes)).read_text()
    assert "actor 0 \u2026 actor 63 (63)" in page and '<th scope="row">actor 7</th>' in page


def test_no_record_of_a_run_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(NereusError, match="no record"):
        build_report(tmp_path)
    assert list(tmp_path.iterdir()) == []

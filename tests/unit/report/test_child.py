"""The page is built beside the run: one build at a time, and a failure is one warning."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import pytest

from verl_ext.report.child import PageBuilder, command


def builder(folder: Path, code: str) -> PageBuilder:
    """One whose build is a piece of Python that runs in the folder's sight as `folder`."""
    return PageBuilder(folder, [sys.executable, "-c", f"import pathlib, sys, time; folder = {str(folder)!r}\n{code}"])


APPEND = "with open(folder + '/built', 'a') as file: file.write('x')"


def built(folder: Path) -> int:
    file = folder / "built"
    return len(file.read_text()) if file.exists() else 0


def test_closing_builds_and_waits(tmp_path: Path):
    assert builder(tmp_path, APPEND).close() is True
    assert built(tmp_path) == 1


def test_a_request_during_a_build_is_one_more_build_and_not_a_second_process(tmp_path: Path):
    page = builder(tmp_path, f"time.sleep(0.5)\n{APPEND}")
    for _ in range(5):
        page.build()
    assert built(tmp_path) == 0
    deadline = time.monotonic() + 20
    while built(tmp_path) < 2 and time.monotonic() < deadline:
        page.look()
        time.sleep(0.05)
    assert built(tmp_path) == 2
    assert page.close() and built(tmp_path) == 3


def test_a_failed_build_is_one_warning_and_later_ones_are_tried(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    page = builder(tmp_path, f"{APPEND}\nsys.exit('no room for figures')")
    with caplog.at_level(logging.WARNING):
        assert page.close() is False
        assert page.close() is False
    assert built(tmp_path) == 2
    (record,) = caplog.records
    assert "training goes on: no room for figures" in record.getMessage()
    assert f"nereus report {tmp_path}" in record.getMessage()


def test_a_build_that_does_not_end_is_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    page = builder(tmp_path, "time.sleep(60)")
    assert page.close(within_s=0.3) is False
    assert "it took longer than 0.3 s" in caplog.text


def test_a_build_that_cannot_start_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    page = PageBuilder(tmp_path, ["/no/such/program"])
    page.build()
    assert page.close() is False and "no/such/program" in caplog.text


def test_the_page_is_built_by_the_command_a_person_would_type(tmp_path: Path):
    assert command(tmp_path)[1:5] == ["-m", "verl_ext.cli", "report", str(tmp_path)]

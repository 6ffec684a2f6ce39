"""The run report: what a run did, as one HTML page, from nereus's own record or from verl's logs.

Importing this package imports neither matplotlib nor torch; only drawing figures does.
"""

from __future__ import annotations

from verl_ext.report.html import build_report
from verl_ext.report.model import ProcessReport, RunData, RunInfo
from verl_ext.report.names import summarise
from verl_ext.report.read import read_run
from verl_ext.report.writer import RunWriter

__all__ = ["ProcessReport", "RunData", "RunInfo", "RunWriter", "build_report", "read_run", "summarise"]

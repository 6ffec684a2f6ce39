"""Building the page in a process of its own, so that nothing about it can end or slow down a training run.

One build at a time. A request while one is running is answered by one more build afterwards. The first build that fails
is one warning; training goes on, and so do later builds.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

LOG_FILE = "report.log"
_NICENESS = 19
_LAST_BUILD_S = 120.0


def command(folder: Path) -> list[str]:
    """What builds the page of this folder, at the lowest priority."""
    return [sys.executable, "-m", "verl_ext.cli", "report", str(folder), "--nice", str(_NICENESS)]


class PageBuilder:
    """Builds `report.html` of one run folder again and again.

    Args:
        folder: the run folder.
        build: the command; None for `nereus report`.
    """

    def __init__(self, folder: Path, build: Sequence[str] | None = None):
        self._folder = folder
        self._command = list(build) if build is not None else command(folder)
        self._child: subprocess.Popen[bytes] | None = None
        self._again = False
        self._warned = False

    def build(self) -> None:
        """Start a build, or have one follow the one that runs. Returns at once."""
        if not self._idle():
            self._again = True
            return
        self._again = False
        try:
            with (self._folder / LOG_FILE).open("wb") as log:
                self._child = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
                )
        except OSError as error:
            self._warn(str(error))

    def look(self) -> None:
        """Start the build that was asked for meanwhile, if any; to be called now and then."""
        if self._again and self._idle():
            self.build()

    def close(self, within_s: float = _LAST_BUILD_S) -> bool:
        """Build once more and wait for it; whether the page is of the whole run."""
        if self._child is not None:
            self._wait(within_s)
        self.build()
        return self._wait(within_s)

    def _idle(self) -> bool:
        if self._child is not None and self._child.poll() is not None:
            self._ended(self._child.returncode)
        return self._child is None

    def _wait(self, within_s: float) -> bool:
        if self._child is None:
            return False
        try:
            return self._ended(self._child.wait(timeout=within_s))
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
            self._child = None
            self._warn(f"it took longer than {within_s:g} s")
            return False

    def _ended(self, code: int) -> bool:
        self._child = None
        if code != 0:
            lines = (self._folder / LOG_FILE).read_text(errors="replace").strip().splitlines()
            self._warn(lines[-1] if lines else f"exit code {code}")
        return code == 0

    def _warn(self, why: str) -> None:
        if not self._warned:
            logger.warning(
                "report.html could not be built, and training goes on: %s. All of it: %s. Later: nereus report %s",
                why,
                self._folder / LOG_FILE,
                self._folder,
            )
        self._warned = True

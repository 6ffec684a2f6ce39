"""Make the pictures of docs/images from a finished demo run.

    .venv/bin/python docs/make_pictures.py [RUN]    RUN: runs/latest unless another folder is given

The curves need matplotlib only. The screenshots of the report need a Chromium on the PATH and are left as they are
without one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from verl_ext.report import build_report, read_run
from verl_ext.report.figures import save_png

IMAGES = Path(__file__).with_name("images")
FIGURES = ("reward", "gap", "time")
# (name, width, height in CSS pixels, dark)
SCREENSHOTS = (("report-desktop-light", 1180, 1120, False), ("report-phone-dark", 500, 1120, True))
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
COLOURS = 256


def main(folder: Path) -> None:
    run = read_run(folder)
    IMAGES.mkdir(exist_ok=True)
    for theme in ("light", "dark"):
        shrink(save_png(run, IMAGES / f"curves-{theme}.png", theme=theme, only=FIGURES, dpi=90))
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("no chromium on the PATH: the screenshots are as they were")
    with tempfile.TemporaryDirectory() as temporary:
        report = build_report(folder, out=Path(temporary) / "report.html")
        for name, width, height, dark in SCREENSHOTS:
            file = IMAGES / f"{name}.png"
            photograph(browser, report, file, width, height, dark, Path(temporary) / name)
            shrink(file)


def photograph(browser: str, page: Path, file: Path, width: int, height: int, dark: bool, profile: Path) -> None:
    """Write what a browser window of that size shows of a page."""
    settings = [
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        f"--user-data-dir={profile}",
        f"--window-size={width},{height}",
        f"--screenshot={file}",
    ]
    subprocess.run(
        [browser, *FLAGS, *settings, page.as_uri()],
        check=True,
        timeout=120,
        capture_output=True,
    )


def shrink(file: Path) -> None:
    """Keep a picture of lines and letters small: one palette instead of full colour."""
    with Image.open(file) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/latest"))

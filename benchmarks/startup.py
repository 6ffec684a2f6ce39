"""Start-up of a CPU run: the first finished step with forked processes against separately started ones.

    .venv/bin/python benchmarks/startup.py

Both runs are the demo for one step, one after the other on the same machine: the same command but for
`nereus.cpu.python`. The time of the prefork run includes the start of its server. The last line is JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from verl_ext.demo import stack
from verl_ext.demo.assets import build_assets
from verl_ext.demo.recipe import demo_overrides
from verl_ext.launch.environment import cpu_environment
from verl_ext.launch.prefork.start import Prefork
from verl_ext.launch.supervise import run_job

ROOT = Path(__file__).parents[1]


def first_step_s(folder: Path, forked: bool) -> float:
    assets = build_assets(ROOT / "runs" / "assets")

    def command(python: str, temp: Path) -> list[str]:
        overrides = [
            *demo_overrides(assets, steps=1),
            *stack.cpu_overrides(max_model_len=64, temp_dir=temp),
            stack.bucket_override(assets.model),
            f"hydra.run.dir={folder}",
            "hydra.output_subdir=null",
            *([f"nereus.cpu.python={python}"] if forked else []),
        ]
        return stack.command(sys.executable, overrides)

    started = time.monotonic()
    with contextlib.ExitStack() as stack_:
        prefork = None
        if forked:
            folder.mkdir()
            prefork = stack_.enter_context(Prefork(folder / "prefork.log", stack.PRELOAD, env=cpu_environment()))
        before = time.monotonic() - started
        result = run_job(command, folder, prefork=prefork)
    if result.first_step_s is None:
        raise SystemExit(f"the run did not reach a step; log: {folder}/run.log")
    return before + result.first_step_s


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        plain = first_step_s(Path(folder) / "plain", forked=False)
        forked = first_step_s(Path(folder) / "forked", forked=True)
        figures = {
            "first_step_s_plain": round(plain, 1),
            "first_step_s_forked": round(forked, 1),
            "ratio": round(forked / plain, 3),
            "seconds": round(time.monotonic() - started, 1),
        }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()

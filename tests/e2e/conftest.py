"""Real runs: Ray, vLLM and FSDP2 on the CPU. One prefork server and one set of assets serve all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from verl_ext import ending
from verl_ext.demo import stack
from verl_ext.demo.assets import DemoAssets, build_assets
from verl_ext.demo.recipe import demo_overrides
from verl_ext.launch.environment import cpu_environment
from verl_ext.launch.prefork.start import Prefork
from verl_ext.launch.supervise import JobResult, run_job

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def prefork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefork]:
    with Prefork(tmp_path_factory.mktemp("prefork") / "prefork.log", stack.PRELOAD, env=cpu_environment()) as server:
        yield server


@pytest.fixture(scope="session")
def assets() -> DemoAssets:
    # The demo's own folder: built once for both, by whoever comes first.
    return build_assets(ROOT / "runs" / "assets")


@dataclass(frozen=True)
class Run:
    """A run that has ended, and what it left."""

    result: JobResult
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def info(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())

    def succeeded(self) -> Run:
        assert self.result.exit_code == 0, self.log[-6000:]
        return self

    def refused(self, within_s: float = 60.0) -> str:
        """The message of a run that was stopped in its first minute and left no report."""
        assert self.result.exit_code != 0, self.log[-6000:]
        assert self.result.seconds < within_s
        assert not (self.folder / "report.html").exists()
        assert not (self.folder / "metrics.jsonl").exists()
        assert not (self.folder / "run.json").exists()
        return str(ending.read(self.folder) or "")


Train = Callable[..., Run]


@pytest.fixture
def train(prefork: Prefork, assets: DemoAssets, tmp_path: Path) -> Train:
    """Run the demo's training for a few steps into `tmp_path`, with more overrides; later ones win."""
    return trainer(prefork, assets, tmp_path)


@pytest.fixture
def trainer_of() -> Callable[[Prefork, DemoAssets, Path], Train]:
    """The same for another prefork server and folder."""
    return trainer


def trainer(prefork: Prefork, assets: DemoAssets, folder: Path) -> Train:

    def run(*overrides: str, steps: int = 2, workers: int = 1, engine: str = "fsdp2", dtype: str = "float32") -> Run:
        def command(python: str, temp: Path) -> list[str]:
            everything = [
                *demo_overrides(assets, steps=steps, workers=workers),
                *stack.cpu_overrides(workers=workers, engine=engine, dtype=dtype, max_model_len=64, temp_dir=temp),
                stack.bucket_override(assets.model),
                f"hydra.run.dir={folder}",
                "hydra.output_subdir=null",
                f"trainer.default_local_dir={folder}/checkpoints",
                f"nereus.cpu.python={python}",
                *overrides,
            ]
            return stack.command(python, everything)

        return Run(run_job(command, folder, prefork=prefork), folder)

    return run

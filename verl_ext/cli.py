"""The `nereus` command. Each command imports what it needs when it is called, so that help and doctor start at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from verl_ext import __version__
from verl_ext.errors import NereusError
from verl_ext.feature import load


class _Commands(typer.core.TyperGroup):
    """The commands below, and those of features, which are imported when they are called or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        from verl_ext.integrations.features import FEATURES

        return [*super().list_commands(ctx), *(name for feature in FEATURES for name in feature.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        from verl_ext.integrations.features import FEATURES

        for feature in FEATURES:
            if cmd_name in feature.commands:
                return typer.main.get_command(load(feature.commands[cmd_name]))
        return None


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"nereus {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """nereus: RL post-training with verl where nothing is silently wrong."""


@app.command()
def demo(
    model: Annotated[Path | None, typer.Option(help="Hugging Face folder instead of the tiny model.")] = None,
    data: Annotated[Path | None, typer.Option(help="Parquet file in verl's schema instead of the task.")] = None,
    reward: Annotated[Path | None, typer.Option(help="Python file with compute_score.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="GRPO steps; 60, or 10 with a model of yours.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Training ranks, and as many rollout replicas.")] = 1,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16, of trainer and rollout.")] = "float32",
    engine: Annotated[str, typer.Option(help="Training engine: fsdp2 or megatron.")] = "fsdp2",
    runs: Annotated[Path, typer.Option(help="Folder for runs; the last one is at latest/ in it.")] = Path("runs"),
    overrides: Annotated[list[str] | None, typer.Argument(help="More verl overrides, after --.")] = None,
) -> None:
    """Train a tiny mixture-of-experts model with verl on this machine's CPU, and report whether it learned."""
    from verl_ext.demo import run as runner

    request = runner.Request(model, data, reward, steps, workers, dtype, engine, runs, tuple(overrides or ()))
    raise typer.Exit(runner.run(request))


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A run of nereus, or the logs of a stock verl run.")],
    out: Annotated[Path | None, typer.Option(help="Where to write the page; default: report.html in it.")] = None,
    nice: Annotated[int, typer.Option(min=0, max=19, help="Give way to other processes: 19 most.")] = 0,
) -> None:
    """Build report.html from the record of a run, or from verl's own console, file or TensorBoard logs."""
    from verl_ext.integrations.features import FEATURES
    from verl_ext.report import build_report

    os.nice(nice)
    sections = [name for feature in FEATURES for name in feature.sections]
    plots = [name for feature in FEATURES for name in feature.plots]
    typer.echo(build_report(folder, out=out, sections=sections, plots=plots))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Say what is installed here, what can work, and why something cannot. Exit code 1 when nereus cannot run."""
    from verl_ext.integrations import doctor as checkup

    findings = checkup.examine()
    typer.echo(checkup.as_json(findings) if as_json else checkup.as_text(findings))
    raise typer.Exit(0 if findings.healthy else 1)


def main() -> None:
    """Entry point: a refusal is a message and exit code 1, not a traceback."""
    try:
        app()
    except NereusError as error:
        sys.stderr.write(f"nereus: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()

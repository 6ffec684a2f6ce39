"""The `nereus` command."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def main() -> None:
    """nereus: verl with nothing silently wrong."""

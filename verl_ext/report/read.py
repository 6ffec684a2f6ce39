"""Finding the record of a run: nereus's own, or whatever a stock verl run left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from verl_ext import ending
from verl_ext.errors import NereusError
from verl_ext.report.model import Event, RunData, RunInfo
from verl_ext.report.records import merge
from verl_ext.report.verl_logs import (
    Found,
    is_file_logger,
    read_console,
    read_file_logger,
    read_tensorboard,
    unreadable_lines,
)
from verl_ext.report.writer import EVENTS_FILE, METRICS_FILE, RUN_FILE

# Deep enough for tensorboard_log/<project>/<experiment>/, but not for all the files of a checkpoint tree.
_DEPTH = 4
_CONSOLE = (".log", ".txt", ".out")
_LOOKED_FOR = (
    "nereus's metrics.jsonl and run.json, a .jsonl of verl's file logger, TensorBoard event files, "
    "or a .log, .txt or .out with verl's `step:N - ...` lines"
)


def read_run(path: str | Path) -> RunData:
    """Reads a run from a folder, or from one file of it.

    Of several sources in one folder the first of these counts: nereus's own record, verl's file logger,
    TensorBoard, console logs. `RunData.source` says which it was.

    Raises:
        NereusError: there is no such path, nothing in it is the record of a run, it holds several runs, or
            the only record needs a package that is not installed.
        OSError: a file cannot be opened.
    """
    path = Path(path)
    if not path.exists():
        raise _nothing(path, "no such file or folder")
    files = [path] if path.is_file() else list(_walk(path, _DEPTH))
    folder = _run_folder(path, files)
    info = None
    if folder is not None:
        info = _read_info(folder / RUN_FILE)
        files += [file for file in (folder / METRICS_FILE,) if file.exists() and file not in files]
    warnings: list[str] = []
    source, found = _first(path, folder, files, warnings)
    if not found.merged.by_step:
        if info is None:
            raise _nothing(path, "; ".join(found.warnings) or _listing(files))
        warnings.append("No step was recorded: the run stopped before its first step ended, or it is still in it.")
    if found.merged.superseded:
        at = ", ".join(map(str, found.merged.resumed_at))
        warnings.append(f"The run was resumed at step {at}; {found.merged.superseded} superseded records are left out.")
    return RunData(
        path=path,
        source=source,
        files=tuple(found.files),
        records=found.merged.records(),
        info=info,
        events=_read_events(folder / EVENTS_FILE) if folder is not None else (),
        ending=ending.read(folder) if folder is not None else None,
        resumed_at=tuple(found.merged.resumed_at),
        warnings=(*found.warnings, *warnings),
    )


def _run_folder(path: Path, files: list[Path]) -> Path | None:
    """The folder of nereus's own record: the one asked for, or the only one below it."""
    if path.is_file():
        return path.parent if path.name == RUN_FILE or _is_own(path) else None
    folders = sorted({file.parent for file in files if file.name == RUN_FILE or _is_own(file)})
    if path in folders:
        return path
    if len(folders) > 1:
        raise _several(path, folders, "nereus's record")
    return folders[0] if folders else None


def _is_own(path: Path) -> bool:
    return path.name == METRICS_FILE and not is_file_logger(path)


def _first(path: Path, folder: Path | None, files: list[Path], warnings: list[str]) -> tuple[str, Found]:
    own = [file for file in files if file.parent == folder and _is_own(file)]
    if own and (found := _read_own(own[0])):
        return "nereus", found
    loggers = [file for file in files if file.suffix == ".jsonl" and is_file_logger(file)]
    events = sorted({file.parent for file in files if file.name.startswith("events.out.tfevents.")})
    for source, candidates in (("verl file logger", loggers), ("tensorboard", events)):
        if len(candidates) > 1:
            raise _several(path, candidates, source)
        for candidate in candidates:
            logged = read_file_logger(candidate) if source == "verl file logger" else read_tensorboard(candidate)
            if logged:
                return source, logged
            warnings.append(f"{candidate.name} holds no step of a run.")
    printed = read_console(file for file in files if file.suffix in _CONSOLE or file == path)
    if printed is None:
        return "none", Found([])
    if len(printed.files) > 1:
        names = ", ".join(file.name for file in printed.files)
        warnings.append(f"Several console logs hold steps and were read as one run, oldest first: {names}.")
    return "console", printed


def _read_own(path: Path) -> Found | None:
    merged, unreadable = merge(path.read_bytes().split(b"\n"))
    warnings = [unreadable_lines(path, unreadable)] if unreadable else []
    return Found([path], merged, warnings) if merged.by_step or unreadable else None


def _read_info(path: Path) -> RunInfo | None:
    if not path.exists():
        return None
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise NereusError(
            "the run description is not JSON",
            where=str(path),
            expected="the run.json that nereus wrote",
            got=str(error),
            change="move the file away to report without it",
        ) from error
    return RunInfo.from_json(data, str(path))


def _read_events(path: Path) -> tuple[Event, ...]:
    """Half a line, of a run that was killed as it wrote it, is left out."""
    if not path.exists():
        return ()
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return tuple(json.loads(line) for line in lines if line)


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    """Files below a folder; those above first, hidden folders left out."""
    entries = sorted(folder.iterdir())
    yield from (entry for entry in entries if entry.is_file())
    if depth > 1:
        for entry in entries:
            if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
                yield from _walk(entry, depth - 1)


def _listing(files: list[Path]) -> str:
    names = [file.name for file in files[:8]]
    return (
        (", ".join(names) + (f" and {len(files) - 8} more" if len(files) > 8 else "")) if names else "an empty folder"
    )


def _several(path: Path, candidates: list[Path], what: str) -> NereusError:
    names = [str(candidate.relative_to(path)) for candidate in candidates[:6]]
    return NereusError(
        "the folder holds the logs of several runs",
        where=str(path),
        expected=f"{what} of one run",
        got=", ".join(names) + (", ..." if len(candidates) > 6 else ""),
        change="name one of them instead of the folder",
    )


def _nothing(path: Path, got: str) -> NereusError:
    return NereusError(
        "no record of a run was found",
        where=str(path),
        expected=_LOOKED_FOR,
        got=got,
        change="name the folder the run logged to; with nereus on, that is the folder it names at its start",
    )

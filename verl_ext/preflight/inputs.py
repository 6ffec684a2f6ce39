"""Files that a run is given: model, data, reward function. Read in bytes, so that a missing one costs no start-up."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.view import MODEL, View

DATA_KINDS = (".parquet", ".json", ".jsonl")
REWARD = "reward.custom_reward_function"


def model_config(view: View) -> dict[str, Any] | None:
    """The model's config.json when it is on this machine and can be read, else None."""
    file = Path(str(view(f"{MODEL}.hf_config_path", "") or view(f"{MODEL}.path", ""))) / "config.json"
    try:
        loaded = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return loaded if isinstance(loaded, dict) else None


@refuses(
    Refusal(
        "`model.path` is no folder, a folder without a readable `config.json`, or begins with `~`, "
        "which nobody expands",
        change="the path; what can be the name of a model on a hub is not looked for",
    ),
)
def readable_model(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    path = str(view(f"{MODEL}.path", ""))
    config = Path(str(view(f"{MODEL}.hf_config_path", "") or path)) / "config.json"
    problem, change = None, f"{MODEL}.path=FOLDER"
    if not path:
        problem = "nothing"
    elif "://" in path:  # verl fetches it
        return
    elif path.startswith("~"):  # transformers would look for a hub's model of that name
        problem, change = f"{path}: nobody expands the ~", f"{MODEL}.path={os.path.expanduser(path)}"
    elif Path(path).is_dir():
        if not config.is_file():
            problem = f"{path} (no config.json in it)"
        elif model_config(view) is None:
            problem = f"{config} (not JSON)"
    elif Path(path).exists():
        problem = f"{path} (not a folder)"
    elif path.startswith(("/", ".")) or path.count("/") > 1:  # a hub's model is NAME or OWNER/NAME
        problem = f"{path} (no such folder)"
    if problem:
        yield NereusError(
            "the model cannot be read",
            where=f"{MODEL}.path",
            expected="a folder with config.json, or the name of a model on a hub",
            got=problem,
            change=change,
        )


@refuses(
    Refusal(
        "a file of `data.train_files` or `data.val_files` is missing, cannot be read, is no parquet "
        "file or one that was cut off, or has a format that verl does not read "
        "(`utils/dataset/rl_dataset.py:178`)",
        change="the path; with `data.custom_cls.path` the files are not looked at",
    ),
)
def readable_data(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    if view("data.custom_cls.path"):  # a dataset of the user's own, which knows what its files are
        return
    for key in ("data.train_files", "data.val_files"):
        files = view(key, [])
        for name in [files] if isinstance(files, str) else [str(name) for name in files]:
            problem = None if "://" in name else _data_problem(Path(name).expanduser())
            if problem:
                yield NereusError(
                    "a data file cannot be read",
                    where=key,
                    expected="a readable file in one of the formats " + ", ".join(DATA_KINDS),
                    got=f"{name} ({problem})",
                    change=f"{key}=FILE",
                )


def _data_problem(file: Path) -> str | None:
    try:
        if file.suffix not in DATA_KINDS:
            return f"verl does not read {file.suffix or 'files without a suffix'}" if file.exists() else "no such file"
        if file.is_dir():
            return None
        with file.open("rb") as opened:
            size = os.fstat(opened.fileno()).st_size
            head = opened.read(4)
            opened.seek(max(0, size - 8))
            tail = opened.read(8)
    except FileNotFoundError:
        return "no such file"
    except OSError as error:
        return error.strerror
    if size == 0:
        return "empty"
    return _parquet_problem(size, head, tail) if file.suffix == ".parquet" else None


def _parquet_problem(size: int, head: bytes, tail: bytes) -> str | None:
    """Of a parquet file by its first 4 and last 8 bytes: PAR1 ... footer, length of the footer (uint32), PAR1."""
    if head != b"PAR1":
        return "not a parquet file"
    if size < 12 or tail[4:] != b"PAR1" or not 0 < int.from_bytes(tail[:4], "little") <= size - 12:
        return "cut off: the end of the parquet file is missing"
    return None


@refuses(
    Refusal(
        "`reward.custom_reward_function.path` is no file or no Python, or does not define the function of `.name`",
        change="the message has the names that the file does define; it is not run",
    ),
)
def reward_function(view: View, _options: NereusOptions) -> Iterator[NereusError]:
    path, name = str(view(f"{REWARD}.path", "")), str(view(f"{REWARD}.name", ""))
    if not path or path.startswith("pkg://"):
        return
    file = Path(path.removeprefix("file://"))
    change = f"{REWARD}.path=FILE"
    if not file.is_file():
        problem = f"{path} (no such file)"
    else:
        try:
            names = defined_names(file.read_bytes())
        except OSError as error:
            problem = f"{path} ({error.strerror})"
        except (SyntaxError, ValueError) as error:
            problem = f"{path} ({error})"
        else:
            if names is None or name in names:
                return
            problem = f"{path} has no {name or 'function: no name is given'}"
            change = f"{REWARD}.name={' or '.join(sorted(names)) or 'FUNCTION'}"
    yield NereusError(
        "the reward function cannot be loaded",
        where=f"{REWARD}.path" if change.startswith(f"{REWARD}.path") else f"{REWARD}.name",
        expected="a Python file with the function named in reward.custom_reward_function.name",
        got=problem,
        change=change,
    )


def defined_names(source: bytes) -> set[str] | None:
    """Names that a module binds at its top level, without running it; None when that cannot be told.

    Raises:
        SyntaxError, ValueError: it is not Python.
    """
    names: set[str] = set()
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        for node in ast.iter_child_nodes(pending.pop()):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            else:
                pending.append(node)
    return None if names & {"*", "__getattr__"} else names

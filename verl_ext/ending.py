"""How a run ended that did not end well: `end.json` in its folder, written by the process that stopped it."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from verl_ext.errors import NereusError

END_FILE = "end.json"
# The phases, in the order in which a run passes them.
CONFIG, START, ROLL_CALL, TRAINING = "config", "start", "roll call", "training"


@dataclass(frozen=True)
class Ending:
    """Why a run stopped: the five parts of an error, and how far it was.

    Attributes:
        phase: `config` (the driver reads the config), `start` (processes start), `roll call` or `training`.
        step: the step it was in; None before the first.
    """

    what: str
    where: str
    expected: str
    got: str
    change: str
    phase: str
    step: int | None = None

    def __str__(self) -> str:
        error = NereusError(self.what, where=self.where, expected=self.expected, got=self.got, change=self.change)
        return str(error)


def of(error: BaseException, phase: str, step: int | None = None) -> Ending:
    """The ending by this error: by its own five parts, or by those of the NereusError that it carries from elsewhere.

    Ray raises an error of a worker as one with the worker's own as its cause.
    """
    seen: BaseException | None = error
    while seen is not None:
        for found in (seen, getattr(seen, "cause", None)):
            if isinstance(found, NereusError):
                return Ending(found.what, found.where, found.expected, found.got, found.change, phase, step)
        seen = seen.__cause__
    last = str(error).strip().splitlines()[-1:] or [""]
    return Ending(
        f"the run stopped with {type(error).__name__}",
        where=phase if step is None else f"{phase}, step {step}",
        expected="no error",
        got=last[0] or type(error).__name__,
        change="see the log of the run",
        phase=phase,
        step=step,
    )


def write(folder: str | Path, ending: Ending) -> None:
    """Write `end.json`, in one go. A folder that cannot be written is no second error: the first one is what counts."""
    target = Path(folder) / END_FILE
    temporary = target.with_name(f".{END_FILE}.{os.getpid()}")
    with contextlib.suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(ending), indent=2) + "\n", encoding="utf-8")
        temporary.replace(target)


def read(folder: str | Path) -> Ending | None:
    """The ending of the run in this folder; None when it left none."""
    try:
        return Ending(**json.loads((Path(folder) / END_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def forget(folder: str | Path) -> None:
    """Remove the ending of an earlier run in this folder."""
    with contextlib.suppress(OSError):
        (Path(folder) / END_FILE).unlink(missing_ok=True)

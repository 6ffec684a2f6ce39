"""Prefork start: every Python process of a run is a fork of one that has imported the stack. See `launch/prefork`."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from verl_ext.compat.touch import Door
from verl_ext.feature import Feature, Run
from verl_ext.integrations.run import current
from verl_ext.view import View


class Executable(Door):
    name = "python-multiprocessing-executable"
    target = "multiprocessing.spawn:set_executable"
    why = "Children of multiprocessing, such as vLLM's, are started with the same stand-in for python as Ray's workers."
    upstream = "Python's own multiprocessing.set_executable, 3.10 to 3.12"
    remove_when = "prefork start is no longer worth it"
    versions = {"verl": "==0.9.1"}  # noqa: RUF012
    changes = ("multiprocessing.spawn:_python_exe",)

    def apply(self, module: ModuleType) -> None:
        module.set_executable(current().options.cpu.python)


def lower(run: Run, _view: View) -> Mapping[str, Any]:
    return {"ray_kwargs.ray_init.runtime_env.py_executable": run.options.cpu.python}


FEATURE = Feature(
    name="prefork start",
    summary="imports once, forks every process (CPU only)",
    state="works",
    tested="end to end on CPU",
    on=lambda run: bool(run.options.cpu.python),
    lower=lower,
    touches=(Executable,),
)

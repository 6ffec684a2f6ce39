"""The run that this process is part of: what every integration may ask, and the ground floor of them.

The driver makes a `Run` from the composed config. It travels as JSON in Ray's runtime environment, where every Ray
process of the job finds it before any other code runs; processes that vLLM starts inherit it.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass, field

from verl_ext.compat.versions import installed
from verl_ext.config import NereusOptions

VARIABLE = "NEREUS_ACTIVATION"


@dataclass(frozen=True)
class Run:
    """What a process has to know to take part.

    Attributes:
        options: all options, resolved.
        platform: verl's `trainer.device`, e.g. `cuda` or `cpu`.
        rollout: verl's `rollout.name`, e.g. `vllm`.
        engines: training role -> verl's strategy for it, e.g. `actor` -> `megatron`.
        mode: verl's `trainer.v1.trainer_mode`, e.g. `sync`.
        versions: what the driver has installed, to name the odd one out.
        id: eight hex digits that no other run on this machine has.
    """

    options: NereusOptions
    platform: str
    rollout: str
    engines: dict[str, str] = field(default_factory=dict)
    mode: str = "sync"
    versions: dict[str, str] = field(default_factory=installed)
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Run:
        values = json.loads(text)
        return cls(**{**values, "options": NereusOptions.from_mapping(values["options"])})


_active: Run | None = None


def active() -> Run | None:
    """The run of this process, or None when nereus is off here."""
    return _active


def current() -> Run:
    """The run of this process, for code that only runs in one.

    Raises:
        RuntimeError: nereus is off here.
    """
    if _active is None:
        raise RuntimeError("this process is not part of a run of nereus")
    return _active


def enter(run: Run) -> None:
    """Make this process part of a run. Only `verl/join.py` calls this: it does the rest as well."""
    global _active
    _active = run

"""How a Ray process of a run answers the roll call."""

from __future__ import annotations

from typing import Any

from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.verl.roll_call import answer


def own_answer(process: str, role: str) -> dict[str, Any]:
    """The answer of this process."""
    return answer(process, role, FEATURES)


def actor_answer(_actor: Any, process: str, role: str) -> dict[str, Any]:
    """The same, for `handle.__ray_call__`."""
    return own_answer(process, role)

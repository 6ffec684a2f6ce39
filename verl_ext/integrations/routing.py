"""Router replay: not in this version. Asking for it is refused."""

from __future__ import annotations

from verl_ext.feature import Feature
from verl_ext.routing.rules import nereus_router_replay


def problem() -> str:
    """For `nereus doctor`."""
    return "not in this version"


FEATURE = Feature(
    name="router replay",
    summary="R2, R3 and predictive replay of the rollout's routes in the trainer",
    state="not in this version; asking for it is refused",
    tested="",
    on=lambda run: run.options.routing.mode != "off",
    detail=lambda run: run.options.routing.mode,
    rules=(nereus_router_replay,),
    doctor=f"{__name__}:problem",
)

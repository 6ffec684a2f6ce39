"""What router replay refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from verl_ext.errors import NereusError
from verl_ext.feature import Refusal, refuses
from verl_ext.view import View

if TYPE_CHECKING:
    from verl_ext.config import NereusOptions


@refuses(
    Refusal(
        "`nereus.routing.mode` other than `off`",
        because="not verl's: nereus has no router replay of its own in this version",
        change="`nereus.routing.mode=off`, or verl's own R3",
    ),
)
def nereus_router_replay(_view: View, options: NereusOptions) -> Iterator[NereusError]:
    if options.routing.mode != "off":
        yield NereusError(
            "nereus's router replay is not in this version",
            where="nereus.routing.mode",
            expected="off",
            got=options.routing.mode,
            change="nereus.routing.mode=off, or verl's own R3 with "
            "nereus.routing.mode=off model_engine=megatron actor_rollout_ref.actor.megatron.router_replay.mode=R3 "
            "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
        )

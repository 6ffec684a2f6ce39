"""Options of router replay."""

from __future__ import annotations

from dataclasses import dataclass

from verl_ext.options import Section, one_of

MODES = ("off", "R2", "R3", "PR2")


@dataclass
class RoutingOptions(Section):
    """Router replay on mixture-of-experts models."""

    mode: str = "off"
    """off, R2 (record in the log-prob pass), R3 (record in the rollout) or PR2 (predictive). Only off in this
    version."""

    def check(self, path: str) -> None:
        one_of(f"{path}.mode", self.mode, MODES)

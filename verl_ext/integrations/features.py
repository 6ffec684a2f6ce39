"""Every feature, in the order in which their extensions are composed, from the outside in.

Imported whenever verl is, so importing it costs nothing: no torch, no engine, no matplotlib.

A package of somebody else's adds a feature by an entry point of the group `nereus.features` that names its `Feature`.
"""

from __future__ import annotations

import importlib.metadata

from verl_ext.config import add_section
from verl_ext.errors import NereusError
from verl_ext.feature import Feature
from verl_ext.integrations import routing
from verl_ext.integrations.cpu import platform, prefork
from verl_ext.integrations.cpu.megatron import patches as megatron
from verl_ext.integrations.verl import polling, record, roll_call, weight_sync

GROUP = "nereus.features"

OWN: tuple[Feature, ...] = (
    roll_call.FEATURE,
    record.FEATURE,
    weight_sync.FEATURE,
    polling.FEATURE,
    platform.FEATURE,
    prefork.FEATURE,
    megatron.FEATURE,
    routing.FEATURE,
)


def _of_others() -> tuple[Feature, ...]:
    found = []
    for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name):
        feature = point.load()
        if not isinstance(feature, Feature):
            raise NereusError(
                f"the entry point {point.name} is no feature",
                where=f"entry points, group {GROUP}",
                expected="module:attribute of a verl_ext.feature.Feature",
                got=f"{point.value}: {type(feature).__name__}",
                change=f"mend or uninstall {point.dist.name if point.dist else 'the package'}",
            )
        if feature.section is not None:
            add_section(*feature.section)
        found.append(feature)
    return tuple(found)


FEATURES: tuple[Feature, ...] = (*OWN, *_of_others())

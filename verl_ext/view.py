"""Looking things up in verl's composed config, which may lack any of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROLLOUT, ACTOR, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.model"

_ABSENT = object()


class View:
    """Read-only look-up by dotted path."""

    def __init__(self, config: Any):
        self._config = config

    def __call__(self, path: str, default: Any = None) -> Any:
        """The value at `path`; `default` where it is absent, null or not yet given (`???`)."""
        found = self._find(path)
        return default if found is _ABSENT or found is None else found

    def override(self, path: str, value: Any) -> str:
        """What to write on the command line: with a plus where verl's files leave the key out."""
        return f"{'+' if self._find(path) is _ABSENT else ''}{path}={value}"

    def _find(self, path: str) -> Any:
        node = self._config
        for part in path.split("."):
            if not isinstance(node, Mapping) or part not in node.keys():  # noqa: SIM118, `in` hides keys without a value
                return _ABSENT
            node = node.get(part)
        return node

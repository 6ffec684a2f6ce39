"""The methods that nereus adds to vLLM's engine processes, so that the roll call can ask them."""

from __future__ import annotations

import json
from typing import Any

from verl_ext.integrations.verl.process import report


def core_report(_engine: Any, process: str) -> str:
    """Method added to vLLM's EngineCore."""
    return json.dumps(report(process, "engine_core"))


def worker_report(_worker: Any, process: str) -> str:
    """Method added to verl's vLLM worker extension."""
    return json.dumps(report(process, "engine_worker"))

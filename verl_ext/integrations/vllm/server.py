"""verl's vLLM server with one more method: what is active in it and in its engine's processes."""

from __future__ import annotations

import json
import os
from typing import Any

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from verl_ext.integrations.verl.process import report
from verl_ext.integrations.verl.weight_sync import socket_job


class ReportingHttpServer(vLLMHttpServer):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # Read in the engine's workers, which are started later; see WatchedServerAdapter.
        os.environ["VERL_RAY_JOB_ID"] = socket_job(os.environ["VERL_RAY_JOB_ID"])

    async def nereus_reports(self, process: str) -> list[dict[str, Any]]:
        """Reports of this actor, of the engine core and of every engine worker, for the roll call."""
        reports = [report(f"{process} server", "server")]
        if self.node_rank != 0:  # only the first node's server holds the engine client; it asks for all
            return reports
        core = f"{process} engine core"
        try:
            text = await self.engine.engine_core.call_utility_async("nereus_report", core)
            reports.append(json.loads(text))
        except Exception as error:  # an engine without the method answers with its own error, which is the finding
            reports.append(_silent(core, error))
        try:
            for rank, text in enumerate(await self.engine.collective_rpc("nereus_report", args=(process,))):
                reports.append({**json.loads(text), "process": f"{process} engine worker {rank}"})
        except Exception as error:
            reports.append(_silent(f"{process} engine worker", error))
        return reports


def _silent(process: str, error: Exception) -> dict[str, Any]:
    cause = f"{type(error).__name__}: {error}"
    filtered = os.environ.get("VLLM_PLUGINS")
    if filtered is not None:
        cause = f"VLLM_PLUGINS={filtered} is set ({cause})"
    return {"process": process, "active": False, "error": cause}


class ReportingReplica(vLLMReplica):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(ReportingHttpServer)

"""How the processes of vLLM answer the roll call: the server for itself and for the engine below it."""

from __future__ import annotations

import json
import os
from typing import Any

from verl_ext.integrations.verl.answers import own_answer


class AnsweringServer:
    """verl's vLLM server with one more method."""

    node_rank: int
    engine: Any

    async def nereus_answers(self, process: str) -> list[dict[str, Any]]:
        """Answers of this actor, of the engine core and of every engine worker."""
        answers = [own_answer(f"{process} server", "server")]
        if self.node_rank != 0:  # only the first node's server holds the engine client; it asks for all
            return answers
        core = f"{process} engine core"
        try:
            text = await self.engine.engine_core.call_utility_async("nereus_answer", core)
            answers.append(json.loads(text))
        except Exception as error:  # an engine without the method answers with its own error, which is the finding
            answers.append(_silent(core, error))
        try:
            for rank, text in enumerate(await self.engine.collective_rpc("nereus_answer", args=(process,))):
                answers.append({**json.loads(text), "process": f"{process} engine worker {rank}"})
        except Exception as error:
            answers.append(_silent(f"{process} engine worker", error))
        return answers


class AnsweringWorker:
    """verl's extension of a vLLM worker with one more method."""

    def nereus_answer(self, process: str) -> str:
        return json.dumps(own_answer(process, "engine_worker"))


def core_answer(_engine: Any, process: str) -> str:
    """Method added to vLLM's EngineCore."""
    return json.dumps(own_answer(process, "engine_core"))


def _silent(process: str, error: Exception) -> dict[str, Any]:
    cause = f"{type(error).__name__}: {error}"
    filtered = os.environ.get("VLLM_PLUGINS")
    if filtered is not None:
        cause = f"VLLM_PLUGINS={filtered} is set ({cause})"
    return {"process": process, "active": False, "why": cause}

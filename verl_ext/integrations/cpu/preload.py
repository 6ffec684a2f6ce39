"""What the prefork server of a run imports before it forks: the cpu platform, and the stack on top of it.

verl imports Megatron wherever it is found. That takes seconds and has to come after the patches of the process that
uses it, so here Megatron is not found; a fork that trains with it imports it then.
"""

import importlib
import sys

from verl_ext.integrations.cpu.platform import open_platform

# In the order that lets the longest imports run first. None of these starts a thread or touches a device.
MODULES = (
    "torch",
    "transformers",
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.experimental.agent_loop",
    "verl.experimental.reward_loop",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
)

open_platform()
sys.modules["megatron"] = None  # type: ignore[assignment]
try:
    for _module in MODULES:
        importlib.import_module(_module)
finally:
    del sys.modules["megatron"]

"""What the server of `ranks.py` imports before it forks: the cpu platform, Megatron, and verl's engine for it."""

from verl_ext.compat.patch import MANIFEST
from verl_ext.integrations import doors, patches

doors.open_all("cpu")
MANIFEST.arm(patches.wanted("cpu", "vllm", ["megatron"]))

import transformers.models.deepseek_v3.modeling_deepseek_v3  # noqa: E402
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: E402, F401
import verl.workers.engine.megatron.transformer_impl  # noqa: E402, F401

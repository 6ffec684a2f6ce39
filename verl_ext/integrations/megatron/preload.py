"""What the server of `ranks.py` imports before it forks: the cpu platform, Megatron, and verl's engine for it."""

from verl_ext.config import NereusOptions
from verl_ext.integrations.run import Run
from verl_ext.integrations.verl.join import join

join(Run(NereusOptions(), "cpu", "vllm", {"actor": "megatron"}))

import transformers.models.deepseek_v3.modeling_deepseek_v3  # noqa: E402
import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: E402, F401
import verl.workers.engine.megatron.transformer_impl  # noqa: E402, F401

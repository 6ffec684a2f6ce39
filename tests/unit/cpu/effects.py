"""What the patched functions of verl and vLLM do on a CPU, before and after the patches, as JSON on standard output.

Run as a program in a fresh process: a patch cannot be taken off again.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from verl_ext.integrations.cpu import distribution
from verl_ext.integrations.cpu.patches import CPU_PATCHES

distribution.install()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import verl.utils.distributed as verl_distributed  # noqa: E402
import vllm.model_executor.layers.utils as vllm_linear  # noqa: E402
import vllm.v1.worker.gpu_model_runner as vllm_runner  # noqa: E402
from torch.distributed import BackendConfig  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding  # noqa: E402


def single_gloo_backend() -> str:
    """Whether torch takes the backend that verl asks for: `taken`, or its error."""
    asked: list[str] = []
    real = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **_: asked.append(backend)
    verl_distributed.get_device_name, verl_distributed.get_nccl_backend = lambda: "cpu", lambda: "gloo"
    try:
        verl_distributed.initialize_global_process_group_ray()
        BackendConfig(asked[0])
    except ValueError as error:
        return f"{asked[0]}: {error}"
    finally:
        torch.distributed.init_process_group = real
    return "taken"


def loadable_linear() -> dict[str, Any]:
    """The weight of a Linear after it was made ready, and whether a new weight changes what it computes."""
    layer = torch.nn.Linear(32, 32, bias=False).requires_grad_(False)
    vllm_linear.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    shape = list(layer.weight.shape)
    if shape != [32, 32]:
        return {"shape": shape}
    x = torch.randn(4, 32)
    layer.weight.copy_(torch.eye(32))
    return {"shape": shape, "follows": torch.equal(layer.cpu_linear(x, layer.weight, None), x)}


def seeded_chunked_prefill() -> str:
    """The bookkeeping after a step in which a seeded request's prefill was cut: `goes on`, or the error it dies of."""
    anything = defaultdict(lambda: None)
    batch = SimpleNamespace(num_reqs=1, generators={0: torch.Generator().manual_seed(1)})
    runner = SimpleNamespace(
        input_batch=batch, discard_request_mask=SimpleNamespace(np=np.array([True])), **dict(anything)
    )
    try:
        vllm_runner.GPUModelRunner._bookkeeping_sync(runner, None, None, None, None, 1)
    except AttributeError as error:  # past the rewind: this runner has nothing else
        kept = list(batch.generators) == [0]
        return "goes on" if "SimpleNamespace" in str(error) and kept else f"AttributeError: {error}"
    except RuntimeError as error:
        return f"RuntimeError: {str(error).splitlines()[0]}"
    return "returned"


def contiguous_rotary() -> float:
    """Largest error of the rotary embedding on a view with gaps, as MLA models pass it, against the exact one."""
    torch.manual_seed(0)
    with set_current_vllm_config(VllmConfig()):
        layer = RotaryEmbedding(16, 16, 64, 10000.0, True, torch.float32)
    positions, wide = torch.arange(5), torch.randn(5, 2, 32)
    exact, _ = layer.forward_native(positions, wide[..., 16:].contiguous(), None)
    found, _ = layer.forward_cpu(positions, wide[..., 16:], None)
    return float((found - exact).abs().max())


CASES = {
    "verl-single-gloo-backend": single_gloo_backend,
    "vllm-cpu-loadable-linear": loadable_linear,
    "vllm-cpu-seeded-chunked-prefill": seeded_chunked_prefill,
    "vllm-cpu-contiguous-rotary": contiguous_rotary,
}


def main() -> None:
    before = {name: case() for name, case in CASES.items()}
    for patch in CPU_PATCHES:
        patch().arm()
    after = {name: case() for name, case in CASES.items()}
    sys.stdout.write("\n" + json.dumps({"before": before, "after": after}) + "\n")


if __name__ == "__main__":
    main()

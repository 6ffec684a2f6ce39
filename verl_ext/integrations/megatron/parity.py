"""One training step of a tiny model in verl's Megatron engine, and the same step in transformers.

Both start from the same folder and take one Adam step on the same sequences in float32, so log-probs, gradient norm and
every weight can be compared. The functions with a `Layout` run on every rank (see `ranks.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from verl_ext.integrations.megatron.layout import Layout

LEARNING_RATE, BETAS = 1e-2, (0.9, 0.95)
# As large as the smaller gradients: Adam divides by them, and would make of rounding errors whole steps.
EPSILON = 1e-4
PROMPT = 5


@dataclass(frozen=True)
class Case:
    """What is run.

    Attributes:
        model: folder of the model.
        layout: of the engine.
        lengths: of the sequences in tokens; the first `PROMPT` of each are not trained on.
        micro_batch: sequences a micro-batch and rank.
        packed: sequences without padding (THD), else padded to one length.
        steps: optimizer steps.
        transformer: overrides of Megatron's transformer config.
        engine: overrides of verl's engine config.
        checkpoint: folder to save to after the steps.
        resume: folder to load from before them.
    """

    model: Path
    layout: Layout = field(default_factory=Layout)
    lengths: tuple[int, ...] = (20, 31, 13, 24)
    micro_batch: int = 2
    packed: bool = True
    steps: int = 1
    transformer: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    checkpoint: Path | None = None
    resume: Path | None = None

    def on(self, layout: Layout) -> Case:
        return replace(self, layout=layout)


@dataclass
class Outcome:
    """What came of a case.

    Attributes:
        log_probs: of the first forward pass, one float32 [length - 1] for each sequence, in their order.
        grad_norms, losses: by step.
        exported: Hugging Face name -> weight before the first step, as the weight sync would send it.
        weights: the same after the last step.
    """

    log_probs: list[torch.Tensor]
    grad_norms: list[float]
    losses: list[float]
    exported: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]


def sequences(lengths: Sequence[int], vocabulary: int, seed: int = 7) -> list[torch.Tensor]:
    """Random token ids, int64 [length] each; id 0 (padding) does not occur."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(4, vocabulary, (length,), generator=generator) for length in lengths]


def loss_masks(lengths: Sequence[int]) -> list[torch.Tensor]:
    """int64 [length] each: 1 where the token is trained on."""
    return [(torch.arange(length) >= PROMPT).long() for length in lengths]


# ------------------------------------------------------------------------------------------------ transformers


def reference(case: Case) -> Outcome:
    """The case in transformers, in this process; layout and packing play no part."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(case.model, dtype=torch.float32, attn_implementation="eager")
    before = _weights(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=0.0)
    tokens, masks = sequences(case.lengths, model.config.vocab_size), loss_masks(case.lengths)
    trained = sum(int(mask.sum()) for mask in masks)
    log_probs: list[torch.Tensor] = []
    grad_norms, losses = [], []
    for _ in range(case.steps):
        optimizer.zero_grad()
        now = [_log_probs(model, ids) for ids in tokens]
        log_probs = log_probs or [row.detach() for row in now]
        loss = -sum((row * mask[1:]).sum() for row, mask in zip(now, masks, strict=True)) / trained
        loss.backward()
        grad_norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item())
        losses.append(loss.item())
        optimizer.step()
    return Outcome(log_probs, grad_norms, losses, before, _weights(model))


def _log_probs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    logits = model(ids[None]).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(-1, ids[1:, None])[:, 0]


def _weights(model: Any) -> dict[str, torch.Tensor]:
    """Name -> copy of the weight, by the names that a saved folder has (one entry an expert)."""
    import tempfile

    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


# ------------------------------------------------------------------------------------------------ verl


def build_engine(case: Case) -> Any:
    """verl's Megatron engine on this rank, as its worker builds it; initialised."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine import EngineRegistry

    layout = case.layout
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="megatron",
        model_config=HFModelConfig(path=str(case.model), use_remove_padding=case.packed),
        engine_config=McoreEngineConfig(
            **{
                "tensor_model_parallel_size": layout.tp,
                "pipeline_model_parallel_size": layout.pp,
                "virtual_pipeline_model_parallel_size": layout.vpp,
                "context_parallel_size": layout.cp,
                "expert_model_parallel_size": layout.ep,
                "expert_tensor_parallel_size": layout.etp,
                "sequence_parallel": layout.tp > 1,
                "use_remove_padding": case.packed,
                "vanilla_mbridge": False,
                "dtype": "float32",
                "param_offload": False,
                "optimizer_offload": False,
                # The router's selection bias moves with the load, not with the gradient; transformers has no such step.
                "override_transformer_config": {"moe_router_bias_update_rate": 0.0, **case.transformer},
                **case.engine,
            }
        ),
        optimizer_config=McoreOptimizerConfig(
            lr=LEARNING_RATE,
            betas=BETAS,
            weight_decay=0.0,
            clip_grad=1e9,
            lr_warmup_steps=0,
            lr_decay_steps=10,
            total_training_steps=10,
            override_optimizer_config={"adam_eps": EPSILON},
        ),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def batch(case: Case, vocabulary: int, dp_size: int, dp_rank: int) -> Any:
    """This rank's part of the sequences, as verl's trainer would send it."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    tokens, masks = sequences(case.lengths, vocabulary), loss_masks(case.lengths)
    part = slice(dp_rank * len(tokens) // dp_size, (dp_rank + 1) * len(tokens) // dp_size)
    tokens, masks = tokens[part], masks[part]
    longest = max(len(ids) for ids in tokens) - PROMPT
    response = torch.stack([torch.arange(longest) < len(ids) - PROMPT for ids in tokens]).float()

    def nested(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    data = TensorDict(
        {
            "input_ids": nested(tokens),
            "loss_mask": nested(masks),
            "position_ids": nested([torch.arange(len(ids)) for ids in tokens]),
            "response_mask": response,
        },
        batch_size=[len(tokens)],
    )
    tu.assign_non_tensor(
        data,
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=case.micro_batch,
        temperature=1.0,
        global_batch_size=len(case.lengths),
    )
    return data


def token_mean_loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
    """Mean negative log-prob over all trained tokens of the batch, in verl's convention for a loss function."""
    log_probs = model_output["log_probs"].values()
    mask = torch.roll(data["loss_mask"].values(), -1, 0)
    loss = -(log_probs * mask).sum() / data["batch_num_tokens"] * data["dp_size"]
    return loss, {"nll": loss.detach().item()}


def run_case(case: Case) -> dict[str, Any]:
    """The case on this rank; `gather` makes one Outcome of all ranks' answers."""
    engine = build_engine(case)
    if case.resume is not None:
        engine.load_checkpoint(str(case.resume))
    dp_size, dp_rank = engine.get_data_parallel_size(), engine.get_data_parallel_rank()
    data = batch(case, engine.model_config.hf_config.vocab_size, dp_size, dp_rank)
    exported = _export(engine)
    with engine.eval_mode():
        inferred = engine.infer_batch(data.clone())
    grad_norms, losses = [], []
    for _ in range(case.steps):
        with engine.train_mode():
            trained = engine.train_batch(data.clone(), token_mean_loss)
        if engine.is_mp_src_rank_with_outputs():
            metrics = trained["metrics"]
            grad_norms.append(float(metrics["grad_norm"]))
            # The engine averages gradients over data-parallel ranks, so the loss function multiplies by their number.
            losses.append(float(sum(metrics["nll"])) / dp_size)
    if case.checkpoint is not None:
        engine.save_checkpoint(str(case.checkpoint), global_step=case.steps)
    answer: dict[str, Any] = {"exported": exported, "weights": _export(engine), "dp_rank": None}
    if engine.is_mp_src_rank_with_outputs():
        rows = inferred["model_output"]["log_probs"].unbind()
        answer.update(
            dp_rank=dp_rank, log_probs=[row[:-1].float() for row in rows], grad_norms=grad_norms, losses=losses
        )
    return answer


def _export(engine: Any) -> dict[str, torch.Tensor]:
    parameters, _ = engine.get_per_tensor_param()
    weights = {name: weight.detach().clone() for name, weight in parameters}
    return weights if torch.distributed.get_rank() == 0 else {}


def gather(answers: list[dict[str, Any]]) -> Outcome:
    """One outcome from the answers of all ranks."""
    sources = sorted((a for a in answers if a["dp_rank"] is not None), key=lambda answer: answer["dp_rank"])
    return Outcome(
        log_probs=[row for source in sources for row in source["log_probs"]],
        grad_norms=sources[0]["grad_norms"],
        losses=[sum(parts) for parts in zip(*(source["losses"] for source in sources), strict=True)],
        exported=answers[0]["exported"],
        weights=answers[0]["weights"],
    )


@dataclass(frozen=True)
class Difference:
    """Largest differences between two outcomes: log-probs and weights absolute, gradient norms relative."""

    log_prob: float
    grad_norm: float
    weight: float


def compare(one: Outcome, other: Outcome) -> Difference:
    """Raise ValueError when the outcomes do not have the same sequences and weights."""
    if set(one.weights) != set(other.weights):
        odd = sorted(set(one.weights) ^ set(other.weights))
        raise ValueError(f"weights that only one side has: {', '.join(odd[:5])}")
    return Difference(
        log_prob=max((a - b).abs().max().item() for a, b in zip(one.log_probs, other.log_probs, strict=True)),
        grad_norm=max(abs(a - b) / b for a, b in zip(one.grad_norms, other.grad_norms, strict=True)),
        weight=max(
            (one.weights[name].float() - other.weights[name].float()).abs().max().item() for name in one.weights
        ),
    )

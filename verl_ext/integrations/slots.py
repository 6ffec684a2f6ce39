"""The upstream classes that features may extend."""

from __future__ import annotations

from types import ModuleType

from verl_ext.compat.extension import Slot
from verl_ext.compat.touch import rebind

VERL = {"verl": "==0.9.1"}
_ENGINE = "verl.workers.engine"
_REGISTRY = f"{_ENGINE}.base:EngineRegistry._engines"
_VLLM = "verl.workers.rollout.vllm_rollout"


class TrainerSlot(Slot):
    name = "verl-trainer"
    target = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
    trigger = "verl.trainer.ppo.v1"
    why = "Each of verl's V1 trainers in its registry is replaced by its composed subclass."
    upstream = "verl 0.9.1 trainer/ppo/v1/trainer_base.py, TRAINER_REGISTRY"
    remove_when = "verl's trainers take callbacks"
    versions = VERL
    relies_on = (("verl.trainer.ppo.v1.trainer_base:get_trainer_cls", "a5b3ce304945"),)
    changes = ("verl.trainer.ppo.v1.trainer_base:TRAINER_REGISTRY",)
    roles = frozenset({"trainer"})

    def apply(self, module: ModuleType) -> None:
        for name, trainer in list(module.TRAINER_REGISTRY.items()):
            module.TRAINER_REGISTRY[name] = self.compose(trainer)


class VllmAdapterSlot(Slot):
    name = "verl-vllm-adapter"
    target = f"{_VLLM}.vllm_rollout:ServerAdapter"
    also = (_VLLM,)
    why = "The rollout's side of a training worker, which sends the weights; verl's rollout registry finds it by name."
    upstream = "verl 0.9.1 workers/rollout/base.py, get_rollout_class"
    remove_when = "the rollout registry takes classes"
    versions = VERL
    relies_on = (("verl.workers.rollout.base:get_rollout_class", "d0be5827f121"),)
    changes = (f"{_VLLM}.vllm_rollout:ServerAdapter", f"{_VLLM}:ServerAdapter")


class VllmServerSlot(Slot):
    name = "verl-vllm-server"
    target = f"{_VLLM}.vllm_async_server:vLLMHttpServer"
    why = "The Ray actor that holds a vLLM engine; its replica makes it of the class that stands in its module."
    upstream = "verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py, vLLMReplica"
    remove_when = "vLLMReplica takes a server class"
    versions = VERL
    relies_on = ((f"{_VLLM}.vllm_async_server:vLLMReplica.__init__", "a43756da3be1"),)


class VllmReplicaSlot(Slot):
    name = "verl-vllm-replica"
    target = f"{_VLLM}.vllm_async_server:vLLMReplica"
    why = "What starts and stops the servers of a vLLM replica; the replica registry finds it in its module."
    upstream = "verl 0.9.1 workers/rollout/replica.py, RolloutReplicaRegistry"
    remove_when = "the replica registry takes classes"
    versions = VERL
    relies_on = (("verl.workers.rollout.replica:RolloutReplicaRegistry.get", "7ea5f9f01067"),)


class VllmWorkerSlot(Slot):
    name = "verl-vllm-worker-extension"
    target = f"{_VLLM}.utils:vLLMColocateWorkerExtension"
    why = "The class that every vLLM worker of verl inherits from; vLLM finds it by its name in its module."
    upstream = "verl 0.9.1 workers/rollout/vllm_rollout/vllm_async_server.py, worker_extension_cls"
    remove_when = "worker_extension_cls takes more than one class"
    versions = VERL


class _EngineSlot(Slot):
    """Abstract. A training engine, in its module and wherever verl's engine registry has it."""

    versions = VERL
    remove_when = "the engine registry can be asked to wrap a class"

    def apply(self, module: ModuleType) -> None:
        from verl.workers.engine.base import EngineRegistry

        name = self.target.split(":")[1]
        base = getattr(module, name)
        composed = self.compose(base)
        setattr(module, name, composed)
        rebind(name, base, composed, (_ENGINE, module.__name__.rpartition(".")[0]))
        for backends in EngineRegistry._engines.values():
            for devices in backends.values():
                devices.update({key: composed for key, engine in devices.items() if engine is base})


class FsdpEngineSlot(_EngineSlot):
    name = "verl-fsdp-engine"
    target = f"{_ENGINE}.fsdp.transformer_impl:FSDPEngineWithLMHead"
    why = "verl's FSDP engine for language models."
    upstream = "verl 0.9.1 workers/engine/fsdp/transformer_impl.py, EngineRegistry"
    changes = (_REGISTRY, target)


class MegatronEngineSlot(_EngineSlot):
    name = "verl-megatron-engine"
    target = f"{_ENGINE}.megatron.transformer_impl:MegatronEngineWithLMHead"
    why = "verl's Megatron engine for language models."
    upstream = "verl 0.9.1 workers/engine/megatron/transformer_impl.py, EngineRegistry"
    changes = (_REGISTRY, target)


SLOTS: tuple[type[Slot], ...] = (
    TrainerSlot,
    VllmAdapterSlot,
    VllmServerSlot,
    VllmReplicaSlot,
    VllmWorkerSlot,
    FsdpEngineSlot,
    MegatronEngineSlot,
)

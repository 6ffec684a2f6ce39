"""What the demo trains with: the overrides of verl's config that decide whether and how fast it learns.

Nothing about the machine, the engines or logging is here.
"""

from __future__ import annotations

from verl_ext.demo.assets import DemoAssets
from verl_ext.errors import NereusError

# In tokens. The template takes 3 and the word 4 to 6; every column of padding is paid for in each pass of the trainer.
PROMPT_TOKENS = 10
# In tokens: 4 to 6 letters, the end of text, and room to be wrong in, since a policy that could not write too much
# would not have to stop in time.
RESPONSE_TOKENS = 8


def demo_overrides(
    assets: DemoAssets,
    *,
    steps: int = 60,
    prompts: int = 8,
    samples: int = 8,
    lr: float = 3e-4,
    seed: int = 1,
    workers: int = 1,
) -> list[str]:
    """Hydra overrides for `verl.trainer.main_ppo`.

    Args:
        assets: what to train on.
        steps: GRPO steps.
        prompts: prompts per step.
        samples: answers per prompt, the group that GRPO compares.
        lr: learning rate of AdamW.
        seed: of the order of the data.
        workers: training ranks that share a step's answers; they have to divide them.
    """
    for name, value in {"steps": steps, "prompts": prompts, "workers": workers, "samples - 1": samples - 1}.items():
        if value < 1:
            raise NereusError(
                "The demo cannot be trained with that.",
                where=f"demo_overrides({name.split()[0]})",
                expected="at least 1 step, 1 prompt, 1 worker and 2 samples (GRPO compares answers to one prompt)",
                got=f"steps={steps}, prompts={prompts}, samples={samples}, workers={workers}",
                change="raise it",
            )
    if prompts * samples % workers:
        raise NereusError(
            "The answers of a step cannot be shared out evenly.",
            where="demo_overrides(workers)",
            expected=f"a divisor of {prompts * samples} (prompts x samples)",
            got=str(workers),
            change="use another number of workers",
        )
    return [
        # Advantage = reward against the mean of its own group: no critic, no reference model, no KL term, so that the
        # curve shows the reward alone.
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=True",
        "algorithm.use_kl_in_reward=False",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.entropy_coeff=0",
        f"data.train_files={quoted(assets.train)}",
        f"data.val_files={quoted(assets.test)}",
        f"data.train_batch_size={prompts}",
        f"data.max_prompt_length={PROMPT_TOKENS}",
        f"data.max_response_length={RESPONSE_TOKENS}",
        "data.shuffle=True",
        f"data.seed={seed}",
        f"reward.custom_reward_function.path={quoted(assets.reward)}",
        "reward.custom_reward_function.name=compute_score",
        f"actor_rollout_ref.model.path={quoted(assets.model)}",
        # Eight answers to a prompt: with about one letter in five right, groups without any difference are rare.
        f"actor_rollout_ref.rollout.n={samples}",
        # The policy that is trained is the policy that is sampled: any other temperature, top-k or top-p would not be.
        "actor_rollout_ref.rollout.temperature=1.0",
        "actor_rollout_ref.rollout.top_p=1.0",
        "actor_rollout_ref.rollout.top_k=-1",
        # One optimiser step a rollout: strictly on-policy, the importance ratio is 1 up to rounding.
        f"actor_rollout_ref.actor.ppo_mini_batch_size={prompts}",
        # All of it in one pass: at this size a second forward costs more than the memory it saves.
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={prompts * samples // workers}",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={prompts * samples // workers}",
        "actor_rollout_ref.actor.ppo_epochs=1",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        # Hundreds of times what a large model takes: 0.26 M parameters, and 60 steps to get there. In a simulation of
        # this recipe 3e-4 rises steadily; from 5e-4 on the curve rises faster and has dips on its way.
        f"actor_rollout_ref.actor.optim.lr={lr:g}",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=0",
        "actor_rollout_ref.actor.optim.weight_decay=0.01",
        "actor_rollout_ref.actor.optim.clip_grad=1.0",
        f"trainer.total_training_steps={steps}",
        # The steps end the run; verl stops at whichever comes first.
        f"trainer.total_epochs={steps * prompts}",
    ]


def quoted(path: object) -> str:
    """A path as a Hydra value, so that blanks, commas and braces in it stay what they are."""
    return "'" + str(path).replace("'", "\\'") + "'"

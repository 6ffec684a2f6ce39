"""Everything the demo trains on, built on the spot into one folder: model, tokenizer, data, reward function.

A folder with a stamp is whole: it is built under another name beside its final place and renamed as the last act. The
stamp holds a digest of all that went in, so a second call with the same inputs returns at once, without torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from verl_ext.demo.pretrain import Chat, ModelShape, PretrainPlan, build_model, check_start, pretrain, sampled_reward
from verl_ext.demo.task import ReverseTask, shortcut_rewards, write_parquet
from verl_ext.demo.tokenizer import BOS_ID, EOS_ID, PAD_ID, build_tokenizer
from verl_ext.errors import NereusError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3MoeForCausalLM

STAMP = "nereus-demo.json"
_SOURCES = ("assets.py", "pretrain.py", "reward.py", "task.py", "tokenizer.py")
_PACKAGES = ("pyarrow", "safetensors", "tokenizers", "torch", "transformers")
_STALE_S = 3600.0


@dataclass(frozen=True)
class AssetPlan:
    """What is built.

    Attributes:
        train_rows: prompts to train on; 60 steps of 8 use 480, so none is seen twice.
        test_rows: held-out prompts.
        start_low, start_high: where the mean reward of the starting policy must lie.
    """

    task: ReverseTask = field(default_factory=ReverseTask)
    shape: ModelShape = field(default_factory=ModelShape)
    pretrain: PretrainPlan = field(default_factory=PretrainPlan)
    train_rows: int = 2048
    test_rows: int = 64
    start_low: float = 0.15
    start_high: float = 0.30


@dataclass(frozen=True)
class DemoAssets:
    """Paths of a finished folder, and rewards to draw beside the curve.

    Attributes:
        root: the folder.
        model: Hugging Face folder: float32 weights, config, tokenizer.
        train, test: parquet files in verl's schema.
        reward: file with `compute_score`.
        baselines: label -> mean reward in [0, 1] on the training words: shortcuts that take no skill, and
            "starting model", the policy before any reinforcement learning (sampled on the held-out words).
        cached: True when nothing had to be built.
    """

    root: Path
    model: Path
    train: Path
    test: Path
    reward: Path
    baselines: dict[str, float]
    cached: bool


def build_assets(out_dir: str | os.PathLike[str], *, seed: int = 0, plan: AssetPlan | None = None) -> DemoAssets:
    """Build the demo's assets into `out_dir`, or find them there.

    Args:
        out_dir: the folder; it is replaced as a whole when it holds assets of other inputs.
        seed: of weights, data and pre-training.
        plan: what to build; the default is what the demo's recipe is tuned for.

    Returns:
        The paths and baselines.

    Raises:
        NereusError: `out_dir` holds something that this function did not build, or the starting policy is unusable.
    """
    plan = plan or AssetPlan()
    root = Path(out_dir).absolute()
    digest = _digest(plan, seed)
    found = _load(root, digest)
    if found is not None:
        return found
    _refuse_foreign(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    work = root.with_name(f".{root.name}.building.{os.getpid()}.{uuid4().hex[:8]}")
    work.mkdir()
    try:
        _build(work, plan, seed, digest)
        _install(work, root, digest)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    built = _load(root, digest)
    if built is None:
        raise NereusError(
            "The demo's assets changed while they were being built.",
            where=str(root),
            expected=f"assets with digest {digest[:12]}",
            got="another process put something else there",
            change="give each run its own folder",
        )
    return _fresh(built)


def _build(work: Path, plan: AssetPlan, seed: int, digest: str) -> None:
    """Fill `work`, the stamp last."""
    train, test = plan.task.splits(train=plan.train_rows, test=plan.test_rows, seed=seed)
    write_parquet(plan.task.rows(train, "train"), work / "train.parquet")
    write_parquet(plan.task.rows(test, "test"), work / "test.parquet")
    shutil.copyfile(Path(__file__).with_name("reward.py"), work / "reward.py")
    with _one_seeded_thread(seed):
        tokenizer = build_tokenizer(
            (plan.task.instruction,), size=plan.shape.vocab_size, max_length=plan.shape.max_positions
        )
        chat = Chat(tokenizer, plan.task)
        model = build_model(plan.shape, seed=seed)
        steps = pretrain(model, chat, plan.pretrain, seed=seed)
        start = sampled_reward(model, chat, test, seed=seed)
    check_start(start, low=plan.start_low, high=plan.start_high)
    _save_model(model, tokenizer, work / "model")
    stamp = {
        "digest": digest,
        "seed": seed,
        "pretrain_steps": steps,
        "baselines": {"starting model": start, **shortcut_rewards(plan.task, train)},
        "files": {
            str(path.relative_to(work)): path.stat().st_size for path in sorted(work.rglob("*")) if path.is_file()
        },
    }
    (work / STAMP).write_text(json.dumps(stamp, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _save_model(model: Qwen3MoeForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    from transformers import GenerationConfig
    from transformers.utils import logging

    # Sampling settings of a generation config silently become vLLM's defaults, so it holds token ids and nothing else.
    model.generation_config = GenerationConfig(eos_token_id=EOS_ID, pad_token_id=PAD_ID, bos_token_id=BOS_ID)
    bar = logging.is_progress_bar_enabled()
    # A progress bar of one file would be the only thing a library call writes to the terminal.
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    finally:
        if bar:
            logging.enable_progress_bar()


@contextmanager
def _one_seeded_thread(seed: int) -> Iterator[None]:
    """One seed, and one thread so that sums keep their order; the caller's random state and threads stay."""
    import torch

    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _digest(plan: AssetPlan, seed: int) -> str:
    """SHA-256 over the plan, the seed, the code of this package and the versions of what writes the files."""
    here = Path(__file__).parent
    inputs = {
        "plan": asdict(plan),
        "seed": seed,
        "sources": {name: hashlib.sha256((here / name).read_bytes()).hexdigest() for name in _SOURCES},
        "versions": {name: metadata.version(name) for name in _PACKAGES},
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def _load(root: Path, digest: str) -> DemoAssets | None:
    """The assets in `root`, or None unless they are whole and of these inputs."""
    try:
        stamp = json.loads((root / STAMP).read_text(encoding="utf-8"))
        whole = stamp["digest"] == digest and all(
            (root / name).stat().st_size == size for name, size in stamp["files"].items()
        )
        baselines = {str(label): float(reward) for label, reward in stamp["baselines"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not whole:
        return None
    return DemoAssets(
        root=root,
        model=root / "model",
        train=root / "train.parquet",
        test=root / "test.parquet",
        reward=root / "reward.py",
        baselines=baselines,
        cached=True,
    )


def _fresh(assets: DemoAssets) -> DemoAssets:
    return DemoAssets(**{**assets.__dict__, "cached": False})


def _refuse_foreign(root: Path) -> None:
    """Only a folder with our stamp, an empty one or none at all may be replaced."""
    if root.is_dir() and ((root / STAMP).is_file() or not any(root.iterdir())):
        return
    if root.exists() or root.is_symlink():
        raise NereusError(
            "The folder for the demo's assets holds something else.",
            where=str(root),
            expected=f"no such path, an empty folder, or a folder with {STAMP}",
            got="a folder without that file" if root.is_dir() else "not a folder",
            change="name another folder, or move this one away",
        )


def _install(work: Path, root: Path, digest: str) -> None:
    """Rename `work` to `root`; a concurrent builder of the same assets may win."""
    old = work.with_name(f"{work.name}.old")
    if root.exists():
        os.replace(root, old)
    try:
        os.rename(work, root)
    except OSError:
        if _load(root, digest) is None:
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what killed builders left beside `root`, once it is too old to belong to one that still runs."""
    for leftover in root.parent.glob(f".{root.name}.building.*"):
        try:
            stale = time.time() - leftover.stat().st_mtime > _STALE_S
        except OSError:
            continue
        if stale:
            shutil.rmtree(leftover, ignore_errors=True)

"""What `nereus doctor` finds: versions, entry points, what can work here and why not, the patch manifest.

Nothing heavy is imported: distributions are read from their metadata, torch only when it is asked about devices.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import platform
from dataclasses import dataclass

from verl_ext import __version__
from verl_ext.compat.versions import find_all
from verl_ext.feature import load
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.slots import SLOTS

GROUPS = ("verl.plugins", "vllm.general_plugins", "sglang.srt.plugins")


@dataclass(frozen=True)
class Version:
    name: str
    found: str | None
    tested: str
    ok: bool
    """Can be used: tested, or installed and used through its public interface only."""
    is_tested: bool
    essential: bool
    """Needed by every run."""


@dataclass(frozen=True)
class FeatureRow:
    name: str
    works: bool
    why: str


@dataclass(frozen=True)
class TouchRow:
    name: str
    kind: str
    feature: str
    target: str
    why: str
    upstream: str
    remove_when: str
    applies: bool


@dataclass(frozen=True)
class Findings:
    """Everything the doctor knows. `healthy` is the exit code."""

    nereus: str
    python: str
    versions: tuple[Version, ...]
    entry_points: dict[str, bool]
    environment: tuple[str, ...]
    features: tuple[FeatureRow, ...]
    touches: tuple[TouchRow, ...]
    healthy: bool


def examine() -> Findings:
    versions = tuple(
        Version(
            name=found.row.name,
            found=found.version,
            tested=found.row.versions,
            ok=found.version is not None and (found.tested or not found.row.binding),
            is_tested=found.tested,
            essential=found.row.always,
        )
        for found in find_all()
    )
    entry_points = {
        group: any(point.name == "nereus" for point in importlib.metadata.entry_points(group=group)) for group in GROUPS
    }
    entry_points["hydra_plugins"] = _tripwire_visible()
    environment = tuple(_environment())
    by_name = {version.name: version for version in versions}
    essential = all(version.ok for version in versions if version.essential)
    engine = by_name["vllm"].ok or by_name["sglang"].ok
    healthy = essential and engine and all(entry_points.values()) and not environment
    return Findings(
        nereus=__version__,
        python=platform.python_version(),
        versions=versions,
        entry_points=entry_points,
        environment=environment,
        features=tuple(_features(by_name)),
        touches=tuple(_touches()),
        healthy=healthy,
    )


def _tripwire_visible() -> bool:
    """Whether Hydra finds the module that stops a run which asks for nereus where verl has not loaded it."""
    try:
        return importlib.util.find_spec("hydra_plugins.nereus_tripwire") is not None
    except ModuleNotFoundError:  # no package of that name at all
        return False


def _environment() -> list[str]:
    """Variables that would keep nereus out of a process, or in another run."""
    found = []
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "nereus" not in [name.strip() for name in policy.split(",")]:
        found.append(
            f"VERL_USE_EXTERNAL_PLUGINS={policy}: verl will not load nereus; unset it or add nereus to the list"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and "nereus" not in allowed.split(","):
        found.append(f"VLLM_PLUGINS={allowed}: vLLM will not load nereus; unset it or add nereus to the list")
    if os.environ.get("NEREUS_ACTIVATION"):
        found.append("NEREUS_ACTIVATION is set: every process would join the run it was made for; unset it")
    return found


def _features(versions: dict[str, Version]) -> list[FeatureRow]:
    core = ", ".join(f"{row.name} {row.tested}" for row in versions.values() if row.essential and not row.ok)
    rows = []
    for feature in FEATURES:
        why = f"needs {core}" if core else load(feature.doctor)() if feature.doctor else ""
        rows.append(FeatureRow(feature.name, not why, why))
    return rows


def _touches() -> list[TouchRow]:
    found = [(touch, feature.name) for feature in FEATURES for touch in feature.touches]
    rows = [*found, *((slot, "what extends it") for slot in SLOTS)]
    return [
        TouchRow(t.name, t.kind, feature, t.target, t.why, t.upstream, t.remove_when, t.applicable())
        for t, feature in rows
    ]


def as_json(findings: Findings) -> str:
    return json.dumps(dataclasses.asdict(findings), indent=2)


def as_text(findings: Findings) -> str:
    lines = [f"nereus {findings.nereus}, Python {findings.python}", "", "Versions"]
    for version in findings.versions:
        state = "tested" if version.is_tested else "not installed" if version.found is None else "untested"
        if version.found is not None and not version.ok:
            state = "refused"
        lines.append(f"  {version.name:14} {version.found or '-':14} {state:14} tested: {version.tested}")
    lines += ["", "Entry points"]
    for group, visible in findings.entry_points.items():
        lines.append(f"  {group:22} {'visible' if visible else 'MISSING: reinstall verl-nereus'}")
    lines += [f"  {problem}" for problem in findings.environment]
    lines += ["", "What can work here"]
    for feature in findings.features:
        note = f" ({feature.why})" if feature.why else ""
        lines.append(f"  {'yes' if feature.works else 'no ':3}  {feature.name}{note}")
    lines += ["", "What a run with +plugins=nereus touches"]
    for touch in findings.touches:
        lines.append(f"  {touch.name}{'' if touch.applies else '  (its upstream is not installed here)'}")
        lines.append(f"      {touch.kind} of {touch.feature}: {touch.target}")
        lines.append(f"      {touch.why} Goes when: {touch.remove_when}.")
    lines += ["", "nereus can run here." if findings.healthy else "nereus cannot run here: see above."]
    return "\n".join(lines)

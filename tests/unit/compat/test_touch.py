"""A patch replaces what it knows, when it is there, once; and says so when it cannot."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from verl_ext.compat.touch import APPLIED, ARMED, Manifest, Patch, Touch, fingerprint, rebind, resolve
from verl_ext.config import NereusOptions
from verl_ext.errors import NereusError
from verl_ext.integrations import features
from verl_ext.integrations.features import FEATURES
from verl_ext.integrations.run import Run
from verl_ext.integrations.slots import SLOTS
from verl_ext.integrations.verl.join import touches

ALL = [*(touch for feature in FEATURES for touch in feature.touches), *SLOTS]
INTEGRATIONS = Path(features.__file__).parent
# Their modules are imported by some models or versions only, and raise by themselves where the patch is not applied.
NOBODY_MISSES = {
    f"megatron-cpu-{name}"
    for name in (
        "plain-query-projection",
        "adapters-without-engine",
        "adapters-without-engine-in-0-5",
        "adapters-of-local-layers",
    )
}
ROLL_CALL = [INTEGRATIONS / name for name in ("verl/roll_call.py", "vllm/answers.py")]

# ---- when


def test_a_module_that_is_there_is_patched_at_once(workshop):
    name = workshop.module()
    module = workshop.load(name)
    patch = workshop.patch(f"{name}:answer")
    assert patch.state == "off" and module.answer() == "original"
    patch.arm()
    assert patch.state == APPLIED and module.answer() == "patched"


def test_a_module_that_comes_later_is_patched_as_it_comes(workshop):
    name = workshop.module()
    patch = workshop.patch(f"{name}:answer")
    patch.arm()
    assert patch.state == ARMED and name not in sys.modules
    assert workshop.load(name).answer() == "patched"
    assert patch.state == APPLIED


def test_a_process_that_never_imports_it_is_not_touched(workshop):
    name = workshop.module()
    manifest = Manifest()
    manifest.arm([workshop.patch(f"{name}:answer")])
    assert name not in sys.modules
    assert manifest.states() == {"upstream-answer": ARMED}


def test_arming_twice_patches_once(workshop):
    name = workshop.module()
    patch = workshop.patch(f"{name}:answer")
    patch.arm()
    workshop.load(name)
    patch.arm()
    assert len(patch.calls) == 1


def test_two_patches_of_one_name_are_one(workshop):
    name = workshop.module()
    workshop.load(name)
    first, second = workshop.patch(f"{name}:answer"), workshop.patch(f"{name}:answer")
    manifest = Manifest()
    manifest.arm([first])
    manifest.arm([second])
    assert (first.state, second.state) == (APPLIED, "off")


# ---- what


@pytest.mark.parametrize("path", ["answer", "Engine.run", "Engine.fixed", "Engine.made", "Engine.state", "Engine"])
def test_the_source_of_any_kind_of_target_is_found(workshop, path):
    name = workshop.module()
    target = resolve(workshop.load(name), f"{name}:{path}")
    assert re.fullmatch("[0-9a-f]{12}", fingerprint(target))


def test_another_source_is_refused_with_both_digests_and_stays_as_it_is(workshop):
    name = workshop.module()
    module = workshop.load(name)
    patch = workshop.patch(f"{name}:answer", known="0123456789ab")
    with pytest.raises(NereusError) as raised:
        patch.arm()
    assert raised.value.what == f"patch upstream-answer does not know this version of {name}:answer"
    assert raised.value.expected.endswith("0123456789ab")
    assert raised.value.got == f"digest {workshop.digest(f'{name}:answer')}"
    assert f"pytest {importlib.metadata.version('pytest')}, written for >=8" in raised.value.where
    assert module.answer() == "original" and patch.state != APPLIED


def test_another_source_ends_the_import_that_brings_it(workshop):
    name = workshop.module()
    manifest = Manifest()
    manifest.arm([workshop.patch(f"{name}:answer", known="0123456789ab")])
    with pytest.raises(NereusError, match="does not know this version"):
        workshop.load(name)
    # And should somebody have caught it: the roll call finds the patch missing.
    assert manifest.needed("actor", None) == ["upstream-answer"]
    assert manifest.states() == {"upstream-answer": ARMED}


def test_one_of_several_known_sources_will_do(workshop):
    name = workshop.module()
    known = ("0123456789ab", workshop.digest(f"{name}:answer"))
    workshop.patch(f"{name}:answer", fingerprints=known).arm()
    assert workshop.load(name).answer() == "patched"


@pytest.mark.parametrize(
    ("path", "got"),
    [("gone", "nothing of that name"), ("Engine.gone", "nothing"), ("compiled", "an object without source")],
)
def test_a_target_that_is_gone_or_has_no_source_is_refused(workshop, path, got):
    name = workshop.module()
    workshop.load(name)
    with pytest.raises(NereusError) as raised:
        workshop.patch(f"{name}:{path}", known="0123456789ab").arm()
    assert raised.value.got.startswith(got)


def test_a_function_that_was_imported_by_name_is_replaced_where_it_still_is_the_old_one(workshop):
    upstream = workshop.module()
    user = workshop.module(f"from {upstream} import answer\n")
    own = workshop.module("def answer():\n    return 'own'\n")
    old = workshop.load(upstream).answer
    modules = {name: workshop.load(name) for name in (user, own)}
    rebind("answer", old, lambda: "patched", (user, own, "upstream_that_nobody_imported"))
    assert modules[user].answer() == "patched" and modules[own].answer() == "own"


# ---- manifest


def test_what_is_needed_depends_on_the_role(workshop):
    absent, present = workshop.module(), workshop.module()
    workshop.load(present)
    manifest = Manifest()
    manifest.arm(
        [
            workshop.patch(f"{absent}:answer", name="absent", roles=frozenset({"actor", "server"})),
            workshop.patch(f"{present}:answer", name="present", roles=frozenset({"actor"})),
        ]
    )
    assert manifest.needed("actor", None) == ["absent", "present"]
    assert manifest.needed("server", None) == ["absent"]
    assert manifest.needed("driver", None) == []


PATCH = """
from verl_ext.compat.touch import Patch


class Answer(Patch):
    name, target, fingerprints = "{name}", "a_module_of_nobody:answer", ("0123456789ab",)

    def replace(self, module):
        module.answer = lambda: "{value}"
"""


def digest(workshop, *patches: tuple[str, str]) -> str:
    manifest = Manifest()
    manifest.arm(
        [workshop.load(workshop.module(PATCH.format(name=name, value=value))).Answer() for name, value in patches]
    )
    return manifest.digest()


def test_equal_touches_have_an_equal_digest_in_any_order(workshop):
    assert digest(workshop, ("a", "x"), ("b", "y")) == digest(workshop, ("b", "y"), ("a", "x"))


def test_another_name_or_another_number_is_another_digest(workshop):
    digests = [
        digest(workshop),
        digest(workshop, ("a", "x")),
        digest(workshop, ("b", "x")),
        digest(workshop, ("a", "x"), ("b", "x")),
    ]
    assert len(set(digests)) == len(digests)


# ---- the real ones: that they know the source of the installed upstream is tested where a whole run is switched on, in
# tests/unit/switch/test_untouched.py


@pytest.mark.parametrize("touch", ALL, ids=lambda touch: touch.name)
def test_every_touch_says_all_there_is_to_say(touch: type[Touch]):
    assert re.fullmatch(r"(verl|vllm|sglang|megatron|torch|ray|python)(-[a-z0-9]+)+", touch.name)
    module, _, path = touch.target.partition(":")
    assert all(part.isidentifier() for part in module.split("."))
    assert path == "*" if touch.before else all(part.isidentifier() for part in path.split("."))
    for sentence in (touch.why, touch.upstream, touch.remove_when):
        assert len(sentence.split()) >= 4
    assert touch.why.endswith(".") and re.search(r"[\d.]+", touch.upstream)
    assert touch.versions and all(str(SpecifierSet(specifier)) for specifier in touch.versions.values())
    digests = [*touch.fingerprints, *(digest for _, *known in touch.relies_on for digest in known)]
    assert all(re.fullmatch("[0-9a-f]{12}", known) for known in digests)
    # A role that nobody is asked by would be a touch that nobody misses.
    asked = "".join(file.read_text() for file in ROLL_CALL)
    assert all(f'"{role}"' in asked for role in touch.roles)
    if issubclass(touch, Patch):
        assert touch.fingerprints and (touch.roles or touch.name in NOBODY_MISSES)


def test_touches_have_names_of_their_own():
    names = [touch.name for touch in ALL]
    assert len(set(names)) == len(names)


def test_patches_have_targets_of_their_own():
    targets = [touch.target for touch in ALL if issubclass(touch, Patch)]
    assert len(set(targets)) == len(targets)


def test_no_touch_of_a_run_is_left_out_for_the_version_of_its_upstream(monkeypatch: pytest.MonkeyPatch):
    # It would be a feature that is silently off; armed, it compares the source and ends the process.
    run = Run(NereusOptions(), "cpu", "vllm", {"actor": "megatron"})
    before = touches(run)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "99.0")
    assert touches(run) == before


def test_a_run_without_the_cpu_or_without_vllm_has_fewer_touches():
    on_gpu = {touch.name for touch in touches(Run(NereusOptions(), "cuda", "vllm", {"actor": "megatron"}))}
    assert on_gpu and not any("cpu" in name for name in on_gpu)
    with_sglang = touches(Run(NereusOptions(), "cuda", "sglang", {"actor": "fsdp"}))
    assert not any("vllm" in touch.target for touch in with_sglang)
    with_fsdp = touches(Run(NereusOptions(), "cpu", "vllm", {"actor": "fsdp2"}))
    assert not any("megatron" in touch.name for touch in with_fsdp)


def test_applicable_means_that_its_upstream_is_installed(workshop):
    name = workshop.module()
    assert workshop.patch(f"{name}:answer", versions={"no-such-distribution": "==1", "pytest": "==0"}).applicable()
    assert not workshop.patch(f"{name}:answer", versions={"no-such-distribution": "==1"}).applicable()


def test_a_patch_without_a_replacement_cannot_be_made():
    class Nothing(Patch):
        name = "nothing"

    with pytest.raises(TypeError, match="replace"):
        Nothing()

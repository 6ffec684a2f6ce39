"""What SGLang calls in its processes (`sglang.srt.plugins`). Written against SGLang 0.5.12; not run on hardware."""

from __future__ import annotations


def load() -> None:
    """Take part in the run this process was started for; do nothing outside one. Safe to call again.

    SGLang logs an exception of a plugin and goes on, so a failure here has to end the process itself.
    """
    from verl_ext.errors import NereusError
    from verl_ext.integrations.verl.process import activate_from_environment

    try:
        activate_from_environment()
    except NereusError as error:
        raise SystemExit(f"nereus cannot take part in this SGLang process:\n{error}") from error

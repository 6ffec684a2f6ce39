"""What SGLang calls in its processes (`sglang.srt.plugins`). Written against SGLang 0.5.12; not run on hardware."""

from __future__ import annotations

import os


def load() -> None:
    """Take part in the run this process was started for; do nothing outside one. Safe to call again.

    SGLang logs an exception of a plugin and goes on, so in a process of a run any failure here has to end the process.
    """
    try:
        from verl_ext.integrations.verl.join import join_from_environment

        join_from_environment()
    except Exception as error:
        if not os.environ.get("NEREUS_ACTIVATION"):
            raise
        raise SystemExit(f"nereus cannot take part in this SGLang process:\n{type(error).__name__}: {error}") from error

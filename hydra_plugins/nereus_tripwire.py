"""The second tripwire: verl runs, its command line asks for nereus, and verl has not loaded it.

Hydra takes `+plugins=nereus` as a plain value when nobody has registered the group, and the run goes on without it.
That happens when `VERL_USE_EXTERNAL_PLUGINS` leaves nereus out, or when the entry point is gone from the package's
metadata. Hydra imports whatever lies in the namespace package `hydra_plugins` before it composes anything, so it is
asked here. This folder must not get an `__init__.py`: other packages put their Hydra plugins beside this one.

Nothing of nereus is imported: this has to work when nothing of nereus does.
"""

import os
import re
import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin

SWITCH = re.compile(r"\+*plugins(@[\w.]*)?=(.*[^\w-])?nereus(?![\w-]).*")  # as in verl_ext/plugin.py
POLICY = "VERL_USE_EXTERNAL_PLUGINS"


class NereusTripwire(SearchPathPlugin):
    """Ends the process when nereus is asked for and absent. The search path stays as it is."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # Without verl this is somebody else's program, with plugins of its own.
        if "verl" not in sys.modules or "verl_ext.plugin" in sys.modules:
            return
        if not any(SWITCH.fullmatch(argument) for argument in sys.argv[1:]):
            return
        policy = os.environ.get(POLICY)
        if policy is None:
            got = "the entry point was not found or could not be loaded"
            change = "reinstall verl-nereus (see `nereus doctor`)"
        else:
            got = f"{POLICY}={policy}"
            change = f"unset {POLICY}, or add nereus to its list"
        # Not an exception that a caller could take for a problem of the config.
        raise SystemExit(
            "nereus was asked for and verl has not loaded it\n"
            f"  where:    {sys.executable}, process {os.getpid()}\n"
            "  expected: verl loads the plugin nereus (entry points, group verl.plugins)\n"
            f"  got:      {got}\n"
            f"  change:   {change}, or run without +plugins=nereus"
        )

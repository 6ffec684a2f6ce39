"""What verl imports at the end of `import verl`, in every process, whether nereus is asked for or not.

verl imports this module and nothing more, and logs its failure at DEBUG, which nobody sees. So: without the switch this
module only makes the switch known to Hydra; with the switch on the command line, or in a process of a run, any failure
here ends the process. Only the standard library is imported before the guard below. When verl does not import this
module at all, `hydra_plugins/nereus_tripwire.py` takes over.
"""

import os
import re
import sys

# `+plugins=nereus` and every other spelling of it that Hydra takes. The tripwire has the same, because it has to work
# when nothing of this package does.
SWITCH = re.compile(r"\+*plugins(@[\w.]*)?=(.*[^\w-])?nereus(?![\w-]).*")


def requested(arguments: list[str]) -> bool:
    """Whether a Hydra command line asks for nereus."""
    return any(SWITCH.fullmatch(argument) for argument in arguments)


def _load(arguments: list[str]) -> None:
    from verl_ext.config import check_overrides, check_switch
    from verl_ext.errors import NereusError
    from verl_ext.integrations.verl.join import join_from_environment
    from verl_ext.integrations.verl.switch import register

    register()
    try:
        check_switch(arguments)
        if requested(arguments):
            check_overrides(arguments)
    except NereusError as error:
        raise SystemExit(f"nereus refused to start\n{error}") from error
    join_from_environment()


try:
    _load(sys.argv[1:])
except Exception as error:
    if not requested(sys.argv[1:]) and not os.environ.get("NEREUS_ACTIVATION"):
        raise
    # SystemExit is the one thing that verl's `except Exception` lets through.
    raise SystemExit(
        "nereus was asked for and cannot be loaded\n"
        f"  where:    {sys.executable}, process {os.getpid()}\n"
        "  expected: the module verl_ext.plugin can be imported\n"
        f"  got:      {type(error).__name__}: {error}\n"
        "  change:   mend the installation (see `nereus doctor`), or run without +plugins=nereus"
    ) from error

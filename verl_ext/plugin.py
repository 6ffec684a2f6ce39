"""What verl imports at the end of `import verl`, in every process, whether nereus is asked for or not.

verl imports this module and nothing more, and logs its failure at DEBUG, which nobody sees. So: without the switch this
module only makes the switch known to Hydra; with the switch on the command line, any failure here ends the process.
Only the standard library is imported before the guard below.
"""

import sys

SWITCH = "plugins=nereus"


def requested(arguments: list) -> bool:
    """Whether a Hydra command line asks for nereus (`+plugins=nereus` and its other spellings)."""
    return any(argument.lstrip("+") == SWITCH for argument in arguments)


def _load() -> None:
    from verl_ext.config import check_overrides
    from verl_ext.integrations.verl.process import activate_from_environment
    from verl_ext.integrations.verl.switch import register

    register()
    if requested(sys.argv[1:]):
        check_overrides(sys.argv[1:])
    activate_from_environment()


try:
    _load()
except Exception as error:
    if not requested(sys.argv[1:]):
        raise
    # SystemExit is the one thing that verl's `except Exception` lets through.
    raise SystemExit(f"nereus was asked for ({SWITCH}) and cannot be loaded:\n{type(error).__name__}: {error}") from error

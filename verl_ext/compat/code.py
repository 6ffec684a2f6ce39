"""Which code of nereus this process runs."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from verl_ext import __version__

PACKAGE = Path(__file__).parents[1]


@functools.cache
def code() -> str:
    """The version, and 12 hex digits over the path and content of every file of the package that is not compiled."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            digest.update(f"{file.relative_to(PACKAGE)}\0".encode() + file.read_bytes() + b"\0")
    return f"{__version__} {digest.hexdigest()[:12]}"

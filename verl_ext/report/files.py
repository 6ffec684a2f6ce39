"""Files that are either wholly the old one or wholly the new one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomic(path: Path, data: str | bytes) -> Path:
    """Writes a file under a temporary name in the same folder, then renames it over `path`.

    A reader never sees a part of it, and a failure leaves the old file and no temporary one.

    Raises:
        OSError: the folder cannot be written.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files only the owner can read; a report is for the people who share the folder.
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path

"""What tests of more than one kind need."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

TOY = Path(__file__).with_name("toy") / "toy_feature.py"
# In the order of their names, which is the order of composition.
POINTS = {"a_selfish_toy": "SELFISH", "toy": "FEATURE", "toy_second": "SECOND"}


@pytest.fixture(scope="session")
def toy_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH in which the toy features are installed, as a package of somebody else's."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copy(TOY, folder)
    info = folder / "toy_feature-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-feature\nVersion: 1.0\n")
    points = "\n".join(f"{name} = toy_feature:{attribute}" for name, attribute in POINTS.items())
    (info / "entry_points.txt").write_text(f"[nereus.features]\n{points}\n")
    return folder

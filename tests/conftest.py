"""What tests of more than one kind need."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

TOY = Path(__file__).with_name("toy") / "toy_feature.py"
# In the order of their names, which is the order of composition.
POINTS = {"a_selfish_toy": "SELFISH", "toy": "FEATURE", "toy_second": "SECOND"}


CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"


def example() -> str:
    """The feature that CONTRIBUTING shows, as it stands there."""
    pattern = r'^```python\n("""prompt_count\.py.*?)^```$'
    found = re.search(pattern, CONTRIBUTING.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.fixture(scope="session")
def toy_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH in which the toys and CONTRIBUTING's example are installed, as others' packages."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copy(TOY, folder)
    info = folder / "toy_feature-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-feature\nVersion: 1.0\n")
    (folder / "prompt_count.py").write_text(example())
    points = "prompt_count = prompt_count:FEATURE\n" + "\n".join(
        f"{name} = toy_feature:{attribute}" for name, attribute in POINTS.items()
    )
    (info / "entry_points.txt").write_text(f"[nereus.features]\n{points}\n")
    return folder

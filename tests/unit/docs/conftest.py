from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Document:
    """A page of the documentation."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def prose(self) -> str:
        """The text without its fenced blocks."""
        return _FENCE.sub("", self.text)

    @property
    def commands(self) -> list[str]:
        """Lines of the shell blocks, continued ones joined, without prompts and trailing comments."""
        blocks = [body for language, body in _FENCE.findall(self.text) if language in ("bash", "sh", "console")]
        lines = [line for body in blocks for line in body.replace("\\\n", " ").splitlines()]
        return [re.sub(r"\s+# .*$", "", line).strip().removeprefix("$ ") for line in lines]

    @property
    def anchors(self) -> set[str]:
        """Names by which a link can point to a heading, as GitHub makes them."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def documents() -> list[Document]:
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [Document(path) for path in [*pages, *sorted((ROOT / "docs").glob("**/*.md"))]]


def pytest_generate_tests(metafunc) -> None:
    if "document" in metafunc.fixturenames:
        pages = documents()
        metafunc.parametrize("document", pages, ids=[str(page.path.relative_to(ROOT)) for page in pages])

"""Colours of the figures, and the step from matplotlib's SVG to one that follows the page it stands in.

Each role has a light and a dark colour of about the same strength (after Okabe and Ito, who chose theirs to
be told apart by colour-blind readers). In a page a figure names roles as CSS variables, so that one SVG
serves both modes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ROLES: dict[str, tuple[str, str]] = {
    "ink": ("#1b1f24", "#e8eaed"),
    "muted": ("#5c6670", "#9aa4af"),
    "grid": ("#e3e6ea", "#2c323a"),
    "card": ("#ffffff", "#171b21"),
    "alert": ("#b3261e", "#ff8a80"),
    "blue": ("#0b6bb0", "#5db8f5"),
    "orange": ("#c75000", "#ff9350"),
    "green": ("#00805f", "#35c99b"),
    "purple": ("#a4478a", "#e59bcb"),
    "amber": ("#b98900", "#f0c23c"),
    "sky": ("#4fa8dc", "#2f7fb8"),
    "indigo": ("#5a55b8", "#a9a4f5"),
    "teal": ("#4f7c86", "#7fb3be"),
    "rest": ("#b4bcc5", "#4d5661"),
}
SERIES = ("blue", "orange", "green", "purple", "amber", "indigo")
PHASE_COLOURS = ("blue", "orange", "green", "purple", "amber", "sky", "indigo", "teal")


@dataclass(frozen=True)
class Theme:
    """A colour for each role, as matplotlib takes it."""

    colours: dict[str, str]

    def __getitem__(self, role: str) -> str:
        return self.colours[role]


LIGHT = Theme({role: light for role, (light, _) in ROLES.items()})
DARK = Theme({role: dark for role, (_, dark) in ROLES.items()})
# Colours nobody would choose: each stands for its role until `adapt` puts the variable in its place.
_SENTINELS = {role: f"#fe01{index:02x}" for index, role in enumerate(ROLES)}
PAGE = Theme(_SENTINELS)


def css_variables(dark: bool) -> str:
    """The CSS declarations of every role for one mode."""
    return "".join(f"--{role}:{pair[dark]};" for role, pair in ROLES.items())


def adapt(svg: str, name: str, label: str) -> str:
    """Makes matplotlib's SVG fit to stand inside a page: colours as CSS variables, own ids, no fixed size.

    Args:
        svg: what matplotlib wrote with the colours of `PAGE`.
        name: unique within the page; put in front of every id.
        label: what the figure shows, for readers who do not see it; already escaped for an attribute.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # matplotlib's style rule would apply to the whole page; the page has its own for figures.
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    opening = re.match(r"<svg[^>]*>", svg)
    assert opening is not None
    box = re.search(r'viewBox="[^"]*"', opening.group(0))
    assert box is not None
    svg = f'<svg {box.group(0)} role="img" aria-label="{label}">' + svg[opening.end() :]
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    for role, sentinel in _SENTINELS.items():
        svg = svg.replace(sentinel, f"var(--{role})")
    # The first is how matplotlib writes a font since 3.10, the second how it did before.
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--font)", svg)
    svg = re.sub(r"font: ((?:\w+ )*?[\d.]+px) [^;\"]*", r"font: \1 var(--font)", svg)
    return re.sub(r"\n\s*", "\n", svg).strip()

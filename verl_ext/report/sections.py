"""The sections of a report, one function each: a page in, its HTML out.

A feature that has something of its own to show names one more function of this shape in its entry.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING

from verl_ext.report import names
from verl_ext.report.findings import Card, cards, verdict, warnings
from verl_ext.report.model import FeatureState, ProcessReport, RunData, Value

if TYPE_CHECKING:
    from verl_ext.report.figures import Drawn

# Up to here each process has a row of its own; above, equal ones of one host share one.
_MOST_ROWS = 16


@dataclass(frozen=True)
class Page:
    """What a section may draw on."""

    run: RunData
    figures: Sequence[Drawn]
    left_out: Sequence[str]
    """Why each figure that is not there is not there."""
    no_plots: str | None = None
    """Why there are no figures at all, if matplotlib could not be imported."""

    @property
    def title(self) -> str:
        """The run's own title, else the name of its folder."""
        info = self.run.info
        return info.title if info is not None and info.title else self.run.path.resolve().name


Section = Callable[[Page], str]


def section(name: str, heading: str, body: str) -> str:
    """A section with a heading that links can point to; `heading` is text, `body` is HTML."""
    title = f'<h2 id="{name}-h">{escape(heading)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-h">{title}\n{body}\n</section>'


def header(page: Page) -> str:
    """Title, verdict, when, from what, and how many warnings."""
    run = page.run
    count = len(run.records)
    facts = [f"{count} record{'' if count == 1 else 's'}" + (f", last step {run.last_step}" if count else "")]
    if run.info is not None:
        facts.insert(0, f"started {_when(run.info.started_at)}")
    files = ", ".join(file.name for file in run.files[:3]) + (", ..." if len(run.files) > 3 else "")
    facts.append(f"source: {run.source}" + (f" ({files})" if files else ""))
    meta = "".join(f"<span>{escape(fact)}</span>" for fact in facts)
    found = len(warnings(run)) + (1 if page.no_plots else 0)
    if found:
        meta += f'<a class="flag" href="#notes">{found} warning{"" if found == 1 else "s"}</a>'
    return (
        f'<header><p class="eyebrow">nereus run report</p><h1>{escape(page.title)}</h1>'
        f'<p class="verdict">{escape(verdict(run))}</p><p class="meta">{meta}</p></header>'
    )


def _when(text: str) -> str:
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return text
    return f"{time:%Y-%m-%d %H:%M} {time.tzname() or ''}".strip()


def key_numbers(page: Page) -> str:
    """The key numbers as cards."""
    items = "\n".join(map(_card, cards(page.run)))
    return f'<section id="numbers" aria-label="Key numbers"><ul class="cards">{items}</ul></section>'


def _card(card: Card) -> str:
    kind = "missing" if card.missing else "alert" if card.alert else "plain"
    return (
        f'<li class="{kind}"><p class="label">{escape(card.label)}</p>'
        f'<p class="value">{escape(card.value)}</p><p class="context">{escape(card.context)}</p></li>'
    )


def curves(page: Page) -> str:
    """The reward large, the other figures in a grid, or the notice that there are none."""
    if page.no_plots:
        notice = (
            '<div class="box notice" role="note"><h3>Figures are missing</h3>'
            "<p>matplotlib could not be imported "
            f"({escape(page.no_plots)}). To have them: "
            "<code>pip install &quot;verl-nereus[plots]&quot;</code>, then build the report again.</p></div>"
        )
        return section("curves", "Curves", notice)
    lead = "".join(_figure(figure, "plot lead") for figure in page.figures if figure.name == "reward")
    rest = "\n".join(_figure(figure, f"plot span-{figure.span}") for figure in page.figures if figure.name != "reward")
    body = lead + (f'\n<div class="plots">{rest}</div>' if rest else "")
    return section("curves", "Curves", body or '<p class="box">No step recorded, so nothing to draw.</p>')


def _figure(figure: Drawn, kind: str) -> str:
    if figure.wide is None:
        picture = figure.narrow
    else:
        picture = f'<div class="only-wide">{figure.wide}</div><div class="only-narrow">{figure.narrow}</div>'
    return (
        f'<figure class="{kind}" id="figure-{figure.name}"><h3>{escape(figure.title)}</h3>{picture}'
        f'<figcaption class="caption">{escape(figure.caption)}</figcaption></figure>'
    )


def stopped(page: Page) -> str:
    """Why the run stopped, when it stopped with an error."""
    ending = page.run.ending
    if ending is None:
        return ""
    at = ending.phase if ending.step is None else f"{ending.phase}, step {ending.step}"
    body = (
        f'<div class="box notice" role="note"><h3>{escape(at)}</h3><pre><code>{escape(str(ending))}</code></pre></div>'
    )
    return section("stopped", "Stopped with an error", body)


def active_where(page: Page) -> str:
    """Which feature was on, what the processes proved of it, what it set in verl's config, and who was asked."""
    info = page.run.info
    if info is None:
        body = '<p class="box">No run.json: this run was made without nereus, and no process was asked.</p>'
        return section("active", "Active where", body)
    body = "".join(_feature(state) for state in info.features) or "<p>No feature was listed.</p>"
    tables = [_process_table(info.processes) if info.processes else '<p class="hint">No process was asked.</p>']
    if info.lowered:
        rows = "".join(
            f'<tr><th class="name" scope="row">{escape(item["key"])}</th><td>{escape(str(item["value"]))}</td>'
            f"<td>{escape(item['feature'])}</td><td>{'left as you have it' if item['kept'] else 'set'}</td></tr>"
            for item in info.lowered
        )
        tables.append(_table("Keys of verl's config that features set.", ("Key", "Value", "Feature", ""), rows))
    return section(
        "active", "Active where", f'<div class="box"><ul class="features">{body}</ul></div>\n' + "\n".join(tables)
    )


def _feature(state: FeatureState) -> str:
    detail = f" {escape(state['detail'])}" if state["detail"] else ""
    kind = "on" if state["on"] else "off"
    chip = f'<span class="chip {kind}"><b>{escape(state["name"])}</b> {kind}{detail}</span>'
    if not state["evidence"]:
        return f"<li>{chip}</li>"
    proof = "".join(f"<li>{escape(sentence)}</li>" for sentence in state["evidence"])
    count = f"{len(state['evidence'])} proof{'' if len(state['evidence']) == 1 else 's'}"
    return f"<li><details><summary>{chip} {count}</summary><ul>{proof}</ul></details></li>"


def _process_table(processes: Sequence[ProcessReport]) -> str:
    groups: dict[object, list[int]] = {}
    for row, process in enumerate(processes):
        fields = ("role", "host", "code", "applied")
        key = str([process.get(field) for field in fields]) if len(processes) > _MOST_ROWS else row
        groups.setdefault(key, []).append(row)
    rows = "\n".join(_process_row(processes, rows) for rows in groups.values())
    count = len(processes)
    said = f"{count} process{'' if count == 1 else 'es'} answered before training, all of them rightly."
    return _table(said, ("Process", "Role", "Where", "nereus", "Applied"), rows)


def _process_row(processes: Sequence[ProcessReport], rows: list[int]) -> str:
    row, process = rows[0], processes[rows[0]]
    name = str(process.get("process", f"process {row}"))
    where = str(process.get("host", ""))
    if len(rows) > 1:
        name += f" \u2026 {processes[rows[-1]].get('process', rows[-1])} ({len(rows)})"
    elif process.get("pid") is not None:
        where += f" \u00b7 {process.get('pid')}"
    applied = process.get("applied") or []
    listed = f"<details><summary>{len(applied)}</summary>{'<br>'.join(map(escape, applied))}</details>"
    cells = (
        escape(str(process.get("role", ""))),
        escape(where),
        f"<code>{escape(str(process.get('code', '')))}</code>",
        listed if applied else "none",
    )
    html = "".join(f"<td>{cell}</td>" for cell in cells)
    return f'<tr><th scope="row">{escape(name)}</th>{html}</tr>'


def events(page: Page) -> str:
    """What happened in the run, by step."""
    if not page.run.events:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{event["step"]}</th><td>{escape(event["feature"])}</td>'
        f"<td>{escape(event['kind'])}</td><td>{escape(event['text'])}</td></tr>"
        for event in page.run.events
    )
    return section("events", "Events", _table("What features said, by step.", ("Step", "Feature", "", ""), rows))


def _table(caption: str, heads: Sequence[str], rows: str) -> str:
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    return (
        f'<div class="box scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="of-{len(heads)}">'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def versions(page: Page) -> str:
    """The versions of the packages that decide what a run does."""
    found = page.run.info.versions if page.run.info else {}
    if not found:
        return section("versions", "Versions", '<p class="box">Not recorded.</p>')
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="number">{escape(str(version))}</td></tr>'
        for name, version in found.items()
    )
    return section("versions", "Versions", _table("Package versions of this run.", ("Package", "Version"), rows))


def command(page: Page) -> str:
    """The exact command, to paste into a shell."""
    arguments = page.run.info.command if page.run.info else []
    if not arguments:
        return section("command", "Command", '<p class="box">Not recorded.</p>')
    body = (
        f"<pre><code>{escape(shell(arguments))}</code></pre>"
        '<p class="hint">One click selects all of it; it pastes into a shell as it stands.</p>'
    )
    return section("command", "Command", f'<div class="box">{body}</div>')


def shell(arguments: Sequence[str]) -> str:
    """A command line for a shell: on one line if it is short, else with an override a line."""
    quoted = [shlex.quote(str(argument)) for argument in arguments]
    line = " ".join(quoted)
    if len(line) <= 90:
        return line
    first = next((i for i, argument in enumerate(quoted) if i and "=" in argument), 1)
    return " \\\n    ".join([" ".join(quoted[:first]), *quoted[first:]])


def notes(page: Page) -> str:
    """Warnings, figures that were left out, and what the run itself noted."""
    found = warnings(page.run)
    if page.no_plots:
        found = ["The figures are missing because matplotlib could not be imported.", *found]
    parts = [_list("Warnings", found or ["None."])]
    if page.left_out:
        parts.append(_list("Figures left out", page.left_out))
    own = page.run.info.notes if page.run.info else []
    if own:
        parts.append(_list("Notes of the run", own))
    return section("notes", "Notes and warnings", f'<div class="box">{"".join(parts)}</div>')


def _list(heading: str, items: Iterable[object]) -> str:
    rows = "".join(f"<li>{escape(str(item))}</li>" for item in items)
    return f'<h3>{escape(heading)}</h3><ul class="notes">{rows}</ul>'


def last_step(page: Page) -> str:
    """Every metric of the last step, folded away."""
    if not page.run.records:
        return section("last", "Last step", '<p class="box">No step recorded.</p>')
    record = page.run.records[-1]
    declared = page.run.info.metrics if page.run.info else []
    meanings = {**names.MEANINGS, **{metric["name"]: metric["meaning"] for metric in declared}}
    groups: dict[str, list[str]] = {}
    for key in record:
        if key not in names.SUMMARY_KEYS:
            groups.setdefault(key.split("/")[0] if "/" in key else "other", []).append(key)
    order = sorted(groups, key=lambda name: name != names.NEREUS_PREFIX.rstrip("/"))
    rows = "".join(
        f'<tr><th class="group" scope="rowgroup" colspan="3">{escape(group)}</th></tr>'
        + "".join(_metric(key, record[key], meanings) for key in groups[group])
        for group in order
    )
    count = sum(map(len, groups.values()))
    table = _table(f"Every metric of step {record['step']}.", ("Metric", "Value", "Meaning"), rows)
    body = f"<details><summary>All {count} metrics of step {record['step']}</summary>{table}</details>"
    return section("last", "Last step", body)


def _metric(key: str, value: Value, meanings: Mapping[str, str]) -> str:
    meaning = escape(meanings.get(key, ""))
    shown = escape("none" if value is None else str(value))
    cells = f'<td class="number">{shown}</td><td>{meaning}</td>'
    return f'<tr><th class="name" scope="row">{escape(key)}</th>{cells}</tr>'


SECTIONS: tuple[Section, ...] = (
    header,
    stopped,
    key_numbers,
    curves,
    active_where,
    events,
    versions,
    command,
    notes,
    last_step,
)


def arranged(own: Sequence[Section]) -> tuple[Section, ...]:
    """What a page consists of, from top to bottom, with the sections of features below the curves."""
    at = SECTIONS.index(curves) + 1
    return (*SECTIONS[:at], *own, *SECTIONS[at:])

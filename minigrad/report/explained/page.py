"""A report as one page of HTML that needs nothing else: style and scripts are the files beside this one, put in."""
from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from minigrad.errors import quantity
from minigrad.report.explained.memory_map import MemoryMap
from minigrad.report.explained.pictures import graph_picture, memory_picture
from minigrad.report.explained.report import Report
from minigrad.report.explained.rows import Row
from minigrad.report.words import size_text, time_text

FOLDER = Path(__file__).parent

MOST_HOLDERS = 8
"""The values at the peak that are named below the picture of memory."""

COLUMNS = (("kernel", "left"), ("line", "left"), ("time", ""), ("share", ""), ("runs", ""), ("GFLOP/s", ""),
           ("GB/s", ""), ("of the limit", ""), ("predicted", ""))


def page_of(report: Report) -> str:
    """The page."""
    parts = {"title": escape(f"{report.step.what}: {time_text(report.seconds)}"), "what": escape(_what(report)),
             "headline": escape(_headline(report)), "facts": escape(_facts(report)),
             "sections": "\n".join(_sections(report)), "texts": _in_script(report.texts),
             "css": (FOLDER / "page.css").read_text(encoding="utf-8"),
             "js": (FOLDER / "page.js").read_text(encoding="utf-8")}
    pieces = (FOLDER / "page.html").read_text(encoding="utf-8").split("@")
    return "".join([parts.get(piece, f"@{piece}@") if k % 2 else piece for k, piece in enumerate(pieces)])


def _in_script(value: Any) -> str:
    """JSON that ends no script."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


# ---- above ----


def _what(report: Report) -> str:
    return f"{report.step.what} on {', '.join(report.devices)}"


def _headline(report: Report) -> str:
    whole = time_text(report.seconds)
    predicted = " predicted" if report.step.wall is None else ""
    if report.least is None or not report.seconds:
        return f"{whole}{predicted}"
    return f"{whole}{predicted}, {min(1.0, report.least / report.seconds):.0%} of what the machine could do"


def _facts(report: Report) -> str:
    step = report.step
    nodes = sum({id(t.plan): step.watch.nodes.get(id(t.plan), 0) for t in step.launches}.values())
    flops, moved = sum([r.flops for r in report.rows]), sum([r.bytes for r in report.rows])
    amounts = f"{flops / 1e9:.3g} GFLOP, {moved / 1e6:.3g} MB"
    graph = f", of {quantity(nodes, 'node')}" if nodes else ""
    return (f"{quantity(len(step.launches), 'launch')} of {quantity(len(report.rows), 'program')}{graph}; {amounts}. "
            f"{step.how[:1].upper()}{step.how[1:]}.")


def _sections(report: Report) -> Iterator[str]:
    yield _bar(report)
    yield _warnings(report)
    yield _table(report)
    yield "<h2>The graph of kernels</h2>"
    yield f'<div class="scroll" tabindex="0" aria-label="graph">{_graph(report)}</div>'
    if report.memory is not None:
        yield from _memory(report.memory)
    if report.left_out:
        yield f'<p class="note">Left out to keep this page small: {escape("; ".join(report.left_out))}.</p>'


def _bar(report: Report) -> str:
    whole, parts, legend = report.seconds or 1.0, [], []
    for k, part in enumerate(report.bar()):
        outside = part["name"] == "outside kernels"
        tint, kind = f"--tint:{max(0.18, 0.95 - 0.12 * k):.2f}", "outside" if outside else "part"
        share, text = part["seconds"] / whole, _at(part["name"], part["line"])
        least = min(part["least"] or 0.0, part["seconds"]) / part["seconds"] if part["seconds"] else 0.0
        inner = f'<i style="width:{least:.1%}"></i>' if least and not outside else ""
        tag, link = ("a", f' href="#k{part["row"]}" data-row="{part["row"]}"') if part["row"] is not None else \
            ("span", "")
        parts.append(f'<{tag} class="{kind}"{link} style="flex:{share:.4f} 0 0;{tint}" '
                     f'title="{escape(text)}: {time_text(part["seconds"])}">{inner}</{tag}>')
        named = f'<a{link} title="{escape(text)}">{escape(text)}</a>' if link else escape(text)
        legend.append(f'<li><i class="swatch {kind}" style="{tint}"></i><b>{share:.0%}</b><span>{named}</span></li>')
    if report.least is not None:
        legend.append('<li><i class="swatch good"></i><b></b><span>the least that arithmetic and memory allow</span>'
                      "</li>")
    return f'<div class="bar">{"".join(parts)}</div>\n<ul class="legend">{"".join(legend)}</ul>'


def _warnings(report: Report) -> str:
    if not report.warnings:
        return '<h2>Warnings</h2>\n<p class="none">None: nothing that a rule knows makes this step slow.</p>'
    found = []
    for w in report.warnings:
        rows = " ".join(f'<a href="#k{k}" data-row="{k}">{escape(report.rows[k].name)}</a>' for k in w.rows[:4])
        share = f'<span class="share">{w.share:.0%} of the time</span>' if w.share >= 0.005 else ""
        found.append(f'<li data-warning="{w.name}">{share}<strong>{w.name}</strong> {escape(w.text)}. '
                     f'<span class="cure">{escape(w.cure)}</span> {rows}</li>')
    return f'<h2>Warnings</h2>\n<ul class="warnings">{"".join(found)}</ul>\n' \
        '<p class="note">docs/warnings.md has a section about each.</p>'


def _graph(report: Report) -> str:
    row_of = [0] * len(report.step.launches)
    for k, row in enumerate(report.rows):
        for at in row.at:
            row_of[at] = k
    return graph_picture(report.step, report.boxes, row_of, report.seconds)


def _memory(memory: MemoryMap) -> Iterator[str]:
    yield f"<h2>Memory: {size_text(memory.peak)} at the peak</h2>"
    yield memory_picture(memory)
    yield ('<p class="key"><span><i style="background:var(--other)"></i>there before</span><span><i style="background:'
           'var(--accent)"></i>results</span><span><i style="background:rgba(var(--heat),.9)"></i>temporaries at the '
           f'peak</span><span>from left to right: {quantity(memory.launches, "launch")}</span></p>')
    held = [h for h in memory.held if h.at_peak]
    items = [f"<li>{size_text(h.nbytes)}: {escape(_at(f'{h.label}, {_KINDS[h.kind]}', h.line))}</li>"
             for h in held[:MOST_HOLDERS]]
    rest = held[MOST_HOLDERS:]
    if rest:
        items.append(f"<li>{size_text(sum([h.nbytes for h in rest]))} in {len(rest)} more</li>")
    yield f'<p class="note">What holds the peak:</p><ul class="why">{"".join(items)}</ul>'


def _at(text: str, line: str) -> str:
    return f"{text} at {line}" if line else text


_KINDS = {"given": "there before", "result": "a result", "temporary": "a temporary"}


# ---- the table ----


def _table(report: Report) -> str:
    names = {k: [w.name for w in report.warnings if k in w.rows] for k in range(len(report.rows))}
    head = "".join(f'<th class="{kind}" scope="col"><button type="button">{name}</button></th>'
                   for name, kind in COLUMNS)
    rows = "".join(_row(k, row, names[k], report.seconds) for k, row in enumerate(report.rows[:len(report.texts)]))
    return (f'<h2>Kernels by time</h2>\n<div class="scroll"><table id="rows"><thead><tr>{head}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>")


def _row(k: int, row: Row, warned: list[str], whole: float) -> str:
    share = row.seconds / whole if whole else 0.0
    limit = None if row.least is None or not row.seconds else row.least / row.seconds
    tags = "".join(f'<span class="tag">{name}</span>' for name in warned)
    seconds = row.seconds or float("inf")
    cells = [_cell(row.name, f'<button type="button" aria-expanded="false" aria-controls="d{k}">{escape(row.name)}'
                   f'</button>{tags}', "left"),
             _cell(row.line, f'<span class="line">{escape(row.line)}</span>', "left"),
             _cell(row.seconds, time_text(row.seconds)), _cell(share, f"{share:.1%}{_meter(share)}"),
             _cell(len(row.at), str(len(row.at))), _cell(row.flops / seconds, f"{row.flops / seconds / 1e9:.3g}"),
             _cell(row.bytes / seconds, f"{row.bytes / seconds / 1e9:.3g}"),
             _cell(-1.0 if limit is None else limit,
                   "" if limit is None else f"{_percent(limit)} of {row.limit}{_meter(limit, 'good')}"),
             _cell(row.predicted or -1.0, "" if row.predicted is None else time_text(row.predicted))]
    detail = f'<tr class="detail" id="d{k}" hidden><td colspan="{len(cells)}"><div class="inner">{_detail(row)}' \
        '<div class="forms"></div></div></td></tr>'
    return f'<tr class="row" id="k{k}">{"".join(cells)}</tr>{detail}'


def _cell(value: float | str, html: str, kind: str = "") -> str:
    data = f' data-value="{value:.9g}"' if not isinstance(value, str) else f' title="{escape(value)}"'
    return f'<td class="{kind}"{data}>{html}</td>' if kind else f"<td{data}>{html}</td>"


def _percent(limit: float) -> str:
    """A share of a limit; of more than it what lies in a cache is read."""
    return f"{limit:.0%}" if limit <= 1 else ">100%"


def _meter(share: float, kind: str = "") -> str:
    return f'<span class="meter {kind}"><i style="width:{min(share, 1.0):.0%}"></i></span>'


def _detail(row: Row) -> str:
    begins = [f"kept apart from it: {reason}" for reason in row.begins] or ["all that it reads lies in memory"]
    why = "".join(f"<li>{escape(text)}</li>" for text in (*begins, *row.ends))
    chips = "".join(f"<span>{name} <b>{escape(value)}</b></span>" for name, value in _chips(row))
    return f'<h3>Why it begins and ends here</h3><ul class="why">{why}</ul><div class="chips">{chips}</div>'


def _chips(row: Row) -> Iterator[tuple[str, str]]:
    """Names and values of the facts that are known."""
    facts = row.facts
    yield "device", row.device
    yield "amounts", f"{row.flops / 1e6:.4g} MFLOP, {row.bytes / 1e6:.4g} MB"
    if row.pattern:
        yield "plan", row.pattern
    if facts.bound:
        yield "most predicted time", facts.bound
    if facts.groups is not None:
        yield "groups", f"{facts.groups} of {quantity(facts.items, 'work-item')} for {facts.units} units"
        yield "registers", f"{facts.registers}, {facts.spills} spilled"
        yield "waves", f"{facts.waves:.3g} of {facts.most_waves:.3g} a scheduler"
        yield "local memory", size_text(facts.local)
    elif facts.workers is not None:
        yield "shared out", f"as {facts.workers} for {facts.units} cores"
    if len(row.launch.rows) > 1:
        yield "programs in a launch", str(len(row.launch.rows))

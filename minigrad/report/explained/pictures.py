"""Pictures of a report as SVG: the graph of launches, and memory over time."""
from __future__ import annotations

from collections.abc import Sequence
from html import escape

from minigrad.errors import quantity
from minigrad.report.explained.layout import Box
from minigrad.report.explained.memory_map import MemoryMap
from minigrad.report.explained.step import Step
from minigrad.report.words import size_text, time_text

WIDTH, HEIGHT, GAP_X, GAP_Y = 190, 34, 14, 20
"""Sizes of the boxes of a graph and of the gaps between them, in pixels at full size."""

MOST_LAYERS = 14
"""The layers of one column of the picture of a graph."""

MAP_WIDTH, MAP_HEIGHT = 900, 260


def graph_picture(step: Step, boxes: Sequence[Box], row_of: Sequence[int], seconds: float) -> str:
    """The graph, layers from above to below, in columns. `row_of` has the row of each launch, which a box leads to;
    boxes are the darker the more of the step's `seconds` they take."""
    if not boxes:
        return ""
    x_of, y_of, column, (width, height) = _places(boxes)
    launches = quantity(len(step.launches), "launch")
    parts = [f'<svg class="graph" role="img" aria-label="graph of {launches}" width="{width}" height="{height}" '
             f'viewBox="0 0 {width} {height}">']
    for b, box in enumerate(boxes):
        for r in sorted(box.reads):
            parts.append(_edge(r, b, x_of[r] + WIDTH / 2, y_of[r] + HEIGHT, x_of[b] + WIDTH / 2, y_of[b],
                               column[r] == column[b]))
    for b, box in enumerate(boxes):
        parts.append(_box(step, box, b, x_of[b], y_of[b], row_of[box.first], seconds))
    return "".join([*parts, "</svg>"])


def _places(boxes: Sequence[Box]) -> tuple[list[float], list[int], list[int], tuple[int, int]]:
    """(x, y and column of each box, width and height of all)."""
    layers = sorted({b.layer for b in boxes})
    rows = -(-len(layers) // -(-len(layers) // MOST_LAYERS))  # columns of one height
    column_of = {layer: k // rows for k, layer in enumerate(layers)}
    y_of = {layer: k % rows * (HEIGHT + GAP_Y) + GAP_Y // 2 for k, layer in enumerate(layers)}
    widths = [0.0] * (max(column_of.values()) + 1)
    for b in boxes:
        widths[column_of[b.layer]] = max(widths[column_of[b.layer]], (2 * abs(b.place) + 1) * (WIDTH + GAP_X))
    middles = [sum(widths[:c]) + w / 2 + GAP_X * (2 * c + 1) for c, w in enumerate(widths)]
    x_of = [middles[column_of[b.layer]] + b.place * (WIDTH + GAP_X) - WIDTH / 2 for b in boxes]
    return (x_of, [y_of[b.layer] for b in boxes], [column_of[b.layer] for b in boxes],
            (int(sum(widths) + 2 * GAP_X * len(widths)), rows * (HEIGHT + GAP_Y)))


def _edge(source: int, target: int, x: float, y: float, to_x: float, to_y: float, within: bool) -> str:
    """A curve from the lower side of one box to the upper side of another, fainter between columns."""
    bend = max(GAP_Y / 2, abs(to_y - y) / 2 if within else GAP_Y)
    curve = f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path class="{"" if within else "far "}b{source} b{target}" d="{curve}"/>'


def _box(step: Step, box: Box, b: int, x: float, y: float, row: int, seconds: float) -> str:
    first = step.launches[box.first]
    name = first.plan.items[first.item].name
    count = box.last - box.first + 1
    title = name if count == 1 else f"{name} and {count - 1} more"
    share = box.seconds / seconds if seconds else 0.0
    where = f"{time_text(box.seconds)}{' at ' + box.line if box.line else ''}"
    return (f'<a href="#k{row}" class="box" data-row="{row}" data-box="{b}">'
            f"<title>{escape(title)}, {escape(where)}, {share:.1%}</title>"
            f'<rect x="{x:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<rect class="heat" x="{x:.0f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" '
            f'style="opacity:{min(0.75, 0.04 + share ** 0.5):.2f}"/>'
            f'<text x="{x + 8:.0f}" y="{y + 14}">{escape(_short(title, 25))}</text>'
            f'<text class="small" x="{x + 8:.0f}" y="{y + 27}">{escape(_short(where, 32))}</text></a>')


def memory_picture(memory: MemoryMap) -> str:
    """Memory from launch to launch: what was there before and results below, temporaries above."""
    across, up = MAP_WIDTH / max(memory.launches, 1), MAP_HEIGHT / max(memory.peak, 1)
    launches = quantity(memory.launches, "launch")
    parts = [f'<svg class="memory" role="img" aria-label="memory over {launches}" '
             f'viewBox="0 0 {MAP_WIDTH} {MAP_HEIGHT}" preserveAspectRatio="none">']
    for k, h in enumerate(memory.held):
        w, tall = max(1.0, (h.last - h.first + 1) * across), max(0.4, h.nbytes * up)
        top = MAP_HEIGHT - (h.offset + h.nbytes) * up
        peak = " peak" if h.at_peak and h.kind == "temporary" else ""
        title = f"{size_text(h.nbytes)}, {h.label}{' at ' + h.line if h.line else ''}"
        parts.append(f'<rect class="{h.kind}{peak} shade{k % 3}" x="{h.first * across:.1f}" y="{top:.1f}" '
                     f'width="{w:.1f}" height="{tall:.1f}"><title>{escape(title)}</title></rect>')
    return "".join([*parts, "</svg>"])


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most - 1] + "…"

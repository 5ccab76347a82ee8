#!/usr/bin/env python3
"""The table of rows: text for people, JSON for programs, and Markdown for documents.

    python3 experiments/rivals/table.py FILE    # the Markdown of a JSON that rivals.py has written
"""

import itertools
import json
import sys
import textwrap

WIDTH = 80
WIDTHS = (10, 7, 7, 11, 7)
HEADINGS = ("who", "step (ms)", "spread", "/ ours", "peak (MiB)", "/ ours")


def cell_of(row):
    return row["network"], row["stages"], row["mode"]


def ours_of(row, rows):
    """Our row that `row` is compared with: the fastest of the same cell, and with an own cut if it has one."""
    own_cut = "own cut" in row["who"]
    ours = [other for other in rows if other["who"].startswith("ours") and other["step_seconds"] and
            cell_of(other) == cell_of(row) and ("own cut" in other["who"]) == own_cut]
    return min(ours, key=lambda other: other["step_seconds"], default=None)


def ratio(row, ours, key):
    """How many times as much as ours, or None."""
    if ours is None or row is ours or not row[key] or not ours[key]:
        return None
    return row[key] / ours[key]


def figure(value, digits, scale=1.0):
    return "-" if value is None else f"{value * scale:.{digits}f}"


def spread(row):
    """How far the rounds are apart: the slowest / the fastest, or None for less than two."""
    rounds = row.get("round_seconds") or []
    return max(rounds) / min(rounds) if len(rounds) > 1 else None


def lines_of(rows, all_rows):
    """One line of text by row, then the notes, numbered."""
    lines, notes = [], []
    for row in rows:
        ours = ours_of(row, all_rows)
        if row["note"] and row["note"] not in notes:
            notes.append(row["note"])
        mark = f" [{notes.index(row['note']) + 1}]" if row["note"] else ""
        lines.append((row["who"] + mark, figure(row["step_seconds"], 1, 1e3), figure(spread(row), 2),
                      figure(ratio(row, ours, "step_seconds"), 2), figure(row["peak_bytes"], 0, 1 / 2**20),
                      figure(ratio(row, ours, "peak_bytes"), 2)))
    return lines, notes


def to_text(rows):
    """A block of lines for each cell."""
    text = []
    for (network, stages, mode), group in itertools.groupby(rows, key=cell_of):
        lines, notes = lines_of(list(group), rows)
        text.append(f"{network}, {stages} {'stage' if stages == 1 else 'stages'}, checkpoint {mode}")
        first = max(len(line[0]) for line in (HEADINGS, *lines))
        for line in (HEADINGS, *lines):
            text.append(f"  {line[0]:<{first}}" +
                        "".join(f"{value:>{width}}" for value, width in zip(line[1:], WIDTHS)))
        for number, note in enumerate(notes, 1):
            text.extend(textwrap.wrap(f"[{number}] {note}", WIDTH - 2, initial_indent="  ",
                                      subsequent_indent="      "))
        text.append("")
    return "\n".join(text)


def behind(rows, least=1.0):
    """(row, ratio) for the pipeline rivals that are less than `least` times as slow as ours."""
    found = []
    for row in rows:
        times = ratio(row, ours_of(row, rows), "step_seconds")
        if times is not None and times < least and not row["who"].startswith(("LibTorch", "ours")):
            found.append((row, times))
    return found


def to_json(rows, environment, interrupted=False):
    return {"title": "Rivals: whole training steps, measured in turns", "rows": rows,
            "environment": environment, "interrupted": interrupted}


# Column, and whom it shows.
COLUMNS = (("ours, thread per stage", "ours"), ("ours, all cores", "ours, all cores"), ("torchgpipe", "torchgpipe"),
           ("torchgpipe, all cores", "torchgpipe, all cores"),
           ("pipelining GPipe", "torch.distributed.pipelining GPipe"),
           ("pipelining 1F1B", "torch.distributed.pipelining 1F1B"), ("plain", "LibTorch, plain"),
           ("data parallel", "LibTorch, data parallel"))


def to_markdown(rows):
    """A line for each cell: the figures of our faster side, then how many times as much time, and memory, the others
    take. Our faster side's own column is blank. Last, the largest spread of the cell."""
    lines = ["| Network | Stages | Checkpoint | Ours | " + " | ".join(name for name, _ in COLUMNS) + " | spread |",
             "|---" * (5 + len(COLUMNS)) + "|"]
    for (network, stages, mode), group in itertools.groupby(rows, key=cell_of):
        by_who = {row["who"]: row for row in group}
        ours = ours_of({"network": network, "stages": stages, "mode": mode, "who": ""}, rows)
        if ours is None:
            continue
        cells = [f"{figure(ours['step_seconds'], 0, 1e3)} ms, {figure(ours['peak_bytes'], 0, 1 / 2**20)} MiB"]
        for _, who in COLUMNS:
            times = ratio(by_who[who], ours, "step_seconds") if who in by_who else None
            peaks = ratio(by_who[who], ours, "peak_bytes") if who in by_who else None
            cells.append("" if times is None else f"{times:.2f}, {figure(peaks, 2)}")
        cells.append(figure(max((spread(row) or 0 for row in by_who.values()), default=0) or None, 2))
        lines.append(f"| {network} | {stages} | {mode} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    with open(sys.argv[1]) as document:
        print(to_markdown(json.load(document)["rows"]))

#!/usr/bin/env python3
"""The table of rows: text for people, JSON for programs, and Markdown for documents.

    python3 experiments/rivals/table.py FILE    # the Markdown of a JSON that rivals.py has written
"""

import itertools
import json
import sys
import textwrap

sys.dont_write_bytecode = True
from cells import OURS_OVER_PROCESSES, PIPELINING
from rows import OWN_CUT, cell_of, contest_of, device_of, environment_of, of_document, unique

WIDTH = 80
DOCUMENT_WIDTH = 100
WIDTHS = (10, 7, 7, 11, 7)
HEADINGS = ("who", "step (ms)", "spread", "/ ours", "peak (MiB)", "/ ours")


def ours_of(row, rows):
    """Our row that `row` is compared with: the fastest of the same cell, and with an own cut if it has one."""
    ours = [other for other in rows if other["who"].startswith("ours") and other["step_seconds"] and
            contest_of(other) == contest_of(row)]
    return min(ours, key=lambda other: other["step_seconds"], default=None)


def ratio(row, ours, key):
    """The figure as a multiple of ours, or None."""
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
    """A line of text for each row, and the notes, to which the lines' numbers refer."""
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


def is_rival(row):
    """Whether the row is of a pipeline that is not ours."""
    return not row["who"].startswith(("LibTorch", "PyTorch", "ours"))


def behind(rows, least=1.0, key="step_seconds"):
    """(row, ratio) for the pipeline rivals that take less than `least` times as much of `key` as ours."""
    found = []
    for row in rows:
        times = ratio(row, ours_of(row, rows), key)
        if times is not None and times < least and is_rival(row):
            found.append((row, times))
    return found


def count(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


def words(contest):
    network, stages, mode, own_cut = contest
    return f"{network}, {count(stages, 'stage')}, {mode}{OWN_CUT if own_cut else ''}"


def where_measured(rows):
    """A sentence for each environment: which cells were measured in it."""
    found = {}  # environment -> contests
    for row in (row for row in rows if row["step_seconds"]):
        own = row["environment"]
        gpu = f"{own['gpu']}, " if "gpu" in own else ""
        text = (f"{gpu}{own['processor']}, {count(own['cores'], 'core')}, {count(own['rounds'], 'round')} of "
                f"{count(own['steps'], 'step')}")
        contests = found.setdefault(text, [])
        if contest_of(row) not in contests:
            contests.append(contest_of(row))
    most = max(found, key=lambda text: len(found[text]), default=None)
    lines = []
    for text, contests in found.items():
        cells = "; ".join(map(words, contests))
        if text == most and len(contests) > 1:
            cells = f"{'all' if len(found) == 1 else 'the other'} {len(contests)} cells"
        lines.append(f"{text}: {cells}.")
    return lines


def where_behind(rows, key, some, none):
    """A sentence for each rival that takes less than ours, and where; `none` if there is no such rival."""
    found = {}
    for row, times in behind(rows, key=key):
        found.setdefault(row["who"], []).append(f"{words(contest_of(row))} ({times:.2f})")
    return [f"{some}: {who}, {'; '.join(where)}." for who, where in found.items()] or [none]


def over_processes(rows):
    """A sentence for each rival with a process per stage: its figures as multiples of ours with a process per stage."""
    ours = {contest_of(row): row for row in rows if row["who"] == OURS_OVER_PROCESSES}
    lines = []
    for who in unique(row["who"] for row in rows if row["who"].startswith(PIPELINING)):
        pairs = [(row, ours.get(contest_of(row))) for row in rows if row["who"] == who]
        times, peaks = (list(filter(None, (ratio(*pair, key) for pair in pairs)))
                        for key in ("step_seconds", "peak_bytes"))
        if times and peaks:
            lines.append(f"Beside ours with a process per stage, {who} takes {extent(times)} times the step and "
                         f"{extent(peaks)} times the peak of memory ({count(len(times), 'cell')}).")
    return lines


def extent(values):
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least} to {most}"


def remarks(rows):
    """What the table does not say by itself, or not at a glance: sentences for people."""
    if not rows:
        return []
    lines = where_measured(rows)
    reasons = {}  # contestants without a figure, by reason
    for who in unique(row["who"] for row in rows):
        own = [row for row in rows if row["who"] == who]
        if not any(row["step_seconds"] for row in own):
            reasons.setdefault("; ".join(unique(row["note"] for row in own)), []).append(who)
    lines += [f"Not measured: {'; '.join(whos)}: {reason}." for reason, whos in reasons.items()]
    if not any(ratio(row, ours_of(row, rows), "step_seconds") and is_rival(row) for row in rows):
        return lines  # There is no rival to compare with.
    lines += where_behind(rows, "step_seconds", "Faster than ours", "No pipeline is faster than ours in any cell.")
    lines += where_behind(rows, "peak_bytes", "Less peak memory than our faster side",
                          "No pipeline has a lower peak of memory than our faster side in any cell.")
    return lines + over_processes(rows)


def to_json(rows, interrupted=False):
    return {"title": "Rivals: whole training steps, measured in turns", "rows": rows, "remarks": remarks(rows),
            "environment": environment_of(rows), "interrupted": interrupted}


# The columns, and the contestants that they show.
COLUMNS = (("ours, thread per stage", "ours"), ("ours, all cores", "ours, all cores"),
           ("ours, process per stage", OURS_OVER_PROCESSES), ("torchgpipe", "torchgpipe"),
           ("torchgpipe, all cores", "torchgpipe, all cores"),
           ("pipelining GPipe", "torch.distributed.pipelining GPipe"),
           ("pipelining 1F1B", "torch.distributed.pipelining 1F1B"), ("plain", "LibTorch, plain"),
           ("data parallel", "LibTorch, data parallel"))
GPU_COLUMNS = (("ours, plain kernels", "ours"), ("ours, graphs", "ours, graphs"), ("torchgpipe", "torchgpipe"),
               ("pipelining GPipe", "torch.distributed.pipelining GPipe"),
               ("pipelining 1F1B", "torch.distributed.pipelining 1F1B"), ("plain LibTorch", "LibTorch, plain"),
               ("plain PyTorch", "PyTorch, plain"))


def to_markdown(rows):
    """A line for each cell: the figures of our faster side, then how many times as much time, and memory, the others
    take. Our faster side's own column is blank. The last column has the largest spread of the cell.
    Below the table are the remarks."""
    columns = GPU_COLUMNS if any(device_of(row) == "cuda" for row in rows) else COLUMNS
    if not any(row["who"] == OURS_OVER_PROCESSES for row in rows):  # not asked for
        columns = [column for column in columns if column[1] != OURS_OVER_PROCESSES]
    lines = ["| Network | Stages | Checkpoint | Ours | " + " | ".join(name for name, _ in columns) + " | spread |",
             "|---" * (5 + len(columns)) + "|"]
    for (network, stages, mode), group in itertools.groupby(rows, key=cell_of):
        by_who = {row["who"]: row for row in group}
        ours = ours_of({"network": network, "stages": stages, "mode": mode, "who": ""}, rows)
        if ours is None:
            continue
        cells = [f"{figure(ours['step_seconds'], 0, 1e3)} ms, {figure(ours['peak_bytes'], 0, 1 / 2**20)} MiB"]
        for _, who in columns:
            times = ratio(by_who[who], ours, "step_seconds") if who in by_who else None
            peaks = ratio(by_who[who], ours, "peak_bytes") if who in by_who else None
            cells.append("" if times is None else f"{times:.2f}, {figure(peaks, 2)}")
        cells.append(figure(max((spread(row) or 0 for row in by_who.values()), default=0) or None, 2))
        lines.append(f"| {network} | {stages} | {mode} | " + " | ".join(cells) + " |")
    lines.append("")
    for remark in remarks(rows):
        lines += textwrap.wrap(remark, DOCUMENT_WIDTH, initial_indent="- ", subsequent_indent="  ",
                               break_on_hyphens=False)
    return "\n".join(lines)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print(to_markdown(of_document(json.load(file))))

"""rivals: the JSON of //experiments/rivals as cells: step times and memory of ours and of others, one by one."""

import re
import shlex

from tables import Cell, Grid, MISSING, is_number, three_digits, without_files

COMMAND = "tools/bazel run -c opt //experiments/rivals --"
WITH_PYTHON = "--rivals=PYTHON"
OURS = "ours"
OWN_CUT = ", own cut"

# Figures of the table: (key in the JSON, heading, the table's unit in units of the JSON).
FIGURES = (
    ("step_seconds", "whole training step: ms, and beside it how many times ours", 1e-3),
    ("peak_bytes", "peak memory: MiB, and beside it how many times ours", 2 ** 20),
)


def _unique(values):
    return list(dict.fromkeys(values))


def is_ours(who):
    return who.startswith(OURS)


def whos(table):
    """The names of the contestants, ours first."""
    return sorted(_unique(row["who"] for row in table["rows"]), key=lambda who: not is_ours(who))


def cases(table):
    """(network, stages, mode) -> {who: row}, in the file's order."""
    found = {}
    for row in table["rows"]:
        found.setdefault((row["network"], row["stages"], row["mode"]), {})[row["who"]] = row
    return found


def count(table):
    """How many of its rows are measured."""
    measured = sum(is_number(row.get("step_seconds")) for row in table["rows"])
    return "{} measured".format(measured)


def lack_python(table):
    """Whether rows are without figures because there was no Python that has the rivals: their notes name the flag."""
    return any(WITH_PYTHON in (row.get("note") or "") for row in table["rows"])


def only_some(command):
    """A remark on a command that chooses some of the cells; "" if it does not."""
    chosen = [word for word in shlex.split(command)
              if word.startswith(("--networks=", "--stages=", "--modes=", "--rounds=", "--steps="))]
    return "Not the whole table: {}. The command of all of it is below.".format(" ".join(chosen)) if chosen else ""


def commands(table, command):
    """(label, command) of the whole table and of each line, with the Python that `command` names, if it names one."""
    cells = ("networks", "stages", "modes")

    def without(*flags):
        text = without_files(command or COMMAND, flags)
        text += "" if " -- " in text + " " else " --"
        return text + ("" if " --rivals" in text else " " + WITH_PYTHON)

    found = [("all cells, which take more than half an hour on two cores", without(*cells, "rounds", "steps"))]
    for network, stages, mode in cases(table):
        found.append(("{}, {}, {}".format(network, stages, mode), "{} --networks={} --stages={} --modes={}".format(
            without(*cells), _flag_of(network), stages, mode)))
    return found


def _flag_of(network):
    """What --networks calls it: letters and digits of the first word, as of "U-Net (2, 16)" and "GPT-2 (4, 256)"."""
    return re.sub("[^a-z0-9]", "", network.split()[0].lower())


def factor(rows, who, key):
    """The figure as a multiple of that of our fastest side: above 1 ours is better. A row with an own cut is
    compared with ours with an own cut. None if there is nothing to compare."""
    ours = min((row for name, row in rows.items()
                if is_ours(name) and (OWN_CUT in name) == (OWN_CUT in who) and row.get("step_seconds")),
               key=lambda row: row["step_seconds"], default=None)
    theirs = rows.get(who)
    if is_ours(who) or not ours or not theirs or not ours.get(key) or not theirs.get(key):
        return None
    return theirs[key] / ours[key]


def grids(table):
    """A table of step times and one of memory: a line for each network, number of stages and mode. They share notes."""
    notes = []
    return [grid for grid in (_grid(table, *figure, notes) for figure in FIGURES) if grid]


def _grid(table, key, heading, unit, notes):
    names = [who for who in whos(table)
             if key == "step_seconds" or any(is_number(row.get(key)) for row in table["rows"] if row["who"] == who)]
    if not names:
        return None
    head = [[Cell(text, header="col", rowspan=2) for text in ("network", "stages", "mode")] +
            [Cell(heading, "group", header="col", colspan=len(names))],
            [Cell(who, "ours" if is_ours(who) else "figure", header="col") for who in names]]
    body = []
    for (network, stages, mode), rows in cases(table).items():
        line = [Cell(network, header="row"), Cell(str(stages)), Cell(mode)]
        for who in names:
            value = (rows.get(who) or {}).get(key)
            how = (rows.get(who) or {}).get("note") or ""
            note = _stopped(how) if is_number(value) else how or "not measured"
            if note and note not in notes:
                notes.append(note)
            marks = (notes.index(note) + 1,) if note else ()
            if not is_number(value):
                line.append(Cell(MISSING, "missing", notes=marks))
                continue
            times = factor(rows, who, key)
            line.append(Cell(three_digits(value / unit), "ours" if is_ours(who) else "figure",
                             aside="" if times is None else "× {:.2f}".format(times), notes=marks))
        body.append(line)
    return Grid(head, body, notes)


def _stopped(note):
    """What a note says about a figure of fewer steps than were asked for; "" if it does not."""
    return next((part for part in note.split("; ") if part.startswith("interrupted")), "")


def remarks(table, command=""):
    """Sentences on what is missing, and on how each contestant ran, with its version. The table's own remarks say
    where it was measured, and which contestants could not be."""
    found = ["Interrupted: not everything was measured."] if table.get("interrupted") else []
    found += [text for text in [only_some(command)] if text]
    for who in whos(table):
        rows = [row for row in table["rows"] if row["who"] == who and is_number(row.get("step_seconds"))]
        said = _unique(row.get("version") for row in rows)
        said += _unique("; ".join(part for part in (row.get("note") or "").split("; ") if part != _stopped(part))
                        for row in rows)
        if any(said):
            found.append("{}: {}.".format(who, "; ".join(text for text in said if text)))
    return found

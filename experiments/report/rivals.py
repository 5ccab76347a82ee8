"""rivals: the JSON of //experiments/rivals as cells: step times and memory of ours and of others, one by one."""

from tables import Cell, Grid, MISSING, is_number, three_digits

OURS = "gpipe"
MIB = 1024 * 1024


def is_ours(who):
    return who.lower() in (OURS, "ours", "gpipe for c++")


def _unique(values):
    return list(dict.fromkeys(values))


def whos(table):
    """Who was measured, ours first."""
    return sorted(_unique(row["who"] for row in table["rows"]), key=lambda who: not is_ours(who))


def cases(table):
    """(network, stages, mode) -> {who: row}, in the file's order."""
    found = {}
    for row in table["rows"]:
        found.setdefault((row["network"], row["stages"], row["mode"]), {})[row["who"]] = row
    return found


def grid(table):
    """A line for each network, number of stages and mode."""
    names = whos(table)
    ours = next((who for who in names if is_ours(who)), None)
    others = [who for who in names if who != ours]
    first = [Cell(text, header="col", rowspan=2) for text in ("network", "stages", "mode")]
    first.append(Cell("step (ms)", "group", header="col", colspan=len(names)))
    second = [Cell(who, "ours" if who == ours else "figure", header="col") for who in names]
    if ours and others:
        first.append(Cell("ours is faster by a factor of", "group", header="col", colspan=len(others)))
        second += [Cell("than " + who, "ratio", header="col") for who in others]
    memory = [who for who in names if any(is_number(row.get("peak_bytes")) for row in table["rows"] if row["who"] == who)]
    if memory:
        first.append(Cell("peak memory (MiB)", "group", header="col", colspan=len(memory)))
        second += [Cell(who, "ours" if who == ours else "figure", header="col") for who in memory]

    notes = []
    body = []

    def cell(row, value, kind):
        text = (row or {}).get("note") or ""
        if is_number(value):
            return Cell(three_digits(value), kind)
        if text and text not in notes:
            notes.append(text)
        return Cell(MISSING, "missing", notes=(notes.index(text) + 1,) if text else ())

    by_case = cases(table)
    for (network, stages, mode), rows in by_case.items():
        line = [Cell(network, header="row"), Cell(str(stages)), Cell(mode)]

        def seconds(who, rows=rows):
            return (rows.get(who) or {}).get("step_seconds")

        for who in names:
            value = seconds(who)
            line.append(cell(rows.get(who), value * 1000 if is_number(value) else None, "ours" if who == ours else "figure"))
        if ours and others:
            for who in others:
                both = is_number(seconds(who)) and is_number(seconds(ours)) and seconds(ours) > 0
                line.append(Cell("{:.2f}".format(seconds(who) / seconds(ours)), "ratio") if both else
                            Cell(MISSING, "missing"))
        for who in memory:
            value = (rows.get(who) or {}).get("peak_bytes")
            line.append(cell(rows.get(who), value / MIB if is_number(value) else None, "ours" if who == ours else "figure"))
        body.append(line)
    return Grid([first, second], body, notes)

"""plots: a table as what page.js draws with Plotly: axes, and series of points, each with the name of its color.

A plot: {"id", "kind": "lines" | "bars", "title", "x": {"title", "labels"}, "y": {"title"},
"series": [{"name", "color", "dash", "y": [number or None for each label]}]}. A point that is not there is None, never 0.
Where it is not there because memory ran out, the series' "marks" (a text or None for each label) say so.
"""

import re

import rivals
from tables import (columns_of, figure_of, full_size, groups, is_number, partitions, published_value, ratio_key,
                    scale_of, series)

# The names of page.css's variables for the colors of published figures, one for each source, and of
# curves.
_SOURCES = ("published", "published-2", "published-3")
_CURVES = ["curve-{}".format(k) for k in range(1, 9)]
NO_MEMORY = "out of memory"
_DASHES = {"measured": "solid", "interrupted": "solid", "failed": "solid", "planned": "solid", "simulated": "dash"}


def of_table(kinds, table, name):
    """All plots of a table that have a point."""
    makers = {"bars": bars, "devices": devices, "epochs": epochs, "memory": memory, "partitions": by_partitions}
    found = [plot for kind in kinds for plot in makers[kind](table)]
    for index, plot in enumerate(found):
        plot["id"] = "plot-{}-{}".format(name, index + 1)
    return found


def _plot(kind, title, x_title, labels, y_title, lines):
    """None if there is nothing of ours to draw."""
    lines = [line for line in lines if any(y is not None for y in line["y"])]
    if all(line["color"] in _SOURCES for line in lines):
        return None
    if len(lines) == 1:  # A plot of one line has no legend, so the title says how it was made.
        how = lines[0]["name"].partition("ours, ")[2]
        title += ", " + how if how and how not in title else ""
    return {"kind": kind, "title": title, "x": {"title": x_title, "labels": labels},
            "y": {"title": y_title}, "series": lines}


def _parts(column, picks):
    """(what it is called, picks of ours, picks of the published figures): what may stand in one plot.

    `picks`: for each label the rows that may have its figure. Ours of the published size stand beside the published
    figures; ours of another size by themselves.
    """
    same = [[row for row in rows if full_size(row)] for rows in picks]
    other = [[row for row in rows if not full_size(row)] for rows in picks]
    scales = {scale_of(row) for rows in other for row in rows} - {""}
    yield "", same, picks
    if any(is_number(figure_of(row, column["key"])[0]) for rows in other for row in rows):
        yield ", measured at --scale=" + "/".join(sorted(scales)) if scales else ", measured", other, []


def _lines(column, picks, published):
    """Our figures, a line for each origin, then the published ones, a line for each source."""
    key = column["key"]
    origins = list(dict.fromkeys(row["origin"] for rows in picks for row in rows))
    lines = []
    for origin in origins:
        ys = []
        for rows in picks:
            values = [figure_of(row, key)[0] for row in rows if row["origin"] == origin]
            ys.append(next((value for value in values if is_number(value)), None))
        line = {"name": "ours, " + origin, "color": origin.replace(" ", "-"), "dash": _DASHES.get(origin, "dot"),
                "y": ys}
        _mark(line, [any(figure_of(row, key)[0] is None and _no_memory(row.get("note")) for row in rows
                         if origin in (row["origin"], row.get("way"))) for rows in picks])
        lines.append(line)
    for source, color in zip(column["sources"], _SOURCES):
        ys = []
        for rows in published:
            values = [published_value(figure_of(row, key)[1].get(source)) for row in rows]
            ys.append(next((value for value in values if value is not None), None))
        line = {"name": source + ", published", "color": color, "dash": "dot", "y": ys}
        _mark(line, [any(_no_memory(figure_of(row, key)[1].get(source)) for row in rows) for rows in published])
        lines.append(line)
    return lines


def _no_memory(text):
    return isinstance(text, str) and "out of memory" in text.lower()


def _mark(line, out):
    marks = [NO_MEMORY if gone and y is None else None for gone, y in zip(out, line["y"])]
    if any(marks):
        line["marks"] = marks


def by_partitions(table):
    """The table's ratio, such as the speed-up, against the partitions; a plot for each series of rows."""
    key = ratio_key(table) or "speed_up"
    column = next((each for each in columns_of(table) if each["key"] == key), None)
    return _against_partitions(table, [column] if column else [], "lines")


def memory(table):
    """Draws each column of bytes against the partitions."""
    columns = [column for column in columns_of(table) if re.search(r"\b[KMG]i?B\b|bytes", column["heading"])]
    return _against_partitions(table, columns, "bars")


def _against_partitions(table, columns, kind):
    found = []
    names = list(dict.fromkeys(series(row) for row in table["rows"] if partitions(row) is not None))
    for column in columns:
        for name in names:
            labels, picks = [], []
            for experiment, rows in groups(table):
                count = next((partitions(row) for row in rows if partitions(row) is not None), None)
                plain = _is_plain(experiment)
                if not plain and (count is None or series(rows[0]) != name):
                    continue
                labels.append("plain" if plain else str(count))
                picks.append(rows)
            heading = _capital(column["heading"])
            for what, part, published in _parts(column, picks):
                found.append(_plot(kind, heading + " against partitions" + (", " + name if name else "") + what,
                                   "partitions", labels, column["heading"], _lines(column, part, published)))
    return [plot for plot in found if plot]


def _is_plain(experiment):
    return experiment in ("baseline", "naive-1", "naive-128")


def bars(table):
    """Each column, a group of bars for each experiment."""
    found = []
    for column in columns_of(table):
        by_experiment = [(experiment, rows) for experiment, rows in groups(table)
                         if any(is_number(figure_of(row, column["key"])[0]) for row in rows)]
        for what, part, published in _parts(column, [rows for _, rows in by_experiment]):
            found.append(_plot("bars", _capital(column["heading"]) + what, "", [name for name, _ in by_experiment],
                               column["heading"], _lines(column, part, published)))
    return [plot for plot in found if plot]


def devices(table):
    """What each device holds, by device. Rows whose names differ in the last word only, as "7b-even" and "7b-exact", are
    in one plot."""
    found = {}
    for row in table["rows"]:
        peaks = (row.get("settings") or {}).get("peak_bytes") or []
        name, _, last = row["experiment"].rpartition("-")
        if peaks:
            found.setdefault((name or last, row["origin"], len(peaks)), []).append((last, peaks))
    plots = []
    for (name, origin, count), rows in found.items():
        lines = [{"name": last, "color": color, "dash": "solid", "y": [peak / 2 ** 30 for peak in peaks]}
                 for (last, peaks), color in zip(rows, _CURVES)]
        plots.append(_plot("bars", "{}, {}".format(name, origin), "device", [str(k) for k in range(count)],
                           "on each device (GiB)", lines))
    return [plot for plot in plots if plot]


_EPOCH_FIGURES = (
    ("top1_error_percent", "Top-1 error after each epoch", "top-1 error (%)"),
    ("train_loss", "Training loss", "mean loss of the epoch"),
)


def epochs(table):
    """What each epoch reached, a curve for each row."""
    found = []
    for key, title, y_title in _EPOCH_FIGURES:
        lines = []
        longest = max([len(row.get("epochs") or []) for row in table["rows"]], default=0)
        rows = [row for row in table["rows"] if row.get("epochs")]
        for row, color in zip(rows, _CURVES):
            values = [epoch.get(key) for epoch in row["epochs"]]
            ys = [value if is_number(value) else None for value in values]
            lines.append({"name": row["experiment"], "color": color, "dash": "solid",
                          "y": ys + [None] * (longest - len(ys))})
        plot = _plot("lines", title, "epoch", [str(k + 1) for k in range(longest)], y_title, lines)
        if plot:
            found.append(plot)
    return found


def of_rivals(table):
    """For each network and mode: the step times of all, against the stages."""
    found = []
    by_case = rivals.cases(table)
    names = rivals.whos(table)
    for network, mode in dict.fromkeys((network, mode) for network, _, mode in by_case):
        stages = [s for n, s, m in by_case if (n, m) == (network, mode)]
        lines = []
        for index, who in enumerate(names):
            values = [(by_case[network, s, mode].get(who) or {}).get("step_seconds") for s in stages]
            lines.append({"name": who, "color": _CURVES[index % len(_CURVES)], "dash": "solid",
                          "y": [v * 1000 if is_number(v) else None for v in values]})
        plot = _plot("bars", "{}, {}".format(network, mode), "stages", [str(s) for s in stages], "step (ms)", lines)
        if plot:
            found.append(plot)
    for index, plot in enumerate(found):
        plot["id"] = "plot-rivals-{}".format(index + 1)
    return found


def _capital(text):
    return text[:1].upper() + text[1:]

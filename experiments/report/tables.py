"""tables: an experiment's JSON as the rows and cells of the page. Nothing is shown that is not in the JSON."""

import dataclasses
import re
import shlex

MISSING = "–"


@dataclasses.dataclass
class Cell:
    text: str
    kind: str = "text"  # text, origin, group, ours, figure, published, ratio, missing
    rowspan: int = 1
    colspan: int = 1
    header: str = ""  # "col" or "row", if it is a header
    origin: str = ""  # how the figure was got, if the cell is a tag
    aside: str = ""  # a text in smaller letters beside the cell's text
    notes: tuple = ()  # numbers of footnotes


@dataclasses.dataclass
class Grid:
    head: list  # the lines of the head, each a list of cells
    body: list
    notes: list  # texts; the first one has number 1


def three_digits(value):
    """Three significant digits, all digits before the point, as in the programs' own tables."""
    if value == 0:
        return "0.00"
    exponent = int("{:.2e}".format(value).split("e")[1])
    return "{:,.{}f}".format(value, min(max(2 - exponent, 0), 12)) if abs(value) >= 10000 else \
        "{:.{}f}".format(value, min(max(2 - exponent, 0), 12))


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def published_text(figure):
    """As published: 21.99±0.13, 2.774, out of memory."""
    if isinstance(figure, dict):
        return "{}±{}".format(published_text(figure["value"]), published_text(figure["plus_minus"]))
    if is_number(figure):
        return str(int(figure)) if figure == int(figure) else repr(figure)
    return str(figure)


def published_value(figure):
    """A number to compare with, or None."""
    if isinstance(figure, dict):
        figure = figure.get("value")
    return figure if is_number(figure) else None


def partitions(row):
    """How many devices or partitions a row stands for; None if it does not say."""
    settings = row.get("settings") or {}
    if is_number(settings.get("partitions")):
        return settings["partitions"]
    if settings.get("balance"):
        return len(settings["balance"])
    found = re.search(r"^n(\d+)m\d+$|^pipeline-(\d+)$", row["experiment"])
    return int(found.group(1) or found.group(2)) if found else None


def series(row):
    """What tells rows with equally many partitions apart: the micro-batches of "n4m32"; "" otherwise."""
    found = re.search(r"^n\d+m(\d+)$", row["experiment"])
    return "{} micro-batch{}".format(found.group(1), "" if found.group(1) == "1" else "es") if found else ""


def scale_of(row):
    """The --scale at which the row was made; "" if it does not say."""
    return (row.get("settings") or {}).get("scale") or ""


def full_size(row):
    """Whether its figures are those of the published configuration, so that they can be compared one by one."""
    # `changed` names a flag for which the row is not as published.
    changed = (row.get("settings") or {}).get("changed")
    return row.get("origin") in ("planned", "simulated") or (scale_of(row) == "full" and not changed)


def way_not_gone(row):
    """"simulated" for a row that was to be simulated, but failed or was not run; "" where the origin says it."""
    way = row.get("way") or ""
    return way if row["origin"] not in (way, "published", "measured") and way != "measured" else ""


def disturbed(row):
    """"disturbed" for a row that was measured while other work ran; its note says how much."""
    return "disturbed" if (row.get("settings") or {}).get("disturbed") else ""


def to_compare(row):
    """Whether the row is meant to be of the published size, even if it failed or was not run."""
    return full_size(row) or row.get("way") in ("planned", "simulated") or row["origin"] == "published"


def ratio_key(table):
    ratio = table.get("ratio")
    return ratio.get("key", "") if isinstance(ratio, dict) else ratio or ""


def figure_of(row, key):
    figure = (row.get("figures") or {}).get(key) or {}
    return figure.get("ours"), figure.get("published") or {}


def groups(table):
    """The rows, those of one experiment together."""
    found = {}
    for row in table["rows"]:
        found.setdefault(row["experiment"], []).append(row)
    return list(found.items())


def with_published(table):
    """groups(table), in which the published figures have a row of their own if all our figures are of another
    size."""
    found = []
    for experiment, rows in groups(table):
        figures = [figure_of(row, key) for row in rows for key in row["figures"]]
        both = any(is_number(ours) for ours, _ in figures) and any(published for _, published in figures)
        if both and not any(map(to_compare, rows)):
            figures = {key: {"ours": None, "published": {}, "compared": None} for row in rows for key in row["figures"]}
            for row in rows:
                for key, figure in row["figures"].items():
                    if figure.get("published"):
                        figures[key] = {**figure, "ours": None, "compared": None}
            rows = [{"experiment": experiment, "origin": "published", "way": "published", "note": "", "settings": {},
                     "figures": figures}] + rows
        found.append((experiment, rows))
    return found


def without_files(command, others=()):
    """A command without the flags that say where results go, nor those of the names `others`."""
    dropped = ["--" + name for name in ("json", "trace", *others)]
    kept, value = [], False  # whether the word is the value of a flag that is dropped: "--json FILE"
    for word in shlex.split(command):
        if not value and word.partition("=")[0] not in dropped:
            kept.append(word)
        value = not value and word in dropped
    return " ".join(map(shlex.quote, kept))


def row_command(table, row, command):
    """The command that makes this row alone; "" if there is nothing to run for it."""
    if not command or row["origin"] == "published":
        return ""
    command = without_files(command, ("experiment", "ways"))
    command += (" " if " -- " in command else " -- ") + shlex.quote("--experiment=" + row["experiment"])
    if len({each.get("way") for each in table["rows"]}) > 1:
        command += " --ways=" + row["way"]
    return command


def row_commands(table, command):
    """(label, command) for each row that can be run."""
    found = []
    for row in table["rows"]:
        text = row_command(table, row, command)
        if text:
            found.append((", ".join([row["experiment"]] + [row["way"]] * ("--ways=" in text)), text))
    return found


def columns_of(table):
    """The table's columns; if it does not list them, the ones that its rows have."""
    if table.get("columns"):
        return table["columns"]
    columns = {}
    for row in table["rows"]:
        for key, figure in (row.get("figures") or {}).items():
            column = columns.setdefault(key, {"key": key, "heading": key.replace("_", " "), "sources": []})
            column["sources"] += [s for s in figure.get("published") or {} if s not in column["sources"]]
    return list(columns.values())


def grid(table):
    """The published table with ours beside it, as cells."""
    columns = columns_of(table)
    by_experiment = with_published(table)

    first = [Cell("experiment", header="col", rowspan=2), Cell("how", header="col", rowspan=2)]
    second = []
    for column in columns:
        parts = [Cell("ours", "ours", header="col")]
        parts += [Cell(source, "published", header="col") for source in column["sources"]]
        if column.get("compared_with"):
            parts.append(Cell("ours ÷ " + column["compared_with"], "ratio", header="col"))
        first.append(Cell(column["heading"], "group", header="col", colspan=len(parts)))
        second += parts

    notes = []
    body = []
    for experiment, rows in by_experiment:
        for index, row in enumerate(rows):
            note = row.get("note") or ""
            if note and note not in notes:
                notes.append(note)
            marks = (notes.index(note) + 1,) if note else ()
            line = []
            if index == 0:
                line.append(Cell(experiment, header="row", rowspan=len(rows)))
            aside = way_not_gone(row) or disturbed(row)
            line.append(Cell("", "origin", origin=row["origin"], aside=aside, notes=marks))
            for column in columns:
                line += _cells(row, rows, index, column)
            body.append(line)
    return Grid([first, second], body, notes)


def _cells(row, rows, index, column):
    ours, _ = figure_of(row, column["key"])
    yield Cell(three_digits(ours), "ours") if is_number(ours) else Cell(MISSING, "missing")
    for source in column["sources"]:
        text = _published(rows, column["key"], source)
        if not text:
            if index == 0:
                yield Cell(MISSING, "missing", rowspan=len(rows))
        else:
            yield Cell(text, "published") if row in _beside_published(rows, column["key"]) else Cell("", "elsewhere")
    if column.get("compared_with"):
        value = row["figures"][column["key"]].get("compared")
        yield Cell(three_digits(value), "ratio") if is_number(value) else Cell(MISSING, "missing")


def _published(rows, key, source):
    """An experiment's published figure, as it was printed if the JSON has that text; "" if there is none."""
    for row in rows:
        figure = figure_of(row, key)[1].get(source)
        if figure not in (None, "-"):
            return (row["figures"][key].get("published_text") or {}).get(source) or published_text(figure)
    return ""


def _beside_published(rows, key):
    """The rows of an experiment beside which a published figure stands: those that can be compared with it."""
    same = [row for row in rows if to_compare(row)]
    return [row for row in same if is_number(figure_of(row, key)[0])] or same or rows


def crowded(table):
    """A remark on measured rows that have more CPU devices than the machine has cores; "" if there are none."""
    cores = re.search(r"(\d+) cores?$", str(table.get("environment") or ""))
    if not cores or any("cores" in remark and "partitions" in remark for remark in table.get("remarks") or []):
        return ""
    names = [row["experiment"] for row in table["rows"] if way_of(row) == "measured" and is_number(
        figure_of(row, "throughput")[0]) and _cpus(row) > int(cores.group(1))]
    return "Measured with more partitions than cores ({}; cores: {}): such partitions take turns on the cores, so what " \
        "is measured shows that they work, and is not a speed-up by pipelines.".format(
            ", ".join(names), cores.group(1)) if names else ""


def way_of(row):
    return row.get("way") or row["origin"]


def measured_with(table):
    """How the measured rows were made: {"scale", "devices", "seed"}, as far as they say it; several values if
    they differ."""
    found = {}
    for row in table["rows"]:
        settings = (row.get("settings") or {}) if way_of(row) == "measured" else {}
        for key in ("scale", "devices", "seed"):
            if settings.get(key) not in (None, "") and str(settings[key]) not in found.setdefault(key, []):
                found[key].append(str(settings[key]))
    return {key: "; ".join(values) for key, values in found.items() if values}


def _cpus(row):
    return str((row.get("settings") or {}).get("devices") or "").split(",").count("cpu")


def count_origins(table):
    """"5 measured, 4 simulated": what the rows are."""
    counts = {}
    for row in table["rows"]:
        counts[row["origin"]] = counts.get(row["origin"], 0) + 1
    return ", ".join("{} {}".format(count, origin) for origin, count in counts.items())

"""The rows of a table: what keeps those of several runs in one file apart.

Each row has its "environment": the processor, its cores, and how many rounds and steps were asked for; of a GPU also
"device" and "gpu". A table that grows in pieces would otherwise show them all as measured where the last piece was.
"""

import cells

OWN_CUT = ", own cut"


def cell_of(row):
    return row["network"], row["stages"], row["mode"]


def contest_of(row):
    """What is measured in turns, in one run: a cell, with the same cut for all or with own cuts."""
    return (*cell_of(row), OWN_CUT in row["who"])


def device_of(row):
    return row["environment"].get("device", "cpu")


def of_document(document):
    """The rows of a JSON that was read from a file. Raises ValueError if it holds none, or does not say of each where
    it was measured, as older tables do not."""
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "who" in row for row in rows):
        raise ValueError("it is not a table of rivals")
    if not all(isinstance(row.get("environment"), dict) for row in rows):
        raise ValueError("its rows do not say in which environment they were measured: it is of an older version")
    return rows


def of_device(rows, device):
    """`rows`. Raises ValueError if one was measured on another device: they are not to be compared, and a table has
    one row for each contestant of a cell."""
    for row in rows:
        if device_of(row) != device:
            raise ValueError(f"its rows were measured with --device={device_of(row)}, but this run has --device={device}")
    return rows


def merged(old, new):
    """The old rows, but with `new` in the place of all rows of the same contests, whichever sides took part: rows
    that are compared must be measured in one run."""
    again = {contest_of(row) for row in new}
    rows = [row for row in old if contest_of(row) not in again] + new
    order = {mode: place for place, mode in enumerate(cells.MODES)}
    names = [network.name for networks in cells.NETWORKS.values() for network in networks]
    place = {name: k for k, name in enumerate(names)}
    return sorted(rows, key=lambda row: (place.get(row["network"], len(names)), row["stages"],
                                         order.get(row["mode"], len(order))))


def unique(values):
    found = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def environment_of(rows):
    """The environment of all rows; a list of the values where they differ."""
    found = {}
    for row in rows:
        for key, value in row["environment"].items():
            found[key] = unique([*found.get(key, []), value])
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}

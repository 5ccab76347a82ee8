#!/usr/bin/env python3
"""Times steps of gpipe in Python and of its rivals, in turns: tools/bazel run //python:rivals

python3 must find torch, torchgpipe 0.0.7, numpy and gpipe (its wheel); a side that cannot run is a
row with the reason. torchgpipe and gpipe run one script (experiments/rivals/sides), in which only
the import differs. experiments/rivals/README.md tells how a contest goes and what is measured.
There are two contests for each cell (--mallocs): of all sides as they come, where glibc's malloc
gives each thread an arena, and of all sides with one arena for all threads (MALLOC_ARENA_MAX=1).
Below the table are each rival's figures / ours. Times of a machine that does other work mean
little; these ratios mean more, because the sides take turns.
"""

import argparse
import dataclasses
import os
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
CONTEST = pathlib.Path(__file__).resolve().parent.parent / "experiments" / "rivals"
sys.path.insert(0, str(CONTEST))
import cells
import contest
import table

SIDE = "torchgpipe_side.py"
LINEAR = cells.Network("Linear (4, 8)", "linear:4,8", 8, 32, 32, {4: [1] * 4})
OURS, OURS_STEP = "ours", "ours, step"
MALLOCS = {"arenas": ("", {}), "one_arena": (", one arena", {"MALLOC_ARENA_MAX": "1"})}
# Rivals under 1F1B are compared with a call that runs 1F1B, too.
BESIDE = {
    "torchgpipe": OURS,
    "torchgpipe, all cores": OURS,
    f"{cells.PIPELINING} GPipe": OURS,
    f"{cells.PIPELINING} 1F1B": OURS_STEP,
}


def with_malloc(found, name):
    """The contestants `found` with malloc's setting `name`."""
    suffix, variables = MALLOCS[name]
    return [
        dataclasses.replace(each, who=each.who + suffix, environment={**each.environment, **variables})
        for each in found
    ]


def beside(who):
    """Who of ours the rival is compared with; None if it is ours."""
    base = who.removesuffix(MALLOCS["one_arena"][0])
    return BESIDE[base] + who[len(base) :] if base in BESIDE else None


def contestants(cell):
    """Ours by both calls, and the rivals of `cell`."""
    cores = len(os.sched_getaffinity(0))
    threads = cells.threads_per_stage(cell.stages, cores)
    balance = cell.network.cuts[cell.stages]
    sides = cells.Sides(cell, sys.executable, str(CONTEST / "sides"))

    def ours(who, call):
        package = "gpipe.torchgpipe"
        return sides.rival(who, SIDE, threads, balance, f"{call}()", package=package, call=call)

    rivals = cells.contestants(cell, [], sys.executable, sides.folder, cores)
    return [ours(OURS, "forward"), ours(OURS_STEP, "step")] + [
        rival for rival in rivals if rival.who in BESIDE
    ]


def ratios(rows, key):
    """rival -> its figures / ours, a list with one for each cell."""
    figures = {(table.cell_of(row), row["who"]): row[key] for row in rows}
    found = {}
    for (cell, who), figure in figures.items():
        ours = figures.get((cell, beside(who)))
        if figure and ours:
            found.setdefault(who, []).append(figure / ours)
    return found


def main():
    networks = {network.word: network for network in [LINEAR, *cells.NETWORKS["small"]]}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="*", default=networks, choices=networks)
    parser.add_argument("--stages", type=int, nargs="*", default=[2, 4], choices=[1, 2, 4])
    parser.add_argument("--modes", nargs="*", default=cells.MODES, choices=cells.MODES)
    parser.add_argument("--mallocs", nargs="*", default=MALLOCS, choices=MALLOCS)
    parser.add_argument("--scale", default="small", choices=["small", "tiny"], help="tiny: tests")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn")
    parser.add_argument("--timeout", type=float, default=120, help="seconds to wait for a side")
    flags = parser.parse_args()
    networks.update((network.word, network) for network in cells.NETWORKS[flags.scale])
    rows = []
    interrupted = False
    for cell, malloc in (
        (cells.Cell(networks[name], stages, mode), malloc)
        for name in flags.networks
        for stages in flags.stages
        for mode in flags.modes
        if stages in networks[name].cuts
        for malloc in flags.mallocs
    ):
        sides = with_malloc(contestants(cell), malloc)
        new, interrupted = contest.hold(cell, sides, flags.rounds, flags.steps, flags.timeout)
        rows += new
        print(table.to_text(new), flush=True)
        if interrupted:
            break
    for what, key in (("step", "step_seconds"), ("peak of memory", "peak_bytes")):
        for who, found in ratios(rows, key).items():
            print(
                f"{what}, {who} / {beside(who)}: {min(found):.2f} to {max(found):.2f}, "
                f"median {statistics.median(found):.2f} ({table.count(len(found), 'cell')})"
            )
    if interrupted or any(row["who"].startswith(OURS) and not row["step_seconds"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The least makespans of small pipelines, proven: the data with which gpipe/schedule/search/search_test.cc compares.

    python3 -m pip install ortools && python3 tools/schedules/oracle.py > gpipe/schedule/search/oracle.txt

It knows nothing of our code: it states when actions may run and lets a constraint solver (CP-SAT) find the least
makespan and prove it. Backwards are split into input and weight gradient. A case that is not proven in its time is
left out. Each line of the result is a case: shape (one_each, loop or v_shape), workers, stages per worker,
micro-batches, costs (F, I, W, transfer), the most stage x micro-batch pairs that a worker may hold, the makespan.
"""
import sys

from ortools.sat.python import cp_model

SCALE = 10  # times are multiples of 0.1
SECONDS = 20  # the time limit of one case


def least(worker_of, micro_batches, costs, held):
    """The proven least makespan, or None."""
    forward, gradient, weight, transfer = (round(SCALE * cost) for cost in costs)
    stages = len(worker_of)
    workers = max(worker_of) + 1
    model = cp_model.CpModel()
    horizon = stages * micro_batches * (forward + gradient + weight) + 2 * stages * transfer
    start, busy, alive = {}, [[] for _ in range(workers)], [[] for _ in range(workers)]
    takes = {"F": forward, "I": gradient, "W": weight}
    for stage in range(stages):
        for i in range(micro_batches):
            for kind, duration in takes.items():
                begin = model.new_int_var(0, horizon, f"{kind}{stage}.{i}")
                start[kind, stage, i] = begin
                busy[worker_of[stage]].append(model.new_fixed_size_interval_var(begin, duration, f"b{kind}{stage}.{i}"))
                if i > 0:  # gradients are summed in one order
                    model.add(begin >= start[kind, stage, i - 1] + duration)
            # The activation is held from the start of the forward to the end of the weight
            # gradient.
            length = model.new_int_var(0, horizon, f"l{stage}.{i}")
            end = model.new_int_var(0, horizon, f"e{stage}.{i}")
            model.add(end == start["W", stage, i] + weight)
            alive[worker_of[stage]].append(
                model.new_interval_var(start["F", stage, i], length, end, f"a{stage}.{i}"))
            model.add(start["I", stage, i] >= start["F", stage, i] + forward)
            model.add(start["W", stage, i] >= start["I", stage, i] + gradient)
    for stage in range(1, stages):
        way = transfer if worker_of[stage] != worker_of[stage - 1] else 0
        for i in range(micro_batches):
            model.add(start["F", stage, i] >= start["F", stage - 1, i] + forward + way)
            model.add(start["I", stage - 1, i] >= start["I", stage, i] + gradient + way)
    makespan = model.new_int_var(0, horizon, "makespan")
    for worker in range(workers):
        model.add_no_overlap(busy[worker])
        model.add_cumulative(alive[worker], [1] * len(alive[worker]), held)
    for stage in range(stages):
        model.add(makespan >= start["W", stage, micro_batches - 1] + weight)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = SECONDS
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    if solver.solve(model) != cp_model.OPTIMAL:
        return None
    return solver.objective_value / SCALE


def placement(shape, workers, v):
    if shape == "v_shape":
        return [s if s < workers else 2 * workers - 1 - s for s in range(2 * workers)]
    return [s % workers for s in range(workers * v)]


def main():
    even, uneven = (1.0, 1.0, 1.0, 0.0), (1.0, 1.1, 0.7, 0.1)
    print("# Made by tools/schedules/oracle.py, which says what the columns are.")
    for shape, workers, v, counts in [("one_each", 2, 1, (1, 3, 5)), ("one_each", 3, 1, (2, 4, 6)),
                                      ("one_each", 4, 1, (3, 5)), ("loop", 2, 2, (1, 2, 3, 4)),
                                      ("loop", 3, 2, (2, 3, 4)), ("v_shape", 2, 2, (1, 2, 3, 4)),
                                      ("v_shape", 3, 2, (2, 3, 4))]:
        for micro_batches in counts:
            for costs in (even, uneven):
                for held in sorted({v, workers, workers + 1, 2 * workers - 1, 2 * workers, v * micro_batches}):
                    if held < v or held > v * micro_batches:
                        continue
                    found = least(placement(shape, workers, v), micro_batches, costs, held)
                    if found is None:
                        print(f"no optimum was proven within {SECONDS} s, so this row is left out: {shape}, {workers} "
                              f"workers, {v} stages each, {micro_batches} micro-batches, costs {costs}, {held} held",
                              file=sys.stderr)
                        continue
                    print(shape, workers, v, micro_batches, *costs, held, found, flush=True)


if __name__ == "__main__":
    main()

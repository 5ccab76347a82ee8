#!/usr/bin/env python3
"""How many lines somebody reads to answer three questions: what one step does, what it does besides over processes, and
how balance::plan finds a plan. Run by hand, before and after a redesign; it fails only if a file below is gone.

The first list has files: those that say what happens in which order. The others have units, a unit being x.h with x.cc
and x.cu. Lines are those of `wc -l`.
"""

import pathlib
import subprocess
import sys

STEP = """
gpipe/gpipe.h gpipe/gpipe.cc gpipe/internal/run/pipeline.h gpipe/internal/run/pipeline.cc gpipe/runtime/executor.h
gpipe/runtime/transport.h gpipe/schedule/program.h gpipe/internal/stage/stage.h gpipe/internal/stage/stage.cc
gpipe/internal/stage/stage_backward.cc gpipe/internal/cell/cell.h gpipe/internal/cell/cell.cc
gpipe/internal/run/packet_transport.h gpipe/internal/tensors/packet.h gpipe/internal/stage/stage_recompute.cc
gpipe/internal/run/pipeline_streams.cc gpipe/internal/stage/stage_walk.h
"""
PROCESSES = """
gpipe/world gpipe/distributed/meet/environment gpipe/distributed/meet/session gpipe/distributed/meet/c10d
gpipe/distributed/control/control gpipe/distributed/control/control_impl gpipe/distributed/control/control_thread
gpipe/distributed/control/control_messages gpipe/distributed/control/mesh gpipe/distributed/sockets/connection
gpipe/distributed/sockets/sockets gpipe/distributed/control/collectives gpipe/distributed/control/agreement
gpipe/distributed/control/failure gpipe/distributed/control/failure_records gpipe/distributed/control/fault_collector
gpipe/distributed/control/watchers gpipe/distributed/packets/message_plan gpipe/distributed/packets/packet_codec
gpipe/distributed/packets/packet_format gpipe/distributed/packets/packet_reading
gpipe/distributed/packets/incoming_packet gpipe/distributed/packets/remote_transport gpipe/distributed/packets/transit
gpipe/distributed/packets/parcels gpipe/internal/call/call_agreement gpipe/internal/run/group_gradients
gpipe/internal/replicas/reduction gpipe/internal/processes/processes gpipe/internal/processes/stage_map
gpipe/internal/processes/call_terms gpipe/internal/processes/tied_parameters
gpipe/internal/processes/tied_over_processes gpipe/distributed/world
"""
PLAN = """
balance/choose/plan balance/choose/plan_search balance/step/explain balance/step/step_model balance/step/cell_costs
balance/step/cut_costs balance/costs/profile balance/costs/profiler balance/costs/flops balance/costs/layer_memory
balance/cut/partition balance/cut/cuts balance/choose/fitting_cut balance/memory/memory_plan
balance/memory/memory_recorder balance/memory/memory_trace balance/memory/caching_allocator
balance/choose/pipeline_plan balance/choose/plan_check balance/step/recomputed_cells balance/step/shared_cores
balance/memory/param_scale balance/costs/first_rows gpipe/schedule/simulate gpipe/schedule/named_schedule
gpipe/schedule/search/search gpipe/chunk_sizes gpipe/batch_size balance/choose/training
gpipe/internal/layer_runs/layer_runs balance/choose/plan_problem balance/choose/plan_derivation
balance/choose/order_search balance/choose/plan_alternatives balance/cut/move_cuts
balance/cut/pieces balance/choose/corrected_limits balance/choose/plan_offloads
"""
ROOT = pathlib.Path(__file__).resolve().parents[2]


def files_of(unit):
    return [unit] if "." in unit.rsplit("/", 1)[-1] else [
        unit + end for end in (".h", ".cc", ".cu") if (ROOT / (unit + end)).exists()]


def main():
    tracked = set(subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                                 stdout=subprocess.PIPE, universal_newlines=True).stdout.split())
    gone = []
    for question, units in (("a step", STEP), ("a step over processes, besides", PROCESSES), ("balance::plan", PLAN)):
        units = units.split()
        gone += [unit for unit in units if not files_of(unit) or any(file not in tracked for file in files_of(unit))]
        lines = {file: sum(1 for _ in open(ROOT / file, encoding="utf-8"))
                 for unit in units for file in files_of(unit) if file in tracked}
        print("{}: {} files, {:,} lines".format(question, len(lines), sum(lines.values())))
        if "--files" in sys.argv[1:]:
            for file, count in sorted(lines.items(), key=lambda item: -item[1]):
                print("  {:5} {}".format(count, file))
    for unit in gone:
        print("spine.py: there is no {}: say in this script where it is now".format(unit), file=sys.stderr)
    return 1 if gone else 0


if __name__ == "__main__":
    sys.exit(main())

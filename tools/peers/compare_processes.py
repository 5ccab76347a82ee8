#!/usr/bin/env python3
"""Times a cell of a pipeline over processes against torch.distributed.pipelining's, in turns.

A cell is one micro-batch in one stage, forward and backward together: here Linear(8, 8) on 4 rows, 32 micro-batches,
1F1B over Gloo, a stage in each process, one thread each. Each pair is one run of ours and one of theirs right after
it, so that a machine that is busy for a while slows both.

    tools/bazel build //gpipe/distributed:launch //gpipe/distributed:process_cells
    python3 tools/peers/compare_processes.py --pairs=5

Needs a Python with our LibTorch's version of torch (pip install torch==$(third_party/libtorch/libtorch.sh default)).
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROWS, WIDTH, MICRO_BATCHES = 4, 8, 32
STEPS, WARM_UP = 60, 10


def ours(bin_dir, processes):
    """Microseconds per cell."""
    run = subprocess.run(
        [f"{bin_dir}/gpipe/distributed/launch", f"--processes={processes}", "--",
         f"{bin_dir}/gpipe/distributed/process_cells"],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True)
    if run.returncode != 0:
        sys.exit("our processes did not run:\n" + run.stderr)
    return max(float(line.split("]")[1]) for line in run.stdout.splitlines())


def theirs(processes):
    """Microseconds per cell of torch.distributed.pipelining."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(processes):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen([sys.executable, __file__, "--rank"], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, universal_newlines=True))
    times = []
    for rank in ranks:
        out, error = rank.communicate()
        if rank.returncode != 0:
            sys.exit("torch.distributed.pipelining did not run:\n" + error)
        times.append(float(out))
    return max(times)


def time_one_rank():
    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    # The shapes are not given but inferred in the first step, because since 2.15 given shapes fail
    # ("A GradientEdge root requires a gradient").
    stage = PipelineStage(torch.nn.Linear(WIDTH, WIDTH), rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=lambda output, target: output.mean())
    batch = torch.randn(ROWS * MICRO_BATCHES, WIDTH)
    times = []
    for step in range(STEPS):
        start = time.perf_counter()
        if rank == 0:
            schedule.step(batch)
        elif rank == size - 1:
            schedule.step(target=batch)
        else:
            schedule.step()
        if step >= WARM_UP:
            times.append(time.perf_counter() - start)
    print(statistics.median(times) * 1e6 / (size * MICRO_BATCHES))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5, help="runs of each, in turns (default 5)")
    parser.add_argument("--processes", type=int, default=4, help="default 4")
    parser.add_argument("--bin-dir", default="bazel-bin", help="where our programs are (default bazel-bin)")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        time_one_rank()
        return
    bin_dir = pathlib.Path(arguments.bin_dir).resolve()
    ratios = []
    for pair in range(arguments.pairs):
        mine, other = ours(bin_dir, arguments.processes), theirs(arguments.processes)
        ratios.append(mine / other)
        print(f"pair {pair + 1}: ours {mine:.0f} us a cell, torch.distributed.pipelining {other:.0f}, "
              f"ratio {mine / other:.3f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f} of {arguments.pairs} pairs")


if __name__ == "__main__":
    main()

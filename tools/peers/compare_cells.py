#!/usr/bin/env python3
"""Times a cell of BM_Cells (//gpipe:pipeline_benchmark) against torchgpipe's, in turns.

A cell is one micro-batch in one partition, forward and backward together: here Linear(8, 8) on 4 rows, on one
thread, never checkpointed. Each pair is one run of ours and one of torchgpipe's right after it, so that a
machine that is busy for a while slows both.

    tools/bazel build //gpipe:pipeline_benchmark
    python3 tools/peers/compare_cells.py --pairs=8

Needs a Python with our LibTorch's version of torch and torchgpipe 0.0.7:
pip install torch==$(third_party/libtorch/libtorch.sh default) torchgpipe==0.0.7 numpy
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

ROWS, WIDTH = 4, 8


def ours(benchmark, partitions, micro_batches):
    """Microseconds per cell, by the benchmark itself."""
    name = f"BM_Cells/partitions:{partitions}/micro_batches:{micro_batches}/"
    run = subprocess.run(
        [benchmark, "--benchmark_format=json", f"--benchmark_filter={name}"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    results = json.loads(run.stdout)["benchmarks"]
    if not results:
        sys.exit(f"{benchmark} has no benchmark {name}...; register it in gpipe/pipeline_benchmark.cc")
    return results[0]["us_per_cell"]


def theirs(partitions, micro_batches):
    """Microseconds per cell of torchgpipe; in a process of its own, like ours."""
    run = subprocess.run(
        [sys.executable, __file__, "--torchgpipe", f"--partitions={partitions}",
         f"--micro-batches={micro_batches}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    if run.returncode != 0:
        sys.exit("torchgpipe did not run:\n" + run.stderr)
    return float(run.stdout)


def time_torchgpipe(partitions, micro_batches):
    import torch
    import torchgpipe

    torch.set_num_threads(1)
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(partitions)))
    pipe = torchgpipe.GPipe(layers, [1] * partitions, devices=["cpu"] * partitions,
                            chunks=micro_batches, checkpoint="never")
    batch = torch.randn(ROWS * micro_batches, WIDTH)
    times = []
    for step in range(35):
        start = time.perf_counter()
        pipe(batch).sum().backward()
        if step >= 5:
            times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6 / (partitions * micro_batches)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--micro-batches", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--benchmark", default="bazel-bin/gpipe/pipeline_benchmark", help="our program")
    parser.add_argument("--torchgpipe", action="store_true", help="only time torchgpipe, once")
    args = parser.parse_args()
    if args.torchgpipe:
        print(time_torchgpipe(args.partitions, args.micro_batches))
        return
    if not pathlib.Path(args.benchmark).exists():
        sys.exit(f"{args.benchmark} does not exist; run tools/bazel build //gpipe:pipeline_benchmark first")
    ratios = []
    print("us per cell: torchgpipe, ours, ratio")
    for _ in range(args.pairs):
        our_time = ours(args.benchmark, args.partitions, args.micro_batches)
        their_time = theirs(args.partitions, args.micro_batches)
        ratios.append(their_time / our_time)
        print(f"{their_time:8.1f} {our_time:8.1f} {ratios[-1]:6.1f}", flush=True)
    print(f"ratio: median {statistics.median(ratios):.1f}, {min(ratios):.1f} to {max(ratios):.1f}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times torchgpipe and gpipe.torchgpipe with one script, in turns: tools/bazel run //python:rivals

python3 must find torch, torchgpipe 0.0.7 and gpipe (its wheel). Each turn is a process of its own;
only its import differs. Prints the seconds of a step (forward, loss, backward), medians of all
turns, and their ratio. Times of a machine that does other work mean little.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

MODELS = ("cells", "unet", "resnet")


def make(name, torch, nn, skip):
    """The model, its balance, its chunks, and a mini-batch."""
    if name == "cells":  # layers so small that only the cost of a cell counts
        return nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), [1] * 4, 32, torch.rand(32, 8)

    def block(given, taken, stride=1):
        return nn.Sequential(
            nn.Conv2d(given, taken, 3, stride, 1), nn.BatchNorm2d(taken), nn.ReLU()
        )

    if name == "resnet":

        class Residual(nn.Module):
            def __init__(self, given, taken, stride):
                super().__init__()
                self.main = nn.Sequential(
                    block(given, taken, stride), nn.Conv2d(taken, taken, 3, padding=1)
                )
                self.short = nn.Conv2d(given, taken, 1, stride)

            def forward(self, input):
                return nn.functional.relu(self.main(input) + self.short(input))

        layers = [block(3, 16)]
        layers += [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 32, 1)]
        layers += [Residual(32, 64, 2), nn.Sequential(nn.Flatten(2), nn.Linear(64, 10))]
        return nn.Sequential(*layers), [3, 3], 4, torch.rand(16, 3, 32, 32)

    def down(level, given, taken):
        @skip.skippable(stash=[f"skip{level}"])
        class Down(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = block(given, taken)

            def forward(self, input):
                output = self.block(input)
                yield skip.stash(f"skip{level}", output)
                return nn.functional.max_pool2d(output, 2)

        return Down()

    def up(level, given, taken):
        @skip.skippable(pop=[f"skip{level}"])
        class Up(nn.Module):
            def __init__(self):
                super().__init__()
                self.block = block(2 * given, taken)

            def forward(self, input):
                other = yield skip.pop(f"skip{level}")
                larger = nn.functional.interpolate(input, scale_factor=2)
                return self.block(torch.cat([larger, other], 1))

        return Up()

    layers = [down(0, 3, 16), down(1, 16, 32), block(32, 32), up(1, 32, 16), up(0, 16, 16)]
    layers.append(nn.Conv2d(16, 1, 1))
    return nn.Sequential(*layers), [2, 4], 4, torch.rand(8, 3, 64, 64)


def measure(name, ours, seconds):
    """Prints the seconds of each step."""
    import torch

    if ours:
        import gpipe.torchgpipe as torchgpipe
        from gpipe.torchgpipe import skip
    else:
        import torchgpipe
        from torchgpipe import skip

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, balance, chunks, input = make(name, torch, torch.nn, skip)
    pipe = torchgpipe.GPipe(model, balance, devices=["cpu"] * len(balance), chunks=chunks)
    times = []
    end = time.monotonic() + seconds
    while len(times) < 4 or time.monotonic() < end:
        begin = time.perf_counter()
        pipe.zero_grad()
        pipe(input).square().mean().backward()
        times.append(time.perf_counter() - begin)
    print(json.dumps(times[1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each turn")
    parser.add_argument("--measure", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.models[0], arguments.measure == "ours", arguments.seconds)
        return
    for name in arguments.models:
        times = {"theirs": [], "ours": []}
        for _ in range(arguments.turns):
            for side, found in times.items():
                command = [sys.executable, "-P", __file__, "--models", name, "--measure", side]
                command += ["--seconds", str(arguments.seconds)]
                run = subprocess.run(command, text=True, stdout=subprocess.PIPE)
                if run.returncode != 0:
                    sys.exit(f"GPipe: {name} of {side} failed: see above")
                found += json.loads(run.stdout)
        theirs, ours = (statistics.median(found) for found in times.values())
        print(
            f"{name:8} torchgpipe {theirs * 1e3:8.2f} ms, gpipe {ours * 1e3:8.2f} ms, "
            f"ratio {ours / theirs:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

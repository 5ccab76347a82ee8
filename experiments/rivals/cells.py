"""What is compared: the networks at small scale, their cuts, and who trains them."""

import os
from dataclasses import dataclass, field


@dataclass
class Network:
    name: str
    model: str  # as //balance takes it
    image_size: int  # 0: it takes tokens
    rows: int
    chunks: int
    cuts: dict  # stages -> balance


# Each step takes some tenths of a second on two cores. Eight micro-batches: four for each of two stages, as
# the GPipe paper advises, or two for each of four, which share two cores anyway. The cuts are those that one
# would make by hand from the times of the layers: about the same time for each stage.
NETWORKS = {
    "small": [
        Network("U-Net (2, 16)", "unet:2,16", 96, 16, 8, {1: [109], 2: [51, 58], 4: [25, 32, 30, 22]}),
        Network("AmoebaNet-D (3, 32)", "amoebanetd:3,32", 224, 16, 8, {1: [9], 2: [4, 5], 4: [2, 2, 2, 3]}),
        Network("ResNet [1, 1, 1, 1]", "resnet:1,1,1,1", 64, 32, 8, {1: [51], 2: [42, 9], 4: [27, 15, 3, 6]}),
        Network("GPT-2 (4, 256)", "gpt2:4,256,4,128,1024", 0, 16, 8, {1: [11], 2: [5, 6], 4: [3, 2, 2, 4]}),
    ],
    # For tests.
    "tiny": [
        Network("U-Net (1, 2)", "unet:1,2", 64, 4, 2, {1: [65], 2: [33, 32], 4: [16, 17, 16, 16]}),
        Network("AmoebaNet-D (0, 8)", "amoebanetd:0,8", 224, 2, 2, {1: [6], 2: [3, 3], 4: [2, 1, 1, 2]}),
        Network("ResNet [1, 1]", "resnet:1,1", 32, 4, 2, {1: [29], 2: [10, 19], 4: [5, 5, 10, 9]}),
        Network("GPT-2 (1, 8)", "gpt2:1,8,2,16,32", 0, 4, 2, {1: [5], 2: [2, 3], 4: [1, 1, 1, 2]}),
    ],
}

MODES = ["never", "except_last", "always"]
STAGES = [1, 2, 4]

PIPELINING = "torch.distributed.pipelining"


@dataclass
class Contestant:
    who: str
    command: list = None  # None: it cannot take part
    reason: str = ""  # why not
    environment: dict = field(default_factory=dict)
    note: str = ""
    loss: bool = True  # whether its loss must be that of the others: it trains the same micro-batches


@dataclass
class Cell:
    network: Network
    stages: int
    mode: str

    def flags(self, threads, balance, **more):
        of = self.network
        flags = dict(model=of.model, rows=of.rows, stages=self.stages, chunks=of.chunks, checkpoint=self.mode,
                     threads=threads, **more)
        if of.image_size:
            flags["image_size"] = of.image_size
        if balance:
            flags["balance"] = ",".join(map(str, balance))
        return [f"--{name}={value}" for name, value in flags.items()]


def threads_per_stage(stages, cores):
    return max(cores // stages, 1)


def contestants(cell, ours, python, sides, cores, own_cuts=False):
    """Who takes part in `cell`. `ours`: our program; `python`: the rivals', or None; `sides`: their folder."""
    threads = threads_per_stage(cell.stages, cores)
    balance = None if own_cuts else cell.network.cuts[cell.stages]
    suffix = ", own cut" if own_cuts else ""
    each = "1 thread per stage" if threads == 1 else f"{threads} threads per stage"

    found = [Contestant("ours" + suffix, [ours, *cell.flags(threads, balance)], note=f"1F1B, {each}")]
    if threads != cores:
        # One worker with all cores, as torchgpipe has for partitions on the same device.
        found.append(Contestant(f"ours{suffix}, all cores",
                                [ours, *cell.flags(cores, balance, schedule="sequential")],
                                note=f"sequential, {cores} threads"))
    if cell.mode == "never" and not own_cuts:
        found.append(Contestant("LibTorch, plain", [ours, "--trainer=plain", *cell.flags(threads, None)],
                                note=f"whole mini-batch, {cores} threads", loss=False))
        found.append(Contestant("LibTorch, data parallel",
                                [ours, "--trainer=data_parallel", *cell.flags(threads, None)],
                                note=f"{cell.stages} replicas, {each.replace('stage', 'replica')}", loss=False))

    def rival(who, side, count, note, **more):
        if python is None:
            return Contestant(who, reason="no Python was given (--rivals=PYTHON)")
        return Contestant(who, [python, os.path.join(sides, side), *cell.flags(count, balance, **more)],
                          environment={"OMP_NUM_THREADS": str(count)}, note=note)

    found.append(rival("torchgpipe" + suffix, "torchgpipe_side.py", threads, each))
    if threads != cores:
        # Its backward runs on one thread, whatever the number of stages.
        found.append(rival(f"torchgpipe{suffix}, all cores", "torchgpipe_side.py", cores,
                           f"{cores} threads per stage and for backward"))
    if own_cuts:
        return found
    for name, schedule in (("GPipe", "gpipe"), ("1F1B", "1f1b")):
        who = f"{PIPELINING} {name}"
        if cell.mode == "except_last":
            found.append(Contestant(who, reason="it has no checkpoint mode of this kind"))
        else:
            found.append(rival(who, "pipelining_side.py", threads, each + ", a process per stage, Gloo",
                               schedule=schedule))
    return found

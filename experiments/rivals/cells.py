"""What is compared: the networks of each scale, their cuts, and the contestants that train them."""

import os
from dataclasses import dataclass, field, replace


@dataclass
class Network:
    name: str
    model: str  # as //balance takes it
    image_size: int  # 0: it takes tokens
    rows: int
    chunks: int
    cuts: dict  # stages -> balance
    word: str = ""  # its name in --networks; empty: the family

    def __post_init__(self):
        self.word = self.word or self.model.partition(":")[0]


# Each step takes some tenths of a second on two cores. A mini-batch has eight micro-batches: four
# for each stage if there are two stages, as the GPipe paper advises, or two for each stage if there
# are four, which share two cores anyway. The cuts are those that one would make by hand from the
# times of the layers: about the same time for each stage.
NETWORKS = {
    "small": [
        Network("U-Net (2, 16)", "unet:2,16", 96, 16, 8, {1: [109], 2: [51, 58], 4: [25, 32, 30, 22]}),
        Network("AmoebaNet-D (3, 32)", "amoebanetd:3,32", 224, 16, 8, {1: [9], 2: [4, 5], 4: [2, 2, 2, 3]}),
        Network("ResNet [1, 1, 1, 1]", "resnet:1,1,1,1", 64, 32, 8, {1: [51], 2: [42, 9], 4: [27, 15, 3, 6]}),
        Network("GPT-2 (4, 256)", "gpt2:4,256,4,128,1024", 0, 16, 8, {1: [11], 2: [5, 6], 4: [3, 2, 2, 4]}),
    ],
    # These networks are for one GPU of 80 GB. They have published sizes, in float32, and are cut by
    # counted operations. All contestants hold their networks at the same time, so the activations
    # of a whole mini-batch take at most about 8 GiB. GPT-2 (4, 256) is the network whose steps wait
    # for kernel launches.
    "gpu": [
        Network("U-Net (5, 64)", "unet:5,64", 192, 16, 8,
                {1: [241], 4: [45, 44, 44, 108], 8: [23, 22, 22, 22, 22, 22, 52, 56]}),
        Network("AmoebaNet-D (18, 256)", "amoebanetd:18,256", 224, 24, 4,
                {1: [24], 4: [8, 5, 5, 6], 8: [5, 3, 2, 3, 3, 2, 3, 3]}),
        Network("ResNet-101", "resnet:3,4,23,3", 224, 64, 8,
                {1: [370], 4: [86, 91, 99, 94], 8: [42, 44, 44, 47, 52, 47, 52, 42]}),
        Network("GPT-2 small", "gpt2:12,768,12,1024,50257", 0, 4, 4,
                {1: [27], 4: [9, 8, 8, 2], 8: [5, 4, 4, 4, 4, 2, 2, 2]}),
        Network("GPT-2 (4, 256)", "gpt2:4,256,4,128,1024", 0, 16, 8,
                {1: [11], 4: [3, 2, 2, 4], 8: [2, 1, 1, 1, 1, 1, 1, 3]}, word="gpt2_256"),
    ],
    # These networks are for tests.
    "tiny": [
        Network("U-Net (1, 2)", "unet:1,2", 64, 4, 2, {1: [65], 2: [33, 32], 4: [16, 17, 16, 16]}),
        Network("AmoebaNet-D (0, 8)", "amoebanetd:0,8", 224, 2, 2, {1: [6], 2: [3, 3], 4: [2, 1, 1, 2]}),
        Network("ResNet [1, 1]", "resnet:1,1", 32, 4, 2, {1: [29], 2: [10, 19], 4: [5, 5, 10, 9]}),
        Network("GPT-2 (1, 8)", "gpt2:1,8,2,16,32", 0, 4, 2, {1: [5], 2: [2, 3], 4: [1, 1, 1, 2]}),
    ],
}

MODES = ["never", "except_last", "always"]
DEVICES = ["cpu", "cuda"]

PIPELINING = "torch.distributed.pipelining"
OURS_OVER_PROCESSES = "ours, a process per stage"


@dataclass
class Contestant:
    who: str
    command: list = None  # None: it cannot take part
    reason: str = ""  # why not
    environment: dict = field(default_factory=dict)
    note: str = ""
    loss: bool = True  # whether its loss must be that of the others: it trains the same micro-batches
    warm_up: int = 1  # steps that do not count


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


def stages_of(scale):
    """The numbers of stages into which the scale's networks are cut."""
    return list(NETWORKS[scale][0].cuts)


def threads_per_stage(stages, cores):
    return max(cores // stages, 1)


class Sides:
    """Makes the rivals that are Python programs. `python`: the Python that runs them, or None;
    `folder`: where they are."""

    def __init__(self, cell, python, folder):
        self.cell, self.python, self.folder = cell, python, folder

    def rival(self, who, side, threads, balance, note, warm_up=1, **more):
        if self.python is None:
            return Contestant(who, reason="no Python was given (--rivals=PYTHON)")
        command = [self.python, os.path.join(self.folder, side), *self.cell.flags(threads, balance, **more)]
        return Contestant(who, command, environment={"OMP_NUM_THREADS": str(threads)}, note=note, warm_up=warm_up)


def contestants(cell, ours, python, sides, cores, own_cuts=False, processes=False):
    """The contestants of `cell` on the CPU. `ours`: the command of our program; `python`: the rivals', or None;
    `sides`: their folder; `processes`: whether ours takes part with a process per stage, too."""
    threads = threads_per_stage(cell.stages, cores)
    balance = None if own_cuts else cell.network.cuts[cell.stages]
    suffix = ", own cut" if own_cuts else ""
    each = "1 thread per stage" if threads == 1 else f"{threads} threads per stage"
    over_gloo = each + ", a process per stage, Gloo"

    found = [Contestant("ours" + suffix, [*ours, *cell.flags(threads, balance)], note=f"1F1B, {each}")]
    if threads != cores:
        # This contestant has a single worker with all cores, as torchgpipe has for partitions on
        # the same device.
        found.append(Contestant(f"ours{suffix}, all cores",
                                [*ours, *cell.flags(cores, balance, schedule="sequential")],
                                note=f"sequential, {cores} threads"))
    if processes and cell.stages > 1:
        found.append(Contestant(OURS_OVER_PROCESSES, [*ours, "--processes", *cell.flags(threads, balance)],
                                note=f"1F1B, {over_gloo}"))
    if cell.mode == "never" and not own_cuts:
        found.append(Contestant("LibTorch, plain", [*ours, "--trainer=plain", *cell.flags(threads, None)],
                                note=f"whole mini-batch, {cores} threads", loss=False))
        found.append(Contestant("LibTorch, data parallel",
                                [*ours, "--trainer=data_parallel", *cell.flags(threads, None)],
                                note=f"{cell.stages} replicas, {each.replace('stage', 'replica')}", loss=False))

    rival = Sides(cell, python, sides).rival
    found.append(rival("torchgpipe" + suffix, "torchgpipe_side.py", threads, balance, each))
    if threads != cores:
        # torchgpipe's backward runs on one thread, whatever the number of stages. Here that thread may use all cores.
        found.append(rival(f"torchgpipe{suffix}, all cores", "torchgpipe_side.py", cores, balance,
                           f"{cores} threads per stage and for backward"))
    if own_cuts:
        return found
    for name, schedule in (("GPipe", "gpipe"), ("1F1B", "1f1b")):
        who = f"{PIPELINING} {name}"
        if cell.mode == "except_last":
            found.append(Contestant(who, reason="it has no checkpoint mode of this kind"))
        else:
            found.append(rival(who, "pipelining_side.py", threads, balance, over_gloo, schedule=schedule))
    return found


def beside(contestants, ours, other):
    """The contestants that run the program `ours`, with another build of it in its place: the
    command `other`."""
    size = len(ours)
    return [replace(who, who=f"beside: {who.who}", command=other + who.command[size:])
            for who in contestants if who.command and who.command[:size] == ours]


# The first two steps on a GPU load kernels, get the allocator its memory and let cuDNN choose algorithms, so they do
# not count. Our graphs need more steps, because a stage first runs a few times without graphs and is recorded only
# then.
WARM_UP, WARM_UP_OF_GRAPHS = 2, 6


def contestants_on_gpu(cell, ours, python, sides, cores):
    """The contestants of `cell` with all stages on one GPU."""
    balance = cell.network.cuts[cell.stages]

    # On a GPU the threads only fill the parameters with values, so all cores are given.
    def our(who, note, *flags, cut=balance, **more):
        return Contestant(who, [*ours, *flags, *cell.flags(cores, cut, device="cuda")], note=note, **more)

    sides = Sides(cell, python, sides)

    def rival(who, side, note, cut=balance, **more):
        return sides.rival(who, side, cores, cut, note, WARM_UP, device="cuda", **more)

    found = [our("ours", "1F1B", warm_up=WARM_UP),
             our("ours, graphs", "1F1B", "--graphs", warm_up=WARM_UP_OF_GRAPHS)]
    if cell.mode == "never":
        found.append(our("LibTorch, plain", "whole mini-batch", "--trainer=plain", cut=None, loss=False,
                         warm_up=WARM_UP))
        plain = rival("PyTorch, plain", "plain_side.py", "whole mini-batch", cut=None)
        plain.loss = False
        found.append(plain)
    found.append(rival("torchgpipe", "torchgpipe_side.py", "one worker, for all stages are on one device"))
    for name, schedule in (("GPipe", "gpipe"), ("1F1B", "1f1b")):
        who = f"{PIPELINING} {name}"
        if cell.mode == "except_last":
            found.append(Contestant(who, reason="it has no checkpoint mode of this kind"))
        elif cell.stages > 1:
            found.append(Contestant(who, reason="NCCL wants a GPU for each process, and there is a process per stage"))
        else:
            found.append(rival(who, "pipelining_side.py", "one process, which sends nothing", schedule=schedule))
    return found

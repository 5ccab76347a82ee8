#!/usr/bin/env python3
"""torchgpipe's side of //experiments/rivals; the same commands and answers as ours.cc.

With --package=gpipe.torchgpipe it is ours in //python:rivals.
"""

import collections
import importlib
import sys

import torch

import common
import networks

flags = common.read_flags(__doc__)
torchgpipe = importlib.import_module(flags.package)
balance_by_time = importlib.import_module(f"{flags.package}.balance").balance_by_time
skips = importlib.import_module(f"{flags.package}.skip")
Namespace, pop, skippable, stash = skips.Namespace, skips.pop, skips.skippable, skips.stash


@skippable(stash=["skip"])
class Stasher(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        yield stash("skip", x)
        return self.layer(x)


@skippable(pop=["skip"])
class Popper(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        skip = yield pop("skip")
        return self.layer(x, skip)


def sequential(layers):
    """The layers with torchgpipe's way to carry skips."""
    namespaces = collections.defaultdict(Namespace)
    wrapped = []
    for name, layer in layers:
        if getattr(layer, "stash", None):
            layer = Stasher(layer).isolate(namespaces[layer.stash])
        elif getattr(layer, "pop", None):
            layer = Popper(layer).isolate(namespaces[layer.pop])
        wrapped.append((name, layer))
    return torch.nn.Sequential(collections.OrderedDict(wrapped))


def main():
    torch.set_num_threads(flags.threads)
    device = common.open_device(flags.device)
    network = networks.network(flags.model, flags.image_size)
    balance = flags.balance
    if not balance and flags.device != "cpu":
        sys.exit("--device=cuda needs --balance: the cut is measured on the CPU")
    if not balance:
        sample = common.filled_input(network, flags.rows // flags.chunks)
        balance = balance_by_time(flags.stages, sequential(network.make()), sample, device="cpu")
    peak = common.peak_memory(device)
    pipe = torchgpipe.GPipe(sequential(network.make()), balance, devices=[device] * flags.stages,
                            chunks=flags.chunks, checkpoint=flags.checkpoint)
    data = common.filled_input(network, flags.rows).to(device)
    target = common.filled_target(network, flags.rows).to(device)

    def step():
        pipe.zero_grad()
        if flags.call == "step":
            return pipe.step(data, target, network.loss).loss
        loss = network.loss(pipe(data), target)
        loss.backward()
        return loss.item()

    common.serve_module(pipe, step, peak, device, balance=balance,
                        version=f"{flags.package} {torchgpipe.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()

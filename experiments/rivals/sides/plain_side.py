#!/usr/bin/env python3
"""A side of //experiments/rivals: torch without a pipeline. A step takes the whole mini-batch at once.

It has the commands and answers of ours.cc with --trainer=plain. What a step takes longer than there is Python's share.
"""

import torch

import common
import networks


class Plain(torch.nn.Module):
    """The layers one after the other, and what they leave for later ones."""

    def __init__(self, layers):
        super().__init__()
        self.layers = torch.nn.ModuleDict(layers)

    def forward(self, x):
        skips = {}
        for layer in self.layers.values():
            stash, pop = getattr(layer, "stash", None), getattr(layer, "pop", None)
            if stash:
                skips[stash] = x
            x = layer(x, skips.pop(pop)) if pop else layer(x)
        return x


def main():
    flags = common.read_flags(__doc__)
    torch.set_num_threads(flags.threads)
    device = common.open_device(flags.device)
    network = networks.network(flags.model, flags.image_size)
    peak = common.peak_memory(device)
    module = Plain(network.make()).to(device)
    data = common.filled_input(network, flags.rows).to(device)
    target = common.filled_target(network, flags.rows).to(device)

    def step():
        # Gradients are cleared between forward and backward, as in ours.
        loss = network.loss(module(data), target)
        module.zero_grad()
        loss.backward()
        return loss.item()

    common.serve_module(module, step, peak, device, version=f"torch {torch.__version__}")


if __name__ == "__main__":
    main()

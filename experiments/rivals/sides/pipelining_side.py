#!/usr/bin/env python3
"""torch.distributed.pipelining's side of //experiments/rivals; the same commands and answers as ours.cc.

The first process starts one more for each further stage, with what torchrun would give them, and they talk
over Gloo. A skip travels as one more tensor through every stage between. On a GPU there is one stage, for NCCL wants
a GPU for each process: it sends nothing, and Gloo carries only what this program itself asks for.
"""

import os
import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.checkpoint import checkpoint

import common
import networks


def as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


def crossing_skips(layers, border):
    """The skips that are stashed before layer `border` and popped at or after it, in the order of their stashes."""
    stashed = {layer.stash: place for place, (_, layer) in enumerate(layers) if getattr(layer, "stash", None)}
    popped = {layer.pop: place for place, (_, layer) in enumerate(layers) if getattr(layer, "pop", None)}
    return [skip for skip, place in stashed.items() if place < border <= popped[skip]]


class ContiguousGradient(torch.autograd.Function):
    """The identity, with a contiguous gradient.

    torch 2.15 receives a gradient in the strides that it has where it is computed (a skip's is a part of the gradient
    of a concatenation), and Gloo receives contiguous tensors only.
    """

    @staticmethod
    def forward(context, value):
        return value.view_as(value)

    @staticmethod
    def backward(context, gradient):
        return gradient.contiguous()


class Stage(torch.nn.Module):
    """Layers begin to end - 1. Inputs and outputs are those of the layers, then the skips that cross the borders."""

    def __init__(self, layers, begin, end, recompute):
        super().__init__()
        self.layers = torch.nn.ModuleDict(layers[begin:end])
        self.entering = crossing_skips(layers, begin)
        self.leaving = crossing_skips(layers, end) if end < len(layers) else []
        self.recompute = recompute

    def run(self, *inputs):
        inputs = tuple(ContiguousGradient.apply(value) if value.requires_grad else value for value in inputs)
        count = len(inputs) - len(self.entering)
        skips = dict(zip(self.entering, inputs[count:]))
        x = inputs[:count] if count > 1 else inputs[0]
        for layer in self.layers.values():
            stash, pop = getattr(layer, "stash", None), getattr(layer, "pop", None)
            if stash:
                skips[stash] = x
            x = layer(x, skips.pop(pop)) if pop else layer(x)
        outputs = as_tuple(x) + tuple(skips[skip] for skip in self.leaving)
        return outputs if len(outputs) > 1 else outputs[0]

    def forward(self, *inputs):
        return checkpoint(self.run, *inputs, use_reentrant=False) if self.recompute else self.run(*inputs)


def start_others(stages):
    """Starts the other stages and puts this process, the first of them, into their group."""
    store = tempfile.mkdtemp(prefix="rivals-")
    others = []
    for rank in range(1, stages):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(stages), RIVALS_STORE=store)
        others.append(subprocess.Popen([sys.executable, *sys.argv], env=environment, stdin=subprocess.DEVNULL))
    os.environ.update(RANK="0", WORLD_SIZE=str(stages), RIVALS_STORE=store)
    return others


def sum_of(value):
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return total.item()


def main():
    flags = common.read_flags(__doc__)
    if flags.checkpoint == "except_last":
        sys.exit("torch.distributed.pipelining has no checkpoint mode; a stage can recompute always or never")
    if not flags.balance:
        sys.exit("torch.distributed.pipelining has no tool that balances a pipeline; give --balance")
    if flags.device == "cuda" and flags.stages > 1:
        sys.exit("NCCL wants a GPU for each process, and with --device=cuda all stages are on one; give --stages=1")
    device = common.open_device(flags.device)
    others = start_others(flags.stages) if "RIVALS_STORE" not in os.environ else []
    rank = int(os.environ["RANK"])
    torch.set_num_threads(flags.threads)
    store = dist.FileStore(os.path.join(os.environ["RIVALS_STORE"], "store"), flags.stages)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=flags.stages)

    network = networks.network(flags.model, flags.image_size)
    with torch.device("meta"):
        layers = network.make()
    begin, end = sum(flags.balance[:rank]), sum(flags.balance[:rank + 1])
    if sum(flags.balance) != len(layers):
        sys.exit(f"the balance {flags.balance} sums up to {sum(flags.balance)}, but there are {len(layers)} layers")
    first_parameter = sum(len(list(layer.parameters())) for _, layer in layers[:begin])
    peak = common.peak_memory(device)
    module = Stage(layers, begin, end, flags.checkpoint == "always").to_empty(device=device)
    common.fill_parameters(module, first_parameter)
    for part in module.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.reset_running_stats()
    stage = PipelineStage(module, rank, flags.stages, device)
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[flags.schedule]
    schedule = kind(stage, flags.chunks, loss_fn=network.loss)
    data = common.filled_input(network, flags.rows).to(device)
    target = common.filled_target(network, flags.rows).to(device)

    def step():
        """Returns the loss on the last stage, 0 on others. The barrier makes the first stage wait for all."""
        module.zero_grad()
        losses = []
        arguments = (data,) if rank == 0 else ()
        if rank == flags.stages - 1:
            schedule.step(*arguments, target=target, losses=losses)
        else:
            schedule.step(*arguments)
        if device.type == "cpu":  # On a GPU there is only one process.
            dist.barrier()
        return torch.stack([loss.detach() for loss in losses]).mean().item() if losses else 0.0

    def check():
        common.set_dropout(module, 0)
        loss = step()
        common.set_dropout(module, 0.1)
        return {"loss": sum_of(loss), "gradient": sum_of(common.gradient_sum(module))}

    def steps(count):
        seconds = common.measure_steps(step, count, device)
        return {"seconds": seconds, "peak_bytes": int(sum_of(peak.bytes()))}

    parameters = int(sum_of(sum(parameter.numel() for parameter in module.parameters())))
    if rank == 0:
        common.say({"parameters": parameters, "version": f"torch {torch.__version__}", "balance": flags.balance})
        common.serve(lambda: ordered("check", check), lambda count: ordered(count, lambda: steps(count)))
        ordered("end", lambda: None)
        for other in others:
            other.wait()
    else:
        while (command := receive()) != "end":
            check() if command == "check" else steps(command)
    dist.destroy_process_group()


def ordered(command, do):
    """Has all stages do what the first one was told to."""
    dist.broadcast_object_list([command], src=0)
    return do()


def receive():
    commands = [None]
    dist.broadcast_object_list(commands, src=0)
    return commands[0]


if __name__ == "__main__":
    main()

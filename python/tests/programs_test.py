"""Random programs: outputs, gradients and buffers are, bit for bit, those of the plain Python model
that is run micro-batch by micro-batch."""

import copy
import random

import pytest
import torch
from torch import nn

from gpipe import GPipe
from gpipe.skip import Namespace, pop, skippable, stash

PROGRAMS = 240
PER_TEST = 20


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, input):
        return input + self.inner(input)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(context, input):
        context.save_for_backward(input)
        return input**3

    @staticmethod
    def backward(context, gradient):
        (input,) = context.saved_tensors
        return 3 * input**2 * gradient


class Own(nn.Module):
    def forward(self, input):
        return Cube.apply(input.tanh())


class Split(nn.Module):
    def forward(self, input):
        return input[:, :4], input[:, 4:].clone()


class Swap(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(4))

    def forward(self, values):
        left, right = values
        return right * self.scale, left


class Join(nn.Module):
    def forward(self, values):
        return torch.cat(values, dim=1)


class Counts(nn.Module):
    """A buffer that each micro-batch changes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(8))

    def forward(self, input):
        return input * 0.5 + self.total.sum() * 0


@skippable(stash=["skip"])
class Down(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, input):
        yield stash("skip", self.linear(input))
        return input.relu()


@skippable(pop=["skip"])
class Up(nn.Module):
    def forward(self, input):
        skip = yield pop("skip")
        return input + 0.3 * skip


def layers_of(draw):
    """A model of layers (N, 8) -> (N, 8)."""
    simple = [
        lambda: nn.Linear(8, 8),
        nn.Tanh,
        nn.GELU,
        lambda: nn.LayerNorm(8),
        lambda: nn.BatchNorm1d(8),
        Own,
        Counts,
        lambda: Residual(nn.Sequential(nn.Linear(8, 8), nn.SiLU())),
    ]
    layers = [nn.Linear(8, 8)]
    open_skips = []
    for _ in range(draw.randint(2, 7)):
        kind = draw.random()
        if kind < 0.15:
            layers += [Split(), *[Swap() for _ in range(draw.randint(0, 2))], Join()]
        elif kind < 0.3:
            open_skips.append(Namespace())
            layers.append(Down().isolate(open_skips[-1]))
        elif kind < 0.45 and open_skips:
            layers.append(Up().isolate(open_skips.pop(draw.randrange(len(open_skips)))))
        else:
            layers.append(draw.choice(simple)())
    layers += [Up().isolate(namespace) for namespace in open_skips]
    if draw.random() < 0.3:  # one weight in two layers
        layers += [nn.Linear(8, 8), nn.Linear(8, 8)]
        layers[-1].weight = layers[-2].weight
    for parameter in nn.Sequential(*layers).parameters():
        if draw.random() < 0.1:
            parameter.requires_grad_(False)
    return layers


def balance_of(draw, layers):
    cuts = sorted(draw.sample(range(1, layers), min(draw.randint(0, 3), layers - 1)))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, layers])]


def state(model):
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {**gradients, **dict(model.named_buffers())}


def check_same(ours, plain, what):
    for name, value in plain.items():
        mine = ours[name]
        assert (mine is None) == (value is None), f"{what}: {name}"
        assert value is None or torch.equal(mine, value), f"{what}: {name}"


@pytest.mark.parametrize("first", range(0, PROGRAMS, PER_TEST))
def test_bits(first):
    for seed in range(first, first + PER_TEST):
        check_program(seed)


def check_program(seed):
    draw = random.Random(seed)
    torch.manual_seed(seed)
    layers = layers_of(draw)
    model = nn.Sequential(*layers)
    plain = copy.deepcopy(model)
    chunks = draw.randint(1, 5)
    rows = draw.randint(2 * chunks, 4 * chunks)
    balance = balance_of(draw, len(layers))
    checkpoint = draw.choice(["always", "except_last", "never"])
    schedule = draw.choice(["gpipe", "1f1b", "zb-h1", "fill-drain"])
    what = f"seed {seed}: {balance}, {chunks} chunks, {checkpoint}, {schedule}"
    input, target = torch.randn(rows, 8), torch.randn(rows, 8)
    batches = list(zip(input.chunk(chunks), target.chunk(chunks)))
    if min(len(x) for x, _ in batches) < 2:  # a batch norm refuses one row
        return check_program(seed + 10 * PROGRAMS)
    pipe = GPipe(model, balance, chunks=chunks, checkpoint=checkpoint, cpu_threads_per_stage=1)

    # Computes the step in plain Python. The shares of the micro-batches are computed in double, as
    # the pipeline does.
    outputs = []
    losses = [None] * len(batches)
    for k, (x, y) in enumerate(batches):
        outputs.append(plain(x))
        losses[k] = nn.functional.mse_loss(outputs[-1], y) * (len(x) / rows)
    # Schedule.gpipe runs backwards from the last micro-batch to the first.
    for loss in reversed(losses) if schedule == "gpipe" else losses:
        loss.backward()
    result = pipe.step(
        input, target, nn.functional.mse_loss, schedule=schedule, keep_outputs=True
    )
    assert torch.equal(result.outputs, torch.cat(outputs).detach()), what
    check_same(state(pipe), state(plain), what)

    # Also compares calls of the pipeline as a module, in evaluation mode.
    plain.eval()
    pipe.eval()
    assert torch.equal(pipe(input), torch.cat([plain(x) for x, _ in batches])), what

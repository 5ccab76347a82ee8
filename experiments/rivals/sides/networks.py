"""Four networks of //models for torch, and small linear layers, as flat lists of layers.

A layer here says what it takes from afar and what it leaves for later: `stash` and `pop` name a skip or are
None. Each pipeline carries the skips in its own way: torchgpipe has a decorator for it,
torch.distributed.pipelining passes them from stage to stage.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass
class Network:
    family: str
    side: int  # of an image, or how many numbers a row has
    make: object  # () -> list of (name, layer)
    tokens: int = 0  # of a sequence, for a network that takes token ids below `words`
    words: int = 0

    def loss(self, output, target):
        if self.family == "unet":
            return functional.binary_cross_entropy_with_logits(output, target)
        if self.tokens:
            return functional.cross_entropy(output.flatten(0, 1), target.flatten())
        if self.family == "linear":
            return functional.mse_loss(output, target)
        return functional.cross_entropy(output, target)


def network(name, image_size):
    """`name` as //balance takes it: unet:B,C, amoebanetd:L,D, resnet: with the blocks of each group, or
    gpt2:L,E,H,T,V; or linear:L,E, of //python:rivals alone."""
    family, _, numbers = name.partition(":")
    numbers = [int(number) for number in numbers.split(",")]
    make = {"unet": unet, "amoebanetd": amoebanetd, "resnet": resnet, "gpt2": gpt2, "linear": linear}[family]
    tokens, words = numbers[3:] if family == "gpt2" else (0, 0)
    return Network(family, image_size, lambda: make(*numbers), tokens, words)


class Layer(nn.Module):
    stash = None
    pop = None


class Stash(Layer):
    """Leaves its input for a later layer."""

    def __init__(self, skip):
        super().__init__()
        self.stash = skip

    def forward(self, x):
        return x


class PopCat(Layer):
    """The upsampled input and the skip, side by side."""

    def __init__(self, skip):
        super().__init__()
        self.pop = skip

    def forward(self, x, skip):
        rows, columns = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        if rows or columns:
            x = functional.pad(x, (0, columns, 0, rows))
        return torch.cat((x, skip), 1)


class Residual(Layer):
    """The input plus the shortcut, brought to its size."""

    def __init__(self, skip, inputs, outputs, stride):
        super().__init__()
        self.pop = skip
        self.downsample = None
        if inputs != outputs or stride != 1:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x, skip):
        return x + (skip if self.downsample is None else self.downsample(skip))


def convolution(inputs, outputs, kernel, stride=1, padding=0):
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)


# U-Net


def unet(convolutions, channels, depth=5):
    layers = []

    def stack(name, inputs, middle, outputs):
        for i in range(convolutions):
            width = outputs if i == convolutions - 1 else middle
            layers.extend([(f"{name}{i}_conv", convolution(inputs if i == 0 else middle, width, 3, 1, 1)),
                           (f"{name}{i}_dropout", nn.Dropout2d(0.1)),
                           (f"{name}{i}_norm", nn.InstanceNorm2d(width)),
                           (f"{name}{i}_relu", nn.LeakyReLU(0.01))])

    for level in range(depth):
        width = channels << level
        stack(f"encoder_{level}_encode_", 3 if level == 0 else width // 2, width, width)
        layers.append((f"encoder_{level}_skip", Stash(f"level{level}")))
        layers.append((f"encoder_{level}_down", nn.MaxPool2d(2)))
    stack("bottleneck_0_", channels << (depth - 1), channels << depth, channels << (depth - 1))
    for level in reversed(range(depth)):
        name = f"decoder_{depth - 1 - level}_"
        layers.append((f"{name}up", nn.Upsample(scale_factor=2, mode="nearest")))
        layers.append((f"{name}skip", PopCat(f"level{level}")))
        width = (channels << level) // 2
        stack(f"{name}decode_", channels << (level + 1), width, width)
    layers.append(("segment", convolution(channels // 2, 1, 1)))
    return layers


# ResNet


def resnet(*groups):
    planes = 64
    layers = [("conv1", convolution(3, planes, 7, 2, 3)), ("bn1", nn.BatchNorm2d(planes)), ("relu", nn.ReLU()),
              ("maxpool", nn.MaxPool2d(3, 2, 1))]
    inputs = planes
    for group, blocks in enumerate(groups):
        for block in range(blocks):
            name = f"layer{group + 1}_{block}_"
            stride = 2 if group > 0 and block == 0 else 1
            outputs = 4 * planes
            layers.extend([
                (f"{name}identity", Stash(name)),
                (f"{name}conv1", convolution(inputs, planes, 1)),
                (f"{name}bn1", nn.BatchNorm2d(planes)),
                (f"{name}relu1", nn.ReLU()),
                (f"{name}conv2", convolution(planes, planes, 3, stride, 1)),
                (f"{name}bn2", nn.BatchNorm2d(planes)),
                (f"{name}relu2", nn.ReLU()),
                (f"{name}conv3", convolution(planes, outputs, 1)),
                (f"{name}bn3", nn.BatchNorm2d(outputs)),
                (f"{name}residual", Residual(name, inputs, outputs, stride)),
                (f"{name}relu3", nn.ReLU())])
            inputs = outputs
        planes *= 2
    layers.extend([("avgpool", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten(1)), ("fc", nn.Linear(inputs, 1000))])
    return layers


# AmoebaNet-D: pairs of (state, operation), then the states that are joined.

NORMAL = ([(1, "conv1x1"), (1, "average"), (1, "none"), (0, "conv1x7"), (0, "conv1x1"), (0, "conv1x7"),
           (2, "average"), (2, "none"), (1, "average"), (5, "conv1x1")], [0, 3, 4, 6])
REDUCTION = ([(0, "maximum"), (0, "average"), (2, "none"), (1, "conv3x3"), (2, "conv1x7"), (2, "average"),
              (3, "none"), (1, "maximum"), (2, "average"), (3, "conv1x1")], [4, 5, 6])


def relu_conv_norm(inputs, outputs, kernel=1, stride=1, padding=0):
    return [nn.ReLU(), convolution(inputs, outputs, kernel, stride, padding), nn.BatchNorm2d(outputs)]


def operation(kind, channels, stride):
    inner = channels // 4
    if kind == "none":
        return nn.Identity()
    if kind == "average":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    if kind == "maximum":
        return nn.MaxPool2d(2, stride)
    if kind == "conv1x1":
        return nn.Sequential(*relu_conv_norm(channels, channels, 1, stride))
    if kind == "conv3x3":
        return nn.Sequential(*relu_conv_norm(channels, inner), *relu_conv_norm(inner, inner, 3, stride, 1),
                             *relu_conv_norm(inner, channels))
    return nn.Sequential(*relu_conv_norm(channels, inner),
                         *relu_conv_norm(inner, inner, (1, 7), (1, stride), (0, 3)),
                         *relu_conv_norm(inner, inner, (7, 1), (stride, 1), (3, 0)),
                         *relu_conv_norm(inner, channels))


class Stem(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = convolution(3, channels, 3, 2, 1)
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return self.bn(self.conv(functional.relu(x)))


class FactorizedReduce(nn.Module):
    """Half of the channels from the even pixels, half from the odd ones."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = convolution(inputs, outputs // 2, 1, 2)
        self.conv2 = convolution(inputs, outputs // 2, 1, 2)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x):
        x = functional.relu(x)
        return self.bn(torch.cat((self.conv1(x), self.conv2(functional.pad(x, (-1, 1, -1, 1)))), 1))


class Cell(nn.Module):
    """Takes the outputs of the two layers before it and hands on its own and the previous one's."""

    def __init__(self, before_previous, previous, channels, reduction, after_reduction):
        super().__init__()
        self.genes, self.joined = REDUCTION if reduction else NORMAL
        self.reduce1 = nn.Sequential(*relu_conv_norm(previous, channels))
        if after_reduction:
            self.reduce2 = FactorizedReduce(before_previous, channels)
        elif before_previous != channels:
            self.reduce2 = nn.Sequential(*relu_conv_norm(before_previous, channels))
        else:
            self.reduce2 = nn.Identity()
        self.operations = nn.ModuleList(
            operation(kind, channels, 2 if reduction and state < 2 else 1) for state, kind in self.genes)

    def forward(self, inputs):
        previous, before_previous = inputs if isinstance(inputs, tuple) else (inputs, inputs)
        states = [self.reduce1(previous), self.reduce2(before_previous)]
        for j in range(0, len(self.genes), 2):
            states.append(self.operations[j](states[self.genes[j][0]]) +
                          self.operations[j + 1](states[self.genes[j + 1][0]]))
        return torch.cat([states[state] for state in self.joined], 1), previous


class Classify(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.pool = nn.AvgPool2d(7)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, inputs):
        return self.fc(self.pool(inputs[0]).flatten(1))


def amoebanetd(cells, filters):
    channels = filters // 4
    layers = [("stem1", Stem(channels))]
    before_previous = previous = channels
    after_reduction = False

    def add(name, reduction):
        nonlocal channels, before_previous, previous, after_reduction
        channels *= 2 if reduction else 1
        layers.append((name, Cell(before_previous, previous, channels, reduction, after_reduction)))
        before_previous, previous = previous, channels * len((REDUCTION if reduction else NORMAL)[1])
        after_reduction = reduction

    add("stem2", True)
    add("stem3", True)
    for group in (1, 3, 5):
        for i in range(cells // 3):
            add(f"cell{group}_normal{i + 1}", False)
        if group < 5:
            add(f"cell{group + 1}_reduction", True)
    layers.append(("classify", Classify(previous)))
    return layers


# GPT-2, with a head of its own. The parameters of each layer are in the order of //models.


class TokenEmbedding(nn.Module):
    def __init__(self, words, tokens, width):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Embedding(tokens, width)

    def forward(self, ids):
        return self.tokens(ids) + self.positions.weight[:ids.shape[1]]


class AttentionLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).unflatten(-1, (3 * self.heads, -1)).transpose(1, 2).chunk(3, 1)
        seen = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.output(seen.transpose(1, 2).flatten(2))


class MlpLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x)), approximate="tanh"))


def gpt2(blocks, width, heads, tokens, words):
    layers = [("embedding", TokenEmbedding(words, tokens, width))]
    for i in range(blocks):
        layers += [(f"block{i}_attention", AttentionLayer(width, heads)), (f"block{i}_mlp", MlpLayer(width))]
    return layers + [("norm", nn.LayerNorm(width)), ("head", nn.Linear(width, words, bias=False))]


# Layers so small that only the cost of a cell counts.


def linear(layers, width):
    return [(f"linear{i}", nn.Linear(width, width)) for i in range(layers)]

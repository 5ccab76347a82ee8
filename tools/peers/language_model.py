#!/usr/bin/env python3
"""Trains the network of //examples/language_model with torch.distributed.pipelining, or with plain PyTorch.

The same parameters to begin with, rows, optimizer and learning rates, written anew in Python: the losses are those of
the program up to rounding, and the time is another.

    tools/bazel build //examples/language_model
    bazel-bin/examples/language_model/language_model --steps=0 --sample=0 --save=/tmp/begin
    OMP_NUM_THREADS=1 python3 tools/peers/language_model.py --begin=/tmp/begin --balance=5,6
    python3 tools/peers/language_model.py --begin=/tmp/begin --balance=11      # one process, no pipeline

On a GPU, with the flags of that name that the program was given (and --compile for torch.compile):

    python3 tools/peers/language_model.py --begin=/tmp/begin --balance=27 --blocks=12 --width=768 --heads=12 \
      --length=1024 --batch=32 --device=cuda:0 --bfloat16

Needs a Python with our LibTorch's version of torch (pip install torch==$(third_party/libtorch/libtorch.sh default)), and
Debian's package bible-kjv-text or --text=FILE.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

# The defaults of the program's flags. main() sets these five variables to the values of the flags.
BLOCKS, WIDTH, HEADS, LENGTH, BATCH = 4, 128, 4, 256, 16
SIZES = ("BLOCKS", "WIDTH", "HEADS", "LENGTH", "BATCH")
RATE, WARM_UP, DECAY, CLIP, SEED = 3e-3, 50, 0.1, 1.0, 0
END, VOCABULARY, IGNORED, HELD_OUT, OPEN_ROWS = 256, 257, -100, 20, 16


# --- Rows (documents.cc)

def read_text(path):
    with open(path, "rb") as file:
        data = file.read()
    if not data.startswith(b"EC02Compressed Data File"):
        return data

    def number(place):
        return int.from_bytes(data[place:place + 4], "big")

    windows = number(88)
    begins = [number(92 + 4 * k) for k in range(windows)] + [len(data)]
    return b"".join(
        subprocess.run(["gzip", "-dc"], input=b"\x1f\x9d\x90" + data[begin:end], stdout=subprocess.PIPE,
                       check=True).stdout for begin, end in zip(begins, begins[1:]))


def training_pieces(text):
    """(tokens, targets) of each piece."""
    lines = [line + b"\n" for line in text.split(b"\n") if line]
    pieces = []
    for number, line in enumerate(lines):
        if number % HELD_OUT == HELD_OUT - 1:
            continue
        tokens = [END, *line, END]
        for begin in range(0, len(tokens) - 1, LENGTH):
            end = min(begin + LENGTH, len(tokens) - 1)
            pieces.append((tokens[begin:end], tokens[begin + 1:end + 1]))
    return pieces


def pack(pieces, order):
    """Each piece goes to the fullest open row that has room for it."""
    rows, open_rows = [], []
    for number in order:
        size = len(pieces[number][0])
        place = next((k for k, row in enumerate(open_rows) if row["room"] >= size), None)
        if place is None:
            if len(open_rows) == OPEN_ROWS:
                rows.append(open_rows.pop(0)["pieces"])
            open_rows.append({"pieces": [], "room": LENGTH})
            place = len(open_rows) - 1
        row = open_rows.pop(place)
        row["pieces"].append(number)
        row["room"] -= size
        fuller = next((k for k in range(place) if open_rows[k]["room"] > row["room"]), place)
        open_rows.insert(fuller, row)
    return rows + [row["pieces"] for row in open_rows]


def batches(pieces):
    """ids, documents and targets of mini-batch after mini-batch."""
    rows, epoch = [], 0
    while True:
        while len(rows) < BATCH:
            generator = torch.Generator().manual_seed(SEED + epoch)
            rows += pack(pieces, torch.randperm(len(pieces), generator=generator).tolist())
            epoch += 1
        ids = torch.full((BATCH, LENGTH), END)
        documents = torch.zeros((BATCH, LENGTH), dtype=torch.long)
        targets = torch.full((BATCH, LENGTH), IGNORED)
        for row, numbers in enumerate(rows[:BATCH]):
            used = 0
            for place, number in enumerate(numbers):
                tokens, behind = pieces[number]
                there = slice(used, used + len(tokens))
                ids[row, there] = torch.tensor(tokens)
                targets[row, there] = torch.tensor(behind)
                documents[row, there] = place
                used += len(tokens)
            documents[row, used:] = len(numbers)
        del rows[:BATCH]
        yield ids, documents, targets


# --- The network (models/transformer.h)

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.rms_norm(x, (WIDTH,), self.weight, 1e-5)


class Embedding(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, ids, _):
        return self.tokens(ids)


def places_in(documents):
    places = torch.arange(documents.shape[1], device=documents.device)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0)) * places
    return places - begins.cummax(1).values


def rotated(x, places):
    size = x.shape[-1]
    angles = places[:, None, :, None] / 10000 ** (torch.arange(0, size, 2, device=x.device) / size)
    first, second = x.chunk(2, -1)
    return torch.cat((first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, documents):
        queries, keys, values = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        places = places_in(documents)
        seen = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
        mixed = F.scaled_dot_product_attention(rotated(queries, places), rotated(keys, places), values, attn_mask=seen)
        return x + self.output(mixed.transpose(1, 2).flatten(2))


class Mlp(torch.nn.Module):
    def __init__(self):
        super().__init__()
        inner = WIDTH * 8 // 3
        self.norm = Norm()
        self.gate = torch.nn.Linear(WIDTH, inner, bias=False)
        self.up = torch.nn.Linear(WIDTH, inner, bias=False)
        self.down = torch.nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x, _):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class LastNorm(Norm):
    def forward(self, x, _):
        return super().forward(x)


class Head(torch.nn.Linear):
    def __init__(self):
        super().__init__(WIDTH, VOCABULARY, bias=False)

    def forward(self, x, _):
        return super().forward(x)


class Layers(torch.nn.ModuleDict):
    """Each process gives all its stages the documents: it has read them itself."""

    def forward(self, x, documents):
        for layer in self.values():
            x = layer(x, documents)
        return x


def all_layers():
    layers = [("embedding", Embedding())]
    for block in range(BLOCKS):
        layers += [(f"block{block}_attention", Attention()), (f"block{block}_mlp", Mlp())]
    return layers + [("norm", LastNorm()), ("head", Head())]


def load(layers, path):
    """Reads the values from a model.safetensors."""
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8:8 + size])
    with torch.no_grad():
        for name, parameter in torch.nn.ModuleDict(layers).named_parameters():
            begin, end = entries[name]["data_offsets"]
            values = torch.frombuffer(bytearray(data[8 + size + begin:8 + size + end]), dtype=torch.float32)
            parameter.copy_(values.view(entries[name]["shape"]))


# --- Training

def rate_at(step, steps):
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    return RATE * (0.1 + 0.9 * (1 + math.cos(math.pi * min((step - WARM_UP) / max(steps - WARM_UP, 1), 1))) / 2)


def clip(parameters, pipelined):
    """Clips the gradients by their norm over all stages."""
    square = sum((p.grad.norm() ** 2 for p in parameters), torch.zeros((), device=parameters[0].device))
    if pipelined:
        dist.all_reduce(square)
    scale = CLIP / (square.sqrt() + 1e-6)
    if scale < 1:
        for parameter in parameters:
            parameter.grad *= scale


def train(arguments, rank, stages):
    balance = [int(count) for count in arguments.balance.split(",")]
    device = torch.device(arguments.device)
    layers = all_layers()
    load(layers, f"{arguments.begin}/model.safetensors")
    begin = sum(balance[:rank])
    module = Layers(layers[begin:begin + balance[rank]]).to(device)
    if arguments.bfloat16:
        module.forward = torch.autocast(device.type, torch.bfloat16)(module.forward)
    if arguments.compile:
        module.compile()
    matrices = [p for p in module.parameters() if p.dim() > 1]
    others = [p for p in module.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], betas=(0.9, 0.95))

    counted = 1  # how many tokens of the mini-batch count

    def share_of_loss(logits, targets):
        summed = F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return summed / counted

    if stages > 1:
        # The shapes are not given but inferred in the first step, because since 2.15 given shapes
        # fail ("A GradientEdge root requires a gradient").
        stage = PipelineStage(module, rank, stages, device)
        schedule = Schedule1F1B(stage, arguments.chunks, loss_fn=share_of_loss, scale_grads=False)

    losses, tokens, seconds = [], 0, 0.0
    data = batches(training_pieces(read_text(arguments.text)))
    for step in range(arguments.steps):
        start = time.perf_counter()
        ids, documents, targets = (tensor.to(device) for tensor in next(data))
        counted = int((targets != IGNORED).sum())
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, arguments.steps_of_rate or arguments.steps)
        optimizer.zero_grad()
        if stages == 1:
            loss = share_of_loss(module(ids, documents), targets)
            loss.backward()
            losses.append(loss.item())
        else:
            parts = []
            if rank == 0:
                schedule.step(ids, documents=documents)
            else:
                schedule.step(target=targets, losses=parts, documents=documents) if rank == stages - 1 else \
                    schedule.step(documents=documents)
            losses.append(sum(part.item() for part in parts))
        clip(list(module.parameters()), stages > 1)
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds += time.perf_counter() - start
        tokens += counted
        if (step + 1) % arguments.every == 0 and rank == stages - 1:
            print(f"step {step + 1:5}: loss {sum(losses) / len(losses):.4f}, {tokens / seconds:.0f} tokens/s", flush=True)
            losses, tokens, seconds = [], 0, 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--begin", required=True, help="a checkpoint's folder, with the parameters to begin with")
    parser.add_argument("--text", default="/usr/lib/bible.data", help="default: that of bible-kjv-text")
    parser.add_argument("--balance", default="5,6", help="layers of each stage, a process each (default 5,6)")
    parser.add_argument("--chunks", type=int, default=4, help="micro-batches (default 4)")
    parser.add_argument("--steps", type=int, default=500, help="default 500")
    parser.add_argument("--steps-of-rate", type=int, help="the steps that the learning rate is for (default --steps)")
    parser.add_argument("--every", type=int, default=100, help="steps between two lines (default 100)")
    parser.add_argument("--device", default="cpu", help="where all stages are, such as cuda:0 (default cpu)")
    parser.add_argument("--bfloat16", action="store_true", help="products in bfloat16 (autocast)")
    parser.add_argument("--compile", action="store_true", help="compiles each stage (torch.compile)")
    for name in SIZES:
        parser.add_argument(f"--{name.lower()}", type=int, default=globals()[name], help=f"default {globals()[name]}")
    arguments = parser.parse_args()
    globals().update({name: getattr(arguments, name.lower()) for name in SIZES})
    stages = arguments.balance.count(",") + 1
    if stages == 1:
        train(arguments, 0, 1)
        return
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if arguments.device.startswith("cuda") else "gloo")
        train(arguments, dist.get_rank(), stages)
        dist.destroy_process_group()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Stages may share a GPU, so NCCL_HOSTID makes NCCL take each stage for a host of its own.
    ranks = [
        subprocess.Popen([sys.executable, __file__, *sys.argv[1:]],
                         env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(stages), "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": str(port), "NCCL_HOSTID": f"stage-{rank}"}) for rank in range(stages)]
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()

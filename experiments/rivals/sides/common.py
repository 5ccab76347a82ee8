"""What the rivals' programs share: flags, the device, values by position, memory, the answers to commands.

Runs in the Python of the rivals, with torch. fill.cc and resident_peak.cc are the same in C++.
"""

import argparse
import ctypes
import gc
import json
import math
import sys
import time

import torch

INPUT, TARGET = 2000000, 2000001
MASK = 0xFFFFFFFF


def fill_values(k, count):
    """Values from -1 to 1, for elements 0 to count - 1 of tensor `k`; float64."""
    h = (torch.arange(count, dtype=torch.int64) + k * 0x9E3779B9) & MASK
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & MASK
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & MASK
    h ^= h >> 16
    return 2 * (h.double() / 4294967296.0 - 0.5)


def fill_parameter(parameter, k, name):
    values = fill_values(k, parameter.numel()).view(parameter.shape)
    if parameter.dim() > 1:
        values *= math.sqrt(3 / (parameter.numel() // parameter.shape[0]))
    else:
        values = values * 0.2 + (1 if name.endswith("weight") else 0)
    with torch.no_grad():
        parameter.copy_(values)


def fill_parameters(module, first=0):
    """Fills the module's parameters. `first`: the place of the first one in the whole network."""
    for k, (name, parameter) in enumerate(module.named_parameters(), first):
        fill_parameter(parameter, k, name)


def unit_values(k, *shape):
    return (0.5 + 0.5 * fill_values(k, math.prod(shape))).float().view(shape)


def token_ids(k, words, *shape):
    return ((0.5 + 0.5 * fill_values(k, math.prod(shape))) * words).long().view(shape)


def filled_input(network, rows):
    if network.tokens:
        return token_ids(INPUT, network.words, rows, network.tokens)
    if network.family == "linear":
        return unit_values(INPUT, rows, network.side)
    return unit_values(INPUT, rows, 3, network.side, network.side)


def filled_target(network, rows):
    if network.tokens:
        return token_ids(TARGET, network.words, rows, network.tokens)
    if network.family == "linear":
        return unit_values(TARGET, rows, network.side)
    if network.family == "unet":
        return unit_values(TARGET, rows, 1, network.side, network.side)
    return 7 * torch.arange(rows) % 1000


def set_dropout(module, probability):
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout2d):
            part.p = probability


def gradient_sum(module):
    return sum(parameter.grad.abs().sum(dtype=torch.float64).item() for parameter in module.parameters())


def open_device(name):
    """The torch.device of --device: the CPU, or the first GPU, without TF32 (cuDNN would take it by default)."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        sys.exit(f"--device=cuda: torch {torch.__version__} finds no GPU here; nvidia-smi tells whether there is one, "
                 "and torch must be one for CUDA")
    torch.cuda.init()  # The allocator's figures are asked for before anything is on the GPU.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda:0")


def resident_memory():
    """VmHWM, RssAnon, and what is not data, in bytes."""
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    of = {key: int(lines[key].split()[0]) * 1024 for key in ("VmHWM", "RssAnon", "RssFile", "RssShmem")}
    return of["VmHWM"], of["RssAnon"], of["RssFile"] + of["RssShmem"]


class PeakMemory:
    """The most bytes of data since the construction, above what was held then."""

    def __init__(self):
        gc.collect()
        process = ctypes.CDLL(None)
        process.malloc_trim(0)  # Memory that importing torch has freed would hide later allocations.
        if hasattr(process, "MallocExtension_ReleaseFreeMemory"):  # tcmalloc, by LD_PRELOAD
            process.MallocExtension_ReleaseFreeMemory()
        try:
            with open("/proc/self/clear_refs", "w") as clear:
                clear.write("5")
        except OSError:
            pass  # An earlier peak may be reported.
        self.before = resident_memory()[1]

    def bytes(self):
        peak, _, other = resident_memory()
        return max(peak - other - self.before, 0)


class PeakDeviceMemory:
    """The most bytes of a GPU since the construction, above what was held then: what torch's
    allocator has handed out, not what it has reserved."""

    def __init__(self, device):
        self.device = device
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        self.before = torch.cuda.memory_allocated(device)

    def bytes(self):
        return max(torch.cuda.max_memory_allocated(self.device) - self.before, 0)


def peak_memory(device):
    return PeakDeviceMemory(device) if device.type == "cuda" else PeakMemory()


def read_flags(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True)
    parser.add_argument("--image_size", type=int, default=0, help="of networks that take images")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--balance", default="", help="empty: the cut of the rival's own tool")
    parser.add_argument("--chunks", type=int, required=True)
    parser.add_argument("--checkpoint", required=True, choices=["always", "except_last", "never"])
    parser.add_argument("--schedule", default="gpipe", choices=["gpipe", "1f1b"])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="of all stages; cuda: the first GPU")
    parser.add_argument("--package", default="torchgpipe", help="of torchgpipe_side.py: torchgpipe or gpipe.torchgpipe")
    parser.add_argument("--call", default="forward", choices=["forward", "step"],
                        help="of gpipe.torchgpipe; step: forward, loss and backward in one call")
    flags = parser.parse_args()
    flags.balance = [int(layers) for layers in flags.balance.split(",")] if flags.balance else []
    return flags


def say(answer):
    print(json.dumps(answer), flush=True)


def measure_steps(step, count, device):
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return seconds


def serve_module(module, step, peak, device, **ready):
    """Serves a network that is whole in this process. `step` trains it once and returns the loss; `ready`: what else
    the first line says."""

    def check():
        fill_parameters(module)
        set_dropout(module, 0)
        loss = step()
        set_dropout(module, 0.1)
        return {"loss": loss, "gradient": gradient_sum(module)}

    say({"parameters": sum(parameter.numel() for parameter in module.parameters()), **ready})
    serve(check, lambda count: {"seconds": measure_steps(step, count, device), "peak_bytes": peak.bytes()})


def serve(check, steps):
    """Answers the commands on the standard input: "check" and "steps N"."""
    for line in sys.stdin:
        words = line.split()
        if words == ["check"]:
            say(check())
        elif len(words) == 2 and words[0] == "steps":
            say(steps(int(words[1])))
        else:
            sys.exit(f"commands are 'check' and 'steps N', got {line!r}")

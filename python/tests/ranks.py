"""Runs a program of Python as several processes, as a launcher does."""

import os
import pathlib
import socket
import subprocess
import sys
import textwrap
import time

# The text that every program below begins with.
PRELUDE = """
import json, os, pathlib, signal, sys, threading, time
import torch
from torch import nn
import gpipe
from gpipe import GPipe
torch.set_num_threads(1)
mse = nn.functional.mse_loss
out = pathlib.Path(sys.argv[1])
def model_of():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
def tell(**facts):
    (out / f"{rank}.json").write_text(json.dumps(facts))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def write(folder, program):
    path = pathlib.Path(folder) / "program.py"
    path.write_text(PRELUDE + textwrap.dedent(program))
    return path


class Ranks:
    """The processes; `wait` gives their exit codes, and `errors` what they wrote to stderr."""

    def __init__(self, folder, program, size, variables=None):
        path, port = write(folder, program), free_port()
        self.files = [open(pathlib.Path(folder) / f"{rank}.err", "w+") for rank in range(size)]
        self.processes = []
        for rank in range(size):
            own = {
                "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1,
                **(variables or {}),
            }
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(path), str(folder)],
                    env={**os.environ, **{name: str(value) for name, value in own.items()}},
                    stderr=self.files[rank],
                )
            )

    def wait(self, seconds=600):
        end = time.monotonic() + seconds
        try:
            return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
            for process in self.processes:
                process.wait()

    def errors(self, rank):
        self.files[rank].seek(0)
        return self.files[rank].read()

    def all_errors(self):
        return "\n".join(self.errors(rank) for rank in range(len(self.files)))

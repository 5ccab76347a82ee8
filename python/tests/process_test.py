"""What happens to the process: Ctrl-C, its end while a pipeline runs, fork, another torch."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from torch import nn

from gpipe import GPipe, _gpipe, _load

mse = nn.functional.mse_loss


class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.seconds = 0.0

    def forward(self, input):
        time.sleep(self.seconds)
        return input * self.weight


@pytest.mark.parametrize("balance", [[2], [1, 1]])
@pytest.mark.parametrize("call", ["forward", "step"])
def test_ctrl_c_ends_a_run_and_leaves_the_model_usable(balance, call):
    pipe = GPipe(nn.Sequential(Slow(), Slow()), balance, chunks=100)
    input = torch.randn(100, 8)
    for layer in pipe:
        layer.seconds = 0.1
    timer = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        pipe(input) if call == "forward" else pipe.step(input, input, mse)
    # The limit is not a measurement. A run that is not interrupted takes ten seconds at least.
    assert time.monotonic() - begin < 9
    timer.join()
    for layer in pipe:
        layer.seconds = 0.0
    assert torch.equal(pipe(input), input)


def python(program, **kwargs):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=240,
        **kwargs,
    )


PIPELINE = """
import os, sys, threading, time, torch
from torch import nn
from gpipe import GPipe
begun = threading.Event()
class Layer(nn.Linear):
    def forward(self, input):
        begun.set()
        return super().forward(input)
pipe = GPipe(nn.Sequential(*[Layer(8, 8) for _ in range(4)]), [1] * 4, chunks=4)
input = torch.randn(4, 8)
def train():
    while True:
        pipe.step(input, input, nn.functional.mse_loss)
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError('end')"])
def test_the_interpreter_ends_while_a_daemon_thread_trains(end):
    code = {"": 0, "sys.exit(3)": 3}.get(end, 1)
    ended = python(
        PIPELINE + f"threading.Thread(target=train, daemon=True).start()\nbegun.wait()\n{end}\n"
    )
    assert ended.returncode == code, ended.stderr
    assert "Fatal" not in ended.stderr and "terminate" not in ended.stderr


def test_sys_exit_in_a_layer_ends_the_program():
    ended = python(
        PIPELINE
        + """
class Exits(nn.Module):
    def forward(self, input):
        sys.exit(5)
GPipe(nn.Sequential(nn.Linear(8, 8), Exits()), [1, 1])(input)
"""
    )
    assert ended.returncode == 5, ended.stderr


def test_a_forked_child_may_use_torch_and_end():
    # The program forks as DataLoader does for its workers. The child may use torch and end, but
    # must not use the pipeline.
    ended = python(
        PIPELINE
        + """
pipe(input)
child = os.fork()
if child == 0:
    torch.ones(3).sum().item()
    try:
        pipe(input)
    except RuntimeError as error:
        os._exit(7 if 'fork' in str(error) else 8)
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
pipe(input)
"""
    )
    assert ended.returncode == 0, ended.stderr


def test_warnings_are_pythons():
    ended = python(
        PIPELINE
        + """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pipe.eval()
    pipe.step(input, input, nn.functional.mse_loss)
assert any("GPipe: " in str(warning.message) for warning in caught), caught
""",
        # Torch itself gives this warning if there is no NumPy.
        env={**os.environ, "PYTHONWARNINGS": "ignore:Failed to initialize NumPy"},
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""


def test_one_openmp_and_one_standard_library_are_loaded():
    with open("/proc/self/maps") as file:
        loaded = {line.split()[-1] for line in file if "/" in line}
    for library in ("libgomp", "libstdc++", "libtorch_cpu", "libc10.so"):
        assert len([path for path in loaded if os.path.basename(path).startswith(library)]) == 1
    assert not [path for path in loaded if "tcmalloc" in path or "libglog" in path]


def test_another_torch_is_refused_in_one_sentence():
    built_for = _gpipe.built_for.split()[-1]
    _load._check_torch(built_for + "+cpu")
    with pytest.raises(ImportError, match=f"built for torch {built_for}, and torch 1.0.0 is"):
        _load._check_torch("1.0.0")


def test_another_python_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ImportError, match="extension is missing: install the wheel"):
        _load._find_extension(tmp_path)
    (tmp_path / "_gpipe.cpython-310-x86_64-linux-gnu.so").touch()
    given = sys.implementation.cache_tag
    with pytest.raises(ImportError, match=f"built for cpython-310.*, and this Python is {given}: use"):
        _load._find_extension(tmp_path)
    own = tmp_path / f"_gpipe.{given}-x86_64-linux-gnu.so"
    own.touch()
    assert _load._find_extension(tmp_path) == own


def test_importing_without_the_extension_of_this_python(tmp_path):
    package = tmp_path / "gpipe"
    package.mkdir()
    for name in ("__init__.py", "_load.py"):
        (package / name).write_bytes((pathlib.Path(_load.__file__).parent / name).read_bytes())
    (package / "_gpipe.cpython-310-x86_64-linux-gnu.so").touch()
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = python("import gpipe", env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == 1
    assert "built for cpython-310-x86_64-linux-gnu, and this Python is" in ended.stderr

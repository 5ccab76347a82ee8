"""The Python of docs/guide, as it stands there, and the programs of examples/python."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

import gpipe

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import ranks  # noqa: E402

ROOT = pathlib.Path.cwd()
# What the chapters' programs use and do not define.
GIVEN = """
def make_layers():
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 4))
a, b, c, d = make_layers()
input, target = torch.ones(16, 6), torch.ones(16, 4)
loss_fn = mse
"""
# The same of the block about plans, whose models are larger there.
GIVEN_FOR_PLANS = """
layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Linear(8, 4))
micro_batch, mini_batch = torch.ones(4, 6), torch.ones(16, 6)
input, target = torch.ones(16, 6), torch.zeros(16, dtype=torch.long)
loss_fn = nn.functional.cross_entropy
def make_model():
    within = [nn.Conv2d(4, 4, 1) for _ in range(55)]
    return nn.Sequential(nn.Conv2d(3, 4, 16, 16), *within, nn.Flatten(), nn.Linear(784, 10))
"""


def blocks(chapter):
    text = (ROOT / f"docs/guide/{chapter}.md").read_text()
    found = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    # The block that needs transformers is left out; hugging_face_test runs what it shows.
    return [block for block in found if "hugging_face" not in block]


def run(folder, program):
    path = ranks.write(folder, program)
    subprocess.run([sys.executable, str(path), str(folder)], check=True, cwd=folder, timeout=600)


def test_the_chapters_in_one_process(tmp_path):
    of_python = [block for block in blocks("36-python") if "import balance" not in block]
    assert len(of_python) == 4
    every = of_python + blocks("12-mixed-precision") + blocks("26-from-torchgpipe")
    # The blocks run twice. The first round saves the run, and the second one resumes it.
    run(tmp_path, GIVEN + "\n".join(every * 2) +
        "\nassert gpipe.read_progress('run').step == 6, progress")


def test_plans(tmp_path):
    (block,) = [block for block in blocks("36-python") if "import balance" in block]
    run(tmp_path, GIVEN_FOR_PLANS + block + "assert found.fits and not plan.problems\n")


def test_the_chapters_over_processes(tmp_path):
    (block,) = [block for block in blocks("36-python") if "World" in block]
    (scaling,) = blocks("12-mixed-precision")
    started = ranks.Ranks(tmp_path, GIVEN + block + scaling + "rank = world.rank\n"
                          "tell(hash=model.parameter_hash(), loss=result.loss)\n", 2)
    assert started.wait() == [0, 0], started.all_errors()
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def example(name, *arguments, size=1, cwd=None):
    path = ROOT / "examples/python" / name
    command = [sys.executable, str(path), *arguments]
    if size > 1:
        command = [os.environ["GPIPE_LAUNCH"], f"--processes={size}", "--", *command]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, cwd=cwd,
                          timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout


def test_three_lines():
    losses = [float(line.split()[-1]) for line in example("three_lines.py").splitlines()]
    assert losses[-1] < losses[0]


def test_unet():
    assert re.search(r"the same outputs: True", example("unet.py"))


def last_words(text):
    """The loss and the hash of the last line."""
    return text.splitlines()[-1].split()[-3:]


def test_transformer_over_processes(tmp_path):
    one = example("transformer.py", "--steps=4")
    two = example("transformer.py", "--steps=4", size=2)
    assert last_words(one) == last_words(two)
    run = tmp_path / "run"
    for _ in range(2):  # the second time, all steps have been made
        example("transformer.py", "--steps=2", f"--run={run}", size=2)
        assert gpipe.read_progress(run).step == 2
    assert last_words(example("transformer.py", "--steps=4", f"--run={run}")) == last_words(one)


def test_transformer_of_hugging_face(tmp_path):
    pytest.importorskip("transformers", reason="tools/transformers/transformers.sh fetches it")
    one = example("transformer.py", "--steps=4", "--gpt2")
    run = f"--run={tmp_path / 'run'}"
    example("transformer.py", "--steps=2", "--gpt2", run, size=2)
    three = example("transformer.py", "--steps=4", "--gpt2", run, size=3)
    assert last_words(three) == last_words(one)

"""gpipe.diagnose: reports, advice that can be taken, a model that stays as it was."""

import copy
import re

import pytest
import torch
from torch import nn

import gpipe
from gpipe import GPipe

mse = nn.functional.mse_loss


class Remembers(nn.Linear):
    """Keeps the modes that it ran in."""

    def __init__(self, width):
        super().__init__(width, width)
        self.modes = set()

    def forward(self, input):
        self.modes.add(self.training)
        return super().forward(input)


def pipe_of(**options):
    model = nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), Remembers(64), nn.Linear(64, 8)
    )
    return GPipe(model, [4, 1], chunks=4, checkpoint="always", **options)


INPUT, TARGET = torch.rand(32, 32), torch.rand(32, 8)


def test_a_diagnosis():
    pipe = pipe_of().eval()
    for parameter in pipe.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy(pipe.state_dict())
    drawn = torch.get_rng_state()
    parts = []
    diagnosis = gpipe.diagnose(
        pipe, INPUT, TARGET, mse, schedule="fill-drain", seconds=0.05, chunks=[2, 4, 8],
        schedules=["1f1b", "zb-h1"], cores=2, progress=lambda *part: parts.append(part),
    )
    assert all(torch.equal(before[key], value) for key, value in pipe.state_dict().items())
    assert all((parameter.grad == 1).all() for parameter in pipe.parameters())
    assert torch.equal(drawn, torch.get_rng_state())
    assert not any(module.training for module in pipe.modules()) and pipe[3].modes == {True}

    assert diagnosis.step > 0 and diagnosis.plain > 0
    assert diagnosis.ideal == pytest.approx(diagnosis.plain / 2)
    assert sum(diagnosis.parts.values()) == pytest.approx(diagnosis.step - diagnosis.ideal)
    assert diagnosis.parts["recompute"] > 0 or diagnosis.warning
    assert diagnosis.report["setup"]["checkpoints"] == ["always", "always"]
    assert str(diagnosis) == repr(diagnosis) and "recompute" in str(diagnosis)
    assert [done for _, done, _ in parts] == list(range(len(parts))) and parts[0][0] == "steps"
    assert bool(diagnosis.warning) <= (diagnosis.advice == [])
    for advice in diagnosis.advice:
        assert advice.speed_up >= 1.02 and advice.change and len(advice.memory) == 2
        better = GPipe(nn.Sequential(*pipe), **advice.options)
        better.step(INPUT, TARGET, mse, schedule=advice.schedule)


def test_a_schedule_of_ones_own_is_kept_in_the_advice():
    """The report calls it "as given". Advice that keeps it gives its text."""
    table = gpipe.schedule.by_name("fill-drain", stages=2, micro_batches=4)
    report = '{"advice": [{"change": "balance", "step": 1, "speed_up": 2, "memory": [], "setup": {'
    report += '"balance": [1], "chunks": 4, "checkpoints": ["never"], "shared_inputs": [], '
    report += '"schedule": "%s"}}]}'
    for name, expected in (("as given", str(table)), ("1f1b", "1f1b")):
        diagnosis = gpipe.Diagnosis("", report % name, str(table))
        assert diagnosis.advice[0].schedule == expected


def test_shared_inputs_and_deferred_norms_are_kept_in_the_advice():
    class Masked(nn.Module):
        def forward(self, values):
            return values[0] * values[1]

    mask = torch.rand(32)
    model = nn.Sequential(Masked(), *(nn.Linear(32, 32) for _ in range(4)))
    pipe = GPipe(
        model, [4, 1], chunks=32, checkpoint="always", shared_inputs=[1], deferred_batch_norm=True
    )
    diagnosis = gpipe.diagnose(
        pipe, (INPUT, mask), None, torch.sum, seconds=0.02, chunks=[1, 2], cores=2
    )
    assert diagnosis.report["setup"]["shared_inputs"] == [1]
    setup = diagnosis.report["setup"]
    diagnosis.report["advice"] = [
        {"change": "chunks", "step": 1, "speed_up": 2, "memory": [], "setup": setup}
    ]
    options = diagnosis.advice[0].options
    assert options["shared_inputs"] == [1] and options["deferred_batch_norm"] is True
    better = GPipe(nn.Sequential(*pipe), **options)
    better.step((INPUT, mask), None, torch.sum)


def test_what_is_refused():
    pipe = pipe_of()
    with pytest.raises(TypeError, match="takes a gpipe.GPipe, not Linear"):
        gpipe.diagnose(nn.Linear(1, 1), INPUT, TARGET, mse)
    with pytest.raises(ValueError, match="seconds must be a finite number above 0"):
        gpipe.diagnose(pipe, INPUT, TARGET, mse, seconds=0)
    with pytest.raises(ValueError, match=re.escape("both from 0 to 4")):
        gpipe.diagnose(pipe, INPUT, TARGET, mse, keep_together=[(3, 9)])
    with pytest.raises(ValueError, match="1f1b"):
        gpipe.diagnose(pipe, INPUT, TARGET, mse, schedules=["1f1bb"])
    with pytest.raises(ValueError, match="no_grad|NoGradGuard"), torch.no_grad():
        gpipe.diagnose(pipe, INPUT, TARGET, mse)

    def stop(what, done, all):
        raise KeyboardInterrupt

    pipe.eval()
    with pytest.raises(KeyboardInterrupt):
        gpipe.diagnose(pipe, INPUT, TARGET, mse, progress=stop)
    assert not any(module.training for module in pipe.modules())

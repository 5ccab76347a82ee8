"""GPipe.materialize: models that are built on the meta device, and made real where they are needed."""

import json
import pathlib
import sys

import pytest
import torch
from torch import nn

from gpipe import GPipe

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import ranks  # noqa: E402

mse = nn.functional.mse_loss

INIT = """
def init(name, tensor, generator):
    seen.append(name)
    if tensor.dim() > 1:
        nn.init.normal_(tensor, 0.0, 0.3, generator=generator)
    else:
        tensor.fill_(1.0 if name.endswith("running_var") else 0.25)
def model_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 4))
    model[3].weight = nn.Parameter(torch.ones(4, 8))      # stays as it is
    return model
seen = []
"""
exec(INIT)


def test_in_one_process():
    torch.manual_seed(7)
    model = model_on_meta()
    parameters = list(model.parameters())
    pipe = GPipe(model, [2, 2], chunks=2)
    input, target = torch.rand(8, 6), torch.rand(8, 4)
    with pytest.raises(ValueError, match="materialize"):
        pipe.step(input, target, mse)
    seen.clear()
    pipe.materialize(init)
    assert seen == [
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var",
        "1.num_batches_tracked", "2.weight", "2.bias", "3.bias",
    ]
    now = list(pipe.parameters())
    assert all(a is b for a, b in zip(parameters, now)) and not any(p.is_meta for p in now)
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in now)
    assert torch.equal(pipe[3].weight, torch.ones(4, 8)) and 0.1 < pipe[0].weight.std() < 0.6
    optimizer = torch.optim.SGD(pipe.parameters(), 0.001)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(pipe.step(input, target, mse).loss)
        optimizer.step()
    assert losses[2] < losses[0]
    pipe.materialize(init)  # nothing is on meta any more
    assert len(seen) == 10


def test_what_is_refused():
    pipe = GPipe(model_on_meta(), [2, 2])
    with pytest.raises(TypeError, match="init must be a function .* not int"):
        pipe.materialize(3)

    def fails(name, tensor, generator):
        if name == "2.bias":
            raise KeyError(name)
        tensor.fill_(2.0)

    with pytest.raises(KeyError, match="2.bias"):
        pipe.materialize(fails)
    assert pipe[2].bias.is_meta and not pipe[2].weight.is_meta
    pipe.materialize(lambda name, tensor, generator: tensor.fill_(3.0))
    assert float(pipe[2].weight[0, 0].detach()) == 2.0 and float(pipe[2].bias[0].detach()) == 3.0


def test_the_values_do_not_depend_on_the_cut(tmp_path):
    begin = INIT + """
world = gpipe.World.from_environment(announce=False, silence_limit=20, call_limit=60)
rank = world.rank
torch.manual_seed(7 + rank)     # rank 0's counts
pipe = GPipe(model_on_meta(), balance, chunks=2, cpu_threads_per_stage=1, world=world)
pipe.materialize(init)
here = [pipe.is_here(layer) for layer in range(4)]
optimizer = torch.optim.SGD(pipe.local_parameters(), 0.1)
torch.manual_seed(5)
hash = pipe.parameter_hash()
loss = pipe.step(torch.rand(8, 6), torch.rand(8, 4), mse).loss
optimizer.step()
tell(seen=seen, hash=hash, loss=loss, after=pipe.parameter_hash(), here=here,
     meta=[all(p.is_meta for p in layer.parameters()) for layer in pipe])
"""
    results = []
    for balance in ([4], [1, 3], [3, 1]):
        folder = tmp_path / f"{len(balance)}{balance[0]}"
        folder.mkdir()
        started = ranks.Ranks(folder, f"balance = {balance}\n" + begin, len(balance))
        assert started.wait() == [0] * len(balance), started.all_errors()
        facts = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(balance))]
        for fact in facts:
            assert fact["meta"] == [not here for here in fact["here"]]
        assert len(sum((fact["seen"] for fact in facts), [])) == 10
        results += [(fact["hash"], fact["loss"], fact["after"]) for fact in facts]
    assert all(result == results[0] for result in results)

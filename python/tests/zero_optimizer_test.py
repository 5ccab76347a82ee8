"""ZeroOptimizer over replicas: the plain optimizer's bits, states that each replica has a part of."""

import json
import pathlib
import sys

import pytest
import torch
from torch import nn

import gpipe
from gpipe import GPipe, ZeroOptimizer

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import ranks  # noqa: E402

mse = nn.functional.mse_loss

# A text before it defines `world`, the balance, and the numbers of micro-batches and groups.
BEGIN = """
pipe = GPipe(model_of(), balance, chunks=chunks, groups=groups, cpu_threads_per_stage=1, world=world)
torch.manual_seed(5)
input, target = torch.randn(8, 6), torch.randn(8, 4)
rows = world.rows(8, chunks)
def with_groups(parameters, lr):
    return torch.optim.AdamW([
        {"params": [each for each in parameters if each.dim() > 1]},
        {"params": [each for each in parameters if each.dim() == 1], "weight_decay": 0.0},
    ], lr=lr, weight_decay=0.3)
def train(steps):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(pipe.step(input[rows], target[rows], mse).loss)
        pipe.clip_grad_norm_(0.5)
        optimizer.step()
        scheduler.step()
    return losses
def make_optimizer(make):
    global optimizer, scheduler
    optimizer = make
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
"""
PLAIN = "make_optimizer({make}(pipe.local_parameters(), {options}))\n"
ZERO = "make_optimizer(gpipe.ZeroOptimizer(pipe, {make}, {options}))\n"
TELL = "tell(losses=train(5), hash=pipe.parameter_hash(), states=len(optimizer.{states}))\n"
GRIDS = {(1, 1): [6], (2, 1): [6], (2, 2): [4, 2], (3, 1): [6]}


def run(folder, body, grid=(1, 1)):
    folder.mkdir(exist_ok=True)
    size = grid[0] * grid[1]
    connect = "world = gpipe.World.from_environment(announce=False, silence_limit=20, call_limit=60)\n"
    program = connect + f"world, rank, balance = world.grid{grid}, world.rank, {GRIDS[grid]}\n"
    program += f"chunks, groups = {(6, 3) if grid[0] == 3 else (4, 2)}  # multiples of the replicas\n"
    started = ranks.Ranks(folder, program + BEGIN + body, size)
    assert started.wait() == [0] * size, started.all_errors()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.parametrize(
    "make, options",
    [
        ("torch.optim.AdamW", "lr=0.01, amsgrad=True"),
        ("torch.optim.SGD", "lr=0.1, momentum=0.9"),
        ("torch.optim.Adagrad", "lr=0.1"),
        ("with_groups", "lr=0.01"),
    ],
)
def test_the_bits_are_those_of_the_plain_optimizer(tmp_path, make, options):
    named = {"make": make, "options": options}
    (one,) = run(tmp_path / "one", PLAIN.format(**named) + TELL.format(states="state"))
    for grid in [(1, 1), (2, 1), (2, 2)] if make == "with_groups" else [(2, 1)]:
        body = ZERO.format(**named) + TELL.format(states="local.state")
        facts = run(tmp_path / f"all{grid}", body, grid)
        assert sum(fact["states"] for fact in facts) == one["states"]
        assert all(fact["states"] > 0 for fact in facts)
        for fact in facts:
            assert (fact["losses"], fact["hash"]) == (one["losses"], one["hash"])


@pytest.mark.parametrize("saved, resumed", [((2, 2), (2, 1)), ((2, 1), (1, 1)), ((1, 1), (2, 1))])
def test_a_checkpoint_of_replicas(tmp_path, saved, resumed):
    """What one number of replicas has saved resumes on another; one process has a plain optimizer."""

    def begin(grid):
        named = {"make": "with_groups", "options": "lr=0.01"}
        path = f"run, others = {str(tmp_path / 'run')!r}, dict(scheduler=scheduler)\n"
        return (PLAIN if grid == (1, 1) else ZERO).format(**named) + path

    first = run(tmp_path / "first", begin(saved) + """
train(3)
optimizer.param_groups[0]["weight_decay"] = 0.1
gpipe.save_checkpoint(run, pipe, optimizer, step=3, others=others)
tell(losses=train(3), hash=pipe.parameter_hash())
""", saved)
    then = run(tmp_path / "then", begin(resumed) + """
for parameter in pipe.local_parameters():
    parameter.data.zero_()
assert gpipe.load_checkpoint(run, pipe, optimizer, others=others).step == 3
assert optimizer.param_groups[0]["weight_decay"] == 0.1
tell(losses=train(3), hash=pipe.parameter_hash())
""", resumed)
    assert all(result == first[0] for result in [*first, *then])


def test_rates_that_differ_are_refused_on_all_ranks(tmp_path):
    facts = run(tmp_path, ZERO.format(make="torch.optim.SGD", options="lr=0.1") + """
before = train(1)
hash = pipe.parameter_hash()
if rank == 1:
    optimizer.param_groups[0]["lr"] = 0.5
try:
    optimizer.step()
except ValueError as error:
    text = str(error)
optimizer.param_groups[0]["lr"] = 0.1
tell(text=text, unchanged=pipe.parameter_hash() == hash, after=train(1))
""", (2, 1))
    assert facts[0] == facts[1] and facts[0]["unchanged"]
    assert "0.5" in facts[0]["text"] and "rank 1" in facts[0]["text"]


def test_an_exception_of_one_replicas_optimizer(tmp_path):
    facts = run(tmp_path, """
class Fails(torch.optim.SGD):
    def step(self, closure=None):
        if rank == 1:
            raise KeyError("mine")
        return super().step(closure)
make_optimizer(gpipe.ZeroOptimizer(pipe, Fails, lr=0.1))
try:
    train(1)
except (KeyError, gpipe.DistributedFailure) as error:
    tell(type=type(error).__name__, text=str(error))
""", (2, 1))
    assert [fact["type"] for fact in facts] == ["DistributedFailure", "KeyError"]
    assert "KeyError: 'mine'" in facts[0]["text"]


def test_a_replica_without_parameters(tmp_path):
    facts = run(tmp_path, """
pipe = GPipe(nn.Sequential(nn.Linear(6, 4, bias=False)), [1], chunks=chunks, world=world)
make_optimizer(gpipe.ZeroOptimizer(pipe, torch.optim.Adagrad, lr=0.1))
losses = train(3)
tell(losses=losses, states=len(optimizer.local.state), hash=pipe.parameter_hash(),
     all=len(optimizer.param_groups[0]["params"]))
""", (3, 1))
    assert sorted(fact.pop("states") for fact in facts) == [0, 0, 1]
    assert facts[0] == facts[1] == facts[2] and facts[0]["all"] == 1
    assert facts[0]["losses"][2] < facts[0]["losses"][0]


def pipe_of():
    return GPipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), [1, 1], chunks=2)


def test_in_one_process():
    pipe = pipe_of()
    other = torch.nn.Linear(1, 1)
    optimizer = ZeroOptimizer(pipe, lambda parameters: torch.optim.Adam(parameters, 0.1))
    assert [len(group["params"]) for group in optimizer.param_groups] == [4]
    pipe.step(torch.rand(4, 4), torch.rand(4, 2), mse)
    before = pipe.parameter_hash()
    optimizer.step()
    assert pipe.parameter_hash() != before and len(optimizer.local.state) == 4
    optimizer.zero_grad(set_to_none=False)
    assert all(not parameter.grad.any() for parameter in pipe.parameters())
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in pipe.parameters())

    again = ZeroOptimizer(pipe, torch.optim.Adam, lr=0.2)
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["lr"] == 0.1 and len(again.local.state) == 4
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    pipe.step(torch.rand(4, 4), torch.rand(4, 2), lambda y, t: scaler.scale(mse(y, t)))
    scaler.step(again)
    scaler.update()
    before = pipe.parameter_hash()
    assert gpipe.GradScaler(pipe).step(again) and pipe.parameter_hash() != before

    with pytest.raises(ValueError, match="takes no closure"):
        optimizer.step(lambda: None)
    with pytest.raises(ValueError, match="takes no further groups"):
        optimizer.add_param_group({"params": list(other.parameters())})
    with pytest.raises(TypeError, match="save it by gpipe.save_checkpoint"):
        __import__("copy").deepcopy(optimizer)


def test_what_is_refused(tmp_path):
    pipe, other = pipe_of(), pipe_of()
    with pytest.raises(TypeError, match="must be a gpipe.GPipe, not Linear"):
        ZeroOptimizer(nn.Linear(1, 1), torch.optim.SGD)
    with pytest.raises(TypeError, match="must be a class of torch.optim or a function .* not SGD"):
        ZeroOptimizer(pipe, torch.optim.SGD(pipe.parameters(), 0.1))
    with pytest.raises(TypeError, match="gave a list, not a torch.optim.Optimizer"):
        ZeroOptimizer(pipe, lambda parameters: parameters)
    with pytest.raises(NotImplementedError, match="LBFGS"):
        ZeroOptimizer(pipe, torch.optim.LBFGS)
    with pytest.raises(ValueError, match="that it was not given"):
        ZeroOptimizer(pipe, lambda _: torch.optim.SGD(other.parameters(), 0.1))
    with pytest.raises(ZeroDivisionError):
        ZeroOptimizer(pipe, lambda _: 1 / 0)
    with pytest.raises(ValueError, match="made for another pipeline"):
        gpipe.save_checkpoint(tmp_path / "run", other, ZeroOptimizer(pipe, torch.optim.SGD))

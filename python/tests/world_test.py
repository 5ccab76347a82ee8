"""Pipelines over several processes: bits, failures, checkpoints, launchers."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn

import gpipe
from gpipe import GPipe

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import ranks  # noqa: E402

# A program that trains and tells the losses and the hash. A text before it defines `world` and the
# pipeline's arguments.
TRAIN = """
pipe = GPipe(model_of(), balance, chunks=4, cpu_threads_per_stage=1, world=world, **arguments)
optimizer = torch.optim.AdamW(pipe.local_parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
torch.manual_seed(5)
input, target = torch.randn(8, 6), torch.randn(8, 4)
rows = slice(None) if world is None else world.rows(8, 4)
def train(steps, schedule=None):
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        has_input = pipe.is_here(0)
        result = pipe.step(input[rows] if has_input else None, target[rows], mse, schedule=schedule)
        norm = pipe.clip_grad_norm_(0.5)
        optimizer.step()
        scheduler.step()
        losses.append([result.loss, norm])
    return losses
"""
CONNECT = """
world = gpipe.World.from_environment(announce=False, silence_limit=20, call_limit=60)
rank = world.rank
"""
ALONE = "world, rank = None, 0\n"


def told(folder, size):
    return [json.loads((pathlib.Path(folder) / f"{rank}.json").read_text()) for rank in range(size)]


def run(folder, program, size, codes=None, **kwargs):
    folder.mkdir(exist_ok=True)
    started = ranks.Ranks(folder, program, size, **kwargs)
    assert started.wait() == (codes or [0] * size), started.all_errors()
    return told(folder, size)


def alone(folder, balance, body, arguments="{}"):
    folder.mkdir(exist_ok=True)
    path = ranks.write(
        folder, ALONE + f"balance, arguments = {balance}, {arguments}\n" + TRAIN + body
    )
    subprocess.run([sys.executable, str(path), str(folder)], check=True, timeout=600)
    return told(folder, 1)[0]


TELL = "tell(losses=train(3) + train(2, {schedule!r}), hash=pipe.parameter_hash())\n"


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_processes_have_the_bits_of_one(tmp_path, size, schedule):
    balance = {2: [4, 2], 4: [1, 2, 2, 1]}[size]
    body = TELL.format(schedule=schedule)
    expected = alone(tmp_path / "one", balance, body)
    program = CONNECT + f"balance, arguments = {balance}, {{}}\n" + TRAIN + body
    for result in run(tmp_path / "all", program, size):
        assert result == expected


def test_several_stages_in_a_process(tmp_path):
    balance, body = [1, 2, 2, 1], TELL.format(schedule="1f1b")
    expected = alone(tmp_path / "one", balance, body)
    program = CONNECT + f"balance, arguments = {balance}, dict(processes=[0, 0, 1, 1])\n"
    for result in run(tmp_path / "all", program + TRAIN + body, 2):
        assert result == expected


def test_a_scaler_decides_on_all_processes(tmp_path):
    """Gradients that are infinite in the last stage alone leave out the step of all."""
    body = """
scaler = gpipe.GradScaler(pipe, init_scale=1024.0, growth_interval=2)
facts = []
for k in range(6):
    optimizer.zero_grad()
    has_input = pipe.is_here(0)
    result = pipe.step(input if has_input else None, target, mse, loss_scale=scaler.get_scale())
    if k == 1 and pipe.is_here(-1):
        pipe[-1].bias.grad.fill_(float("inf"))
    if k > 1:
        scaler.unscale_()
        pipe.clip_grad_norm_(0.5)
    facts.append([scaler.get_scale(), scaler.step(optimizer), result.loss, pipe.parameter_hash()])
    scaler.update()
    if k == 3:
        gpipe.save_checkpoint(out / "run", pipe, optimizer, others={"scaler": scaler})
        scaler = gpipe.GradScaler(pipe, growth_interval=2)
        gpipe.load_checkpoint(out / "run", pipe, optimizer, others={"scaler": scaler})
tell(facts=facts)
"""
    expected = alone(tmp_path / "one", [4, 2], body)
    facts = expected["facts"]
    assert [fact[0] for fact in facts] == [1024, 1024, 512, 512, 1024, 1024]
    assert [fact[1] for fact in facts] == [True, False, True, True, True, True]
    assert [one[3] == two[3] for one, two in zip(facts, facts[1:])] == [True, *[False] * 4]
    program = CONNECT + "balance, arguments = [4, 2], {}\n" + TRAIN + body
    assert run(tmp_path / "all", program, 2) == [expected] * 2


@pytest.mark.parametrize("grid", [(2, 1), (2, 2)])
def test_replicas(tmp_path, grid):
    replicas, each = grid
    balance, body = ([6] if each == 1 else [4, 2]), TELL.format(schedule=None)
    expected = alone(tmp_path / "one", balance, body, f"dict(groups={replicas})")
    program = CONNECT + f"world = world.grid{grid}\n" + f"balance, arguments = {balance}, {{}}\n"
    for result in run(tmp_path / "all", program + TRAIN.replace("has_input = ", "has_input = True or ")
                      + body, replicas * each):
        assert result == expected


def test_what_is_where(tmp_path):
    facts = run(
        tmp_path,
        CONNECT
        + """
pipe = GPipe(model_of(), [4, 2], chunks=2, cpu_threads_per_stage=1, world=world)
names = [name for name, _ in pipe.local_named_parameters()]
assert all(not p.is_meta for p in pipe.local_parameters())
assert all(isinstance(p, nn.Parameter) for p in pipe.local_parameters())
assert [p.is_meta for p in pipe[0].parameters()] == [rank == 1] * 2
pipe.eval()
with torch.no_grad():
    output = pipe(torch.ones(4, 6) if rank == 0 else None)
kept = pipe.evaluate(torch.ones(4, 6), torch.ones(4, 4), mse, keep_outputs=True)
errors = []
for call in (lambda: __import__("copy").deepcopy(pipe), lambda: torch.save(pipe, out / "x"),
             lambda: __import__("pickle").dumps(world), lambda: world.grid(3, 1),
             lambda: world.rows(8, 0)):
    try:
        call()
    except (TypeError, ValueError) as error:
        errors.append(str(error))
tell(names=names, here=[pipe.is_here(0), pipe.is_here(-1)], devices=list(map(str, pipe.devices)),
     output=output is None, kept=kept.outputs is None, errors=errors, world=repr(world),
     loss=kept.loss)
""",
        2,
    )
    assert facts[0]["names"][0] == "0.weight" and facts[1]["names"] == ["5.weight", "5.bias"]
    assert [fact["here"] for fact in facts] == [[True, False], [False, True]]
    assert [fact["output"] for fact in facts] == [True, False]
    assert [fact["kept"] for fact in facts] == [True, False]
    assert facts[0]["loss"] == facts[1]["loss"]
    assert facts[0]["world"] == "World(rank=0, size=2, replicas=1 of 2)"
    for fact in facts:
        assert len(fact["errors"]) == 5
        assert "save_checkpoint" in fact["errors"][0]
        assert "from_environment() in each process" in fact["errors"][2]


def test_a_state_dict_of_a_part_warns_and_a_layer_is_replaced_in_all(tmp_path):
    facts = run(
        tmp_path,
        CONNECT
        + """
import warnings
def told_by(make, size=2):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.save(make(), out / f"{rank}.pt")
        make()
    return [str(each.message) for each in found if "state_dict" in str(each.message)]
pipe = GPipe(model_of(), [4, 2], chunks=2, world=world)
both = nn.ModuleDict({"pipe": GPipe(model_of(), [4, 2], chunks=2, world=world)})
whole = GPipe(model_of(), [6], chunks=2, world=world.grid(2, 1))
told = [told_by(each.state_dict) for each in (pipe, both, whole)]
layer = nn.Linear(6, 8)
pipe[0] = layer
loss = pipe.step(torch.ones(4, 6), torch.ones(4, 4), mse).loss
assert layer.weight.is_meta == (rank == 1)
tell(told=told, hash=pipe.parameter_hash(), loss=loss)
""",
        2,
    )
    assert facts[0]["hash"] == facts[1]["hash"] and facts[0]["loss"] == facts[1]["loss"]
    for rank, name in ((0, "5.weight"), (1, "0.weight")):
        (pipe,), (both,), whole = facts[rank]["told"]
        assert whole == [] and "gpipe.save_checkpoint" in pipe and f"'{name}'" in pipe
        assert f"'pipe.{name}'" in both


def test_any_rank_and_from_rank_0(tmp_path):
    facts = run(
        tmp_path,
        CONNECT
        + """
def make():
    if rank != 0:
        raise AssertionError("called elsewhere")
    return {"table": [1, 2], "tensor": torch.ones(2)}
made = gpipe.from_rank_0(world, make)
def fail():
    raise KeyError("no plan")
try:
    gpipe.from_rank_0(world, fail)
except Exception as error:
    failure = f"{type(error).__name__}: {error}"
tell(any=[gpipe.any_rank(world, rank == 1), gpipe.any_rank(world, False)], made=made["table"],
     failure=failure)
""",
        2,
    )
    assert [fact["any"] for fact in facts] == [[True, False]] * 2
    assert [fact["made"] for fact in facts] == [[1, 2]] * 2
    assert facts[0]["failure"] == "KeyError: 'no plan'"
    assert facts[1]["failure"] == "RuntimeError: rank 0: KeyError: 'no plan'"


def test_a_world_of_one_process():
    world = gpipe.World.from_environment()
    assert (world.rank, world.size, world.replicas, world.local_rank) == (0, 1, 1, 0)
    assert world.rows(8, 2) == slice(0, 8)
    assert gpipe.any_rank(world, True) and gpipe.from_rank_0(world, lambda: [3]) == [3]
    pipe = GPipe(nn.Sequential(nn.Linear(2, 2)), [1], world=world)
    assert pipe.devices == [torch.device("cpu")] and pipe.is_here(0)
    with pytest.raises(ValueError, match="call_limit is in seconds, above 0"):
        gpipe.World.from_environment(call_limit=0)
    with pytest.raises(TypeError, match="world must be a gpipe.World, not int"):
        GPipe(nn.Sequential(nn.Linear(2, 2)), [1], world=2)
    with pytest.raises(TypeError, match="expected Tensor or tuple of Tensors as the input"):
        pipe.step(None, None, lambda output: output.sum())


@pytest.mark.parametrize("saved, resumed", [(2, 2), (2, 1), (1, 4)])
def test_a_checkpoint_over_processes(tmp_path, saved, resumed):
    balance_of = {1: [6], 2: [4, 2], 4: [1, 2, 2, 1]}
    begin = {size: (ALONE if size == 1 else CONNECT) + f"balance, arguments = {balance_of[size]}, {{}}\n"
             + TRAIN + f"run = {str(tmp_path / 'run')!r}\nothers = dict(scheduler=scheduler)\n"
             for size in balance_of}
    first = run(tmp_path / "first", begin[saved] + """
train(3)
gpipe.save_checkpoint(run, pipe, optimizer, step=3, rows=24, settings="mine", others=others)
tell(losses=train(3), hash=pipe.parameter_hash())
""", saved, variables={} if saved > 1 else {})
    then = run(tmp_path / "then", begin[resumed] + """
for parameter in pipe.local_parameters():
    parameter.data.zero_()
torch.manual_seed(77)
progress = gpipe.load_checkpoint(run, pipe, optimizer, others=others)
assert (progress.step, progress.rows, progress.settings) == (3, 24, "mine")
tell(losses=train(3), hash=pipe.parameter_hash())
""", resumed)
    for result in [*first, *then]:
        assert result == first[0]


LAYER_RAISES = """
class Boom(nn.Tanh):
    def forward(self, input):
        if self.training:
            raise KeyError("boom")
        return super().forward(input)
model = model_of()
model[4] = Boom()
pipe = GPipe(model, [4, 2], chunks=2, cpu_threads_per_stage=1, world=world)
input, target = torch.ones(4, 6), torch.ones(4, 4)
try:
    pipe.step(input, target, mse)
except Exception as error:
    fault = error.faults[0] if isinstance(error, gpipe.DistributedFailure) else None
    facts = dict(type=type(error).__name__, text=str(error), notes=getattr(error, "__notes__", []),
                 fault=None if fault is None else [fault.kind, fault.rank, fault.stage,
                                                   fault.micro_batch, fault.layer, fault.text])
pipe[4].eval()   # and all ranks go on
loss = pipe.step(input, target, mse).loss
tell(loss=loss, **facts)
"""


def test_an_exception_of_another_rank_names_rank_stage_and_layer(tmp_path):
    other, own = run(tmp_path, CONNECT + LAYER_RAISES, 2)
    assert own["type"] == "KeyError" and own["text"] == "'boom'"
    assert own["notes"] == ["GPipe: in the forward of stage 1, micro-batch 0, layer 4 ('4'), a Boom"]
    assert other["type"] == "DistributedFailure"
    assert "rank 1" in other["text"] and "stage 1, micro-batch 0, layer 4 ('4" in other["text"]
    assert other["text"].endswith(": KeyError: 'boom'")
    assert other["fault"][:4] == ["exception", 1, 1, 0] and "boom" in other["fault"][5]
    assert own["loss"] == other["loss"]


REFUSED_BY_ONE = """
layers = model_of()
pipe = GPipe(layers, [4, 2], chunks=2, cpu_threads_per_stage=1, world=world)
input, target = torch.ones(4, 6), torch.ones(4, 4)
def with_hook():
    hook = pipe.register_forward_hook(lambda *_: None)
    try:
        return pipe.step(input, target, mse)
    finally:
        hook.remove()
def with_another_layer():
    kept, layers[4] = layers[4], nn.Tanh()
    try:
        return pipe.step(input, target, mse)
    finally:
        layers[4] = kept
def plain():
    return pipe.step(input, target, mse)
calls = {
    "a hook": (with_hook, plain),
    "another layer": (with_another_layer, plain),
    "a class": (lambda: pipe.step(input, target, nn.MSELoss), plain),
    "a name": (lambda: pipe.evaluate(input, target, mse, schedule="1g1b"),
               lambda: pipe.evaluate(input, target, mse)),
    "a list": (lambda: pipe.step([input], target, mse), plain),
    "a text": (lambda: pipe.clip_grad_norm_("large"), lambda: pipe.clip_grad_norm_(1.0)),
    "no target": (lambda: pipe.step(input, None, mse), plain),
}
facts = {}
for number, (name, (refused, fine)) in enumerate(calls.items()):
    wrong = 1 if name == "no target" else number % 2
    try:
        (refused if rank == wrong else fine)()
        facts[name] = "nothing"
    except Exception as error:
        kinds = [[fault.kind, fault.rank] for fault in getattr(error, "faults", [])]
        facts[name] = [type(error).__name__, str(error), kinds, wrong]
tell(facts=facts, loss=plain().loss)
"""


def test_what_one_rank_refuses_fails_the_call_of_all_at_once(tmp_path):
    told_by = run(tmp_path, CONNECT + REFUSED_BY_ONE, 2)
    texts = {
        "a hook": ("ValueError", "the pipeline itself has forward hooks"),
        "another layer": ("ValueError", "were replaced, added or removed"),
        "a class": ("TypeError", "give an object of it, MSELoss()"),
        "a name": ("ValueError", "1g1b"),
        "a list": ("TypeError", "expected Tensor or tuple of Tensors as the input"),
        "a text": ("TypeError", "large"),
        "no target": ("TypeError", "target"),
    }
    for name, (kind, text) in texts.items():
        wrong = told_by[0]["facts"][name][3]
        own, other = told_by[wrong]["facts"][name], told_by[1 - wrong]["facts"][name]
        assert own[0] == kind and text in own[1], (name, own)
        assert other[0] == "DistributedFailure" and text in other[1], (name, other)
        assert other[2] == [["exception", wrong]], (name, other)
    assert "no target was given" in told_by[0]["facts"]["no target"][1]
    assert told_by[0]["loss"] == told_by[1]["loss"]


SLEEPS = """
class Sleeps(nn.Tanh):
    seconds = 0.0
    def forward(self, input):
        time.sleep(self.seconds)
        return super().forward(input)
model = model_of()
model[4] = Sleeps()
pipe = GPipe(model, [4, 2], chunks=2, cpu_threads_per_stage=1, world=world)
input, target = torch.ones(4, 6), torch.ones(4, 4)
pipe.step(input, target, mse)
(out / f"{rank}.begun").touch()
"""


def wait_for(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def begin(folder, program):
    started = ranks.Ranks(folder, CONNECT + SLEEPS + program, 2)
    wait_for(lambda: all((folder / f"{rank}.begun").exists() for rank in range(2))
             or any(process.poll() is not None for process in started.processes))
    return started


def test_a_killed_rank(tmp_path):
    started = begin(tmp_path, """
if rank == 1:
    pipe[4].seconds = 1000
try:
    pipe.step(input, target, mse)
except gpipe.DistributedFailure as failure:
    tell(kind=failure.faults[0].kind, rank=failure.faults[0].rank)
    sys.exit(3)
""")
    time.sleep(1)
    started.processes[1].kill()
    assert started.wait() == [3, -signal.SIGKILL], started.all_errors()
    assert told(tmp_path, 1)[0] == {"kind": "death", "rank": 1}


@pytest.mark.parametrize("who", [[0, 1], [1], [0]])
def test_ctrl_c(tmp_path, who):
    started = begin(tmp_path, """
pipe[4].seconds = 0.5
input, target = torch.ones(200, 6), torch.ones(200, 4)
pipe = GPipe(model, [4, 2], chunks=100, cpu_threads_per_stage=1, world=world)
try:
    pipe.step(input, target, mse)
except (KeyboardInterrupt, gpipe.DistributedFailure) as error:
    tell(type=type(error).__name__, text=str(error))
    sys.exit(5)
""")
    time.sleep(1)
    sent = time.monotonic()
    for rank in who:
        started.processes[rank].send_signal(signal.SIGINT)
    assert started.wait() == [5, 5], started.all_errors()
    # The limit is not a measurement. A step that is not interrupted takes 50 s at least.
    assert time.monotonic() - sent < 30
    facts = told(tmp_path, 2)
    for rank in who if len(who) == 1 else []:
        assert facts[rank]["type"] == "KeyboardInterrupt"
        assert facts[1 - rank]["type"] == "DistributedFailure"
        assert "KeyboardInterrupt" in facts[1 - rank]["text"]


def test_ctrl_c_ends_the_wait_for_a_rank_that_does_not_come(tmp_path):
    path = ranks.write(tmp_path, '(out / "begun").touch()\n' + CONNECT)
    variables = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ranks.free_port())}
    process = subprocess.Popen([sys.executable, str(path), str(tmp_path)],
                               env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True)
    wait_for((tmp_path / "begun").exists)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode in (1, 130, -signal.SIGINT) and "KeyboardInterrupt" in errors
    assert "Fatal" not in errors and "terminate" not in errors


def test_ranks_that_differ_are_told(tmp_path):
    facts = run(tmp_path, CONNECT + """
try:
    GPipe(model_of(), [4, 2] if rank == 0 else [3, 3], world=world)
except ValueError as error:
    tell(text=str(error))
""", 2)
    assert facts[0] == facts[1] and "rank" in facts[0]["text"]


@pytest.mark.parametrize("order", ["before", "after"])
def test_with_torch_distributed(tmp_path, order):
    initialize = 'torch.distributed.init_process_group("gloo")\n'
    tell = """
count = torch.ones(1)
torch.distributed.all_reduce(count)
tell(losses=train(2), hash=pipe.parameter_hash(), count=count.item())
torch.distributed.destroy_process_group()
"""
    begin = "balance, arguments = [4, 2], {}\n" + TRAIN
    program = (initialize + CONNECT if order == "before" else CONNECT + initialize) + begin + tell
    facts = run(tmp_path, program, 2)
    assert facts[0] == facts[1] and facts[0]["count"] == 2


def launched(command, tmp_path):
    program = CONNECT + "balance, arguments = [4, 2], {}\n" + TRAIN + TELL.format(schedule=None)
    path = ranks.write(tmp_path, program)
    clean = {name: value for name, value in os.environ.items() if name != "RANK"}
    subprocess.run([*command, str(path), str(tmp_path)], check=True, timeout=600,
                   env={**clean, "OMP_NUM_THREADS": "1"})
    assert told(tmp_path, 2) == [alone(tmp_path / "one", [4, 2], TELL.format(schedule=None))] * 2


def test_our_launcher(tmp_path):
    launched([os.environ["GPIPE_LAUNCH"], "--processes=2", "--", sys.executable], tmp_path)


def test_torchrun(tmp_path):
    pytest.importorskip("sympy", reason="tools/torchrun/torchrun.sh fetches what torchrun needs")
    launched([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"], tmp_path)


@pytest.mark.parametrize("end", ["", "sys.exit(4)", "raise ValueError('end')"])
def test_programs_end_without_noise(tmp_path, end):
    program = CONNECT + "balance, arguments = [4, 2], {}\n" + TRAIN + "train(2)\n" + f"{end}\n"
    started = ranks.Ranks(tmp_path, program, 2)
    code = {"": 0, "sys.exit(4)": 4}.get(end, 1)
    assert started.wait() == [code, code], started.all_errors()
    for word in ("Fatal", "terminate", "Aborted"):
        assert word not in started.all_errors()


def test_a_pipeline_with_a_world_of_one_process_can_be_copied(tmp_path):
    script = CONNECT + """
import copy
pipe = GPipe(nn.Sequential(nn.Linear(6, 4)), [1], world=world)
tell(same=copy.deepcopy(pipe).parameter_hash() == pipe.parameter_hash())
"""
    assert run(tmp_path, script, 1) == [{"same": True}]

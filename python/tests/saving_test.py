"""Checkpoints: a resumed run has the bits of the uninterrupted one, and bad input says what to do."""

import json
import pathlib
import struct

import pytest
import torch
from torch import nn

import gpipe
from gpipe import GPipe
from gpipe.torchgpipe import GPipe as TorchGPipe

mse = nn.functional.mse_loss


def model_of(classes=4):
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, classes)
    )


def pipe_of(balance=(3, 2), **kwargs):
    return GPipe(model_of(), list(balance), chunks=2, cpu_threads_per_stage=1, **kwargs)


def groups_of(pipe):
    """Two groups, the first of which has no weight decay."""
    parameters = pipe.local_parameters()
    return [{"params": parameters[:3], "weight_decay": 0.0}, {"params": parameters[3:]}]


OPTIMIZERS = {
    "momentum": lambda pipe: torch.optim.SGD(pipe.parameters(), 0.1, momentum=0.9),
    "plain": lambda pipe: torch.optim.SGD(pipe.parameters(), 0.1),
    "adam": lambda pipe: torch.optim.Adam(pipe.parameters(), 0.01, amsgrad=True),
    "adamw": lambda pipe: torch.optim.AdamW(groups_of(pipe), 0.01, weight_decay=0.1),
    "named": lambda pipe: torch.optim.AdamW(pipe.named_parameters(), 0.01),
    "rmsprop": lambda pipe: torch.optim.RMSprop(pipe.parameters(), 0.01, centered=True),
    "adagrad": lambda pipe: torch.optim.Adagrad(pipe.parameters(), 0.01),
    "adadelta": lambda pipe: torch.optim.Adadelta(pipe.parameters()),
    "nadam": lambda pipe: torch.optim.NAdam(pipe.parameters(), 0.01),
}
SCHEDULERS = {
    "none": None,
    "step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
    "several": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [
            torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=3),
            torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        ],
        [3],
    ),
}


def train(pipe, optimizer, scheduler, steps):
    """Steps whose data come from torch's generator, as each step's dropout does."""
    losses = []
    for _ in range(steps):
        input, target = torch.randn(6, 6), torch.randn(6, 4)
        optimizer.zero_grad()
        losses.append(pipe.step(input, target, mse).loss)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return losses


def bits(pipe):
    return {name: tensor.clone() for name, tensor in pipe.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("scheduler_name", SCHEDULERS)
def test_a_resumed_run_has_the_bits_of_the_uninterrupted_one(
    tmp_path, optimizer_name, scheduler_name
):
    path = tmp_path / "run"

    def make():
        pipe = pipe_of()
        optimizer = OPTIMIZERS[optimizer_name](pipe)
        make_scheduler = SCHEDULERS[scheduler_name]
        return pipe, optimizer, make_scheduler(optimizer) if make_scheduler else None

    torch.manual_seed(11)
    pipe, optimizer, scheduler = make()
    torch.manual_seed(12)
    train(pipe, optimizer, scheduler, 4)
    others = {} if scheduler is None else {"scheduler": scheduler}
    gpipe.save_checkpoint(path, pipe, optimizer, step=4, rows=24, settings="seed 12", others=others)
    expected = train(pipe, optimizer, scheduler, 4)

    torch.manual_seed(99)
    pipe_2, optimizer_2, scheduler_2 = make()
    torch.randn(5)
    progress = gpipe.load_checkpoint(
        path, pipe_2, optimizer_2, others={} if scheduler is None else {"scheduler": scheduler_2}
    )
    assert progress == gpipe.Progress(4, 24, "seed 12") == gpipe.read_progress(path)
    assert train(pipe_2, optimizer_2, scheduler_2, 4) == expected
    assert same(bits(pipe_2), bits(pipe))
    assert pipe_2.parameter_hash() == pipe.parameter_hash()
    assert optimizer_2.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_another_balance_and_the_other_interface_resume_as_well(tmp_path):
    pipe = pipe_of()
    optimizer = torch.optim.Adam(pipe.parameters(), 0.01)
    train(pipe, optimizer, None, 2)
    gpipe.save_checkpoint(tmp_path / "run", pipe, optimizer)
    expected = train(pipe, optimizer, None, 3)
    for other in (
        pipe_of((1, 2, 2)),
        TorchGPipe(model_of(), [2, 3], chunks=2),
    ):
        optimizer_2 = torch.optim.Adam(other.parameters(), 0.01)
        gpipe.load_checkpoint(tmp_path / "run", other, optimizer_2)
        assert train(other, optimizer_2, None, 3) == expected


def safetensors(path):
    """Names, types, shapes and values, read without the library that wrote them."""
    content = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    types = {"F32": torch.float32, "I64": torch.int64, "U8": torch.uint8}
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        value = torch.frombuffer(bytearray(content[begin:end]), dtype=types[entry["dtype"]])
        tensors[name] = value.reshape(entry["shape"])
    return tensors, metadata


def test_the_files_are_those_of_the_library(tmp_path):
    pipe = pipe_of()
    optimizer = torch.optim.Adam(pipe.parameters(), 0.01)
    train(pipe, optimizer, None, 2)
    gpipe.save_checkpoint(tmp_path / "run", pipe, optimizer, step=2, rows=12)
    model, metadata = safetensors(tmp_path / "run" / "model.safetensors")
    assert metadata == {"format": "pt"}
    plain = model_of()
    plain.load_state_dict(model, strict=True)
    assert same(plain.state_dict(), pipe.state_dict())
    states, metadata = safetensors(tmp_path / "run" / "optimizer.safetensors")
    assert torch.equal(states["0.weight/exp_avg"], optimizer.state[pipe[0].weight]["exp_avg"])
    record = json.loads(metadata["optimizer"])
    assert record["type"] == "torch.optim.adam.Adam"
    assert record["groups"][0]["options"]["lr"] == 0.01


def test_weights_alone(tmp_path):
    pipe = pipe_of()
    train(pipe, torch.optim.SGD(pipe.parameters(), 0.1), None, 2)
    gpipe.save_checkpoint(tmp_path / "run", pipe, step=2)
    other = pipe_of((5,))
    state = torch.get_rng_state()
    assert gpipe.load_weights(tmp_path / "run", other).step == 2
    assert same(bits(other), bits(pipe))
    assert torch.equal(torch.get_rng_state(), state)
    assert gpipe.load_checkpoint(tmp_path / "run", other).step == 2


def test_an_old_checkpoint_is_replaced_and_other_files_are_left_alone(tmp_path):
    path = tmp_path / "run"
    assert not gpipe.has_checkpoint(path)
    pipe = pipe_of()
    for step in (1, 2):
        gpipe.save_checkpoint(path, pipe, step=step)
        assert gpipe.has_checkpoint(path) and gpipe.read_progress(path).step == step
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]
    (path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="mine.txt"):
        gpipe.save_checkpoint(path, pipe, step=3)
    assert gpipe.read_progress(path).step == 2
    with pytest.raises(NotImplementedError):
        gpipe.save_checkpoint(path, pipe, torch.optim.LBFGS(pipe.parameters()))
    assert gpipe.read_progress(path).step == 2


class WithList(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["history"] = [1]


def test_bad_input_has_messages(tmp_path):
    path = tmp_path / "run"
    pipe = pipe_of()
    sgd = torch.optim.SGD(pipe.parameters(), 0.1, momentum=0.9)
    train(pipe, sgd, None, 1)

    def save(error, match, model=pipe, optimizer=sgd, path=path, **kwargs):
        with pytest.raises(error, match=match):
            gpipe.save_checkpoint(path, model, optimizer, **kwargs)

    save(TypeError, "must be a gpipe.GPipe, not Sequential", model=model_of())
    save(TypeError, "a torch.optim.Optimizer or None, not StepLR; schedulers", optimizer=(
        torch.optim.lr_scheduler.StepLR(sgd, 1)))
    save(ValueError, "empty", path="")
    save(ValueError, "cannot have made -1 steps", step=-1)
    save(TypeError, r"others\['x'\] must have .*, not int: texts", others={"x": 3})
    save(TypeError, "others must be a dict of objects by name, not list", others=[sgd])
    save(ValueError, "must not have the text", settings=gpipe.saving._MARK)
    save(ValueError, "parameter of shape .* that the model does not have",
         optimizer=torch.optim.SGD(model_of().parameters(), 0.1))
    save(NotImplementedError, "option 'lr' of torch.optim.adam.Adam is a tensor",
         optimizer=torch.optim.Adam(pipe.parameters(), torch.tensor(0.1)))
    save(NotImplementedError, "LBFGS has states that belong to no parameter",
         optimizer=torch.optim.LBFGS(pipe.parameters()))
    with_list = WithList(pipe.parameters(), 0.1)
    with_list.step()
    save(NotImplementedError, "state 'history' is of type list", optimizer=with_list)
    lambdas = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1.0)
    lambdas.extra = object()
    save(NotImplementedError, r"the state_dict\(\) of mine has a object", others={"mine": lambdas})
    assert not path.exists()

    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1)
    gpipe.save_checkpoint(path, pipe, sgd, others={"scheduler": scheduler})
    wide = GPipe(nn.Sequential(*list(model_of())[:-1], nn.Linear(8, 5)), [5])
    some = list(pipe.parameters())
    before, generator = bits(pipe), torch.get_rng_state()

    def load(error, match, model=pipe, optimizer=sgd, path=path, others={"scheduler": scheduler}):
        with pytest.raises(error, match=match):
            gpipe.load_checkpoint(path, model, optimizer, others=others)

    for error in (RuntimeError, FileNotFoundError):  # RuntimeError is what is promised
        load(error, "in '.*nowhere': .*gpipe.has_checkpoint", path=tmp_path / "nowhere")
        with pytest.raises(error, match="gpipe.has_checkpoint"):
            gpipe.load_weights(tmp_path / "nowhere", pipe)
    load(TypeError, r"others\['scheduler'\] must have", others={"scheduler": 3})
    load(ValueError, r"the states of others \['scheduler'\], and load_checkpoint was given \[\]",
         others=None)
    load(ValueError, "is of an optimizer torch.optim.sgd.SGD, not of torch.optim.adamw.AdamW",
         optimizer=torch.optim.AdamW(pipe.parameters()))
    load(ValueError, "is of an optimizer torch.optim.sgd.SGD, not of no optimizer", optimizer=None)
    load(ValueError, "has 1 groups of parameters, this one has 2", optimizer=torch.optim.SGD(
        [{"params": some[:2]}, {"params": some[2:]}], 0.1))
    load(ValueError, "1 times in group 0 of the checkpoint, and 0", optimizer=torch.optim.SGD(
        some[:2], 0.1))
    load(ValueError, r"\[4, 8\] in .* \[5, 8\] in the model", model=wide,
         optimizer=torch.optim.SGD(wide.parameters(), 0.1))
    model_file = path / "model.safetensors"
    content = bytearray(model_file.read_bytes())
    content[-1] ^= 1
    model_file.write_bytes(content)
    load(RuntimeError, "model.safetensors.*CRC-32")
    assert same(bits(pipe), before) and torch.equal(torch.get_rng_state(), generator)


def test_a_model_with_replaced_layers_is_saved_as_it_is_now(tmp_path):
    pipe = pipe_of()
    pipe[4].weight = nn.Parameter(torch.ones(4, 8))
    gpipe.save_checkpoint(tmp_path / "run", pipe)
    assert torch.equal(
        safetensors(tmp_path / "run" / "model.safetensors")[0]["4.weight"], torch.ones(4, 8)
    )


def test_a_pipeline_with_hooks_on_a_partition_is_refused(tmp_path):
    pipe = TorchGPipe(model_of(), [3, 2], chunks=2)
    names = [name for name, _ in pipe.local_named_parameters()]
    assert names == [name for name, _ in nn.Sequential(*pipe).named_parameters()]
    handle = pipe.partitions[0].register_forward_hook(lambda *_: None)
    assert [name for name, _ in pipe.local_named_parameters()] == names
    path = str(tmp_path / "run")
    for call in (gpipe.save_checkpoint, gpipe.load_checkpoint, gpipe.load_weights):
        with pytest.raises(ValueError, match=f"{call.__name__} takes no pipeline with hooks"):
            call(path, pipe)
    handle.remove()
    gpipe.save_checkpoint(path, pipe)
    gpipe.load_weights(path, GPipe(model_of(), [5]))

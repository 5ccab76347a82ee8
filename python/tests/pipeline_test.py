"""gpipe.GPipe: its results, and its view of the layers."""

import copy
import functools
import gc
import inspect
import io
import pydoc
import threading
import weakref
from collections import UserDict

import pytest
import torch
from torch import nn

import gpipe
import gpipe.torchgpipe
from gpipe import GPipe, _gpipe

mse = nn.functional.mse_loss


def model_of(layers=4):
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])


def gradients(module):
    return [parameter.grad.clone() for parameter in module.parameters()]


def plain_step(model, input, target, chunks):
    """A step as a loop over micro-batches; returns the loss."""
    model.zero_grad()
    loss = 0.0
    for x, y in zip(input.chunk(chunks), target.chunk(chunks)):
        share = mse(model(x), y) * (len(x) / len(input))
        share.backward()
        loss += share.item()
    return loss


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
@pytest.mark.parametrize("balance", [[4], [2, 2], [1, 2, 1]])
def test_forward_and_backward_are_those_of_the_plain_model(balance, checkpoint):
    model = model_of()
    input = torch.randn(7, 8, requires_grad=True)
    plain = torch.cat([model(x) for x in input.chunk(4)])
    plain.sum().backward()
    expected, input_gradient = gradients(model), input.grad
    model.zero_grad()
    input.grad = None
    output = GPipe(model, balance, chunks=4, checkpoint=checkpoint)(input)
    assert torch.equal(output, plain)
    output.sum().backward()  # works if nothing else refers to the pipeline any more
    assert torch.equal(input.grad, input_gradient)
    assert all(map(torch.allclose, gradients(model), expected))


@pytest.mark.parametrize("schedule", gpipe.schedule_names())
def test_a_step_under_every_schedule(schedule):
    model = model_of(8)
    input, target = torch.randn(8, 8), torch.randn(8, 8)
    loss = plain_step(model, input, target, 8)
    expected = gradients(model)
    model.zero_grad()
    pipe = GPipe(model, [1] * 8, chunks=8, cpu_threads_per_stage=1)
    result = pipe.step(input, target, mse, schedule=schedule, keep_outputs=True)
    assert result.loss == pytest.approx(loss)
    assert len(result.losses) == 8
    assert torch.equal(result.outputs, torch.cat([model(x) for x in input.chunk(8)]))
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(gradients(model), expected))


def test_evaluate_has_the_loss_of_a_step_and_no_gradients():
    pipe = GPipe(model_of(), [2, 2], chunks=2)
    input, target = torch.randn(4, 8), torch.randn(4, 8)
    loss = pipe.evaluate(input, target, mse).loss
    assert all(parameter.grad is None for parameter in pipe.parameters())
    assert pipe.step(input, target, mse).loss == loss


def test_reduction_and_weight():
    pipe = GPipe(model_of(2), [1, 1], chunks=2)
    input, target = torch.randn(4, 8), torch.tensor([1.0, 1.0, 1.0, 0.0])[:, None]

    def masked(output, mask):
        return (output.sum(1, keepdim=True) * mask).sum() / mask.sum()

    loss = pipe.step(input, target, masked, weight=lambda mask: mask.sum()).loss
    assert loss == pytest.approx(masked(pipe(input), target).item(), abs=1e-6)
    summed = pipe.step(input, None, lambda output: output.sum(), reduction="sum").loss
    assert summed == pytest.approx(pipe(input).sum().item(), abs=1e-5)
    with pytest.raises(ValueError, match="reduction is not one of 'mean' or 'sum': 'max'"):
        pipe.step(input, target, masked, reduction="max")


def test_tuples_and_shared_inputs():
    class Masked(nn.Module):
        def forward(self, values):
            x, mask = values
            return x * mask, mask

    class First(nn.Module):
        def forward(self, values):
            return values[0]

    mask = torch.rand(8)
    pipe = GPipe(nn.Sequential(Masked(), Masked(), First()), [1, 2], chunks=2, shared_inputs=[1])
    input = torch.randn(4, 8)
    assert torch.equal(pipe((input, mask)), input * mask * mask)


def test_keys_are_those_of_the_bare_model():
    model = model_of()
    pipe = GPipe(model, [2, 2])
    assert list(pipe.state_dict()) == list(model.state_dict())
    pipe.load_state_dict(model_of().state_dict(), strict=True)
    assert [id(p) for p in pipe.parameters()] == [id(p) for p in model.parameters()]
    assert list(pipe) == list(model) and pipe[-1] is model[-1] and len(pipe) == 4


def test_the_modules_are_seen_as_they_are_now():
    model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout()), nn.Linear(8, 8))
    pipe = GPipe(model, [1, 1, 1], chunks=2)
    input = torch.randn(4, 8)
    pipe.eval()
    assert torch.equal(pipe(input), torch.cat([model(x) for x in input.chunk(2)]))
    pipe.train()
    assert not torch.equal(pipe(input), pipe(input))
    pipe[1][1].eval()  # changes the mode of this module alone
    assert torch.equal(pipe(input), pipe(input))

    pipe[0].weight = nn.Parameter(torch.zeros(8, 8))  # replaces the parameter
    pipe[1][0] = nn.Identity()
    pipe[2].bias.requires_grad_(False)
    pipe.zero_grad()
    pipe(input).sum().backward()
    assert pipe[0].weight.grad is not None
    assert pipe[2].bias.grad is None
    assert torch.equal(pipe(input), torch.cat([model(x) for x in input.chunk(2)]))

    pipe[1].register_buffer("late", torch.ones(1))
    pipe[1].late = torch.zeros(1)
    pipe._modules["2"] = nn.Identity()  # replaces a layer
    assert torch.equal(pipe(input), pipe[0](input))


@pytest.mark.parametrize("interface", [GPipe, gpipe.torchgpipe.GPipe])
def test_a_sequential_that_is_changed_after_the_pipeline_was_made_is_refused(interface):
    def replaced(model):
        model[1] = nn.Identity()

    input = torch.randn(4, 8)
    for change in (
        replaced,
        lambda model: model.append(nn.Identity()),
        lambda model: model.pop(2),
        lambda model: model.register_forward_hook(lambda *_: None),
    ):
        model = model_of(3)
        pipe = interface(model, [2, 1])
        copied = copy.deepcopy(pipe)
        change(model)
        with pytest.raises(ValueError, match="model\\[k\\] = layer|has got forward hooks"):
            pipe(input)
        with pytest.raises(ValueError, match="was made of"):
            pipe.step(input, input, mse)
        copied(input)  # has layers of its own
    model = model_of(3)
    pipe = interface(model, [2, 1])
    model[0] = nn.Identity()
    del model  # nobody can take it for the model any more
    pipe(input)


@pytest.mark.parametrize("interface", [GPipe, gpipe.torchgpipe.GPipe])
def test_a_layer_is_replaced_by_item_assignment(interface):
    pipe = interface(model_of(3), [2, 1], chunks=2)
    names, input = list(pipe.state_dict()), torch.randn(4, 8)
    pipe[-1] = layer = nn.Linear(8, 8, dtype=torch.float)
    assert pipe[2] is layer and list(pipe.state_dict()) == names
    assert any(parameter is layer.weight for parameter in pipe.parameters())
    assert torch.allclose(pipe(input), layer(pipe[1](pipe[0](input))))
    with pytest.raises(TypeError, match="layer must be a Module, not str"):
        pipe[0] = "x"
    with pytest.raises(ValueError, match="duplicate children"):
        pipe[0] = layer
    with pytest.raises(IndexError):
        pipe[3] = nn.Identity()


class Equal(nn.Linear):
    """All objects of this class are equal."""

    def __eq__(self, other):
        return isinstance(other, Equal)

    def __hash__(self):
        return 1


@pytest.mark.parametrize("interface", [gpipe.GPipe, gpipe.torchgpipe.GPipe])
def test_a_layer_that_equals_the_one_that_it_replaces_is_another_one(interface):
    pipe = interface(nn.Sequential(Equal(8, 8), nn.Linear(8, 8)), [1, 1])
    input = torch.randn(4, 8)
    pipe(input)
    pipe[0] = Equal(8, 8)
    assert torch.equal(pipe(input), nn.Sequential(*pipe)(input))


def test_a_loss_that_misses_its_target_has_a_note():
    pipe = GPipe(model_of(2), [1, 1])
    with pytest.raises(TypeError, match="missing 1 required") as caught:
        pipe.step(torch.ones(2, 8), None, mse)
    assert any("no target was given, so the loss" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError) as caught:
        pipe.evaluate(torch.ones(2, 8), torch.ones(2, 8), lambda output: output.sum())
    assert not any("no target" in note for note in caught.value.__notes__)


def test_copies_pickles_and_casts():
    pipe = GPipe(model_of(), [2, 2], chunks=2)
    input = torch.randn(4, 8)
    file = io.BytesIO()
    torch.save(pipe, file)
    file.seek(0)
    for other in (copy.deepcopy(pipe), torch.load(file, weights_only=False)):
        assert torch.equal(other(input), pipe(input))
        other[0].weight.data.zero_()
        assert not torch.equal(other(input), pipe(input))
    assert pipe.double()(input.double()).dtype == torch.double
    assert pipe.to(torch.float)(input).dtype == torch.float


class Trouble(Exception):
    def __init__(self, first, second):  # needs two arguments, not a message
        super().__init__(f"{first} {second}")


class Raises(nn.Module):
    error = None

    def forward(self, input):
        if self.error is not None:
            raise self.error
        return input


def check_failure(call, error, where):
    with pytest.raises(type(error)) as caught:
        call()
    assert caught.value is error
    assert any(where in note for note in error.__notes__)
    assert caught.traceback[-1].name in ("forward", "backward", "__call__", "loss_fn", "apply")


@pytest.mark.parametrize("error", [Trouble("user's", "own"), KeyError(3), SystemExit(4)])
def test_an_exception_is_the_users_own_object_with_its_place(error):
    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Raises()), [1, 1], chunks=2)
    input = torch.randn(4, 8)
    pipe[1].error = error
    check_failure(lambda: pipe(input), error, "forward of stage 1, micro-batch 0, layer 1 ('1')")
    pipe[1].error = None
    pipe(input)


def raise_it(error, *_):
    if error is not None:
        raise error


class RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, error, input):
        context.error = error
        return input.clone()

    @staticmethod
    def backward(context, gradient):
        raise_it(context.error)
        return None, gradient


def with_unpack_hook(error, input):
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: raise_it(error) or x):
        return input.sin()


def with_hook(error, input):
    output = input.sin()
    output.register_hook(functools.partial(raise_it, error))
    return output


def with_prehook(error, input):
    output = input.sin()
    output.grad_fn.register_prehook(functools.partial(raise_it, error))
    return output


@pytest.mark.parametrize(
    "function", [RaisesInBackward.apply, with_unpack_hook, with_hook, with_prehook]
)
def test_an_exception_in_backward_is_told_once(function):
    class Runs(nn.Module):
        error = None

        def forward(self, input):
            return function(self.error, input)

    layer, input = Runs(), torch.randn(4, 8)
    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), layer), [1, 1], chunks=2, checkpoint="never")
    for call in (lambda: pipe(input).sum().backward(), lambda: pipe.step(input, None, torch.sum)):
        layer.error = Trouble("a hook's", "own")
        with pytest.raises(Trouble) as caught:
            call()
        assert caught.value is layer.error and "stage 1" in layer.error.__notes__[-1]
        layer.error = None
        call()


def test_exceptions_of_backward_and_of_the_loss():
    error = Trouble("in", "backward")

    class FailsInBackward(torch.autograd.Function):
        @staticmethod
        def forward(context, input):
            return input.clone()

        @staticmethod
        def backward(context, gradient):
            raise error

    class Layer(nn.Module):
        def forward(self, input):
            return FailsInBackward.apply(input)

    def loss_fn(output, target):
        raise error

    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Layer()), [1, 1], chunks=2)
    input = torch.randn(4, 8)
    check_failure(lambda: pipe(input).sum().backward(), error, "backward of stage 1")
    check_failure(lambda: pipe.step(input, input, mse), error, "backward of stage 1")
    check_failure(lambda: pipe.step(input, input, loss_fn), error, "the loss function")


class Array:
    """As an array of numpy, which is not needed for the tests."""

    def __array__(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    "value, text",
    [
        (Array(), "{what}, but got Array: give torch.as_tensor({name})"),
        ([torch.ones(1)], "{what}, but got list: give tuple({name})"),
        ([[1.0, 2.0]], "{what}, but got list: give torch.tensor({name}), if it has numbers"),
        ({"a": torch.ones(1)}, "{what}, but got dict: give tuple({name}.values()), which {taker}"),
        (UserDict(), "{what}, but got UserDict: give tuple({name}.values()), which {taker}"),
        (3, "{what}, but got int: give a tensor with N rows, such as torch.full((N,), 3)"),
        (None, "{what}, but got NoneType: give a tensor with N rows, or a tuple of such tensors"),
        ("text", "{what}, but got str: give a tensor with N rows, or a tuple of such tensors"),
        ((Array(),), "tuple that is {what}, but got Array: put torch.as_tensor(it) in its place"),
        ((torch.ones(1), None), "tuple that is {what}, but got NoneType: leave it out, or give"),
        ((torch.ones(1), [torch.ones(1)]), "but got list: put its tensors into the tuple itself"),
        (((torch.ones(1),),), "but got tuple: put its tensors into the tuple itself"),
        (({"a": torch.ones(1)},), "but got dict: put its tensors into the tuple itself"),
        ((2.5,), "but got float: give a tensor with N rows, such as torch.full((N,), 2.5)"),
    ],
)
def test_a_wrong_input_or_target_says_what_to_give(value, text):
    pipe = GPipe(model_of(2), [1, 1])
    right = torch.ones(1, 8)
    of_input = {"name": "input", "what": "the input", "taker": "the first layer takes apart"}
    of_target = {"name": "target", "what": "the target", "taker": "the loss function takes apart"}
    for call, words in (
        (lambda: pipe(value), of_input),
        (lambda: pipe.step(value, right, mse), of_input),
        (lambda: pipe.step(right, value, mse), of_target),
    ):
        if value is None and words is of_target:
            continue  # the loss function then gets the output alone
        with pytest.raises(TypeError, match="expected Tensor") as caught:
            call()
        assert text.format(**words) in str(caught.value)


def test_an_input_of_another_dtype_says_what_to_cast():
    pipe = GPipe(model_of(2), [1, 1])
    right, wrong = torch.ones(1, 8), torch.ones(1, 8, dtype=torch.float64)
    for call in (
        lambda: pipe(wrong),
        lambda: pipe.step(wrong, right, mse),
        lambda: pipe.evaluate(wrong, right, mse),
    ):
        with pytest.raises(RuntimeError, match="same dtype") as caught:
            call()
        assert "give input.to(torch.float32)" in caught.value.__notes__[-1]
    pipe.to(torch.float64)(wrong)


def test_an_empty_tuple_of_targets_is_told_of():
    with pytest.raises(TypeError, match="target") as caught:
        GPipe(model_of(2), [1, 1]).step(torch.ones(1, 8), (), mse)
    assert "no target was given" in caught.value.__notes__[0]


def test_wrong_values_are_refused_with_what_was_given():
    class Gives(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.value = value

        def forward(self, input):
            return self.value

    for value in ("text", {"a": torch.ones(1)}, (torch.ones(1), 3)):
        with pytest.raises(TypeError, match="expected Tensor") as caught:
            GPipe(nn.Sequential(Gives(value)), [1])(torch.ones(1))
        assert "stage 0, micro-batch 0" in caught.value.__notes__[0]
    pipe = GPipe(model_of(2), [1, 1])
    with pytest.raises(TypeError, match="expected a Tensor from the loss function, but got float"):
        pipe.step(torch.ones(1, 8), None, lambda output: 1.0)
    with pytest.raises(ValueError, match="1f1b"):
        pipe.step(torch.ones(1, 8), None, torch.sum, schedule="one-f-one-b")
    with pytest.raises(ValueError, match="sum"):
        GPipe(model_of(2), [1, 2])
    with pytest.raises(IndexError, match="too few devices"):
        GPipe(model_of(2), [1, 1], devices=["cpu"])
    with pytest.raises(ValueError, match="'sometimes'"):
        GPipe(model_of(2), [1, 1], checkpoint="sometimes")
    with pytest.raises(TypeError, match="not Linear"):
        GPipe(nn.Linear(8, 8), [1])


def test_a_waiting_call_does_not_hold_the_gil():
    # If a waiting call held the GIL, the thread that answers the layers would never run.
    asked, answered = threading.Event(), threading.Event()

    class Asks(nn.Module):
        def forward(self, input):
            asked.set()
            assert answered.wait(60)
            answered.clear()
            return input * 1

    def answer():
        while not done:
            if asked.wait(0.05):
                asked.clear()
                answered.set()

    done = False
    thread = threading.Thread(target=answer)
    thread.start()
    input = torch.randn(4, 8)
    try:
        for balance in ([2], [1, 1]):
            pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Asks()), balance, chunks=2, checkpoint="always")
            pipe(input).sum().backward()  # the recompute asks, too
            pipe.step(input, input, mse)
            pipe.evaluate(input, input, mse)
    finally:
        done = True
        thread.join()


def test_the_gil_is_taken_once_per_layer_call():
    pipe = GPipe(model_of(), [1] * 4, chunks=8, checkpoint="never")
    input = torch.randn(8, 8)
    before = _gpipe.gil_acquisitions()
    pipe(input).sum().backward()
    # The four layers take the GIL once for each of eight micro-batches. The waiting caller takes
    # it, too, 20 times per second, to look for signals.
    assert 4 * 8 <= _gpipe.gil_acquisitions() - before <= 4 * 8 + 20


def test_clipping_and_hashing_see_all_parameters():
    model, input = model_of(), torch.randn(4, 8)
    pipe = GPipe(model, [1, 3], chunks=2)
    other = GPipe(copy.deepcopy(model), [2, 2])
    assert pipe.parameter_hash() == other.parameter_hash()
    pipe.step(input, input, mse)
    expected = [parameter.grad.clone().requires_grad_() for parameter in model.parameters()]
    for gradient in expected:
        gradient.grad = gradient.detach().clone()
    norm = torch.nn.utils.clip_grad_norm_(expected, 0.01).item()
    assert pipe.clip_grad_norm_(0.01) == pytest.approx(norm)
    for parameter, clipped in zip(model.parameters(), expected):
        assert torch.allclose(parameter.grad, clipped.grad)
    assert pipe.parameter_hash() == other.parameter_hash()  # gradients do not count
    model[3].bias = nn.Parameter(model[3].bias.detach() + 1)
    assert pipe.parameter_hash() != other.parameter_hash()  # a replaced parameter is seen
    model[0].weight.grad.fill_(float("inf"))
    with pytest.raises(ValueError, match="norm of order 2 is inf"):
        pipe.clip_grad_norm_(1.0, error_if_nonfinite=True)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        pipe.clip_grad_norm_(-1.0)


class Scales(nn.Module):
    """Gives a tensor times 2, or the tensors of a tuple times 3, in the same form."""

    def forward(self, input):
        if isinstance(input, tuple):
            return tuple(tensor * 3 for tensor in input)
        return input * 2


@pytest.mark.parametrize("balance", [[2], [1, 1]])
def test_calls_that_overlap_have_their_own_forms(balance):
    pipe = GPipe(nn.Sequential(Scales(), Scales()), balance, chunks=2, checkpoint="always")
    tensor = torch.randn(4, 8, requires_grad=True)
    alone = pipe(tensor)
    (of_tuple,) = pipe((tensor,))
    alone.sum().backward()  # recomputes the first call after the second one has run
    of_tuple.sum().backward()
    assert torch.equal(tensor.grad, torch.full((4, 8), 2.0 * 2.0 + 3.0 * 3.0))
    # An empty tensor marks a tuple of one tensor. A user's own tuple may have such an empty tensor,
    # too, and must come out as it went in.
    empty = torch.empty(4, 0, dtype=torch.bool)
    for value in ((tensor,), (tensor, empty), (tensor, empty, empty)):
        given = []
        result = pipe.step(
            value, value, lambda output, target: given.append(len(target)) or output[0].sum(),
            keep_outputs=True,
        )
        assert given == [len(value)] * 2
        assert [tensor.shape for tensor in result.outputs] == [tensor.shape for tensor in value]


def test_a_call_that_waits_for_another_one_leaves_the_layers_alone():
    runs, may_end = threading.Event(), threading.Event()
    readers = set()

    class Watched(nn.Linear):
        @property
        def training(self):
            readers.add(threading.get_ident())
            return True

        @training.setter
        def training(self, mode):
            pass

        def forward(self, input):
            runs.set()
            assert may_end.wait(60)
            return super().forward(input)

    pipe = GPipe(nn.Sequential(Watched(8, 8), nn.Linear(8, 8)), [1, 1], chunks=2)
    input = torch.randn(4, 8)
    for call in (
        lambda: pipe.step(input, input, mse),
        lambda: pipe.evaluate(input, input, mse),
        lambda: pipe(input),
        pipe.parameter_hash,
        lambda: pipe.clip_grad_norm_(1.0),
    ):
        runs.clear()
        may_end.clear()
        first = threading.Thread(target=lambda: pipe.step(input, input, mse))
        first.start()
        assert runs.wait(60)
        readers.clear()
        second = threading.Thread(target=call)
        second.start()
        second.join(0.2)
        assert second.is_alive() and not readers
        may_end.set()
        first.join()
        second.join()
        assert readers


def test_a_worker_is_one_thread_for_python():
    seen = set()
    local = threading.local()

    class Notes(nn.Module):
        def forward(self, input):
            local.calls = getattr(local, "calls", 0) + 1
            seen.add((threading.get_ident(), local.calls))
            return input

    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Notes()), [1, 1], chunks=4)
    with torch.no_grad():
        pipe(torch.randn(4, 8))
    assert sorted(calls for _, calls in seen) == [1, 2, 3, 4]
    assert len({thread for thread, _ in seen}) == 1


def test_what_a_layer_keeps_for_its_thread_is_dropped_with_the_thread():
    local, kept = threading.local(), []

    class Keeps(nn.Module):
        def forward(self, input):
            with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
                local.graph = input.sin()
            local.object = nn.Identity()
            kept.append(weakref.ref(local.object))
            return local.graph

    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Keeps()), [1, 1])
    pipe.step(torch.randn(4, 8), None, torch.sum)
    assert kept[0]() is not None
    del pipe
    gc.collect()
    assert kept[0]() is None


def test_nothing_is_left_after_many_steps():
    class Fails(nn.Module):
        fails = False

        def forward(self, input):
            if self.fails:
                raise Trouble("many", "times")
            return input

    def counts():
        gc.collect()
        return len(gc.get_objects())

    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Fails(), nn.Linear(8, 8)), [1, 2], chunks=2)
    input, target = torch.randn(4, 8), torch.randn(4, 8)

    def steps(count):
        for k in range(count):
            pipe.zero_grad()
            pipe.step(input, target, lambda output, target: mse(output, target))
            pipe(input).sum().backward()
            pipe[1].fails = True
            with pytest.raises(Trouble):
                pipe(input)
            pipe[1].fails = False

    steps(20)
    before = counts()
    steps(500)
    assert counts() - before < 50

    dropped = weakref.ref(pipe[0])
    threads = len(gc.get_objects()) and count_threads()
    del pipe
    gc.collect()
    assert dropped() is None
    assert count_threads() < threads


def count_threads():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Threads:"))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_deferred_batch_norm_is_that_of_whole_mini_batches(checkpoint, momentum):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8, momentum=momentum), nn.Linear(8, 8))
    plain, other = copy.deepcopy(model), copy.deepcopy(model)
    pipe = GPipe(model, [1, 2], chunks=4, checkpoint=checkpoint, deferred_batch_norm=True)
    steps = GPipe(other, [1, 2], chunks=4, checkpoint=checkpoint, deferred_batch_norm=True)
    for schedule in ("1f1b", "zb-h1", "gpipe"):
        input = torch.randn(8, 8)
        plain(input)
        pipe(input).sum().backward()
        steps.step(input, None, lambda output: output.sum(), schedule=schedule)
        for norm in (model[1], other[1]):
            assert torch.equal(norm.num_batches_tracked, plain[1].num_batches_tracked)
            assert torch.allclose(norm.running_mean, plain[1].running_mean, atol=1e-6)
            assert torch.allclose(norm.running_var, plain[1].running_var, atol=1e-6)


class TwoNorms(nn.Module):
    def __init__(self):
        super().__init__()
        self.cumulative = nn.BatchNorm1d(8, momentum=None)
        self.fixed = nn.BatchNorm1d(8, momentum=0.5)
        self.fixed.num_batches_tracked.fill_(1000)

    def forward(self, input):
        return self.cumulative(input) + self.fixed(input)


def test_a_momentum_of_one_half_is_none_of_two_mini_batches():
    model = TwoNorms()
    plain = copy.deepcopy(model)
    pipe = GPipe(nn.Sequential(model), [1], chunks=4, deferred_batch_norm=True)
    for _ in range(3):
        input = torch.randn(8, 8)
        plain(input)
        pipe(input)
    for norm, other in ((model.cumulative, plain.cumulative), (model.fixed, plain.fixed)):
        assert torch.equal(norm.num_batches_tracked, other.num_batches_tracked)
        assert torch.allclose(norm.running_mean, other.running_mean, atol=1e-6)


class DividesByCount(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, input):
        output = self.norm(input)
        return output / self.norm.num_batches_tracked.item()


def test_a_recompute_reads_the_counter_of_its_forward():
    model = nn.Sequential(DividesByCount(), nn.Linear(8, 8))
    plain = copy.deepcopy(model)
    pipe = GPipe(model, [1, 1], chunks=1, checkpoint="always")
    for _ in range(2):
        input = torch.randn(8, 8)
        plain(input).pow(2).sum().backward()
        pipe(input).pow(2).sum().backward()
    for parameter, other in zip(model.parameters(), plain.parameters()):
        assert torch.equal(parameter.grad, other.grad)


def test_deferred_batch_norm_of_a_failed_call_has_not_counted():
    model = nn.Sequential(nn.BatchNorm1d(8, momentum=None), Raises())
    pipe = GPipe(model, [1, 1], chunks=2, deferred_batch_norm=True)
    before = copy.deepcopy(model[0].state_dict())
    pipe[1].error = Trouble("in", "a call")
    with pytest.raises(Trouble):
        pipe(torch.randn(4, 8))
    assert all(torch.equal(before[key], value) for key, value in model[0].state_dict().items())
    pipe[1].error = None
    pipe(torch.randn(4, 8))
    assert model[0].num_batches_tracked == 1


def test_a_backward_sees_the_modes_as_they_are_then():
    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 8)), [1, 2], chunks=2)
    input = torch.randn(4, 8)
    output = pipe(input)
    pipe.eval()
    with torch.no_grad():
        target = pipe(input)
    pipe.train()
    mse(output, target).backward()  # the modes are those of the forward again
    output = pipe(input)
    pipe.eval()
    with pytest.raises(RuntimeError, match="was set to eval mode between forward and backward"):
        output.sum().backward()
    pipe.train()
    output = pipe(input)
    pipe[0].weight = nn.Parameter(torch.zeros(8, 8))
    with pytest.raises(RuntimeError, match="was replaced in stage 0 between forward and backward"):
        output.sum().backward()


def test_what_a_forward_adds_does_not_stop_its_backward():
    class Lazy(nn.Module):
        def forward(self, input):
            if not hasattr(self, "inner"):
                self.inner = nn.Identity()
                self.scale = nn.Parameter(torch.ones(1), requires_grad=False)
            return self.inner(input) * self.scale

    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Lazy()), [1, 1], chunks=2, checkpoint="always")
    pipe(torch.randn(4, 8)).sum().backward()
    pipe(torch.randn(4, 8)).sum().backward()


@pytest.mark.parametrize("make", [torch.jit.script, lambda layer: nn.Sequential(torch.jit.script(layer))])
def test_scripted_layers(make):
    layer = make(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()))
    model = nn.Sequential(layer, nn.Linear(8, 8))
    input = torch.randn(4, 8)
    torch.cat([model(x) for x in input.chunk(2)]).sum().backward()
    expected = gradients(model)
    pipe = GPipe(model, [1, 1], chunks=2)
    for _ in range(3):
        model.zero_grad()
        gc.collect()
        pipe(input).sum().backward()
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients(model), expected))
    names = [name for name, _ in pipe.local_named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]


def test_saved_tensors_hooks_without_a_module_name():
    pipe = GPipe(model_of(2), [1, 1], chunks=2)
    with torch.autograd.graph.saved_tensors_hooks(torch.Tensor.cpu, torch.Tensor.contiguous):
        pipe(torch.randn(4, 8)).sum().backward()
    assert pipe[0].weight.grad is not None


def test_a_circle_through_a_hook_is_garbage():
    seen = []

    def pipe_with_hook():
        pipe = GPipe(model_of(2), [1, 1], chunks=2)
        pipe[0].register_forward_hook(lambda module, input, output: seen.append(len(pipe)))
        return pipe

    pipe = pipe_with_hook()
    for _ in range(3):
        gc.collect()
        pipe(torch.randn(4, 8)).sum().backward()
    assert seen
    output = pipe(torch.randn(4, 8))
    dropped, threads = weakref.ref(pipe[0]), count_threads()
    del pipe
    gc.collect()
    assert dropped() is not None
    output.sum().backward()
    del output
    gc.collect()
    assert dropped() is None
    assert count_threads() < threads


class Calls(nn.Module):
    """Any function as a layer, with a Linear for it to use."""

    def __init__(self, function):
        super().__init__()
        self.function, self.linear = function, nn.Linear(8, 8)

    def forward(self, input):
        return self.function(self, input)


def changed_parameter(pipe, input):
    output = pipe(input)
    with torch.no_grad():
        pipe[0].weight.add_(1)
    output.sum().backward()


def without_gradients(pipe, input):
    with torch.no_grad():
        pipe.step(input, input, mse)


def not_finite(pipe, input):
    pipe.step(input, input, lambda output, target: output.sum() * float("inf"))
    pipe.clip_grad_norm_(1.0, error_if_nonfinite=True)


def step(*arguments, **named):
    return lambda pipe, input: pipe.step(input, input, *arguments, **named)


def made(**named):
    return lambda pipe, input: GPipe(model_of(2), **{"balance": [1, 1], **named})(input)


def with_layer(function):
    return lambda pipe, input: GPipe(
        nn.Sequential(nn.Linear(8, 8), Calls(function)), [1, 1], chunks=2, checkpoint="always"
    )(input).sum().backward()


hidden = []


@pytest.mark.parametrize(
    "error, text, call",
    [
        (ValueError, "gpipe.balance.balance_by_time(partitions", made(balance=[1])),
        (ValueError, "nn.Identity()", made(balance=[2, 0])),
        (ValueError, "shared_inputs names number 3", made(shared_inputs=[3])),
        (ValueError, "processes=", made(processes=[0, 1])),
        (ValueError, "partition 0 of the balance {-1, 3} has -1", made(balance=[-1, 3])),
        (TypeError, "balance must be a list of ints, not NoneType: None", made(balance=None)),
        (TypeError, "balance must be a list of ints, not int: 2; give the number", made(balance=2)),
        (TypeError, "each of balance must be an int, not float: 2.7", made(balance=[2.7, 2.2])),
        (TypeError, "each of balance must be an int, not str: '2'", made(balance=["2", "2"])),
        (TypeError, "chunks must be an int, not float: 1.9", made(chunks=1.9)),
        (TypeError, "chunks must be an int, not str: '4'", made(chunks="4")),
        (TypeError, "chunks must be an int, not bool: True", made(chunks=True)),
        (TypeError, "chunks must be an int, not NoneType: None", made(chunks=None)),
        (TypeError, "checkpoint must be a str or a list of strs, not bool: True; give 'always', "
         "'except_last' or 'never'", made(checkpoint=True)),
        (TypeError, "not NoneType: None; give 'always'", made(checkpoint=None)),
        (ValueError, "checkpoint has 1 modes, and the balance 2 partitions: give one for each, or a "
         "single str", made(checkpoint=["never"])),
        (ValueError, "checkpoint has 0 modes", made(checkpoint=[])),
        (ValueError, "(shared_inputs= names those", lambda pipe, input: pipe((input, input[1:]))),
        (TypeError, "devices must be a list of torch.devices or ints or strs, not str: 'cpu'; give "
         "one for each partition: ['cpu', 'cpu']", made(devices="cpu")),
        (TypeError, "groups must be an int, not float: 1.5", made(groups=1.5)),
        (TypeError, "chunks is out of range: 1267650", made(chunks=2**100)),
        (TypeError, "each of placement must be an int, not str: 'a'", made(placement=["a", 0])),
        (TypeError, "shared_inputs must be a list of ints", made(shared_inputs="x")),
        (TypeError, "deferred_batch_norm must be a bool, not str: 'no'",
         made(deferred_batch_norm="no")),
        (RuntimeError, "checkpoint='never'", changed_parameter),
        (ValueError, "torch.no_grad()", without_gradients),
        (ValueError, "check_finite=True", not_finite),
        (ValueError, "(reduction=)", step(lambda output, target: output)),
        (ValueError, ".real or .abs()", step(lambda output, target: output.sum() * 1j)),
        (ValueError, "reduction='sum' and a weight", step(mse, reduction="sum", weight=len)),
        (ValueError, "'1'", step(mse, reduction=1)),
        (ValueError, "is empty: give one of gpipe.schedule_names()", step(mse, schedule="")),
        (TypeError, "must be a str or a Schedule or None, not int: 3", step(mse, schedule=3)),
        (TypeError, "is the class MSELoss: give an object of it, MSELoss()", step(nn.MSELoss)),
        (
            TypeError, "must be a function, not Tensor: step and evaluate take (input, target, ",
            lambda pipe, input: pipe.step(input, mse, input),
        ),
        (TypeError, "must be a function, not NoneType", step(None)),
        (
            TypeError, "from the loss function, but got float: return the tensor, without .item()",
            step(lambda output, target: mse(output, target).item()),
        ),
        (
            TypeError, "the loss function, but got tuple: return the one tensor that is the loss",
            step(lambda output, target: (mse(output, target), 1)),
        ),
        (
            TypeError, "but got NoneType: it ends without `return`",
            step(lambda output, target: None),
        ),
        (
            ValueError, "schedule is empty",
            lambda pipe, input: gpipe.diagnose(pipe, input, input, mse, schedule=""),
        ),
        (
            TypeError, "memory must be a list of ints, not int: 3",
            lambda pipe, input: gpipe.balance.fit(model_of(2), input, memory=3),
        ),
        (
            TypeError, "checkpoint must be a str or a list of strs, not NoneType",
            lambda pipe, input: gpipe.balance.memory_plan(
                model_of(2), input, balance=[1, 1], checkpoint=None
            ),
        ),
        (
            TypeError, "partitions must be an int, not float: 2.5",
            lambda pipe, input: gpipe.balance.balance_by_time(2.5, model_of(2), input),
        ),
        (
            TypeError, "devices must be an int, not float: 2.5",
            lambda pipe, input: gpipe.balance.plan(model_of(2), input, devices=2.5),
        ),
        (
            TypeError, "loss_fn is the class MSELoss",
            lambda pipe, input: gpipe.balance.memory_plan(
                model_of(2), input, input, nn.MSELoss, balance=[1, 1]
            ),
        ),
        (TypeError, "keep_outputs must be a bool, not str: 'x'", step(mse, keep_outputs="x")),
        (
            TypeError, "each of memory must be an int, not NoneType: None",
            lambda pipe, input: gpipe.balance.fit(model_of(2), input, memory=[None]),
        ),
        (
            TypeError, "name must be a str, not int: 1",
            lambda pipe, input: gpipe.schedule.by_name(1, stages=2, micro_batches=3),
        ),
        (
            ValueError, "the name of a schedule ('1f1b', say)",
            step(mse, schedule=gpipe.schedule.by_name("1f1b", stages=2, micro_batches=3)),
        ),
        (TypeError, "weight must be a function of a micro-batch's target, not int",
         step(mse, weight=3)),
        (TypeError, "a number from weight, but got NoneType", step(mse, weight=lambda _: None)),
        (TypeError, "a number from weight, but got str: 'x'", step(mse, weight=lambda _: "x")),
        (TypeError, "a number from weight, but got Tensor", step(mse, weight=lambda each: each)),
        (TypeError, "loss_scale must be a number, not str: 'x'", step(mse, loss_scale="x")),
        (TypeError, "max_norm must be a number, not NoneType: None",
         lambda pipe, input: pipe.clip_grad_norm_(None)),
        (TypeError, "is a pipeline itself: give its layers",
         lambda pipe, input: GPipe(nn.Sequential(pipe, nn.Linear(8, 8)), [1, 1])),
        (TypeError, "parameter '1.weight' has no shape yet",
         lambda pipe, input: GPipe(nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(8)), [1, 1])),
        (ValueError, "inside of torch.func",
         lambda pipe, input: torch.func.vmap(pipe)(input.view(2, 2, 8))),
        (ValueError, "inside of torch.func",
         lambda pipe, input: torch.func.grad(lambda given: pipe(given).sum())(input)),
        (
            ValueError, "check_finite",
            step(lambda output, target: output.sum() * float("nan"), check_finite=True),
        ),
        (ValueError, "schedule.parse: line 1", lambda pipe, input: gpipe.schedule.parse("stages")),
        (
            ValueError, "with torch.device('meta')",
            lambda pipe, input: gpipe.balance.memory_plan(model_of(2), input, balance=[1, 1]),
        ),
        (Exception, "torch.jit.trace", lambda pipe, input: torch.jit.trace(pipe, input)),
        (RuntimeError, "checkpoint='never'", with_layer(lambda self, input: input.mul_(2))),
        (
            RuntimeError, "an attribute",
            with_layer(lambda self, input: hidden.append(self.linear(input)) or sum(hidden)),
        ),
    ],
)
def test_errors_speak_of_pythons_names(error, text, call):
    hidden.clear()
    pipe = GPipe(model_of(2), [1, 1], chunks=2, checkpoint="always")
    with pytest.raises(error) as caught:
        call(pipe, torch.randn(4, 8))
    assert text in str(caught.value)
    assert "::" not in str(caught.value) and "Options" not in str(caught.value)


def test_warnings_speak_of_pythons_names():
    outside = nn.Linear(8, 8)
    pipe = GPipe(nn.Sequential(nn.Linear(8, 8), Calls(lambda self, input: outside(input))), [1, 1])
    with pytest.warns(UserWarning) as warned:
        pipe(torch.randn(4, 8)).sum().backward()
    texts = [str(each.message) for each in warned]
    assert any("tensor that is no nn.Parameter" in text for text in texts)
    assert not any("::" in text or "register_module" in text for text in texts)


@pytest.mark.parametrize(
    "shown", [GPipe, GPipe.forward, GPipe.step, gpipe.StepResult, gpipe.World.rows]
)
def test_help_shows_types_without_quotes(shown):
    types = [text for text in inspect.signature(shown).parameters.values() if ":" in str(text)]
    assert types and not any(": '" in str(text) for text in types)
    assert shown is not GPipe.step or "loss_fn: Callable[..., Tensor]" in pydoc.render_doc(shown)


def test_a_pipeline_that_is_made_again_has_the_settings_that_were_given():
    class Times(nn.Module):
        def __init__(self, ends):
            super().__init__()
            self.ends = ends

        def forward(self, pair):
            x, constant = pair
            return x * constant if self.ends else (x * constant, constant)

    placement = [0, 1]
    model = gpipe.GPipe(
        nn.Sequential(Times(ends=False), Times(ends=True)),
        balance=[1, 1],
        chunks=2,
        placement=placement,
        shared_inputs=(k for k in [1]),
    )
    placement.reverse()
    again = copy.deepcopy(model)
    x, constant = torch.arange(4.0).view(4, 1), torch.tensor([3.0])
    for pipeline in (model, again):
        assert torch.equal(pipeline((x, constant)), x * 9)
    assert again._options["worker_of_stage"] == [0, 1]

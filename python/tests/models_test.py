"""Models as people have them: each construct runs as in the plain model, or is refused with a sentence."""

import collections
import copy
import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import gpipe
from gpipe import GPipe
from gpipe.torchgpipe import GPipe as TorchGPipe


class Calls(nn.Module):
    """Any function as a layer, with a Linear for it to use."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)

    def forward(self, input):
        return self.function(self, input)


def total(output):
    return output.square().sum()


def assert_same_training(layers, modes=("always", "except_last", "never"), input=None):
    """Gradients and outputs of a call, and of steps of two schedules, are those of the plain model."""
    input = torch.rand(4, 4) if input is None else input
    plain = nn.Sequential(*layers)
    expected_output = torch.cat([plain(rows) for rows in input.chunk(2)])
    total(expected_output).backward()
    expected = [parameter.grad for parameter in plain.parameters()]
    for mode in modes:
        pipe = GPipe(nn.Sequential(*layers), [1] * len(layers), chunks=2, checkpoint=mode)
        for schedule in (None, "1f1b", "zb-h1"):
            plain.zero_grad()
            if schedule is None:
                output = pipe(input)
                total(output).backward()
            else:
                result = pipe.step(
                    input, None, total, schedule=schedule, reduction="sum", keep_outputs=True
                )
                output = result.outputs
            assert torch.allclose(output, expected_output, atol=1e-6)
            for parameter, gradient in zip(plain.parameters(), expected):
                assert (parameter.grad is None) == (gradient is None)
                assert gradient is None or torch.allclose(parameter.grad, gradient, atol=1e-5)


def test_shared_parameters():
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    last.weight = first.weight
    assert_same_training([first, nn.Tanh(), last])


@pytest.mark.parametrize(
    "wrap", [parametrizations.weight_norm, parametrizations.orthogonal, torch.nn.utils.weight_norm]
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_parametrizations(wrap):
    assert_same_training([wrap(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 4)])


def test_hooks_of_layers_may_change_what_passes():
    layer = nn.Linear(4, 4)
    layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
    layer.register_forward_hook(lambda _m, _i, output: output + 1)
    layer.register_full_backward_hook(lambda _m, gradients, _: (gradients[0] * 3,))
    layer.weight.register_hook(lambda gradient: gradient * 5)
    assert_same_training([nn.Linear(4, 4), layer, nn.Linear(4, 4)])


class OwnForward(nn.Sequential):
    def forward(self, input):
        return super().forward(input) + 1


class OwnParameter(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_parameter("bias", None)
        self.register_buffer("mean", torch.ones(1))
        self.register_buffer("none", None)


def ignore(*_):
    """A hook."""


@pytest.mark.parametrize(
    "kind, register",
    [
        ("forward pre hooks", nn.Module.register_forward_pre_hook),
        ("forward hooks", nn.Module.register_forward_hook),
        ("backward pre hooks", nn.Module.register_full_backward_pre_hook),
        ("backward hooks", nn.Module.register_full_backward_hook),
    ],
)
def test_hooks_of_the_pipeline_itself_are_called_or_refused(kind, register):
    pipe = GPipe(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), [1, 1], chunks=2)
    input, called = torch.rand(4, 3, requires_grad=True), []
    handle = register(pipe, lambda *_: called.append(kind))
    pipe(input).sum().backward()
    assert called == [kind]
    for call in (pipe.step, pipe.evaluate):
        with pytest.raises(ValueError, match=f"{kind}.* only model.input. calls.*{call.__name__}"):
            call(input, None, torch.sum, reduction="sum")
    handle.remove()
    pipe.step(input, None, torch.sum, reduction="sum")


@pytest.mark.parametrize("kind", [GPipe, TorchGPipe])
@pytest.mark.parametrize(
    "found, change",
    [
        ("forward pre hooks,", lambda model: model.register_forward_pre_hook(ignore)),
        ("forward hooks,", lambda model: model.register_forward_hook(ignore)),
        ("backward pre hooks,", lambda model: model.register_full_backward_pre_hook(ignore)),
        ("backward hooks,", lambda model: model.register_full_backward_hook(ignore)),
        ("state dict pre hooks,", lambda model: model.register_state_dict_pre_hook(ignore)),
        ("state dict hooks,", lambda model: model.register_state_dict_post_hook(ignore)),
        (
            "load state dict pre hooks,",
            lambda model: model.register_load_state_dict_pre_hook(ignore),
        ),
        (
            "load state dict post hooks,",
            lambda model: model.register_load_state_dict_post_hook(ignore),
        ),
        ("the parameter 'scale', the buffer 'mean',", lambda model: OwnParameter(*model)),
        ("OwnForward has a forward of its own", lambda model: OwnForward(*model)),
    ],
)
def test_what_the_sequential_itself_has_is_refused(kind, found, change):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    changed = change(model)
    with pytest.raises(TypeError, match=found):
        kind(changed if isinstance(changed, nn.Sequential) else model, [1, 1])


def test_a_layers_parameter_may_have_a_second_name():
    model = nn.Sequential(nn.Linear(4, 4))
    model.tied = model[0].weight
    assert GPipe(model, [1])[0].weight is model.tied


def test_functions_of_autograd():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(context, input, weight):
            context.save_for_backward(input, weight)
            return input * weight

        @staticmethod
        def backward(context, gradient):
            input, weight = context.saved_tensors
            return gradient * weight, gradient * input

    def call(layer, input):
        return Scale.apply(input, layer.linear.weight)

    assert_same_training([nn.Linear(4, 4), Calls(call), nn.Linear(4, 4)], input=torch.rand(8, 4))


class Squares(torch.autograd.Function):
    """A function of the user's, which autograd's engine runs."""

    @staticmethod
    def forward(context, input):
        context.save_for_backward(input)
        return input.square()

    @staticmethod
    def backward(context, gradient):
        (input,) = context.saved_tensors
        return 2 * input * gradient


def deep(layer, hidden):
    for _ in range(3):
        hidden = torch.tanh(layer.linear(hidden) + Squares.apply(hidden))
    if hidden.requires_grad:  # not in the first forward of the kind with reentrance
        hidden.register_hook(lambda gradient: gradient * 2)
    return hidden


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("mode", ["never", "always"])
def test_checkpoints_inside_of_layers(reentrant, mode):
    calls = []

    def inner(layer, input):
        calls.append(0)
        return deep(layer, input)

    def call(layer, input):
        return checkpoint(lambda x: inner(layer, x), input, use_reentrant=reentrant)

    layers = [nn.Linear(4, 4), Calls(call), nn.Linear(4, 4)]
    assert_same_training(layers)
    pipe = GPipe(nn.Sequential(*layers), [1, 1, 1], chunks=2, checkpoint=mode)
    # A micro-batch calls it once in its forward, and once more in its backward, as the plain model
    # does. The pipeline's own recompute is one more call.
    expected = 4 + (2 if mode == "always" else 0)
    for schedule in ("1f1b", "gpipe", "fill-drain"):
        calls.clear()
        pipe.step(torch.rand(4, 4), None, total, schedule=schedule)
        assert len(calls) == expected
    calls.clear()
    output = pipe(torch.rand(4, 4))
    total(output).backward(retain_graph=True)
    assert len(calls) == expected
    total(output).backward()
    assert len(calls) > expected
    # The two halves of a split backward are two backwards.
    calls.clear()
    pipe.step(torch.rand(4, 4), None, total, schedule="zb-h1")
    assert len(calls) <= expected + 2


class OfAnotherLibrary(torch.autograd.Function):
    """A checkpoint as other libraries have it."""

    @staticmethod
    def forward(context, function, input):
        context.function, context.state = function, torch.get_rng_state()
        context.save_for_backward(input)
        with torch.no_grad():
            return function(input)

    @staticmethod
    def backward(context, gradient):
        input = context.saved_tensors[0].detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(context.state)
            output = context.function(input)
        output.backward(gradient)
        return None, input.grad


CHECKPOINTS = {
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "other": functools.partial(checkpoint, use_reentrant=False),
    "library": OfAnotherLibrary.apply,
}


class Drops(nn.Module):
    """Dropouts in checkpoints, one within the other."""

    def __init__(self, outer, inner):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(64))
        self.outer, self.inner = CHECKPOINTS[outer], CHECKPOINTS[inner]

    def drop(self, input):
        return nn.functional.dropout(input * self.weight)

    def drop_twice(self, input):
        return nn.functional.dropout(self.inner(self.drop, input))

    def forward(self, input):
        return nn.functional.dropout(self.outer(self.drop_twice, input), 0.25)


@pytest.mark.parametrize("outer", CHECKPOINTS)
@pytest.mark.parametrize("inner", CHECKPOINTS)
@pytest.mark.parametrize("mode", ["never", "always"])
def test_checkpoints_inside_of_layers_draw_what_their_forward_drew(outer, inner, mode):
    layer = Drops(outer, inner)
    pipe = GPipe(nn.Sequential(nn.Identity(), layer), [1, 1], chunks=2, checkpoint=mode)
    input = torch.ones(4, 64, requires_grad=True)
    for schedule in (None, "1f1b", "zb-h1"):
        layer.zero_grad()
        if schedule is None:
            output = pipe(input)
            output.sum().backward()
        else:
            output = pipe.step(
                input, None, torch.sum, schedule=schedule, reduction="sum", keep_outputs=True
            ).outputs
        # Weights and inputs are ones, so what was kept has the same factor in both.
        assert torch.allclose(layer.weight.grad, output.detach().sum(0))


def test_selective_checkpoints_inside_of_a_layer():
    contexts = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
    )

    def inner(layer, input):
        return torch.tanh(layer.linear(input)) * 2

    def call(layer, input):
        return checkpoint(inner, layer, input, use_reentrant=False, context_fn=contexts)

    assert_same_training([nn.Linear(4, 4), Calls(call), nn.Linear(4, 4)])


class Noise(torch.autograd.Function):
    """Draws in its backward."""

    @staticmethod
    def forward(context, input):
        return input.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * torch.rand_like(gradient)


def test_what_a_function_draws_in_backward_does_not_depend_on_the_balance():
    layers = [nn.Linear(4, 4), *(Calls(lambda self, x: Noise.apply(self.linear(x))) for _ in "12")]
    input, expected = torch.rand(4, 4), None
    for balance, mode in itertools.product(([3], [1, 2], [1, 1, 1]), ("never", "always")):
        model = nn.Sequential(*layers)
        model.zero_grad()
        torch.manual_seed(0)
        total(GPipe(model, balance, chunks=2, checkpoint=mode)(input)).backward()
        found = [parameter.grad for parameter in model.parameters()]
        expected = expected or found
        assert all(map(torch.allclose, found, expected))


def test_nested_checkpoints_inside_of_a_layer():
    calls = []

    def inner(layer, input):
        calls.append(0)
        return torch.tanh(layer.linear(input))

    def outer(layer, input):
        hidden = checkpoint(inner, layer, input, use_reentrant=False)
        return checkpoint(inner, layer, hidden.exp(), use_reentrant=False)

    def call(layer, input):
        return checkpoint(outer, layer, input, use_reentrant=False)

    layers = [nn.Linear(4, 4), Calls(call), nn.Linear(4, 4)]
    assert_same_training(layers)
    plain = nn.Sequential(*layers)
    calls.clear()
    total(plain(torch.rand(2, 4))).backward()
    expected = len(calls)
    calls.clear()
    GPipe(plain, [1, 1, 1], checkpoint="never").step(torch.rand(2, 4), None, total)
    assert len(calls) == expected


def test_torchs_own_group_of_backwards_goes_on():
    """Two backwards of the plain engine in a GraphExecGroup have one recompute, as without gpipe."""
    calls = []
    layer = nn.Linear(4, 4)

    def inner(input):
        calls.append(0)
        return torch.tanh(layer(input)), torch.sigmoid(layer(input))

    a, b = checkpoint(inner, torch.rand(2, 4), use_reentrant=False)
    with torch.utils.checkpoint.GraphExecGroup():
        a.sum().backward(retain_graph=True)
        b.sum().backward()
    assert len(calls) == 2
    a, b = checkpoint(inner, torch.rand(2, 4), use_reentrant=False)
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    assert len(calls) == 5


def test_checkpoint_around_a_pipeline():
    pipe = GPipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1, 1], chunks=2)
    input = torch.rand(4, 4, requires_grad=True)
    pipe(input).sum().backward()
    expected = [parameter.grad for parameter in pipe.parameters()]
    gradient, input.grad = input.grad, None
    pipe.zero_grad()
    checkpoint(pipe, input, use_reentrant=True).sum().backward()
    assert torch.allclose(input.grad, gradient)
    assert all(torch.allclose(p.grad, e) for p, e in zip(pipe.parameters(), expected))
    with pytest.raises(ValueError, match="use_reentrant=True"):
        checkpoint(pipe, input, use_reentrant=False)
    assert pipe(input).shape == (4, 4)  # after the refused call the pipeline can still be used


@pytest.mark.parametrize("inside", [True, False])
def test_hooks_of_saved_tensors(inside):
    packed = []

    def hooks():
        return torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(0) or tensor.clone(), lambda tensor: tensor
        )

    def call(layer, input):
        with hooks():
            return torch.tanh(layer.linear(input))

    layers = [nn.Linear(4, 4), Calls(call), nn.Linear(4, 4)]
    if inside:
        assert_same_training(layers)
    else:
        pipe = GPipe(nn.Sequential(*layers), [1, 1, 1], chunks=2, checkpoint="never")
        with hooks():
            output = pipe(torch.rand(4, 4))
        output.sum().backward()
    assert packed


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_layers(backend):
    compiled = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), backend=backend)
    assert_same_training([nn.Linear(4, 4), compiled, nn.Linear(4, 4)])


def test_autocast():
    layers = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    pipe = GPipe(nn.Sequential(*layers), [1, 1, 1], chunks=2)
    input = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = torch.cat([nn.Sequential(*layers)(rows) for rows in input.chunk(2)])
        output = pipe(input)
        result = pipe.step(input, None, lambda y: y.float().sum(), keep_outputs=True)
    assert output.dtype == torch.bfloat16 and torch.equal(output, plain)
    assert torch.equal(result.outputs, plain)

    def call(layer, input):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer.linear(input).float()

    # The layer casts its input by autocast. A recompute must cast, too, so the gradients are those
    # of the plain model.
    model = nn.Sequential(Calls(call), nn.Linear(4, 4))
    for mode in ("always", "never"):
        model.zero_grad()
        GPipe(model, [1, 1], chunks=1, checkpoint=mode)(input).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        model(input).sum().backward()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients))


def test_grad_scaler():
    pipe = GPipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1, 1], chunks=2)
    other = copy.deepcopy(pipe)
    input = torch.rand(4, 4)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (pipe, other)]
    scaler.scale(pipe(input).sum()).backward()
    other(input).sum().backward()
    for inside in (False, True):
        if inside:
            pipe.step(input, None, lambda y: scaler.scale(y.sum()), reduction="sum")
            other.step(input, None, lambda y: y.sum(), reduction="sum")
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[1].step()
        assert all(torch.allclose(a, b) for a, b in zip(pipe.parameters(), other.parameters()))
        for optimizer in optimizers:
            optimizer.zero_grad()


def test_the_pipelines_own_scaler_is_torchs():
    """Factors, steps that are left out, and parameters are those of torch.amp.GradScaler."""
    pipe = GPipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1, 1], chunks=2)
    other = copy.deepcopy(pipe)
    own = nn.Parameter(torch.ones(()))  # of the loss function alone
    own_other = nn.Parameter(torch.ones(()))
    options = dict(init_scale=1024.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2)
    scaler = gpipe.GradScaler(pipe, **options)
    torchs = torch.amp.GradScaler("cpu", **options)
    optimizers = [
        torch.optim.SGD([*model.parameters(), parameter], lr=0.001, momentum=0.9)
        for model, parameter in ((pipe, own), (other, own_other))
    ]
    for k, infinite in enumerate(["", "pipeline", "", "", "loss", "", "", ""]):
        input = torch.rand(4, 4)
        for optimizer in optimizers:
            optimizer.zero_grad()
        result = pipe.step(input, None, lambda y: total(y) * own, loss_scale=scaler.get_scale())
        scaled = other.step(input, None, lambda y: torchs.scale(total(y) * own_other))
        assert result.loss * scaler.get_scale() == scaled.loss  # with torch's, the loss is scaled
        for model, parameter in ((pipe, own), (other, own_other)):
            if infinite:
                changed = model[1].bias if infinite == "pipeline" else parameter
                changed.grad.fill_(float("inf"))
        if k % 2 == 1:
            assert scaler.unscale_() == (infinite != "pipeline")
            torchs.unscale_(optimizers[1])
            with pytest.raises(ValueError, match="GradScaler.unscale_ was called a second time"):
                scaler.unscale_()
        assert scaler.step(optimizers[0]) == (infinite == "")
        torchs.step(optimizers[1])
        scaler.update()
        torchs.update()
        assert scaler.get_scale() == torchs.get_scale()
        assert scaler.state_dict().items() <= torchs.state_dict().items()
        assert all(map(torch.equal, [*pipe.parameters(), own], [*other.parameters(), own_other]))
    assert scaler.get_scale() == 1024.0 * 0.25 * 4.0 * 0.25 * 4.0

    again = gpipe.GradScaler(pipe)
    again.load_state_dict(torchs.state_dict())
    assert again.get_scale() == scaler.get_scale() and again.state_dict() == scaler.state_dict()


def test_a_pipeline_that_is_made_again_within_a_step_of_the_scaler():
    pipe = TorchGPipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1, 1], chunks=2)
    scaler = gpipe.GradScaler(pipe, init_scale=4.0)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=1.0)
    for divides in (True, False):
        pipe.step(torch.rand(4, 4), None, total, loss_scale=scaler.get_scale())
        for parameter in pipe.parameters():
            parameter.grad.fill_(4.0)
        if divides:
            assert scaler.unscale_()
        pipe.chunks = 4 if divides else 1
        pipe.parameter_hash()  # makes it again
        assert scaler.step(optimizer)
        assert all(torch.equal(p.grad, torch.ones_like(p)) for p in pipe.parameters())
        scaler.update()


def test_an_optimizer_that_fails_leaves_the_factor():
    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError

    pipe = GPipe(nn.Sequential(nn.Linear(4, 4)), [1])
    scaler = gpipe.GradScaler(pipe, init_scale=4.0)
    for optimizer in (Fails(pipe.parameters()), torch.optim.SGD(pipe.parameters(), lr=0.1)):
        pipe.zero_grad()
        pipe.step(torch.rand(1, 4), None, total, loss_scale=scaler.get_scale())
        gradient = pipe[0].weight.grad / 4
        if isinstance(optimizer, Fails):
            with pytest.raises(ZeroDivisionError):
                scaler.step(optimizer)
            assert copy.deepcopy(scaler).get_scale() == 4.0  # no step is in progress
        else:
            assert scaler.step(optimizer)
        assert torch.equal(pipe[0].weight.grad, gradient) and scaler.get_scale() == 4.0
    scaler.update()


def test_what_a_scaler_refuses():
    pipe = GPipe(nn.Sequential(nn.Linear(4, 4)), [1])
    with pytest.raises(TypeError, match="not Linear: for a plain module take torch.amp.GradScaler"):
        gpipe.GradScaler(nn.Linear(4, 4))
    for options in (
        dict(init_scale=0.0), dict(growth_factor=1.0), dict(backoff_factor=1.0),
        dict(growth_interval=0),
    ):
        with pytest.raises(ValueError, match=f"{list(options)[0]}= must be"):
            gpipe.GradScaler(pipe, **options)
    scaler = gpipe.GradScaler(pipe)
    with pytest.raises(ValueError, match="GradScaler.update was called without"):
        scaler.update()
    with pytest.raises(TypeError, match="optimizer must be a torch.optim.Optimizer, not GPipe"):
        scaler.step(pipe)
    with pytest.raises(ValueError, match="loss_scale= must be positive"):
        pipe.step(torch.rand(1, 4), None, total, loss_scale=0.0)
    off = gpipe.GradScaler(pipe, enabled=False)
    pipe.step(torch.rand(1, 4), None, total, loss_scale=off.get_scale())
    gradient = pipe[0].weight.grad.clone()
    assert off.get_scale() == 1.0 and off.step(torch.optim.SGD(pipe.parameters(), lr=0.1))
    off.update()
    assert torch.equal(pipe[0].weight.grad, gradient)


@pytest.mark.parametrize(
    "value, advice",
    [
        (lambda x: {"a": x}, "but got dict: let the layer give tuple"),
        (lambda x: [x, x], "but got list: make it a tuple"),
        (lambda x: None, "but got NoneType: let the layers pass"),
        (lambda x: (x, None), "element 1 .* but got NoneType: leave it out"),
        (lambda x: (x, 3), "element 1 .* but got int: let the layers pass"),
    ],
)
def test_values_that_are_refused(value, advice):
    pipe = GPipe(nn.Sequential(Calls(lambda _, x: value(x)), nn.Linear(4, 4)), [1, 1])
    with pytest.raises(TypeError, match=advice):
        pipe(torch.rand(2, 4))


def test_a_named_tuple_goes_on_as_a_tuple():
    Pair = collections.namedtuple("Pair", "a b")
    seen = []
    layers = [Calls(lambda _, x: Pair(x, x)), Calls(lambda _, x: seen.append(type(x)) or x[0])]
    assert GPipe(nn.Sequential(*layers), [1, 1])(torch.rand(2, 4)).shape == (2, 4)
    assert seen == [tuple]


def test_more_than_one_argument():
    pipe = GPipe(nn.Sequential(nn.Linear(4, 4)), [1])
    with pytest.raises(TypeError, match="2 by position: give a tuple"):
        pipe(torch.rand(1, 4), torch.rand(1, 4))
    with pytest.raises(TypeError, match="1 by position, 'mask': give a tuple"):
        pipe(torch.rand(1, 4), mask=torch.rand(1, 4))


class Decorated(nn.Linear):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, input):
        return super().forward(input)


class DecoratedWithoutCache(nn.Linear):
    @torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False)
    def forward(self, input):
        return super().forward(input)


class Within(nn.Linear):
    def forward(self, input):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(input)


def test_autocast_by_a_decorator():
    for kind in (DecoratedWithoutCache, Within):
        assert_same_training([kind(4, 4), Calls(lambda self, input: input.float())])
    pipe = GPipe(nn.Sequential(Decorated(4, 4), nn.Identity()), [1, 1], chunks=2)
    with pytest.raises(RuntimeError, match="cache_enabled=False"):
        pipe(torch.rand(4, 4))

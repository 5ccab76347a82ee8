"""gpipe.skip. The numbers are those of the cases of torchgpipe 0.0.7 that the tests are about."""

import copy
import pickle
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from gpipe import GPipe
from gpipe.skip import Namespace, Skippable, pop, skippable, stash, verify_skippables
from gpipe.skip import SkipTracker, current_skip_tracker, use_skip_tracker


def layer(stashes=(), pops=()):
    """A layer that adds what it pops, and stashes its input."""

    @skippable(stash=stashes, pop=pops)
    class Layer(nn.Module):
        def forward(self, input):
            for name in stashes:
                yield stash(name, input)
            for name in pops:
                input = input + (yield pop(name))
            return input * 2

    return Layer()


def test_123_namespaces_differ():
    assert Namespace() != Namespace()
    assert Namespace() != None  # noqa: E711: the test is about != None


def test_124_a_copy_of_a_namespace_equals_it():
    ns = Namespace()
    assert copy.deepcopy(ns) == ns and hash(copy.copy(ns)) == hash(ns)
    other = Namespace()
    assert (ns < other) != (other < ns)


def test_a_namespace_of_another_process_is_none_of_this_one():
    program = (
        "import pickle, sys; from gpipe.skip import Namespace; "
        "made = [Namespace() for _ in range(999)]; "
        "sys.stdout.buffer.write(pickle.dumps((made, made[0])))"
    )
    pickled = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, timeout=600
    ).stdout
    others, first = pickle.loads(pickled)
    assert first == others[0] and hash(first) == hash(others[0]) and len(set(others)) == 999
    own = Namespace()
    assert own not in others and own.number not in [other.number for other in others]
    assert first.number == others[0].number and first.number != others[1].number
    model = nn.Sequential(
        layer(stashes=["x"]).isolate(own),
        *[layer(stashes=["x"]).isolate(other) for other in others[:2]],
        *[layer(pops=["x"]).isolate(ns) for ns in (others[1], own, first)],
    )
    input = torch.randn(4, 1)
    assert torch.equal(GPipe(model, [1] * 6, chunks=2)(input), model(input))


def test_125_text():
    @skippable(stash=["x"])
    class Shown(nn.Module):
        pass

    assert repr(Shown()) == "@skippable(Shown())"
    assert Shown.__name__ == "Shown" and issubclass(Shown, Skippable)


def test_127_none_is_a_payload():
    @skippable(stash=["x"])
    class Stash(nn.Module):
        def forward(self, input):
            yield stash("x", None)
            return input * 2

    @skippable(pop=["x"])
    class Pop(nn.Module):
        def forward(self, input):
            assert (yield pop("x")) is None
            return input

    input = torch.rand(4, 1, requires_grad=True)
    GPipe(nn.Sequential(Stash(), Pop()), [1, 1], chunks=2)(input).sum().backward()
    assert torch.equal(input.grad, torch.full((4, 1), 2.0))


def test_146_to_151_outside_of_a_pipeline():
    tracker = SkipTracker()
    with use_skip_tracker(tracker):
        one = layer(stashes=["x"])(torch.ones(1))
        assert len(tracker.tensors) == 1
        assert layer(pops=["x"])(one).item() == 6
        assert not tracker.tensors
        with pytest.raises(RuntimeError, match="'x' has not been stashed"):
            layer(pops=["x"])(one)


def test_a_tracker_of_ones_own_sees_tensors_and_may_replace_them():
    class Doubles(SkipTracker):
        def save(self, batch, ns, name, tensor):
            batch[0] = batch[0] * 2
            super().save(batch, ns, name, tensor)

        def load(self, batch, ns, name):
            batch[0] = batch[0] * 10
            return super().load(batch, ns, name)

    with use_skip_tracker(Doubles()):
        one = layer(stashes=["x"])(torch.ones(1))
        assert one.item() == 4
        assert layer(pops=["x"])(one).item() == (40 + 1) * 2


def test_wrong_names_are_refused():
    with pytest.raises(TypeError, match=r"names of skips: write @skippable\(stash=\['name'\]\)"):

        @skippable
        class Bare(nn.Module):
            pass

    with pytest.raises(ValueError, match="has no skip 'zz': it declares 'x', 'y'"):
        layer(stashes=["x"], pops=["y"]).isolate(Namespace(), only=["x", "zz"])


def test_dispatch_calls_a_handler_for_each_yield():
    stashed = {}
    made = layer(stashes=["x"], pops=["y"])
    output = made.dispatch(torch.ones(1), stashed.__setitem__, lambda name: torch.full((1,), 5.0))
    assert output.item() == 12 and list(stashed) == ["x"]


@pytest.mark.parametrize("in_pipeline", [False, True])
def test_148_to_150_declared_and_used_must_be_the_same(in_pipeline):
    def call(stashes, pops, forward):
        inner = skippable(stash=stashes, pop=pops)(type("Inner", (nn.Module,), {"forward": forward}))
        model = nn.Sequential(layer(stashes=pops), inner(), layer(pops=stashes))
        if in_pipeline:
            model = GPipe(model, [1, 1, 1])
        return model(torch.ones(2, 1))

    def nothing(self, input):
        return input

    def stashes_y(self, input):
        yield stash("y", input)
        return input

    def pops_y(self, input):
        yield pop("y")
        return input

    def yields_3(self, input):
        yield 3
        return input

    def without_yield(self, input):
        stash("x", input)
        return input

    for stashes, pops, forward, error, text in (
        (["x"], [], nothing, RuntimeError, "'x' must be stashed but have not"),
        (["x"], [], without_yield, RuntimeError, r"have not: write `yield stash\('x', tensor\)`"),
        ([], ["x"], nothing, RuntimeError, r"'x' must be popped .*: write `yield pop\('x'\)`"),
        ([], [], stashes_y, RuntimeError, "'y' has not been declared as stashable"),
        ([], [], pops_y, RuntimeError, "'y' has not been declared as poppable"),
        ([], [], yields_3, TypeError, "3 is neither a stash nor a pop"),
    ):
        with pytest.raises(error, match=text):
            call(stashes, pops, forward)


def test_153_each_thread_has_a_tracker():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(current_skip_tracker()))
    thread.start()
    thread.join()
    assert type(seen[0]) is SkipTracker and seen[0] is not current_skip_tracker()


@pytest.mark.parametrize(
    "layers, problems",
    [
        ([(["x"], []), ([], ["x"])], []),  # 159
        ([(["x"], [])], ["no module declared 'x' as poppable"]),  # 160
        ([([], ["x"])], ["'0' declared 'x' as poppable but it was not stashed"]),  # 161
        ([(["x"], []), (["x"], []), ([], ["x"])], ["'1' redeclared 'x' as stashable"]),  # 162
        ([(["x"], []), ([], ["x"]), ([], ["x"])], ["'2' redeclared 'x' as poppable"]),  # 163
        ([(["x"], []), (["y"], ["x"]), ([], ["y"])], []),  # 164
        ([(["x"], ["x"])], ["'0' declared 'x' both as stashable and as poppable"]),  # 165
        (
            [(["x"], []), ([], ["x"]), (["x"], []), ([], ["x"])],  # 166
            ["'2' redeclared 'x' as stashable", "'3' redeclared 'x' as poppable"],
        ),
    ],
)
def test_159_to_166_static_checks(layers, problems):
    model = nn.Sequential(*[layer(*names) for names in layers])
    if not problems:
        return verify_skippables(model)
    for check in (verify_skippables, lambda model: GPipe(model, [len(model)])):
        with pytest.raises(TypeError) as caught:
            check(model)
    with pytest.raises(TypeError) as caught:
        verify_skippables(model)
    assert all(problem in str(caught.value) for problem in problems)


def test_167_isolated_pairs():
    one, two = Namespace(), Namespace()
    model = nn.Sequential(
        layer(stashes=["x"]).isolate(one),
        layer(stashes=["x"]).isolate(two, only=["x"]),
        layer(pops=["x"]).isolate(two),
        layer(pops=["x"]).isolate(one),
    )
    verify_skippables(model)
    input = torch.randn(4, 1)
    for balance in ([4], [2, 2], [1, 1, 1, 1]):
        assert torch.equal(GPipe(model, balance, chunks=2)(input), model(input))


def test_a_skippable_module_inside_another_one():
    class Outer(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, input):
            return self.inner(input) + 1

    model = nn.Sequential(Outer(layer(stashes=["x"])), nn.Identity(), Outer(layer(pops=["x"])))
    input = torch.randn(4, 1, requires_grad=True)
    pipe = GPipe(model, [1, 1, 1], chunks=2, checkpoint="always")
    assert torch.equal(pipe(input), model(input))
    pipe(input).sum().backward()

    class Hides(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.hidden = [inner]

        def forward(self, input):
            return self.hidden[0](input)

    with pytest.raises(RuntimeError, match="without being one of its registered submodules"):
        GPipe(nn.Sequential(Hides(layer(stashes=["x"]))), [1])(input)


def test_modules_beside_and_with_skips_may_be_replaced():
    class Block(nn.Module):
        def __init__(self, skip):
            super().__init__()
            self.skip, self.act = skip, nn.ReLU()

        def forward(self, input):
            return self.act(self.skip(input))

    pipe = GPipe(
        nn.Sequential(Block(layer(stashes=["x"])), Block(layer(pops=["x"]))), [1, 1], chunks=2
    )
    input = torch.randn(4, 8, requires_grad=True)

    def check():
        plain = torch.cat([pipe[1](pipe[0](rows)) for rows in input.chunk(2)])
        output = pipe(input)
        assert torch.equal(output, plain)
        assert torch.equal(
            torch.autograd.grad(output.sum(), input)[0], torch.autograd.grad(plain.sum(), input)[0]
        )

    check()
    for k in range(20):
        pipe[0].act = nn.GELU() if k % 2 == 0 else nn.Tanh()
        check()
    waits = pipe(input)
    pipe[0].skip = layer(stashes=["x"])  # another module with skips: the pipeline is made again
    check()
    del waits
    pipe[0].act = nn.Sequential(nn.Tanh())
    check()
    pipe[0].skip = layer(stashes=["y"])
    for _ in range(2):
        with pytest.raises(TypeError, match="'y'"):
            pipe(input)
    pipe[0].skip = layer(stashes=["x"])
    check()


def test_only_tensors_are_stashed():
    @skippable(stash=["size"])
    class Stash(nn.Module):
        def forward(self, input):
            yield stash("size", input.shape)
            return input

    pipe = GPipe(nn.Sequential(Stash(), layer(pops=["size"])), [1, 1])
    with pytest.raises(TypeError, match="'size' was stashed as a Size: stash a Tensor or None"):
        pipe(torch.ones(1))

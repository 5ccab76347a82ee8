"""The smaller modules of gpipe.torchgpipe. The numbers are those of torchgpipe 0.0.7's cases."""

import threading
import weakref

import pytest
import torch
from torch import nn

from gpipe.torchgpipe import GPipe
from gpipe.torchgpipe.checkpoint import (
    Checkpointing, checkpoint, enable_checkpointing, enable_recomputing, is_checkpointing,
    is_recomputing,
)
from gpipe.torchgpipe.copy import Copy, Wait
from gpipe.torchgpipe.dependency import Fork, Join, fork, join
from gpipe.torchgpipe.microbatch import Batch, check, gather, scatter
from gpipe.torchgpipe.phony import get_phony
from gpipe.torchgpipe.pipeline import Pipeline, clock_cycles
from gpipe.torchgpipe.skip import Namespace, pop, skippable, stash
from gpipe.torchgpipe.skip.layout import SkipLayout, inspect_skip_layout
from gpipe.torchgpipe.skip.portal import Portal
from gpipe.torchgpipe.skip.tracker import SkipTrackerThroughPotals
from gpipe.torchgpipe.stream import (
    CPUStream, current_stream, default_stream, get_device, is_cuda, new_stream, record_stream,
    use_device, use_stream, wait_stream,
)
from gpipe.torchgpipe.worker import Task, spawn_workers


class Logs(torch.autograd.Function):
    """The identity, which writes down its passes."""

    @staticmethod
    def forward(context, log, name, input):
        context.log, context.name = log, name
        log.append(f"{name} forward")
        return input.detach()

    @staticmethod
    def backward(context, gradient):
        context.log.append(f"{context.name} backward")
        return None, None, gradient


def test_21_checkpoints_that_are_chained():
    log = []
    a, b = (torch.rand(1, requires_grad=True) for _ in range(2))
    a = checkpoint(lambda x: Logs.apply(log, "a", x), a)
    a, phony = fork(a)
    b = checkpoint(lambda x: Logs.apply(log, "b", x), join(b, phony))
    torch.cat((a, b)).sum().backward()
    again = ["b forward", "b backward", "a forward", "a backward"]
    assert log == ["a forward", "b forward"] + again


def test_22_23_only_a_parameter_requires_a_gradient():
    input, weight = Batch(torch.rand(1)), torch.rand(1, requires_grad=True)
    checkpointing = Checkpointing(lambda x: x * weight, input)
    output = checkpointing.checkpoint()
    assert output[0].requires_grad
    checkpointing.recompute(output)
    output.tensor.backward()
    assert torch.equal(weight.grad, input.tensor) and input.tensor.grad is None


def test_checkpoint_of_a_tuple():
    a, b = torch.rand(3, requires_grad=True), torch.rand(3)
    sum, shape = checkpoint(lambda x: (x[0] * x[1], torch.ones(2)), (a, b))
    sum.sum().backward()
    assert torch.equal(a.grad, b) and torch.equal(shape, torch.ones(2))


def test_24_a_recompute_draws_the_same():
    gradients = []
    for call in (lambda f, x: f(x), checkpoint):
        torch.manual_seed(0)
        input = torch.randn(8, 8, requires_grad=True)
        output = call(nn.Dropout(), input)
        torch.rand(1)
        output.norm().backward()
        gradients.append((input.grad, torch.rand(1)))
    assert torch.equal(gradients[0][0], gradients[1][0])
    assert torch.equal(gradients[0][1], gradients[1][1])  # as without checkpoints


def test_25_26_flags_outside_of_a_pipeline():
    seen = []

    def notes(input):
        seen.append((is_checkpointing(), is_recomputing()))
        return input * 1

    input = torch.rand(1, requires_grad=True)
    checkpoint(notes, input).backward()
    notes(input).backward()
    assert seen == [(True, False), (False, True), (False, False)]
    with enable_checkpointing(), enable_recomputing():
        assert is_checkpointing() and is_recomputing()
    assert not is_checkpointing() and not is_recomputing()


def test_40_fork_and_join():
    forked, phony = fork(torch.rand(1, requires_grad=True))
    assert type(forked.grad_fn) is type(phony.grad_fn) is Fork._backward_cls
    assert type(join(torch.rand(1), phony).grad_fn) is Join._backward_cls  # and 44
    input = torch.rand(1, requires_grad=True)
    with torch.no_grad():  # 41
        forked, phony = fork(input)
        assert forked is input and not phony.requires_grad and join(input, phony) is input
    plain = torch.rand(1)  # 43
    forked, phony = fork(plain)
    assert forked is plain and join(plain, phony) is plain


def test_42_no_leak():
    class Holds(torch.autograd.Function):
        @staticmethod
        def forward(context, input):
            return input.detach()

        @staticmethod
        def backward(context, gradient):
            return gradient

    input = torch.rand(1, requires_grad=True)
    output, phony = fork(Holds.apply(input))
    output = join(output, phony)
    held = weakref.ref(output)
    output.backward()
    del output, phony
    assert held() is None


def test_80_batch_of_a_tensor():
    x, y = torch.tensor(42), torch.tensor(21)
    batch = Batch(x)
    assert batch.atomic and batch.tensor is x and list(batch) == [x]
    assert len(batch) == 1 and batch[0] is x
    with pytest.raises(AttributeError):
        batch.tensors
    with pytest.raises(IndexError):
        batch[1]
    assert batch.call(lambda value: (value, y)).tensors == (x, y)  # 82
    batch[0] = y  # 83
    assert batch.atomic and batch.tensor is y
    batch[:] = (x,)  # 84
    assert batch.tensor is x
    with pytest.raises(IndexError):
        batch[:] = (x, y)


def test_81_batch_of_a_tuple():
    x, y = torch.tensor(42), torch.tensor(21)
    batch = Batch((x, y))
    assert not batch.atomic and batch.tensors == (x, y) and len(batch) == 2 and batch[1] is y
    with pytest.raises(AttributeError):
        batch.tensor
    batch[0] = y  # 83
    assert batch.tensors == (y, y)
    batch[:] = (x,)  # 84
    assert batch.tensors == (x,) and not batch.atomic


def test_85_check():
    check(torch.tensor(42))
    check((torch.tensor(4), torch.tensor(2)))
    for value in (42, "str", (torch.tensor(4), 2)):
        with pytest.raises(TypeError, match="expected Tensor, but got"):
            check(value)


def test_86_to_89_scatter_and_gather():
    a, b = torch.rand(2, 1), torch.rand(4, 2)
    assert [tuple(batch.tensor.shape) for batch in scatter(a, 2)] == [(1, 1), (1, 1)]
    shapes = [[tuple(tensor.shape) for tensor in batch] for batch in scatter((a, b), 2)]
    assert shapes == [[(1, 1), (2, 2)]] * 2
    assert torch.equal(gather(scatter(a, 2)), a)
    joined = gather(scatter((a, b), 2))
    assert isinstance(joined, tuple) and torch.equal(joined[0], a) and torch.equal(joined[1], b)


def test_90_to_92_phonies():
    cpu = torch.device("cpu")
    plain, trained = (get_phony(cpu, requires_grad=requires) for requires in (False, True))
    assert plain.shape == (0,) and not plain.requires_grad and trained.requires_grad
    assert get_phony(cpu, requires_grad=True) is trained is not plain


def test_94_clock_cycles():
    assert list(clock_cycles(1, 3)) == [[(0, 0)], [(0, 1)], [(0, 2)]]
    assert list(clock_cycles(3, 3)) == [
        [(0, 0)], [(1, 0), (0, 1)], [(2, 0), (1, 1), (0, 2)], [(2, 1), (1, 2)], [(2, 2)],
    ]
    assert list(clock_cycles(4, 2))[-2:] == [[(3, 0), (2, 1)], [(3, 1)]]


def stashes(name):
    @skippable(stash=[name])
    class Stashes(nn.Module):
        def forward(self, input):
            yield stash(name, input)
            return input * 2

    return Stashes()


def pops(name):
    @skippable(pop=[name])
    class Pops(nn.Module):
        def forward(self, input):
            skip = yield pop(name)
            return input + skip

    return Pops()


def test_128_to_133_layouts_of_skips():
    def copies(*partitions):
        layout = inspect_skip_layout([nn.Sequential(*layers) for layers in partitions])
        return [list(layout.copy_policy(number)) for number in range(len(partitions))]

    other = nn.Identity()
    assert copies([other], [other]) == [[], []]
    assert copies([stashes("a"), pops("a")], [other]) == [[], []]
    assert copies([stashes("a")], [pops("a")]) == [[], [(0, None, "a")]]
    assert copies([stashes("a")], [other], [pops("a")]) == [[], [], [(0, None, "a")]]
    both = copies([stashes("a")], [stashes("b")], [pops("b"), pops("a")])
    assert both == [[], [], [(0, None, "a"), (1, None, "b")]]
    one, two = Namespace(), Namespace()
    apart = copies(
        [stashes("a").isolate(one)], [stashes("a").isolate(two)],
        [pops("a").isolate(two), pops("a").isolate(one)],
    )
    assert apart == [[], [], [(0, one, "a"), (1, two, "a")]]


@pytest.mark.parametrize("mode", ["always", "except_last", "never"])
def test_hooks_of_partitions_are_called(mode):
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Linear(4, 4), stashes("a"), nn.Tanh(), pops("a"), nn.Linear(4, 4)
    )
    pipe = GPipe(model, [2, 3, 1], chunks=3, checkpoint=mode)
    input = torch.rand(6, 4)
    output = pipe(input)
    output.sum().backward()
    expected = [parameter.grad.clone() for parameter in pipe.parameters()]
    pipe.zero_grad()

    seen = []
    pipe.partitions[1].register_forward_pre_hook(lambda *_: seen.append("before"))
    pipe.partitions[1].register_forward_hook(lambda *_: seen.append("after"))
    pipe.partitions[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    hooked = pipe(input)
    assert torch.equal(hooked, output) and seen == ["before", "after"] * 3
    hooked.sum().backward()
    assert all(torch.equal(p.grad, e) for p, e in zip(pipe.parameters(), expected))
    again = {"always": 3, "except_last": 2, "never": 0}[mode]
    assert seen.count("backward") == 3 and seen.count("before") == 3 + again
    assert len(pipe) == 6 and pipe.balance == [2, 3, 1]


def test_27_31_copies_and_waits():
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
    outputs = Wait.apply(CPUStream, CPUStream, *Copy.apply(CPUStream, CPUStream, a, b))
    assert outputs[0].grad_fn is outputs[1].grad_fn
    (outputs[0] * 2 + outputs[1] * 3).sum().backward()
    assert torch.equal(a.grad, 2 * torch.ones(3)) and torch.equal(b.grad, 3 * torch.ones(3))


def test_96_to_112_streams_of_the_cpu():
    cpu = torch.device("cpu")
    assert all(make(cpu) is CPUStream for make in (new_stream, current_stream, default_stream))
    assert get_device(CPUStream) == cpu and not is_cuda(CPUStream)
    with use_device(cpu), use_stream(CPUStream):
        wait_stream(CPUStream, CPUStream)
        record_stream(torch.rand(1), CPUStream)


def test_116_to_122_workers():
    class Device:  # each is another one
        type, index = "fake", None

    def numbers_of_threads(devices):
        with spawn_workers(devices) as (in_queues, out_queues):
            for queue in in_queues:
                queue.put(Task(CPUStream, compute=lambda: threading.get_ident(), finalize=None))
            return [queue.get()[1][1] for queue in out_queues]

    cpu = torch.device("cpu")
    assert len(set(numbers_of_threads([Device(), Device()]))) == 2
    assert len(set(numbers_of_threads([cpu, torch.device("cpu", 0)]))) == 1

    done = []
    with pytest.raises(KeyError):
        with torch.no_grad(), spawn_workers([cpu]) as (in_queues, out_queues):
            task = Task(CPUStream, compute=lambda: 1 // 0, finalize=None)
            in_queues[0].put(task)
            answered, information = out_queues[0].get()
            assert not answered and information[0] is ZeroDivisionError
            for _ in range(3):
                compute = lambda: done.append(torch.is_grad_enabled())  # noqa: E731
                in_queues[0].put(Task(CPUStream, compute=compute, finalize=None))
            raise KeyError
    assert done == [False] * 3  # what was put in is finished, in the caller's mode


def test_136_to_145_portals():
    main, skipped = (torch.rand(1, requires_grad=True) for _ in range(2))
    portal = Portal(skipped, tensor_life=2)
    joined, phony = fork(join(main, portal.blue()))
    (joined * 2 + portal.orange(phony)).backward()
    assert main.grad.item() == 2 and skipped.grad.item() == 1
    assert portal.tensor is None
    for use in (portal.check_tensor_life, portal.blue, portal.use_grad):
        with pytest.raises(RuntimeError, match="has been removed"):
            use()
    portal.put_tensor(None, 2)
    assert not portal.blue().requires_grad and portal.orange(phony) is None


def test_155_to_158_trackers():
    routes = {(None, "far"): (0, 1), (None, "near"): (0, 0)}
    batch = Batch(torch.ones(1))
    for again in (False, True):
        tracker = SkipTrackerThroughPotals(SkipLayout(2, routes))
        with enable_checkpointing() if again else torch.enable_grad():
            for name in ("far", "near"):
                tracker.save(batch, None, name, torch.ones(1))
            assert list(tracker.portals) == [(None, "far")]
            assert list(tracker.tensors) == [(None, "near")]
            portal = tracker.portals[None, "far"]
            assert portal.tensor_life == (2 if again else 1)
            tracker.load(batch, None, "far")
        if again:
            with enable_recomputing():
                tracker.load(batch, None, "far")
                tracker.save(batch, None, "far", torch.ones(1))
        assert portal.tensor_life == 0 and tracker.portals[None, "far"] is portal
        with pytest.raises(KeyError):
            tracker.load(batch, None, "unknown")


@pytest.mark.parametrize("checkpoint_stop", [0, 2, 3])
def test_95_the_plain_pipeline_gives_what_gpipe_gives(checkpoint_stop):
    model = nn.Sequential(
        nn.Linear(4, 4), stashes("a"), nn.Dropout(0.0), nn.Linear(4, 4), pops("a"), nn.Tanh()
    )
    input = torch.rand(6, 4)
    output = GPipe(model, [2, 2, 2], chunks=3)(input)
    output.sum().backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    ticks = []
    model[0].register_forward_pre_hook(lambda *_: ticks.append("first"))
    model[5].register_forward_pre_hook(lambda *_: ticks.append("last"))
    batches = scatter(input, 3)
    partitions = [model[0:2], model[2:4], model[4:6]]
    Pipeline(batches, partitions, checkpoint_stop=checkpoint_stop).run()
    assert ticks == ["first"] * 3 + ["last"] * 3
    assert torch.equal(gather(batches), output)
    gather(batches).sum().backward()
    assert len(ticks) == 6 + 2 * checkpoint_stop
    assert all(torch.equal(p.grad, e) for p, e in zip(model.parameters(), expected))


def test_the_plain_pipeline_raises_what_a_layer_raises():
    class Fails(nn.Module):
        def forward(self, input):
            raise KeyError("mine")

    before = threading.active_count()
    with pytest.raises(KeyError, match="mine"):
        Pipeline(scatter(torch.rand(4, 1), 2), [nn.Sequential(Fails())]).run()
    assert threading.active_count() == before

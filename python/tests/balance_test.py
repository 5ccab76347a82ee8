"""gpipe.balance: profiles, balances and plans of Python's modules."""

import copy
import time

import pytest
import torch
from torch import nn

from gpipe import GPipe, balance


class Sleeps(nn.Module):
    """Takes this long forward; its backward takes no time."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, input):
        time.sleep(self.seconds)
        return input * self.weight


def model_of(hidden=64):
    return nn.Sequential(
        nn.Linear(8, hidden), nn.ReLU(), nn.BatchNorm1d(hidden), nn.Linear(hidden, hidden),
        nn.Dropout(), nn.Linear(hidden, 4),
    )


def test_profile(tmp_path):
    model = model_of().eval()
    before = copy.deepcopy(model.state_dict())
    profile = balance.profile(model, torch.rand(16, 8), timeout=0.1, name="mine")
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())

    first, *_, last = profile.layers
    assert len(profile.layers) == 6 and profile.rows == 16 and "6 layers" in repr(profile)
    assert first.parameters == (8 * 64 + 64) * 4 and first.output == 16 * 64 * 4
    assert first.forward > 0 and first.backward > 0 and last.input_gradient > 0
    assert profile.layers[2].buffers == 64 * 4 * 2 + 8
    profile.save(tmp_path / "profile.json")
    assert balance.Profile.load(tmp_path / "profile.json").layers == profile.layers
    with pytest.raises(ValueError, match="not the text of a profile"):
        balance.Profile("{}")
    few = balance.profile(model, torch.rand(16, 8), rows=4, timeout=0.05, split=False)
    assert few.rows == 4 and few.layers[0].input_gradient is None


def test_layers_run_in_training_mode():
    modes = []

    class Tells(nn.Module):
        def forward(self, input):
            modes.append(self.training)
            return input * 1

    model = nn.Sequential(nn.Linear(4, 4), Tells(), nn.Linear(4, 4)).eval()
    model[0].train()
    sample = torch.rand(4, 4)
    with torch.device("meta"):
        on_meta = nn.Sequential(nn.Linear(4, 4), Tells(), nn.Linear(4, 4)).eval()
        meta_sample = torch.empty(4, 4)
    for call in (
        lambda: balance.profile(model, sample, timeout=0.01),
        lambda: balance.balance_by_time(2, model, sample, timeout=0.01),
        lambda: balance.balance_by_size(2, model, sample),
        lambda: balance.plan(model, sample, devices=2, chunks=[2], timeout=0.01),
        lambda: balance.memory_plan(on_meta, meta_sample, balance=[2, 1]),
        lambda: balance.fit(on_meta, meta_sample, memory=[2**30] * 2),
    ):
        modes.clear()
        call()
        assert modes and all(modes)
        assert [layer.training for layer in model] == [True, False, False]


def test_balances():
    model = nn.Sequential(*[Sleeps(seconds) for seconds in (0.01, 0.01, 0.01, 0.1)])
    assert balance.balance_by_time(2, model, torch.rand(2, 1), timeout=0.1) == [3, 1]
    slow = balance.balance_by_time(2, model, torch.rand(2, 1), timeout=0.1, slowness=[1, 0.01])
    assert slow == [1, 3] or slow == [3, 1]
    growing = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 400))
    assert balance.balance_by_size(2, growing, torch.rand(2, 4)) == [2, 1]
    with pytest.raises(ValueError, match="partitions"):
        balance.balance_by_time(5, model, torch.rand(2, 1))
    with pytest.raises(TypeError, match="nn.Sequential of layers, not Linear"):
        balance.balance_by_time(1, nn.Linear(1, 1), torch.rand(1, 1))
    pipe = GPipe(growing, [2, 1])
    with pytest.raises(TypeError, match=r"not GPipe: give nn.Sequential\(\*pipe\)"):
        balance.balance_by_size(2, pipe, torch.rand(2, 4))
    assert balance.balance_by_size(2, nn.Sequential(*pipe), torch.rand(2, 4)) == [2, 1]


def test_a_layer_that_fails():
    class Fails(nn.Module):
        def forward(self, input):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        balance.profile(nn.Sequential(nn.Linear(1, 1), Fails()), torch.rand(1, 1))


def test_plan(tmp_path):
    model = model_of()
    sample = torch.rand(32, 8)
    profiles = [balance.profile(model, sample, rows=rows, timeout=0.05) for rows in (4, 8)]
    planned = balance.plan(
        model, sample, devices=2, chunks=[4, 8], profiles=profiles, optimizer="adam"
    )
    assert planned.problems == [] and planned.step >= planned.lower_bound > 0
    options = planned.options
    assert sum(options["balance"]) == 6 and options["chunks"] in (4, 8)
    # These may be given beside them.
    assert "shared_inputs" not in options and "deferred_batch_norm" not in options
    assert planned.schedule.micro_batches == options["chunks"]
    assert "The next best" in str(planned) or "schedule" in str(planned)
    planned.save(tmp_path / "plan.json")
    pipe = GPipe(model, **options)
    loss = pipe.step(sample, torch.rand(32, 4), nn.functional.mse_loss, schedule=planned.schedule)
    assert loss.loss > 0
    with pytest.raises(ValueError, match="fits"):
        balance.plan(model, sample, devices=2, memory=1000, chunks=[4], profiles=profiles[1:])
    with pytest.raises(ValueError, match="'tpu'"):
        balance.plan(model, sample, devices=2, device_type="tpu")


class AddsAll(nn.Module):
    """Adds a table's rows up, which gives something else, and no error, for a part of the rows."""

    def forward(self, values):
        rows, table = values
        return rows + table.sum(0)


def with_a_table():
    return nn.Sequential(AddsAll(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def check_that_a_pipeline_keeps_both(options):
    """The pipeline's loss is that of micro-batches with the whole table each, and its norm has the
    running statistics of the whole mini-batch."""
    assert options["shared_inputs"] == [1] and options["deferred_batch_norm"] is True
    plain, whole = with_a_table(), with_a_table()
    whole.load_state_dict(plain.state_dict())
    pipe = GPipe(copy.deepcopy(plain), **options)
    rows, table = torch.rand(32, 8), torch.rand(32, 8)
    loss = pipe.step((rows, table), None, lambda output: output.square().mean())
    losses = [plain((part, table)).square().mean().item() for part in rows.chunk(4)]
    assert loss.loss == pytest.approx(sum(losses) / 4, rel=1e-5)
    whole((rows, table))
    assert torch.allclose(pipe[2].running_mean, whole[2].running_mean, rtol=1e-5)
    assert pipe[2].num_batches_tracked == 1


def test_shared_inputs_and_deferred_norms_are_in_the_options_of_a_plan():
    sample = (torch.rand(32, 8), torch.rand(32, 8))
    given = {"shared_inputs": [1], "deferred_batch_norm": True}
    profile = balance.profile(with_a_table(), sample, rows=8, timeout=0.05, **given)
    planned = balance.plan(
        with_a_table(), sample, devices=2, chunks=[4], profiles=[profile], **given
    )
    check_that_a_pipeline_keeps_both(planned.options)
    for wrong, message in (
        ({"shared_inputs": [1]}, "give deferred_batch_norm=True"),
        ({"deferred_batch_norm": True}, r"shares the inputs \(1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            balance.plan(
                with_a_table(), sample, devices=2, chunks=[4], profiles=[profile], **wrong
            )


def test_shared_inputs_and_deferred_norms_are_in_the_options_of_a_fit():
    with torch.device("meta"):
        model = with_a_table()
        input = (torch.empty(32, 8), torch.empty(32, 8))
    found = balance.fit(
        model, input, memory=[2**30] * 2, chunks=[4], shared_inputs=[1], deferred_batch_norm=True
    )
    assert found.fits
    check_that_a_pipeline_keeps_both(found.options)


def test_an_input_that_is_shared_is_not_cut():
    """A mask of one row, which no function here can cut into micro-batches."""

    class Masked(nn.Module):
        def forward(self, values):
            return values[0] * values[1]

    def make():
        return nn.Sequential(Masked(), nn.Linear(8, 8), nn.Linear(8, 8))

    sample = (torch.rand(16, 8), torch.rand(1, 8))
    with torch.device("meta"):
        on_meta, meta_sample = make(), (torch.empty(16, 8), torch.empty(1, 8))
    for call in (
        lambda **more: balance.profile(make(), sample, rows=4, timeout=0.01, **more),
        lambda **more: balance.balance_by_time(2, make(), sample, timeout=0.01, **more),
        lambda **more: balance.balance_by_size(2, make(), sample, **more),
        lambda **more: balance.plan(make(), sample, devices=2, chunks=[4], timeout=0.01, **more),
        lambda **more: balance.memory_plan(on_meta, meta_sample, balance=[2, 1], chunks=4, **more),
        lambda **more: balance.fit(on_meta, meta_sample, memory=[2**30] * 2, **more),
    ):
        call(shared_inputs=[1])
        with pytest.raises(ValueError, match="shared_inputs"):
            call()
        for wrong in ([-1], [1, 1]):
            with pytest.raises(ValueError, match="shared_inputs must be numbers of inputs"):
                call(shared_inputs=wrong)
        with pytest.raises(TypeError, match="each of shared_inputs must be an int, not bool"):
            call(shared_inputs=[True])


def test_memory_plan_on_meta():
    with torch.device("meta"):
        model = nn.Sequential(
            nn.Linear(1000, 4000), nn.ReLU(), nn.Linear(4000, 4000), nn.Linear(4000, 10)
        )
        input, target = torch.empty(64, 1000), torch.empty(64, 10)
    planned = balance.memory_plan(
        model, input, target, nn.functional.mse_loss, balance=[2, 2], chunks=4, optimizer="adam"
    )
    first, second = planned.devices
    assert first.parameters == (1000 * 4000 + 4000) * 4 == first.gradients
    assert first.optimizer_state >= 2 * first.parameters and first.buffers == 0
    assert first.peak > 4 * first.parameters and second.parameters > first.parameters
    assert str(planned) == repr(planned) != ""
    with pytest.raises(ValueError, match="meta"):
        balance.memory_plan(nn.Sequential(nn.Linear(1, 1)), torch.rand(1, 1), balance=[1])


def test_fit():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(1000, 1000) for _ in range(6)])
        input, target = torch.empty(64, 1000), torch.empty(64, 1000)
    loss = nn.functional.mse_loss
    enough = balance.fit(model, input, target, loss, memory=[2**30, 2**30], optimizer="adam")
    assert enough.fits and enough.limit == "" and sum(enough.balance) == 6
    assert len(enough.balance) == 2 == len(enough.plan.devices)
    assert enough.step > 0 and all(need <= room for need, room in zip(enough.needed, enough.room))
    assert (enough.shared_inputs, enough.deferred_batch_norm) == ([], False)
    assert str(enough).startswith("The model fits: balance [") and repr(enough) == str(enough)

    # Parameters, gradients and Adam's moments of a layer take 16 MB.
    less = balance.fit(
        model, input, target, loss, memory=[40 * 2**20, 120 * 2**20], optimizer="adam",
        chunks=[4], checkpoints=["always"],
    )
    assert less.balance[0] < less.balance[1] and (less.chunks, less.checkpoint) == (4, "always")
    few = balance.fit(model, input, target, loss, memory=[2**25] * 2, optimizer="adam", margin=2**20)
    assert not few.fits and "needs" in few.limit and few.room == [2**25 - 2**20] * 2
    assert str(few).startswith("The model does not fit. Nearest is balance [")

    with pytest.raises(ValueError, match="devices"):
        balance.fit(model, input, target, loss, memory=[])
    with pytest.raises(ValueError, match="margin"):
        balance.fit(model, input, target, loss, memory=[2**20] * 2, margin=2**21)
    with pytest.raises(ValueError, match=r"2 stages on 1 device, and .* or call plan\(\), which"):
        balance.fit(model, input, target, loss, memory=[2**30] * 2, schedule="zb-v")
    with pytest.raises(ValueError, match="'sometimes'"):
        balance.fit(model, input, target, loss, memory=[2**30], checkpoints=["sometimes"])
    with pytest.raises(ValueError, match="meta"):
        balance.fit(nn.Sequential(nn.Linear(1, 1)), torch.rand(1, 1), memory=[2**30])


@pytest.mark.parametrize("track", [True, False])
def test_by_default_no_batch_norm_gets_a_single_row(track):
    def make():
        return nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8, track_running_stats=track), nn.Linear(8, 4)
        )

    with torch.device("meta"):
        found = balance.fit(make(), torch.empty(8, 8), memory=[2**30] * 2)
    assert found.fits and found.chunks <= 4
    assert balance.plan(make(), torch.rand(8, 8), devices=2, timeout=0.1).options["chunks"] <= 4

"""gpipe.schedule: schedules as values."""

import copy
import math
import os
import pickle
import signal
import threading
import time

import pytest
import torch
from torch import nn

import gpipe
from gpipe import schedule
from gpipe.schedule import Action, Costs, Schedule

TABLE = """stages 2
micro_batches 4
worker 0: F0.0 F0.1 I0.0 F0.2 W0.0 I0.1 F0.3 W0.1 I0.2 W0.2 I0.3 W0.3
worker 1: F1.0 I1.0 F1.1 W1.0 I1.1 F1.2 W1.1 I1.2 F1.3 W1.2 I1.3 W1.3
"""


def test_text():
    table = schedule.parse(TABLE)
    assert str(table) == TABLE and schedule.parse(str(table)) == table
    assert (table.stages, table.micro_batches, len(table.workers)) == (2, 4, 2)
    assert table.workers[0][2] == Action("I", 0, 0) and str(table.workers[0][2]) == "I0.0"
    assert table.worker_of_stage == [0, 1]
    assert repr(table) == "<Schedule: 2 stages, 4 micro-batches, 2 workers>"
    assert Schedule(2, 4, table.workers) == table != schedule.by_name("1f1b", 2, 4)
    assert table != TABLE and len({table, schedule.parse(TABLE)}) == 1
    assert pickle.loads(pickle.dumps(table)) == copy.deepcopy(table) == table


def test_wrong_texts():
    with pytest.raises(ValueError, match="line 3.*F0"):
        schedule.parse("stages 1\nmicro_batches 1\nworker 0: F0")
    with pytest.raises(ValueError, match="stage"):
        Schedule(1, 1, [["F1.0"]])
    with pytest.raises(ValueError, match="1f1b"):
        schedule.by_name("1f1", 2, 4)


def test_names():
    assert schedule.names() == gpipe.schedule_names()
    looped = schedule.by_name("interleaved", 8, 4, stages_per_worker=4)
    assert looped.worker_of_stage == schedule.loop(2, 4)
    assert schedule.by_name("zb-v", 8, 4).worker_of_stage == schedule.v_shape(4)
    assert schedule.by_name("1f1b", 3, 4).worker_of_stage == schedule.one_each(3)


def test_csv():
    table = schedule.from_csv("0F0,0B0\n1F0,1B0\n")
    assert table == Schedule(2, 1, [["F0.0", "B0.0"], ["F1.0", "B1.0"]])
    with pytest.raises(ValueError, match="SEND"):
        schedule.from_csv("0F0,0SEND_X0\n")


def test_verify():
    facts = schedule.by_name("1f1b", 4, 8).verify()
    assert facts.peak_live == [4, 3, 2, 1] and facts.makespan == 22 and facts.ascending
    assert facts.bubble == pytest.approx(3 / 11) and facts.receives_ahead == {}
    ahead = schedule.parse(TABLE).verify("posted ahead").receives_ahead
    assert set(ahead) == {(0, 1), (1, 0)}
    stuck = Schedule(2, 2, [["F0.0", "B0.0", "F0.1", "B0.1"], ["F1.1", "B1.1", "F1.0", "B1.0"]])
    with pytest.raises(ValueError, match="F1.1"):
        stuck.verify()
    with pytest.raises(ValueError, match="'none'"):
        stuck.verify("none")


def test_draw():
    table = schedule.by_name("1f1b", 2, 3)
    assert table.draw() == "0: F0 F1 .. B0 F2 B1 .. B2\n1: .. F0 B0 F1 B1 F2 B2 ..\n"
    assert "B0--" in table.draw(backward=2)
    with pytest.raises(ValueError, match="0"):
        table.draw(forward=0)
    picture = table.svg(title="mine")
    assert picture.startswith("<svg") and picture.count("<rect") == 12 and "mine" in picture
    assert table._repr_svg_().startswith("<svg")


def test_simulate():
    run = schedule.by_name("gpipe", 4, 8).simulate(Costs(1.0, 2.0))
    assert run.makespan == (8 + 4 - 1) * 3.0 and run.busy == [24.0] * 4
    assert run.workers[3][0] == (Action("F", 3, 0), 3.0, 4.0)
    assert run.bubble == pytest.approx(3 / 11) and "makespan=33" in repr(run)
    # As chapter 23 says, this table takes 14 units of time, and 1F1B takes 15.
    assert schedule.parse(TABLE).simulate().makespan == 14
    assert schedule.by_name("1f1b", 2, 4).simulate().makespan == 15
    slower = schedule.by_name("1f1b", 2, 4).simulate([Costs(), Costs(2.0, 4.0)], transfer=0.5)
    assert slower.makespan > 15
    with pytest.raises(ValueError, match="3 costs for 2 stages"):
        schedule.parse(TABLE).simulate([Costs()] * 3)
    with pytest.raises(ValueError):
        schedule.parse(TABLE).simulate(transfer=-1.0)


def test_relabel():
    descending = Schedule(1, 2, [["F0.1", "B0.1", "F0.0", "B0.0"]])
    assert not descending.verify().ascending
    assert descending.relabeled() == Schedule(1, 2, [["F0.0", "B0.0", "F0.1", "B0.1"]])


def test_compare():
    rows = schedule.compare(
        4, 8, Costs(1.0, 1.8, 1.1, 0.7), transfer=0.1, memory=4, budget=100_000
    )
    best = rows[0]
    assert best.fits and best.makespan == min(row.makespan for row in rows if row.fits)
    names = [row.name for row in rows]
    assert {"1f1b", "zb-v", "interleaved x4", "search in a V"} <= set(names)
    assert not next(row for row in rows if row.name == "fill-drain").fits
    assert "does not fit" in str(rows) and repr(rows) == str(rows)
    assert rows.svg().count("<text") == len(rows)
    assert best.schedule.simulate(
        Costs(*(cost / (best.schedule.stages // 4) for cost in (1.0, 1.8, 1.1, 0.7))), 0.1
    ).makespan == pytest.approx(best.makespan)
    plain = schedule.compare(2, 4, search=False)
    assert not any(row.name.startswith("search") for row in plain)
    assert all(row.fits for row in plain) and math.isfinite(plain[0].slack)
    with pytest.raises(ValueError, match="slowness"):
        schedule.compare(2, 4, slowness=[1.0])
    with pytest.raises(ValueError, match="memory"):
        schedule.compare(2, 4, memory=0)


def test_search():
    costs = Costs(1.0, 1.7, 1.1, 0.7)
    found = schedule.search(
        schedule.v_shape(4), 8, costs, memory_limit=8.0, budget=200_000, activation_transfer=0.1
    )
    assert found.schedule.verify().ascending and max(found.peak) <= 8.0
    assert found.makespan == pytest.approx(found.schedule.simulate(costs, 0.1).makespan)
    assert 0 <= found.gap < 0.2 and found.lower_bound <= found.makespan
    assert found.origin in ("search", *schedule.names())
    with pytest.raises(ValueError, match="objective"):
        schedule.search([0, 1], 4, objective="speed")
    with pytest.raises(ValueError):
        schedule.search([0, 1], 4, memory_limit=0.5)


def test_ctrl_c_ends_a_search():
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        schedule.search(
            schedule.v_shape(8), 64, Costs(1.0, 1.7, 1.1, 0.7), activation_transfer=0.1,
            memory_limit=9.6, budget=100_000_000_000,
        )
    assert time.monotonic() - begin < 10


def test_a_step_runs_one():
    model = gpipe.GPipe(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1, 1], chunks=4)
    input, target = torch.rand(8, 4), torch.rand(8, 4)
    losses = []
    for given in (schedule.parse(TABLE), TABLE, "1f1b"):
        model.zero_grad()
        losses.append(model.step(input, target, nn.functional.mse_loss, schedule=given).loss)
        gradient = model[0].weight.grad
    assert losses[0] == losses[1] == losses[2] and gradient is not None
    wrong = schedule.by_name("1f1b", 3, 4)
    with pytest.raises(ValueError, match="stages"):
        model.step(input, target, nn.functional.mse_loss, schedule=wrong)

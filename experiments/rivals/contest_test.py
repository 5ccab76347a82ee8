#!/usr/bin/env python3
"""contest.py with made-up programs: turns, failures, and Ctrl-C."""

import os
import pathlib
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cells
import contest

# A program that answers as a side does. Its arguments are the file of its log, its name, its loss,
# and Python code that it runs before each answer. The code may fill `more`, which is added to the
# answers of steps.
PROGRAM = """
import json, os, sys, time
log, name, loss, before = sys.argv[1:]
more = {}
def say(answer): print(json.dumps(answer), flush=True)
say({"parameters": 10, "version": "v1", "balance": [1, 2]})
for line in sys.stdin:
    open(log, "a").write(name + " " + line)
    exec(before)
    if line == "check\\n": say({"loss": float(loss), "gradient": 2.0})
    else: say({"seconds": [0.5, 0.25, 0.75][:int(line.split()[1])], "peak_bytes": 1000, **more})
"""


class ContestTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = pathlib.Path(self.folder.name, "log")
        self.cell = cells.Cell(cells.NETWORKS["tiny"][0], 2, "never")

    def contestant(self, who, loss="1.0", before="pass", **more):
        command = [sys.executable, "-c", PROGRAM, str(self.log), who, loss, before]
        return cells.Contestant(who, command, note="as it is", **more)

    def hold(self, *contestants, timeout=20.0, rounds=2):
        rows, interrupted = contest.hold(self.cell, contestants, rounds, 3, timeout)
        self.assertEqual([row["who"] for row in rows], [contestant.who for contestant in contestants])
        return rows, interrupted

    def test_files_that_a_program_leaves_are_removed(self):
        leaves = "import tempfile; open(log, 'a').write(tempfile.mkdtemp() + '\\n')"
        self.hold(self.contestant("a", before=leaves))
        left = [line for line in self.log.read_text().splitlines() if line.startswith("/")]
        self.assertTrue(left)
        self.assertFalse([path for path in left if os.path.exists(path)])

    def test_programs_take_turns_and_medians_are_of_all_steps(self):
        rows, interrupted = self.hold(self.contestant("a"), self.contestant("b", loss="1.0000001"))
        self.assertFalse(interrupted)
        self.assertEqual(rows[1], {"network": "U-Net (1, 2)", "stages": 2, "mode": "never", "who": "b",
                                   "version": "v1", "step_seconds": 0.5, "round_seconds": [0.5, 0.5],
                                   "peak_bytes": 1000, "note": "as it is"})
        turns = [line for line in self.log.read_text().splitlines() if line.endswith("steps 3")]
        self.assertEqual(turns, ["a steps 3", "b steps 3"] * 2)

    def test_a_program_warms_up_for_as_many_steps_as_it_needs(self):
        self.hold(self.contestant("a"), self.contestant("b", warm_up=6), rounds=1)
        self.assertEqual(self.log.read_text().splitlines(),
                         ["a check", "a steps 1", "b check", "b steps 6", "a steps 3", "b steps 3"])

    def test_what_a_program_remarks_last_is_noted(self):
        remarks = "more = {'remark': 'no graphs' if line == 'steps 1\\n' else '8 graphs'}"
        dies = "sys.exit('no memory') if 'remark' in more else None; more = {'remark': '8 graphs'}"
        rows, _ = self.hold(self.contestant("a", before=remarks), self.contestant("dies", before=dies))
        self.assertEqual([row["note"] for row in rows], ["as it is, 8 graphs", "no memory"])

    def test_one_that_fails_says_why_and_the_rest_goes_on(self):
        rows, _ = self.hold(
            self.contestant("dies", before="sys.exit('torch is missing')"),
            self.contestant("is killed", before="os.kill(os.getpid(), 9)"),
            self.contestant("dies later", before="sys.exit(3) if line == 'steps 3\\n' else None"),
            self.contestant("talks", before="print('hello', flush=True)"),
            cells.Contestant("is not there", ["/nowhere/python"]),
            cells.Contestant("was left out", reason="nobody gave it"),
            self.contestant("works"))
        self.assertEqual([row["note"] for row in rows],
                         ["torch is missing", "was killed; is there enough memory?", "ended with exit code 3",
                          "answered 'hello', which is not JSON", "did not start: No such file or directory",
                          "nobody gave it", "as it is"])
        self.assertEqual([row["step_seconds"] for row in rows], [None] * 6 + [0.5])

    def test_one_that_hangs_is_given_up(self):
        rows, _ = self.hold(self.contestant("hangs", before="time.sleep(60)"), self.contestant("works"), timeout=8.0)
        self.assertEqual(rows[0]["note"], "no answer in 8 s")
        self.assertEqual(rows[1]["step_seconds"], 0.5)

    def test_other_work_is_refused_and_not_timed(self):
        rows, _ = self.hold(self.contestant("a"), self.contestant("b", loss="1.01"),
                            self.contestant("c", loss="nan"), self.contestant("plain", loss="7", **{}))
        self.assertEqual(rows[1]["note"], "another result: loss 1.01, not 1")
        self.assertIn("loss nan", rows[2]["note"])
        self.assertIsNone(rows[3]["step_seconds"])
        plain = self.contestant("plain", loss="7")
        plain.loss = False
        self.assertEqual(self.hold(self.contestant("a"), plain)[0][1]["step_seconds"], 0.5)

    def test_ctrl_c_keeps_what_was_measured(self):
        def stop(text):
            if text == "round 2/5, b":
                raise KeyboardInterrupt
        rows, interrupted = contest.hold(self.cell, [self.contestant("a"), self.contestant("b")], 5, 3, 20.0, stop)
        self.assertTrue(interrupted)
        self.assertEqual([row["note"] for row in rows],
                         ["interrupted after 6 steps; as it is", "interrupted after 3 steps; as it is"])
        self.assertEqual(rows[0]["step_seconds"], 0.5)

    def test_what_a_program_started_ends_with_it(self):
        note = pathlib.Path(self.folder.name, "child")
        before = ("import subprocess\nif line == 'check\\n': "
                  f"open({str(note)!r}, 'w').write(str(subprocess.Popen(['sleep', '1000']).pid))")
        self.hold(self.contestant("parent", before=before))
        state = pathlib.Path("/proc", note.read_text(), "stat")

        def runs():
            try:
                return state.read_text().split()[2] != "Z"
            except (FileNotFoundError, ProcessLookupError):
                return False
        end = time.monotonic() + 10  # A killed process does not end at once.
        while runs() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertFalse(runs(), "the child still runs")


class CellsTest(unittest.TestCase):
    def names(self, cell, python="python", cores=2, **more):
        return {each.who: each for each in cells.contestants(cell, ["ours"], python, "sides", cores, **more)}

    def names_on_gpu(self, stages, mode, python="python"):
        cell = cells.Cell(cells.NETWORKS["gpu"][3], stages, mode)
        return {each.who: each for each in cells.contestants_on_gpu(cell, ["run.sh", "ours"], python, "sides", 16)}

    def test_every_cut_has_its_stages(self):
        for scale, networks in cells.NETWORKS.items():
            for network in networks:
                sums = {sum(balance) for balance in network.cuts.values()}
                self.assertEqual(len(sums), 1, network.name)
                self.assertEqual(list(network.cuts), cells.stages_of(scale))
                self.assertEqual([len(balance) for balance in network.cuts.values()], cells.stages_of(scale))
                self.assertGreater(min(map(min, network.cuts.values())), 0)

    def test_every_network_of_a_scale_has_a_word_of_its_own(self):
        for networks in cells.NETWORKS.values():
            self.assertEqual(len({network.word for network in networks}), len(networks))
        self.assertEqual([network.word for network in cells.NETWORKS["gpu"]],
                         ["unet", "amoebanetd", "resnet", "gpt2", "gpt2_256"])

    def test_all_train_the_same(self):
        cell = cells.Cell(cells.NETWORKS["small"][2], 2, "never")
        found = self.names(cell)
        self.assertEqual(len(found), 8)
        for who in ("ours", "torchgpipe", f"{cells.PIPELINING} 1F1B"):
            self.assertIn("--balance=42,9", found[who].command)
            self.assertIn("--threads=1", found[who].command)
            self.assertIn("--checkpoint=never", found[who].command)
        for who in ("ours, all cores", "torchgpipe, all cores"):
            self.assertIn("--threads=2", found[who].command)
        self.assertIn("--schedule=sequential", found["ours, all cores"].command)

    def test_one_stage_has_all_cores(self):
        found = self.names(cells.Cell(cells.NETWORKS["small"][0], 1, "never"))
        self.assertIn("--threads=2", found["ours"].command)
        self.assertNotIn("torchgpipe, all cores", found)

    def test_those_that_cannot_take_part_say_why(self):
        cell = cells.Cell(cells.NETWORKS["small"][0], 2, "except_last")
        self.assertIn("no checkpoint mode", self.names(cell)[f"{cells.PIPELINING} GPipe"].reason)
        self.assertIn("--rivals", self.names(cell, python=None)["torchgpipe"].reason)

    def test_ours_over_processes_takes_part_where_it_is_asked_for(self):
        who = cells.OURS_OVER_PROCESSES
        for stages, balance in ((2, "51,58"), (4, "25,32,30,22")):
            for mode in cells.MODES:
                cell = cells.Cell(cells.NETWORKS["small"][0], stages, mode)
                found, others = self.names(cell, processes=True), self.names(cell)
                own = found.pop(who)
                self.assertEqual(found, others)
                self.assertEqual(own.command[:2], ["ours", "--processes"])
                # Our side over processes gets the arguments of our side with threads, which the rivals get, too.
                self.assertEqual(own.command[2:], others["ours"].command[1:])
                self.assertIn(f"--balance={balance}", own.command)
                self.assertTrue(own.loss)
        one = cells.Cell(cells.NETWORKS["small"][0], 1, "never")
        self.assertNotIn(who, self.names(one, processes=True))

    def test_on_the_cpu_no_contestant_is_told_of_devices(self):
        for contestant in self.names(cells.Cell(cells.NETWORKS["small"][0], 2, "never")).values():
            self.assertFalse([flag for flag in contestant.command if flag.startswith("--device")])
            self.assertEqual(contestant.warm_up, 1)

    def test_on_a_gpu_all_have_the_same_cut_there(self):
        found = self.names_on_gpu(4, "never")
        self.assertEqual(set(found), {"ours", "ours, graphs", "LibTorch, plain", "PyTorch, plain", "torchgpipe",
                                      f"{cells.PIPELINING} GPipe", f"{cells.PIPELINING} 1F1B"})
        for who, contestant in found.items():
            if contestant.reason:
                continue
            self.assertIn("--device=cuda", contestant.command)
            self.assertEqual("--balance=9,8,8,2" in contestant.command, "plain" not in who)
            self.assertEqual("--graphs" in contestant.command, who == "ours, graphs")
            self.assertEqual(contestant.loss, "plain" not in who)
        self.assertEqual(found["ours"].command[:2], ["run.sh", "ours"])
        self.assertGreater(found["ours, graphs"].warm_up, found["ours"].warm_up)

    def test_on_a_gpu_only_one_stage_is_a_process_group(self):
        self.assertIn("a GPU for each process", self.names_on_gpu(4, "never")[f"{cells.PIPELINING} 1F1B"].reason)
        one = self.names_on_gpu(1, "always")
        self.assertIn("--schedule=1f1b", one[f"{cells.PIPELINING} 1F1B"].command)
        self.assertNotIn("LibTorch, plain", one)
        self.assertIn("no checkpoint mode", self.names_on_gpu(1, "except_last")[f"{cells.PIPELINING} GPipe"].reason)
        self.assertIn("--rivals", self.names_on_gpu(1, "never", python=None)["torchgpipe"].reason)

    def test_own_cuts_give_no_balance(self):
        found = self.names(cells.Cell(cells.NETWORKS["small"][0], 2, "never"), own_cuts=True)
        self.assertEqual(set(found), {"ours, own cut", "ours, own cut, all cores", "torchgpipe, own cut",
                                      "torchgpipe, own cut, all cores"})
        for contestant in found.values():
            self.assertFalse([flag for flag in contestant.command if flag.startswith("--balance")])


if __name__ == "__main__":
    unittest.main()

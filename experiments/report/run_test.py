"""run.py with small shell programs: ends, time limits, Ctrl-C, and what their results mean."""

import json
import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest

import run

TABLE = {"rows": [{"experiment": "a", "origin": "measured"}]}


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "log"
        self.json = self.folder / "x.json"
        self.interrupt = run.Interrupt()

    def run_script(self, text, limit=None, grace=20, tick=None):
        ended = run.run_process(["bash", "-c", text], self.log, limit, self.interrupt, grace=grace, tick=tick)
        return ended, run.result_of(ended, self.json, self.log, limit)

    def writes(self, table):
        (self.folder / "table").write_text(json.dumps(table))
        return "cp {} {}".format(self.folder / "table", self.json)

    def started(self):
        deadline = time.monotonic() + 20
        while "started" not in (self.log.read_text() if self.log.exists() else ""):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def when_started(self, function):
        def wait_and_call():
            self.started()
            function()

        thread = threading.Thread(target=wait_and_call)
        thread.start()
        self.addCleanup(thread.join)

    def test_done(self):
        _, result = self.run_script("echo hello; " + self.writes(TABLE))
        self.assertEqual((result.state, result.reason, result.json, result.log_end), (run.DONE, "", TABLE, ""))
        self.assertEqual(self.log.read_text(), "hello\n")

    def test_failed_keeps_its_table_and_the_end_of_its_log(self):
        _, result = self.run_script(self.writes(TABLE) + "; for k in $(seq 30); do echo line $k; done; exit 1")
        self.assertEqual((result.state, result.reason, result.json), (run.FAILED, "exit code 1", TABLE))
        self.assertEqual(result.log_end.split("\n"), ["line {}".format(k) for k in range(19, 31)])

    def test_crashed(self):
        _, result = self.run_script("kill -SEGV $$")
        self.assertEqual((result.state, result.reason), (run.FAILED, "ended by SIGSEGV; it wrote no results"))

    def test_results_that_are_not_valid(self):
        _, result = self.run_script("true")
        self.assertEqual((result.state, result.reason), (run.FAILED, "it wrote no results"))
        _, result = self.run_script("echo '{\"rows\": [' >" + str(self.json))
        self.assertEqual(result.state, run.FAILED)
        self.assertIn("cannot be read", result.reason)
        _, result = self.run_script(self.writes([1]))
        self.assertEqual((result.state, result.reason), (run.FAILED, "its results hold no table"))

    def test_a_time_limit_asks_it_to_stop(self):
        script = "trap '{}; exit 130' INT; while :; do sleep 0.02; done".format(self.writes(TABLE))
        ended, result = self.run_script(script, limit=0.3)
        self.assertFalse(ended.killed)
        self.assertEqual((result.state, result.reason, result.json),
                         (run.STOPPED, "its time limit of 0:00 was over", TABLE))

    def test_a_program_that_was_done_when_asked_to_stop_is_done(self):
        _, result = self.run_script("trap '' INT; sleep 0.5; " + self.writes(TABLE), limit=0.1)
        self.assertEqual((result.state, result.reason, result.json), (run.DONE, "", TABLE))

    def test_a_program_that_does_not_stop_is_killed_with_all_it_started(self):
        ended, result = self.run_script("trap '' INT; sleep 1000 & echo $! >{}/pid; while :; do sleep 0.02; done"
                                        .format(self.folder), limit=0.3, grace=0.3)
        self.assertTrue(ended.killed)
        self.assertIn("killed", result.reason)
        pid = int((self.folder / "pid").read_text())
        deadline = time.monotonic() + 20
        while self.runs(pid):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    @staticmethod
    def runs(pid):
        try:
            return pathlib.Path("/proc/{}/stat".format(pid)).read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
        except OSError:
            return False

    def test_ctrl_c_reaches_it_once(self):
        with self.interrupt.installed():
            self.when_started(lambda: os.kill(os.getpid(), signal.SIGINT))
            _, result = self.run_script("trap 'echo asked >>{}/asked' INT; echo started; "
                                        "while [ ! -e {}/asked ]; do sleep 0.02; done; sleep 0.3; {}; exit 130"
                                        .format(self.folder, self.folder, self.writes(TABLE)))
        self.assertEqual((result.state, result.json), (run.INTERRUPTED, TABLE))
        self.assertEqual((self.folder / "asked").read_text(), "asked\n")

    def test_the_second_ctrl_c_does_not_wait(self):
        def twice():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

        with self.interrupt.installed():
            self.when_started(twice)
            ended, result = self.run_script("trap '' INT; echo started; while :; do sleep 0.02; done", grace=1000)
        self.assertTrue(ended.killed)
        self.assertEqual(result.state, run.INTERRUPTED)

    def test_interrupted_from_outside(self):
        _, result = self.run_script("exit 130")
        self.assertEqual(result.state, run.INTERRUPTED)

    def test_progress(self):
        seen = []
        self.run_script("printf 'one\\rtwo'; sleep 0.5", tick=lambda seconds: seen.append(run.last_line(self.log)))
        self.assertEqual(seen[-1], "two")
        self.assertEqual(run.last_line(self.folder / "none"), "")

    def test_scales(self):
        def row(way, scale):
            return {"way": way, "settings": {"scale": scale}}

        table = {"rows": [row("measured", "small"), row("simulated", "full"), row("planned", "full"),
                          {"way": "measured", "settings": {}}]}
        self.assertEqual(run.scales(run.Result(run.DONE, json=table)), {"small"})
        self.assertEqual(run.scales(run.Result(run.DONE, json=table, scale="smoke")), {"smoke"})
        self.assertEqual(run.scales(run.Result(run.DONE, json={"rows": []})), set())

    def test_saved_and_loaded(self):
        state = self.folder / "x.state"
        self.assertIsNone(run.load(self.json, state))
        self.json.write_text(json.dumps(TABLE))
        self.assertEqual(run.load(self.json, state).state, run.DONE)
        result = run.Result(run.FAILED, "why", "command", 3, "now", "smoke", {"a": "b"}, "log", TABLE)
        run.save(result, state)
        loaded = run.load(self.json, state)
        result.reused = True
        self.assertEqual(loaded, result)
        state.write_text("{")
        self.assertEqual(run.load(self.json, state).json, TABLE)


if __name__ == "__main__":
    unittest.main()

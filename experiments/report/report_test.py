"""report.py with made-up experiments: flags, failures, Ctrl-C, time limits, results that are reused."""

import contextlib
import io
import json
import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest
from unittest import mock

import catalog
import page_text
import report
import run

ROW = {"experiment": "a", "origin": "measured", "way": "measured", "note": "a note", "settings": {"scale": "smoke"},
       "epochs": [], "figures": {"speed": {"ours": 2.5, "published": {}, "compared": None}}}
TABLE = {"name": "x", "title": "A table",
         "columns": [{"key": "speed", "heading": "speed", "sources": [], "compared_with": ""}],
         "ratio": None, "remarks": [], "environment": "made up", "command": "tools/bazel run //x", "rows": [ROW]}

# What the test's programs do, by their names. $json is the file for their table, $table has a
# table.
PROGRAMS = {
    "good": 'echo called "$@"; echo "in $PWD for $BUILD_WORKING_DIRECTORY"; cp "$table" "$json"',
    "bad": 'echo "cannot: <reason>"; exit 1',
    "slow": "trap 'cp \"$table\" \"$json\"; exit 130' INT; echo started; while :; do sleep 0.02; done",
}


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.output = self.root / "output"
        (self.root / "table").write_text(json.dumps(TABLE))
        for name, text in PROGRAMS.items():
            program = self.root / "experiments" / name / name
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/bash\nfor each; do case $each in --json=*) json=${{each#--json=}};; esac; done\n"
                               "table={}\n{}\n".format(self.root / "table", text))
            program.chmod(0o755)
        self.use("good", "bad")

    def use(self, *names, minutes=1):
        patched = mock.patch.object(catalog, "EXPERIMENTS", tuple(
            catalog.Experiment(name, "The {} one".format(name), ("bars",), minutes) for name in names))
        patched.start()
        self.addCleanup(patched.stop)

    def run_report(self, *arguments):
        """Exit code and what was printed."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(err):
            try:
                code = report.main(["--output={}".format(self.output), *arguments], root=self.root, out=out)
            except SystemExit as exit_:
                code = exit_.code
        return code, out.getvalue() + err.getvalue()

    def text(self):
        return page_text.of((self.output / "index.html").read_text())

    def expect_mistake(self, words, *arguments):
        code, said = self.run_report(*arguments)
        self.assertEqual(code, 2, said)
        for word in words:
            self.assertIn(word, said)
        self.assertFalse((self.output / "index.html").exists())

    def test_bad_flags(self):
        self.expect_mistake(["--scale", "'smoke', 'small', 'full'"], "--scale=huge")
        self.expect_mistake(["--scael=smoke"], "--scael=smoke")
        self.expect_mistake(["--minutes", "-1"], "--minutes=-1")
        self.expect_mistake(["--minutes", "soon"], "--minutes=soon")
        self.expect_mistake(["--rivals=/no/such", "Python"], "--rivals=/no/such")
        self.expect_mistake(["stray"], "stray")
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as exit_:
            report.main([], root=self.root)
        self.assertEqual(exit_.exception.code, 2)
        self.assertIn("--output=DIR is missing", said.getvalue())

    def test_unknown_experiments_list_the_known(self):
        self.expect_mistake(["'goood'", "there are: good, bad, rivals"], "--experiments=good,goood")

    def test_output_that_cannot_be_written(self):
        self.output.write_text("a file")
        code, said = self.run_report()
        self.assertEqual(code, 2)
        self.assertIn("--output={}: cannot be written".format(self.output), said)
        self.assertEqual(self.output.read_text(), "a file")

    def test_list(self):
        out = io.StringIO()
        self.assertEqual(report.main(["--list"], root=self.root, out=out), 0)
        self.assertEqual([line.split()[0] for line in out.getvalue().splitlines()], ["good", "bad", "rivals"])

    def test_list_keeps_long_names_apart_from_headings(self):
        self.use("good")
        name = "a_name_that_is_longer_than_any_column"
        with mock.patch.object(catalog, "EXPERIMENTS", (catalog.Experiment(name, "Heading", (), 1),)):
            out = io.StringIO()
            report.main(["--list"], root=self.root, out=out)
        self.assertEqual(out.getvalue().splitlines()[0], name + "  Heading")

    def test_one_that_fails_is_shown_and_the_rest_goes_on(self):
        self.use("bad", "good")
        code, said = self.run_report()
        self.assertEqual(code, 1)
        self.assertIn("[1/3] bad: failed: exit code 1; it wrote no results\n", said)
        self.assertIn("[2/3] good: done in 0:0", said)
        text = self.text()
        self.assertIn("failed: exit code 1; it wrote no results.\ncannot: <reason>\n", text)
        self.assertIn("| a | measured^1 | 2.50\n", text)
        self.assertIn("not run: there is no program experiments/rivals/rivals.", text)
        self.assertIn("tools/bazel run -c opt //experiments/good -- --scale=smoke\n", text)
        self.assertNotIn("still running", text)

    def test_flags_reach_the_experiments(self):
        self.run_report("--experiments=good", "--scale=small", "--devices=cpu,cpu")
        log = (self.output / "logs" / "good.log").read_text()
        results = self.output / "results" / "good.json"
        self.assertEqual(log, "called --scale=small --devices=cpu,cpu --json={}\nin {} for {}\n".format(
            results, self.root, os.getcwd()))
        self.assertNotIn("The bad one", self.text())

    def test_a_program_that_is_not_there(self):
        self.use("good", "gone")
        code, _ = self.run_report()
        self.assertEqual(code, 0)
        self.assertIn("not run: there is no program experiments/gone/gone.", self.text())

    def test_reuse(self):
        self.run_report("--experiments=good")
        table = json.loads((self.output / "results" / "good.json").read_text())
        table["title"] = "Changed by hand"
        (self.output / "results" / "good.json").write_text(json.dumps(table))
        code, said = self.run_report("--reuse", "--experiments=good")
        self.assertEqual(code, 0)
        self.assertIn("good: done (earlier results)", said)
        self.assertIn("Changed by hand", self.text())
        self.assertIn("Taken over from an earlier run of", self.text())
        # Results of another scale are not reused, but measured again.
        code, said = self.run_report("--reuse", "--experiments=good", "--scale=small")
        self.assertIn("not reused, since this page is at --scale=small: good (smoke)\n", said)
        self.assertNotIn("Changed by hand", self.text())

    def test_what_failed_is_run_again(self):
        self.run_report("--experiments=bad")
        # The file is as a program leaves it that failed halfway.
        (self.output / "results" / "bad.json").write_text(json.dumps(TABLE))
        code, said = self.run_report("--reuse", "--experiments=bad", "--minutes=0")
        self.assertEqual(code, 1)
        # There was no time to run the program again, so the page has the earlier result.
        self.assertIn("| a | measured^1 | 2.50\n", self.text())
        code, said = self.run_report("--reuse", "--experiments=bad")
        self.assertIn("bad: failed: exit code 1; it wrote no results\n", said)
        program = self.root / "experiments" / "bad" / "bad"
        program.write_text(program.read_text().replace(PROGRAMS["bad"], PROGRAMS["good"]))
        code, said = self.run_report("--reuse", "--experiments=bad")
        self.assertEqual(code, 0)
        self.assertIn("bad: done in 0:0", said)

    def test_what_a_limit_stopped_is_run_again(self):
        self.use("slow", minutes=0.01)
        code, said = self.run_report("--experiments=slow")
        self.assertIn("slow: stopped", said)
        # There is no time now, so the earlier result stays.
        code, said = self.run_report("--reuse", "--experiments=slow", "--minutes=0")
        self.assertEqual(code, 1)
        self.assertIn("slow: stopped", said)
        self.assertIn("| a | measured^1 | 2.50\n", self.text())
        program = self.root / "experiments" / "slow" / "slow"
        program.write_text(program.read_text().replace(PROGRAMS["slow"], PROGRAMS["good"]))
        code, said = self.run_report("--reuse", "--experiments=slow", "--minutes=60")
        self.assertEqual(code, 0)
        self.assertIn("slow: done in 0:0", said)

    def test_what_was_interrupted_and_not_run_again_is_not_complete(self):
        (self.output / "results").mkdir(parents=True)
        (self.output / "results" / "good.json").write_text(json.dumps(TABLE))
        (self.output / "results" / "good.state").write_text(json.dumps({"state": "interrupted", "scale": "smoke"}))
        code, said = self.run_report("--reuse", "--experiments=good", "--minutes=0")
        self.assertEqual(code, 1)
        self.assertIn("| a | measured^1 | 2.50\n", self.text())

    def limits(self, *arguments):
        """(seconds until it is asked to stop, seconds that it then has) of the one experiment."""
        with mock.patch.object(run, "run_process", return_value=run.Ended(1, 0)) as called:
            self.run_report("--experiments=good", *arguments)
        return called.call_args[0][2], called.call_args[1]["grace"]

    def test_to_stop_is_part_of_the_time(self):
        self.use("good", minutes=100)
        seconds, grace = self.limits("--minutes=2")
        self.assertEqual(grace, run.GRACE_SECONDS)
        self.assertLessEqual(seconds + grace, 2 * 60 - report.RESERVE_SECONDS)
        self.assertGreater(seconds, 60)
        # If there is little time, half of it is for running and half for stopping.
        seconds, grace = self.limits("--minutes=0.5", "--scale=small")
        self.assertLessEqual(seconds + grace, 30 - report.RESERVE_SECONDS)
        self.assertAlmostEqual(seconds, grace, delta=0.1)
        self.assertEqual(self.limits("--scale=small"), (None, run.GRACE_SECONDS))

    def test_more_time_for_all_is_more_for_each(self):
        self.use("good", minutes=2)
        self.assertEqual(self.limits()[0], 2 * 60)
        self.assertEqual(self.limits("--minutes=5")[0], 2 * 60)
        self.assertEqual(self.limits("--minutes=60")[0], 8 * 60)

    def test_time_is_kept_free_for_the_later_rows_that_cost_nothing(self):
        def limits(minutes, *seconds):
            found = tuple(catalog.Experiment(name, name, (), 100, first=first)
                          for name, first in zip(("good", "bad"), seconds))
            with mock.patch.object(catalog, "EXPERIMENTS", found), \
                    mock.patch.object(run, "run_process", return_value=run.Ended(1, 0)) as called:
                self.run_report("--experiments=good,bad", "--minutes={}".format(minutes))
            return [call[0][2] + call[1]["grace"] for call in called.call_args_list]

        # An experiment gets all the time but what is kept free, also if its table has measured rows only.
        kept = 300 - report.RESERVE_SECONDS
        for own in (20, 0):
            first, second = limits(5, own, 90)
            self.assertLessEqual(first, kept - 90)
            self.assertGreater(second, kept - 60)  # the first one took no time
        # If the time is not enough for both experiments, each gets its share.
        first, _ = limits(1, 30, 60)
        self.assertLessEqual(first, (60 - report.RESERVE_SECONDS) / 3)
        self.assertGreater(first, 0)

    def test_without_a_python_the_rivals_are_left_out_and_come_later(self):
        program = self.root / "experiments" / "rivals" / "rivals"
        program.parent.mkdir()

        def answers(seconds, note):
            table = {"title": "Rivals", "rows": [
                {"network": "N", "stages": 2, "mode": "never", "who": who, "version": "", "step_seconds": time,
                 "peak_bytes": None, "note": said} for who, time, said in
                [("ours", 0.1, ""), ("torchgpipe", seconds, note)]]}
            (self.root / "rivals").write_text(json.dumps(table))
            program.write_text('#!/bin/bash\nfor each; do case $each in --json=*) json=${each#--json=};; esac; done\n'
                               'echo called "$@"; cp %s "$json"\n' % (self.root / "rivals"))
            program.chmod(0o755)

        answers(None, "no Python was given (--rivals=PYTHON)")
        code, said = self.run_report("--experiments=rivals")
        self.assertEqual(code, 0)
        self.assertIn("rivals: done in 0:0", said)
        log = (self.output / "logs" / "rivals.log").read_text()
        self.assertNotIn("--rivals", log)
        self.assertIn("--stages=2", log)
        text = self.text()
        self.assertIn("| N | 2 | never | 100 | –^1\n", text)
        self.assertIn("no Python was given (--rivals=PYTHON)", text)
        self.assertIn("Not the whole table: --stages=2", text)
        self.assertIn("tools/bazel run -c opt //experiments/rivals -- --rivals=PYTHON\n", text)
        answers(0.2, "")
        _, said = self.run_report("--experiments=rivals", "--reuse")
        self.assertIn("rivals: done (earlier results)", said)
        _, said = self.run_report("--experiments=rivals", "--reuse", "--rivals=python3")
        self.assertIn("rivals: done in 0:0", said)
        self.assertIn("| N | 2 | never | 100 | 200 × 2.00\n", self.text())
        _, said = self.run_report("--experiments=rivals", "--reuse", "--rivals=python3")
        self.assertIn("rivals: done (earlier results)", said)

    def test_what_else_was_there_stays_on_the_page(self):
        self.use("bad", "good", "slow")
        self.run_report("--experiments=good,bad")
        (self.output / "results" / "bad.json").write_text(json.dumps(TABLE))
        code, said = self.run_report("--reuse", "--experiments=good")
        self.assertEqual(code, 0)  # "bad", which failed, was not asked for
        self.assertIn("[1/1] good: done (earlier results)", said)
        text = self.text()
        self.assertLess(text.index("The bad one"), text.index("The good one"))
        self.assertIn("failed: exit code 1", text)
        self.assertNotIn("The slow one", text)  # it has no results
        self.run_report("--reuse", "--experiments=good", "--scale=small")
        self.assertNotIn("The bad one", self.text())
        self.run_report("--experiments=good")
        self.assertNotIn("The bad one", self.text())

    def test_results_that_came_without_a_report_are_reused(self):
        (self.output / "results").mkdir(parents=True)
        (self.output / "results" / "bad.json").write_text(json.dumps(TABLE))
        code, _ = self.run_report("--experiments=bad", "--reuse")
        self.assertEqual(code, 0)
        self.assertIn("| a | measured^1 | 2.50\n", self.text())
        code, _ = self.run_report("--experiments=bad", "--reuse", "--scale=small")
        self.assertEqual(code, 1)

    def test_a_closed_terminal_does_not_matter(self):
        class Closed(io.StringIO):
            def write(self, _):
                raise OSError(5, "Input/output error")

        code = report.main(["--output={}".format(self.output), "--experiments=good"], root=self.root, out=Closed())
        self.assertEqual(code, 0)
        self.assertIn("| a | measured^1 | 2.50\n", self.text())

    def test_old_results_do_not_pass_for_new_ones(self):
        (self.output / "results").mkdir(parents=True)
        (self.output / "results" / "bad.json").write_text(json.dumps(TABLE))
        self.run_report("--experiments=bad")
        self.assertNotIn("A table", self.text())

    def test_no_time(self):
        code, _ = self.run_report("--minutes=0", "--experiments=good")
        self.assertEqual(code, 1)
        self.assertIn("not run: no time was left of the 0 minutes (--minutes).", self.text())

    def test_a_time_limit_keeps_what_was_reached_and_the_rest_goes_on(self):
        self.use("slow", "good", minutes=0.02)
        code, said = self.run_report()
        self.assertEqual(code, 1)
        self.assertIn("[2/3] good: done", said)
        self.assertIn("stopped: its time limit of 0:01 was over.", self.text())
        self.assertEqual(self.text().count("| a | measured^1 | 2.50"), 2)

    def test_ctrl_c_keeps_what_was_reached_and_marks_it(self):
        self.use("good", "slow", "bad")

        def interrupt():
            log = self.output / "logs" / "slow.log"
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline and not (log.exists() and "started" in log.read_text()):
                time.sleep(0.01)
            # By now the page has the results of the experiments that are over.
            self.page_before = self.text()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        code, _ = self.run_report()
        thread.join()
        self.assertEqual(code, 130)
        self.assertIn("Not complete: experiments are still running.", self.page_before)
        text = self.text()
        self.assertIn("Interrupted: what was reached by then is here, marked so. The rest was not run.", text)
        self.assertIn("interrupted: by the user, after 0:0", text)
        self.assertEqual(text.count("| a | measured^1 | 2.50"), 2)
        self.assertIn("not run: the report was interrupted before.", text)
        # A second run with --reuse runs only what is not complete.
        self.use("good", "slow", "bad", minutes=0.01)
        _, said = self.run_report("--reuse")
        self.assertIn("good: done (earlier results)", said)
        self.assertIn("slow: stopped", said)

    def test_only_programs_that_draw_a_timeline_are_asked_for_it(self):
        with mock.patch.object(catalog, "EXPERIMENTS", (catalog.Experiment("good", "Good", (), 1, trace=True),)):
            self.run_report("--experiments=good")
        self.assertIn(" --trace={}".format(self.output / "traces" / "good" / "step.svg"),
                      (self.output / "logs" / "good.log").read_text())

    def test_pictures_of_traces(self):
        self.run_report("--experiments=good")
        (self.output / "traces" / "good").mkdir(parents=True)
        (self.output / "traces" / "good" / "step.one-2.svg").write_text("<svg/>")
        self.run_report("--experiments=good", "--reuse")
        self.assertIn("What each worker did when: one-2\n[image: Timeline of one-2]", self.text())


if __name__ == "__main__":
    unittest.main()

"""report: runs every experiment and writes one page with every table. See README.md in this folder."""

import argparse
import contextlib
import datetime
import os
import pathlib
import shlex
import shutil
import sys
import tempfile
import time

import catalog
import machine
import page
import rivals
import run

USAGE = """\
Runs every experiment at a scale and writes DIR/index.html: published tables with ours beside them, plots, environment
and commands, in one file that needs no network. The page and the README say which tables there are.

  tools/bazel run -c opt //experiments/report -- --output=DIR
  tools/bazel run -c opt //experiments/report -- --output=DIR --reuse --experiments=resnet101_speed
"""

EPILOG = """\
Ctrl-C stops the experiment that runs after its current step and writes the page with what was reached, marked; the
second Ctrl-C does not wait. Exit codes: 0; 1 if an experiment failed, was stopped by a limit, or was interrupted in an
earlier run and not run again; 2 for wrong usage; 130 after Ctrl-C."""

COMMAND = "tools/bazel run -c opt //experiments/report --"
RIVALS = catalog.RIVALS.name
SMOKE_MINUTES = 15
# The time that is kept free for writing the page.
RESERVE_SECONDS = 10
# States of experiments without a whole table. With more time, or after a program is repaired, there
# may be one.
INCOMPLETE = (run.FAILED, run.INTERRUPTED, run.STOPPED)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="report", usage=argparse.SUPPRESS, description=USAGE, epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--output", metavar="DIR", help="folder for the page, results, logs and traces; made if it is not there")
    add("--scale", default="smoke", choices=catalog.SCALES, help="the scale of what is run here (default: smoke)")
    add("--experiments", default="", metavar="NAMES", help="some only, separated by commas (default: all)")
    add("--list", action="store_true", help="lists the experiments")
    add("--reuse", action="store_true",
        help="takes results that DIR holds of this scale instead of running; what failed, was interrupted or was "
        "stopped by a time limit is run again. With --experiments, what else DIR holds stays on the page")
    add("--minutes", type=float, metavar="N",
        help="time for all of it; what does not fit is stopped or left out (default: {0} at smoke, where more than {0} "
        "also give each experiment more; no limit otherwise; 0: nothing is run)".format(SMOKE_MINUTES))
    add("--devices", default="", metavar="LIST", help="given to every experiment, such as cuda:0,cuda:1")
    add("--data", default="", metavar="DATA", help="images of the accuracy experiment, such as imagenet:FOLDER")
    add("--rivals", default="", metavar="PYTHON",
        help="also measures torchgpipe and torch.distributed.pipelining, with this Python, which has torch and "
        "torchgpipe (pip install torch==VERSION torchgpipe==0.0.7 numpy, where third_party/libtorch/libtorch.sh default prints "
        "VERSION)")
    flags = parser.parse_args(arguments)
    if flags.list:
        return flags
    if not flags.output:
        parser.error("--output=DIR is missing: name a folder for the page")
    if flags.minutes is not None and not 0 <= flags.minutes < 1e6:
        parser.error("--minutes={}: give a number of minutes, 0 or more".format(flags.minutes))
    if flags.minutes is None and flags.scale == "smoke":
        flags.minutes = SMOKE_MINUTES
    flags.names = [name for name in flags.experiments.split(",") if name]
    try:
        with_rivals = RIVALS in flags.names
        flags.chosen = catalog.find([name for name in flags.names if name != RIVALS]) \
            if set(flags.names) != {RIVALS} else []
    except ValueError as error:
        parser.error("--experiments={}: {}, {}".format(flags.experiments, error, RIVALS))
    flags.show_rivals = with_rivals or not flags.names
    if "/" in flags.rivals:
        flags.rivals = os.path.abspath(os.path.join(os.environ.get("BUILD_WORKING_DIRECTORY", "."), flags.rivals))
    if flags.rivals and not shutil.which(flags.rivals):
        parser.error("--rivals={}: there is no such program; name a Python that has torch and torchgpipe"
                     .format(flags.rivals))
    flags.output = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), flags.output).resolve()
    try:
        for folder in ("results", "logs", "traces"):
            (flags.output / folder).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=flags.output / folder):
                pass
    except OSError as error:
        parser.error("--output={}: cannot be written: {}".format(flags.output, error.strerror or error))
    return flags


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


class Console:
    """Says which experiment runs, for how long, and its last line: on one line of a terminal, or rarely."""

    def __init__(self, out, interval=30):
        self.out = out
        self.terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self.interval = 0.5 if self.terminal else interval
        self.last = 0
        self.drawn = False

    def say(self, text):
        self.last = time.monotonic()
        with contextlib.suppress(OSError):  # If the terminal was closed, the page is still written.
            self._clear()
            print(text, file=self.out, flush=True)

    def progress(self, text):
        if time.monotonic() - self.last < self.interval:
            return
        if not self.terminal:
            self.say(text)
            return
        self.last = time.monotonic()
        width = shutil.get_terminal_size().columns - 1
        self.drawn = True
        with contextlib.suppress(OSError):
            self.out.write("\r\x1b[K" + text[:width])
            self.out.flush()

    def _clear(self):
        if self.drawn:
            self.out.write("\r\x1b[K")
            self.drawn = False


class Runner:
    """Runs or takes over the experiments one after another, and writes the page after each."""

    def __init__(self, flags, console, interrupt, root, plotly):
        self.flags = flags
        self.console = console
        self.interrupt = interrupt
        self.root = root  # the folder with the programs
        self.plotly = plotly
        self.begin = time.monotonic()
        self.environment = machine.environment(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ""))
        self.sections = []  # all sections of the page
        self.asked = []  # the sections that are run or reused

    def run(self):
        later = run.Result(run.NOT_RUN, "its turn has not come yet")
        for experiment in catalog.EXPERIMENTS:
            chosen = experiment in self.flags.chosen
            result = later if chosen else self._earlier(experiment.name)
            if result:
                self.sections.append(page.Section(experiment.name, experiment.heading, result, experiment.plots))
        result = later if self.flags.show_rivals else self._earlier(RIVALS)
        if result:
            self.sections.append(page.Section(RIVALS, catalog.RIVALS.heading, result, rivals=True))
        if others := self._of_other_scales():
            self.console.say("not reused, since this page is at --scale={}: {}".format(self.flags.scale, others))
        # The sections that are run: all but those that are kept from an earlier run.
        self.asked = [section for section in self.sections if section.result is later]
        for index, section in enumerate(self.asked):
            label = "[{}/{}] {}".format(index + 1, len(self.asked), section.name)
            section.result = self._one(section, label, self.asked[index + 1:])
            self.console.say("{}: {}{}".format(label, section.result.state,
                                               ": " + section.result.reason if section.result.reason else
                                               " (earlier results)" if section.result.reused else
                                               " in " + run.minutes(section.result.seconds)))
            self.write("Not complete: experiments are still running.")
        state = ""
        if self.interrupt.count:
            state = "Interrupted: what was reached by then is here, marked so. The rest was not run."
        self.write(state)

    def write(self, state):
        used = run.minutes(time.monotonic() - self.begin)
        report = page.Report(self.flags.scale, "{}, in {}".format(now(), used), self.flags.command, self.environment,
                             self.sections, state, self.plotly)
        target = self.flags.output / "index.html"
        # The file's name ends in the process's number, so that no file of the user is overwritten.
        part = target.with_suffix(".part{}".format(os.getpid()))
        part.write_text(page.render(report))
        part.replace(target)

    def _files(self, name):
        """Where the results of an experiment are, what became of it, and its traces."""
        results = self.flags.output / "results"
        return results / (name + ".json"), results / (name + ".state"), self.flags.output / "traces" / name

    def _earlier(self, name):
        """The earlier result of this scale in the folder, or None."""
        if not self.flags.reuse:
            return None
        results, saved, traces = self._files(name)
        earlier = run.load(results, saved)
        if earlier is None or not run.scales(earlier) <= {self.flags.scale}:
            return None
        earlier.pictures = pictures(traces)
        return earlier

    def _of_other_scales(self):
        """Names and scales of the results that --reuse leaves out, or an empty text."""
        found = []
        for name in [experiment.name for experiment in catalog.EXPERIMENTS] + [RIVALS]:
            earlier = run.load(*self._files(name)[:2]) if self.flags.reuse else None
            scales = run.scales(earlier) - {self.flags.scale} if earlier else set()
            if scales:
                found.append("{} ({})".format(name, ", ".join(sorted(scales))))
        return ", ".join(found)

    def _limits(self, minutes, own, later):
        """The seconds after which the next experiment is asked to stop (None: never), and those it then has to do so.

        `minutes`: what is enough for it at smoke. `own`: the seconds that its rows take that are not measured, which
        it makes first; `later`: those of the experiments after it. Both shrink together where there is no time for all.
        """
        total = self.flags.minutes
        seconds = None
        if self.flags.scale == "smoke":
            # If a user allows more time than the default, the machine is taken to be slower, and
            # each experiment gets more time in proportion.
            seconds = minutes * 60 * max(total / SMOKE_MINUTES, 1)
        if total is None:
            return seconds, run.GRACE_SECONDS
        left = total * 60 - (time.monotonic() - self.begin) - RESERVE_SECONDS
        if later:
            left = max(left - later, left * own / (own + later))
        # Stopping takes time, too. Without this share the last experiment could exceed the time for all.
        until_asked = left - min(run.GRACE_SECONDS, left / 2)
        seconds = until_asked if seconds is None else min(seconds, until_asked)
        return seconds, min(run.GRACE_SECONDS, left - seconds)

    def _experiment(self, section):
        """The section's entry in the catalog; None for the rivals."""
        return next((e for e in self.flags.chosen if e.name == section.name), None)

    def _one(self, section, label, later):
        experiment = self._experiment(section)
        if experiment:
            program = experiment.program
            arguments = experiment.flags(self.flags.scale, self.flags.devices, self.flags.data)
            target, limit = experiment.target, experiment.minutes
        else:
            arguments = catalog.rivals_flags(self.flags.scale, self.flags.rivals)
            program, target, limit = catalog.RIVALS.program, catalog.RIVALS.target, catalog.RIVALS.minutes
        results, saved, traces = self._files(section.name)
        log = self.flags.output / "logs" / (section.name + ".log")

        earlier = self._earlier(section.name)
        without_rivals = not experiment and self.flags.rivals and earlier and rivals.lack_python(earlier.json)
        if earlier and earlier.state not in INCOMPLETE and not without_rivals:
            return earlier
        seconds, grace = self._limits(limit, experiment.first if experiment else 0,
                                      sum(e.first for e in map(self._experiment, later) if e))
        why_not = ""
        if self.interrupt.count:
            why_not = "the report was interrupted before"
        elif not (self.root / program).exists():
            why_not = "there is no program {}".format(program)
        elif seconds is not None and seconds <= 0:
            why_not = "no time was left of the {:g} minutes (--minutes)".format(self.flags.minutes)
        if why_not:
            # An earlier result says more than the reason why there is none now.
            return earlier or run.Result(run.NOT_RUN, why_not)

        results.unlink(missing_ok=True)
        saved.unlink(missing_ok=True)
        shutil.rmtree(traces, ignore_errors=True)
        argv = [str(self.root / program)] + arguments + ["--json=" + str(results)]
        if experiment and experiment.trace:
            traces.mkdir()
            argv.append("--trace=" + str(traces / "step.svg"))
        self.console.say(label + ": started")
        # The program runs as under `bazel run`: it looks for its data where it is, and for the user's files where the
        # user is.
        environment = dict(os.environ, BUILD_WORKING_DIRECTORY=os.environ.get("BUILD_WORKING_DIRECTORY", os.getcwd()))
        try:
            ended = run.run_process(
                argv, log, seconds, self.interrupt, environment=environment, folder=self.root, grace=grace,
                tick=lambda past: self.console.progress("{} {} {}".format(label, run.minutes(past), run.last_line(log))))
        except OSError as error:
            return run.Result(run.FAILED, "it cannot be started: {}".format(error.strerror))
        result = run.result_of(ended, results, log, seconds)
        result.command = "tools/bazel run -c opt {} -- {}".format(target, " ".join(map(shlex.quote, arguments)))
        result.written = now()
        result.scale = self.flags.scale
        result.environment = self.environment
        result.pictures = pictures(traces)
        run.save(result, saved)
        return result


def pictures(folder):
    """The timelines that an experiment drew, step.VARIANT.svg, oldest first: (variant, text)."""
    files = sorted(folder.glob("*.svg"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [(path.stem.partition(".")[2] or path.stem, path.read_text(errors="replace")) for path in files]


def main(arguments, root=None, plotly="", out=sys.stdout):
    flags = parse(arguments)
    if flags.list:
        lines = [(experiment.name, experiment.heading) for experiment in catalog.EXPERIMENTS]
        lines.append((RIVALS, "Rivals: whole steps of ours and of LibTorch; of other pipelines with --rivals=PYTHON"))
        width = max(len(name) for name, _ in lines)
        for name, heading in lines:
            print("{:<{}}  {}".format(name, width, heading), file=out)
        return 0
    flags.command = " ".join([COMMAND] + [shlex.quote(argument) for argument in arguments])
    interrupt = run.Interrupt()
    console = Console(out)
    with interrupt.installed():
        runner = Runner(flags, console, interrupt, pathlib.Path(root or os.getcwd()), plotly)
        runner.run()
    console.say("written: {}".format(flags.output / "index.html"))
    if interrupt.count:
        return run.EXIT_INTERRUPTED
    bad = any(section.result.state in INCOMPLETE or "no time was left" in section.result.reason
              for section in runner.asked)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], root=os.environ.get("GPIPE_REPORT_ROOT"),
                  plotly=pathlib.Path(os.environ["GPIPE_REPORT_PLOTLY"]).read_text()))

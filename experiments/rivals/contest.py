"""A contest: several programs that train the same network, timed in turns."""

import json
import os
import select
import signal
import statistics
import subprocess
import tempfile
import time

# Losses and sums of gradients agree in single precision if the work is the same.
TOLERANCE = 1e-3


class Failed(Exception):
    """A program ended, or gave a wrong answer; the message says why."""


class Program:
    """A running contestant: it is held for the whole contest and computes only while it is asked to."""

    def __init__(self, contestant, timeout):
        self.timeout = timeout
        self.errors = tempfile.TemporaryFile()
        self.rest = b""
        # The program is killed in the end, so its temporary files are removed with this folder.
        self.folder = tempfile.TemporaryDirectory(prefix="rivals-")
        # The threads of all sides wait in the same way. Without these variables only our program would: it sets them
        # for itself (command/wait_policy.h).
        environment = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "1000", **os.environ,
                       "TMPDIR": self.folder.name, **contestant.environment}
        try:
            # The program gets a session of its own: Ctrl-C reaches only us, and all that the program has started can be
            # ended with it.
            self.process = subprocess.Popen(contestant.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=self.errors, env=environment, start_new_session=True)
        except OSError as error:
            self.errors.close()
            self.folder.cleanup()
            raise Failed(f"did not start: {error.strerror}") from None

    def answer(self, command=None):
        """The program's answer to a command. Without a command: its first line, which says that it
        is ready."""
        if command is not None:
            try:
                self.process.stdin.write(f"{command}\n".encode())
                self.process.stdin.flush()
            except BrokenPipeError:
                pass  # The program has ended. What it said before is read below.
        end = time.monotonic() + self.timeout
        while b"\n" not in self.rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"no answer in {self.timeout:.0f} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise Failed(self.last_words())
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return json.loads(line)
        except ValueError:
            raise Failed(f"answered {line.decode(errors='replace')!r}, which is not JSON") from None

    def last_words(self):
        code = self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors.read().decode(errors="replace").splitlines() if line.strip()]
        if lines:
            return lines[-1]
        return "was killed; is there enough memory?" if code == -signal.SIGKILL else f"ended with exit code {code}"

    def end(self):
        """Ends the program with all that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()
        self.folder.cleanup()


class Entry:
    """A contestant and what is known of it."""

    def __init__(self, contestant):
        self.contestant = contestant
        self.reason = contestant.reason  # why it takes no part; empty: it takes part
        self.program = None
        self.ready = {}
        self.check = {}
        self.seconds = []
        self.of_rounds = []  # the median of each round
        self.peak = None
        self.remark = ""  # what the program says of its steps

    def start(self, timeout):
        try:
            self.program = Program(self.contestant, timeout)
        except Failed as failure:
            self.reason = str(failure)

    def ask(self, command=None):
        """The program's answer. None if the program fails: then it takes no further part."""
        try:
            return self.program.answer(command)
        except Failed as failure:
            self.reason = str(failure)
            self.stop()
            return None

    def stop(self):
        if self.program is not None:
            self.program.end()
            self.program = None

    def disagrees(self, first):
        """Why this entry does not do the work of the entry `first`; empty if it does."""
        if self.ready.get("parameters") != first.ready["parameters"]:
            return (f"another network: it has {self.ready.get('parameters')} parameters, and that of the first side "
                    f"{first.ready['parameters']}")
        if not self.contestant.loss:
            return ""
        for what in ("loss", "gradient"):
            of_first, own = first.check[what], self.check.get(what, float("nan"))
            if not abs(own - of_first) <= TOLERANCE * abs(of_first):
                return f"another result: {what} {own:.6g}, not {of_first:.6g}"
        return ""

    def row(self, cell, interrupted):
        note = self.contestant.note
        if self.reason:
            note = self.reason
        elif interrupted:
            note = f"interrupted after {len(self.seconds)} steps; {note}"
        if not self.reason and "balance" in self.ready and "own cut" in self.contestant.who:
            note += ", balance " + str(self.ready["balance"]).replace(" ", "")
        if not self.reason and self.remark:
            note += f", {self.remark}"
        measured = bool(self.seconds) and not self.reason
        # The peak of a contestant with its own cut is not known, because it has profiled the
        # network before, in memory that its steps then used again.
        peak = self.peak if measured and "own cut" not in self.contestant.who else None
        return {"network": cell.network.name, "stages": cell.stages, "mode": cell.mode,
                "who": self.contestant.who, "version": self.ready.get("version", ""),
                "step_seconds": statistics.median(self.seconds) if measured else None,
                "round_seconds": self.of_rounds if measured else [],
                "peak_bytes": peak, "note": note}


def hold(cell, contestants, rounds, steps, timeout, progress=lambda text: None):
    """The rows of a cell, and whether Ctrl-C ended it early.

    Every round asks each program in turn for `steps` steps, so that a machine that is busy for a while slows
    all of them. The first one that runs defines the right result.
    """
    entries = [Entry(contestant) for contestant in contestants]
    first = None
    interrupted = False
    try:
        progress("starting")
        for entry in entries:
            if not entry.reason:
                entry.start(timeout)
        for entry in entries:
            if not entry.reason:
                entry.ready = entry.ask() or {}
        for entry in entries:
            if not entry.reason:
                progress(f"checking {entry.contestant.who}")
                entry.check = entry.ask("check") or {}
            if not entry.reason:
                first = first or entry
                entry.reason = entry.disagrees(first)
            if not entry.reason:
                entry.ask(f"steps {entry.contestant.warm_up}")  # These steps do not count.
            if entry.reason:
                entry.stop()
        for turn in range(rounds):
            for entry in entries:
                if entry.reason:
                    continue
                progress(f"round {turn + 1}/{rounds}, {entry.contestant.who}")
                answer = entry.ask(f"steps {steps}")
                if answer:
                    entry.seconds += answer["seconds"]
                    entry.of_rounds.append(statistics.median(answer["seconds"]))
                    entry.peak = answer["peak_bytes"]
                    entry.remark = answer.get("remark", "")
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for entry in entries:
            entry.stop()
    return [entry.row(cell, interrupted) for entry in entries], interrupted

#!/usr/bin/env python3
"""Kills random processes of runs at random moments, and compares all losses and the hash with an undisturbed run's.

deaths.py LAUNCH PROGRAM [--text=FILE] [--deaths=20] [--minutes=0] [--seed=1] [--first=0] [--steps=200]
          [--targeted=0.33] [--phases=meet,make,...] [--slow=5]

Each run draws, from the seed and its own number: a layout (one pipeline over four processes, two replicas of two, four
replicas of one with a ZeroOptimizer); how often snapshots are taken; whether dead processes are started again, have
spares, or are gone; up to five deaths, or two that are not replaced, two at once in a quarter of the cases; and of
each the rank and the moment, between start and exit. For a share of them (--targeted) the moment is then put off until
the process is in a drawn phase (one of --phases). If that is one of a recovery, and nobody has died yet, another
process dies first. A run whose state in memory is lost goes on from a checkpoint.

PROGRAM is examples/language_model, which needs a text, or examples/guide:survives, which tells no phases. With
--all_say=EXPRESSION each process of an undisturbed run must write a line that matches it.

Prints a line for each run, and at the end how many deaths were in each phase, and the times from a death until the
state is restored, and until the next step that had not been made before: after each death, and after the last death
of a recovery, since others can die in it. A recovery of more than --slow seconds behind its last death is printed
with its lines. Exit code 1 if any run differs.
--first=17 --deaths=1 repeats run 17 alone.
"""
import argparse
import collections
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

STEP = re.compile(r"\bstep (\d+) loss (\S+)")
HASH = re.compile(r"\bparameters ([0-9a-f]{16})$")
RESTORED = re.compile(r"ResilientRun: (goes on|begins anew|no process holds)")
LAYOUTS = {
    "one pipeline": ["pipeline"],
    "two replicas of two": ["replicas", "--replicas=2"],
    "four replicas, zero": ["zero", "--replicas=4", "--zero"],
}
PHASES = ["meet", "make", "restore", "snapshot", "step", "update", "save", "end"]
RECOVERY = ["meet", "make", "restore"]
PROCESSES = 4


class Run:
    """A run of the program, whose output is read as it comes."""

    def __init__(self, args, layout, every, folder, restarts=0, spares=0):
        self.phases = os.path.join(folder, "phases")
        os.mkdir(self.phases)
        self.program = os.path.realpath(args.program)
        command = [args.launch, f"--processes={PROCESSES}", f"--restarts={restarts}", f"--spares={spares}", "--",
                   args.program]
        if args.text:
            command += [f"--text={args.text}", "--resilient", "--every_loss", "--width=32", "--length=64",
                        "--chunks=8", "--groups=4", "--batch=16", "--dropout=0.1", "--threads=1", "--sample=0",
                        f"--steps={args.steps}", f"--validate_every={args.steps}", "--validation_rows=8",
                        f"--snapshot_every={every}", f"--save={folder}/last", "--save_every=25",
                        f"--phases={self.phases}"] + LAYOUTS[layout][1:]
        else:
            command += [str(args.steps), str(every), LAYOUTS[layout][0], f"{folder}/last"]
        self.begin = time.monotonic()
        self.lines = []  # (moment, text)
        self.tells_phases = bool(args.text)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, errors="replace", env=dict(os.environ, OMP_NUM_THREADS="1"))
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def is_over(self):
        return self.process.poll() is not None

    def ranks(self):
        """The processes of the program, in the order of their start."""
        found = []
        try:
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="utf-8") as file:
                children = file.read().split()
        except OSError:  # The launcher has ended.
            return found
        for name in children:
            try:
                if os.readlink(f"/proc/{name}/exe") == self.program:
                    found.append(int(name))
            except OSError:  # It has ended.
                continue
        return sorted(found)

    def phase(self, pid):
        try:
            for _ in range(100):  # The file is empty for a moment when the next phase is written.
                with open(f"{self.phases}/{pid}", encoding="utf-8") as file:
                    text = file.read().strip()
                if text:
                    return text
                time.sleep(0.001)
            return "start"
        except OSError:
            # A process that starts has not told its first phase yet.
            if self.tells_phases:
                return "start"
            return "step" if any(STEP.search(line) for _, line in self.lines) else "start"

    def end(self, limit):
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.lines.append((time.monotonic(), f"deaths.py: not over after {limit} s"))
            for pid in self.ranks() + [self.process.pid]:
                kill(pid)
        self.process.wait()
        self.reader.join()

    def moments(self, expression):
        return [moment for moment, line in self.lines if expression.search(line)]

    def result(self):
        """The losses by step, which may come twice but not differ, and the hash; and how many came twice."""
        losses, twice = {}, 0
        for _, line in self.lines:
            found = STEP.search(line)
            if found:
                step, loss = int(found[1]), found[2]
                twice += step in losses
                if losses.setdefault(step, loss) != loss:
                    return {"step": f"{step} has {losses[step]} and {loss}"}, None, twice
        hashes = {HASH.search(line)[1] for _, line in self.lines if HASH.search(line)}
        return losses, hashes.pop() if len(hashes) == 1 else None, twice


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


class Plan:
    """What is drawn for a run."""

    def __init__(self, seed, number, targeted, phases):
        draw = random.Random(f"{seed} {number}")
        self.layout = draw.choice(list(LAYOUTS))
        self.every = draw.choice([1, 3, 10, 50])
        self.replaced = draw.choice(["started again", "started again", "with spares", "not replaced"])
        self.restarts = 0 if self.replaced == "not replaced" else 20
        self.spares = 2 if self.replaced == "with spares" else 0
        left = draw.randint(1, 2 if self.restarts == 0 else 5)
        self.deaths = []  # (share of the run's time, the numbers of the victims, the phase to wait for)
        while left > 0:
            count = min(left, 2 if draw.random() < 0.25 else 1)
            phase = draw.choice(phases) if draw.random() < targeted else None
            self.deaths.append((draw.random(), draw.sample(range(PROCESSES + self.spares), count), phase))
            left -= count
        # A death at the end comes behind the others, since waiting for it takes the rest of the run.
        self.deaths.sort(key=lambda death: (death[2] == "end", death[0]))


def disturb(run, plan, seconds):
    """Kills as planned. Returns (moment, phase) of each death. `seconds`: how long the run takes alone."""
    killed = []
    for share, victims, phase in plan.deaths:
        # Each death so far has made the run longer.
        moment = run.begin + share * (seconds + 2.5 * len(killed))
        while time.monotonic() < moment and not run.is_over():
            time.sleep(min(0.05, max(0.0, moment - time.monotonic())))
        if phase in RECOVERY and not killed and plan.restarts > 0:
            ranks = run.ranks()
            if ranks:
                kill_rank(run, ranks[(victims[0] + 1) % len(ranks)], killed)
        # Some phases come only after another death. A process that does not come to its phase dies where it is.
        give_up = time.monotonic() + (60 if phase == "end" else 3)
        while phase and time.monotonic() < give_up and not run.is_over():
            ranks = run.ranks()
            if ranks and run.phase(ranks[victims[0] % len(ranks)]) == phase:
                break
            time.sleep(0.002)
        ranks = run.ranks()
        for pid in {ranks[victim % len(ranks)] for victim in victims} if ranks else []:
            kill_rank(run, pid, killed)
    return killed


def kill_rank(run, pid, killed):
    now = run.phase(pid)
    if not run.is_over() and kill(pid):
        killed.append((time.monotonic(), now))


class Count:
    def __init__(self):
        self.runs = self.deaths = self.bad = self.from_disk = self.early = self.twice = 0
        self.phases, self.layouts, self.ways = (collections.Counter() for _ in range(3))
        self.restored, self.new_step, self.after_last = [], [], []

    def add_times(self, run, killed, slow):
        """Adds the times of all deaths. Returns (death, new step) of each that took long behind the last death."""
        restored, steps, long = run.moments(RESTORED), run.moments(STEP), []
        for index, (death, _) in enumerate(killed):
            back = next((moment for moment in restored if moment > death), None)
            if back is None:
                continue  # It was a spare, or the run was done.
            self.restored.append(back - death)
            new = next((moment for moment in steps if moment > back), None)
            if new is None:
                continue
            self.new_step.append(new - death)
            if index + 1 == len(killed) or killed[index + 1][0] > new:
                self.after_last.append(new - death)
                if new - death > slow:
                    long.append((death, new))
        return long

    def text(self):
        def times(values):
            return f"median {statistics.median(values):.2f} s, worst {max(values):.2f} s" if values else "none"
        phases = ", ".join(f"{phase} {count}" for phase, count in self.phases.most_common())
        return (f"{self.runs} runs, {self.deaths} deaths, {self.bad} runs different; {self.from_disk} went on from the "
                f"disk, {self.early} ended before they began, {self.twice} lines came twice\n"
                f"deaths by phase: {phases}\n"
                f"runs by layout: {dict(self.layouts)}; {dict(self.ways)}\n"
                f"from a death until the state is restored: {times(self.restored)}; "
                f"until the next new step: {times(self.new_step)}; "
                f"if nobody else dies before it: {times(self.after_last)}")


def undisturbed_run(args, layout):
    with tempfile.TemporaryDirectory() as folder:
        run = Run(args, layout, 10, folder)
        run.end(300)
        losses, hash_, _ = run.result()
        if len(losses) != args.steps or hash_ is None or run.process.returncode != 0:
            print("\n".join(line for _, line in run.lines))
            sys.exit(f"the undisturbed run of {layout} is not whole")
        if len(run.moments(re.compile(args.all_say))) < PROCESSES:
            print("\n".join(line for _, line in run.lines))
            sys.exit(f"{layout}: not all processes say {args.all_say}")
        return losses, hash_, run.lines[-1][0] - run.begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("launch")
    parser.add_argument("program")
    parser.add_argument("--text", default="")
    parser.add_argument("--all_say", default="")
    parser.add_argument("--deaths", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--targeted", type=float, default=0.33)
    parser.add_argument("--slow", type=float, default=5)
    parser.add_argument("--phases", type=lambda text: text.split(","), default=PHASES)
    args = parser.parse_args()
    if not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
        sys.exit("deaths.py finds the processes by /proc/PID/task/PID/children, which this kernel does not have "
                 "(CONFIG_PROC_CHILDREN)")
    undisturbed, count, number = {}, Count(), args.first
    stop = time.monotonic() + 60 * args.minutes if args.minutes else float("inf")
    while count.deaths < args.deaths and time.monotonic() < stop:
        # The other program does not tell its phases, so no death can wait for one.
        plan = Plan(args.seed, number, args.targeted if args.text else 0, args.phases)
        if plan.layout not in undisturbed:
            undisturbed[plan.layout] = undisturbed_run(args, plan.layout)
            # The layouts must have the same bits, too.
            if undisturbed[plan.layout][:2] != next(iter(undisturbed.values()))[:2]:
                sys.exit(f"{plan.layout} has other losses or another hash than {next(iter(undisturbed))}")
        losses, hash_, seconds = undisturbed[plan.layout]
        with tempfile.TemporaryDirectory() as folder:
            run = Run(args, plan.layout, plan.every, folder, plan.restarts, plan.spares)
            killed = disturb(run, plan, seconds)
            run.end(180)
        found, found_hash, twice = run.result()
        text = "\n".join(line for _, line in run.lines)
        # Without restarts, a process that dies before any has asked for the first meeting ends the run: the launcher
        # cannot know that the program goes on after deaths. If one dies when another one is done, all have done the
        # work. A run that had begun its first snapshot had begun.
        is_early = (plan.restarts == 0 and not found and run.process.returncode != 0
                    and any(phase == "start" for _, phase in killed)
                    and not any(phase in PHASES[PHASES.index("snapshot"):] for _, phase in killed))
        is_late = any(phase == "end" for _, phase in killed) or (not run.tells_phases and found_hash == hash_)
        # 70: the fake accelerator found a race, a failed kernel or a wait that nobody expects.
        is_same = (found == losses and found_hash == hash_ and (run.process.returncode == 0 or is_late)
                   and "exit code 70" not in text)
        is_from_disk = "of the last snapshot: goes on" in text
        count.runs += 1
        count.deaths += len(killed)
        count.bad += not is_same and not is_early
        count.from_disk += is_from_disk
        count.early += is_early
        count.twice += twice
        count.phases.update(phase for _, phase in killed)
        count.layouts[plan.layout] += 1
        count.ways[plan.replaced] += 1
        long = count.add_times(run, killed, args.slow)
        verdict = "equal" if is_same else "ended before it began" if is_early else "DIFFERENT"
        print(f"run {number}: {plan.layout}, a snapshot every {plan.every} steps, {plan.replaced}, deaths in "
              f"{[phase for _, phase in killed]}{', from the disk' if is_from_disk else ''}: {verdict}, {twice} twice",
              flush=True)
        if verdict == "DIFFERENT":
            print(f"  exit code {run.process.returncode}, {len(found)} losses, hash {found_hash} not {hash_}")
            print("\n".join(f"  | {moment - run.begin:7.2f} {line}" for moment, line in run.lines
                            if not STEP.search(line) or moment > run.lines[-1][0] - 3), flush=True)
            print("  deaths at " + ", ".join(f"{moment - run.begin:.2f} in {phase}" for moment, phase in killed))
        for death, new in long:
            print(f"  {new - death:.2f} s from a death at {death - run.begin:.2f} until a new step")
            print("\n".join(f"  | {moment - run.begin:7.2f} {line}" for moment, line in run.lines
                            if death - 0.5 < moment <= new and (not STEP.search(line) or moment == new)), flush=True)
        number += 1
    print(count.text())
    sys.exit(count.bad != 0 or count.deaths == 0)


if __name__ == "__main__":
    main()

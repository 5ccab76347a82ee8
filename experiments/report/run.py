"""run: one experiment as a process of its own: time limit, Ctrl-C, progress, and what became of it."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

# How long a program may take after it was asked to stop: it finishes its step and writes what it
# has.
GRACE_SECONDS = 30

# The ways in which an experiment may end.
DONE = "done"
FAILED = "failed"
STOPPED = "stopped"  # a time limit ended it
INTERRUPTED = "interrupted"  # the user ended it
NOT_RUN = "not run"

EXIT_INTERRUPTED = 130


@dataclasses.dataclass
class Result:
    """What became of an experiment. The table, if there is one, is in `json`."""

    state: str
    reason: str = ""  # why the experiment is not done
    command: str = ""
    seconds: float = 0
    written: str = ""  # the time, as text for people
    scale: str = ""
    environment: dict = dataclasses.field(default_factory=dict)  # the machine and build that made the result
    log_end: str = ""  # the last lines, if it failed
    json: object = None
    reused: bool = False
    pictures: list = dataclasses.field(default_factory=list)  # (caption, SVG)


class Interrupt:
    """Counts Ctrl-C, SIGTERM and SIGHUP: the first one asks to stop, the second one to stop at once."""

    def __init__(self):
        self.count = 0

    def _seen(self, _number, _frame):
        self.count += 1

    @contextlib.contextmanager
    def installed(self):
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, self._seen) for number in signals]
        try:
            yield self
        finally:
            for number, handler in zip(signals, before):
                signal.signal(number, handler)


def last_line(path, limit=4000):
    """The last line of a log that is not empty; a progress bar's last state counts as a line."""
    try:
        with open(path, "rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - limit, 0))
            text = log.read().decode(errors="replace")
    except OSError:
        return ""
    lines = [line.strip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return lines[-1] if lines else ""


def log_end(path, lines=12):
    """The last lines of a log, for the page."""
    try:
        text = pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""
    kept = [line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return "\n".join(kept[-lines:])


@dataclasses.dataclass
class Ended:
    exit_code: int
    seconds: float
    why: str = ""  # STOPPED or INTERRUPTED if we stopped it
    killed: bool = False


def run_process(argv, log, limit, interrupt, tick=None, environment=None, folder=None, grace=GRACE_SECONDS):
    """Runs `argv` in `folder` with its output in the file `log`.

    It is asked to stop (SIGINT, once) after `limit` seconds (None: never) or when `interrupt` was seen, and killed
    with everything it started when it does not end within `grace` seconds or the user insists. It has a session of its
    own, so that a terminal's Ctrl-C reaches it through us and once only: a second one would stop it at once.

    `tick(seconds)` is called several times a second.
    """
    begin = time.monotonic()
    with open(log, "wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True, env=environment, cwd=folder)
    ended = Ended(0, 0)
    asked = None
    pause = threading.Event()
    while True:
        code = process.poll()
        now = time.monotonic()
        if code is not None:
            ended.exit_code, ended.seconds = code, now - begin
            break
        if asked is None and (interrupt.count or (limit is not None and now - begin > limit)):
            ended.why = INTERRUPTED if interrupt.count else STOPPED
            asked = now
            process.send_signal(signal.SIGINT)
        if asked is not None and not ended.killed and (interrupt.count > 1 or now - asked > grace):
            ended.killed = True
            kill_session(process)
        if tick:
            tick(now - begin)
        pause.wait(0.1)
    if ended.why:
        kill_session(process)  # Ends what the program may have started and left behind.
    return ended


def kill_session(process):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def read_json(path):
    """The table that an experiment wrote, or (None, why not)."""
    try:
        table = json.loads(pathlib.Path(path).read_text())
    except FileNotFoundError:
        return None, "it wrote no results"
    except (OSError, ValueError) as error:
        return None, "its results cannot be read: {}".format(error)
    if not isinstance(table, dict) or not isinstance(table.get("rows"), list):
        return None, "its results hold no table"
    return table, ""


def minutes(seconds):
    """"0:07", "15:00": for people."""
    seconds = int(round(seconds))
    return "{}:{:02d}".format(seconds // 60, seconds % 60)


def result_of(ended, json_path, log, limit):
    """The result of an ended process, with the file that it left."""
    table, why_no_table = read_json(json_path)
    if ended.exit_code == 0 and table is not None:
        state, reason = DONE, ""  # A program that was asked to stop may have been done by then.
    elif ended.why == INTERRUPTED:
        state, reason = INTERRUPTED, "by the user, after {}".format(minutes(ended.seconds))
    elif ended.why == STOPPED:
        state, reason = STOPPED, "its time limit of {} was over".format(minutes(limit))
    elif ended.exit_code == EXIT_INTERRUPTED:
        state, reason = INTERRUPTED, "from outside"
    elif ended.exit_code == 0:
        state, reason = FAILED, why_no_table
    elif ended.exit_code < 0:
        state, reason = FAILED, "ended by {}".format(signal.Signals(-ended.exit_code).name)
    else:
        state, reason = FAILED, "exit code {}".format(ended.exit_code)
    if ended.killed and state != DONE:
        reason += " (killed: it did not stop by itself)"
    if table is None and state != DONE and why_no_table not in reason:
        reason += "; " + why_no_table
    return Result(state, reason, seconds=ended.seconds, json=table, log_end=log_end(log) if state == FAILED else "")


def scales(result):
    """The scales of the measured rows."""
    if result.scale:
        return {result.scale}
    rows = [row for row in result.json["rows"] if row.get("way", "measured") == "measured"]
    return {row["settings"]["scale"] for row in rows if (row.get("settings") or {}).get("scale")}


_SAVED = ("state", "reason", "command", "seconds", "written", "scale", "environment", "log_end")


def save(result, path):
    """Keeps what is not in the experiment's own JSON, for --reuse."""
    pathlib.Path(path).write_text(json.dumps({key: getattr(result, key) for key in _SAVED}, indent=2) + "\n")


def load(json_path, state_path):
    """The result of an earlier run, or None if there is none."""
    table, _ = read_json(json_path)
    if table is None:
        return None
    result = Result(DONE, json=table, reused=True)
    with contextlib.suppress(OSError, ValueError):
        saved = json.loads(pathlib.Path(state_path).read_text())
        for key in _SAVED:
            if key in saved:
                setattr(result, key, saved[key])
    return result

"""machine: what the page says about where it was made. No names of people, machines or folders."""

import os
import pathlib
import platform
import re
import subprocess


def _read(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _output(*command):
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""


def system():
    found = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.M)
    return "{}, {} {} {}".format(found.group(1) if found else "unknown system", platform.system(),
                                 platform.release(), platform.machine())


def processor():
    names = re.findall(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.M)
    cores = len(os.sched_getaffinity(0))
    return "{}, {} core{}".format(names[0] if names else "unknown", cores, "" if cores == 1 else "s")


def memory():
    found = re.search(r"^MemTotal:\s*(\d+) kB", _read("/proc/meminfo"), re.M)
    return "{:.1f} GiB".format(int(found.group(1)) / 1024 / 1024) if found else "unknown"


def gpus():
    names = [line for line in _output("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n") if line]
    return ", ".join(names) or "none"


def commit(workspace):
    """The commit of the sources, and whether they were changed since."""
    if not workspace:
        return "unknown"
    name = _output("git", "-C", workspace, "rev-parse", "--short=12", "HEAD")
    changed = _output("git", "-C", workspace, "status", "--porcelain", "--untracked-files=no")
    return (name or "unknown") + (" with changes" if name and changed else "")


def environment(workspace):
    return {"system": system(), "processor": processor(), "memory": memory(), "GPUs": gpus(),
            "commit": commit(workspace)}

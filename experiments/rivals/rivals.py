#!/usr/bin/env python3
"""Times whole training steps of this pipeline and of its rivals, in turns.

    tools/bazel run //experiments/rivals -- --rivals=PYTHON

PYTHON is a Python that has our LibTorch's version of torch, and torchgpipe 0.0.7:
pip install torch==$(third_party/libtorch/libtorch.sh default) torchgpipe==0.0.7 numpy
Without it only LibTorch itself is compared, and the rivals' rows say so. Ctrl-C ends with what was measured.
"""

import argparse
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import textwrap

sys.dont_write_bytecode = True
import cells
import contest
import rows as table_rows
import table

EXIT_USAGE, EXIT_INTERRUPTED = 2, 130


def user_path(text):
    """The path as the user means it: `bazel run` starts programs in a folder of its own."""
    return pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), text)


def fail(message):
    print(f"rivals: {message}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def choose(flag, text, known):
    """The items of a list of words, in the order of `known`."""
    if text == "all":
        return list(known)
    words = text.split(",")
    for word in words:
        if word not in map(str, known):
            fail(f"--{flag}: there is no '{word}'; there are {', '.join(map(str, known))}")
    return [item for item in known if str(item) in words]


def read_flags():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     allow_abbrev=False)
    parser.add_argument("--rivals", metavar="PYTHON", default="", help="a Python with torch and torchgpipe")
    parser.add_argument("--device", default="cpu", choices=cells.DEVICES, help="cuda: all stages on the first GPU")
    parser.add_argument("--networks", default="all", help="unet,amoebanetd,resnet,gpt2; of --scale=gpu also gpt2_256")
    parser.add_argument("--stages", default="all", help="1,2,4; of --scale=gpu 1,4,8")
    parser.add_argument("--modes", default="all", help="never,except_last,always")
    parser.add_argument("--own_cuts", action="store_true",
                        help="each side cuts by its own tool, instead of the same cut for all")
    parser.add_argument("--processes", action="store_true",
                        help="our pipeline also with a process per stage, as torch.distributed.pipelining has")
    parser.add_argument("--scale", default="small", choices=list(cells.NETWORKS), help="gpu: for one of 80 GB; tiny is for tests")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each program (5)")
    parser.add_argument("--steps", type=int, default=3, help="steps in a turn (3)")
    parser.add_argument("--timeout", type=float, default=120, help="seconds to wait for a program (120)")
    parser.add_argument("--json", default="", help="a file for the table; rows that it has from an earlier run stay")
    parser.add_argument("--ours", default="", help="our program; the one that was built with this")
    parser.add_argument("--beside", metavar="PROGRAM", default="",
                        help="another build of our program, such as one under another LibTorch: it takes part as well")
    flags = parser.parse_args()
    for name in ("rounds", "steps", "timeout"):
        if getattr(flags, name) <= 0:
            fail(f"--{name} must be positive, got {getattr(flags, name)}")
    networks = cells.NETWORKS[flags.scale]
    names = choose("networks", flags.networks, [network.word for network in networks])
    flags.networks = [network for network in networks if network.word in names]
    flags.stages = choose("stages", flags.stages, cells.stages_of(flags.scale))
    flags.modes = choose("modes", flags.modes, cells.MODES)
    if flags.rivals and "/" in flags.rivals:
        flags.rivals = str(user_path(flags.rivals))
        if not os.access(flags.rivals, os.X_OK):
            fail(f"--rivals: {flags.rivals} is not a program; name a Python that has torch and torchgpipe")
    if flags.own_cuts and flags.device != "cpu":
        fail("--own_cuts: the sides' tools measure on the CPU; give --device=cpu")
    if flags.processes and flags.device != "cpu":
        fail("--processes: ours over processes is for the CPU; give --device=cpu")
    if flags.processes and flags.own_cuts:
        fail("--processes: all sides with a process per stage have the same cut; leave out --own_cuts")
    if flags.processes and max(flags.stages) == 1:
        fail("--processes: a single stage is in one process anyway; give --stages=2 or more")
    flags.ours = command_of(user_path(flags.ours) if flags.ours else our_program())
    if flags.beside:
        flags.beside = str(user_path(flags.beside))
        if not os.access(flags.beside, os.X_OK):
            fail(f"--beside: {flags.beside} is not a program; name another build of //experiments/rivals:ours")
    if flags.json:
        flags.json = user_path(flags.json)
        if flags.json.is_dir() or not os.access(flags.json.parent, os.W_OK):
            fail(f"--json: {flags.json} cannot be written; name a file in a folder that may be written to")
    return flags


def our_program():
    # Our program is beside this one as it was called (in its runfiles), or where Bazel has built
    # it, below the working directory.
    for folder in (pathlib.Path(sys.argv[0]).parent, "experiments/rivals", "bazel-bin/experiments/rivals"):
        path = pathlib.Path(folder, "ours").resolve()
        if path.exists():
            return path
    fail("our program is not built: tools/bazel build //experiments/rivals:ours, or give --ours")


def command_of(program):
    """How our program is started. In a bundle (tools/gpu_bundle) it has a script beside it that finds LibTorch."""
    script = program.resolve().parent.parent / "run.sh"
    if program.parent.name == "program" and script.is_file():
        return [str(script), program.name]
    return [str(program)]


def graphics_processor():
    """The GPU's name and driver."""
    try:
        lines = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], check=True,
                               capture_output=True, text=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"--device=cuda: nvidia-smi finds no GPU ({error}); give --device=cpu")
    if not lines:
        fail("--device=cuda: nvidia-smi lists no GPU; give --device=cpu")
    name, _, driver = lines[0].rpartition(", ")
    return f"{name}, driver {driver}"


def processor():
    """The processor's name, and what tells it from others to which a virtual machine gives the same name."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    first = {}
    for line in lines:
        name, _, value = line.partition(":")
        first.setdefault(name.strip(), value.strip())
    if "model name" not in first:
        return platform.machine()
    known = [f"{name} {first[key]}" for name, key in (("family", "cpu family"), ("model", "model")) if key in first]
    flags = first.get("flags", "").split()
    known += [text for text, flag in (("AVX-512", "avx512f"), ("AVX2", "avx2")) if flag in flags][:1]
    return f"{first['model name']} ({', '.join(known)})" if known else first["model name"]


def read_rows(path, device):
    """The rows of an earlier run, on the same device."""
    try:
        return table_rows.of_device(table_rows.of_document(json.loads(path.read_text())), device)
    except FileNotFoundError:
        return []
    except json.JSONDecodeError:
        fail(f"--json: {path} is there, but it is not a table of rivals; remove it")
    except ValueError as error:
        fail(f"--json: {path} is there, but {error}; remove it, or name another file")


def write_json(path, document):
    """Replaces the file as a whole: a reader sees the old table or the new one."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
        json.dump(document, file, indent=1)
        file.write("\n")
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def main():
    flags = read_flags()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cores = len(os.sched_getaffinity(0))
    environment = {"processor": processor(), "cores": cores, "rounds": flags.rounds, "steps": flags.steps}
    if flags.device != "cpu":
        environment.update(device=flags.device, gpu=graphics_processor())
    sides = str(pathlib.Path(__file__).resolve().parent / "sides")
    rows = read_rows(flags.json, flags.device) if flags.json else []
    interrupted = False

    def progress(text):
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    asked = [cells.Cell(network, stages, mode) for network in flags.networks for stages in flags.stages
             for mode in flags.modes]
    for number, cell in enumerate(asked, 1):
        who = (cell, flags.ours, flags.rivals or None, sides, cores)
        contestants = (cells.contestants(*who, flags.own_cuts, flags.processes) if flags.device == "cpu" else
                       cells.contestants_on_gpu(*who))
        if flags.beside:
            contestants += cells.beside(contestants, flags.ours, command_of(pathlib.Path(flags.beside)))
        new, interrupted = contest.hold(
            cell, contestants, flags.rounds, flags.steps, flags.timeout,
            lambda text: progress(f"[{number}/{len(asked)}] {cell.network.name}, {cell.stages}, {cell.mode}: {text}"))
        progress("")
        new = [{**row, "environment": environment} for row in new]
        rows = table_rows.merged(rows, new)
        if flags.json:
            write_json(flags.json, table.to_json(rows, interrupted))
        print(table.to_text([row for row in rows if row in new]), flush=True)
        if interrupted:
            print(f"interrupted: {len(asked) - number} cells were not measured", file=sys.stderr)
            sys.exit(EXIT_INTERRUPTED)
    for remark in table.remarks(rows):
        print(textwrap.fill(remark, table.WIDTH, subsequent_indent="  "))
    if any(row["who"].startswith("ours") and row["step_seconds"] is None for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Draws what the processes of a run do while some of them are killed: an SVG of a real run.

run_picture.py LAUNCH WATCHED_RUN --output=FILE [--steps=60] [--every=10] [--deaths=14:2,33:0,47:1]

Each death is STEP:PROCESS: the process is killed during the first step that follows after STEP has ended. All losses
and the hash of the parameters are compared with those of a run without deaths. Exit code 1 if they differ.
"""
import argparse
import html
import os
import re
import signal
import subprocess
import sys
import time

EVENT = re.compile(r"\[(\d+)\] event (\w+) (\d+) at ([\d.]+)")
STEP = re.compile(r"step (\d+) loss (\S+)")
HASH = re.compile(r"parameters (\S+)")
# The colors and the style are those of other pictures (gpipe/timeline/svg_parts.cc, timeline_svg.cc).
LOOKS = {"step": ("step", "#76a5d8"), "repeated": ("repeated step", "#f2a65a"),
         "snapshot": ("snapshot", "#b79ac4"), "noticing": ("step that is lost", "#c9b458"),
         "meeting": ("meeting and restoring", "#7fbf7b"), "starting": ("process starts", "#b0b0b0")}
DEATH = "#e15759"
LEFT, RIGHT, TOP, WIDTH, TRACK, BAR = 80, 20, 92, 880, 34, 26


def run(args, deaths):
    """Returns ([(time, process, name, value)], losses by step, hash)."""
    command = [args.launch, "--processes=4", f"--restarts={len(deaths)}", "--", args.watched_run, str(args.steps),
               str(args.every), "30"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                               env=dict(os.environ, OMP_NUM_THREADS="1"))
    events, losses, found_hash, pids, lines, left = [], {}, None, {}, [], list(deaths)
    for line in process.stdout:
        lines.append(line)
        event, step, is_hash = EVENT.search(line), STEP.search(line), HASH.search(line)
        if event:
            number, name, value, at = int(event[1]), event[2], int(event[3]), float(event[4])
            events.append((at, number, name, value))
            if name == "starts":
                pids[number] = value
            if name == "begins" and left and number == left[0][1] and value > left[0][0]:
                left.pop(0)
                time.sleep(0.02)  # The step is under way.
                events.append((time.monotonic(), number, "dies", value))
                os.kill(pids[number], signal.SIGKILL)
        if step and losses.setdefault(int(step[1]), step[2]) != step[2]:
            sys.exit(f"run_picture.py: step {step[1]} has two losses")
        found_hash = is_hash[1] if is_hash else found_hash
    if process.wait() != 0 or left or len(losses) != args.steps or found_hash is None:
        sys.exit("".join(lines[-40:]) + "run_picture.py: the run did not go as it was meant to")
    return sorted(events), losses, found_hash


def spans(events, every):
    """[(process, kind, begin, end)]: what each process did from each of its events to the next."""
    found, last, furthest, of_world = [], {}, -1, {}
    for at, process, name, value in events:
        before, began = last.get(process, (None, at))
        kind = None
        if name == "makes":
            kind = "starting" if before == "starts" else "meeting"
            of_world[process] = furthest
        elif name == "starts" and before == "dies":
            kind = "starting"
        elif name == "begins" and before == "makes":
            kind = "meeting"
        elif name == "begins" and value % every == 0:
            kind = "snapshot"
        elif name == "ends":
            kind = "repeated" if value <= of_world[process] else "step"
            furthest = max(furthest, value)
        elif name == "fails" or (name == "dies" and before == "begins"):
            kind = "noticing"
        if kind:
            found.append((process, kind, began, at))
        last[process] = (name, at)
    return found


def recoveries(events):
    """[(process, death, end of the first step in the next world)]"""
    found = []
    for death, process, name, _ in events:
        if name != "dies":
            continue
        met = set()  # processes that are in a world that began after the death
        for at, other, what, _ in events:
            if at > death and what == "makes":
                met.add(other)
            if what == "ends" and other in met:
                found.append((process, death, at))
                break
    return found


def distance_of_marks(most):
    return next(unit for unit in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if most / unit <= 12)


def to_svg(events, every, title):
    zero, end = events[0][0], events[-1][0]
    processes = 1 + max(process for _, process, _, _ in events)
    bottom = TOP + processes * TRACK

    def x(at):
        return LEFT + WIDTH * (at - zero) / (end - zero)

    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + RIGHT} {bottom + 40}" '
           f'width="{LEFT + WIDTH + RIGHT}" height="{bottom + 40}" font-family="sans-serif" font-size="12">',
           "<style>svg{background:#fff}text{fill:#222}line{stroke:#8888;stroke-width:.5}.t{fill:#8881}"
           f".d{{stroke:{DEATH};stroke-width:2.5;fill:none}}.r{{fill:{DEATH}22}}"
           "@media(prefers-color-scheme:dark){svg{background:#1c1c1c}text{fill:#ddd}}</style>",
           f'<text x="{LEFT}" y="24" font-size="15">{html.escape(title)}</text>']
    at_x = LEFT
    for name, color in LOOKS.values():
        svg.append(f'<rect x="{at_x}" y="38" width="11" height="11" fill="{color}"/>'
                   f'<text x="{at_x + 15}" y="48">{name}</text>')
        at_x += 28 + int(6.2 * len(name))
    svg.append(f'<path class="d" d="M{at_x} 38l11 11m0 -11l-11 11"/><text x="{at_x + 15}" y="48">death</text>'
               f'<rect class="r" x="{at_x + 60}" y="36" width="15" height="15"/>'
               f'<text x="{at_x + 80}" y="48">until the next step ends</text>')
    for process, death, recovered in recoveries(events):
        svg.append(f'<rect class="r" x="{x(death):.1f}" y="{TOP - 8}" width="{x(recovered) - x(death):.1f}" '
                   f'height="{bottom - TOP + 8}"/><text x="{x(death):.1f}" y="{TOP - 14}" font-size="11">process '
                   f'{process} dies: {recovered - death:.2f} s</text>')
    for mark in range(int((end - zero) / distance_of_marks(end - zero)) + 1):
        seconds = mark * distance_of_marks(end - zero)
        svg.append(f'<line x1="{x(zero + seconds):.1f}" x2="{x(zero + seconds):.1f}" y1="{TOP}" y2="{bottom}"/>'
                   f'<text x="{x(zero + seconds):.1f}" y="{bottom + 14}" text-anchor="middle" font-size="10">'
                   f'{seconds:g} s</text>')
    for process in range(processes):
        top = TOP + process * TRACK
        svg.append(f'<rect class="t" x="{LEFT}" y="{top}" width="{WIDTH}" height="{BAR}"/>'
                   f'<text x="{LEFT - 6}" y="{top + 17}" text-anchor="end" font-size="11">process {process}</text>')
    for process, kind, begin, stop in spans(events, every):
        width = max(x(stop) - x(begin) - 0.4, 0.3)
        svg.append(f'<rect x="{x(begin):.1f}" y="{TOP + process * TRACK}" width="{width:.1f}" height="{BAR}" '
                   f'fill="{LOOKS[kind][1]}"/>')
    for at, process, name, _ in events:
        if name == "dies":
            svg.append(f'<path class="d" d="M{x(at) - 7:.1f} {TOP + process * TRACK + 6}l14 14m0 -14l-14 14"/>')
    return "\n".join(svg) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("launch")
    parser.add_argument("watched_run")
    parser.add_argument("--output", required=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--deaths", default="14:2,33:0,47:1")
    args = parser.parse_args()
    deaths = [tuple(map(int, death.split(":"))) for death in args.deaths.split(",")]
    _, losses, hash_ = run(args, [])
    events, found, found_hash = run(args, deaths)
    if (found, found_hash) != (losses, hash_):
        sys.exit("run_picture.py: losses or hash differ from those of the run without deaths")
    title = (f"{args.steps} steps on 4 processes, {len(deaths)} deaths, a snapshot every {args.every} steps: losses and "
             "hash of a run without deaths")
    with open(args.output, "w", encoding="utf-8") as file:
        file.write(to_svg(events, args.every, title))
    print(f"{args.output}: hash {hash_}, with and without {len(deaths)} deaths; from a death to the end of the next step "
          + ", ".join(f"{end - begin:.2f} s" for _, begin, end in recoveries(events)))


if __name__ == "__main__":
    main()

"""golden_page: a page of made-up results in every state, for the tests."""

import json
import pathlib

import page
import run

ENVIRONMENT = {"system": "made-up Linux", "processor": "made-up, 2 cores", "memory": "8.0 GiB", "GPUs": "none",
               "commit": "0123456789ab"}
SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="900" height="60" viewBox="0 0 900 60"><style>
rect { fill: #1763c6 } @media (prefers-color-scheme: dark) { rect { fill: #6fb1ff } }</style>
<rect x="10" y="10" width="400" height="40"/><rect x="450" y="10" width="440" height="40"/></svg>"""


def _section(folder, name, heading, kinds, state=run.DONE, reason="", rivals=False, **others):
    table = json.loads((folder / (name + ".json")).read_text())
    command = "tools/bazel run -c opt //experiments/" + \
        ("rivals -- --rivals=python3 --stages=1,2,4 --rounds=5" if rivals else name + " -- --scale=smoke")
    result = run.Result(state, reason, command, 65, "2026-11-22 18:00 UTC", "smoke", ENVIRONMENT, json=table, **others)
    return page.Section(name, heading, result, kinds, rivals)


def report(folder, plotly=""):
    folder = pathlib.Path(folder)
    return page.Report(
        "smoke", "2026-11-22 18:00 UTC, in 9:12", "tools/bazel run -c opt //experiments/report -- --output=report",
        ENVIRONMENT,
        [_section(folder, "made_accuracy", "Made-up accuracy", ("epochs", "bars"), run.INTERRUPTED,
                  "by the user, after 0:35"),
         _section(folder, "made_speed", "Made-up speed", ("partitions",), pictures=[("pipeline-4", SVG)]),
         _section(folder, "made_memory", "Made-up memory", ("memory",), reused=True),
         _section(folder, "made_rivals", "Rivals", (), rivals=True),
         page.Section("made_failure", "Made-up failure",
                      run.Result(run.FAILED, "exit code 1; it wrote no results", log_end="error: <no> memory & more")),
         page.Section("made_later", "Made-up left out", run.Result(
             run.NOT_RUN, "there is no program experiments/whose_name/is_too_long/for_a_phone/by_some"))],
        "Interrupted: what was reached by then is here, marked so. The rest was not run.", plotly)

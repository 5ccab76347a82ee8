"""//python:rivals: both calls of ours train the same, and a rival that is not there is told of."""

import pathlib
import re
import subprocess
import sys

RIVALS = pathlib.Path(__file__).parent.parent / "rivals.py"


def test_a_contest_without_torchgpipe():
    command = [sys.executable, RIVALS, "--scale=tiny", "--networks", "unet", "--stages", "2"]
    command += ["--modes", "always", "--rounds=1", "--steps=1", "--timeout=300"]
    run = subprocess.run(command, text=True, capture_output=True)
    assert run.returncode == 0, run.stdout + run.stderr
    for who in ("ours", "ours, step", "ours, one arena", "ours, step, one arena"):
        assert re.search(rf"^  {who} \[\d\] +\d+\.\d", run.stdout, re.MULTILINE), run.stdout
    assert "No module named 'torchgpipe'" in run.stdout, run.stdout

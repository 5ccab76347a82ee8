"""catalog: what the report runs. A new experiment is a line here and one in BUILD.bazel's `data`."""

import dataclasses

SCALES = ("smoke", "small", "full")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A program that writes one table as JSON (//experiments/frame:report)."""

    folder: str  # in experiments/; the program has its name, too
    heading: str
    plots: tuple  # kinds, drawn in this order; see plots.py
    minutes: int  # limit at --scale=smoke; at the other scales there is none
    edition: str = ""  # of the published table, if there are several editions
    data: bool = False  # whether the program takes --data
    trace: bool = False  # whether the program draws a timeline beside --trace
    first: int = 0  # seconds kept free for rows that are not measured, which come first

    @property
    def name(self):
        """Its name in --experiments and in files."""
        return self.folder + ("-" + self.edition if self.edition else "")

    @property
    def target(self):
        return "//experiments/" + self.folder

    @property
    def program(self):
        """Its path, relative to the workspace or to the runfiles."""
        return "experiments/{0}/{0}".format(self.folder)

    def flags(self, scale, devices="", data=""):
        """Its flags, except for those that say where the results go."""
        flags = ["--scale=" + scale]
        if self.edition:
            flags.append("--edition=" + self.edition)
        if devices:
            flags.append("--devices=" + devices)
        if data and self.data:
            flags.append("--data=" + data)
        return flags


OLD = "2019-06"  # torchgpipe's README of June 2019, with older networks

EXPERIMENTS = (
    Experiment("resnet101_accuracy", "ResNet-101 accuracy", ("epochs", "bars"), 4, data=True),
    Experiment("unet_memory", "U-Net memory", ("memory",), 2, first=20),
    Experiment("amoebanetd_memory", "AmoebaNet-D memory", ("memory",), 3, first=40),
    Experiment("unet_speed", "U-Net speed", ("partitions",), 2, first=10),
    Experiment("amoebanetd_speed", "AmoebaNet-D speed", ("partitions",), 3, first=10),
    Experiment("resnet101_speed", "ResNet-101 speed", ("partitions",), 2, first=10),
    Experiment("unet_timeline", "U-Net timeline: what each part of torchgpipe gains", ("bars",), 3, trace=True,
               first=30),
    Experiment("unet_schedules", "U-Net schedules on two cores, measured beside predicted", ("bars",), 2, first=15),
    Experiment("schedule_claims", "Claims on schedules, simulated", (), 1, first=10),
    Experiment("interruptions", "Interruptions of a large cluster, simulated", (), 1, first=10),
    Experiment("llama_memory", "Llama 2 on eight devices: planned memory, even cut and exact one", ("devices",), 3,
               first=60),
    Experiment("amoebanetd_memory", "AmoebaNet-D memory, June 2019", ("memory",), 3, edition=OLD, first=40),
    Experiment("resnet101_speed", "ResNet-101 speed, June 2019", ("partitions",), 2, edition=OLD, first=10),
)

# The program //experiments/rivals. Its table is of another kind than the experiments' tables.
RIVALS = Experiment("rivals", "Rivals", (), 6)


def rivals_flags(scale, python=""):
    """Chooses only some cells at smoke, since all take more than half an hour. Without `python` there are no rivals."""
    few = ["--stages=2", "--modes=never,except_last", "--rounds=2", "--steps=2"] if scale == "smoke" else []
    return (["--rivals=" + python] if python else []) + few


def find(names):
    """The experiments of these names, in the page's order; all for no names. Raises ValueError for unknown ones."""
    known = [experiment.name for experiment in EXPERIMENTS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError("no experiment {}; there are: {}".format(", ".join(map(repr, unknown)), ", ".join(known)))
    return [experiment for experiment in EXPERIMENTS if not names or experiment.name in names]

"""page: everything as one HTML file that needs nothing else. Values in, text out; no clock, no machine."""

import base64
import dataclasses
import gzip
import json
import pathlib
import re

import jinja2
import markupsafe

import plots
import rivals
import tables

HERE = pathlib.Path(__file__).parent

# The origins of figures, in the order of the page, with what each means.
ORIGINS = (
    ("measured", "really run, on this machine and at this scale"),
    ("planned", "computed at the published size on the meta device, without running it; settings that were not "
     "published are assumed, as the row's note says"),
    ("simulated", "the schedule at the published size (where nothing is published, at the size that is measured), "
     "played with profiled or calibrated costs; what was not published is assumed, too"),
    ("published", "the row holds published figures only: ours are of another size, or there is nothing to run for it"),
    ("interrupted", "measured until it was stopped: what was reached"),
    ("failed", "tried here, and it did not work: the note says how"),
    ("not run", "not tried here: the note says why"),
)


@dataclasses.dataclass
class Section:
    """An experiment on the page."""

    name: str
    heading: str
    result: object  # run.Result
    plots: tuple = ()  # kinds
    rivals: bool = False


@dataclasses.dataclass
class Report:
    scale: str
    made: str  # when
    command: str
    environment: dict
    sections: list
    state: str = ""  # what is wrong with the report as a whole: interrupted, still running
    plotly: str = ""  # the library's text


def _view(section):
    """The values of a section that the template shows."""
    result = section.result
    table = result.json
    view = {"name": section.name, "heading": section.heading, "rivals": section.rivals, "result": result, "title": "",
            "counts": "", "grids": [], "notes": [], "remarks": [], "plots": [],
            "pictures": [_picture(table, *picture) for picture in result.pictures],
            "commands": [], "command": result.command, "environment": result.environment}
    if table is None:
        return view
    view["title"] = subtitle(table.get("title", ""), section.heading)
    view["remarks"] = [remark for remark in table.get("remarks") or [] if remark != table.get("environment")]
    view["environment"] = {**result.environment, **environment_of(table)}
    if section.rivals:
        view["grids"] = rivals.grids(table)
        view["remarks"] = view["remarks"] + rivals.remarks(table, result.command)
        view["commands"] = rivals.commands(table, result.command)
        view["plots"] = plots.of_rivals(table)
        view["counts"] = rivals.count(table)
    else:
        view["environment"].update(tables.measured_with(table))
        view["command"] = result.command or tables.without_files(table.get("command") or "")
        view["grids"] = [tables.grid(table)]
        view["commands"] = tables.row_commands(table, table.get("command") or result.command)
        view["plots"] = plots.of_table(section.plots, table, section.name)
        view["counts"] = tables.count_origins(table)
        view["remarks"] = view["remarks"] + [remark for remark in [tables.crowded(table)] if remark]
    # If there are several grids, each has the same notes.
    view["notes"] = view["grids"][0].notes if view["grids"] else []
    return view


def subtitle(title, heading):
    """What a table's title says beyond the heading that stands above it."""
    if not title.startswith(heading) or title[len(heading):len(heading) + 1] not in ("", ":", ","):
        return title
    rest = title[len(heading):].lstrip(":, ")
    return rest[:1].upper() + rest[1:]


def environment_of(table):
    """The environment of a table as texts, by name."""
    environment = table.get("environment") or {}
    if isinstance(environment, str):
        return {"build": environment}
    return {str(key).replace("_", " "): ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for key, value in environment.items()}


def _picture(table, name, svg):
    """An SVG as an image, not as part of the page: its style and names stay its own, and it still follows dark mode."""
    caption = name
    for row in (table or {}).get("rows", []):
        settings = row.get("settings") or {}
        if row.get("experiment") == name and tables.way_of(row) == "measured" and settings.get("scale"):
            caption += ", measured at --scale={}: {}".format(settings["scale"], settings.get("network", "its network"))
    return {"caption": caption, "source": "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()}


def script_safe(value):
    """JSON that may stand inside a <script>."""
    return json.dumps(value, ensure_ascii=False).replace("</", "<\\/").replace("<!--", "<\\!--")


def whole_flags(text):
    """Text whose flags, such as --scale=smoke, do not break into lines."""
    return markupsafe.Markup(re.sub(r"--[\w=/-]+", r'<span class="whole">\g<0></span>', str(markupsafe.escape(text))))


def packed(library):
    """A library's text as page.js unpacks it: a third of its size."""
    return base64.b64encode(gzip.compress(library.encode(), mtime=0)).decode() if library else ""


def render(report):
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(str(HERE)), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["whole_flags"] = whole_flags
    views = [_view(section) for section in report.sections]
    used = {row["origin"] for section in report.sections if section.result.json and not section.rivals
            for _, rows in tables.with_published(section.result.json) for row in rows}
    measured = [row for section in report.sections if section.result.json and not section.rivals
                for row in section.result.json["rows"] if row["origin"] == "measured"]
    return environment.get_template("page.html.j2").render(
        report=report,
        sections=views,
        origins=[(origin, meaning) for origin, meaning in ORIGINS if origin in used],
        missing=tables.MISSING,
        measured_full=any(map(tables.full_size, measured)),
        measured_smaller=sorted({tables.scale_of(row) or report.scale for row in measured
                                 if not tables.full_size(row)}),
        css=(HERE / "page.css").read_text(),
        js=(HERE / "page.js").read_text(),
        plots_json=script_safe([plot for view in views for plot in view["plots"]]),
        plotly=packed(report.plotly),
    )

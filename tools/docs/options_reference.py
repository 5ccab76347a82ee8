#!/usr/bin/env python3
"""Makes docs/guide/37-options.md, the options of a pipeline and of a step, from the comments of gpipe/options.h.

  options_reference.py          prints the page
  options_reference.py --check  compares it with the page that is there; part of tools/lint
  options_reference.py --write  writes it

The first sentence of a comment says what the option is, and what follows "Default:" its default. CHAPTERS says where
the guide uses it; an option that is not there, or that its chapter does not name, is an error.
"""
import pathlib
import re
import sys

HEADER = pathlib.Path("gpipe/options.h")
PAGE = pathlib.Path("docs/guide/37-options.md")
# Maps each struct to the title of its table and to the chapter of each member.
CHAPTERS = {
    "GPipeOptions": ("Options of a pipeline", {
        "balance": "04", "devices": "13", "chunks": "05", "shared_inputs": "03", "checkpoint": "06",
        "partition_checkpoints": "06", "deferred_batch_norm": "09", "placement": "20", "world": "24 31", "groups": "31",
        "cpu_threads_per_stage": "17", "graphs": "13a", "ablation": "35"}),
    "StepOptions": ("Options of a step, or of an evaluation", {
        "schedule": "07", "reduction": "08", "weight": "08", "loss_scale": "12", "keep_outputs": "14",
        "check_finite": "22", "on_event": "19a"}),
    "StepResult": ("What a step returns", {"loss": "02", "outputs": "14", "losses": "22"}),
    "GraphUse": ("What `pipe->graph_use()` tells of each stage", {
        "recorded": "13a", "replayed": "13a", "reason": "13a"}),
    "Failure": ("What `pipe->last_failure()` tells", {
        "stage": "21", "micro_batch": "21", "backward": "21", "recompute": "21", "layer": "21", "out_of_memory": "18",
        "layer_type": "21"}),
}
OPTIONS = ("GPipeOptions", "StepOptions")  # the others are results, without defaults
# Matches code in the middle of a sentence.
CODE = re.compile(r"`[^`]*`|\"[^\"]*\"|\b\w+\(\w+(?:::\w+)+\)|\b\w+(?:::\w+)+(?:\([^()]*\))?|\bk[A-Z]\w+|\b[a-z_]+\(\)|(?<=\s)\.grad\b")
BEGIN = """# 37. Which options are there?

Made from [gpipe/options.h](../../gpipe/options.h) by `tools/docs/options_reference.py --write`:
change the comments there. They say more than the first sentence, which is here.

`GPipeOptions({2, 2}).chunks(8)` sets an option, and `options.chunks()` reads it. All names are in
namespace `gpipe`.
"""
END = """
Next: [38. How do I use it with CMake?](38-cmake.md)
"""


class Member:
    def __init__(self, name, types, value, comment):
        self.name, self.types, self.value, self.comment = name, types, value, comment

    def sentences(self):
        prose = " ".join(line for line in self.comment if not line.startswith("  "))
        prose = re.sub(rf"^`{self.name}`: ", "", prose)
        return [each for each in re.split(r"(?<=[.!?])\s+(?=[A-Z`])", prose) if each]

    def default(self):
        for each in self.sentences():
            if each.startswith("Default: "):
                return each[len("Default: "):].rstrip(".")
        return f"`{self.value}`" if self.value else "none: it must be given"

    def says(self):
        said = next((each for each in self.sentences() if not each.startswith("Default")), "")
        said = said[:1].upper() + said[1:]
        return said if not said or said.endswith((".", "!", "?")) else said + "."


def marked(text):
    """Words of code in backticks."""
    return CODE.sub(lambda word: word.group() if word.group()[0] in "`\"" else f"`{word.group()}`", text)


def structs(header):
    """{struct: [Member]} of the public members with a value."""
    found, name, comment, code, of_constructor = {}, None, [], "", []
    for line in header.split("\n"):
        begin = re.match(r"struct (\w+) \{$", line)
        if begin:
            name, comment, code = begin.group(1), [], ""
            found[name] = []
        if name is None or begin:
            continue
        if line.startswith(("};", " private:")):
            name = None
            continue
        text = line.strip()
        if text.startswith("//"):
            comment.append(text[2:].removeprefix(" "))
            continue
        if not text:
            comment, code = [], ""
            continue
        if code or not line.startswith("   "):  # not within a function's body
            code = f"{code} {text}".strip()
        statement, _, behind = code.partition("  //")
        if not statement.strip().endswith((";", "{", "}")):
            continue
        if code.startswith(f"{name}("):
            of_constructor = comment
        member = member_of(name, statement.strip(), comment or ([behind.strip()] if behind else []))
        if member and not member.comment and any(f"`{member.name}`" in line for line in of_constructor):
            member.comment = of_constructor
        code = ""
        if member is None:
            continue
        comment = []
        same = next((each for each in found[name] if each.name == member.name), None)
        if same:
            same.types += member.types
        else:
            found[name].append(member)
    return found


def member_of(struct, code, comment):
    option = re.match(r"TORCH_ARG\((.+), (\w+)\)(?: = (.+))?;$", code)
    if option:
        return Member(option.group(2), [option.group(1)], option.group(3), comment)
    setter = re.match(rf"{struct}& (\w+)\((\w+) \w+\) \{{$", code)
    if setter:
        return Member(setter.group(1), [setter.group(2)], None, comment)
    field = re.match(r"([\w:<>]+) (\w+)(?: = (.+))?;", code)
    if field and field.group(1) not in ("return", "friend"):
        return Member(field.group(2), [field.group(1)], field.group(3), comment)
    return None


def chapter_of(number, name, folder):
    (path,) = folder.glob(f"{number}-*.md")
    if not re.search(rf"\b{name}\b", path.read_text(encoding="utf-8"), re.IGNORECASE):
        raise ValueError(f"{path} does not name {name}, but CHAPTERS in {__file__} says that it does: name it there, "
                         "or correct CHAPTERS")
    return f"[{number.lstrip('0')}]({path.name})"


def page(header, folder):
    parts = [BEGIN]
    for struct, members in structs(header).items():
        title, chapters = CHAPTERS.get(struct, (None, {}))
        names = [member.name for member in members]
        if title is None or set(names) != set(chapters):
            raise ValueError(f"CHAPTERS of {__file__} has other members of {struct}: {sorted(set(names) ^ set(chapters))}")
        columns = ["Name", "Type", *(["Default"] if struct in OPTIONS else []), "Says", "Chapter"]
        parts.append(f"\n## {title}: `{struct}`\n\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n")
        for each in members:
            cells = {"Name": f"`{each.name}`", "Type": " or ".join(f"`{one}`" for one in each.types),
                     "Default": marked(each.default()), "Says": marked(each.says()),
                     "Chapter": ", ".join(chapter_of(one, each.name, folder) for one in chapters[each.name].split())}
            parts.append("| " + " | ".join(cells[column].replace("|", "\\|") for column in columns) + " |\n")
    return "".join(parts) + END


def main(arguments):
    text = page(HEADER.read_text(encoding="utf-8"), PAGE.parent)
    if "--write" in arguments:
        PAGE.write_text(text, encoding="utf-8")
    elif "--check" not in arguments:
        print(text, end="")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        print(f"{PAGE} is not what {HEADER} says: tools/docs/options_reference.py --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

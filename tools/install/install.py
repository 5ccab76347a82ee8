#!/usr/bin/env python3
"""Installs the libraries for CMake and pkg-config: tools/bazel run //tools/install -- --prefix=DIR

DIR gets the public headers, a static library for each package (gpipe, skip, balance, ...), `launch`, and files for
find_package(gpipe) and pkg-config. It may be moved afterwards. The program that is linked with it needs the LibTorch
version that this was built for.
"""

import argparse
import collections
import graphlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

VERSION = "0.1"
# Maps a library to the Debian package that has this library and those whose names begin in the same
# way.
PACKAGES = {
    "absl_strings": "libabsl-dev",
    "glog": "libgoogle-glog-dev",
    "tcmalloc_minimal": "libgoogle-perftools-dev",
    "z": "zlib1g-dev",
}


def fail(text: str) -> None:
    sys.exit(f"GPipe: {text}")


def run(*command: object, **kwargs: object) -> str:
    return subprocess.run(command, check=True, text=True, capture_output=True, **kwargs).stdout


class Links:
    """What tools/build_defs/link_list.bzl lists."""

    def __init__(self, path: pathlib.Path) -> None:
        self.headers: dict[str, str] = {}  # name in an #include -> path
        # Maps a room (a package of the first level) to its archives. The room "registered" has the
        # archives that nothing refers to.
        self.archives: dict[str, list[str]] = collections.defaultdict(list)
        names: list[str] = []
        folders: list[pathlib.Path] = []
        for line in path.read_text().splitlines():
            kind, *fields = line.split("\t")
            if kind == "header":
                self.headers[fields[0]] = fields[1]
            elif kind == "archive":
                self.archives["registered" if fields[1] == "whole" else fields[0].split("/")[0]].append(fields[2])
            elif fields[1].startswith("-l"):
                names.append(fields[1][2:])
            elif fields[1].startswith("-L"):
                folders.append(pathlib.Path(fields[1][2:]))
        folder = next(folder for folder in folders if (folder / "libtorch_cpu.so").exists())
        self.torch = folder.parent  # has include/ and lib/
        self.torch_libraries = [name for name in names if (folder / f"lib{name}.so").exists()]
        # The libraries of the link, each once and behind all libraries that need it.
        self.libraries = [
            name for at, name in enumerate(names) if name not in names[at + 1 :] and name not in self.torch_libraries
        ]


def public_headers(links: Links, listed: pathlib.Path) -> list[str]:
    """The headers that a file includes, and all that they include."""
    found: dict[str, None] = {}
    ahead = re.findall(r'^#include "(.*)"', listed.read_text(), re.MULTILINE)
    while ahead:
        name = ahead.pop()
        if name in found:
            continue
        if name not in links.headers:
            fail(f"{name} is of no target that tools/install/BUILD.bazel lists")
        found[name] = None
        ahead += re.findall(r'^#include "(.*)"', pathlib.Path(links.headers[name]).read_text(), re.MULTILINE)
    return sorted(found)


def write_archive(out: pathlib.Path, archives: list[str]) -> None:
    # ar's ADDLIB keeps objects of the same name from different folders apart.
    lines = [f"CREATE {out}", *[f"ADDLIB {archive}" for archive in archives], "SAVE", "END"]
    subprocess.run(["ar", "-M"], input="\n".join(lines) + "\n", check=True, text=True)
    run("strip", "--strip-debug", "--enable-deterministic-archives", out)


def needs(libraries: dict[str, pathlib.Path]) -> dict[str, list[str]]:
    """Room -> the rooms that it refers to."""
    defined: dict[str, str] = {}
    undefined: dict[str, set[str]] = {}
    for room, library in libraries.items():
        rows = [line.split() for line in run("nm", "--no-sort", library).splitlines()]
        defined.update({row[2]: room for row in rows if len(row) == 3 and row[1] in "TDBR"})
        undefined[room] = {row[1] for row in rows if len(row) == 2 and row[0] == "U"}
    return {
        room: sorted({defined[name] for name in names if name in defined} - {room, "registered"})
        for room, names in undefined.items()
    }


def options(names: list[str], state: str) -> str:
    """One option of the linker's for several libraries: neither CMake nor pkg-config takes it apart."""
    return ",".join([f"-Wl,--push-state,{state}", *[f"-l{name}" for name in names], "--pop-state"])


def settings(links: Links, torch: dict[str, str], libraries: dict[str, pathlib.Path], launch: str) -> dict[str, str]:
    """What the templates of this folder name."""
    needed = needs(libraries)
    order = list(graphlib.TopologicalSorter(needed).static_order())[::-1]
    malloc = [name for name in links.libraries if name == "tcmalloc_minimal"]
    probes = [name for name in PACKAGES if name in links.libraries]
    gcc = re.search(r"GCC: \([^)]*\) (\d+)", run("readelf", "--string-dump=.comment", "gpipe/distributed/launch"))
    absl = re.search(r"libabsl_strings\.so\.(\d+)", launch)
    return {
        "ABSL_VERSION": absl[1] if absl else "",
        "ARCHIVES": " ".join(f"${{prefix}}/lib/libgpipe_{room}.a" for room in order if room != "registered"),
        "CXX": torch["cxx"],
        "GCC": gcc[1] if gcc else "0",
        "KIND": "for CUDA" if "torch_cuda" in links.torch_libraries else "for the CPU only",
        "MALLOC": options(malloc, "--no-as-needed") if malloc else "",
        "NEEDS": "\n".join(
            # gpipe::gpipe needs "registered", so "registered" must need the libraries (lib_...) and
            # not gpipe::gpipe itself.
            f"set(_gpipe_needs_{room} {' '.join(('gpipe::lib_' if room == 'registered' else 'gpipe::') + name for name in rooms)})"
            for room, rooms in sorted(needed.items())
        ),
        "PACKAGES": " ".join(PACKAGES[name] for name in probes),
        "PC_TORCH": options(links.torch_libraries, "--no-as-needed"),
        "PROBES": " ".join(probes),
        "ROOMS": " ".join(sorted(libraries)),
        "SHARED": options([name for name in links.libraries if name not in malloc], "--as-needed"),
        "TORCH": torch["version"],
        "TORCH_FOLDER": str(links.torch),
        "TORCH_LIBRARIES": " ".join(links.torch_libraries),
        "VERSION": VERSION,
    }


def standard(torch: dict[str, str]) -> dict[str, str]:
    """What third_party/libtorch/standard.h.tpl names."""
    return {"cplusplus": {"17": "201703L", "20": "202002L"}[torch["cxx"]], "cxx": torch["cxx"], "version": torch["version"]}


def fill(template: pathlib.Path, out: pathlib.Path, values: dict[str, str]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(re.sub(r"@(\w+)@|%\{(\w+)\}", lambda match: values[match[1] or match[2]], template.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", required=True, help="the folder to install into; it need not exist")
    prefix = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), parser.parse_args().prefix).resolve()
    config = prefix / "lib/cmake/gpipe"
    includes = prefix / "include/gpipe"
    launch = prefix / "bin/launch"
    here = pathlib.Path("tools/install")
    finder = pathlib.Path("third_party/libtorch/libtorch.sh").absolute()
    versions = pathlib.Path("third_party/libtorch/versions.txt")

    links = Links(here / "link_list")
    environment = {**os.environ, "LIBTORCH_ROOT": str(links.torch)}
    environment.pop("GPIPE_LIBTORCH", None)
    torch = dict(line.split("=", 1) for line in run(finder, "torch", env=environment).splitlines())
    headers = public_headers(links, pathlib.Path("examples/downstream/public_headers.cc"))

    try:
        # An older GPipe is removed first, because its headers would be found, too.
        if (config / "gpipe-config.cmake").exists():
            shutil.rmtree(includes)
        for folder in (includes, config, launch.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for name in headers:
            (includes / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(links.headers[name], includes / name)
        fill(finder.parent / "standard.h.tpl", includes / "c10/macros/Export.h", standard(torch))
        libraries = {room: prefix / f"lib/libgpipe_{room}.a" for room in links.archives}
        with tempfile.TemporaryDirectory() as scratch:
            for room, archives in links.archives.items():
                made = pathlib.Path(scratch, "made.a")
                write_archive(made, archives)
                shutil.move(made, libraries[room])
        launch.unlink(missing_ok=True)
        run("strip", "-o", launch, "gpipe/distributed/launch")
        shutil.copy(finder, config / "libtorch.sh")
        section = re.search(rf"^version {re.escape(torch['version'])} .*$", versions.read_text(), re.MULTILINE)
        (config / "versions.txt").write_text(f"# The LibTorch that this gpipe was built for.\n{section[0]}\n")
        values = settings(links, torch, libraries, run("ldd", "gpipe/distributed/launch"))
        values["PUBLIC"] = " ".join(sorted({name.split("/")[0] for name in headers} & set(libraries)))
        fill(here / "config.cmake.in", config / "gpipe-config.cmake", values)
        fill(here / "version.cmake.in", config / "gpipe-config-version.cmake", values)
        fill(here / "gpipe.pc.in", prefix / "lib/pkgconfig/gpipe.pc", values)
    except OSError as error:
        fail(f"--prefix={prefix} cannot be written ({error.strerror}: {error.filename}): give a folder of yours")
    print(f"installed: {prefix}, for LibTorch {torch['version']}; give CMake -DCMAKE_PREFIX_PATH={prefix}")


if __name__ == "__main__":
    main()

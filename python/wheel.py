#!/usr/bin/env python3
"""Packs the Python package as a wheel: tools/bazel run //python:wheel -- --out=DIR

The extension comes with the shared libraries that it needs and Python and torch do not have.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

# Bazel starts this program in the folder of its data, which has the extension. The folder of the
# source does not have it.
HERE = pathlib.Path.cwd() / "python"
VERSION = "0.1"
TAG = "cp311-cp311-linux_x86_64"


def fail(text: str) -> None:
    sys.exit(f"GPipe: {text}")


def libraries_of(extension: pathlib.Path) -> list[pathlib.Path]:
    """The shared libraries that it needs, directly or not, and the wheel has to bring."""
    lines = subprocess.run(["ldd", extension], check=True, text=True, capture_output=True).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+)", lines, re.MULTILINE)
    return sorted(pathlib.Path(path) for name, path in found if name.startswith("libabsl_"))


def built_for(extension: bytes) -> str:
    """The torch that the extension was built for."""
    return re.search(rb"gpipe-built-for-torch ([0-9.]+)", extension).group(1).decode()


def entries(package: pathlib.Path, extension: pathlib.Path) -> dict[str, bytes]:
    """The wheel's files, without its list of them."""
    content = extension.read_bytes()
    if not content.startswith(b"\x7fELF"):
        fail(content.decode().strip())  # tools/build_defs/python.bzl writes the text
    files = {
        f"gpipe/{path.relative_to(package)}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.suffix in (".py", ".pyi") or path.name == "py.typed"
    }
    files["gpipe/_gpipe.cpython-311-x86_64-linux-gnu.so"] = content
    for library in libraries_of(extension):
        files[f"gpipe/{library.name}"] = library.read_bytes()
    info = f"gpipe-{VERSION}.dist-info"
    torch = built_for(content)
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: gpipe\nVersion: {VERSION}\n"
        f"Summary: Pipeline parallelism for torch.nn.Sequential\n"
        f"Requires-Python: ==3.11.*\nRequires-Dist: torch=={torch}\n"
    ).encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: gpipe\nRoot-Is-Purelib: false\nTag: {TAG}\n"
    ).encode()
    return files


def write(wheel: pathlib.Path, files: dict[str, bytes]) -> None:
    def hashed(content: bytes) -> str:
        digest = hashlib.sha256(content).digest()
        return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    record = f"gpipe-{VERSION}.dist-info/RECORD"
    rows = [f"{name},{hashed(content)},{len(content)}\n" for name, content in files.items()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, record: ("".join(rows) + f"{record},,\n").encode()}.items():
            # All entries have the same time, so that the same files give the same wheel.
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="the folder for the wheel")
    out = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."), parser.parse_args().out)
    wheel = out / f"gpipe-{VERSION}-{TAG}.whl"
    files = entries(HERE / "gpipe", HERE / "extension" / "_gpipe.so")
    out.mkdir(parents=True, exist_ok=True)
    write(wheel, files)
    print(wheel)


if __name__ == "__main__":
    main()

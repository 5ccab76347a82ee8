#!/usr/bin/env python3
"""Checks the links of all documents that git knows: files and headings that they lead to exist.

Links to other machines are not followed. Part of tools/lint.
"""
import os
import re
import subprocess
import sys

LINK = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^()\s]+)\)")


def prose(text):
    """The text without its blocks and words of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return re.sub(r"`[^`]*`", lambda code: code.group(0) if "](" not in code.group(0) else "", text)


def anchors(path):
    """The anchors of the text's headings, as GitHub names them."""
    with open(path, encoding="utf-8") as file:
        text = re.sub(r"^```.*?^```", "", file.read(), flags=re.S | re.M)
    found = set()
    for heading in re.findall(r"^#+ +(.*)$", text, flags=re.M):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 0
        while (name if number == 0 else f"{name}-{number}") in found:
            number += 1
        found.add(name if number == 0 else f"{name}-{number}")
    return found


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], check=True,
                            capture_output=True, text=True).stdout.split("\n")
    count = failures = 0
    for document in filter(None, listed):
        if not os.path.exists(document):
            continue  # the document is deleted, which is not committed yet
        with open(document, encoding="utf-8") as file:
            text = prose(file.read())
        for link in LINK.findall(text):
            if re.match(r"[a-z]+:", link):
                continue
            count += 1
            target, _, anchor = link.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(document), target)) if target else document
            if not os.path.exists(path):
                problem = f"{path} does not exist"
            elif anchor and path.endswith(".md") and anchor not in anchors(path):
                problem = f"{path} has no heading for #{anchor}"
            else:
                continue
            failures += 1
            print(f"{document}: ({link}): {problem}", file=sys.stderr)
    print(f"{count} links, {failures} broken")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())

"""pictures: takes pictures of a report's page, for the README, with a headless Chromium."""

import argparse
import os
import pathlib
import sys

import browser


def main(arguments):
    parser = argparse.ArgumentParser(prog="pictures", description=__doc__, allow_abbrev=False)
    parser.add_argument("--page", required=True, metavar="FILE", help="the page, DIR/index.html")
    parser.add_argument("--output", required=True, metavar="FILE", help="the PNG")
    parser.add_argument("--part", default="", metavar="SELECTOR",
                        help="a part of the page only, as in CSS: '#resnet101_speed table' (default: all of it)")
    parser.add_argument("--width", type=int, default=1280, help="in pixels (default: 1280)")
    parser.add_argument("--dark", action="store_true", help="as in dark mode")
    flags = parser.parse_args(arguments)
    start = pathlib.Path(os.environ.get("BUILD_WORKING_DIRECTORY", "."))
    program = browser.find()
    if not program:
        sys.exit("pictures: none of {} is on PATH; Debian: apt-get install chromium".format(", ".join(browser.NAMES)))
    if not (start / flags.page).is_file():
        sys.exit("pictures: --page={}: there is no such file; name the report's index.html".format(flags.page))
    with browser.Page(program) as page:
        page.view(flags.width, flags.dark)
        page.open(start / flags.page)
        page.evaluate("window.plotsDrawn.then(() => true)")
        if flags.part and not page.evaluate("document.querySelector({!r}) !== null".format(flags.part)):
            sys.exit("pictures: --part={}: the page has no such part; give a CSS selector of one".format(flags.part))
        page.picture(start / flags.output, flags.part)
    print("written: {}".format(flags.output))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The page in a headless Chromium: plots, light and dark, wide and on a phone, nothing from the network.

Skipped, visibly, where there is no browser; tools/ci/browser-packages.txt is what CI installs.
"""

import contextlib
import io
import os
import pathlib
import re
import sys
import tempfile
import unittest

import browser
import golden_page
import page
import pictures

DATA = pathlib.Path("experiments/report/testdata")
PROGRAM = browser.find()

# JavaScript that returns what the page shows of each plot: its name, its lines and points, the
# color of its text, and its width.
PLOTS = """Array.from(document.querySelectorAll(".plot"), (plot) => ({
  id: plot.id,
  drawn: plot.querySelectorAll("svg.main-svg").length > 0,
  names: (plot.data || []).map((trace) => trace.name),
  points: (plot.data || []).map((trace) => trace.y),
  ink: plot.layout && plot.layout.font.color,
  width: plot.getBoundingClientRect().width,
}))"""


def brightness(color):
    """0 for black, 255 for white; of "#1d2127" or "rgb(29, 33, 39)"."""
    if color.startswith("#"):
        parts = [int(color[k:k + 2], 16) for k in (1, 3, 5)]
    else:
        parts = [float(part) for part in re.findall(r"[\d.]+", color)[:3]]
    return sum(parts) / 3


@unittest.skipUnless(PROGRAM, "no browser")
class Browser(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.report = golden_page.report(DATA, pathlib.Path(sys.argv[1]).read_text())
        cls.path = cls.write("page.html", cls.report)
        cls.page = browser.Page(PROGRAM)

    @classmethod
    def tearDownClass(cls):
        cls.page.__exit__()
        cls.folder.cleanup()

    @classmethod
    def write(cls, name, report):
        path = pathlib.Path(cls.folder.name, name)
        path.write_text(page.render(report))
        return path

    def open(self, width, dark=False, path=None):
        self.page.errors.clear()
        self.page.requests.clear()
        self.page.view(width, dark)
        self.page.open(path or self.path)
        self.page.evaluate("window.plotsDrawn.then(() => true)")

    def style(self, selector, name):
        return self.page.evaluate("getComputedStyle(document.querySelector('{}')).{}".format(selector, name))

    def test_every_plot_is_drawn_with_the_tables_points(self):
        wanted = [plot for section in self.report.sections for plot in page._view(section)["plots"]]
        self.assertGreater(len(wanted), 6)
        for width in (1280, 360):
            for dark in (False, True):
                with self.subTest(width=width, dark=dark):
                    self.open(width, dark)
                    found = {plot["id"]: plot for plot in self.page.evaluate(PLOTS)}
                    for plot in wanted:
                        drawn = found[plot["id"]]
                        self.assertTrue(drawn["drawn"])
                        self.assertEqual(drawn["names"], [line["name"] for line in plot["series"]])
                        self.assertEqual(drawn["points"], [line["y"] for line in plot["series"]])
                        self.assertEqual(brightness(drawn["ink"]) > 128, dark)
                    self.assertEqual(len(found), len(wanted))
                    self.assertEqual(self.page.errors, [])

    def test_the_network_is_not_asked(self):
        self.open(1280)
        self.assertEqual([url for url in self.page.requests if not url.startswith(("file:", "data:"))], [])
        self.assertEqual(len([url for url in self.page.requests if url.startswith("file:")]), 1)

    def test_on_a_phone_only_tables_scroll_sideways(self):
        for width in (360, 320):
            self.open(width)
            self.assertEqual(self.page.evaluate("[innerWidth, document.documentElement.scrollWidth]"), [width, width])
            self.assertTrue(self.page.evaluate(
                "Array.from(document.querySelectorAll('.scroll')).some((box) => box.scrollWidth > box.clientWidth)"))

    def test_boxes_that_scroll_say_so(self):
        wrong = ("Array.from(document.querySelectorAll('.scroll')).filter((box) => {"
                 " const wide = box.scrollWidth > box.clientWidth + 1;"
                 " return box.classList.contains('more') !== wide || box.nextElementSibling.hidden === wide; }).length")
        for width in (1280, 360):
            self.open(width)
            self.assertEqual(self.page.evaluate(wrong), 0)
        more = self.page.evaluate(
            "new Promise((done) => { const box = document.querySelector('.scroll'); box.scrollLeft = 10000;"
            " const look = () => box.classList.contains('more') ? setTimeout(look, 20) : done(false); look(); })")
        self.assertFalse(more)

    def test_where_memory_ran_out_the_plot_says_so(self):
        self.open(360)
        said = self.page.evaluate("Array.from(document.querySelectorAll('#plot-made_memory-2 .annotation'),"
                                  " (mark) => mark.textContent)")
        self.assertEqual(said, ["out of memory"] * 2)

    def test_every_bar_has_its_label(self):
        self.open(360)
        self.assertEqual(self.page.evaluate(
            "Array.from(document.querySelectorAll('.plot')).filter((plot) => {"
            " const labels = plot.layout.xaxis.ticktext;"
            " const shown = Array.from(plot.querySelectorAll('.xtick text')).filter((text) => text.style.display !== 'none');"
            " return shown.map((text) => text.textContent).join() !== labels.join(); }).map((plot) => plot.id)"), [])

    def test_light_and_dark_can_be_read(self):
        for dark in (False, True):
            self.open(1280, dark)
            paper = brightness(self.style("html", "getPropertyValue('--paper')").strip())
            self.assertEqual(paper < 128, dark)
            self.assertEqual(brightness(self.style("body", "backgroundColor")), paper)
            for selector in ("body", ".tag.measured", ".tag.planned", ".tag.simulated", ".tag.failed", ".tag.not-run",
                             "a", "td.published"):
                self.assertGreater(abs(brightness(self.style(selector, "color")) - paper), 80, (selector, dark))

    def test_plots_follow_the_users_preference(self):
        self.open(1280)
        self.page.view(1280, dark=True)
        ink = ("new Promise((done) => { const look = () => {"
               " const ink = document.querySelector('.plot').layout.font.color;"
               " if (ink === getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()) done(ink);"
               " else setTimeout(look, 20); }; look(); })")
        self.assertGreater(brightness(self.page.evaluate(ink)), 128)

    def test_prints_dark_on_light(self):
        self.open(1280, dark=True)
        self.page.view(1280, dark=True, media="print")
        self.assertLess(brightness(self.style("body", "color")), 80)

    def test_commands_are_copied_or_selected(self):
        self.open(1280)
        said = self.page.evaluate(
            "new Promise((done) => { const b = document.querySelector('.copy'); b.click();"
            " const look = () => b.textContent === 'copy' ? setTimeout(look, 20) : done(b.textContent); look(); })")
        self.assertIn(said, ("copied", "selected"))

    def test_without_the_library_it_says_so(self):
        self.open(1280, path=self.write("without.html", golden_page.report(DATA)))
        self.assertIn("missing", self.page.evaluate("document.querySelector('.plot').textContent"))
        self.assertEqual(self.page.errors, [])

    def test_a_picture(self):
        self.open(360)
        path = pathlib.Path(self.folder.name, "picture.png")
        self.page.picture(path, "#made_speed")
        data = path.read_bytes()
        self.assertEqual(data[:8], b"\x89PNG\r\n\x1a\n")
        self.assertLessEqual(int.from_bytes(data[16:20], "big"), 360 + 24)
        self.assertGreater(int.from_bytes(data[20:24], "big"), 500)

    def test_the_command_that_takes_pictures(self):
        path = pathlib.Path(self.folder.name, "part.png")
        with contextlib.redirect_stdout(io.StringIO()) as said:
            pictures.main(["--page={}".format(self.path), "--output={}".format(path), "--part=figure", "--dark"])
        self.assertIn("written:", said.getvalue())
        self.assertEqual(path.read_bytes()[:4], b"\x89PNG")
        with self.assertRaises(SystemExit) as exit_:
            pictures.main(["--page={}".format(self.path), "--output={}".format(path), "--part=#none"])
        self.assertIn("the page has no such part", str(exit_.exception))
        with self.assertRaises(SystemExit) as exit_:
            pictures.main(["--page=/no/such", "--output={}".format(path)])
        self.assertIn("there is no such file", str(exit_.exception))

    def test_mistakes_in_scripts_are_noticed(self):
        path = pathlib.Path(self.folder.name, "wrong.html")
        path.write_text("<script>nothing.at.all()</script><script>fetch('http://gpipe.invalid/')</script>")
        self.page.errors.clear()
        self.page.requests.clear()
        self.page.open(path)
        self.assertTrue(any("nothing is not defined" in error for error in self.page.errors), self.page.errors)
        self.assertIn("http://gpipe.invalid/", self.page.requests)
        with self.assertRaises(browser.BrowserError):
            self.page.evaluate("nothing.at.all()")


if __name__ == "__main__":
    if not PROGRAM and "XML_OUTPUT_FILE" in os.environ:
        print("SKIPPED: none of {} is on PATH".format(", ".join(browser.NAMES)))
        pathlib.Path(os.environ["XML_OUTPUT_FILE"]).write_text(
            '<testsuites><testsuite><testcase name="browser" status="notrun"><skipped message="no browser"/></testcase>'
            "</testsuite></testsuites>\n")
    unittest.main(argv=sys.argv[:1])

"""page.py: its text is the golden one, its links lead somewhere, and it needs nothing from outside.

After a change that is meant: tools/bazel run //experiments/report:page_test -- --update
"""

import html.parser
import os
import pathlib
import sys
import unittest

import golden_page
import page
import page_text

DATA = pathlib.Path("experiments/report/testdata")
GOLDEN = DATA / "page.txt"


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.names, self.targets, self.sources = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.names.append(value)
            elif name == "href":
                self.targets.append(value)
            elif name in ("src", "srcset", "data", "action"):
                self.sources.append(value)


class Page(unittest.TestCase):
    maxDiff = None

    def test_text(self):
        self.assertEqual(page_text.of(page.render(golden_page.report(DATA))), GOLDEN.read_text())

    def test_links_lead_somewhere(self):
        links = Links(page.render(golden_page.report(DATA)))
        self.assertEqual(len(links.names), len(set(links.names)))
        inside = [target[1:] for target in links.targets if target.startswith("#")]
        self.assertGreater(len(inside), 20)
        self.assertIn("which", inside)
        self.assertEqual([name for name in inside if name not in links.names], [])

    def test_needs_nothing_from_outside(self):
        links = Links(page.render(golden_page.report(DATA)))
        outside = [target for target in links.targets + links.sources if not target.startswith(("#", "data:"))]
        self.assertEqual(outside, [])
        css = (pathlib.Path(page.__file__).parent / "page.css").read_text()
        self.assertNotIn("url(", css)
        self.assertNotIn("@import", css)

    def test_with_plotly_it_stays_small(self):
        text = page.render(golden_page.report(DATA, pathlib.Path(sys.argv[1]).read_text()))
        self.assertLess(len(text.encode()), 2_500_000)

    def test_text_from_outside_is_text(self):
        report = golden_page.report(DATA)
        table = report.sections[1].result.json
        table["title"] = "<script>alert(1)</script>"
        table["rows"][0]["experiment"] = "</script><b>"
        table["rows"][0]["note"] = "<img src=x>"
        text = page.render(report)
        self.assertNotIn("<script>alert", text)
        self.assertNotIn("</script><b>", text)
        self.assertNotIn("<img src=x>", text)

    def test_what_is_measured_at_the_published_size_is_not_said_to_be_of_another(self):
        def said(*scales):
            report = golden_page.report(DATA)
            report.sections = [section for section in report.sections if section.name == "made_speed"]
            measured = [row for row in report.sections[0].result.json["rows"] if row["origin"] == "measured"]
            for row, scale in zip(measured, scales):
                row["settings"]["scale"] = scale
            text = page_text.of(page.render(report))
            self.assertEqual(len(measured), len(scales))
            return ("is of another size" in text, "at --scale=full has that size" in text)

        self.assertEqual(said("smoke", "smoke", "small"), (True, False))
        self.assertEqual(said("full", "full", "full"), (False, True))
        self.assertEqual(said("full", "smoke", "full"), (True, True))

    def test_measured_rows_of_the_published_size_have_the_ratio_that_the_program_gives(self):
        report = golden_page.report(DATA)
        section = next(section for section in report.sections if section.name == "made_speed")
        row = section.result.json["rows"][0]
        row["settings"]["scale"] = "full"
        row["figures"]["throughput"].update(ours=90.5, compared=0.944)
        self.assertIn("measured^1 | 90.5 | 95.862 | 0.944 |", page_text.of(page.render(report)))

    def test_a_subtitle_does_not_repeat_the_heading(self):
        self.assertEqual(page.subtitle("U-Net memory: ours beside theirs", "U-Net memory"), "Ours beside theirs")
        self.assertEqual(page.subtitle("U-Net memory", "U-Net memory"), "")
        self.assertEqual(page.subtitle("U-Nets: ours", "U-Net"), "U-Nets: ours")
        self.assertEqual(page.subtitle("U-Net (5, 64) speed: ours", "U-Net speed"), "U-Net (5, 64) speed: ours")

    def test_flags_do_not_break_into_lines(self):
        self.assertEqual(page.whole_flags("<at> --scale=smoke/full, now"),
                         '&lt;at&gt; <span class="whole">--scale=smoke/full</span>, now')


if __name__ == "__main__":
    if "--update" in sys.argv:
        file = pathlib.Path(os.environ["BUILD_WORKSPACE_DIRECTORY"], GOLDEN)
        file.write_text(page_text.of(page.render(golden_page.report(DATA))))
        print("written: {}".format(GOLDEN))
    else:
        unittest.main(argv=sys.argv[:1])

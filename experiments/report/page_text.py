"""page_text: what a reader sees of an HTML page, as text for golden files."""

import html.parser

_SKIPPED = {"script", "style", "head", "svg", "button"}
_BLOCKS = {"p", "h1", "h2", "li", "tr", "dt", "dd", "figcaption", "summary", "pre", "div", "section", "table", "nav",
           "ol", "dl", "figure", "details", "header", "main", "footer", "noscript"}


class _Text(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.lines = [""]
        self.skipped = 0

    def handle_starttag(self, tag, attributes):
        if tag in _SKIPPED:
            self.skipped += 1
        elif self.skipped:
            return
        elif tag in _BLOCKS:
            self.lines.append({"h1": "# ", "h2": "## ", "li": "* ", "summary": "> "}.get(tag, ""))
        elif tag in ("td", "th"):
            span = [dict(attributes).get(name) for name in ("rowspan", "colspan")]
            self.lines[-1] += "| " + "".join(mark + value + " " for mark, value in zip("↓→", span) if value)
        elif tag == "sup":
            self.lines[-1] += "^"
        elif tag == "img":
            self.lines[-1] += "[image: {}]".format(dict(attributes).get("alt"))

    def handle_endtag(self, tag):
        if tag in _SKIPPED:
            self.skipped -= 1
        elif not self.skipped and tag in _BLOCKS:
            self.lines.append("")
        elif not self.skipped and tag in ("td", "th"):
            self.lines[-1] += " "

    def handle_data(self, data):
        if not self.skipped:
            self.lines[-1] += " " * data[:1].isspace() + " ".join(data.split()) + " " * data[-1:].isspace()


def of(page):
    """Lines of text; table cells begin with "|", those that span rows or columns with an arrow and how many."""
    parser = _Text()
    parser.feed(page)
    lines = [" ".join(line.split()) for line in parser.lines]
    return "".join(line + "\n" for line in lines if line)

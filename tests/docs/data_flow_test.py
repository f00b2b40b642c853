"""docs/data_flow.md and the headers that it names: every link leads somewhere, and every header but the simulations'
opens, right behind #pragma once, with a comment that has `Called by:` and `Calls:`.

A newcomer goes from that page into the code and back; a header without these labels ends the way.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/data_flow.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEAD = re.compile(r"#pragma once\n\n((?://[^\n]*\n|\n(?=//))+)")


def links():
    """(file or None for the page itself, anchor or "") of each link."""
    found = []
    for target in LINK.findall(PAGE.read_text()):
        if not target.startswith(("http://", "https://")):
            file, _, anchor = target.partition("#")
            found.append(((PAGE.parent / file).resolve() if file else PAGE, anchor))
    return found


def anchors(page):
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class DataFlow(unittest.TestCase):
    def test_links_lead_somewhere(self):
        self.assertGreater(len(links()), 100, "where are the page's links?")
        for file, anchor in links():
            with self.subTest(link=f"{file.name}#{anchor}"):
                self.assertTrue(file.exists(), "there is no such file")
                if anchor:
                    self.assertIn(anchor, anchors(file), "there is no such heading")

    def test_headers_name_callers_and_callees(self):
        headers = {file for file, _ in links() if file.suffix == ".h" and ROOT / "tests" not in file.parents}
        self.assertGreater(len(headers), 50, "where are the page's headers?")
        for header in sorted(headers):
            with self.subTest(header=str(header.relative_to(ROOT))):
                head = HEAD.match(header.read_text())
                self.assertIsNotNone(head, "it does not begin with #pragma once, a blank line and a comment")
                for label in ("Called by:", "Calls:"):
                    self.assertRegex(head[1], rf"\b{label}", "its first comment lacks a label")


if __name__ == "__main__":
    unittest.main()

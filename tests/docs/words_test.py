"""README.md and docs/: plain sentences, narrow tables, no retired words, and nothing named that is not there.

  - no sentence longer than 40 words (outside code blocks and tables; `code` is one word, a link is its text)
  - no table cell longer than 160 characters in README.md and docs/status.md, no operator's page longer than 3,000 words
  - no retired word: RETIRED_PHRASES on pages and in the code, RETIRED_NAMES in the code
  - every relative link leads to a file, its anchor to a heading; every path in backticks that begins with a folder of
    the repository exists (in the pages beside the code, too)

Checker tries the rules on bad samples first: a rule that finds nothing there is broken.
"""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOST_WORDS = 40
MOST_CELL = 160
MOST_PAGE = 3000
OPERATORS_PAGES = ("docs/install.md", "docs/run.md", "docs/drain.md", "docs/monitor.md", "docs/failures.md", "docs/checkpoints.md")
NARROW_PAGES = ("README.md", "docs/status.md")

RETIRED_PHRASES = (
    "heard of by nobody",
    "could have been heard",
    "that was new has been made with it",
    "when last, and whether the answer was",
    "but so many, the newest",
    "stop no other one",
    "come or stay away",
    "gone on without",
    "looks again for ever",
    "whoever finds none",
    "of which nobody",
    "who was heard",
    "so that it hears",
    "All that there is to send",
    "the locks of whoever",
    "on a terminal for ever",
    "no part of any is removed",
    "by whomever",
    "did not come about",
    "sits in between",
    "this is what there is",
    "nobody knows any more",
)
# In *.h and *.cc. Before: and After: as labels of a header's first comment are `Called by:` and `Calls:` now.
RETIRED_NAMES = (
    r"let_come_back",
    r"\buntold",
    r"\bfarewells_",
    r"\bstir\(",
    r"\bforgive",
    r"\bdoubters_",
    r"\bon_back\b",
    r"^// (?:.*\. )?Before:",
    r"^// (?:.*\. )?After:",
)
CODE_FOLDERS = ("bench", "cli", "common", "coordinator", "models", "server", "sync", "tests", "worker")
PATH_FOLDERS = CODE_FOLDERS + ("cmake", "dashboards", "deploy", "docs", "proto")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ABBREVIATIONS = ("e.g.", "i.e.", "et al.", "etc.", "vs.", "cf.")


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def all_pages():
    """Those, and what stands beside the code."""
    return [*pages(), *(page for folder in PATH_FOLDERS if folder != "docs" for page in sorted((ROOT / folder).rglob("*.md")))]


def name(page):
    return str(page.relative_to(ROOT))


def lines_outside_code(text):
    """(number, line) of what is not in a fenced block, nor set off by four blanks behind an empty line."""
    fenced, indented, blank = False, False, True
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            indented = line.startswith("    ") and (blank or indented)
            if not indented:
                yield number, line
        blank = not line.strip()


def paragraphs(text):
    """(number of the first line, text) of each paragraph, list item and heading; tables are left out."""
    begin, found = 0, []
    for number, line in [*lines_outside_code(text), (0, "")]:
        bare = line.strip()
        is_item = re.match(r"(?:[-*]|\d+\.)\s", bare)
        is_heading = bare.startswith("#")
        if found and (not bare or is_item or is_heading or bare.startswith("|") or number > last + 1):
            yield begin, " ".join(found)
            found = []
        if bare and not bare.startswith("|"):
            begin = begin if found else number
            found.append(re.sub(r"^(?:[-*]|\d+\.)\s+", "", bare))
            if is_heading:
                yield begin, " ".join(found)
                found = []
        last = number


def sentences(paragraph):
    plain = LINK.sub(lambda link: link[1], paragraph)
    plain = re.sub(r"``[^`]+``|`[^`]+`", "CODE", plain)
    for word in ABBREVIATIONS:
        plain = plain.replace(word, word.replace(".", ""))
    return [s for s in re.split(r"(?<=[.!?])[\"')*_]*\s+", plain) if s]


def long_sentences(text):
    """(line where its paragraph begins, words, sentence)."""
    found = []
    for number, paragraph in paragraphs(text):
        for sentence in sentences(paragraph):
            words = sum(1 for word in sentence.split() if re.search(r"\w", word))
            if words > MOST_WORDS:
                found.append((number, words, sentence))
    return found


def wide_cells(text):
    return [(number, len(cell.strip()), cell.strip()) for number, line in lines_outside_code(text)
            if line.lstrip().startswith("|") for cell in re.split(r"(?<!\\)\|", line)
            if len(cell.strip()) > MOST_CELL]


def headings(text):
    """Anchors as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", re.sub(r"^#+ +", "", line).lower()).replace(" ", "-")
            for _, line in lines_outside_code(text) if line.startswith("#")}


def broken_links(text, page):
    found = []
    for number, line in lines_outside_code(text):
        for target in (link[2] for link in LINK.finditer(line)):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (page.parent / file).resolve() if file else page
            known = {anchor} if not anchor or there.suffix != ".md" else set()
            if not there.exists():
                found.append((number, target))
            elif anchor and not known and anchor not in headings(text if there == page else there.read_text()):
                found.append((number, target))
    return found


def missing_paths(text):
    """In backticks: of a pattern (*, {a,b}) something must match."""
    found = []
    for number, line in lines_outside_code(text):
        for span in re.findall(r"`([^`\s]+)`", line):
            if not re.match(rf"(?:{'|'.join(PATH_FOLDERS)})/[\w./*{{}},-]*$", span):
                continue
            patterns = [span.rstrip("/")]
            while any("{" in pattern for pattern in patterns):
                patterns = [pattern.replace(f"{{{choices}}}", choice, 1) for pattern in patterns
                            for choices in re.findall(r"\{([^}]*)\}", pattern)[:1] for choice in choices.split(",")]
            if not all(any(True for _ in ROOT.glob(pattern)) for pattern in patterns):
                found.append((number, span))
    return found


def retired_phrases(text):
    flat = re.sub(r"\s+(?:///?\s*)?", " ", re.sub(r'"\n\s*"', "", text))
    return [phrase for phrase in RETIRED_PHRASES if phrase in flat]


def code():
    """Our sources, without what a build or a download has put there."""
    return [file for folder in CODE_FOLDERS for suffix in ("*.h", "*.cc")
            for file in sorted((ROOT / folder).rglob(suffix))]


class Checker(unittest.TestCase):
    """It must be able to fail."""

    def test_sentences(self):
        long = " ".join(["word"] * 41)
        short = " ".join(["word"] * 40)
        self.assertEqual(long_sentences(f"# Title\n\n{short}. {short}.\n\n```\n{long}\n```\n\n    {long}\n\n| {long} |\n"), [])
        self.assertEqual([(line, words) for line, words, _ in long_sentences(f"# Title\n\n- one\n- {long}\n  or two\n")], [(4, 43)])
        self.assertEqual([words for _, words, _ in long_sentences(f"{short}: so `it is` [a link](b.md) et al. go")], [47])
        self.assertEqual(len(long_sentences(f"{long}; {long}\n\n{short}.\n{long}.\n")), 2)

    def test_cells(self):
        self.assertEqual(wide_cells("| a | " + "b" * 160 + " |\n" + "c" * 200), [])
        self.assertEqual([(line, width) for line, width, _ in wide_cells("| a | b |\n| a | " + "b" * 161 + " |")], [(2, 161)])

    def test_links(self):
        page = ROOT / "README.md"
        text = "# Two words\n[a](README.md) [b](#two-words) [c](docs) [d](https://x.y)\n"
        self.assertEqual(broken_links(text, page), [])
        self.assertEqual(broken_links(f"{text}[e](none.md)\n[f](#three)\n", page), [(3, "none.md"), (4, "#three")])

    def test_paths(self):
        self.assertEqual(missing_paths("`tests/docs/` `tests/docs/*_test.py` `tests/{docs,sim}` `nothing/here`"), [])
        self.assertEqual(missing_paths("\n`tests/none.h` `tests/*.none` `tests/{docs,none}`"),
                         [(2, "tests/none.h"), (2, "tests/*.none"), (2, "tests/{docs,none}")])

    def test_words(self):
        self.assertEqual(retired_phrases("a message of which\n  /// nobody hears"), ["of which nobody"])
        self.assertEqual(retired_phrases('"of "\n    "which nobody"'), ["of which nobody"])
        self.assertEqual(retired_phrases("A message is delivered."), [])
        self.assertRegex("// The door. Before: peers.", RETIRED_NAMES[-2])
        self.assertNotRegex("// Before a step", RETIRED_NAMES[-2])


class Pages(unittest.TestCase):
    def check(self, rule, places, says):
        bad = [f"{name(page)}:{found[0]}: {found[1]} {found[2] if len(found) > 2 else ''}"
               for page in places for found in rule(page)]
        self.assertEqual(len(bad), 0, f"{says}:\n" + "\n".join(bad))

    def test_sentences_are_short(self):
        self.check(lambda page: long_sentences(page.read_text()),
                   pages(), f"more than {MOST_WORDS} words")

    def test_cells_are_narrow(self):
        self.check(lambda page: wide_cells(page.read_text()), [ROOT / page for page in NARROW_PAGES],
                   f"more than {MOST_CELL} characters")

    def test_operators_pages_are_short(self):
        self.check(lambda page: [(0, len(page.read_text().split()))] if len(page.read_text().split()) > MOST_PAGE else [],
                   [ROOT / page for page in OPERATORS_PAGES], f"more than {MOST_PAGE} words")

    def test_links_lead_somewhere(self):
        self.check(lambda page: broken_links(page.read_text(), page), all_pages(), "no such file or heading")

    def test_paths_exist(self):
        self.check(lambda page: missing_paths(page.read_text()), all_pages(), "no such file or folder")

    def test_no_retired_word(self):
        texts = {name(file): file.read_text() for file in [*pages(), *code()]}
        self.assertGreater(len(texts), 500, "where is the code?")
        found = {word: [] for word in (*RETIRED_PHRASES, *RETIRED_NAMES)}
        for place, text in texts.items():
            for phrase in retired_phrases(text):
                found[phrase].append(place)
            for word in RETIRED_NAMES if place.endswith((".h", ".cc")) else ():
                if re.search(word, text, re.MULTILINE):
                    found[word].append(place)
        for word, places in found.items():
            with self.subTest(word):
                self.assertEqual(places, [])


if __name__ == "__main__":
    unittest.main()

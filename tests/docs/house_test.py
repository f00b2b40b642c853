"""The wings of the house: which folder may include which. docs/house.md describes the same for people.

Three rules, over every source file that git tracks:
1. An include goes down: from a wing to itself, or to one that WINGS lists for it. WINGS has no cycle.
2. A folder inside a wing may include its neighbours, but no cycle of folders may come of it.
3. What another wing may include of a wing is its public headers, which PUBLIC lists; the rest is the wing's own business.
   `common` is made to be included, so all of its headers are public but those in PRIVATE. Unit tests see everything of
   the wings below them.
And a folder has at most FILES files, its tests included: more than that is no room but a warehouse.
A class of the coordinator has at most MEMBERS data members and METHODS methods, private ones included.
"""

import collections
import fnmatch
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Each wing, and those whose headers it may include.
WINGS = {
    "proto": (),
    "common": ("proto",),
    "models": ("common",),
    "sync": ("common", "proto"),
    "server": ("sync", "common", "proto"),
    "worker": ("sync", "models", "common", "proto"),
    "client": ("sync", "models", "common", "proto"),
    "coordinator": ("models", "common", "proto"),
    "cli": ("coordinator", "worker", "models", "common", "proto"),
    "bench": ("cli", "client", "coordinator", "worker", "server", "sync", "models", "common", "proto"),
    "tests": ("bench", "cli", "client", "coordinator", "worker", "server", "sync", "models", "common", "proto"),
}
# Unit tests may use what tests share.
SHARED_BY_TESTS = ("tests/support/", "tests/twins/", "tests/golden/")

PUBLIC = {
    "models": ("models/shipped.h", "models/net/net.h", "models/net/initialise.h", "models/net/model_tensors.h",
               "models/net/batch_norm_errors.h", "models/net/model_layout.h", "models/weights/*.h"),
    "sync": ("sync/chunks/*.h", "sync/client/factor_engine.h", "sync/client/sync_client.h", "sync/links/peer_stream.h",
             "sync/node/*.h", "sync/relay/relay_service.h", "sync/routes/layer_memory.h", "sync/routes/program_rates.h",
             "sync/states/*.h"),
    "server": (),
    "worker": ("worker/data/feed/batches.h", "worker/data/formats/pack.h", "worker/data/formats/record_format.h",
               "worker/data/formats/records_dataset.h", "worker/engine/model_file.h",
               "worker/engine/plugin/device_name.h", "worker/engine/plugin/nvidia_driver.h"),
    "coordinator": ("coordinator/planning/*.h", "coordinator/records/checkpoint_archive.h", "coordinator/records/durable_job.h",
                    "coordinator/records/earlier_run.h", "coordinator/records/run_directory.h",
                    "coordinator/records/state_directory.h"),
    "client": (),
    "cli": (),
}
PRIVATE = ("common/tensor/kernels_body.h", "common/tensor/kernels_variants.h", "common/tensor/kernels/kernels_body.h",
           "common/tensor/kernels/kernels_variants.h", "common/job/job_optimizer.h")

FILES = 30
# Folders of files that are alike, where a number says nothing.
LISTS = ("tests/process", "tests/fuzz/corpus", "tests/golden", "tests/data", "docs/decisions", "bench", "deploy", "dashboards")

# Folders whose headers declare no class with more data members or methods than this. A class that needs more is two.
SMALL_CLASSES = ("coordinator/job", "coordinator/cluster")
MEMBERS, METHODS = 25, 40

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def wing_of(file):
    return file.split("/")[0]


def is_test(file):
    return "_test" in file.rsplit("/", 1)[-1] or "/tests/" in file


def includes_of(files):
    """[(file, header of ours that it includes)]."""
    known = set(files)
    return [(file, header) for file in files if file.endswith((".cc", ".h", ".cu", ".cuh"))
            for header in INCLUDE.findall((ROOT / file).read_text()) if header in known]


def cycle_in(arrows):
    """A list of nodes, each with an arrow to the next and the last to the first; [] if there is none."""
    state, path = {}, []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for other in sorted(arrows.get(node, ())):
            if state.get(other) == "open":
                return path[path.index(other):]
            if other not in state and (found := visit(other)):
                return found
        state[node] = "done"
        path.pop()
        return []

    for node in sorted(arrows):
        if node not in state and (found := visit(node)):
            return found
    return []


def is_public(header):
    wing = wing_of(header)
    if wing in ("bench", "tests", "proto"):
        return True
    if wing == "common":
        return header not in PRIVATE
    return any(fnmatch.fnmatch(header, pattern) for pattern in PUBLIC[wing])


def findings(includes):
    """What rules 1 and 3 say against these includes, a line each."""
    found = []
    for file, header in includes:
        here, there = wing_of(file), wing_of(header)
        if here == there or here not in WINGS or (is_test(file) and header.startswith(SHARED_BY_TESTS)):
            continue
        if there not in WINGS[here] and not (is_test(file) and wing_rank(there) <= wing_rank(here)):
            found.append(f"{file} includes {header}: {here} may not include {there}")
        elif not is_public(header) and here not in ("bench", "tests") and not is_test(file):
            found.append(f"{file} includes {header}, which is private to {there}")
    return found


def without(pattern, text):
    """The text after removing the pattern, again and again until it is nowhere."""
    while (shorter := re.sub(pattern, " ", text)) != text:
        text = shorter
    return text


def block_end(text, begin):
    """The index after the brace that closes the one at `begin`."""
    depth = 0
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    return len(text)


def declarations(body):
    """What a class body declares, one text each, without the bodies of functions and nested classes."""
    found, text, i = [], "", 0
    while i < len(body):
        if body[i] == "{":
            i = block_end(body, i)
            signature = without(r"<[^<>]*>", text)
            is_function = "(" in signature and not re.match(r"\s*(class|struct|enum|union)\b", text)
            # A value among the parameters, or in a constructor's list: the declaration goes on.
            is_over = signature.count("(") == signature.count(")") and body[i:].lstrip()[:1] not in (",", "{", ";")
            if is_function and is_over:
                found, text = [*found, text], ""
            continue
        if body[i] == ";":
            found, text = [*found, text], ""
        else:
            text += body[i]
        i += 1
    labels = r"^\s*((public|private|protected)\s*:(?!:)\s*)*"
    return [" ".join(re.sub(labels, "", each).split()) for each in found if each.strip()]


def size_of(body):
    """(data members, methods) of a class body. Constants, types, friends and deleted functions do not count."""
    members = methods = 0
    for text in declarations(without(r"ABSL_\w+\([^()]*\)", body)):
        if re.match(r"(using|typedef|friend|static_assert|class|struct|enum|union|static constexpr)\b", text):
            continue
        if "operator" in text or "(" in without(r"<[^<>]*>", text).split("=")[0]:
            methods += not text.endswith("= delete")
        else:
            members += 1 + without(r"<[^<>]*>", text).count(",")
    return members, methods


def classes_of(header):
    """{class: (data members, methods)} of the text of a header, nested classes included."""
    code = re.sub(r"//.*|/\*.*?\*/|^\s*#.*", "", header, flags=re.MULTILINE)
    code = re.sub(r'"(\\.|[^"\\])*"', '""', code)
    return {match[2]: size_of(code[match.end():block_end(code, match.end() - 1) - 1])
            for match in re.finditer(r"(?<!enum )\b(class|struct)\s+(\w+)(?:\s+final)?(?:\s*:[^:{};][^{};]*)?\s*\{", code)}


def wing_rank(wing):
    """0 for a wing that includes none, else one more than the highest of those that it may include."""
    return 1 + max(map(wing_rank, WINGS[wing])) if WINGS.get(wing) else 0


def folder_arrows(includes):
    """{folder: folders it includes}, inside the wings. Tests and what tests share are left out."""
    arrows = collections.defaultdict(set)
    for file, header in includes:
        here, there = str(pathlib.PurePath(file).parent), str(pathlib.PurePath(header).parent)
        if here != there and not is_test(file) and wing_of(file) not in ("tests", "bench"):
            arrows[here].add(there)
    return arrows


def tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        return [file for file in listed.stdout.splitlines() if (ROOT / file).is_file()]
    return [str(file.relative_to(ROOT)) for wing in WINGS for file in (ROOT / wing).rglob("*") if file.is_file()]


class House(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tracked()
        cls.includes = includes_of(cls.files)

    def test_includes_go_down_and_to_public_headers(self):
        self.assertGreater(len(self.includes), 2000, "where are the includes?")
        self.assertEqual(cycle_in(WINGS), [])
        self.assertEqual(findings(self.includes), [])

    def test_no_cycle_of_folders(self):
        self.assertEqual(cycle_in(folder_arrows(self.includes)), [])

    def test_public_headers_are_there_and_used(self):
        crossing = {header for file, header in self.includes if wing_of(file) != wing_of(header)}
        for patterns in PUBLIC.values():
            for pattern in patterns:
                with self.subTest(pattern=pattern):
                    self.assertTrue(fnmatch.filter(crossing, pattern), "no other wing includes it: it is private")

    def test_folders_are_rooms(self):
        count = collections.Counter(str(pathlib.PurePath(file).parent) for file in self.files)
        large = {folder: files for folder, files in count.items() if files > FILES and not folder.startswith(LISTS)}
        self.assertEqual(large, {}, f"folders of more than {FILES} files")

    def test_classes_are_small(self):
        sizes = {f"{file}: {name}": size for file in self.files
                 if file.endswith(".h") and file.startswith(SMALL_CLASSES) and not is_test(file)
                 for name, size in classes_of((ROOT / file).read_text()).items()}
        self.assertGreater(len(sizes), 40, "where are the classes?")
        large = {name: size for name, size in sizes.items() if size[0] > MEMBERS or size[1] > METHODS}
        self.assertEqual(large, {}, f"more than {MEMBERS} data members or {METHODS} methods")

    def test_a_large_class_is_found(self):
        text = """
            struct Outer final : Base<int> {
              explicit Outer(int a) : a_{a}, f_([](int b) { return b; }) {}
              Outer(const Outer&) = delete;
              bool operator<(const Outer& other) const { return a_ < other.a_; }
              virtual int get(std::map<int, int> of = {}) const = 0;
              struct Inner { int x = 0, y = 0; };
              enum class Kind { kOne, kTwo };
              using Ints = std::vector<int>;
             private:
              static constexpr int kMost = 3;
              int a_;  // and not b_;
              std::function<int(int, int)> f_;
              std::map<int, std::pair<int, int>> of_, other_ ABSL_GUARDED_BY(mutex_);
              Nanoseconds since_{0};
              std::string text_ = "a; b(";
            };"""
        self.assertEqual(classes_of(text), {"Outer": (6, 3), "Inner": (2, 0)})

    def test_the_page_names_every_folder(self):
        page = (ROOT / "docs/house.md").read_text()
        for folder in sorted({str(pathlib.PurePath(file).parent) for file in self.files
                              if file.endswith((".cc", ".cu")) and wing_of(file) in {"common", *PUBLIC}}):
            with self.subTest(folder=folder):
                self.assertIn(f"`{folder}`", page)

    def test_a_broken_house_is_found(self):
        self.assertEqual(len(findings([("common/base/a.cc", "server/shard/shard.h")])), 1)
        self.assertEqual(len(findings([("worker/a.cc", "sync/routes/ps_route.h")])), 1)
        self.assertEqual(len(findings([("sync/client/a_test.cc", "server/shard/shard.h")])), 1)
        self.assertEqual(findings([("server/a.cc", "sync/chunks/aggregator.h"), ("cli/a.cc", "common/base/text.h")]), [])
        self.assertEqual(cycle_in({"a": ["b"], "b": ["c"], "c": ["b"]}), ["b", "c"])
        self.assertEqual(cycle_in({"a": ["b"], "b": ["c"]}), [])


if __name__ == "__main__":
    unittest.main()

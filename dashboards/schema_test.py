"""The dashboards against Grafana's own schema: the types that Grafana publishes for the version that compose.yaml starts
(Python package grafana-foundation-sdk, generated from Grafana's schema). Every key must be one that Grafana knows, and every
value of its type.

tests/run.sh installs the package; without it this test says that it is skipped.
"""

import enum
import json
import pathlib
import re
import sys
import types
import typing
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SKIPPED = 77  # what ctest calls skipped

sys.path += map(str, (ROOT / "build/venv/lib").glob("python3*/site-packages"))
try:
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard
except ImportError:
    print("skipped: no Python package grafana-foundation-sdk (tests/run.sh installs it where there is a network)")
    sys.exit(SKIPPED)


def kept(kind, ours):
    """What Grafana's type makes of it."""
    return json.loads(JSONEncoder().encode(kind.from_json(ours)))


def unknown_keys(ours, known, path):
    """Where what Grafana's types have kept is not what we wrote."""
    if isinstance(ours, dict) and isinstance(known, dict):
        for key, value in ours.items():
            if key in known:
                yield from unknown_keys(value, known[key], f"{path}.{key}")
            elif value is not None:
                yield f"{path}.{key} is no key of Grafana's"
    elif isinstance(ours, list) and isinstance(known, list) and len(ours) == len(known):
        for i, pair in enumerate(zip(ours, known)):
            yield from unknown_keys(*pair, f"{path}[{i}]")
    elif ours != known:
        yield f"{path} is {ours!r}, of which Grafana keeps {known!r}"


def fits(value, wanted):
    """Whether a value is of the type that Grafana's attribute is declared with. Objects are looked into by themselves."""
    origin, inner = typing.get_origin(wanted), typing.get_args(wanted)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is typing.Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(fits(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, inner[1]) for one in value.values())
    if wanted in (typing.Any, object) or isinstance(wanted, typing.TypeVar):
        return True
    if isinstance(value, dict) and hasattr(wanted, "from_json"):
        return not list(unknown_keys(value, kept(wanted, value), ""))  # in some places it is left as it was read
    if wanted is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(wanted, type) and issubclass(wanted, enum.Enum):
        return isinstance(value, wanted) or value in [one.value for one in wanted]
    return isinstance(value, wanted)


def wrong_values(value, path):
    if isinstance(value, list):
        for i, one in enumerate(value):
            yield from wrong_values(one, f"{path}[{i}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from wrong_values(one, f"{path}.{key}")
    elif type(value).__module__.startswith("grafana_foundation_sdk.") and not isinstance(value, enum.Enum):
        declared = typing.get_type_hints(type(value))
        for name, one in vars(value).items():
            if name in declared and not fits(one, declared[name]):
                yield f"{path}.{name} is {one!r}, and should be {declared[name]}"
            yield from wrong_values(one, f"{path}.{name}")


def complaints(ours):
    return [*unknown_keys(ours, kept(Dashboard, ours), "dashboard"), *wrong_values(Dashboard.from_json(ours), "dashboard")]


class GrafanasSchema(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        plugins.register_default_plugins()
        cls.files = sorted((ROOT / "dashboards/grafana/dashboards").glob("*.json"))

    def test_every_key_and_value_is_grafanas(self):
        self.assertEqual(len(self.files), 5)
        for file in self.files:
            with self.subTest(file.name):
                self.assertEqual(complaints(json.loads(file.read_text(encoding="utf-8"))), [])

    def test_panels_and_queries_are_of_kinds_that_the_schema_describes(self):
        for file in self.files:
            for panel in Dashboard.from_json(json.loads(file.read_text(encoding="utf-8"))).panels:
                if panel.type_val == "row":
                    continue
                with self.subTest(f"{file.name}: {panel.title}"):
                    self.assertNotIsInstance(panel.options, dict)
                    for target in panel.targets:
                        self.assertTrue(type(target).__module__.endswith(".prometheus"), type(target))

    def test_what_is_wrong_is_found(self):
        good = self.files[0].read_text(encoding="utf-8")
        for name, change, word in (
                ("a key of nobody's", lambda d: d.update(tile="x"), "tile is no key"),
                ("a key in a panel", lambda d: d["panels"][1].update(titel="x"), "titel is no key"),
                ("a key in options", lambda d: d["panels"][1]["options"].update(colour="x"), "colour is no key"),
                ("a key in a list that stays as it was read", lambda d: d["panels"][2].update(transformations=[{"ip": "merge"}]),
                 "transformations is"),
                ("a number for a word", lambda d: d["panels"][1].update(title=3), "title is 3"),
                ("a word for a number", lambda d: d["panels"][1]["gridPos"].update(w="wide"), "w is 'wide'"),
                ("no such choice", lambda d: d["panels"][1]["options"].update(colorMode="loud"), "color_mode is 'loud'")):
            with self.subTest(name):
                bad = json.loads(good)
                change(bad)
                self.assertTrue(any(word in said for said in complaints(bad)), complaints(bad))

    def test_the_schema_is_of_the_version_that_compose_starts(self):
        started = re.search(r"grafana/grafana:(\d+\.\d+)", (ROOT / "deploy/docker/compose.yaml").read_text()).group(1)
        installed = re.search(r"grafana-foundation-sdk==\d+!(\d+\.\d+)", (ROOT / "tests/run.sh").read_text()).group(1)
        self.assertEqual(started, installed)


if __name__ == "__main__":
    unittest.main(verbosity=2)

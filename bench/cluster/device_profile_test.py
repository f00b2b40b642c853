"""Profiles: what is derived from them, and errors that name key and value."""

import copy
import pathlib
import tempfile
import unittest

import device_profile
from device_profile import ProfileError

GOOD = {"network": "small", "batch_size": 32, "device": "titan-x", "device_flops": 6e12, "device_bytes_per_s": 4e3,
        "layers": [{"name": "conv", "type": "convolution", "forward_s": 0.25, "backward_s": 0.5,
                    "tensors": [[4, 3, 2, 2], [4]]},
                   {"name": "fc", "type": "fully_connected", "forward_s": 0.125, "backward_s": 0, "tensors": [[10, 4], [10]]}]}


class ProfileTest(unittest.TestCase):
    def refused(self, words, change):
        data = copy.deepcopy(GOOD)
        change(data)
        with self.assertRaises(ProfileError) as raised:
            device_profile.parse(data)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_sums(self):
        profile = device_profile.parse(GOOD)
        self.assertEqual([layer.elements for layer in profile.layers], [[48, 4], [40, 10]])
        self.assertEqual(profile.parameters, 102)
        self.assertEqual(profile.parameter_bytes, 408)
        self.assertEqual(profile.compute_s, 0.875)
        self.assertEqual(profile.optimizer_s, 20 * 102 / 4e3)

    def test_what_is_written_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "profile.json"
            device_profile.parse(GOOD).write(path)
            self.assertEqual(device_profile.load(path), device_profile.parse(GOOD))

    def test_a_file_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "profile.json"
            with self.assertRaisesRegex(ProfileError, "profile.json: No such file"):
                device_profile.load(path)
            path.write_text("{")
            with self.assertRaisesRegex(ProfileError, "profile.json is no JSON"):
                device_profile.load(path)
            path.write_text("[1]")
            with self.assertRaisesRegex(ProfileError, r"profile.json: the profile is \[1\]; an object with network"):
                device_profile.load(path)

    def test_bad_values_are_named_with_their_key(self):
        self.refused(["batch_size", "0"], lambda data: data.update(batch_size=0))
        self.refused(["batch_size", "true"], lambda data: data.update(batch_size=True))
        self.refused(["device_flops", '"6T"'], lambda data: data.update(device_flops="6T"))
        self.refused(["device_bytes_per_s", "-1"], lambda data: data.update(device_bytes_per_s=-1))
        self.refused(["layers is []"], lambda data: data.update(layers=[]))
        self.refused(["layers[1].forward_s", "-0.5"], lambda data: data["layers"][1].update(forward_s=-0.5))
        self.refused(["layers[0].backward_s", "NaN"], lambda data: data["layers"][0].update(backward_s=float("nan")))
        self.refused(["layers[0].tensors", "2.5"], lambda data: data["layers"][0].update(tensors=[[2.5]]))
        self.refused(["layers[0].tensors", "[]"], lambda data: data["layers"][0].update(tensors=[]))

    def test_missing_and_unknown_keys_are_named(self):
        self.refused(["has no 'device'"], lambda data: data.pop("device"))
        self.refused(["layers[1] has no 'type'"], lambda data: data["layers"][1].pop("type"))
        self.refused(["layers[0] has 'forward'"], lambda data: data["layers"][0].update(forward=1))

    def test_layers_have_names_of_their_own(self):
        self.refused(["layers[1].name is 'conv', as of layers[0]"], lambda data: data["layers"][1].update(name="conv"))


if __name__ == "__main__":
    unittest.main()

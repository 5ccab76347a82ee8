"""machine.py on this machine: something is found, and nothing that names a person, a machine or a folder."""

import os
import pathlib
import platform
import subprocess
import tempfile
import unittest

import machine


class Machine(unittest.TestCase):
    def test_environment(self):
        found = machine.environment("")
        self.assertEqual(list(found), ["system", "processor", "memory", "GPUs", "commit"])
        self.assertTrue(all(found.values()))
        self.assertIn("Linux", found["system"])
        self.assertRegex(found["processor"], r", \d+ cores?$")
        self.assertRegex(found["memory"], r"^\d+\.\d GiB$")
        for private in (platform.node(), os.getcwd()):
            self.assertNotIn(private, " ".join(found.values()))

    def test_commit(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(machine.commit(folder), "unknown")

            def git(*words):
                subprocess.run(("git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b.c") + words, check=True,
                               stdout=subprocess.DEVNULL)

            try:
                git("init", "-q")
            except FileNotFoundError:
                self.skipTest("no git")
            pathlib.Path(folder, "file").write_text("one")
            git("add", "-A")
            git("commit", "-q", "-m", "one")
            self.assertRegex(machine.commit(folder), r"^[0-9a-f]{12}$")
            pathlib.Path(folder, "file").write_text("two")
            self.assertRegex(machine.commit(folder), r"^[0-9a-f]{12} with changes$")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Puts libmillrace_kv.so into the wheel: the one that MILLRACE_KV_LIBRARY names, else the newest in this tree's build folders.

Without one the wheel is pure Python and looks for the library at run time (millrace_kv/_library.py)."""
import glob
import os
import shutil

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "libmillrace_kv.so"


def library():
    named = os.environ.get("MILLRACE_KV_LIBRARY")
    if named:
        if not os.path.isfile(named):
            raise SystemExit(f"MILLRACE_KV_LIBRARY is {named!r}: no such file")
        return named
    built = glob.glob(os.path.join(HERE, "../../build/*/sdk", NAME))
    return max(built, key=os.path.getmtime, default=None)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if library():
            shutil.copy(library(), os.path.join(self.build_lib, "millrace_kv", NAME))


class WheelForAnyPython(bdist_wheel):
    """A wheel for the library's platform and any version of Python, since the library is loaded through ctypes."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not library()

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelForAnyPython})

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lets PyPI's CUDA build of torch be imported on a CPU without the 2 GB of NVIDIA's wheels. For every library that it links and that is missing,
writes a library next to libtorch whose functions abort. Only libcudart is the real one.

    stand_in_libraries.py SITE_PACKAGES"""
import collections
import glob
import os
import re
import subprocess
import sys
import tempfile

CUDART = "libcudart.so.13"
# Imports without a version do not name their library, which is found by the prefix of their names.
BY_PREFIX = [("libnccl.so.2", r"p?nccl"), ("libcufile.so.0", r"cuFile"), ("libcurand.so.10", r"curand"), ("libcusparseLt.so.0", r"cusparseLt"),
             ("libnvshmem_host.so.3", r"nvshmem"), ("libcufft.so.12", r"cufft"), ("libcusolver.so.12", r"cusolver")]
# Only code that is loaded on machines with a GPU links it, and a machine that has it is taken to have a GPU.
LEFT_OUT = {"libcuda.so.1"}


def imports(path):
    """Returns (the NVIDIA libraries that a file needs, {library: {version: functions}})."""
    text = subprocess.run(["readelf", "-W", "-d", "--dyn-syms", "-V", path], capture_output=True, text=True, check=False).stdout
    needed = [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text) if re.match(r"lib(cu|nccl|nv)", name) and name != CUDART]
    library_of, library = {}, None
    for line in text.splitlines():
        if file := re.search(r"File: (\S+)", line):
            library = file.group(1)
        if library and (version := re.search(r"Name: (\S+)\s+Flags", line)):
            library_of[version.group(1)] = library
    functions = collections.defaultdict(lambda: collections.defaultdict(set))
    for symbol in re.findall(r"\bUND (\S+)", text):
        name, _, version = symbol.partition("@")
        version = version.lstrip("@")
        if version:
            library = library_of.get(version)
        else:
            library = next((library for library, prefix in BY_PREFIX if library in needed and re.match(prefix, name)), None)
        if library in needed:
            functions[library][version].add(name)
    return needed, functions


def write(library, by_version):
    names = sorted(set().union(*by_version.values()))
    with tempfile.TemporaryDirectory() as directory:
        source, script = os.path.join(directory, "stand_in.c"), os.path.join(directory, "stand_in.map")
        with open(source, "w") as file:
            file.write("#include <stdlib.h>\n" + "".join(f"void {name}(void) {{ abort(); }}\n" for name in names))
        with open(script, "w") as file:
            file.writelines(f"{version} {{ {' '.join(name + ';' for name in sorted(of_it))} }};\n" for version, of_it in by_version.items() if version)
        options = [f"-Wl,--version-script={script}"] if any(by_version) else []
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-O0", source, "-o", library, f"-Wl,-soname,{library}", *options], check=True)


def main():
    os.chdir(os.path.join(sys.argv[1], "torch", "lib"))
    if not os.path.exists(CUDART):
        os.symlink(f"../../nvidia/cu13/lib/{CUDART}", CUDART)
    needed, functions = set(), collections.defaultdict(lambda: collections.defaultdict(set))
    for path in [path for path in glob.glob("*.so*") + glob.glob("../_C*.so") if not os.path.islink(path)]:
        its_needed, its_functions = imports(path)
        needed.update(its_needed)
        for library, by_version in its_functions.items():
            for version, names in by_version.items():
                functions[library][version] |= names
    for library in sorted(needed - LEFT_OUT):
        write(library, functions[library])


if __name__ == "__main__":
    main()

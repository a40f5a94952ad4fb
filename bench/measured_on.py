# SPDX-License-Identifier: Apache-2.0
"""What a table of bench/results states along with its figures: commit, machine, system, command."""

import os
import platform
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _commit():
    def git(*arguments):
        return subprocess.run(["git", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT).stdout.strip()
    try:
        return git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain", "--untracked-files=no") else "")
    except OSError:
        return ""


def measured_on(commit=""):
    """`commit`: what to state where git is not available."""
    with open("/proc/cpuinfo") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "?")
    return {"commit": commit or _commit(), "machine": f"{cpu}, {os.cpu_count()} cores", "system": platform.platform(),
            "command": " ".join(sys.argv)}

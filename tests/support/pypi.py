# SPDX-License-Identifier: Apache-2.0
"""Fetches Python packages for tests from PyPI with pip, pinned by version and sha256, and keeps them in their own folder. Standard library only."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

SKIPPED = 77  # an exit status
# Runs of pip if .ci/run says that PyPI can be reached. pip's own retries do not resume a download that broke off.
_ATTEMPTS = 3


class Unavailable(Exception):
    """Something that a test needs cannot be fetched, and nobody is at fault."""


def _is_required():
    return os.environ.get("MILLRACE_REAL_MODEL") == "required"


def exit_unavailable(why):
    """Ends a test as skipped, or as failed if .ci/run says that PyPI can be reached."""
    print(f"{'unavailable' if _is_required() else 'skipped'}: {why}")
    sys.exit(1 if _is_required() else SKIPPED)


def fingerprint(*paths):
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def make_once(path, made_from, make):
    """Has `make` fill a directory, which gets its name only when it is complete. Makes it again if `made_from` has changed."""
    stamp = os.path.join(path, ".made-from")
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == made_from:
                return
    unfinished = path + ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    os.makedirs(unfinished)
    make(unfinished)
    with open(os.path.join(unfinished, os.path.basename(stamp)), "w") as file:
        file.write(made_from)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(unfinished, path)


def _install(requirements, directory):
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Unavailable(f"{sys.executable} has no pip")
    command = [*pip, "install", "--quiet", "--disable-pip-version-check", "--retries", "2", "--no-deps", "--require-hashes",
               "--only-binary", ":all:", "--target", directory, "--requirement", requirements]
    for _ in range(_ATTEMPTS if _is_required() else 1):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode == 0:
            return
        if "DO NOT MATCH THE HASHES" in done.stdout:
            raise RuntimeError(done.stdout)
        shutil.rmtree(directory, ignore_errors=True)  # pip does not replace what is there
        os.makedirs(directory)
    raise Unavailable(f"pip could not fetch {requirements}:\n{done.stdout.strip()}")


def install(requirements, directory):
    """Returns a folder inside `directory` with the packages, for PYTHONPATH. The first caller makes it."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".packages.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        packages = os.path.join(directory, f"python-{sys.version_info.major}.{sys.version_info.minor}")
        make_once(packages, fingerprint(requirements), lambda made: _install(requirements, made))
        return packages

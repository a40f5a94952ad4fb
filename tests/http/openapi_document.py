# SPDX-License-Identifier: Apache-2.0
"""docs/openapi.yaml for tests. Needs PyYAML: Debian's python3-yaml, or else the version from PyPI that requirements.txt names."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(ROOT, "tests", "support")]

import pypi  # noqa: E402

PATH = os.path.join(ROOT, "docs", "openapi.yaml")
REQUIREMENTS = os.path.join(HERE, "requirements.txt")
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


def packages():
    """The folder of the packages that requirements.txt names. Ends the test if they cannot be fetched."""
    try:
        return pypi.install(REQUIREMENTS, os.path.join(ROOT, "build", "http-client"))
    except pypi.Unavailable as why:
        return pypi.exit_unavailable(why)


def load():
    try:
        import yaml
    except ImportError:
        sys.path.append(packages())
        import yaml
    with open(PATH, encoding="utf-8") as file:
        return yaml.safe_load(file)


def resolve(document, node):
    """`node`, or the node that its $ref refers to."""
    while "$ref" in node:
        found = document
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step.replace("~1", "/").replace("~0", "~")]
        node = found
    return node


def operations(document):
    """The operations by (method, path)."""
    return {(method.upper(), path): item[method] for path, item in document["paths"].items() for method in METHODS if method in item}


def parameters(document, method, path):
    """The resolved parameters of an operation and of its path."""
    item = document["paths"][path]
    return [resolve(document, entry) for entry in item.get("parameters", []) + item[method.lower()].get("parameters", [])]


def body_schema(document, method, path, media_type="application/json"):
    return resolve(document, document["paths"][path][method.lower()]["requestBody"]["content"][media_type]["schema"])

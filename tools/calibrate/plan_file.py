# SPDX-License-Identifier: Apache-2.0
"""Writes a head plan that differs by head, as Millrace reads it (docs/head-plans.md). Standard library only."""

import collections
import json
import os
import tempfile


def plan_json(heads):
    """heads: pattern texts, [layer][head]. The most frequent pattern becomes the default."""
    counts = collections.Counter(text for layer in heads for text in layer)
    default = min(counts, key=lambda text: (-counts[text], text))
    layers = []
    for layer in heads:
        others = {str(head): text for head, text in enumerate(layer) if text != default}
        layers.append({"heads": others} if others else {})
    lines = ",\n  ".join(json.dumps(layer) for layer in layers)
    return f'{{"default": {json.dumps(default)}, "layers": [\n  {lines}\n]}}\n'


def write_whole(path, content):
    """Writes text or bytes. Other processes see the file either as it was or complete."""
    descriptor, unfinished = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".unfinished-")
    try:
        with os.fdopen(descriptor, "w" if isinstance(content, str) else "wb") as file:
            file.write(content)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise

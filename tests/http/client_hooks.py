"""What schemathesis cannot know of docs/openapi.yaml: how a prompt looks in bytes. Loaded by it, as SCHEMATHESIS_HOOKS says."""

import os
import struct

import schemathesis
from hypothesis import strategies

VOCABULARY = int(os.environ["MILLRACE_VOCABULARY"])

schemathesis.openapi.media_type(
    "application/octet-stream",
    strategies.lists(strategies.integers(0, VOCABULARY - 1), min_size=1, max_size=200).map(lambda tokens: struct.pack(f"<{len(tokens)}i", *tokens)))

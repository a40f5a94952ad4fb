#!/usr/bin/env python3
"""Checks who includes whom. Prints each offending line as file:line: reason; exit status 1 if any.

Two rules, both from docs/ARCHITECTURE.md: a folder sees only the folders below it, and the headers
of each vendor have one home.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Folder -> prefixes of the tree it may include, besides itself and common/.
MAY_INCLUDE = {
    "common": (),
    "protocol": (),
    "kernels": (),
    "comm": (),
    "kvstore": (),
    "model": ("kernels/api/", "comm/api/"),
    "coordinator": ("protocol/",),
    "decode": ("protocol/", "comm/", "kernels/", "model/"),
    "worker": ("protocol/", "kernels/", "comm/", "kvstore/", "model/"),
}

# Vendor header -> files that may include it. Tests and benchmarks may include any.
VENDOR_HOMES = {
    r"mpi\.h": ("comm/mpi/",),
    r"uc[pst]/": ("comm/ucx/",),
    r"boost/(asio|beast)": ("coordinator/", "worker/control"),
    r"prometheus/": ("common/metrics/",),
    r"dnnl|oneapi/dnnl": ("kernels/cpu/",),
    r"(cuda|cublas)": ("kernels/cuda/", "comm/nccl/"),
    r"nccl": ("comm/nccl/",),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def offence(file: str, quoted: bool, target: str) -> str | None:
    folder = file.split("/")[0]
    if quoted:
        if "/" not in target or target.startswith("."):
            return f'"{target}" is not a path from the root of the tree'
        target_folder = target.split("/")[0]
        if target_folder in (folder, "common"):
            return None
        if not target.startswith(MAY_INCLUDE[folder]):
            return f"{folder} must not include {target}"
        return None
    for pattern, homes in VENDOR_HOMES.items():
        if re.match(pattern, target) and not file.startswith(homes):
            return f"<{target}> belongs to {' and '.join(homes)}"
    return None


def main() -> int:
    found = 0
    for folder in MAY_INCLUDE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".cuh", ".cu"):
                continue
            file = path.relative_to(ROOT).as_posix()
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                reason = offence(file, match[1] == '"', match[2])
                if reason:
                    print(f"{file}:{number}: {reason}")
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

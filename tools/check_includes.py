#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which folders include which. Prints each offending line as file:line: reason; exit status 1 if any.

- A folder includes only the folders that MAY_INCLUDE names for it (docs/adr/0001-layout.md): they lie below it, and
  there is no cycle.
- Only certain folders may include each vendor's headers.
- The DEPS of a folder's library in its CMakeLists.txt are the folders that its files include, no more and no fewer.
- A source opens only the namespace of its top folder, or one inside it that is named after a folder on its path; common/
  is millrace itself, or inside it a namespace named after the file.
- No two headers outside kernels/ have one name.
- clang-tidy looks at the headers of all these folders.

With --headers BUILD every header that no source includes first is compiled alone, with the include paths of the build
folder BUILD.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = (".h", ".cc", ".cuh", ".cu")

# Folder -> folders that it may include, besides common/. In the order of the layers: each entry names only folders listed above it.
MAY_INCLUDE = {
    "common": "",
    "common/system": "",
    "common/logging": "",
    "common/metrics": "common/logging",
    "common/cli": "",
    "common/net": "common/system",
    "common/content": "",
    "common/text": "",
    "common/tracing": "common/logging common/metrics common/net",
    "protocol": "",
    "kernels/index": "",
    "kernels/api": "common/system kernels/index",
    "kernels/pages": "",
    "kernels/ref": "kernels/api kernels/index",
    "kernels/cpu/runtime": "kernels/api kernels/index",
    "kernels/cpu/rows": "kernels/api kernels/index kernels/cpu/runtime",
    "kernels/cpu/gemm": "kernels/api kernels/cpu/runtime kernels/cpu/rows",
    "kernels/cpu/float8": "kernels/api kernels/cpu/runtime kernels/cpu/rows kernels/cpu/gemm",
    "kernels/cpu/experts": "kernels/api kernels/cpu/runtime kernels/cpu/rows kernels/cpu/gemm kernels/cpu/float8",
    "kernels/cpu/attention": "kernels/api kernels/index kernels/cpu/runtime",
    "kernels/cpu/estimation": "kernels/api kernels/index kernels/cpu/runtime kernels/cpu/rows",
    "kernels/cpu/estimation/adaptive": "kernels/api kernels/index kernels/cpu/runtime kernels/cpu/rows"
    " kernels/cpu/estimation",
    "kernels/cpu": "kernels/api kernels/index kernels/cpu/*",
    "kernels/cuda/runtime": "common/system kernels/api kernels/index",
    "kernels/cuda/sm90": "kernels/api kernels/index kernels/cuda/runtime",
    "kernels/cuda/sm90/ptx": "",
    "kernels/cuda/sm90/rows": "kernels/api kernels/cuda/runtime kernels/cuda/sm90 kernels/cuda/sm90/ptx",
    "kernels/cuda/sm90/gemm": "kernels/api kernels/cuda/runtime kernels/cuda/sm90 kernels/cuda/sm90/ptx"
    " kernels/cuda/sm90/rows",
    "kernels/cuda/sm90/experts": "kernels/api kernels/cuda/runtime kernels/cuda/sm90 kernels/cuda/sm90/ptx"
    " kernels/cuda/sm90/rows kernels/cuda/sm90/gemm",
    "kernels/cuda/sm90/attention": "kernels/api kernels/index kernels/cuda/runtime kernels/cuda/sm90"
    " kernels/cuda/sm90/ptx kernels/cuda/sm90/rows",
    "kernels/cuda/sm90/estimation": "kernels/api kernels/index kernels/cuda/runtime kernels/cuda/sm90"
    " kernels/cuda/sm90/ptx kernels/cuda/sm90/rows",
    "kernels/cuda/sm90/estimation/adaptive": "kernels/api kernels/index kernels/cuda/runtime kernels/cuda/sm90"
    " kernels/cuda/sm90/ptx kernels/cuda/sm90/rows kernels/cuda/sm90/estimation",
    "kernels/cuda/sm90/estimation/block_sparse": "kernels/api kernels/index kernels/cuda/runtime kernels/cuda/sm90"
    " kernels/cuda/sm90/ptx kernels/cuda/sm90/rows kernels/cuda/sm90/estimation",
    "kernels/cuda/sm90/estimation/vertical_slash": "kernels/api kernels/index kernels/cuda/runtime kernels/cuda/sm90"
    " kernels/cuda/sm90/ptx kernels/cuda/sm90/rows kernels/cuda/sm90/estimation",
    "kernels/cuda/sm90/pages": "kernels/pages kernels/cuda/runtime kernels/cuda/sm90/rows",
    "kernels/cuda": "common/system kernels/api kernels/index kernels/pages kernels/cuda/*",
    "comm/api": "",
    "comm/net": "common/logging comm/api",
    "comm/local": "comm/api",
    "comm/memfd": "comm/api common/logging common/system",
    "comm/mpi": "comm/api common/system",
    "comm/nccl": "comm/api",
    "comm/tcp": "common/logging common/net common/system comm/api comm/net",
    "comm/any": "comm/api comm/net comm/tcp",
    "comm/ucx": "common/logging common/system comm/any comm/api comm/net",
    "kvstore/rules": "",
    "kvstore/tiers": "common/system",
    "kvstore/pages": "common/content kvstore/rules kvstore/tiers",
    "kvstore/archive": "common/content common/system",
    "kvstore/kept": "common/content kvstore/archive kvstore/pages",
    "kvstore": "common/content common/system kvstore/archive kvstore/kept kvstore/pages kvstore/rules kvstore/tiers",
    "model/json": "common/system",
    "model/config": "kernels/api model/json",
    "model/checkpoint": "common/system kernels/api model/config model/json",
    "model/synthetic": "model/config model/checkpoint",
    "model": "comm/api kernels/api model/*",
    "plan": "common/system kernels/api kernels/index model/config model/json",
    "tokenizer": "common/system",
    "engine/ranks": "common/system comm/api comm/nccl kernels/api model",
    "engine/exchange": "comm/api kernels/api kernels/index",
    "engine/index": "comm/api kernels/api kernels/index plan",
    "engine": "comm/api kernels/api kernels/index model plan engine/ranks engine/exchange engine/index",
    "engine/runtime": "common/cli comm/api kernels/api kernels/index kernels/cpu kernels/cuda model"
    " model/config model/checkpoint plan engine engine/ranks engine/index",
    "worker/sync": "comm/api protocol engine/ranks",
    "worker/control": "common/net protocol",
    "worker/events": "common/content common/system comm/api kvstore kvstore/pages protocol",
    "worker/events/zmq": "worker/events",
    "worker/store": "common/content common/system comm/api comm/memfd kernels/api kernels/index kvstore"
    " kvstore/tiers protocol engine engine/*",
    "worker/sinks": "comm/api kernels/api kvstore/rules model engine engine/exchange",
    "worker/staging": "common/system kernels/api kvstore engine engine/exchange",
    "worker/peers": "common/system comm/api comm/memfd kernels/api kvstore engine engine/* worker/store worker/staging",
    "worker/prompt": "common/content comm/api kernels/index kvstore model/config plan protocol engine engine/*"
    " worker/sync worker/control worker/store worker/sinks worker/staging worker/peers",
    "worker/group": "comm/api kvstore protocol engine engine/* worker/sync worker/control worker/events"
    " worker/store worker/staging worker/peers worker/prompt",
    "worker/batch": "common/cli common/system common/text kernels/api kvstore/rules model plan protocol tokenizer engine engine/*"
    " worker/sync worker/sinks",
    "worker/cli": "common/cli common/logging common/net common/system common/text comm/api"
    " comm/mpi comm/nccl comm/net comm/tcp comm/ucx model protocol engine engine/* worker/*",
    "calibrate": "common/cli common/logging common/system comm/api comm/local kernels/api kernels/index model model/config"
    " model/json plan engine engine/* worker/batch",
    "coordinator/text": "",
    "coordinator/access": "common/content common/system",
    "coordinator/net": "common/logging",
    "coordinator/requests": "common/logging common/metrics protocol",
    "coordinator/tracing": "common/tracing coordinator/requests",
    "coordinator/groups": "common/content protocol coordinator/requests",
    "coordinator/order": "protocol coordinator/requests coordinator/groups",
    "coordinator/schedule": "common/content protocol coordinator/text coordinator/access coordinator/requests coordinator/groups"
    " coordinator/order",
    "coordinator/api": "common/content common/text plan protocol coordinator/text coordinator/requests coordinator/groups coordinator/order",
    "coordinator/page": "common/content",
    "coordinator/http": "common/logging common/metrics common/net common/tracing protocol tokenizer coordinator/text coordinator/access coordinator/net coordinator/requests"
    " coordinator/tracing coordinator/schedule coordinator/api",
    "coordinator/exchange": "common/content common/net coordinator/text coordinator/access coordinator/net coordinator/requests"
    " coordinator/tracing coordinator/schedule coordinator/api coordinator/page coordinator/http tokenizer",
    "coordinator/server": "common/cli common/logging common/net common/system common/tracing protocol coordinator/access coordinator/net coordinator/requests"
    " coordinator/tracing coordinator/schedule coordinator/http coordinator/exchange",
    "client": "common/cli common/net common/system common/text common/tracing protocol coordinator/text coordinator/net",
    "kvclient/manifest": "common/system protocol",
    "kvclient/handover": "protocol kvclient/manifest",
    "kvclient/order": "comm/api kvclient/manifest",
    "kvclient/device": "",
    "kvclient/ranks": "comm/api comm/memfd common/system protocol kvclient/manifest kvclient/order kvclient/device",
    "kvclient": "comm/api comm/memfd common/system protocol kvclient/manifest kvclient/handover kvclient/order"
    " kvclient/device kvclient/ranks",
    "kvclient/c": "comm/any comm/ucx kvclient/manifest kvclient/handover kvclient/order kvclient",
    "decode/pool": "kvclient kvclient/manifest",
    "decode/attention": "kernels/cpu/runtime kernels/pages decode/pool",
    "decode/mlp": "kernels/cpu/runtime model model/checkpoint",
    "decode": "common/cli common/logging common/metrics common/net common/system common/tracing comm/any comm/api comm/local comm/ucx kernels/api kernels/cpu kernels/cuda kernels/pages kvclient kvclient/manifest"
    " kvclient/handover kvclient/order model model/config decode/*",
}

# Vendor header -> folders that may include it. Tests and benchmarks may include any.
VENDOR_HOMES = {
    r"mpi\.h": ("comm/mpi",),
    r"uc[pst]/": ("comm/ucx",),
    r"zmq": ("worker/events/zmq",),
    r"boost/(asio|beast)": (
        "common/net",
        "common/tracing",
        "coordinator/net",
        "coordinator/http",
        "coordinator/exchange",
        "coordinator/server",
        "client",
        "worker/control",
    ),
    r"openssl/": ("common/content", "common/net", "coordinator/access"),
    r"prometheus/": ("common/metrics",),
    r"dnnl|oneapi/dnnl": ("kernels/cpu",),
    r"toml\+\+/": ("common/cli",),
    r"CLI/": ("common/cli", "calibrate", "coordinator/server", "client", "decode", "engine/runtime", "worker/cli"),
    r"(cuda|cublas)": ("kernels/cuda", "comm/nccl"),
    r"nccl": ("comm/nccl",),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
NAMESPACE = re.compile(r"^namespace (millrace[\w:]*) \{", re.MULTILINE)
FORWARD = re.compile(r"^namespace millrace[\w:]* \{\n(?:(?:class|struct) \w+;\n)+\}.*\n", re.MULTILINE)
LIBRARY = re.compile(r"mr_library\(\s*(\w+)([^)]*)\)")


def folder_of(file: str) -> str:
    return file.rpartition("/")[0]


def library_of(folder: str) -> str:
    return "mr_" + folder.replace("/", "_")


def may_include(folder: str, target: str) -> bool:
    if target in (folder, "common"):
        return True
    for allowed in MAY_INCLUDE[folder].split():
        if target == allowed or (allowed.endswith("/*") and target.startswith(allowed[:-1])):
            return True
    return False


def offence(file: str, quoted: bool, target: str) -> str | None:
    folder = folder_of(file)
    if quoted:
        if "/" not in target or target.startswith("."):
            return f'"{target}" is not a path from the root of the tree'
        if not may_include(folder, folder_of(target)):
            return f"{folder} must not include {target}"
        return None
    for pattern, homes in VENDOR_HOMES.items():
        if re.match(pattern, target) and not any(folder == home or folder.startswith(home + "/") for home in homes):
            return f"<{target}> belongs to {' and '.join(homes)}"
    return None


def sources_of(folder: str) -> list[pathlib.Path]:
    return sorted(path for path in (ROOT / folder).iterdir() if path.suffix in SOURCES)


def includes_of(path: pathlib.Path) -> list[tuple[int, bool, str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    matches = ((number, INCLUDE.match(line)) for number, line in enumerate(lines, 1))
    return [(number, match[1] == '"', match[2]) for number, match in matches if match]


def check_folder(folder: str) -> list[str]:
    found = []
    included = set()
    sources = sources_of(folder)
    for path in sources:
        found += check_namespaces(path)
        file = path.relative_to(ROOT).as_posix()
        for number, quoted, target in includes_of(path):
            reason = offence(file, quoted, target)
            if reason:
                found.append(f"{file}:{number}: {reason}")
            if quoted and not path.name.endswith("main.cc"):
                included.add(folder_of(target))
    return found + check_library(folder, included - {folder})


def check_namespaces(path: pathlib.Path) -> list[str]:
    """Declarations of classes of another folder are left out."""
    file = path.relative_to(ROOT).as_posix()
    folders = [name for name in folder_of(file).split("/") if name != "common"] or [path.stem]
    found = []
    for name in NAMESPACE.findall(FORWARD.sub("", path.read_text(encoding="utf-8"))):
        parts = name.split("::")[1:]
        rest = iter(folders)
        of_top = parts[:1] == folders[:1] or (file.startswith("common/") and not parts)
        if not of_top or not all(part in rest for part in parts):
            found.append(f"{file}: opens namespace {name}")
    return found


def check_names() -> list[str]:
    """Checks that no two headers have one name. Back ends of kernels/ have the same operations, and so the same names."""
    found = []
    first = {}
    for folder in MAY_INCLUDE:
        if folder.startswith("kernels/"):
            continue
        for path in sources_of(folder):
            file = path.relative_to(ROOT).as_posix()
            if path.suffix == ".h" and first.setdefault(path.name, file) != file:
                found.append(f"{file}: {first[path.name]} has this name too")
    return found


def check_library(folder: str, included: set[str]) -> list[str]:
    """Checks the DEPS of the library that the folder's CMakeLists.txt makes. If it is defined twice, one a stand-in, the last one counts."""
    cmake = ROOT / folder / "CMakeLists.txt"
    text = re.sub(r"#.*", "", cmake.read_text(encoding="utf-8"))
    name = library_of(folder)
    made = [arguments for library, arguments in LIBRARY.findall(text) if library == name]
    if not made:
        return [f"{cmake.relative_to(ROOT)}: no mr_library({name} ...)"]
    words = made[-1].split()
    deps = words[words.index("DEPS") + 1 :] if "DEPS" in words else []
    if "LINKS" in deps:
        deps = deps[: deps.index("LINKS")]
    told = {word for word in deps if word.startswith("mr_")}
    needed = {library_of(target) for target in included}
    if folder == "protocol":
        told -= {"mr_protobuf"}  # generated code, which has no folder in the tree
    wrong = [f"lacks {target}" for target in sorted(needed - told)]
    wrong += [f"names {target}, which nothing here includes" for target in sorted(told - needed)]
    return [f"{cmake.relative_to(ROOT)}: DEPS of {name}: {reason}" for reason in wrong]


def check_order() -> list[str]:
    """Checks that MAY_INCLUDE has no cycle: each folder names only folders listed above it."""
    found = []
    above = set()
    for folder, allowed in MAY_INCLUDE.items():
        for target in allowed.split():
            if target.endswith("/*"):
                late = [other for other in MAY_INCLUDE if other.startswith(target[:-1]) and other not in above]
                late = [other for other in late if other != folder]
            else:
                late = [target] if target not in above else []
            found += [f"MAY_INCLUDE: {folder} names {other}, which does not lie below it" for other in late]
        above.add(folder)
    return found


def unknown_folders() -> list[str]:
    tops = {folder.split("/")[0] for folder in MAY_INCLUDE}
    folders = {folder_of(path.relative_to(ROOT).as_posix()) for top in tops for path in (ROOT / top).rglob("*")
               if path.suffix in SOURCES}
    return [f"{folder}: not in MAY_INCLUDE" for folder in sorted(folders - set(MAY_INCLUDE))]


def check_tidy() -> list[str]:
    """Checks that the header filter of .clang-tidy names the top folders of MAY_INCLUDE."""
    found = re.search(r"^HeaderFilterRegex: '\(([^)]*)\)", (ROOT / ".clang-tidy").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(found[1].split("|")) if found else set()
    tops = {folder.split("/")[0] for folder in MAY_INCLUDE}
    return [f".clang-tidy: HeaderFilterRegex lacks {top}" for top in sorted(tops - named)]


def alone(header: pathlib.Path, flags: list[str]) -> str | None:
    command = ["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", *flags, str(header)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
    return f"{header.relative_to(ROOT)}: does not compile alone: {first}"


def check_headers(build: pathlib.Path) -> list[str]:
    flags = {"-I" + str(ROOT): None}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        words = shlex.split(entry["command"])
        for word, following in zip(words, words[1:]):
            if word == "-isystem":
                flags["-isystem" + following] = None
            elif word.startswith("-D"):
                flags[word] = None
    headers = []
    for folder in MAY_INCLUDE:
        for header in sources_of(folder):
            # _impl headers are bodies compiled once per instruction set, in sources that define what they need.
            if header.suffix != ".h" or header.stem.endswith("_impl"):
                continue
            # If a source includes its own header first, compiling the source shows that the header compiles alone.
            source = next((header.with_suffix(s) for s in (".cc", ".cu") if header.with_suffix(s).exists()), None)
            first = includes_of(source)[:1] if source else []
            if not first or first[0][2] != header.relative_to(ROOT).as_posix():
                headers.append(header)
    headers = [header for header in headers if not needs_cuda_compiler(header)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [reason for reason in pool.map(lambda header: alone(header, list(flags)), headers) if reason]


def needs_cuda_compiler(header: pathlib.Path) -> bool:
    text = header.read_text(encoding="utf-8")
    return "__device__" in text or any(target.endswith(".cuh") for _, _, target in includes_of(header))


def main() -> int:
    found = check_order() + unknown_folders() + check_tidy() + check_names()
    for folder in MAY_INCLUDE:
        found += check_folder(folder)
    for path in sorted((ROOT / "bench").rglob("*.*")):
        if path.suffix in SOURCES:
            found += check_namespaces(path)
    if sys.argv[1:2] == ["--headers"]:
        found += check_headers(pathlib.Path(sys.argv[2]).resolve())
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

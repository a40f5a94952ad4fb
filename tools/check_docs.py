#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that what documents name exists: paths of the tree, options, metrics, variables, JSON fields, types and their
members, constants, functions, tests, presets, targets and labels of CMake, commits.

Reads all Markdown files but CHANGELOG.md and bench/results, which are about their own time. A name counts where it is
written as code, a commit anywhere. Options and names of other people's programs are listed here. Whether a program has
the options that a command gives it is for tests/deploy/manifests_test.py, which needs the programs. Commits are looked
up where the whole history is at hand.
Lines of all Markdown files but outputs in bench/results have at most MAX_COLUMNS columns, and rows of tables as many
cells as the head.
Prints each offence as file:line: name: reason; exit status 1 if any.
"""

import fnmatch
import functools
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Options and files of other people's projects that documents name, by project.
FOREIGN_OPTIONS = {
    "cmake, ctest": "--build --component --install --preset --target",
    "docker, podman, buildah": "--cap-drop --hostname --isolation --memory --network --read-only --restart --rm "
                               "--security-opt --shm-size --stop-timeout --tmpfs",
    "kubectl": "--cert --from-file --image --key --labels --restart --rm",
    "mpirun": "--allow-run-as-root --bind-to --map-by --mca --oversubscribe",
    "Slurm": "--cpus-per-task --gpu-bind --gpus-per-task --mpi --nodes --ntasks --signal --test-only",
    "apt-get, curl": "--data-binary --no-install-recommends",
    "systemctl, useradd": "--no-create-home --now --shell --system",
    "pkg-config": "--cflags --libs",
    "pip": "--no-deps --only-binary",
    "Dynamo": "--disaggregation-mode --discovery-backend --namespace --request-plane --router-mode",
    "SGLang": "--unified-cache-external-linker-config",
    "vLLM": "--otlp-traces-endpoint --kv-events-config --kv-transfer-config --prefiller-host --prefiller-port --scheduling-policy",
    "load tools": "--backend --base-url --constraint --data --dataset-name --endpoint-type --extra-body --extra-inputs --max-concurrency"
    " --num-prompts --output-tokens-mean --profile --random-input-len --random-output-len --request-count --synthetic-input-tokens-mean --url",
}
FOREIGN_FILES = {"nccl.h", "mpi.h", "zmq.h", "toy_proxy_server.py", "disagg_proxy_demo.py"}

# Identifiers and fields of other people's programs and formats.
FOREIGN_NAMES = {
    "CMake's loops": "kernels_elementwise_bench kernels_gemm_bench",
    "checkpoints": "weight_scale weight_scale_2 weight_scale_inv",
    "glibc, Linux": "malloc_trim ptrace_scope tcp_wmem",
    "how names are written": "PascalCase kConstants snake_case",
    "Dynamo": "dynamo_component_kv_publisher_zmq_events_total OpenEngine",
    "OpenAI": "annotations audio function_call functions modalities tool_choice",
    "SGLang": "UnifiedCacheLinker",
    "Slurm": "KillWait",
    "UCX": "cuda_ipc ucp_listener",
    "vLLM": "buffer_steps reuse",
}
NO_COMMITS = {"ed25519"}
MAX_COLUMNS = 120

# Where options are defined: C++ outside of tests, Python, and the case patterns of shell scripts.
OPTION_IN_CPP = re.compile(r'"!?(?:-\w,)?(--[a-z][a-z0-9-]*)')
OPTION_IN_PYTHON = re.compile(
    r"""(?:add_argument\((?:\s*["']-\w["'],)?\s*|sys\.argv[^\n]*)["'](--[a-z][a-z0-9-]*)""")
OPTION_IN_SHELL = re.compile(r"(--[a-z][a-z0-9-]*)(?:=\*)?(?= *[|)])")
METRIC_IN_CODE = re.compile(r'"(millrace_[a-z0-9_]+)')
TEST_CASE = re.compile(r"^TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", re.MULTILINE)
TEST_NAME = re.compile(r"[A-Z]\w*[a-z]\w*\.[A-Z]\w*[a-z]\w*$")
# Where types, CMake's targets and tests' labels are named.
DECLARED = re.compile(r"\b(?:class|struct|union|concept|enum(?: class)?|message)\s+(?:\[\[\w+\]\]\s+)?(\w+)|\busing\s+(\w+)\s*=")
STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
TARGET_IN_CMAKE = re.compile(r"\b(?:mr_\w+|add_(?:library|executable|custom_target))\(\s*([\w-]+)")
LABEL_IN_CMAKE = re.compile(r'LABELS\s+"?([\w;-]+)')
HISTOGRAM_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")

FENCE = re.compile(r"^ {0,3}(```+|~~~+)")
CODE_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.S)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]\b(?![*])")
METRIC = re.compile(r"\bmillrace_[a-z0-9_]*[a-z0-9](?![\w*{.])")
VARIABLE = re.compile(r"\bMILLRACE_[A-Z0-9_]*[A-Z0-9](?![\w*])")
PATH = re.compile(r"^[\w.*{},+-]+(?:/[\w.*{},+-]+)*/?$")
# What is a file's name even without a folder: sources, and results with their date.
FILE = re.compile(r"\.(?:h|cc|cu|cuh|py|proto|cmake|sh)$|-20\d\d-\d\d-\d\d\.(?:txt|json|md)$")
# snake_case names of at least two parts: fields, functions, options of files.
IDENTIFIER = re.compile(r"^[a-z][a-z0-9]*(?:_[a-z0-9]+)+$")
TYPE = re.compile(r"^(?:[A-Z][a-z0-9]+){2,}$")
MEMBER = re.compile(r"^(?:\w+::)*(\w+)::(\w+)(?:\(\))?$")
CONSTANT = re.compile(r"^k[A-Z]\w*$")
CALL = re.compile(r"^(\w+)\(\)$")
PRESET = re.compile(r"\b(?:cmake|ctest)\b[^|;&]*? --preset[= ]([\w-]+)")
LABEL = re.compile(r"\bctest\b[^|;&]*? -L ([\w-]+)")
TARGETS = re.compile(r"\bcmake\b[^|;&]*? --target((?: [a-z][\w-]*)+)")
BOLD_TYPE = re.compile(r"\*\*((?:[A-Z][a-z0-9]+){2,})\*\*")
LISTED = re.compile(r"(?:- |\| )(`[^`]*`(?:, `[^`]*`)*)")
JSON_KEY = re.compile(r'(?<![\w\\])"([A-Za-z_]\w*)"\s*:')
WORD = re.compile(r"[A-Za-z_]\w*")
SCHEMA_KEY = re.compile(r"^\s+(?:- )?([A-Za-z_]\w*):", re.M)
# A commit's name, abbreviated (git writes 7 digits or more, at least one of each kind in practice) or whole.
COMMIT = re.compile(r"(?<![\w./@#-])(?:(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,12}|[0-9a-f]{40})(?![\w./-]\w|\w)")
RESULT_FOLDER = re.compile(r"^h[12]00(?:x\d)?/")
BRACES = re.compile(r"\{([^{}]*)\}")


@functools.cache
def files():
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@functools.cache
def entries():
    """Returns every file and folder of the tree."""
    found = set(files())
    for name in files():
        found.update(str(parent) for parent in pathlib.PurePosixPath(name).parents)
    return found


@functools.cache
def tails():
    """Returns the last parts of every path: `c`, `b/c` and `a/b/c` of a/b/c."""
    found = set()
    for name in entries():
        parts = name.split("/")
        found.update("/".join(parts[first:]) for first in range(len(parts)))
    return found


def read(name):
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@functools.cache
def sources():
    """Returns name -> text of what is no document, result or data."""
    return {name: read(name) for name in files()
            if (name.endswith("CMakeLists.txt") or not name.endswith((".md", ".json", ".jsonl", ".txt", ".svg")))
            and not name.startswith("bench/results/") and (ROOT / name).stat().st_size < 1 << 20}


@functools.cache
def options():
    found = set(" ".join(FOREIGN_OPTIONS.values()).split()) | {"--help", "--version"}
    for name, text in sources().items():
        if name == "tools/check_docs.py":
            continue
        if name.endswith((".cc", ".h", ".cu")) and not name.startswith("tests/"):
            found.update(OPTION_IN_CPP.findall(text))
        elif name.endswith(".py") or text.startswith("#!/usr/bin/env python"):
            found.update(OPTION_IN_PYTHON.findall(text))
        elif text.startswith("#!"):
            found.update(OPTION_IN_SHELL.findall(text))
    return found


@functools.cache
def metrics():
    found = set()
    for name, text in sources().items():
        if name.endswith((".cc", ".h")) and not name.startswith("tests/"):
            found.update(METRIC_IN_CODE.findall(text))
        if name.startswith("sdk/python/") and name.endswith(".py"):  # counters, to whose names the library adds the suffix
            found.update(f"{counter}_total" for counter in re.findall(r'"vllm:(millrace_\w+)"', text))
    # Libraries, packages and files have such names too.
    found.update(pathlib.PurePosixPath(name).name.split(".")[0] for name in entries() if "millrace_" in name)
    found.update(name for text in sources().values() for name in re.findall(r"add_library\((millrace_\w+)", text))
    return found


@functools.cache
def variables():
    return {name for text in sources().values() for name in VARIABLE.findall(text)}


@functools.cache
def words():
    """Returns every word of the sources, and the foreign ones."""
    found = set(" ".join(FOREIGN_NAMES.values()).split())
    for name, text in sources().items():
        if name != "tools/check_docs.py":
            found.update(WORD.findall(text))
    # tests/e2e/CMakeLists.txt makes these names.
    found.update(f"{pathlib.PurePosixPath(name).stem.removesuffix('_test')}_e2e_test" for name in files() if name.startswith("tests/e2e/"))
    return found


@functools.cache
def declared():
    """Returns type -> folders that declare it."""
    found = {}
    for name, text in sources().items():
        for names in DECLARED.findall(text):
            for declared_name in filter(None, names):
                found.setdefault(declared_name, set()).add(os.path.dirname(name))
    return found


@functools.cache
def namespaces():
    return {part for text in sources().values() for name in re.findall(r"\bnamespace ([\w:]+) (?:\{|=)", text) for part in name.split("::")}


@functools.cache
def quoted():
    """Returns every word that is not C++: of scripts and files of other formats, and of texts in C++; and the foreign ones."""
    found = set(" ".join(FOREIGN_NAMES.values()).split())
    for name, text in sources().items():
        if name == "tools/check_docs.py":
            continue
        is_cpp = name.endswith((".h", ".hpp", ".cc", ".cu", ".cuh"))
        for part in STRING.findall(text) if is_cpp else [text]:
            found.update(WORD.findall(part))
    return found


@functools.cache
def words_of(folder):
    return {word for name, text in sources().items() if os.path.dirname(name) == folder for word in WORD.findall(text)}


@functools.cache
def cmake_names():
    """Returns the names of presets, targets and labels."""
    presets = set(re.findall(r'"name": "([\w-]+)"', read("CMakePresets.json")))
    targets, labels = set(), set(re.findall(r"set\(ARG_LABELS (\w+)\)", read("cmake/MillraceTargets.cmake")))
    for name, text in sources().items():
        if name.endswith(("CMakeLists.txt", ".cmake")):
            targets.update(TARGET_IN_CMAKE.findall(text))
            labels.update(label for found in LABEL_IN_CMAKE.findall(text) for label in found.split(";"))
    return presets, targets, labels


@functools.cache
def test_cases():
    return {f"{suite}.{case}" for name, text in sources().items() if name.startswith("tests/") and name.endswith(".cc")
            for suite, case in TEST_CASE.findall(text)}


@functools.cache
def fields():
    """Returns the names that JSON may have: those of openapi.yaml, words that programs have in quotes, foreign ones."""
    found = set(SCHEMA_KEY.findall(read("docs/openapi.yaml"))) | set(" ".join(FOREIGN_NAMES.values()).split())
    for name, text in sources().items():
        if name == "tools/check_docs.py" or name.startswith("tests/") and not name.startswith("tests/models/"):
            continue
        found.update(re.findall(r"""["'\\](\w+)\\?["']""", text))
    return found


def expand(path):
    """Yields the paths that a{b,c}d stands for."""
    match = BRACES.search(path)
    if match is None:
        yield path
        return
    for part in match.group(1).split(","):
        yield from expand(path[:match.start()] + part + path[match.end():])


def path_offence(path, document):
    path = path.rstrip("/").removeprefix("./")
    if path in FOREIGN_FILES:
        return None
    if RESULT_FOLDER.match(path):
        path = "bench/results/" + path
    first = path.split("/")[0]
    in_tree = "/" in path and (ROOT / first).is_dir() and first in entries()
    if not in_tree and not FILE.search(path):
        return None
    if "*" in path:
        return None if any(fnmatch.fnmatch(name, path) for name in tails()) else "no such file"
    # In a folder's README, paths begin there; elsewhere a path may leave its first folders out.
    here = os.path.normpath(os.path.join(os.path.dirname(document), path))
    if path in tails() or here in entries():
        return None
    # A program, by the folder of its sources, or a noun by its files.
    if any(f"{path}{suffix}" in tails() for suffix in (".h", ".cc", "_main.cc", ".py")):
        return None
    return "no such file or folder"


def is_member(owner, name):
    """Whether a type has the member, as far as one can tell without a compiler: a word of the folders that declare the type (a member of
    a base may be there), or a namespace the name."""
    if owner in namespaces():
        return name in words()
    return any(name in words_of(folder) for folder in declared().get(owner, ()))


def offences(code, document):
    """Yields pairs of name and reason for one piece of code."""
    for option in OPTION.findall(code):
        if option not in options():
            yield option, "no program has this option"
    for name in METRIC.findall(code):
        if name not in metrics() and HISTOGRAM_SUFFIX.sub("", name) not in metrics():
            yield name, "no such metric, library or package"
    for name in VARIABLE.findall(code):
        if name not in variables():
            yield name, "nothing reads this variable"
    for name in JSON_KEY.findall(code):
        if name not in fields():
            yield name, "no such JSON field"
    if IDENTIFIER.match(code) and code not in words() and code not in fields():
        yield code, "no such field or function"
    if TYPE.match(code) and code not in declared() and code not in quoted():
        yield code, "no such type"
    if CONSTANT.match(code) and code not in words():
        yield code, "no such constant"
    call = CALL.match(code)
    if call and call.group(1) not in words():
        yield code, "no such function"
    member = MEMBER.match(code)
    if member and not is_member(*member.groups()):
        yield code, "no such member"
    presets, targets, labels = cmake_names()
    for name in PRESET.findall(code):
        if name not in presets:
            yield name, "no such preset"
    for name in LABEL.findall(code):
        if name not in labels:
            yield name, "no test has this label"
    for name in " ".join(TARGETS.findall(code)).split():
        if name not in targets:
            yield name, "no such target"
    if TEST_NAME.match(code) and code not in test_cases():
        yield code, "no such test"
    if PATH.match(code):
        for path in expand(code):
            reason = path_offence(path, document)
            if reason:
                yield path, reason


def codes(text):
    """Yields pairs of line and code: lines of fenced blocks, and spans."""
    prose, fence = [], None
    for number, line in enumerate(text.split("\n"), 1):
        mark = FENCE.match(line)
        if fence is None:
            fence = mark.group(1) if mark else None
            prose.append("" if mark else line)
            continue
        prose.append("")
        if mark and mark.group(1).startswith(fence):
            fence = None
        else:
            # A block is no path, even if one of its lines looks like one.
            yield number, f"{line} "
    prose = "\n".join(prose)
    # Some READMEs write types in bold.
    for match in BOLD_TYPE.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, match.group(1)
    for match in CODE_SPAN.finditer(prose):
        yield prose.count("\n", 0, match.start()) + 1, " ".join(match.group(2).split())


def listed_fields(text):
    """Yields pairs of line and name: the names that items of lists and first cells of tables begin with."""
    for number, line in enumerate(text.split("\n"), 1):
        match = LISTED.match(line)
        for name in re.findall(r"`([^`]*)`", match.group(1)) if match else ():
            name = name.split("=")[0].split(".")[-1].rstrip("[]")
            if re.fullmatch(r"[a-z][a-z0-9_]*", name):
                yield number, name


def commit_offences():
    """Yields offences of commits that the history does not have; nothing where it is not whole."""
    command = ["git", "rev-parse", "--is-shallow-repository"]
    shallow = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if shallow.stdout.strip() != "false":
        return
    places = {}
    for document in documents():
        for number, line in enumerate(read(document).split("\n"), 1):
            for name in COMMIT.findall(line):
                if name not in NO_COMMITS:
                    places.setdefault(name, []).append(f"{document}:{number}")
    asked = "\n".join(f"{name}^{{commit}}" for name in places)
    command = ["git", "cat-file", "--batch-check"]
    answers = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, input=asked)
    for name, answer in zip(places, answers.stdout.splitlines()):
        if " commit " not in answer:
            yield from (f"{place}: {name}: no such commit" for place in places[name])


def line_offences():
    for name in files():
        if not name.endswith(".md") or name.startswith("bench/results/") and name != "bench/results/README.md":
            continue
        for number, line in enumerate(read(name).split("\n"), 1):
            # Nobody can break a long address.
            if len(line) > MAX_COLUMNS and max(map(len, line.split())) <= MAX_COLUMNS - 20:
                yield f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"


def table_offences():
    """Yields rows of tables that have more or fewer cells than the head: what is left out or over is not shown."""
    for name in files():
        if not name.endswith(".md") or name.startswith("bench/results/"):
            continue
        cells, fence = None, None
        for number, line in enumerate(read(name).split("\n"), 1):
            mark = FENCE.match(line)
            if mark and (fence is None or mark.group(1).startswith(fence)):
                fence = None if fence else mark.group(1)
            if fence or not line.startswith("|"):
                cells = None
                continue
            # A bar in code divides cells too, unless it is escaped.
            found = len(re.split(r"(?<!\\)\|", line.rstrip())) - 2
            cells = cells or found
            if found != cells:
                yield f"{name}:{number}: {found} cells, the head has {cells}"


def documents():
    return [name for name in files()
            if name.endswith(".md") and name != "CHANGELOG.md" and not name.startswith("bench/results/")]


def main():
    found = [f"{document}:{line}: {name}: {reason}" for document in documents()
             for line, code in codes(read(document)) for name, reason in offences(code, document)]
    found += [f"docs/api.md:{line}: {name}: no such JSON field" for line, name in listed_fields(read("docs/api.md"))
              if name not in fields()]
    found += [*commit_offences(), *line_offences(), *table_offences()]
    print("\n".join(found) or f"{len(documents())} documents name what exists")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the PTX in kvclient/device/*_ptx.cc is what the .cu file of the same name compiles to.

The client links PTX as text, so that it needs no nvcc. Each text carries the SHA-256 of its source and of the tree's headers that
the source includes, which is compared on every machine. With an nvcc of the release that wrote the texts, each source is also
compiled, and the result compared. `.version` and `.target` are not: they are lowered to what old drivers accept. Prints each file
that differs; exit status 1 if any. --write makes the texts anew. --nvcc NAME: the compiler (default: in PATH or
/usr/local/cuda/bin); exit status 77 if it is of another release.
"""

import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / 'kvclient' / 'device'
RELEASE = '13.0'
FLAGS = ['-ptx', '-arch=compute_75', '-O3']  # and -I of the tree's root
# What drivers of CUDA 11.0 and later accept. The code uses nothing newer: the driver would refuse it.
HEAD = '.version 7.0\n.target sm_70\n'
FILE = '''// SPDX-License-Identifier: Apache-2.0
#include "kvclient/device/kernel_ptx.h"

namespace millrace::kvclient {{

// Written by tools/check_ptx.py --write, not by hand: `nvcc {flags}` ({release}) of {name}.cu; .version and
// .target are lowered to what drivers of CUDA 11.0 and later accept.
// SHA-256 of {name}.cu{and_headers}: {digest}
const char k{noun}Ptx[] = R"ptx(
{text})ptx";

}}  // namespace millrace::kvclient
'''


def files_of(source: pathlib.Path) -> list[pathlib.Path]:
    """The source and, once each, the headers of this tree that it includes, directly or not."""
    files = [source]
    for file in files:
        included = re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE)
        files += dict.fromkeys(path for path in (ROOT / name for name in included) if path not in files)
    return files


def digest_of(source: pathlib.Path) -> str:
    return hashlib.sha256(b''.join(file.read_bytes() for file in files_of(source))).hexdigest()


def tokens(text: str) -> list[str]:
    """PTX without its head, comments and layout."""
    text = re.sub(r'^\s*\.(version|target)\b.*$', '', text, flags=re.MULTILINE)
    return re.findall(r'[\w.$%]+|[^\s\w]', re.sub(r'//.*', '', text))


def laid_out(text: str) -> str:
    """PTX as it stands in a *_ptx.cc: the lowered head, no comments, no line of more than 120 columns."""
    lines = []
    for line in text.splitlines():
        line = line.split('//')[0].rstrip()
        if line and not line.startswith(('.version', '.target')):
            lines += textwrap.wrap(line, 116, subsequent_indent='    ') if len(line) > 116 else [line]
    return HEAD + '\n'.join(lines) + '\n'


def find_nvcc(named: str | None) -> str | None:
    found = shutil.which(named or 'nvcc') or (None if named else shutil.which('/usr/local/cuda/bin/nvcc'))
    if named and not found:
        sys.exit(f'{named}: not found')
    return found


def release_of(nvcc: str) -> str:
    out = subprocess.run([nvcc, '--version'], check=True, capture_output=True, text=True).stdout
    match = re.search(r'release ([\d.]+)', out)
    return match[1] if match else 'unknown'


def compiled(nvcc: str, source: pathlib.Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / 'kernel.ptx'
        subprocess.run([nvcc, *FLAGS, f'-I{ROOT}', str(source), '-o', str(output)], check=True)
        # Names that are local to a file have a hash of the file's path.
        return re.sub(r'_INTERNAL_[0-9a-f]{8}_', '_INTERNAL_00000000_', output.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--nvcc')
    parser.add_argument('--write', action='store_true')
    options = parser.parse_args()

    nvcc = find_nvcc(options.nvcc)
    release = release_of(nvcc) if nvcc else None
    compiles = release == RELEASE
    if options.write and not compiles:
        sys.exit(f'--write needs nvcc {RELEASE}, found {release or "none"}')

    wrong = 0
    sources = sorted(FOLDER.glob('*.cu'))
    for source in sources:
        target = FOLDER / f'{source.stem}_ptx.cc'
        text = compiled(nvcc, source) if compiles else None
        if options.write:
            target.write_text(
                FILE.format(
                    name=source.stem,
                    noun=source.stem.capitalize(),
                    flags=' '.join(FLAGS),
                    release=RELEASE,
                    and_headers=''.join(f', {file.name}' for file in files_of(source)[1:]),
                    digest=digest_of(source),
                    text=laid_out(text),
                )
            )
            continue
        pasted = target.read_text() if target.exists() else ''
        match = re.search(r'R"ptx\((.*)\)ptx"', pasted, re.DOTALL)
        if digest_of(source) not in pasted:
            print(f'{target}: is not of this {source.name} and its headers; run tools/check_ptx.py --write with nvcc {RELEASE}')
            wrong += 1
        elif text is not None and (not match or tokens(match[1]) != tokens(text)):
            print(f'{target}: is not what nvcc {RELEASE} makes of {source.name}; run tools/check_ptx.py --write')
            wrong += 1
    if not sources:
        sys.exit(f'{FOLDER}: no .cu files')
    if wrong:
        return 1
    if not compiles and not options.write:
        print(f'PTX: digests of sources compared, nothing compiled (nvcc {RELEASE} is needed, found {release or "none"})')
        return 77 if options.nvcc else 0
    return 0


if __name__ == '__main__':
    sys.exit(main())

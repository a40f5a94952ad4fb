# SPDX-License-Identifier: Apache-2.0
"""English prose and code that a Debian or Ubuntu machine has: the manuals in Perl's modules and the sources of Python's library.

They differ between releases, so results carry a digest of the prompts made from them.
"""

import glob
import os
import re
import sysconfig

PERL = "/usr/share/perl/5*/**/*.p[mo]*"
MIN_WORDS, MAX_WORDS = 40, 220
MIN_CODE_BYTES, MAX_CODE_BYTES = 20_000, 200_000


def _read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _manual(source):
    """Returns the manual in a Perl source (perlpod): from a line that begins with "=" to a line "=cut"."""
    return "\n\n".join(re.findall(r"^=[a-z].*?(?=^=cut|\Z)", source, re.MULTILINE | re.DOTALL))


def _as_prose(paragraph):
    """Returns the paragraph as one line without markup, or None if it is not prose: code, headings, lists, tables, fragments."""
    if paragraph[:1] in " \t=":
        return None
    text = re.sub(r"[A-Z](?:<< (.*?) >>|<(.*?)>)", lambda found: found[1] or found[2] or "", " ".join(paragraph.split()))
    plain = sum(c.isalpha() or c == " " for c in text)
    is_prose = MIN_WORDS <= len(text.split()) <= MAX_WORDS and plain >= 0.9 * len(text) and text.endswith(".")
    return text if is_prose else None


def prose_paragraphs():
    """Returns distinct paragraphs, in the order of the files' paths."""
    paragraphs = {}
    for path in sorted(glob.glob(PERL, recursive=True)):
        for paragraph in re.split(r"\n\s*\n", _manual(_read(path))):
            if text := _as_prose(paragraph):
                paragraphs[text] = None
    if not paragraphs:
        raise RuntimeError(f"no prose in {PERL}; the package perl-modules has it")
    return list(paragraphs)


def code_files():
    """Returns the sources of Python's library, in the order of their paths."""
    library = sysconfig.get_paths()["stdlib"]
    paths = sorted(glob.glob(os.path.join(library, "*.py")))
    return [_read(path) for path in paths if MIN_CODE_BYTES <= os.path.getsize(path) <= MAX_CODE_BYTES]


def words(paragraphs):
    """Returns the lower-case words of five to nine letters, in alphabetical order."""
    return sorted({word for text in paragraphs for word in re.findall(r"(?<![\w'-])[a-z]{5,9}(?![\w'-])", text)})

"""For doxygen, a filter: the comments of the headers, marked as documentation.

xlogmem.h has plain comments: one above a declaration, or behind it in the same line.
"""
from __future__ import annotations

import re
import sys
from pathlib import Path

BEHIND = re.compile(r"(?<=[;,\w] )( *)/\* (?=[^\n]*\*/$)", re.MULTILINE)
ABOVE = re.compile(r"^( *)/\* (?!-)", re.MULTILINE)
STRUCTURE = re.compile(r"^typedef (struct \w+ \{.*?^\}) \w+(?=;)", re.MULTILINE | re.DOTALL)


def marked(text: str, name: str) -> str:
    if name.endswith(".hpp"):
        return text.replace("//! ", f"//! \\file {name}\n//! ", 1)
    text = ABOVE.sub(r"\1/** ", BEHIND.sub(r"\1/**< ", text))
    text = text.replace("/** ", f"/** \\file {name}\n * ", 1)
    return STRUCTURE.sub(r"\1", text)                   # one name, not a tag and a type


if __name__ == "__main__":
    path = Path(sys.argv[1])
    sys.stdout.write(marked(path.read_text(), path.name))

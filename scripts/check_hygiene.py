"""Check that no file holds what does not belong into the project.

    check_hygiene.py [ROOT]

Left-over work marks, paths of one machine, hosts of package registries, lines too long or with trailing blanks, tabs, Windows line ends.
"""
import pathlib
import re
import sys

import tree

# Written with character classes so that this file does not find itself.
FORBIDDEN = [
    (re.compile(r"\b(T[O]DO|F[I]XME|X[X]X)\b"), "left-over work mark"),
    (re.compile(r"\b(not[ _]implement[e]d|NotImplement[e]d|placehol[d]er|st[u]b)\b", re.I), "left-over work mark"),
    (re.compile(r"(?<![\w.$}\])])/(?:wor[k]|roo[t]|tm[p]|hom[e])/"), "path of one machine"),
    (re.compile(r"(pypi[.]org|pythonhoste[d]|deb[.]debian|security[.]debian|proxy[.]golang)"), "host of a package registry"),
]
LINE_LENGTH = 165  # characters; clang-format holds C++ code to 140, comments are laid out by hand
TEXT = (".h", ".cpp", ".cu", ".hip", ".py", ".sh", ".cmake", ".txt", ".md", ".json", ".in", ".ini", ".toml", "Makefile", "run")
PROSE = ("data/", "LICENSE")  # texts of others, kept as they are


def check_text(name, text):
    problems = []
    if "\r" in text:
        problems.append(f"{name}: Windows line ends")
    if text and not text.endswith("\n"):
        problems.append(f"{name}: no line end at the end of the file")
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{name}:{number}"
        problems += [f"{where}: {what}: {match.group(0)}" for pattern, what in FORBIDDEN for match in [pattern.search(line)] if match]
        if line != line.rstrip():
            problems.append(f"{where}: trailing blanks")
        if "\t" in line and name.name != "Makefile":
            problems.append(f"{where}: tab")
        if len(line) > LINE_LENGTH and name.suffix not in (".md", ".json"):
            problems.append(f"{where}: got {len(line)} characters, allowed {LINE_LENGTH}")
    return problems


def check(root):
    problems = []
    for name in tree.files(root, *TEXT):
        if not str(name).startswith(PROSE):
            try:
                problems += check_text(name, (root / name).read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                problems.append(f"{name}: not UTF-8")
    return problems


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT
    return tree.report("hygiene", check(root))


if __name__ == "__main__":
    sys.exit(main())

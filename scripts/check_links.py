"""Check that relative links in Markdown files lead to files of the project, and anchors to headings.

    check_links.py [ROOT]
"""
import pathlib
import re
import sys

import tree

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.S | re.M)
HEADING = re.compile(r"^#+ +(.*)$", re.M)


def anchors(text):
    """The anchors that renderers make of the headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in HEADING.findall(FENCE.sub("", text))}


def check(root):
    problems = []
    for name in tree.files(root, ".md"):
        text = (root / name).read_text(encoding="utf-8")
        for groups in LINK.findall(FENCE.sub("", text)):
            target = groups[0] or groups[1]
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (root / name).parent / path if path else root / name
            if not file.exists():
                problems.append(f"{name}: link to {target}: no such file")
            elif anchor and file.suffix == ".md" and anchor not in anchors(file.read_text(encoding="utf-8")):
                problems.append(f"{name}: link to {target}: no such heading")
    return problems


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT
    return tree.report("links", check(root))


if __name__ == "__main__":
    sys.exit(main())

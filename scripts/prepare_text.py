"""Make data/kjv.txt from Debian's packages bible-kjv and bible-kjv-text.

    prepare_text.py [--output data/kjv.txt]

The result is committed, so set-up never runs this; it is the record of how the text came to be. Verse numbers are taken off, each chapter is
one paragraph on one line, chapters are separated by an empty line, each book starts with its name.
"""
import argparse
import pathlib
import re
import subprocess
import sys

BOOKS = {"Ge": "Genesis", "Ruth": "Ruth", "1Sm": "The First Book of Samuel", "Prv": "Proverbs", "Eccl": "Ecclesiastes", "Jonah": "Jonah",
         "Mat": "The Gospel According to Matthew", "Mark": "The Gospel According to Mark", "Luke": "The Gospel According to Luke",
         "John": "The Gospel According to John", "Acts": "The Acts of the Apostles"}
VERSE = re.compile(r"^([1-3]?[A-Za-z]+)(\d+):(\d+) +(.*)$")


def chapters(lines):
    """Yield (book, chapter number, prose) in the order of `lines`, verses joined by spaces."""
    key, verses = None, []
    for line in lines:
        match = VERSE.match(line)
        if not match:
            raise ValueError(f"line without a verse number: {line!r}")
        book, chapter, _, text = match.groups()
        if (book, chapter) != key:
            if verses:
                yield key[0], int(key[1]), " ".join(verses)
            key, verses = (book, chapter), []
        verses.append(" ".join(text.split()))
    if verses:
        yield key[0], int(key[1]), " ".join(verses)


def prose(lines):
    parts = []
    for book, chapter, text in chapters(lines):
        if book not in BOOKS:
            continue
        if chapter == 1:
            parts.append(BOOKS[book].upper())
        parts.append(text)
    return "\n\n".join(parts) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("data/kjv.txt"))
    args = parser.parse_args()
    try:
        run = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True)
    except FileNotFoundError:
        print("error: the program 'bible' is not installed: apt-get install bible-kjv bible-kjv-text", file=sys.stderr)
        return 4
    args.output.write_text(prose(run.stdout.splitlines()), encoding="utf-8")
    print(f"wrote {args.output}: {args.output.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

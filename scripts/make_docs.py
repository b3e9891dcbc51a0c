"""Regenerate the pages of docs/ that are made from programs: docs/tools.md from each tool's --help.

    make_docs.py [--bin build/bin]
"""
import argparse
import pathlib
import subprocess
import sys

import tree

TOOLS = ("deepspeed", "ds_train", "ds_report", "conformance")
HEAD = """# Tools

Made by `make docs` from each tool's `--help`; edit the tool, not this page. Exit codes of all tools: 0 ok, 1 failure, 2 usage, 3 bad
configuration, 4 environment, 5 a rank failed.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=tree.ROOT / "build" / "bin")
    args = parser.parse_args()
    parts = [HEAD]
    for tool in TOOLS:
        program = args.bin / tool
        if not program.is_file():
            print(f"error: {program} is not built: run make build", file=sys.stderr)
            return 1
        run = subprocess.run([program, "--help"], capture_output=True, text=True)
        if run.returncode:
            print(f"error: {tool} --help ended with {run.returncode}: {run.stderr}", file=sys.stderr)
            return 1
        lines = "\n".join(line.rstrip() for line in run.stdout.strip().splitlines()).replace(str(args.bin) + "/", "")
        parts.append(f"## {tool}\n\n```\n{lines}\n```\n")
    page = tree.ROOT / "docs" / "tools.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    print(f"wrote {page.relative_to(tree.ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Regenerate the pages of docs/ that are made from programs: docs/tools.md from each tool's --help, docs/config.md from the schema.

    make_docs.py [--build build]
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

import tree

TOOLS = ("deepspeed", "ds_train", "ds_report", "ds_config", "ds_checkpoint", "ds_migrate", "zero_to_fp32", "conformance")
HEAD = """# Tools

Made by `make docs` from each tool's `--help`; edit the tool, not this page. Exit codes of all tools: 0 ok, 1 failure, 2 usage, 3 bad
configuration, 4 environment, 5 a rank failed.
"""


class DocsError(Exception):
    pass


def output_of(*command):
    run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if run.returncode:
        raise DocsError(f"{' '.join(map(str, command))} ended with {run.returncode}: {run.stderr}")
    return run.stdout


def tools_page(folder):
    parts = [HEAD]
    for tool in TOOLS:
        if not (folder / tool).is_file():
            raise DocsError(f"{folder / tool} is not built: run make build")
        text = output_of(folder / tool, "--help").replace(f"{folder}/", "")
        lines = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## {tool}\n\n```\n{lines}\n```\n")
    return "\n".join(parts)


def config_page(build):
    """The reference of ds_config.json, printed by a program around the schema's own writer."""
    library = build / "libds_core.a"
    if not library.is_file():
        raise DocsError(f"{library} is not built: run make build")
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "config_reference"
        output_of("g++", "-std=c++20", "-O0", f"-I{tree.ROOT / 'src'}", f"-I{tree.ROOT / 'include'}",
                  tree.ROOT / "scripts" / "config_reference_main.cpp", library, "-lpthread", "-o", program)
        return output_of(program)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=tree.ROOT / "build")
    args = parser.parse_args()
    try:
        pages = {"tools.md": tools_page(args.build / "bin"), "config.md": config_page(args.build)}
    except DocsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for name, text in pages.items():
        (tree.ROOT / "docs" / name).write_text(text, encoding="utf-8")
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

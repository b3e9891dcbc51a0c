"""Check the sizes of source files and functions.

    check_sizes.py [ROOT]

A file of more than 600 lines fails the check: an idea is missing from the design. A function of more than 80 lines is a warning.
"""
import ast
import pathlib
import re
import sys

import tree

FILE_LINES = 600
FUNCTION_LINES = 80
# A definition's first line, as clang-format lays it out: not deeper than a class body, has a parameter list, is no control statement.
START = re.compile(r"^( {0,2})(?!(?:if|for|while|switch|else|do|namespace|class|struct|enum|union|case|return)\b)(?![#/*} ])(.*\w.*)$")


def cpp_functions(lines):
    """Yield (first line number, length) of function definitions, by their indentation."""
    index = 0
    while index < len(lines):
        match = START.match(lines[index])
        if not match or "(" not in lines[index]:
            index += 1
            continue
        head = index
        while head < len(lines) - 1 and not lines[head].rstrip().endswith(("{", ";", "}")):
            head += 1
        if not lines[head].rstrip().endswith("{"):
            index = head + 1
            continue
        closing = match.group(1) + "}"
        end = next((i for i in range(head + 1, len(lines)) if lines[i].startswith(closing)), len(lines) - 1)
        yield index + 1, end - index + 1
        index = end + 1


def python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno - node.lineno + 1


def check(root):
    """(problems, warnings) of the tree."""
    problems, warnings = [], []
    for name in tree.files(root, ".h", ".cpp", ".cu", ".hip", ".py", ".sh"):
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()
        if len(lines) > FILE_LINES:
            problems.append(f"{name}: got {len(lines)} lines, allowed {FILE_LINES}")
        functions = python_functions(text) if name.suffix == ".py" else [] if name.suffix == ".sh" else cpp_functions(lines)
        warnings += [f"warning: {name}:{line}: function of {length} lines, better below {FUNCTION_LINES}"
                     for line, length in functions if length > FUNCTION_LINES]
    return problems, warnings


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT
    problems, warnings = check(root)
    for warning in warnings:
        print(warning)
    return tree.report("sizes", problems)


if __name__ == "__main__":
    sys.exit(main())

"""The checks find what they are for, on small trees, and the project itself passes them."""
import pathlib
import subprocess

import check_hygiene
import check_layers
import check_links
import check_sizes
import pytest
import tree


@pytest.fixture
def make(tmp_path):
    """make(name=text...) -> a git tree with those files."""

    def build(files):
        subprocess.run(["git", "init", "-q", tmp_path], check=True)
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return build


@pytest.mark.parametrize("name, include, words", [
    ("src/base/a.cpp", '"config/schema.h"', "room config has level 1, allowed below 0"),
    ("src/comm/a.h", '"tensor/unit.h"', "room tensor has level 2"),
    ("src/zero/a.cpp", '"engine/engine.h"', "room engine has level 6"),
    ("src/config/a.cpp", "<ATen/ATen.h>", "built without torch"),
    ("src/optim/a.h", "<torch/torch.h>", "torch/torch.h"),
    ("src/optim/a.cpp", "<c10/cuda/CUDAGuard.h>", "only src/accel and src/comm name a vendor"),
    ("include/deepspeed/a.h", '"base/text.h"', "public headers include only public headers"),
    ("examples/a/main.cpp", '"engine/engine.h"', "examples use only public headers"),
    ("src/attic/a.cpp", '"attic/b.h"', "room 'attic' has no level"),
])
def test_layers_finds_upward_includes(make, name, include, words):
    problems = check_layers.check(make({name: f"#include {include}\n"}))
    assert len(problems) == 1 and words in problems[0]


def test_layers_accepts_lower_rooms_own_room_and_public_headers(make):
    text = '#include "deepspeed/engine.h"\n#include "zero/unit.h"\n#include "zero/policy.h"\n#include "base/text.h"\n#include <ATen/ops/add.h>\n'
    assert check_layers.check(make({"src/engine/a.cpp": text, "src/zero/b.cpp": '#include "zero/policy.h"\n',
                                    "tools/train_main.cpp": '#include "engine/engine.h"\n'})) == []


def test_layers_finds_vendor_names_but_not_in_comments(make):
    files = {"src/zero/a.cpp": "// kCUDA is fine here\nauto x = c10::kCUDA;\n", "src/accel/b.cpp": "auto x = c10::kCUDA;\n"}
    problems = check_layers.check(make(files))
    assert len(problems) == 1 and "kCUDA" in problems[0]


def function(lines):
    return "int f(int a,\n      int b) {\n" + "  a += b;\n" * (lines - 3) + "}\n"


def test_sizes_limits_files_and_warns_of_functions(make):
    files = {"src/base/long.cpp": "int a;\n" * 601, "src/base/fits.cpp": function(80) + "\n" + function(81),
             "scripts/a.py": "def f():\n" + "    pass\n" * 90}
    problems, warnings = check_sizes.check(make(files))
    assert problems == ["src/base/long.cpp: got 601 lines, allowed 600"]
    assert [warning.split(": ")[1] for warning in warnings] == ["scripts/a.py:1", "src/base/fits.cpp:82"]


def test_sizes_measures_methods_inside_namespaces_and_classes():
    lines = ["namespace x {", "class A {", " public:", "  int f() {", *["    g();"] * 5, "  }", "};", "}  // namespace x"]
    assert list(check_sizes.cpp_functions(lines)) == [(4, 7)]


@pytest.mark.parametrize("line, words", [
    ("// TO" + "DO: later", "work mark"),
    ("throw Error(\"not imple" + "mented\");", "work mark"),
    ("path = '/ro" + "ot/.venv/bin'", "path of one machine"),
    ("see https://py" + "pi.org/simple", "host of a package registry"),
    ("int a; ", "trailing blanks"),
    ("\tint a;", "tab"),
    ("x" * 166, "166 characters"),
])
def test_hygiene_finds(line, words):
    problems = check_hygiene.check_text(pathlib.Path("a.cpp"), line + "\n")
    assert len(problems) == 1 and words in problems[0]


def test_hygiene_leaves_relative_and_variable_paths_alone():
    assert check_hygiene.check_text(pathlib.Path("a.sh"), "a=$HOME/tmp/x\nb=${TMPDIR}/work/y\nc=build/tmp/z\n") == []


def test_links_finds_missing_files_and_headings(make):
    files = {"README.md": "# One two\n[a](docs/a.md) [b](#one-two) [c](docs/gone.md) [d](#three) [e](docs/a.md#b) [f](https://x.y)\n"
                          "```\n[g](gone)\n```\n", "docs/a.md": "# A\n"}
    assert check_links.check(make(files)) == ["README.md: link to docs/gone.md: no such file", "README.md: link to #three: no such heading",
                                              "README.md: link to docs/a.md#b: no such heading"]


@pytest.mark.parametrize("check", [check_layers.check, lambda root: check_sizes.check(root)[0], check_hygiene.check, check_links.check],
                         ids=["layers", "sizes", "hygiene", "links"])
def test_the_project_passes(check):
    assert check(tree.ROOT) == []

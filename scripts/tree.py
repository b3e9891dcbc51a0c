"""Shared by the checks: which files belong to the project."""
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
REFERENCE = "tests/golden/"  # data made elsewhere; not ours to format or check


def files(root, *endings):
    """Paths, relative to `root`, of files that git tracks or would track, that exist, and end with one of `endings` (all when none)."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root, capture_output=True,
                            check=True).stdout.decode()
    names = sorted(name for name in set(listed.split("\0")) if name and not name.startswith(REFERENCE))
    return [pathlib.Path(name) for name in names if (not endings or name.endswith(endings)) and (root / name).is_file()]


def report(title, problems):
    """Print the problems and return the exit code."""
    for problem in problems:
        print(problem)
    print(f"{title}: {len(problems)} problems" if problems else f"{title}: ok")
    return 1 if problems else 0

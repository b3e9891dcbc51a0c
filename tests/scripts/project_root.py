"""Where the repository is. Not in conftest.py: each folder of tests has one, and `import conftest` finds any of them."""
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]

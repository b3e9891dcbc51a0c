import sys

from project_root import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

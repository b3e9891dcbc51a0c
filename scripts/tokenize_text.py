"""Tokenise text and jsonl files into the indexed dataset that Megatron and DeepSpeed read (PREFIX.bin, PREFIX.idx).

    tokenize_text.py --tokenizer MODEL/tokenizer.json --output PREFIX PATH...

A .jsonl file holds one document per line, an object whose "text" is a string; any other file is one document of UTF-8 text. Each document
ends with the end-of-sequence token when a file beside the tokenizer names one. PREFIX.meta.json tells what the files were made from: with the
same sources and tokenizer a second call does nothing. Files appear under their final names only when complete.

PREFIX.idx, little endian:
    magic "MMIDIDX\\0\\0" | u64 version 1 | u8 type code | u64 documents | u64 documents + 1 |
    i32 length of each document in tokens | i64 offset of each in PREFIX.bin, bytes | i64 first sequence of each document, then their number
The default type is int32 (code 4): the only one wide enough that Megatron and DeepSpeed number alike. `--dtype uint16` halves the file and
uses Megatron's code 8, which DeepSpeed takes for uint64.

Exit codes: 0 ok, 1 bad input, 2 usage, 4 environment.
"""
import argparse
import hashlib
import json
import os
import pathlib
import struct
import sys
import time

CODES = {"int32": (4, "<i4"), "uint16": (8, "<u2")}
BATCH = 512  # documents handed to the tokenizer at a time


class InputError(Exception):
    pass


def file_facts(path):
    status = path.stat()
    return {"path": str(path), "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def sha256(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def eos_token_id(tokenizer, folder):
    """The id of the end-of-sequence token that the files beside the tokenizer name, or None."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = read_json(folder / name).get("eos_token")
        if isinstance(token, dict):
            token = token.get("content")
        if token is not None:
            number = tokenizer.token_to_id(token)
            if number is None:
                raise InputError(f"eos_token in {folder / name}: got {token!r}, allowed a token of the vocabulary")
            return number
    for name in ("generation_config.json", "config.json"):
        number = read_json(folder / name).get("eos_token_id")
        if isinstance(number, list):
            number = number[0] if number else None
        if number is not None:
            return number
    return None


def documents(path):
    """Yield the non-empty documents of one file."""
    try:
        if path.suffix == ".jsonl":
            with open(path, encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.strip():
                        continue
                    try:
                        text = json.loads(line)["text"]
                    except (json.JSONDecodeError, KeyError, TypeError):
                        text = None
                    if not isinstance(text, str):
                        raise InputError(f'{path}:{number}: got {line.strip()[:60]!r}, allowed an object with a string under "text"')
                    if text:
                        yield text
        else:
            text = path.read_text(encoding="utf-8")
            if text:
                yield text
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: got a byte that is not UTF-8 at offset {error.start}, allowed UTF-8 text") from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def batches(paths):
    group = []
    for path in paths:
        for text in documents(path):
            group.append(text)
            if len(group) == BATCH:
                yield group
                group = []
    if group:
        yield group


def write_index(file, code, width, lengths):
    file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1))
    file.write(struct.pack(f"<{len(lengths)}i", *lengths))
    offset = 0
    for length in lengths:
        file.write(struct.pack("<q", offset))
        offset += length * width
    file.write(struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1)))


def commit(pairs):
    """Give files their final names, in order, each durable before it is visible."""
    for work, final in pairs:
        with open(work, "rb") as file:
            os.fsync(file.fileno())
        os.replace(work, final)
    folder = os.open(pairs[0][1].parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def tokenize(args, tokenizer, eos, say):
    import numpy
    code, numpy_type = CODES[args.dtype]
    width = numpy.dtype(numpy_type).itemsize
    final = [pathlib.Path(f"{args.output}.{end}") for end in ("bin", "idx", "meta.json")]
    final[0].parent.mkdir(parents=True, exist_ok=True)
    work = [path.with_name(f".{path.name}.{os.getpid()}") for path in final]
    sources = [file_facts(path) for path in args.paths]  # before reading: a change meanwhile makes the cache stale
    lengths, last = [], time.monotonic()
    try:
        with open(work[0], "wb") as file:
            for group in batches(args.paths):
                for encoding in tokenizer.encode_batch(group, add_special_tokens=False):
                    ids = encoding.ids + ([] if eos is None else [eos])
                    file.write(numpy.asarray(ids, dtype=numpy_type).tobytes())
                    lengths.append(len(ids))
                if time.monotonic() - last > 5:
                    last = time.monotonic()
                    say(f"{len(lengths)} documents, {sum(lengths)} tokens so far")
        if not sum(lengths):
            raise InputError("no text in " + ", ".join(str(path) for path in args.paths))
        with open(work[1], "wb") as file:
            write_index(file, code, width, lengths)
        meta = {"version": 1, "dtype": args.dtype, "eos_token_id": eos, "vocab_size": tokenizer.get_vocab_size(),
                "documents": len(lengths), "tokens": sum(lengths), "tokenizer_sha256": sha256(args.tokenizer), "sources": sources}
        work[2].write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        if final[2].exists():
            final[2].unlink()  # from here until the last rename the cache counts as absent
        commit(list(zip(work, final)))
    finally:
        for path in work:
            path.unlink(missing_ok=True)
    return meta


def is_current(args, eos):
    """Whether the files of PREFIX were made from these sources, this tokenizer and these settings."""
    try:
        meta = json.loads(pathlib.Path(f"{args.output}.meta.json").read_text(encoding="utf-8"))
        return (all(pathlib.Path(f"{args.output}.{end}").is_file() for end in ("bin", "idx")) and meta["version"] == 1 and
                meta["dtype"] == args.dtype and meta["eos_token_id"] == eos and
                meta["sources"] == [file_facts(path) for path in args.paths] and meta["tokenizer_sha256"] == sha256(args.tokenizer))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="a tokenizer.json")
    parser.add_argument("--output", required=True, metavar="PREFIX")
    parser.add_argument("--dtype", choices=CODES, default="int32")
    parser.add_argument("--force", action="store_true", help="tokenise although the files are up to date")
    parser.add_argument("paths", type=pathlib.Path, nargs="+", metavar="PATH")
    args = parser.parse_args(argv)

    def say(text):
        print(f"[tokenize] {text}", file=sys.stderr, flush=True)

    try:
        import tokenizers
    except ImportError:
        say("error: the package tokenizers is not installed: run scripts/setup.sh")
        return 4
    try:
        for path in [args.tokenizer, *args.paths]:
            if not path.is_file():
                raise InputError(f"no file at {path}")
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(args.tokenizer))
        except Exception as error:  # the wheel raises plain Exception
            raise InputError(f"{args.tokenizer} is not a tokenizer: {error}") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        eos = eos_token_id(tokenizer, args.tokenizer.parent)
        if args.dtype == "uint16" and max(tokenizer.get_vocab_size(), (eos or 0) + 1) > 65536:
            raise InputError(f"vocabulary: got {tokenizer.get_vocab_size()} tokens, allowed 65536 with --dtype uint16")
        if not args.force and is_current(args, eos):
            say(f"{args.output} is up to date")
            return 0
        meta = tokenize(args, tokenizer, eos, say)
    except InputError as error:
        say(f"error: {error}")
        return 1
    say(f"{args.output}: {meta['documents']} documents, {meta['tokens']} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the peers' start weights and tokens as files, for our side.

    make_inputs.py SIZE MICRO_BATCH SEQ STEPS OUTPUT

OUTPUT/model is a Hugging Face directory, OUTPUT/tokens.safetensors holds `tokens` int64 [steps, 2 ranks, micro batch, seq]. Both come from the
very functions that train_peer.py uses.
"""
import os
import pathlib
import shutil
import sys

import train_peer

WORLD = 2


def main():
    size, micro_batch, seq, steps, output = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), pathlib.Path(sys.argv[5])
    if (output / "tokens.safetensors").is_file():
        return
    import torch
    from safetensors.torch import save_file
    work = output.with_name(f"{output.name}.{os.getpid()}")
    model = train_peer.build(size)
    model.save_pretrained(work / "model")
    vocab = train_peer.SIZES[size]["vocab_size"]
    rows = [torch.stack([train_peer.batch(step, rank, micro_batch, seq, vocab) for rank in range(WORLD)]) for step in range(steps)]
    save_file({"tokens": torch.stack(rows)}, work / "tokens.safetensors")
    shutil.rmtree(output, ignore_errors=True)
    work.rename(output)


if __name__ == "__main__":
    main()

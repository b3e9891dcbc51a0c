"""Train a LLaMA-style model with a peer system on CPU and print one JSON line of what it measured.

    torchrun --nproc-per-node 2 benchmarks/train_peer.py --system deepspeed --stage 3 --size small

Systems: deepspeed (ZeRO 0-3), ddp, fsdp2, over Gloo. The model is transformers' LlamaForCausalLM from a seeded random start, the data a seeded
stream of token ids; make_inputs.py writes the same weights and tokens as files for our side. `--first FILE` gets a line when the first
optimizer step is done, as `--log_json` does on our side. Printed after "PEER ": losses (mean over ranks) and seconds of every step.
"""
import argparse
import json
import os
import time

SIZES = {
    "tiny": dict(hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
                 vocab_size=1024),
    "small": dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=8,
                  vocab_size=8192),
    # 48 narrow blocks of 16 tensors each.
    "deep": dict(hidden_size=64, intermediate_size=256, num_hidden_layers=48, num_attention_heads=1, num_key_value_heads=1, vocab_size=256,
                 attention_bias=True, mlp_bias=True),
    # SmolLM2-135M's shape.
    "smol": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                 vocab_size=49152, tie_word_embeddings=True),
    "large": dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=20, num_attention_heads=16, num_key_value_heads=16,
                  vocab_size=16384),
}
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1


def batch(step, rank, micro_batch, seq, vocab):
    import torch
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, vocab, (micro_batch, seq), generator=generator)


def build(size):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    settings = dict(tie_word_embeddings=False) | SIZES[size]
    return LlamaForCausalLM(LlamaConfig(max_position_embeddings=2048, rope_theta=10000.0, rms_norm_eps=1e-5, attn_implementation="sdpa",
                                        use_cache=False, **settings))


def deepspeed_step(model, args):
    """step(ids) -> loss, through DeepSpeed's engine."""
    import deepspeed
    config = {
        "train_micro_batch_size_per_gpu": args.micro_batch, "gradient_clipping": args.clip, "steps_per_print": 10**9,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "torch_adam": True}},
        "zero_optimization": {"stage": args.stage}, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
    }
    if args.bf16:
        config["bf16"] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(ids):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        return loss.item()
    return step


def torch_step(model, args):
    """step(ids) -> loss, through torch's DDP or FSDP2."""
    import torch
    net = model
    if args.system == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if args.bf16 else MixedPrecisionPolicy()
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    else:
        net = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)

    def step(ids):
        # DDP knows no mixed precision of its own: torch's autocast is how its users get it.
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16 and args.system == "ddp"):
            loss = net(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=["deepspeed", "ddp", "fsdp2"], default="deepspeed")
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--bf16", action="store_true", help="bf16 with fp32 masters")
    parser.add_argument("--first", help="file that gets a line after the first step")
    args = parser.parse_args()
    import torch
    import torch.distributed as dist
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if args.system == "deepspeed":
        import deepspeed
        deepspeed.init_distributed(dist_backend="gloo")
    else:
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = build(args.size)
    vocab = model.config.vocab_size
    step = (deepspeed_step if args.system == "deepspeed" else torch_step)(model, args)
    losses, seconds = [], []
    for number in range(args.steps):
        begin = time.perf_counter()
        losses.append(step(batch(number, rank, args.micro_batch, args.seq, vocab)))
        seconds.append(time.perf_counter() - begin)
        if number == 0 and rank == 0 and args.first:
            with open(args.first, "w") as file:
                file.write("first step done\n")
    mean = torch.tensor(losses)
    dist.all_reduce(mean)
    if rank == 0:
        print("PEER " + json.dumps({"losses": [round(x, 6) for x in (mean / world).tolist()], "seconds": seconds}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

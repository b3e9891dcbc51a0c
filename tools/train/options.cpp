#include "train/options.h"

#include <CLI/CLI.hpp>

namespace deepspeed::train {

bool parse_options(int argc, char** argv, Options* o, int* status) {
  CLI::App app("Trains a language model from a Hugging Face directory with ZeRO.", "ds_train");
  app.set_version_flag("--version", std::string("ds_train ") + DEEPSPEED_VERSION);
  app.add_option("--model", o->model, "Hugging Face directory (config.json and safetensors)")->required();
  app.add_option("--data", o->data, "text or jsonl files, the prefix of a .bin/.idx pair, or one .safetensors holding `tokens`")
      ->required();
  app.add_option("--deepspeed_config", o->config, "ds_config.json")->required();
  app.add_option("--seq", o->seq, "tokens per row")->check(CLI::Range(int64_t{2}, int64_t{1} << 24));
  app.add_option("--steps", o->steps, "optimizer steps; 0: one pass over the data")->check(CLI::NonNegativeNumber);
  app.add_option("--seed", o->seed, "of the sample order, dropout and sampling");
  app.add_option("--save", o->save, "folder for checkpoints");
  app.add_option("--save_interval", o->save_interval, "optimizer steps between checkpoints; 0: only at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--async_save", o->async_save, "copies the state and writes it while training goes on");
  app.add_option("--keep", o->keep, "newest checkpoints that stay in the folder; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--load", o->load, "folder of checkpoints to resume from");
  app.add_option("--load_tag", o->load_tag, "checkpoint in that folder; default: the newest");
  app.add_flag("--fallback", o->fallback, "when that checkpoint is missing or damaged, takes the newest whole one");
  app.add_option("--export", o->export_directory, "writes a Hugging Face directory at the end");
  app.add_option("--log_json", o->log_json, "writes one JSON object per optimizer step");
  app.add_option("--profile", o->profile,
                 "records where the time of each step goes (after the first): a Chrome trace of all ranks in FILE, a table at the end")
      ->type_name("FILE");
  app.add_option("--loss_svg", o->loss_svg, "draws the loss curve");
  app.add_option("--dump_weights", o->dump_weights, "writes the full fp32 weights at the end (safetensors)");
  app.add_option("--generate", o->generate, "prompt; a sample is printed before and after training");
  app.add_option("--generate_tokens", o->generate_tokens, "length of the sample")->check(CLI::PositiveNumber);
  app.add_option("--eval", o->eval_fraction, "share of the data held out for evaluation")->check(CLI::Range(0.0, 0.5));
  app.add_option("--eval_interval", o->eval_interval, "optimizer steps between evaluations; 0: only at the end")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--eval_batches", o->eval_batches, "micro batches per evaluation and rank")->check(CLI::PositiveNumber);
  app.add_option("--train_only", o->train_only, "regular expression: parameters whose name does not match are frozen");
  app.add_option("--parameter_groups", o->groups_file,
                 "JSON file: list of {\"match\": regex, \"lr\": .., \"weight_decay\": .., \"betas\": [..], \"eps\": ..}");
  app.add_option("--device", o->device, "auto, cpu, cuda, cuda:N");
  app.add_option("--cache", o->cache, "folder for tokenised text; default: .cache/tokens beside the working directory");
  app.add_option("--progress", o->progress, "auto, bar, lines, none")->check(CLI::IsMember({"auto", "bar", "lines", "none"}));
  int local_rank = 0;
  app.add_option("--local_rank", local_rank, "given by some launchers; the environment decides")->group("");
  app.footer(
      "Examples:\n"
      "  deepspeed --num_ranks 2 ds_train --model DIR --data book.txt --deepspeed_config ds_config.json --seq 512 --steps 100 --save "
      "runs/a\n"
      "  deepspeed --num_ranks 2 ds_train --model DIR --data book.txt --deepspeed_config ds_config.json --load runs/a --save runs/a\n"
      "Exit status: 0 done (or stopped by SIGTERM after a checkpoint), 1 failure, 2 usage, 3 bad configuration, 4 environment, 5 a rank "
      "failed.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    *status = code == 0 ? 0 : 2;
    return false;
  }
  return true;
}

}  // namespace deepspeed::train

// The command line of ds_train.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deepspeed::train {

struct Options {
  std::string model;              // Hugging Face directory
  std::vector<std::string> data;  // text, jsonl, a token file's prefix, or one .safetensors with exact tokens
  std::string config;             // ds_config.json
  int64_t seq = 512;              // tokens per row
  int64_t steps = 0;              // optimizer steps; 0: one pass over the data
  uint64_t seed = 42;
  std::string save;           // checkpoint folder
  int64_t save_interval = 0;  // optimizer steps; 0: only at the end
  bool async_save = false;    // writes beside training
  int keep = 0;               // checkpoints that stay; 0: all
  std::string load;           // checkpoint folder to resume from
  std::string load_tag;
  bool fallback = false;         // to the newest whole checkpoint
  std::string export_directory;  // Hugging Face directory to write at the end
  std::string log_json;
  std::string loss_svg;
  std::string profile;       // Chrome trace of the steps after the first; a table at the end
  std::string dump_weights;  // safetensors with the full fp32 weights at the end
  std::string generate;      // prompt; a sample is printed before and after training
  int64_t generate_tokens = 40;
  double eval_fraction = 0.0;  // last part of the data, held out
  int64_t eval_interval = 0;   // optimizer steps; 0: only at the end
  int64_t eval_batches = 8;    // micro batches per evaluation
  std::string train_only;      // regular expression: other parameters are frozen
  std::string groups_file;     // JSON list of parameter groups
  std::string device = "auto";
  std::string cache;              // folder for tokenised text
  std::string progress = "auto";  // auto, bar, lines, none
};

// Parses argv. Returns true to go on; false: `status` is the exit status (help, version or a usage error that was printed).
bool parse_options(int argc, char** argv, Options* options, int* status);

}  // namespace deepspeed::train

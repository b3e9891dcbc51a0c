#include "train/trainer.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "deepspeed/error.h"
#include "train/files.h"

namespace deepspeed::train {

std::atomic<int> stop_signal{0};

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double peak_rss_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

bool is_tokens_file(const std::vector<std::string>& data) {
  return data.size() == 1 && data[0].size() > 12 && data[0].ends_with(".safetensors");
}

}  // namespace

Trainer::Trainer(Options options) : options_(std::move(options)), communicator_(init_distributed()) {
  // Of dropout: ranks see other rows, and draw other masks.
  at::manual_seed(options_.seed + static_cast<uint64_t>(communicator_->rank()));
}

void Trainer::open_model() {
  model_ = load_model(options_.model);
  if (!options_.train_only.empty()) {
    const std::regex pattern = [&] {
      try {
        return std::regex(options_.train_only);
      } catch (const std::regex_error& error) {
        throw Error(ErrorCode::kUsage, "ds_train", "--train_only: got the expression \"" + options_.train_only + "\", " + error.what());
      }
    }();
    for (auto& item : model_->named_parameters()) {
      if (!std::regex_search(item.key(), pattern)) item.value().set_requires_grad(false);
    }
  }
  EngineOptions engine;
  engine.config_path = options_.config;
  engine.communicator = communicator_;
  engine.device = options_.device;
  if (!options_.groups_file.empty()) engine.groups = read_groups(options_.groups_file);
  engine_ = initialize(model_, engine);
  if (engine_->config().bf16.enabled) choose_bf16_products(*communicator_);
}

void Trainer::open_data() {
  const auto& config = engine_->config();
  const int rank = communicator_->rank(), world = communicator_->size();
  const int64_t vocabulary = model_->info().vocab_size;
  if (is_tokens_file(options_.data)) {
    if (options_.eval_fraction > 0)
      throw Error(ErrorCode::kUsage, "ds_train", "--eval: got a share of exact tokens, allowed with text only");
    data_ = open_tokens_file(options_.data[0], rank, world, vocabulary);
    if (data_->micro_batch() != config.train_micro_batch_size_per_gpu) {
      throw Error(ErrorCode::kUsage, "ds_train",
                  "data: got " + std::to_string(data_->micro_batch()) + " rows per rank and micro step in " + options_.data[0] +
                      ", allowed the " + std::to_string(config.train_micro_batch_size_per_gpu) + " of train_micro_batch_size_per_gpu");
    }
  } else {
    const std::string cache = options_.cache.empty() ? ".cache/tokens" : options_.cache;
    // One rank tokenises; the others then find it done.
    if (leads()) ensure_tokenized(options_.data, options_.model, cache);
    communicator_->barrier("tokenised");
    TokenDataOptions data;
    data.prefix = ensure_tokenized(options_.data, options_.model, cache);
    data.seq = options_.seq;
    data.micro_batch = config.train_micro_batch_size_per_gpu;
    data.rank = rank;
    data.world_size = world;
    data.seed = options_.seed;
    data.held_out = options_.eval_fraction;
    data.vocab_size = vocabulary;
    data_ = open_token_data(data);
    if (options_.eval_fraction > 0) {
      data.part = DataPart::kHeldOut;
      held_out_ = open_token_data(data);
    }
  }
  const int64_t per_pass = data_->batches() / config.gradient_accumulation_steps;
  last_step_ = options_.steps > 0 ? options_.steps : per_pass;
  if (last_step_ == 0) {
    throw Error(ErrorCode::kDataFormat, "ds_train",
                "data: got less than one step's rows, allowed at least train_batch_size rows of --seq tokens");
  }
  if (!options_.generate.empty()) {
    decoder_ = std::make_unique<TextDecoder>(options_.model);
    prompt_ = encode_prompt(options_.generate, options_.model);
  }
}

void Trainer::resume() {
  if (options_.load.empty()) return;
  const auto loaded = engine_->load_checkpoint(options_.load, options_.load_tag, {options_.fallback});
  const auto client = nlohmann::json::parse(loaded.client_state);
  if (client.contains("consumed")) {
    data_->restore({client["consumed"].get<int64_t>()});
  } else if (leads()) {
    std::fprintf(stderr, "%s does not say how far in the data it was: the data begins at its start\n", loaded.path.c_str());
  }
  const auto step = engine_->global_steps();
  if (options_.save == options_.load) saved_step_ = step;
  if (leads()) std::fprintf(stderr, "resumed from %s at step %lld\n", loaded.path.c_str(), static_cast<long long>(step));
}

Trainer::Totals Trainer::totals(double loss_sum) {
  auto values = at::empty({4}, at::TensorOptions().dtype(at::kDouble));
  auto* v = values.mutable_data_ptr<double>();
  const auto& config = engine_->config();
  // Sum and maxima in one all-gather, added in rank order.
  v[0] = loss_sum / static_cast<double>(config.gradient_accumulation_steps);
  v[1] = peak_rss_mb();
  v[2] = stop_signal.load();
  v[3] = 0;
  const auto device = engine_->device_probe().device();
  auto all = at::empty({4 * communicator_->size()}, at::TensorOptions().dtype(at::kDouble).device(device));
  communicator_->all_gather(all, values.to(device), "loss")->wait();
  const auto host = all.cpu();
  const auto* a = host.const_data_ptr<double>();
  Totals result;
  for (int rank = 0; rank < communicator_->size(); ++rank) {
    result.loss += a[4 * rank] / communicator_->size();
    result.rss_mb = std::max(result.rss_mb, a[4 * rank + 1]);
    result.stop = result.stop || a[4 * rank + 2] != 0;
  }
  return result;
}

void Trainer::one_step(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  const auto& config = engine_->config();
  StepReport report;
  report.step = step;
  report.lr = engine_->get_lr()[0];
  double loss_sum = 0;
  const auto device = engine_->device_probe().device();
  for (int64_t micro = 0; micro < config.gradient_accumulation_steps; ++micro) {
    const auto ids = data_->next().to(device);
    auto loss = engine_->forward([&] { return model_->loss(ids); });
    loss_sum += loss.item().toDouble();
    engine_->backward(loss);
    loss.reset();
    engine_->step();
  }
  const Totals sum = totals(loss_sum);
  report.loss = sum.loss;
  report.rss_mb = sum.rss_mb;
  report.skipped = !engine_->was_step_applied();
  report.grad_norm = engine_->get_global_grad_norm().value_or(0);
  report.step_s = seconds_since(begin);
  report.tokens_per_s = static_cast<double>(config.train_batch_size * data_->seq()) / report.step_s;
  stopped_ = sum.stop;
  if (!leads()) return;
  progress_->show(report);
  if (log_) log_->write(report, engine_->loss_scale());
  training_curve_.points.emplace_back(step, report.loss);
}

void Trainer::evaluate(int64_t step) {
  if (!held_out_) return;
  at::NoGradGuard no_grad;
  engine_->eval();
  held_out_->restore({0});
  double sum = 0;
  const int64_t batches = std::min(options_.eval_batches, std::max<int64_t>(held_out_->batches(), 1));
  const auto device = engine_->device_probe().device();
  for (int64_t i = 0; i < batches; ++i) {
    const auto ids = held_out_->next().to(device);
    sum += engine_->forward([&] { return model_->loss(ids); }).item().toDouble();
  }
  engine_->train();
  const double mean = totals(sum / static_cast<double>(batches) * static_cast<double>(engine_->config().gradient_accumulation_steps)).loss;
  if (!leads()) return;
  progress_->pause();
  std::fprintf(stderr, "held-out loss at step %lld: %.4f (perplexity %.2f)\n", static_cast<long long>(step), mean, std::exp(mean));
  held_out_curve_.points.emplace_back(step, mean);
}

void Trainer::sample(const std::string& when) {
  if (!decoder_) return;
  GenerateOptions generate_options;
  generate_options.max_new_tokens = options_.generate_tokens;
  generate_options.seed = options_.seed;
  const auto tokens = generate(*model_, prompt_, generate_options);
  if (!leads()) return;
  progress_->pause();
  std::fprintf(stderr, "sample %s training: %s|%s\n", when.c_str(), options_.generate.c_str(), decoder_->decode(tokens).c_str());
}

void Trainer::save() {
  if (options_.save.empty() || saved_step_ == engine_->global_steps()) return;
  nlohmann::json client;
  client["consumed"] = data_->state().consumed;
  SaveOptions how;
  how.async = options_.async_save;
  how.keep_last = options_.keep;
  const std::string path = engine_->save_checkpoint(options_.save, "", client.dump(), how);
  saved_step_ = engine_->global_steps();
  if (!leads()) return;
  progress_->pause();
  std::fprintf(stderr, "%s %s\n", how.async ? "saving" : "saved", path.c_str());
}

void Trainer::report_profile(int64_t steps) {
  if (!profiler_) return;
  make_folder_of(options_.profile);
  const std::string table = profiler_->finish(*communicator_, options_.profile, steps);
  profiler_.reset();
  if (!leads()) return;
  std::fprintf(stderr, "profile of %lld steps (trace in %s):\n%s", static_cast<long long>(steps), options_.profile.c_str(), table.c_str());
}

void Trainer::finish() {
  if (leads() && !options_.loss_svg.empty()) {
    std::vector<Curve> curves{training_curve_};
    if (!held_out_curve_.points.empty()) curves.push_back(held_out_curve_);
    make_folder_of(options_.loss_svg);
    std::ofstream file(options_.loss_svg);
    file << draw_curves("Loss of " + options_.model, curves);
    file.close();
    if (!file) throw Error(ErrorCode::kFile, "ds_train", "--loss_svg " + options_.loss_svg + ": cannot be written");
  }
  if (options_.dump_weights.empty() && options_.export_directory.empty()) return;
  const auto weights = engine_->full_parameters();
  if (leads()) {
    if (!options_.dump_weights.empty()) write_weights(options_.dump_weights, weights);
    if (!options_.export_directory.empty()) write_export_directory(options_.export_directory, options_.model, weights, model_->info());
  }
  communicator_->barrier("export");
}

int Trainer::run() {
  open_model();
  open_data();
  resume();
  const int64_t first = engine_->global_steps() + 1;
  if (leads()) {
    progress_ = std::make_unique<Progress>(options_.progress, first, last_step_, engine_->config().steps_per_print.value_or(10));
    if (!options_.log_json.empty()) log_ = std::make_unique<StepLog>(options_.log_json, !options_.load.empty());
  }
  sample("before");
  if (first == 1) evaluate(0);
  for (int64_t step = first; step <= last_step_ && !stopped_; ++step) {
    one_step(step);
    // The first step sets up what the later ones use.
    if (step == first && !options_.profile.empty()) profiler_ = std::make_unique<Profiler>();
    if (options_.save_interval > 0 && step % options_.save_interval == 0) save();
    if (options_.eval_interval > 0 && step % options_.eval_interval == 0 && step < last_step_) evaluate(step);
  }
  if (progress_) progress_->pause();
  report_profile(engine_->global_steps() - first);
  save();
  engine_->wait_for_checkpoint();
  if (stopped_) {
    if (leads()) std::fprintf(stderr, "stopped by a signal after step %lld\n", static_cast<long long>(engine_->global_steps()));
    return 0;
  }
  evaluate(last_step_);
  sample("after");
  finish();
  return 0;
}

}  // namespace deepspeed::train

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "base/text.h"
#include "deepspeed/models.h"
#include "formats/tokenizer_json.h"
#include "models/layers.h"
#include "models/sampling.h"

namespace deepspeed {
namespace {

[[noreturn]] void bad_option(const char* name, double got, const char* allowed) {
  throw Error(ErrorCode::kUsage, "models", base::str("generating: ", name, ": got ", got, ", allowed ", allowed));
}

void check(const GenerateOptions& options, const std::vector<int64_t>& prompt) {
  if (prompt.empty()) throw Error(ErrorCode::kUsage, "models", "generating: prompt: got nothing, allowed one token or more");
  if (options.max_new_tokens < 0) bad_option("max_new_tokens", static_cast<double>(options.max_new_tokens), "0 or more");
  if (!(options.temperature >= 0)) bad_option("temperature", options.temperature, "0 or more");
  if (options.top_k < 0) bad_option("top_k", static_cast<double>(options.top_k), "0 or more");
  if (!(options.top_p > 0 && options.top_p <= 1)) bad_option("top_p", options.top_p, "above 0, up to 1");
}

class EvaluationMode {
 public:
  explicit EvaluationMode(CausalLM& model) : model_(model), before_(model.is_training()) { model_.eval(); }
  ~EvaluationMode() { model_.train(before_); }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  CausalLM& model_;
  bool before_;
};

}  // namespace

std::vector<int64_t> generate(CausalLM& model, const std::vector<int64_t>& prompt, const GenerateOptions& options) {
  check(options, prompt);
  const at::NoGradGuard no_grad;
  const EvaluationMode evaluation(model);
  const std::vector<int64_t>& ends = options.eos_ids.empty() ? model.info().eos_ids : options.eos_ids;
  const at::Device device = model.parameters().front().device();
  const models::SamplingRule rule = {options.temperature, options.top_k, options.top_p};
  std::mt19937_64 random(options.seed);

  KeyValueCache cache;
  cache.layers.resize(static_cast<size_t>(model.info().layers));
  cache.capacity = static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
  std::vector<int64_t> text = prompt, fresh;
  while (static_cast<int64_t>(fresh.size()) < options.max_new_tokens) {
    // With a cache only what is not in it yet goes through the model.
    const at::ArrayRef<int64_t> input(text.data() + (options.use_cache ? cache.length : 0), text.data() + text.size());
    const at::Tensor ids = at::tensor(input, at::kLong).unsqueeze(0).to(device);
    const at::Tensor logits = model.next_logits(ids, options.use_cache ? &cache : nullptr).to(at::kCPU, at::kFloat).contiguous();
    const int64_t token = models::choose_token({logits.const_data_ptr<float>(), static_cast<size_t>(logits.numel())}, rule, random);
    text.push_back(token);
    fresh.push_back(token);
    if (std::find(ends.begin(), ends.end(), token) != ends.end()) break;
  }
  return fresh;
}

struct TextDecoder::Impl {
  formats::TokenizerJson tokenizer;
};

TextDecoder::TextDecoder(const std::string& model_directory)
    : impl_(std::make_shared<const Impl>(Impl{formats::TokenizerJson(model_directory + "/tokenizer.json")})) {}

std::string TextDecoder::decode(std::span<const int64_t> ids, bool skip_special) const {
  return impl_->tokenizer.decode(ids, skip_special);
}

}  // namespace deepspeed

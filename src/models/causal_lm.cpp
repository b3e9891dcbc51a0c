#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "base/text.h"
#include "models/builders.h"
#include "models/fused_ops.h"
#include "models/layers.h"
#include "models/wide_linear.h"

namespace deepspeed {
namespace {

void check_ids(const at::Tensor& ids, const ModelInfo& info, int64_t shortest) {
  if (ids.dim() != 2 || ids.scalar_type() != at::kLong || ids.size(0) < 1 || ids.size(1) < shortest) {
    throw Error(ErrorCode::kUsage, "models",
                base::str("token ids: got ", ids.toString(), " ", ids.sizes(), ", allowed int64 [batch, ", shortest, " or more]"));
  }
  if (!ids.device().is_cpu()) return;  // elsewhere the look at the values would wait for the device
  const at::Tensor flat = ids.contiguous();
  const int64_t* values = flat.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    if (values[i] < 0 || values[i] >= info.vocab_size) {
      throw Error(ErrorCode::kDataFormat, "models", base::str("token id: got ", values[i], ", allowed 0 to ", info.vocab_size - 1));
    }
  }
}

}  // namespace

CausalLM::CausalLM(ModelInfo info) : info_(std::move(info)) {}

CausalLM::~CausalLM() = default;

at::Tensor CausalLM::logits(const at::Tensor& ids) {
  check_ids(ids, info_, 1);
  return models::linear(hidden_states(ids, nullptr), head_weight(), {});
}

at::Tensor CausalLM::loss(const at::Tensor& ids) {
  check_ids(ids, info_, 2);
  // No token is predicted from the last one, and no other position sees it: it need not go through the model.
  const int64_t scored = ids.size(1) - 1;
  const at::Tensor hidden = hidden_states(ids.narrow(1, 0, scored), nullptr);
  const at::Tensor labels = ids.narrow(1, 1, scored);
  if (hidden.is_cpu() && !(hidden.scalar_type() == at::kBFloat16 && models::has_fast_bf16())) {
    return linear_cross_entropy(hidden, head_weight(), labels);
  }
  at::Tensor logits = models::linear(hidden.view({-1, hidden.size(2)}), head_weight(), {});
  return models::mean_cross_entropy(std::move(logits), labels.reshape({-1}));
}

at::Tensor CausalLM::next_logits(const at::Tensor& ids, KeyValueCache* cache) {
  check_ids(ids, info_, 1);
  const at::Tensor hidden = hidden_states(ids, cache);
  if (cache != nullptr) cache->length += ids.size(1);
  return models::linear(hidden.select(1, hidden.size(1) - 1), head_weight(), {});
}

std::shared_ptr<CausalLM> models::build(ModelInfo info) {
  return info.type == "gpt2" ? build_gpt2(std::move(info)) : build_llama(std::move(info));
}

std::shared_ptr<CausalLM> make_model(const std::string& config_json, uint64_t seed) {
  const std::shared_ptr<CausalLM> model = models::build(parse_model_info(config_json));
  const ModelInfo& info = model->info();
  const at::NoGradGuard no_grad;
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (const auto& item : model->named_parameters()) {
    at::Tensor parameter = item.value();
    if (item.key().ends_with(".bias")) {
      parameter.zero_();
    } else if (parameter.dim() == 1) {
      parameter.fill_(1.0);
    } else {
      // GPT-2 starts what feeds its residual stream smaller, as one addition for each of 2 * layers would widen it.
      const bool residual = info.type == "gpt2" && item.key().ends_with("c_proj.weight");
      parameter.normal_(0.0, info.initializer_range / (residual ? std::sqrt(2.0 * static_cast<double>(info.layers)) : 1.0), generator);
    }
  }
  return model;
}

}  // namespace deepspeed

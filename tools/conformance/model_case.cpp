#include <ATen/core/grad_mode.h>

#include <cmath>
#include <sstream>

#include "conformance/families.h"
#include "conformance/json_file.h"
#include "deepspeed/models.h"
#include "deepspeed/safetensors.h"

namespace deepspeed::conformance {

Outcome run_model_case(const std::filesystem::path& directory) {
  const Json forward = read_json(directory / "forward.json");
  auto tensors = load_safetensors((directory / "forward.safetensors").string());
  auto model = load_model(directory.string());
  model->eval();
  at::NoGradGuard no_grad;
  const auto logits = model->logits(tensors.at("input_ids"));
  const auto& expected = tensors.at("logits");
  std::ostringstream detail;
  if (logits.sizes() != expected.sizes()) {
    detail << "logits: got shape " << logits.sizes() << ", expected " << expected.sizes();
    return Outcome::fail(detail.str());
  }
  const double difference = logits.sub(expected).abs().max().item().toDouble();
  const double allowed = forward.at("tolerance").at("logits_abs");
  if (!(difference <= allowed)) {
    detail << "logits: got a largest difference of " << difference << ", expected 0, tolerance " << allowed;
    return Outcome::fail(detail.str());
  }
  const double loss = model->loss(tensors.at("input_ids")).item().toDouble();
  const double wanted = forward.at("loss"), loss_allowed = forward.at("tolerance").at("loss_abs");
  if (!(std::abs(loss - wanted) <= loss_allowed)) {
    detail << "loss: got " << loss << ", expected " << wanted << ", tolerance " << loss_allowed;
    return Outcome::fail(detail.str());
  }
  return Outcome::ok();
}

}  // namespace deepspeed::conformance

// Rows: number formats.
#include "config/schema.h"

namespace deepspeed::config {

namespace {

using enum Type;
using enum Status;

constexpr std::string_view kAutoCast = "fp16 auto_cast";
constexpr std::string_view kHalfMasters = "fp16 master weights";

constexpr Key kRows[] = {
    {"bf16", kSection, "", "", kBuilt, "", "", "bf16 weights with fp32 masters.", kTyped},
    {"bf16.enabled", kBool, "false", "", kBuilt, "", "", "Switch. Not together with fp16."},
    {"bf16.check_grad_overflow", kBool, "false", "", kNoEffect, "a step whose gradients are not finite is always skipped, on all ranks", "",
     "Skip a step whose gradients are not finite."},
    {"bf16.immediate_grad_update", kBool, "false", "", kNoEffect, "gradients always accumulate as they arrive", "",
     "Accumulate into fp32 in the hook."},
    {"bf16.bf16_master_weights_and_grads", kBool, "false", "", kNotBuilt, "bf16 master weights", "",
     "Masters and gradients in bf16; needs stage 1, 2 or 3."},
    {"bf16.bf16_optimizer_states", kBool, "false", "", kNotBuilt, "16-bit optimizer states", "",
     "Moments in bf16; needs bf16_master_weights_and_grads."},

    {"fp16", kSection, "", "", kBuilt, "", "", "fp16 weights with fp32 masters and loss scaling.", kTyped},
    {"fp16.enabled", kBool, "false", "", kBuilt, "", "", "Switch. Not together with bf16."},
    {"fp16.auto_cast", kBool, "false", "", kDetail, kAutoCast, "", "Cast floating inputs of forward."},
    {"fp16.loss_scale", kNumber, "0.0", ">= 0", kBuilt, "", "", "Static loss scale; 0: dynamic."},
    {"fp16.initial_scale_power", kInteger, "16", "0 .. 127", kBuilt, "", "", "The first dynamic scale is 2 to this power."},
    {"fp16.loss_scale_window", kInteger, "1000", "> 0", kBuilt, "", "", "Clean steps before the scale doubles."},
    {"fp16.hysteresis", kInteger, "2", "> 0", kBuilt, "", "", "Overflows before the scale halves."},
    {"fp16.consecutive_hysteresis", kBool, "false", "", kBuilt, "", "", "A clean step restores the hysteresis."},
    {"fp16.min_loss_scale", kInteger, "1", "> 0", kBuilt, "", "", "Least dynamic scale."},
    {"fp16.fp16_master_weights_and_grads", kBool, "false", "", kDetail, kHalfMasters, "",
     "Masters and gradients in fp16; needs stage 1, 2 or 3."},
    {"fp16.amd_optimized", kBool, "false", "", kNoEffect, "an extension of other builds", "", "Extension; accepted."},

    {"amp", kSection, "", "", kBuilt, "", "", "Apex mixed precision; all other keys are handed to it."},
    {"amp.enabled", kBool, "false", "", kNotBuilt, "Apex AMP", "", "Switch. Not together with fp16 or ZeRO."},
    {"amp.*", kAny, "", "", kDetail, "Apex AMP", "", "Arguments of Apex."},

    {"torch_autocast", kSection, "", "", kBuilt, "", "",
     "fp32 weights; the model's call under torch's autocast, inside engine->forward() or engine->scope()."},
    {"torch_autocast.enabled", kBool, "false", "", kBuilt, "", "", "Switch. Not together with fp16 or bf16."},
    {"torch_autocast.dtype", kChoice, "", "bfloat16 | bf16 | float16 | fp16", kBuilt, "", "",
     "Type of lowered operators; unset: bfloat16. fp16 comes with dynamic loss scaling."},
    {"torch_autocast.lower_precision_safe_modules", kTextList, "", "", kNoEffect,
     "gradients of all parameters travel in one type, which communication_data_type sets", "",
     "Classes whose gradients travel in that type."},

    {"data_types", kSection, "", "", kBuilt, "", "", "Types of buffers."},
    {"data_types.grad_accum_dtype", kChoiceAnyCase, "", "fp32 | fp16 | bf16 | float32 | float16 | bfloat16", kBuilt, "", "",
     "Type in which gradients accumulate; unset: that of the weights."},
    {"data_types.param_dtype", kChoiceAnyCase, "", "fp32 | fp16 | bf16 | float32 | float16 | bfloat16", kNotBuilt, "param_dtype", "0.19",
     "Type of the weights."},
    {"data_types.buffer_dtype", kChoiceAnyCase, "", "fp32 | fp16 | bf16 | float32 | float16 | bfloat16", kNotBuilt, "buffer_dtype", "0.19",
     "Type of floating buffers."},
};

}  // namespace

std::span<const Key> schema_precision() { return kRows; }

}  // namespace deepspeed::config

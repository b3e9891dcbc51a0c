#include "deepspeed/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "deepspeed/error.h"

namespace deepspeed {
namespace {

using Kind = ConfigIssue::Kind;

// A configuration that is fine but for `more`, keys in front of it.
ConfigResult check(const std::string& more, int64_t world = 1) {
  return check_config("{" + more + (more.empty() ? "" : ", ") + "\"train_batch_size\": 8}", world);
}

const ConfigIssue* find(const ConfigResult& result, const std::string& path) {
  const auto found = std::find_if(result.issues.begin(), result.issues.end(), [&](const auto& issue) { return issue.path == path; });
  return found == result.issues.end() ? nullptr : &*found;
}

void expect_only(const ConfigResult& result, const std::string& path, Kind kind, std::initializer_list<const char*> parts = {}) {
  ASSERT_EQ(result.issues.size(), 1u) << (result.issues.empty() ? "" : result.issues.back().path + ": " + result.issues.back().message);
  EXPECT_EQ(result.issues[0].path, path);
  EXPECT_STREQ(to_string(result.issues[0].kind), to_string(kind));
  for (const char* part : parts)
    EXPECT_NE(result.issues[0].message.find(part), std::string::npos) << part << " in " << result.issues[0].message;
}

bool has_note(const ConfigResult& result, const std::string& part) {
  return std::any_of(result.config.notes.begin(), result.config.notes.end(),
                     [&](const auto& note) { return note.find(part) != std::string::npos; });
}

TEST(Config, DefaultsAreThoseOf0184) {
  const auto result = check("");
  ASSERT_TRUE(result.issues.empty());
  EXPECT_TRUE(result.config.notes.empty());
  const Config& config = result.config;
  EXPECT_EQ(config.gradient_clipping, 0.0);
  EXPECT_FALSE(config.bf16.enabled);
  EXPECT_FALSE(config.bf16.check_grad_overflow);
  EXPECT_FALSE(config.steps_per_print.has_value());
  EXPECT_EQ(config.optimizer.type, "");
  EXPECT_EQ(config.scheduler.type, "");
  EXPECT_EQ(config.zero.stage, 0);
  EXPECT_FALSE(config.zero.overlap_comm.has_value());
  EXPECT_EQ(config.zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 50'000'000);
  EXPECT_EQ(config.zero.model_persistence_threshold, INT64_MAX);
  EXPECT_EQ(config.checkpoint.tag_validation, Config::Checkpoint::TagValidation::kWarn);
}

TEST(Config, EverythingThatIsBuiltArrives) {
  const auto result = check_config(R"({
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,  # comment
    "steps_per_print": 10, "gradient_clipping": 1, "gradient_predivide_factor": 2.0, "prescale_gradients": true,
    "communication_data_type": "BF16", "data_types": {"grad_accum_dtype": "float32"}, "dataloader_drop_last": true,
    "wall_clock_breakdown": true, "dump_state": true, // another
    "optimizer": {"type": "ADAM", "params": {"lr": 3e-3, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1, "adam_w_mode": false,
                                             "bias_correction": false}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5, "warmup_min_lr": "auto"}},
    "bfloat16": {"enabled": true, "check_grad_overflow": true},
    "zero_optimization": {"stage": 3, "overlap_comm": false, "reduce_bucket_size": 5e8, "param_persistence_threshold": 100.0,
                          "stage3_max_live_parameters": 7, "stage3_prefetch_bucket_size": 0, "reduce_scatter": false},
    "checkpoint": {"tag_validation": "fail"}, /* and a comma */
  })",
                                   4);
  ASSERT_TRUE(result.issues.empty()) << result.issues[0].path << result.issues[0].message;
  const Config& config = result.config;
  EXPECT_EQ(config.train_batch_size, 24);
  EXPECT_EQ(config.data_parallel_size, 4);
  EXPECT_EQ(config.steps_per_print, 10);
  EXPECT_EQ(config.gradient_clipping, 1.0);
  EXPECT_TRUE(config.prescale_gradients);
  EXPECT_EQ(config.gradient_predivide_factor, 2.0);
  EXPECT_EQ(config.communication_data_type, DataType::kBFloat16);
  EXPECT_EQ(config.grad_accum_dtype, DataType::kFloat32);
  EXPECT_TRUE(config.dataloader_drop_last && config.wall_clock_breakdown && config.dump_state);
  EXPECT_EQ(config.optimizer.type, "adam");
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.weight_decay, 0.1);
  EXPECT_FALSE(config.optimizer.adam_w_mode || config.optimizer.bias_correction);
  EXPECT_EQ(config.scheduler.type, "WarmupLR");
  EXPECT_EQ(nlohmann::json::parse(config.scheduler.params_json), nlohmann::json({{"warmup_num_steps", 5}}));
  EXPECT_TRUE(config.bf16.enabled && config.bf16.check_grad_overflow);
  EXPECT_EQ(config.zero.stage, 3);
  EXPECT_EQ(config.zero.overlap_comm, false);
  EXPECT_EQ(config.zero.reduce_bucket_size, 500'000'000);
  EXPECT_EQ(config.zero.param_persistence_threshold, 100);
  EXPECT_EQ(config.zero.max_live_parameters, 7);
  EXPECT_EQ(config.zero.prefetch_bucket_size, 0);
  EXPECT_FALSE(config.zero.reduce_scatter);
  EXPECT_EQ(config.checkpoint.tag_validation, Config::Checkpoint::TagValidation::kFail);
}

TEST(Config, AllErrorsAreInOneReport) {
  const std::string text = R"({"train_batch_size": true, "gradient_cliping": 1.0, "zero_optimization": {"stage": 7, "bucket_size": 5},
                               "bf16": {"enabled": "maybe"}, "optimizer": {"type": "Adamm", "params": {"betas": [0.9, 1.0]}}})";
  try {
    parse_config(text, 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kConfigInvalid);
    const std::string report = error.what();
    for (const char* part :
         {"7 errors", "train_batch_size: got true", "gradient_cliping: got an unknown key; did you mean \"gradient_clipping\"",
          "zero_optimization.stage: got 7, allowed an integer 0 .. 3", "zero_optimization.bucket_size", "bf16.enabled: got \"maybe\"",
          "optimizer.type: got \"Adamm\"", "did you mean \"Adam\"", "optimizer.params.betas: got [0.9,1.0]"}) {
      EXPECT_NE(report.find(part), std::string::npos) << part << " in " << report;
    }
  }
}

TEST(Config, UnknownKeysAreErrorsAtEveryDepthWithAHint) {
  expect_only(check(R"("zero_optimisation": {"stage": 3})"), "zero_optimisation", Kind::kUnknownKey, {"zero_optimization"});
  expect_only(check(R"("Steps_per_print": 3)"), "Steps_per_print", Kind::kUnknownKey, {"steps_per_print"});
  expect_only(check(R"("optimizer": {"type": "Adam", "lr": 0.1})"), "optimizer.lr", Kind::kUnknownKey, {"optimizer.params.lr"});
  expect_only(check(R"("checkpoint": {"parallel_write": {"pipeline": true}})"), "checkpoint.parallel_write.pipeline", Kind::kUnknownKey);
  expect_only(check(R"("zero_optimization": {"offload_param": {"paths": "x"}})"), "zero_optimization.offload_param.paths",
              Kind::kUnknownKey);
  expect_only(check(R"("fp16.enabled": false)"), "fp16.enabled", Kind::kUnknownKey, {"nest"});
  expect_only(check(R"("optimizer": {"type": "AdamW", "params": {"learning_rate": 0.1}})"), "optimizer.params.learning_rate",
              Kind::kUnknownKey);
  expect_only(check(R"("optimizer": {"type": "AdamW", "params": {"momentum": 0.9}})"), "optimizer.params.momentum", Kind::kUnknownKey,
              {"other optimizers"});
  expect_only(check(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_num_step": 9}})"), "scheduler.params.warmup_num_step",
              Kind::kUnknownKey, {"warmup_num_steps"});
}

TEST(Config, A75DuplicateKeysAreErrorsAtEveryDepth) {
  expect_only(check_config(R"({"train_batch_size": 4, "train_batch_size": 8})", 1), "train_batch_size", Kind::kDuplicateKey,
              {"line 1, column 25"});
  expect_only(check(R"("bf16": {"enabled": true, "enabled": false})"), "bf16.enabled", Kind::kDuplicateKey);
}

TEST(Config, A73IntegersInAnyNumberForm) {
  for (const char* form : {"5e8", "500000000.0", "500000000", "\"500000000\""}) {
    const auto result = check(std::string(R"("zero_optimization": {"stage": 2, "reduce_bucket_size": )") + form + "}");
    ASSERT_TRUE(result.issues.empty()) << form;
    EXPECT_EQ(result.config.zero.reduce_bucket_size, 500'000'000);
  }
  const std::string path = "zero_optimization.reduce_bucket_size";
  expect_only(check(R"("zero_optimization": {"reduce_bucket_size": "5e8"})"), path, Kind::kWrongType, {"5e8", "an integer"});
  expect_only(check(R"("zero_optimization": {"reduce_bucket_size": 0.5})"), path, Kind::kBadValue);
  expect_only(check(R"("zero_optimization": {"reduce_bucket_size": true})"), path, Kind::kWrongType);
  expect_only(check(R"("zero_optimization": {"reduce_bucket_size": 1e30})"), path, Kind::kOutOfRange, {"64 bits"});
}

TEST(Config, NumbersMustBeFinite) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999"}) {
    expect_only(check(std::string("\"gradient_clipping\": ") + number), "gradient_clipping", Kind::kBadValue, {"finite"});
  }
  EXPECT_NE(find(check(R"("scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": NaN}})"), "scheduler.params"), nullptr);
}

TEST(Config, A74AutoMeansTheDefaultAndIsRefusedForTheBatch) {
  const auto result =
      check(R"("gradient_clipping": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "zero_optimization": {"stage": 3,
      "reduce_bucket_size": "auto"})");
  ASSERT_TRUE(result.issues.empty());
  EXPECT_EQ(result.config.gradient_clipping, 0.0);
  EXPECT_EQ(result.config.optimizer.lr, 1e-3);
  EXPECT_TRUE(has_note(result, "gradient_clipping") && has_note(result, "optimizer.params.lr"));
  expect_only(check(R"("train_micro_batch_size_per_gpu": "auto")"), "train_micro_batch_size_per_gpu", Kind::kWrongType, {"auto"});
}

TEST(Config, A72BatchNumbersThatCannotFit) {
  const auto triple = [](const std::string& keys) {
    const auto result = check_config("{" + keys + "}", 2);
    return std::make_tuple(result.issues.empty(), result.config.train_batch_size, result.config.train_micro_batch_size_per_gpu,
                           result.config.gradient_accumulation_steps);
  };
  const std::string train = "\"train_batch_size\": ", micro = "\"train_micro_batch_size_per_gpu\": ",
                    steps = "\"gradient_accumulation_steps\": ";
  EXPECT_FALSE(std::get<0>(triple(train + "10, " + micro + "3")));
  EXPECT_FALSE(std::get<0>(triple(train + "4, " + steps + "3")));
  EXPECT_FALSE(std::get<0>(triple(train + "3")));
  EXPECT_FALSE(std::get<0>(triple(steps + "3")));
  EXPECT_FALSE(std::get<0>(triple("")));
  EXPECT_FALSE(std::get<0>(triple(micro + "0")));
  EXPECT_FALSE(std::get<0>(triple(micro + "9223372036854775807")));
  EXPECT_EQ(triple(micro + "4"), std::make_tuple(true, 8, 4, 1));
  EXPECT_EQ(triple(micro + "3, " + steps + "2"), std::make_tuple(true, 12, 3, 2));
  EXPECT_EQ(triple(train + "12, " + steps + "2"), std::make_tuple(true, 12, 3, 2));
  expect_only(check_config("{" + train + "10, " + micro + "3}", 2), "train_batch_size", Kind::kInconsistent,
              {"train_micro_batch_size_per_gpu 3", "1 (inferred)", "2 data-parallel ranks"});
}

TEST(Config, FeaturesThatAreNotBuiltAreNamed) {
  const struct {
    const char* keys;
    const char* path;
    const char* feature;
  } cases[] = {
      {R"("zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}})", "zero_optimization.offload_optimizer.device",
       "optimizer offload"},
      {R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}})", "zero_optimization.offload_param.device",
       "parameter offload"},
      {R"("zero_optimization": {"stage": 3, "zero_quantized_weights": true})", "zero_optimization.zero_quantized_weights", "ZeRO++"},
      {R"("zero_optimization": {"stage": 2, "cpu_offload": true})", "zero_optimization.cpu_offload", "optimizer offload"},
      {R"("fp16": {"enabled": true, "auto_cast": true})", "fp16.auto_cast", "fp16 auto_cast"},
      {R"("scheduler": {"type": "StepLR"})", "scheduler.type", "scheduler StepLR"},
      {R"("flops_profiler": {"enabled": true})", "flops_profiler.enabled", "flops profiler"},
      {R"("activation_checkpointing": {"cpu_checkpointing": true})", "activation_checkpointing.cpu_checkpointing",
       "activation checkpointing"},
      {R"("tensor_parallel": {"autotp_size": 2})", "tensor_parallel.autotp_size", "tensor parallelism"},
      {R"("csv_monitor": {"enabled": true})", "csv_monitor.enabled", "CSV monitor"},
      {R"("datastates_ckpt": {})", "datastates_ckpt", "asynchronous checkpoints"},
  };
  for (const auto& entry : cases) {
    const auto result = check(entry.keys);
    expect_only(result, entry.path, Kind::kNotBuilt);
    if (result.issues.size() == 1) {
      EXPECT_EQ(result.issues[0].feature, entry.feature);
    }
    try {
      parse_config(std::string("{\"train_batch_size\": 8, ") + entry.keys + "}", 1);
      ADD_FAILURE() << entry.keys;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNotBuilt);
    }
  }
  expect_only(check_config(R"({"train_batch_size": 8, "sequence_parallel_size": 2})", 2), "sequence_parallel_size", Kind::kNotBuilt);
}

TEST(Config, FeaturesThatAreOffPass) {
  const auto result = check(
      R"("fp16": {"enabled": false, "loss_scale": 128, "initial_scale_power": 12}, "flops_profiler": {"enabled": false, "detailed": false},
      "activation_checkpointing": {"partition_activations": false, "profile": false, "number_checkpoints": 4}, "aio": {"block_size": 4096},
      "comms_logger": {"verbose": true}, "tensorboard": {"output_path": "x"}, "amp": {"opt_level": "O1"}, "elasticity": {"enabled": false},
      "sequence_parallel_size": 1, "zero_optimization": {"stage": 1, "offload_param": {"device": "none"}, "offload_optimizer": null, "cpu_offload": false},
      "datastates_ckpt": false, "progressive_layer_drop": {"theta": 0.5}, "gradient_clipping": null, "pipeline": {"stages": 4})");
  EXPECT_TRUE(result.issues.empty()) << result.issues[0].path << result.issues[0].message;
}

TEST(Config, SettingsThatChangeNothingLeaveANote) {
  const auto result = check(R"("zero_allow_untested_optimizer": true, "zero_optimization": {"stage": 2, "contiguous_gradients": false,
      "round_robin_gradients": true, "allgather_bucket_size": 200000000, "stage3_max_live_parameters": 5, "reduce_scatter": true,
      "use_multi_rank_bucket_allreduce": true})");
  ASSERT_TRUE(result.issues.empty());
  for (const char* name :
       {"contiguous_gradients", "round_robin_gradients", "allgather_bucket_size", "stage3_max_live_parameters", "untested"}) {
    EXPECT_TRUE(has_note(result, name)) << name;
  }
  EXPECT_FALSE(has_note(result, "reduce_scatter"));
  EXPECT_FALSE(has_note(result, "multi_rank"));
  EXPECT_EQ(result.config.notes.size(), 5u);
}

TEST(Config, OtherSpellings) {
  const auto old = check(R"("zero_optimization": true, "allgather_size": 1000)");
  ASSERT_TRUE(old.issues.empty());
  EXPECT_EQ(old.config.zero.stage, 1);
  EXPECT_EQ(old.config.zero.allgather_bucket_size, 1000);
  EXPECT_TRUE(has_note(old, "old spelling"));
  const auto deprecated = check(R"("zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": true})");
  ASSERT_TRUE(deprecated.issues.empty());
  EXPECT_TRUE(deprecated.config.zero.gather_16bit_weights_on_model_save);
  EXPECT_TRUE(has_note(deprecated, "deprecated"));
  expect_only(check(R"("zero_optimization": {"stage": 3, "prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 2})"),
              "zero_optimization.prefetch_bucket_size", Kind::kConflict, {"both"});
  expect_only(
      check(
          R"("zero_optimization": {"stage": 3, "gather_16bit_weights_on_model_save": true, "stage3_gather_fp16_weights_on_model_save": true})"),
      "zero_optimization.stage3_gather_fp16_weights_on_model_save", Kind::kConflict, {"both"});
  const auto twice = check(R"("bf16": {"enabled": false}, "bfloat16": {"enabled": true})");
  EXPECT_FALSE(twice.config.bf16.enabled);
  EXPECT_TRUE(has_note(twice, "bfloat16"));
  expect_only(check(R"("bf16": true)"), "bf16", Kind::kWrongType, {"{\"enabled\": true}"});
}

TEST(Config, CombinationsThatCannotWork) {
  EXPECT_NE(find(check(R"("fp16": {"enabled": true}, "bf16": {"enabled": true})"), "fp16.enabled"), nullptr);
  expect_only(check(R"("prescale_gradients": true, "zero_optimization": {"stage": 2})"), "prescale_gradients", Kind::kConflict,
              {"reduce_scatter"});
  expect_only(check(R"("gradient_predivide_factor": 2, "zero_optimization": {"stage": 2})"), "gradient_predivide_factor", Kind::kConflict);
  EXPECT_TRUE(check(R"("prescale_gradients": true, "zero_optimization": {"stage": 2, "reduce_scatter": false})").issues.empty());
  EXPECT_TRUE(check(R"("prescale_gradients": true, "gradient_predivide_factor": 2, "zero_optimization": {"stage": 1})").issues.empty());
  expect_only(check(R"("zero_optimization": {"stage": 2, "allgather_bucket_size": 7})"), "zero_optimization.allgather_bucket_size",
              Kind::kBadValue);
  expect_only(check(R"("zero_optimization": {"stage": 1, "legacy_stage1": true})"), "zero_optimization.legacy_stage1", Kind::kBadValue);
  expect_only(check(R"("optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}})"), "optimizer.params.max_grad_norm",
              Kind::kConflict, {"gradient_clipping"});
  const auto uneven = check_config(R"({"train_batch_size": 8, "ds_sequence_parallel_size": 3})", 8);
  EXPECT_TRUE(std::any_of(uneven.issues.begin(), uneven.issues.end(), [](const auto& issue) { return issue.kind == Kind::kInconsistent; }));
}

TEST(Config, WhatAdamMeans) {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    const auto result = check("\"optimizer\": {\"type\": \"" + type + "\", \"params\": {" + params + "}}");
    EXPECT_TRUE(result.issues.empty());
    return result.config.optimizer;
  };
  EXPECT_TRUE(optimizer("Adam", "").adam_w_mode);
  EXPECT_FALSE(optimizer("Adam", R"("adam_w_mode": false)").adam_w_mode);
  EXPECT_FALSE(optimizer("Adam", R"("torch_adam": true, "adam_w_mode": false)").adam_w_mode);
  EXPECT_TRUE(optimizer("AdamW", R"("adam_w_mode": false)").adam_w_mode);
  EXPECT_EQ(optimizer("AdamW", "").weight_decay, 0.0);
  EXPECT_EQ(optimizer("AdamW", R"("torch_adam": true)").weight_decay, 0.01);
  EXPECT_EQ(optimizer("AdamW", R"("torch_adam": true, "weight_decay": 0.0)").weight_decay, 0.0);
  EXPECT_EQ(optimizer("Adam", R"("torch_adam": true, "adam_w_mode": false)").weight_decay, 0.0);
}

TEST(Config, EachOptimizerHasItsOwnDefaultsAndParameters) {
  const auto optimizer = [](const std::string& text) {
    const auto result = check("\"optimizer\": " + text);
    EXPECT_TRUE(result.issues.empty()) << text;
    return result.config.optimizer;
  };
  EXPECT_EQ(optimizer(R"({"type": "lion"})").type, "lion");
  EXPECT_EQ(optimizer(R"({"type": "Lion"})").beta2, 0.999);
  EXPECT_EQ(optimizer(R"({"type": "Adagrad"})").lr, 1e-2);
  EXPECT_EQ(optimizer(R"({"type": "Adagrad"})").eps, 1e-10);
  EXPECT_EQ(optimizer(R"({"type": "LAMB"})").max_coeff, 10.0);
  EXPECT_EQ(optimizer(R"({"type": "SGD", "params": {"momentum": 0.9, "nesterov": true}})").type, "SGD");
  EXPECT_FALSE(optimizer(R"({"type": "SGD"})").has_betas());
  EXPECT_TRUE(optimizer(R"({"type": "Lamb"})").has_betas());
  expect_only(check(R"("optimizer": {"type": "Lion", "params": {"eps": 1e-8}})"), "optimizer.params.eps", Kind::kUnknownKey,
              {"Lion", "betas"});
  expect_only(check(R"("optimizer": {"type": "SGD", "params": {"betas": [0.9, 0.99]}})"), "optimizer.params.betas", Kind::kUnknownKey,
              {"momentum, dampening, nesterov"});
  expect_only(check(R"("optimizer": {"type": "SGD", "params": {"nesterov": true}})"), "optimizer.params.nesterov", Kind::kConflict,
              {"momentum"});
  expect_only(check(R"("optimizer": {"type": "Lamb", "params": {"min_coeff": 11}})"), "optimizer.params.min_coeff", Kind::kConflict,
              {"max_coeff"});
}

TEST(Config, MuonHasTwoRates) {
  const auto muon = [](const std::string& params) {
    const auto result = check(R"("optimizer": {"type": "Muon", "params": {)" + params + "}}");
    EXPECT_TRUE(result.issues.empty()) << params;
    return result.config.optimizer;
  };
  const auto plain = muon("");
  EXPECT_EQ(plain.type, "muon");
  EXPECT_EQ(plain.lr, 0.02);
  EXPECT_EQ(plain.adam_lr, 3e-4);
  EXPECT_EQ(plain.momentum, 0.95);
  EXPECT_EQ(plain.beta2, 0.95);
  EXPECT_EQ(plain.eps, 1e-10);
  EXPECT_EQ(muon(R"("lr": 0.1)").lr, 0.1);
  EXPECT_EQ(muon(R"("lr": 0.1)").adam_lr, 0.1);
  const auto both = muon(R"("lr": 0.1, "muon_lr": 0.3, "adam_lr": 0.2)");
  EXPECT_EQ(both.lr, 0.3);
  EXPECT_EQ(both.adam_lr, 0.2);
  EXPECT_TRUE(has_note(check(R"("optimizer": {"type": "Muon", "params": {"ns_method": "gram"}})"), "optimizer.params.ns_method"));
}

TEST(Config, WhatOnlyTorchsOptimizersHave) {
  for (const char* good : {R"("optimizer": {"type": "AdamW", "params": {"torch_adam": true, "amsgrad": true, "maximize": true}})",
                           R"("optimizer": {"type": "SGD", "params": {"maximize": true}})",
                           R"("optimizer": {"type": "Adagrad", "params": {"maximize": true}})"}) {
    EXPECT_TRUE(check(good).issues.empty()) << good;
  }
  expect_only(check(R"("optimizer": {"type": "AdamW", "params": {"amsgrad": true}})"), "optimizer.params.amsgrad", Kind::kConflict,
              {"torch_adam"});
  expect_only(check(R"("optimizer": {"type": "Lamb", "params": {"amsgrad": true}})"), "optimizer.params.amsgrad", Kind::kConflict,
              {"Lamb"});
  expect_only(check(R"("optimizer": {"type": "Lion", "params": {"maximize": true}})"), "optimizer.params.maximize", Kind::kConflict,
              {"Lion"});
}

TEST(Config, NamesOfOptimizersAndSchedulesHaveHints) {
  expect_only(check(R"("optimizer": {"type": "adamm"})"), "optimizer.type", Kind::kBadValue, {"\"Adam\""});
  expect_only(check(R"("optimizer": {"type": "sgd"})"), "optimizer.type", Kind::kBadValue, {"\"SGD\""});
  expect_only(check(R"("scheduler": {"type": "WarmupLr"})"), "scheduler.type", Kind::kBadValue, {"\"WarmupLR\""});
}

TEST(Config, SourceIsCanonical) {
  const auto first = check_config("{\"train_batch_size\": 8, // c\n \"bf16\": {}}", 1),
             second = check_config("{\"bf16\":{},\"train_batch_size\":8}", 1);
  EXPECT_EQ(first.config.source_json, second.config.source_json);
  EXPECT_EQ(first.config.source_json, "{\"bf16\":{},\"train_batch_size\":8}");
}

TEST(Config, FilesThatCannotBeReadAreNamed) {
  const auto folder = std::filesystem::temp_directory_path() / "ds_config_test";
  std::filesystem::create_directories(folder);
  for (const std::string& path : {(folder / "none.json").string(), folder.string()}) {
    try {
      load_config(path, 1);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kFile);
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos);
    }
  }
  const auto file = folder / "ds_config.json";
  std::ofstream(file) << "{\"train_batch_size\": 6}";
  EXPECT_EQ(load_config(file.string(), 2).train_micro_batch_size_per_gpu, 3);
  std::ofstream(file) << "";
  EXPECT_THROW(load_config(file.string(), 2), Error);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace deepspeed

// Who decides when gradients are exchanged and when the optimizer moves: the configuration, or the caller.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <mutex>

#include "engine/one_weight.h"
#include "engine/small_models.h"

namespace deepspeed {
namespace {

using testing::contains;
using testing::error_of;
using testing::one_weight;

torch::Tensor all(double value) { return torch::full({3}, value); }

class StepProtocolOn : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int stage() const { return std::get<0>(GetParam()); }
  int world() const { return std::get<1>(GetParam()); }
  // Mean over ranks of rank + 1.
  double mean_rank() const { return (world() + 1) / 2.0; }
  void on_ranks(const std::function<void(std::shared_ptr<Communicator>)>& body) { run_ranks_as_threads(world(), body); }
};
INSTANTIATE_TEST_SUITE_P(All, StepProtocolOn, ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Values(1, 2, 3)));

TEST_P(StepProtocolOn, NoSyncKeepsGradientsOnTheirRankUntilItEnds) {
  on_ranks([&](std::shared_ptr<Communicator> communicator) {
    auto run = one_weight(communicator, stage());
    const double mine = communicator->rank() + 1;
    if (stage() >= 2) {
      const auto message = error_of([&] { run.engine->no_sync(); });
      EXPECT_TRUE(contains(message, "E1300") && contains(message, "stage " + std::to_string(stage()))) << message;
      return;
    }
    const auto add_up = [&] {
      const auto guard = run.engine->no_sync();
      const auto calls = communicator->calls();
      run.backward(mine);
      run.backward(2 * mine);
      EXPECT_EQ(communicator->calls(), calls);
      EXPECT_TRUE(contains(error_of([&] { run.engine->step(); }), "no_sync")) << "step() inside";
      EXPECT_TRUE(contains(error_of([&] { run.engine->safe_get_full_grad(run.net->w); }), "no gradient of all ranks"));
    };
    add_up();
    run.backward(4 * mine);
    run.engine->step();
    EXPECT_TRUE(torch::allclose(run.weight(), all(-7 * mean_rank())));
    EXPECT_EQ(run.engine->global_steps(), 1);
    // Ends with the guard, without another backward(): step() brings them together.
    add_up();
    run.engine->step();
    EXPECT_TRUE(torch::allclose(run.weight(), all(-10 * mean_rank())));
    // Nothing of it is left.
    run.backward(mine);
    run.engine->step();
    EXPECT_TRUE(torch::allclose(run.weight(), all(-11 * mean_rank())));
  });
}

// Known fault A23: only the last of several backward passes counts.
TEST_P(StepProtocolOn, A23TheCallersBoundaryEndsAnAccumulation) {
  for (const bool step_each : {false, true}) {
    on_ranks([&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage());
      for (int round = 1; round <= 2; ++round) {
        for (const int gradient : {1, 2, 3, 4}) {
          run.engine->set_gradient_accumulation_boundary(gradient == 4);
          EXPECT_EQ(run.engine->is_gradient_accumulation_boundary(), gradient == 4);
          run.backward(gradient);
          if (step_each || gradient == 4) run.engine->step();
          if (gradient < 4) {
            EXPECT_TRUE(torch::equal(run.weight(), all(-10 * (round - 1))));
          }
        }
        EXPECT_TRUE(torch::allclose(run.weight(), all(-10 * round), 1e-6, 1e-6));
        EXPECT_EQ(run.engine->global_steps(), round);
        EXPECT_EQ(run.engine->global_samples(), round * 4 * world());
      }
    });
  }
}

TEST_P(StepProtocolOn, ABoundaryMayBeDeclaredAfterBackward) {
  on_ranks([&](std::shared_ptr<Communicator> communicator) {
    auto run = one_weight(communicator, stage());
    run.engine->set_gradient_accumulation_boundary(false);
    run.backward(1);
    run.engine->step();
    run.backward(communicator->rank() + 1);
    run.engine->set_gradient_accumulation_boundary(true);
    run.engine->step();
    EXPECT_TRUE(torch::allclose(run.weight(), all(-1 - mean_rank()), 1e-6, 1e-6));
  });
}

// Known fault A25: an accumulation that the data ended does not leak into the next pass over it.
TEST_P(StepProtocolOn, A25LeftoverMicroBatchesAreDroppedOrUsedAsTheCallerSays) {
  on_ranks([&](std::shared_ptr<Communicator> communicator) {
    auto run = one_weight(communicator, stage(), 4);
    const auto micro = [&](double gradient) {
      run.backward(gradient);
      run.engine->step();
    };
    for (int i = 0; i < 6; ++i) micro(4);
    EXPECT_TRUE(torch::allclose(run.weight(), all(-4)));
    run.engine->zero_grad();
    for (int i = 0; i < 3; ++i) micro(8);
    EXPECT_EQ(run.engine->global_steps(), 1);
    micro(8);
    EXPECT_TRUE(torch::allclose(run.weight(), all(-12)));
    // The caller asks for a short one: losses were divided by 4, as always.
    micro(4);
    run.engine->set_gradient_accumulation_boundary(true);
    micro(4);
    EXPECT_TRUE(torch::allclose(run.weight(), all(-14)));
  });
}

TEST_P(StepProtocolOn, BatchSizesChangeBetweenBoundaries) {
  on_ranks([&](std::shared_ptr<Communicator> communicator) {
    auto run = one_weight(communicator, stage());
    const auto micro = [&](double gradient) {
      run.backward(gradient);
      run.engine->step();
    };
    micro(1);
    run.engine->set_train_batch_size(4 * world());
    EXPECT_EQ(run.engine->get_batch_info().gradient_accumulation_steps, 4);
    EXPECT_TRUE(contains(error_of([&] { run.engine->set_train_batch_size(4 * world() + (world() == 1 ? -5 : 1)); }), "multiple of"));
    micro(1);
    EXPECT_TRUE(torch::allclose(run.weight(), all(-1)));
    for (const auto& call : std::vector<std::function<void()>>{[&] { run.engine->set_train_batch_size(world()); },
                                                               [&] { run.engine->set_train_micro_batch_size(2); }}) {
      const auto message = error_of(call);
      EXPECT_TRUE(contains(message, "E1300") && contains(message, "inside an accumulation")) << message;
    }
    for (int i = 0; i < 3; ++i) micro(1);
    EXPECT_TRUE(torch::allclose(run.weight(), all(-2)));
    EXPECT_EQ(run.engine->global_samples(), 5 * world());
    run.engine->set_train_micro_batch_size(3);
    EXPECT_EQ(run.engine->get_batch_info().train_batch_size, 12 * world());
    run.engine->set_train_batch_size(3 * world());
    micro(1);
    EXPECT_TRUE(torch::allclose(run.weight(), all(-3)));
    EXPECT_EQ(run.engine->global_samples(), 8 * world());
  });
}

// In bf16 the type of accumulation follows: 1 + 3/512 does not fit bf16.
TEST_P(StepProtocolOn, AccumulationByHandIsInFp32Too) {
  for (const bool by_size : {true, false}) {
    on_ranks([&](std::shared_ptr<Communicator> communicator) {
      auto run = one_weight(communicator, stage(), 1, R"(, "bf16": {"enabled": true})");
      if (by_size) run.engine->set_train_batch_size(4 * world());
      for (int micro = 0; micro < 4; ++micro) {
        if (!by_size) run.engine->set_gradient_accumulation_boundary(micro == 3);
        run.backward(micro == 0 ? 4.0 : 4.0 / 512);
        run.engine->step();
      }
      EXPECT_TRUE(torch::allclose(run.weight(), all(-(1 + 3.0 / 512) * (by_size ? 1 : 4)), 1e-6, 0)) << run.weight();
    });
  }
}

// Known fault A24: the loss divided by the accumulation twice, or not at all.
TEST_P(StepProtocolOn, A24LossesAreDividedOnceOrNotAtAll) {
  on_ranks([&](std::shared_ptr<Communicator> communicator) {
    for (const bool scaled : {true, false}) {
      auto run = one_weight(communicator, stage(), 4);
      for (int micro = 0; micro < 4; ++micro) {
        const auto loss = (run.net->w * 4).sum() + 8;
        EXPECT_FLOAT_EQ(run.engine->backward(loss, scaled).item<float>(), scaled ? 2 : 8);
        run.engine->step();
      }
      EXPECT_TRUE(torch::allclose(run.weight(), all(scaled ? -4 : -16)));
    }
  });
}

// Shapes are nowhere remembered: every step has its own, other on each rank, and a last short batch.
TEST_P(StepProtocolOn, EveryStepMayHaveItsOwnShape) {
  const auto input = [](int step, int rank) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * step + rank));
    return torch::randn({1 + (step * 7 + rank * 3) % 5, 5}, generator);
  };
  constexpr int kSteps = 7;
  static std::mutex construction;  // the global generator seeds the weights
  auto plain = [&] {
    testing::OddNet net;
    for (int step = 0; step < kSteps; ++step) {
      net.zero_grad();
      for (int rank = 0; rank < world(); ++rank) (net.forward(input(step, rank)) / world()).backward();
      torch::NoGradGuard no_grad;
      for (auto& p : net.parameters()) {
        if (p.grad().defined()) p.sub_(p.grad(), 0.1);
      }
    }
    return net.down[1]->weight.detach().clone();
  }();
  on_ranks([&](std::shared_ptr<Communicator> communicator) {
    std::shared_ptr<testing::OddNet> net;
    {
      std::lock_guard lock(construction);
      net = std::make_shared<testing::OddNet>();
    }
    EngineOptions options;
    options.config_json = R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
      "zero_optimization": {"stage": )" +
                          std::to_string(stage()) + R"(, "stage3_param_persistence_threshold": 0}})";
    options.communicator = communicator;
    options.share_memory = false;
    auto engine = initialize(net, options);
    for (int step = 0; step < kSteps; ++step) {
      engine->backward(net->forward(input(step, communicator->rank())));
      engine->step();
    }
    EXPECT_TRUE(torch::allclose(engine->safe_get_full_fp32_param(net->down[1]->weight), plain, 1e-4, 1e-5));
  });
}

// A rank that has fewer batches than the others is named at the deadline; nobody waits for ever (known fault A25).
TEST(StepProtocol, A25UnevenBatchesEndInANamedError) {
  const auto message = error_of([] {
    run_ranks_as_threads(2,
                         [](std::shared_ptr<Communicator> communicator) {
                           auto run = one_weight(communicator, 2);
                           for (int batch = 0; batch < 3 + communicator->rank(); ++batch) {
                             run.backward(1);
                             run.engine->step();
                           }
                         },
                         {.timeout = std::chrono::seconds(1)});
  });
  EXPECT_TRUE(contains(message, "E200")) << message;
  EXPECT_TRUE(contains(message, "gradients of")) << message;
}

TEST(StepProtocol, ASecondBackwardInAPlainStepIsNamed) {
  auto run = one_weight(nullptr, 0);
  run.backward(1);
  EXPECT_TRUE(contains(error_of([&] { run.backward(1); }), "second call before step()"));
}

}  // namespace
}  // namespace deepspeed

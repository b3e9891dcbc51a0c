#include "zero/gradient_slots.h"

#include <functional>
#include <mutex>

#include "accel/pool.h"

namespace deepspeed::zero {

struct GradientSlots::State {
  std::shared_ptr<SharedMemory> memory;
  size_t first = 0;  // bytes before this rank's slots
  size_t bytes = 0;
  std::mutex mutex;
  std::vector<bool> taken;
};

namespace {

struct Loan {
  std::function<void()> give_back;
};

}  // namespace

GradientSlots::GradientSlots(std::shared_ptr<SharedMemory> memory, int rank, size_t count, size_t bytes)
    : state_(std::make_shared<State>()) {
  state_->memory = std::move(memory);
  state_->first = static_cast<size_t>(rank) * count * bytes;
  state_->bytes = bytes;
  state_->taken.assign(count, false);
}

at::Tensor GradientSlots::take(int64_t elements, at::ScalarType type) {
  if (static_cast<size_t>(elements) * c10::elementSize(type) > state_->bytes) return {};
  std::lock_guard lock(state_->mutex);
  // The lowest free one: pages of the higher ones are not touched unless they are needed.
  for (size_t slot = 0; slot < state_->taken.size(); ++slot) {
    if (state_->taken[slot]) continue;
    state_->taken[slot] = true;
    auto* loan = new Loan{[state = state_, slot] {
      std::lock_guard lock(state->mutex);
      state->taken[slot] = false;
    }};
    const auto end = [](void* context) {
      auto* ended = static_cast<Loan*>(context);
      ended->give_back();
      delete ended;
    };
    std::byte* data = state_->memory->data() + state_->first + slot * state_->bytes;
    return accel::tensor_over(at::DataPtr(data, loan, end, c10::Device(c10::DeviceType::CPU)), elements, type);
  }
  return {};
}

}  // namespace deepspeed::zero

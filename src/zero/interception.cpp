#include "zero/interception.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/check.h"

namespace deepspeed::zero {
namespace {

constexpr auto kKey = c10::DispatchKey::DeferredInit;

struct Entry {
  Gatherer* owner;
  Unit* unit;
};
using Table = std::unordered_map<const c10::StorageImpl*, Entry>;

// Written when an engine starts or ends, read by every operator: readers keep a copy of the pointer and look at the version only.
struct Registry {
  std::mutex mutex;
  std::shared_ptr<const Table> table = std::make_shared<Table>();
  std::atomic<uint64_t> version{1};
};

Registry& registry() {
  static auto* instance = new Registry;
  return *instance;
}

const Table& current_table() {
  thread_local std::shared_ptr<const Table> cached;
  thread_local uint64_t cached_version = 0;
  Registry& shared = registry();
  if (cached_version != shared.version.load(std::memory_order_acquire)) {
    std::lock_guard lock(shared.mutex);
    cached = shared.table;
    cached_version = shared.version.load(std::memory_order_relaxed);
  }
  return *cached;
}

void change_table(const std::function<void(Table&)>& change) {
  Registry& shared = registry();
  std::lock_guard lock(shared.mutex);
  auto next = std::make_shared<Table>(*shared.table);
  change(*next);
  shared.table = std::move(next);
  shared.version.fetch_add(1, std::memory_order_release);
}

// The units one operator touches.
class Touched {
 public:
  explicit Touched(const Table& table) : table_(table) {}

  void look_at(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const auto found = table_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == table_.end()) return;
    const Entry& entry = found->second;
    if (!units_.empty() && entry.owner != owner_) flush();
    if (std::find(units_.begin(), units_.end(), entry.unit) != units_.end()) return;
    owner_ = entry.owner;
    units_.push_back(entry.unit);
  }

  void look_at(const c10::IValue& value) {
    if (value.isTensor()) {
      look_at(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) look_at(tensor);
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (item.isTensor()) look_at(item.toTensor());
      }
    }
  }

  void flush() {
    if (!units_.empty()) owner_->make_whole(units_.data(), units_.size());
    units_.clear();
  }

 private:
  const Table& table_;
  Gatherer* owner_ = nullptr;
  c10::SmallVector<Unit*, 16> units_;
};

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard off(kKey);
  const Table& table = current_table();
  if (!table.empty()) {
    Touched touched(table);
    const size_t arguments = op.schema().arguments().size();
    for (size_t i = stack->size() - arguments; i < stack->size(); ++i) touched.look_at((*stack)[i]);
    touched.flush();
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>()); }

}  // namespace

void register_storage(const c10::StorageImpl* storage, Gatherer* owner, Unit* unit) {
  change_table([&](Table& table) { table[storage] = {owner, unit}; });
}

void unregister_owner(const Gatherer* owner) {
  change_table([&](Table& table) { std::erase_if(table, [&](const auto& item) { return item.second.owner == owner; }); });
}

bool set_interception(bool on) {
  const bool before = c10::impl::tls_is_dispatch_key_included(kKey);
  c10::impl::tls_set_dispatch_key_included(kKey, on);
  return before;
}

namespace {
thread_local int holders = 0;
}  // namespace

void hold_interception() {
  if (++holders == 1) set_interception(true);
}

void drop_interception() {
  if (holders > 0 && --holders == 0) set_interception(false);
}

}  // namespace deepspeed::zero

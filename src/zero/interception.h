// Seeing every operator before it runs, so that it finds its parameters gathered.
//
// A fallback on a dispatch key that torch's core leaves free (DeferredInit) is switched on per thread. It looks at the operator's tensor arguments,
// asks the owner of each registered storage to make it whole, switches itself off and hands the operator on. Only top-level operators are seen;
// what they are made of shares their arguments' storages. Autograd gives its backward functions the thread state of the backward() call, so backward
// is covered too. Cost: about 2 us per operator while a thread is switched on, nothing otherwise.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace deepspeed::zero {

class Unit;

// Makes units whole. Implemented by Residency.
class Gatherer {
 public:
  virtual ~Gatherer() = default;
  // All of `units` hold their values when this returns. Throws Error.
  virtual void make_whole(Unit* const* units, size_t count) = 0;
};

// While registered, operators that touch `storage` call owner->make_whole({unit}). The registration must end before owner or unit do.
void register_storage(const c10::StorageImpl* storage, Gatherer* owner, Unit* unit);
void unregister_owner(const Gatherer* owner);

// Interception on this thread. Returns the state before.
bool set_interception(bool on);

// On while any engine of this thread holds it: the first hold switches it on, the last drop off.
void hold_interception();
void drop_interception();

class InterceptionOff {
 public:
  InterceptionOff() : before_(set_interception(false)) {}
  ~InterceptionOff() { set_interception(before_); }
  InterceptionOff(const InterceptionOff&) = delete;
  InterceptionOff& operator=(const InterceptionOff&) = delete;

 private:
  bool before_;
};

}  // namespace deepspeed::zero

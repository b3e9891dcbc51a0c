// Restricted reader of Python pickles: numbers, strings, containers and tensors, nothing that runs code.
//
// A pickle is a program for a small stack machine whose GLOBAL and REDUCE can call anything. This reader knows the operations that torch.save writes (protocols 2
// to 5) and, of all names, those that stand for data: OrderedDict, set, torch.Size, torch's tensor rebuilders, storages and dtypes, and the plain records
// that DeepSpeed keeps in its checkpoints. Any other name is an Error that says which. Nothing is imported and nothing is called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/safetensors.h"

namespace deepspeed::formats {

struct PickleValue;
using PickleRef = PickleValue*;  // owned by the Pickle

// A view of a storage, which lies in a record of its own beside the pickle.
struct PickleTensor {
  Dtype dtype = Dtype::kF32;
  std::string storage;  // its key: the record is data/<key>
  uint64_t storage_elements = 0;
  uint64_t offset = 0;  // elements
  std::vector<int64_t> shape, stride;
};

struct PickleValue {
  enum class Kind { kNone, kBool, kInt, kFloat, kString, kBytes, kList, kTuple, kSet, kDict, kTensor, kObject, kName };

  Kind kind = Kind::kNone;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;                                      // string, bytes; "module name" of an object's class or of a name (torch.float16)
  std::vector<PickleRef> items;                          // list, tuple, set; arguments of an object
  std::vector<std::pair<PickleRef, PickleRef>> entries;  // dict in order, a key's last value; state of an object
  PickleTensor tensor;

  // The value under a string key of a dict or in the state of an object; nullptr: not there, or another kind.
  const PickleValue* find(std::string_view key) const;
  // The same; Error(kCheckpointDamaged) naming `what` and the key when it is not there.
  const PickleValue& at(std::string_view key, const std::string& what) const;
  const char* kind_name() const;
};

// A value and all that it holds. Values may be shared, but none is inside itself, and walking the whole takes bounded time.
class Pickle {
 public:
  // `source` names the bytes in errors. Throws Error(kCheckpointDamaged). Safe on any input: memory and time are bounded by its size.
  Pickle(std::span<const std::byte> bytes, const std::string& source);
  const PickleValue& root() const { return *root_; }

 private:
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

}  // namespace deepspeed::formats

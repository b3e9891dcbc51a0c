#include "formats/pickle.h"

#include <bit>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "deepspeed/error.h"

namespace deepspeed::formats {
namespace {

using Kind = PickleValue::Kind;

constexpr size_t kMaxDepth = 200;      // of values inside values
constexpr size_t kMaxDimensions = 64;  // of a tensor
constexpr uint64_t kMaxWalk = 50'000'000;

std::optional<Dtype> storage_dtype(std::string_view name) {
  static const std::unordered_map<std::string_view, Dtype> kKnown = {
      {"torch FloatStorage", Dtype::kF32},     {"torch DoubleStorage", Dtype::kF64}, {"torch HalfStorage", Dtype::kF16},
      {"torch BFloat16Storage", Dtype::kBF16}, {"torch LongStorage", Dtype::kI64},   {"torch IntStorage", Dtype::kI32},
      {"torch ShortStorage", Dtype::kI16},     {"torch CharStorage", Dtype::kI8},    {"torch ByteStorage", Dtype::kU8},
      {"torch BoolStorage", Dtype::kBool}};
  const auto found = kKnown.find(name);
  return found == kKnown.end() ? std::nullopt : std::optional(found->second);
}

// Records without behaviour that matters: their state is kept as data.
bool is_record(std::string_view name) {
  static const std::unordered_set<std::string_view> kRecords = {
      "deepspeed.runtime.fp16.loss_scaler LossScaler", "deepspeed.runtime.fp16.loss_scaler DynamicLossScaler",
      "deepspeed.utils.tensor_fragment fragment_address", "deepspeed.runtime.zero.config ZeroStageEnum", "argparse Namespace"};
  return kRecords.count(name) > 0;
}

bool is_dtype(std::string_view name) {
  static const std::unordered_set<std::string_view> kTypes = {"torch float16", "torch bfloat16", "torch float32", "torch float64",
                                                              "torch int8",    "torch int16",    "torch int32",   "torch int64",
                                                              "torch uint8",   "torch bool"};
  return kTypes.count(name) > 0;
}

bool is_allowed(std::string_view name) {
  static const std::unordered_set<std::string_view> kBuilders = {"collections OrderedDict",
                                                                 "__builtin__ set",
                                                                 "builtins set",
                                                                 "torch Size",
                                                                 "torch Tensor",
                                                                 "torch.nn.parameter Parameter",
                                                                 "torch device",
                                                                 "torch._utils _rebuild_tensor_v2",
                                                                 "torch._utils _rebuild_parameter",
                                                                 "torch._tensor _rebuild_from_type_v2"};
  return kBuilders.count(name) > 0 || storage_dtype(name) || is_record(name) || is_dtype(name);
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const std::string& source, std::deque<PickleValue>& values)
      : bytes_(bytes), source_(source), values_(values) {}

  PickleRef read() {
    for (;;) {
      const uint8_t code = byte();
      if (code == '.') break;
      step(code);
    }
    if (stack_.size() != 1 || !marks_.empty()) fail(base::str("got ", stack_.size(), " values at its end, allowed one"));
    check_tree(*stack_[0], 0);
    return stack_[0];
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kCheckpointDamaged, "formats", base::str("pickle in ", source_, ", byte ", at_, ": ", what));
  }

  std::span<const std::byte> take(uint64_t count) {
    if (count > bytes_.size() - at_)
      fail(base::str("got ", bytes_.size() - at_, " more bytes, allowed at least ", count, ": the file is cut off"));
    const auto part = bytes_.subspan(at_, count);
    at_ += count;
    return part;
  }
  uint8_t byte() { return static_cast<uint8_t>(take(1)[0]); }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;  // little endian, as this library's hosts are
  }
  std::string text(uint64_t count) {
    const auto part = take(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::string line() {
    std::string out;
    for (char c = static_cast<char>(byte()); c != '\n'; c = static_cast<char>(byte())) out += c;
    return out;
  }

  PickleRef make(Kind kind) {
    values_.emplace_back().kind = kind;
    return &values_.back();
  }
  // One list can be copied into many values by few bytes: the copies are counted.
  void count_copies(size_t items) {
    copies_ += items;
    if (copies_ > 8 * bytes_.size() + 1000) fail("copies more than any checkpoint would");
  }

  void push(PickleRef value) { stack_.push_back(value); }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleRef pop() {
    if (stack_.size() <= floor()) fail("takes a value where none is");
    const auto value = stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& top() {
    if (stack_.size() <= floor()) fail("takes a value where none is");
    return *stack_.back();
  }
  PickleRef pop_kind(Kind kind, const char* role) {
    auto value = pop();
    if (value->kind != kind) fail(base::str(role, ": got a ", value->kind_name()));
    return value;
  }
  std::vector<PickleRef> pop_marked() {
    if (marks_.empty()) fail("ends a list that never began");
    const auto begin = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<PickleRef> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_bool(bool value) {
    auto made = make(Kind::kBool);
    made->boolean = value;
    push(made);
  }
  void push_integer(int64_t value) {
    auto made = make(Kind::kInt);
    made->integer = value;
    push(made);
  }
  void push_text(std::string value, Kind kind = Kind::kString) {
    auto made = make(kind);
    made->text = std::move(value);
    push(made);
  }
  void push_tuple(size_t count) {
    auto made = make(Kind::kTuple);
    made->items.resize(count);
    for (size_t i = count; i-- > 0;) made->items[i] = pop();
    push(made);
  }
  void push_name(const std::string& module, const std::string& name) {
    const std::string full = module + " " + name;
    if (!is_allowed(full)) {
      fail(base::str("got the name ", module, ".", name,
                     ", allowed data only (tensors, numbers, strings, containers): it is neither loaded nor called"));
    }
    push_text(full, Kind::kName);
  }

  // Little endian two's complement of any length.
  void push_long(uint64_t count) {
    if (count > 8) fail(base::str("got an integer of ", count, " bytes, allowed 8"));
    const auto part = take(count);
    uint64_t value = 0;
    for (size_t i = 0; i < part.size(); ++i) value |= static_cast<uint64_t>(part[i]) << (8 * i);
    if (count > 0 && count < 8 && (static_cast<uint8_t>(part.back()) & 0x80) != 0) value |= ~uint64_t{0} << (8 * count);
    push_integer(static_cast<int64_t>(value));
  }

  void remember(uint64_t place) {
    // Places are counted up, so they are fewer than the bytes that set them.
    if (place > bytes_.size()) fail(base::str("remembers a value at place ", place));
    if (stack_.empty()) fail("remembers a value where none is");
    memo_[place] = stack_.back();
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) fail(base::str("recalls place ", place, ", where nothing is"));
    push(found->second);
  }

  void set_entries(std::vector<PickleRef> items) {
    PickleValue& target = top();
    if (target.kind != Kind::kDict) fail(base::str("sets entries of a ", target.kind_name()));
    if (items.size() % 2 != 0) fail("sets a key without a value");
    for (size_t i = 0; i < items.size(); i += 2) set_entry(target, items[i], items[i + 1]);
  }
  // A key that is a number or a string and was there before takes the new value.
  void set_entry(PickleValue& target, const PickleRef& key, const PickleRef& value) {
    auto& places = places_[&target];
    std::string text;
    if (key->kind == Kind::kString) {
      text = "s" + key->text;
    } else if (key->kind == Kind::kInt) {
      text = base::str("i", key->integer);
    } else {
      target.entries.emplace_back(key, value);
      return;
    }
    const auto [place, fresh] = places.emplace(std::move(text), target.entries.size());
    if (fresh) {
      target.entries.emplace_back(key, value);
    } else {
      target.entries[place->second].second = value;
    }
  }
  void append(std::vector<PickleRef> items, Kind kind) {
    PickleValue& target = top();
    if (target.kind != kind) fail(base::str("appends to a ", target.kind_name()));
    target.items.insert(target.items.end(), items.begin(), items.end());
  }

  static bool is_number(const PickleRef& value) { return value->kind == Kind::kInt; }

  std::vector<int64_t> integers(const PickleRef& value, const char* role) {
    if (value->kind != Kind::kTuple && value->kind != Kind::kList)
      fail(base::str(role, ": got a ", value->kind_name(), ", allowed a tuple of integers"));
    if (value->items.size() > kMaxDimensions) fail(base::str(role, ": got ", value->items.size(), " numbers, allowed ", kMaxDimensions));
    std::vector<int64_t> out;
    for (const auto& item : value->items) {
      if (!is_number(item)) fail(base::str(role, ": got a ", item->kind_name(), ", allowed integers"));
      out.push_back(item->integer);
    }
    return out;
  }

  // (storage, offset, shape, stride, requires_grad, hooks, ...): the view must lie inside its storage.
  PickleRef tensor(const std::vector<PickleRef>& arguments) {
    if (arguments.size() < 4 || arguments[0]->kind != Kind::kTensor || !is_number(arguments[1]))
      fail("builds a tensor from other things than a storage");
    auto made = make(Kind::kTensor);
    made->tensor = arguments[0]->tensor;
    PickleTensor& view = made->tensor;
    view.shape = integers(arguments[2], "shape of a tensor");
    view.stride = integers(arguments[3], "stride of a tensor");
    if (view.shape.size() != view.stride.size())
      fail(base::str("shape of a tensor: got ", view.shape.size(), " numbers and ", view.stride.size(), " strides"));
    if (arguments[1]->integer < 0) fail("offset of a tensor is negative");
    view.offset = static_cast<uint64_t>(arguments[1]->integer);
    uint64_t last = view.offset;
    bool empty = false;
    for (size_t d = 0; d < view.shape.size(); ++d) {
      if (view.shape[d] < 0 || view.stride[d] < 0) fail("shape or stride of a tensor is negative");
      empty = empty || view.shape[d] == 0;
      uint64_t reach = 0;
      if (view.shape[d] > 0 &&
          __builtin_mul_overflow(static_cast<uint64_t>(view.shape[d] - 1), static_cast<uint64_t>(view.stride[d]), &reach)) {
        fail("a tensor reaches beyond any memory");
      }
      if (__builtin_add_overflow(last, reach, &last)) fail("a tensor reaches beyond any memory");
    }
    if (!empty && last >= view.storage_elements) {
      fail(base::str("a tensor reaches to element ", last, " of storage ", view.storage, ", which has ", view.storage_elements));
    }
    return made;
  }

  // ("storage", type, key, location, elements)
  PickleRef storage(const PickleRef& id) {
    const auto& parts = id->items;
    if (id->kind != Kind::kTuple || parts.size() != 5 || parts[0]->text != "storage" || parts[1]->kind != Kind::kName ||
        parts[2]->kind != Kind::kString || !is_number(parts[4]) || parts[4]->integer < 0) {
      fail("refers to something outside that is no storage");
    }
    const auto dtype = storage_dtype(parts[1]->text);
    if (!dtype) fail(base::str("storage of type ", parts[1]->text));
    auto made = make(Kind::kTensor);
    made->tensor.dtype = *dtype;
    made->tensor.storage = parts[2]->text;
    made->tensor.storage_elements = static_cast<uint64_t>(parts[4]->integer);
    return made;
  }

  PickleRef call(const PickleRef& callee, const PickleRef& arguments) {
    if (callee->kind != Kind::kName || arguments->kind != Kind::kTuple) fail(base::str("calls a ", callee->kind_name()));
    const std::string& name = callee->text;
    const auto& items = arguments->items;
    if (name == "torch._utils _rebuild_tensor_v2") return tensor(items);
    if (name == "torch._utils _rebuild_parameter" || name == "torch._tensor _rebuild_from_type_v2") {
      // (tensor, requires_grad, hooks), or (function, type, arguments, state) around the same.
      if (name == "torch._utils _rebuild_parameter") {
        if (items.empty() || items[0]->kind != Kind::kTensor) fail("builds a parameter from no tensor");
        return items[0];
      }
      if (items.size() != 4) fail("builds a tensor from other things than four");
      return call(items[0], items[2]);
    }
    if (name == "collections OrderedDict") {
      auto made = make(Kind::kDict);
      if (items.size() == 1 && items[0]->kind == Kind::kList) {
        count_copies(items[0]->items.size());
        for (const auto& pair : items[0]->items) {
          if ((pair->kind != Kind::kTuple && pair->kind != Kind::kList) || pair->items.size() != 2)
            fail("makes a dict of other things than pairs");
          set_entry(*made, pair->items[0], pair->items[1]);
        }
      } else if (!items.empty()) {
        fail("makes a dict of other things than pairs");
      }
      return made;
    }
    if (name == "__builtin__ set" || name == "builtins set" || name == "torch Size") {
      auto made = make(name == "torch Size" ? Kind::kTuple : Kind::kSet);
      if (items.size() > 1 || (items.size() == 1 && items[0]->kind != Kind::kList && items[0]->kind != Kind::kTuple))
        fail("makes a set of no list");
      if (items.size() == 1) {
        count_copies(items[0]->items.size());
        made->items = items[0]->items;
      }
      return made;
    }
    if (is_record(name) || name == "torch device") {
      auto made = make(Kind::kObject);
      made->text = name;
      count_copies(items.size());
      made->items = items;
      return made;
    }
    fail(base::str("calls ", name, ", which only names a type"));
  }

  void build() {
    const auto state = pop();
    PickleValue& target = top();
    if (target.kind == Kind::kDict || target.kind == Kind::kTensor || target.kind == Kind::kSet)
      return;  // attributes of such carry no data of ours
    if (target.kind != Kind::kObject) fail(base::str("sets the state of a ", target.kind_name()));
    count_copies(state->entries.size());
    if (state->kind == Kind::kDict) {
      target.entries = state->entries;
    } else {
      target.entries.emplace_back(nullptr, state);
    }
  }

  void step(uint8_t code) {
    switch (code) {
      case 0x80: {  // PROTO
        const int protocol = byte();
        if (protocol < 2 || protocol > 5) fail(base::str("protocol: got ", protocol, ", allowed 2 to 5"));
        return;
      }
      case 0x95:  // FRAME
        take(8);
        return;
      case '(':
        marks_.push_back(stack_.size());
        return;
      case '0':
        pop();
        return;
      case '1':
        pop_marked();
        return;
      case '2': {
        auto value = pop();
        push(value);
        push(value);
        return;
      }
      case 'N':
        return push(make(Kind::kNone));
      case 0x88:
        return push_bool(true);
      case 0x89:
        return push_bool(false);
      case 'J':
        return push_integer(number<int32_t>());
      case 'K':
        return push_integer(byte());
      case 'M':
        return push_integer(number<uint16_t>());
      case 0x8a:
        return push_long(byte());
      case 0x8b:
        return push_long(number<uint32_t>());
      case 'G': {  // big endian double
        auto made = make(Kind::kFloat);
        made->number = std::bit_cast<double>(__builtin_bswap64(number<uint64_t>()));
        return push(made);
      }
      case 'X':
        return push_text(text(number<uint32_t>()));
      case 0x8c:
        return push_text(text(byte()));
      case 0x8d:
        return push_text(text(number<uint64_t>()));
      case 'U':
        return push_text(text(byte()));
      case 'T':
        return push_text(text(number<uint32_t>()));
      case 'B':
        return push_text(text(number<uint32_t>()), Kind::kBytes);
      case 'C':
        return push_text(text(byte()), Kind::kBytes);
      case 0x8e:
        return push_text(text(number<uint64_t>()), Kind::kBytes);
      case ']':
        return push(make(Kind::kList));
      case '}':
        return push(make(Kind::kDict));
      case 0x8f:
        return push(make(Kind::kSet));
      case ')':
        return push(make(Kind::kTuple));
      case 0x85:
        return push_tuple(1);
      case 0x86:
        return push_tuple(2);
      case 0x87:
        return push_tuple(3);
      case 't': {
        auto items = pop_marked();
        auto made = make(Kind::kTuple);
        made->items = std::move(items);
        return push(made);
      }
      case 'l': {
        auto items = pop_marked();
        auto made = make(Kind::kList);
        made->items = std::move(items);
        return push(made);
      }
      case 'd': {
        auto items = pop_marked();
        push(make(Kind::kDict));
        return set_entries(std::move(items));
      }
      case 'a': {
        auto value = pop();
        return append({value}, Kind::kList);
      }
      case 'e':
        return append(pop_marked(), Kind::kList);
      case 0x90:
        return append(pop_marked(), Kind::kSet);
      case 's': {
        auto value = pop();
        auto key = pop();
        return set_entries({key, value});
      }
      case 'u':
        return set_entries(pop_marked());
      case 'q':
        return remember(byte());
      case 'r':
        return remember(number<uint32_t>());
      case 0x94:
        return remember(memo_.size());
      case 'h':
        return recall(byte());
      case 'j':
        return recall(number<uint32_t>());
      case 'c': {
        const std::string module = line();
        return push_name(module, line());
      }
      case 0x93: {
        const auto name = pop_kind(Kind::kString, "name"), module = pop_kind(Kind::kString, "module");
        return push_name(module->text, name->text);
      }
      case 'Q':
        return push(storage(pop()));
      case 'R':
      case 0x81: {  // REDUCE, NEWOBJ
        const auto arguments = pop(), callee = pop();
        return push(call(callee, arguments));
      }
      case 'b':
        return build();
      default:
        fail(base::str("operation ", static_cast<int>(code), ", which no checkpoint needs"));
    }
  }

  // What is inside itself, too deep or, with all that is shared written out, too large to walk is refused here, so that nobody who walks the values needs
  // to look. Returns how many values a walk meets.
  uint64_t check_tree(const PickleValue& value, size_t depth) {
    if (depth > kMaxDepth) fail(base::str("values inside values: more than ", kMaxDepth, " deep"));
    const auto [entry, fresh] = walked_.emplace(&value, 0);  // 0: being walked
    if (!fresh) {
      if (entry->second == 0) fail("a value contains itself");
      return entry->second;
    }
    uint64_t count = 1;
    const auto add = [&](const PickleRef& item) {
      if (item) count += check_tree(*item, depth + 1);
      if (count > kMaxWalk) fail(base::str("shared values written out are more than ", kMaxWalk));
    };
    for (const auto& item : value.items) add(item);
    for (const auto& [key, item] : value.entries) {
      add(key);
      add(item);
    }
    return walked_[&value] = count;
  }

  std::span<const std::byte> bytes_;
  const std::string& source_;
  std::deque<PickleValue>& values_;
  uint64_t at_ = 0;
  size_t copies_ = 0;
  std::unordered_map<const PickleValue*, uint64_t> walked_;
  std::vector<PickleRef> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, PickleRef> memo_;
  std::unordered_map<const PickleValue*, std::unordered_map<std::string, size_t>> places_;  // where a dict's keys stand
};

}  // namespace

const char* PickleValue::kind_name() const {
  constexpr const char* kNames[] = {"None",  "bool", "int",  "float",  "str",    "bytes", "list",
                                    "tuple", "set",  "dict", "tensor", "object", "name"};
  return kNames[static_cast<size_t>(kind)];
}

const PickleValue* PickleValue::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    if (name && name->kind == Kind::kString && name->text == key) return value;
  }
  return nullptr;
}

const PickleValue& PickleValue::at(std::string_view key, const std::string& what) const {
  if (const PickleValue* value = find(key)) return *value;
  throw Error(ErrorCode::kCheckpointDamaged, "formats", base::str(what, ": got no entry '", std::string(key), "'"));
}

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& source) { root_ = Reader(bytes, source, values_).read(); }

}  // namespace deepspeed::formats

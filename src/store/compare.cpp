#include "store/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"

namespace deepspeed::store {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kBlock = int64_t{1} << 20;  // elements held at a time

int64_t product(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return base::str("[", base::join(extents, ", "), "]");
}

class Comparer {
 public:
  Comparer(Source& a, Source& b) : a_(a), b_(b) {}

  Comparison run() {
    compare_json("run", Json::parse(a_.run_json(), nullptr, false), Json::parse(b_.run_json(), nullptr, false));
    compare_json("client_state", Json::parse(a_.client_json(), nullptr, false), Json::parse(b_.client_json(), nullptr, false));
    compare_parameters();
    compare_buffers();
    return std::move(result_);
  }

 private:
  void note(std::string what, std::string text) { result_.differences.push_back({std::move(what), std::move(text)}); }

  void compare_json(const std::string& path, const Json& a, const Json& b) {
    if (a == b) return;
    if (!a.is_object() || !b.is_object()) return note(path, a.dump() + ", " + b.dump());
    std::set<std::string> keys;
    for (const auto& [key, value] : a.items()) keys.insert(key);
    for (const auto& [key, value] : b.items()) keys.insert(key);
    for (const auto& key : keys) {
      const std::string below = base::str(path, ".", key);
      if (!a.contains(key) || !b.contains(key)) {
        note(below, a.contains(key) ? "only in the first" : "only in the second");
      } else {
        compare_json(below, a[key], b[key]);
      }
    }
  }

  void compare_parameters() {
    const std::map<std::string, SavedParameter> ours(a_.parameters().begin(), a_.parameters().end());
    for (const auto& [name, parameter] : ours) {
      const auto other = b_.parameters().find(name);
      if (other == b_.parameters().end()) {
        note(name, "only in the first");
      } else if (other->second.shape != parameter.shape) {
        note(name, base::str("shapes ", text_of(parameter.shape), ", ", text_of(other->second.shape)));
      } else {
        compare_values(name, parameter, other->second);
      }
    }
    const std::map<std::string, SavedParameter> theirs(b_.parameters().begin(), b_.parameters().end());
    for (const auto& [name, parameter] : theirs) {
      if (!ours.count(name)) note(name, "only in the second");
    }
  }

  void compare_values(const std::string& name, const SavedParameter& a, const SavedParameter& b) {
    if (a.trained != b.trained) note(name, a.trained ? "trained, frozen" : "frozen, trained");
    const int64_t elements = product(a.shape);
    compare_elements("value of " + name, elements, [&](int64_t begin, int64_t count) {
      a_.read_values(name, begin, count, x_.data());
      b_.read_values(name, begin, count, y_.data());
    });
    if (elements == 0) return;
    std::set<std::string> states(a_.state_names().begin(), a_.state_names().end());
    states.insert(b_.state_names().begin(), b_.state_names().end());
    for (const auto& state : states) {
      const bool in_a = a.trained && a_.has_state(name, state), in_b = b.trained && b_.has_state(name, state);
      if (in_a != in_b) note(base::str(state, " of ", name), in_a ? "only in the first" : "only in the second");
      if (!in_a || !in_b) continue;
      compare_elements(base::str(state, " of ", name), elements, [&](int64_t begin, int64_t count) {
        a_.read_state(name, {state}, begin, count, x_.data());
        b_.read_state(name, {state}, begin, count, y_.data());
      });
    }
  }

  template <typename Read>
  void compare_elements(const std::string& what, int64_t elements, Read&& read) {
    int64_t different = 0;
    double largest = 0;
    for (int64_t begin = 0; begin < elements; begin += kBlock) {
      const int64_t count = std::min(kBlock, elements - begin);
      x_.resize(static_cast<size_t>(count));
      y_.resize(static_cast<size_t>(count));
      read(begin, count);
      if (std::memcmp(x_.data(), y_.data(), x_.size() * sizeof(float)) == 0) continue;
      for (size_t i = 0; i < x_.size(); ++i) {
        if (std::memcmp(&x_[i], &y_[i], sizeof(float)) == 0) continue;
        ++different;
        const double distance = std::abs(static_cast<double>(x_[i]) - y_[i]);
        largest = std::isnan(distance) || std::isnan(largest) ? NAN : std::max(largest, distance);
      }
    }
    ++result_.tensors;
    result_.elements += elements;
    if (different > 0) note(what, base::str("max |a - b| ", largest, " in ", different, " of ", elements, " elements"));
  }

  void compare_buffers() {
    for (const auto& [name, buffer] : a_.buffers()) {
      const auto other = b_.buffers().find(name);
      if (other == b_.buffers().end()) {
        note(name, "only in the first");
      } else if (other->second.shape != buffer.shape || other->second.dtype != buffer.dtype) {
        note(name, base::str("buffers ", formats::dtype_name(buffer.dtype), " ", text_of(buffer.shape), ", ",
                             formats::dtype_name(other->second.dtype), " ", text_of(other->second.shape)));
      } else {
        ++result_.tensors;
        result_.elements += product(buffer.shape);
        if (a_.read_buffer(name) != b_.read_buffer(name)) note("buffer " + name, "other bytes");
      }
    }
    for (const auto& [name, buffer] : b_.buffers()) {
      if (!a_.buffers().count(name)) note(name, "only in the second");
    }
  }

  Source& a_;
  Source& b_;
  std::vector<float> x_, y_;
  Comparison result_;
};

}  // namespace

Comparison compare_sources(Source& a, Source& b) { return Comparer(a, b).run(); }

}  // namespace deepspeed::store

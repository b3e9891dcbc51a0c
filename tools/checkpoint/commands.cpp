#include "checkpoint/commands.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "checkpoint/place.h"
#include "deepspeed/error.h"
#include "store/checkpoint.h"
#include "store/compare.h"
#include "store/directory.h"
#include "store/source.h"

namespace deepspeed::tools {
namespace {

using Json = nlohmann::ordered_json;

std::string print_json(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace); }

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> extents;
  for (const int64_t extent : shape) extents.push_back(std::to_string(extent));
  return base::str("[", base::join(extents, ", "), "]");
}

int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

// Everything that can be compared with a checksum; without checksums, everything that can be read.
std::vector<std::string> problems_of(const std::string& directory, const std::string& tag, uint64_t* bytes) {
  const std::string path = directory + "/" + tag;
  std::vector<std::string> problems;
  try {
    if (store::kind_of_checkpoint(store::disk(), path) == store::Kind::kNative) {
      store::Checkpoint checkpoint(store::disk(), path);
      for (size_t file = 0; file < checkpoint.index().files.size(); ++file) {
        checkpoint.verify_file(file, problems);
        *bytes += checkpoint.index().files[file].bytes;
      }
      return problems;
    }
    const auto source = store::open_source(store::disk(), directory, tag);
    std::vector<float> values;
    for (const auto& [name, parameter] : source->parameters()) {
      values.resize(static_cast<size_t>(elements_of(parameter.shape)));
      source->read_values(name, 0, elements_of(parameter.shape), values.data());
      *bytes += values.size() * sizeof(float);
      for (const auto& state : source->state_names()) {
        if (!parameter.trained || !source->has_state(name, state)) continue;
        source->read_state(name, {state}, 0, elements_of(parameter.shape), values.data());
        *bytes += values.size() * sizeof(float);
      }
    }
  } catch (const Error& error) {
    problems.push_back(error.what());
  }
  return problems;
}

}  // namespace

int list(const std::string& directory, bool as_json) {
  const auto all = store::list_checkpoints(store::disk(), directory);
  const std::string latest = store::latest_tag(store::disk(), directory);
  if (as_json) {
    Json rows = Json::array();
    for (const auto& listed : all) {
      rows.push_back({{"tag", listed.tag},
                      {"kind", store::kind_name(listed.kind)},
                      {"global_steps", listed.global_steps},
                      {"world_size", listed.world_size},
                      {"bytes", listed.bytes},
                      {"latest", listed.tag == latest},
                      {"problem", listed.problem}});
    }
    std::cout << print_json(rows) << "\n";
    return 0;
  }
  if (all.empty())
    throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                base::str("got no checkpoints in ", directory, ", allowed a folder that holds some"));
  std::printf("%-28s %10s %6s %10s  %s\n", "tag", "step", "ranks", "size", "kind");
  for (const auto& listed : all) {
    const std::string step = listed.global_steps < 0 ? "-" : std::to_string(listed.global_steps);
    const std::string ranks = listed.world_size == 0 ? "-" : std::to_string(listed.world_size);
    std::printf("%-28s %10s %6s %10s  %s%s\n", listed.tag.c_str(), step.c_str(), ranks.c_str(), size_text(listed.bytes).c_str(),
                store::kind_name(listed.kind), listed.tag == latest ? " (latest)" : "");
    if (!listed.problem.empty()) std::printf("    %s\n", listed.problem.c_str());
  }
  const bool known = std::any_of(all.begin(), all.end(), [&](const auto& listed) { return listed.tag == latest; });
  if (!latest.empty() && !known) std::printf("latest names %s, which is not there\n", latest.c_str());
  return 0;
}

int show(const std::string& path, const std::string& tag, bool parameters, bool as_json) {
  const Place place = place_of(path, tag);
  const auto source = store::open_source(store::disk(), place.directory, place.tag);
  const std::map<std::string, store::SavedParameter> sorted(source->parameters().begin(), source->parameters().end());
  int64_t trained = 0, frozen = 0;
  for (const auto& [name, parameter] : sorted) (parameter.trained ? trained : frozen) += elements_of(parameter.shape);
  Json report{{"path", place.path()},
              {"kind", store::kind_name(*store::kind_of_checkpoint(store::disk(), place.path()))},
              {"world_size", source->world_size()},
              {"parameters", sorted.size()},
              {"elements_trained", trained},
              {"elements_frozen", frozen},
              {"buffers", source->buffers().size()},
              {"optimizer_states", source->state_names()},
              {"run", Json::parse(source->run_json(), nullptr, false)},
              {"client_state", Json::parse(source->client_json(), nullptr, false)}};
  if (parameters) {
    Json list = Json::array();
    for (const auto& [name, parameter] : sorted)
      list.push_back({{"name", name}, {"shape", parameter.shape}, {"trained", parameter.trained}});
    for (const auto& [name, buffer] : source->buffers()) {
      list.push_back({{"name", name}, {"shape", buffer.shape}, {"buffer", formats::dtype_name(buffer.dtype)}});
    }
    report["list"] = std::move(list);
  }
  if (as_json) {
    std::cout << print_json(report) << "\n";
    return 0;
  }
  for (const auto& [key, value] : report.items()) {
    if (key == "list" || key == "run") continue;
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  for (const auto& [key, value] : report["run"].items()) std::cout << "run." << key << ": " << value.dump() << "\n";
  for (const auto& [name, parameter] : sorted) {
    if (parameters) std::cout << "  " << name << " " << shape_text(parameter.shape) << (parameter.trained ? "" : " frozen") << "\n";
  }
  for (const auto& [name, buffer] : source->buffers()) {
    if (parameters) std::cout << "  " << name << " " << shape_text(buffer.shape) << " buffer " << formats::dtype_name(buffer.dtype) << "\n";
  }
  return 0;
}

int verify(const std::string& path, const std::string& tag, bool all) {
  std::vector<Place> places;
  if (all) {
    for (const auto& listed : store::list_checkpoints(store::disk(), path)) places.push_back({path, listed.tag});
    if (places.empty())
      throw Error(ErrorCode::kCheckpointMissing, "checkpoint",
                  base::str("got no checkpoints in ", path, ", allowed a folder that holds some"));
  } else {
    places.push_back(place_of(path, tag));
  }
  bool whole = true;
  for (const auto& place : places) {
    uint64_t bytes = 0;
    const auto problems = problems_of(place.directory, place.tag, &bytes);
    const auto kind = store::kind_of_checkpoint(store::disk(), place.path());
    const char* how = kind == store::Kind::kNative ? "checksums agree" : "all tensors can be read (this kind has no checksums)";
    if (problems.empty()) std::cout << place.path() << ": " << how << ", " << size_text(bytes) << "\n";
    for (const auto& problem : problems) std::cout << problem << "\n";
    whole = whole && problems.empty();
  }
  return whole ? 0 : 1;
}

int diff(const std::string& one, const std::string& other) {
  const Place a = place_of(one, ""), b = place_of(other, "");
  const auto first = store::open_source(store::disk(), a.directory, a.tag), second = store::open_source(store::disk(), b.directory, b.tag);
  const auto comparison = store::compare_sources(*first, *second);
  for (const auto& difference : comparison.differences) std::cout << difference.what << ": " << difference.text << "\n";
  std::cerr << a.path() << " and " << b.path() << ": " << comparison.differences.size() << " differences in " << comparison.tensors
            << " tensors, " << comparison.elements << " elements\n";
  return comparison.differences.empty() ? 0 : 1;
}

int prune(const std::string& directory, int keep, bool dry_run) {
  const auto removed = store::prune(store::disk(), directory, keep, dry_run);
  for (const auto& tag : removed) std::cout << (dry_run ? "would remove " : "removed ") << directory << "/" << tag << "\n";
  return 0;
}

}  // namespace deepspeed::tools

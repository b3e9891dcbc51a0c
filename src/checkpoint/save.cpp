#include "checkpoint/save.h"

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "comm/agreement.h"
#include "deepspeed/error.h"
#include "store/save_folder.h"
#include "store/shard_file.h"

namespace deepspeed::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// Runs `work`; returns what went wrong, empty when nothing did.
std::string attempt(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& failure) {
    const std::string text = failure.what();
    return text.empty() ? "unknown failure" : text;
  }
}

// Runs `work`, then lets all ranks know how it went everywhere.
void together(Communicator& communicator, const std::string& what, const at::Tensor& probe, const std::function<void()>& work) {
  comm::agree_on_success(communicator, attempt(work), ErrorCode::kCheckpointWrite, "checkpoint", what, probe);
}

// What a rank says after it has written its file: the file's entry, or what went wrong.
constexpr char kFailed = '!';

std::vector<store::FileEntry> gather_entries(Communicator& communicator, const std::string& mine, const std::string& what,
                                             const at::Tensor& probe) {
  const auto texts = comm::gather_texts(communicator, mine, what, probe);
  std::vector<std::string> errors;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank][0] == kFailed) errors.push_back(base::str(texts[rank].substr(1), " (rank ", rank, ")"));
  }
  if (!errors.empty()) throw Error(ErrorCode::kCheckpointWrite, "checkpoint", base::str(what, ": ", base::join(errors, "; ")));
  std::vector<store::FileEntry> entries;
  for (const auto& text : texts) entries.push_back(store::file_entry_from(text));
  return entries;
}

store::Index index_of(const Snapshot& snapshot, const std::string& tag, std::vector<store::FileEntry> files) {
  store::Index index;
  index.tag = tag;
  index.world_size = static_cast<int>(files.size());
  index.state_names = snapshot.state_names;
  index.parameters = snapshot.parameters;
  for (size_t rank = 0; rank < files.size(); ++rank) store::add_shard(index, std::move(files[rank]), snapshot.plans[rank]);
  index.run_json = snapshot.run_json;
  index.client_json = snapshot.client_json;
  index.library_version = DEEPSPEED_VERSION;
  return index;
}

}  // namespace

void check_request(const SaveRequest& request, const std::string& client_json) {
  if (request.directory.empty()) throw Error(ErrorCode::kUsage, "checkpoint", "save: got an empty directory name, allowed a path");
  store::check_tag(request.tag);
  if (request.keep_last < 0) {
    throw Error(ErrorCode::kUsage, "checkpoint", base::str("save: keep_last: got ", request.keep_last, ", allowed 0 (all) or more"));
  }
  if (!Json::accept(client_json))
    throw Error(ErrorCode::kUsage, "checkpoint", "save: got a client_state that is no JSON, allowed JSON text");
}

std::string write_checkpoint(Communicator& communicator, store::FileSystem& files, const SaveRequest& request, const Snapshot& snapshot,
                             const at::Tensor& device_probe) {
  const bool leads = communicator.rank() == 0;
  const std::string temporary = store::temporary_folder(request.directory, request.tag);
  std::unique_ptr<store::SaveFolder> folder;
  together(communicator, "save " + request.directory, device_probe, [&] {
    if (leads) folder = std::make_unique<store::SaveFolder>(files, request.directory, request.tag);
  });
  std::string mine;
  const std::string error = attempt([&] {
    mine = store::to_text(store::write_shard(files, temporary, store::shard_name(communicator.rank(), communicator.size()),
                                             snapshot.parameters, snapshot.plans[static_cast<size_t>(communicator.rank())],
                                             [&](size_t i) { return snapshot.data.at(i); }));
  });
  if (!error.empty()) mine = kFailed + error;
  auto entries = gather_entries(communicator, mine, "save " + temporary, device_probe);
  const std::string target = request.directory + "/" + request.tag;
  together(communicator, "save " + target, device_probe, [&] {
    if (!leads) return;
    folder->commit(index_of(snapshot, request.tag, std::move(entries)));
    if (request.keep_last == 0) return;
    // The new one is safe; that an old one stays is no reason to call its save failed.
    const std::string trouble = attempt([&] { folder->keep_newest(request.keep_last); });
    if (!trouble.empty()) base::log_warning("save ", target, ": older checkpoints could not be removed: ", trouble);
  });
  return target;
}

}  // namespace deepspeed::checkpoint

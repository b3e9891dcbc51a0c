// ds_migrate: writes checkpoints of older formats, and those of the real DeepSpeed, again in the present one.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "checkpoint/place.h"
#include "deepspeed/error.h"
#include "store/directory.h"
#include "store/migrate.h"

namespace {

using namespace deepspeed;

// A line each second at most, so that logs stay readable.
class Progress {
 public:
  void operator()(uint64_t done, uint64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (done < total && now - shown_ < std::chrono::seconds(1)) return;
    shown_ = now;
    std::cerr << "[ds_migrate] " << (total == 0 ? 100 : done * 100 / total) << " % of " << tools::size_text(total) << "\n";
  }

 private:
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
};

int migrate_one(const tools::Place& from, const std::string& output, bool dry_run) {
  const auto source = store::open_source(store::disk(), from.directory, from.tag);
  store::MigrateOptions options;
  if (!dry_run) options.progress = Progress();
  const auto result = dry_run ? store::plan_migration(*source, output, from.tag, options)
                              : store::migrate(store::disk(), *source, output, from.tag, options);
  std::cout << from.path() << " (" << store::kind_name(*store::kind_of_checkpoint(store::disk(), from.path())) << ") -> " << result.path
            << ": " << result.parameters << " parameters and buffers, " << tools::size_text(result.bytes) << " in " << result.files
            << (result.files == 1 ? " file" : " files") << (dry_run ? " (dry run: nothing was written)" : ", read back and compared")
            << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Writes a checkpoint again in this library's present format (docs/formats/checkpoint.md), with checksums: older ones of this "
      "library, and ZeRO and "
      "Universal\ncheckpoints of the real DeepSpeed. The source stays as it is; the result is read back and compared before the command "
      "ends.",
      "ds_migrate");
  app.set_version_flag("--version", std::string("ds_migrate ") + DEEPSPEED_VERSION);
  std::string from, output, tag;
  bool all = false, dry_run = false;
  app.add_option("OLD", from, "Folder of checkpoints, or one checkpoint")->required()->type_name("");
  app.add_option("NEW", output, "Folder for the result, which goes by the same tag")->required()->type_name("");
  app.add_option("--tag", tag, "Which (default: what `latest` says)");
  app.add_flag("--all", all, "All checkpoints of OLD, the newest last");
  app.add_flag("--dry_run", dry_run, "Only says what would be written");
  try {
    app.parse(argc, argv);
    if (!all) return migrate_one(tools::place_of(from, tag), output, dry_run);
    const auto list = store::list_checkpoints(store::disk(), from);
    if (list.empty()) tools::place_of(from, "");  // says what is wrong
    for (const auto& listed : list) migrate_one({from, listed.tag}, output, dry_run);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_status(error);
  } catch (const std::exception& error) {
    std::cerr << "[ds_migrate] " << error.what() << "\n";
    return 1;
  }
  return 0;
}

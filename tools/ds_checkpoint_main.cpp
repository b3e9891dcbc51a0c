// ds_checkpoint: what is in a folder of checkpoints, and whether it is whole. Needs neither torch nor the model.
#include <CLI/CLI.hpp>
#include <iostream>

#include "checkpoint/commands.h"
#include "deepspeed/error.h"

int main(int argc, char** argv) {
  using namespace deepspeed;
  CLI::App app("Lists, shows, verifies, compares and removes checkpoints: this library's and the real DeepSpeed's.", "ds_checkpoint");
  app.set_version_flag("--version", std::string("ds_checkpoint ") + DEEPSPEED_VERSION);
  app.require_subcommand(1);
  std::string path, other, tag;
  bool as_json = false, parameters = false, all = false, dry_run = false;
  int keep = 0, status = 0;
  const auto add = [&](const char* name, const char* meaning) {
    CLI::App* command = app.add_subcommand(name, meaning);
    command->add_option("DIR", path, "Folder of checkpoints, or one checkpoint")->required()->type_name("");
    return command;
  };
  CLI::App* list = add("ls", "Lists the checkpoints of a folder, the newest last");
  list->add_flag("--json", as_json, "As JSON");
  list->callback([&] { status = tools::list(path, as_json); });
  CLI::App* show = add("show", "Prints counters, settings and contents of a checkpoint");
  show->add_option("--tag", tag, "Which (default: what `latest` says)");
  show->add_flag("--parameters", parameters, "Lists parameters and buffers");
  show->add_flag("--json", as_json, "As JSON");
  show->callback([&] { status = tools::show(path, tag, parameters, as_json); });
  CLI::App* verify = add("verify", "Compares every byte with its checksum; exit status 1 when something is damaged");
  verify->add_option("--tag", tag, "Which (default: what `latest` says)");
  verify->add_flag("--all", all, "All checkpoints of the folder");
  verify->callback([&] { status = tools::verify(path, tag, all); });
  CLI::App* diff = add("diff", "Compares two checkpoints, bit for bit; exit status 1 when they differ");
  diff->add_option("OTHER", other, "The second one")->required()->type_name("");
  diff->callback([&] { status = tools::diff(path, other); });
  CLI::App* prune = add("prune", "Removes all but the newest checkpoints; never what `latest` names, what is damaged, or another format");
  prune->add_option("--keep", keep, "How many stay")->required()->check(CLI::PositiveNumber);
  prune->add_flag("--dry_run", dry_run, "Only says what would go");
  prune->callback([&] { status = tools::prune(path, keep, dry_run); });
  app.footer(
      "Examples:\n"
      "  ds_checkpoint ls runs/a\n"
      "  ds_checkpoint verify runs/a --all\n"
      "  ds_checkpoint diff runs/a/global_step10 runs/b/global_step10\n"
      "Exit status: 0, 1 when something is damaged or different, 2 for wrong usage.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_status(error);
  } catch (const std::exception& error) {
    std::cerr << "[ds_checkpoint] " << error.what() << "\n";
    return 1;
  }
  return status;
}

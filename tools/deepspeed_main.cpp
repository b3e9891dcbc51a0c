// deepspeed: starts a program as the ranks of one training job on this machine. The command line; the work is in src/launcher.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>

#include "base/log.h"
#include "base/text.h"
#include "deepspeed/error.h"
#include "launcher/launch.h"

namespace {

using deepspeed::Error;
using deepspeed::ErrorCode;
using deepspeed::base::str;
using deepspeed::launcher::LaunchRequest;
using deepspeed::launcher::ProgramKind;

constexpr const char* kExamples = R"(
Examples:
  deepspeed --num_ranks 2 ./train --config ds_config.json
  deepspeed --num_gpus 4 train.py --deepspeed_config ds_config.json
  deepspeed --num_ranks 2 --bind_cores_to_rank --enable_each_rank_log logs ./train

Everything after PROGRAM goes to it untouched. A PROGRAM ending in .py runs with $PYTHON, else python3, and gets --local_rank=N first.
Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT in its environment.

When a rank fails the others are stopped within two seconds. SIGINT, SIGTERM and SIGUSR1 go to all ranks; a second SIGINT or SIGTERM kills.
Exit status: 0 all ranks ended well, 2 wrong usage, 4 program or machine not usable, else that of the rank that failed first
(128 + number for a signal).)";

struct Arguments {
  LaunchRequest request;
  double grace_seconds = 30;
  bool module = false;
  bool no_python = false;
  bool no_local_rank = false;
  bool no_prefix = false;
  bool quiet = false;
  std::string log_level = "info";
  int num_nodes = 1;
  int node_rank = 0;
};

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(40); }
  std::string make_usage(const CLI::App*, std::string) const override { return "Usage: deepspeed [OPTIONS] PROGRAM [ARGUMENTS...]\n"; }
};

[[noreturn]] void usage(const std::string& text) { throw Error(ErrorCode::kUsage, "launcher", text); }

// DeepSpeed's options for several machines and for features that are not there: known, and refused by name.
void add_refused_options(CLI::App& app) {
  const auto refuse = [&app](const std::string& names, const std::string& why, bool takes_value) {
    const std::string name = names.substr(names.find("--"));
    const auto fail = [name, why] { usage(str(name, ": got the option, allowed without it: ", why)); };
    CLI::Option* option = takes_value ? app.add_option_function<std::string>(names, [fail](const std::string&) { fail(); })
                                      : app.add_flag_callback(names, fail);
    option->group("");  // not in --help
  };
  const std::string nodes = "multi-node launching is not built yet";
  for (const char* names : {"-H,--hostfile", "-i,--include", "-e,--exclude", "--min_elastic_nodes", "--max_elastic_nodes", "--launcher",
                            "--launcher_args", "--ssh_port", "--venv_script"}) {
    refuse(names, nodes, true);
  }
  for (const char* names : {"--no_ssh", "--no_ssh_check", "--force_multi"}) refuse(names, nodes, false);
  refuse("--autotuning", "autotuning is not built yet", true);
  refuse("--elastic_training", "elastic training is not built yet", false);
}

void add_options(CLI::App& app, Arguments& arguments) {
  auto& options = arguments.request.options;
  app.add_option("-n,--num_ranks,--num_gpus,--num_accelerators", options.ranks,
                 "Ranks to start (default: one per visible CUDA device, else 1)")
      ->check(CLI::Range(1, 4096).description(""))
      ->type_name("N");
  app.add_option("--master_addr", options.master_address, "Address of rank 0 (default: $MASTER_ADDR, else 127.0.0.1)")->type_name("HOST");
  app.add_option("--master_port", options.master_port, "Port of rank 0 (default: $MASTER_PORT, else 29500 or the next free one)")
      ->check(CLI::Range(1, 65535).description(""))
      ->type_name("PORT");
  app.add_flag("--bind_cores_to_rank", options.bind_cores, "Give each rank an equal share of the cores to itself");
  app.add_option("--bind_core_list", options.core_list, "Cores to share out, such as 0-10,20 (default: all that are allowed)")
      ->type_name("LIST");
  app.add_flag("--module", arguments.module, "PROGRAM is a Python module: python3 -m PROGRAM");
  app.add_flag("--no_python", arguments.no_python, "Execute PROGRAM directly, whatever its name");
  app.add_flag("--no_local_rank", arguments.no_local_rank, "Do not pass --local_rank=N to Python programs");
  app.add_option("--env", options.environment, "A variable for the ranks' environment (repeatable)")
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--enable_each_rank_log", arguments.request.log_directory, "Write each rank's output to DIR/<time>_rank<r>.log instead")
      ->type_name("DIR");
  app.add_flag("--no_prefix", arguments.no_prefix, "Leave the ranks' output as it is, without `[rank r] ` before each line");
  app.add_flag("--save_pid", arguments.request.save_pid,
               "Keep the launcher's process id in <temporary folder>/<pid>.deepspeed while it runs");
  app.add_option("--grace", arguments.grace_seconds, "Time that ranks have to end after SIGINT or SIGTERM (default 30)")
      ->check(CLI::Range(0.0, 86400.0).description(""))
      ->type_name("SECONDS");
  app.add_option("--log_level", arguments.log_level, "Least of the launcher's own messages: debug, info (default), warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}).description(""))
      ->type_name("LEVEL");
  app.add_flag("-q,--quiet", arguments.quiet, "Only errors");
  app.add_option("--num_nodes", arguments.num_nodes)->group("");
  app.add_option("--node_rank", arguments.node_rank)->group("");
  add_refused_options(app);
}

// Position of PROGRAM among the arguments, or argc. CLI11 sees only what stands before it, so that nothing after it can be taken for ours.
int find_program_position(CLI::App& app, int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") return i;
    if (argument.size() < 2 || argument[0] != '-') return i;
    const bool is_long = argument[1] == '-';
    const std::string name = is_long ? argument.substr(0, argument.find('=')) : argument.substr(0, 2);
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr) {
      std::vector<std::string> known;
      for (const CLI::Option* candidate : app.get_options()) {
        for (const std::string& long_name : candidate->get_lnames()) known.push_back("--" + long_name);
      }
      const std::string near = deepspeed::base::nearest(name, known);
      usage(str("option: got ", name, ", allowed the options of --help", near.empty() ? "" : "; did you mean " + near + "?"));
    }
    const bool has_value_attached = is_long ? argument.find('=') != std::string::npos : argument.size() > 2;
    if (option->get_items_expected_max() > 0 && !has_value_attached) ++i;
  }
  return argc;
}

// Fills `arguments`; false when the command line asked only for help or the version, which is printed then.
bool parse(int argc, char** argv, Arguments& arguments) {
  CLI::App app("Starts PROGRAM as the ranks of one training job on this machine and watches over them.", "deepspeed");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(kExamples);
  app.set_version_flag("--version", std::string("deepspeed ") + DEEPSPEED_VERSION);
  add_options(app, arguments);
  int program = find_program_position(app, argc, argv);
  try {
    app.parse(program, argv);
  } catch (const CLI::Success& request) {
    app.exit(request);
    return false;
  } catch (const CLI::ParseError& error) {
    usage(error.what());
  }
  if (program < argc && std::string(argv[program]) == "--") ++program;
  if (arguments.num_nodes != 1) usage(str("--num_nodes: got ", arguments.num_nodes, ", allowed 1: multi-node launching is not built yet"));
  if (arguments.node_rank != 0) usage(str("--node_rank: got ", arguments.node_rank, ", allowed 0: multi-node launching is not built yet"));
  if (arguments.module && arguments.no_python) usage("--module: got it together with --no_python, allowed one of them");
  if (program >= argc) usage("PROGRAM: got nothing, allowed a program to start; see deepspeed --help");
  auto& options = arguments.request.options;
  options.program = argv[program];
  options.arguments.assign(argv + program + 1, argv + argc);
  options.kind = arguments.module ? ProgramKind::kModule : arguments.no_python ? ProgramKind::kDirect : ProgramKind::kByName;
  options.local_rank_argument = !arguments.no_local_rank;
  arguments.request.prefix = !arguments.no_prefix;
  arguments.request.grace = std::chrono::milliseconds(static_cast<int64_t>(arguments.grace_seconds * 1000));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Arguments arguments;
    if (!parse(argc, argv, arguments)) return 0;
    deepspeed::base::set_log_level(arguments.quiet ? "error" : arguments.log_level);
    return deepspeed::launcher::launch(arguments.request);
  } catch (const Error& error) {
    deepspeed::base::log_error(error.what());
    return deepspeed::exit_status(error);
  } catch (const std::exception& error) {
    deepspeed::base::log_error(error.what());
    return 1;
  }
}

#include "experiments/frame/program.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iostream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "command/command_line.h"
#include "command/files.h"
#include "command/interrupt.h"
#include "command/run.h"
#include "machine/cores.h"
#include "text/counted.h"

namespace gpipe::experiments {
namespace {

// The width of the table, and its maximum on a wider terminal.
constexpr std::size_t kColumns = 80;
constexpr std::size_t kMostColumns = 120;

std::size_t table_columns() {
  const command::ProgressOptions terminal = command::terminal_options(STDOUT_FILENO);
  if (!terminal.terminal) return kColumns;
  return std::clamp(static_cast<std::size_t>(terminal.width), kColumns, kMostColumns);
}

// Returns false if the variant failed. A stop by the user is not a failure.
bool run_variant(const Variant& variant, const RunContext& context, Outcome& outcome) {
  try {
    variant.run(outcome, context);
    return true;
  } catch (const command::Interrupted&) {  // the variant has figures only when it is done
    outcome.note = "stopped before it was done; " + outcome.note;
    return true;
  } catch (const std::exception& error) {
    const std::string message = command::message_of(error);
    std::cerr << "error: " << variant.name << ": " << message << std::endl;
    // Figures that the variant has already stay: perhaps only a second round or the trace failed.
    if (outcome.origin == variant.way) {
      outcome.note += "; then failed: " + message;
      return false;
    }
    outcome.origin = Origin::kFailed;
    outcome.note = (command::is_out_of_memory(error) ? "out of memory: " : "failed: ") + message +
                   (outcome.note.empty() ? "" : "; " + outcome.note);
    return false;
  }
}

std::string describe_machine() {
  const int64_t cores = machine::usable_cores();
  return command::describe_build() + "; " + text::counted(cores, "core");
}

Report report_of(const ExperimentRun& experiment, const std::vector<Result>& results) {
  Report report(experiment.table, results);
  for (const std::string& remark : experiment.remarks) report.add_remark(remark);
  report.add_remark(describe_machine());
  if (!command::is_optimized()) report.add_remark("Built without -c opt: the speeds mean nothing.");
  return report;
}

// One run of a variant.
struct Turn {
  std::size_t variant;
  int64_t round;  // from 1
};

// The order in which the variants run. Planned and simulated ones take seconds. Measured ones come
// last, so that a run that is stopped early still has the others.
std::vector<Turn> turns_of(const std::vector<Variant>& variants) {
  std::vector<Turn> turns;
  for (std::size_t k = 0; k < variants.size(); ++k) {
    for (int64_t round = 1; round <= variants[k].rounds; ++round) turns.push_back({k, round});
  }
  std::stable_sort(turns.begin(), turns.end(), [&](const Turn& a, const Turn& b) {
    const auto late = [&](const Turn& turn) {
      return variants[turn.variant].way == Origin::kMeasured ? turn.round : 0;
    };
    return late(a) < late(b);
  });
  return turns;
}

int run_all(const ExperimentRun& experiment, const std::string& command) {
  command::InterruptScope interrupt;
  RunContext context;
  context.out = &std::cout;
  context.progress = &std::cerr;
  context.progress_options = command::terminal_options(STDERR_FILENO);
  context.interrupted = [&interrupt] { return interrupt.requested(); };

  const ReportSource source = {experiment.name, experiment.edition, command, describe_machine()};
  std::vector<Result> results;
  for (const Variant& variant : experiment.variants) {
    Outcome& outcome = results.emplace_back(Result{variant.name, {}}).outcome;
    outcome.way = variant.way;
    // The JSON has this note if the program crashes before the variant's turn.
    outcome.note = variant.refusal.empty() ? "its turn had not come" : variant.refusal;
  }
  std::string unwritten;
  std::set<std::size_t> failed;
  for (const auto& [index, round] : turns_of(experiment.variants)) {
    const Variant& variant = experiment.variants[index];
    Outcome& outcome = results[index].outcome;
    if (failed.count(index) > 0) continue;
    if (variant.refusal.empty() && interrupt.requested()) {
      if (round == 1) {
        outcome.note = "stopped before it began";
      } else if (outcome.origin == variant.way) {
        outcome.origin = Origin::kInterrupted;
        outcome.note =
            absl::StrFormat("stopped after round %d of %d; ", round - 1, variant.rounds) +
            outcome.note;
      }
    } else if (variant.refusal.empty()) {
      if (round == 1) outcome.note.clear();
      context.round = round;
      context.rounds = variant.rounds;
      if (!run_variant(variant, context, outcome)) failed.insert(index);
    }
    if (experiment.json.empty()) continue;
    try {
      command::write_file_atomically(experiment.json,
                                     report_of(experiment, results).to_json(source));
      unwritten.clear();
    } catch (const std::runtime_error& error) {
      unwritten = error.what();
    }
  }

  std::cout << "\n" << report_of(experiment, results).to_text(table_columns()) << std::flush;
  const bool printed = std::cout.good();
  if (!printed) std::cerr << "error: the table cannot be written to standard output" << std::endl;
  if (!unwritten.empty()) {
    std::cerr << "error: " << unwritten << std::endl;
  } else if (!experiment.json.empty()) {
    std::cout << "written: " << experiment.json << std::endl;
  }
  if (interrupt.requested()) {
    if (!experiment.when_stopped.empty()) std::cout << experiment.when_stopped << std::endl;
    return command::kInterruptedExitCode;
  }
  return !failed.empty() || !printed || !unwritten.empty() ? command::kErrorExitCode : 0;
}

// The command that runs the experiment with these arguments.
std::string command_of(const std::string& name, int argc, const char* const* argv) {
  std::string command = "tools/bazel run -c opt //experiments/" + name;
  for (int i = 1; i < argc; ++i) {
    command += (i == 1 ? " -- " : " ") + command::quoted_for_shell(argv[i]);
  }
  return command;
}

}  // namespace

int run_program(int argc, const char* const* argv, const std::string& usage,
                const std::function<ExperimentRun()>& prepare) {
  return command::run_command(argc, argv, usage, [&prepare, argc, argv]() -> std::function<int()> {
    return [experiment = prepare(), argc, argv] {
      return run_all(experiment, command_of(experiment.name, argc, argv));
    };
  });
}

}  // namespace gpipe::experiments

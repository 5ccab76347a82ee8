#include "experiments/common/program.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <thread>

#include "command/command_line.h"
#include "command/files.h"
#include "command/interrupt.h"
#include "command/run.h"

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

void run_variant(const Variant& variant, const RunContext& context, Outcome& outcome) {
  try {
    variant.run(outcome, context);
  } catch (const std::exception& error) {
    const std::string message = command::message_of(error);
    std::cerr << "error: " << variant.name << ": " << message << std::endl;
    outcome.origin = Origin::kFailed;
    outcome.note = "failed: " + message + (outcome.note.empty() ? "" : "; " + outcome.note);
  }
}

Report report_of(const Plan& plan, const std::map<std::string, Outcome>& outcomes) {
  Report report(plan.table, outcomes);
  for (const std::string& remark : plan.remarks) report.add_remark(remark);
  const unsigned cores = std::thread::hardware_concurrency();
  report.add_remark(command::describe_build() + "; " + std::to_string(cores) +
                    (cores == 1 ? " core" : " cores"));
  if (!command::is_optimized()) report.add_remark("Built without -c opt: the speeds mean nothing.");
  return report;
}

int run_plan(const Plan& plan) {
  command::InterruptScope interrupt;
  RunContext context;
  context.out = &std::cout;
  context.progress = &std::cerr;
  context.progress_options = command::terminal_options(STDERR_FILENO);
  context.interrupted = [&interrupt] { return interrupt.requested(); };

  std::map<std::string, Outcome> outcomes;
  std::string unwritten;
  bool failed = false;
  for (const Variant& variant : plan.variants) {
    Outcome& outcome = outcomes[variant.name];
    if (!variant.refusal.empty()) {
      outcome.note = variant.refusal;
    } else if (interrupt.requested()) {
      outcome.note = "stopped before it began";
    } else {
      run_variant(variant, context, outcome);
      failed = failed || outcome.origin == Origin::kFailed;
    }
    if (plan.json.empty()) continue;
    try {
      command::write_file_atomically(plan.json, report_of(plan, outcomes).to_json());
      unwritten.clear();
    } catch (const std::runtime_error& error) {
      unwritten = error.what();
    }
  }

  std::cout << "\n" << report_of(plan, outcomes).to_text(table_columns()) << std::flush;
  const bool printed = std::cout.good();
  if (!printed) std::cerr << "error: the table cannot be written to standard output" << std::endl;
  if (!unwritten.empty()) {
    std::cerr << "error: " << unwritten << std::endl;
  } else if (!plan.json.empty()) {
    std::cout << "written: " << plan.json << std::endl;
  }
  if (interrupt.requested()) {
    if (!plan.when_stopped.empty()) std::cout << plan.when_stopped << std::endl;
    return command::kInterruptedExitCode;
  }
  return failed || !printed || !unwritten.empty() ? command::kErrorExitCode : 0;
}

}  // namespace

int run_program(int argc, const char* const* argv, const std::string& usage,
                const std::function<Plan()>& prepare) {
  return command::run_command(argc, argv, usage, [&prepare]() -> std::function<int()> {
    return [plan = prepare()] { return run_plan(plan); };
  });
}

}  // namespace gpipe::experiments

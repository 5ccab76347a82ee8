#include "gpipe/internal/call/together.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <exception>
#include <stdexcept>

#include "absl/strings/str_join.h"
#include "gpipe/internal/call/hashing.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/tensors/value.h"

namespace gpipe::internal {
namespace {

constexpr size_t kLongestText = 500'000;  // that is compared as it is

void agree(Processes& processes, const std::string& name, const std::string& value) {
  processes.agree(name, value.size() <= kLongestText ? value : "hash " + hash_of(value));
}

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return c10::str(tensor.dtype(), tensor.sizes());
}

// A line for each layer, with its parameters and buffers.
std::string text_of(const torch::nn::Sequential& module) {
  std::string text;
  const auto children = module->named_children();
  size_t index = 0;
  for (const torch::nn::AnyModule& layer : *module) {
    text += children[index++].key() + ": " + readable_type(layer.type_info());
    for (const auto& parameter : layer.ptr()->named_parameters()) {
      text += " " + parameter.key() + " " + text_of(parameter.value());
    }
    for (const auto& buffer : layer.ptr()->named_buffers()) {
      text += " " + buffer.key() + " " + text_of(buffer.value());
    }
    text += "\n";
  }
  return text;
}

[[noreturn]] void found_by_all(const std::string& what) {
  std::exception_ptr error;
  try {
    TORCH_CHECK_VALUE(false, what);
  } catch (...) {
    error = std::current_exception();
  }
  throw FoundByAll{error};
}

const char* yes_or_no(bool value) { return value ? "yes" : "no"; }

}  // namespace

void agree_on_pipeline(Processes& processes, const std::string& name,
                       const torch::nn::Sequential& module, const GPipeOptions& options,
                       const Placement& placement, int64_t cpu_threads_per_stage) {
  const std::string of = " of " + name;
  agree(processes, "the balance" + of, absl::StrJoin(options.balance(), ", "));
  agree(processes, "chunks" + of, std::to_string(options.chunks()));
  agree(processes, "the layers" + of, text_of(module));
  agree(processes, "the placement" + of, placement.to_text());
  const auto add_mode = [](std::string* out, Checkpoint mode) { out->append(to_text(mode)); };
  agree(processes, "the checkpoint modes" + of,
        to_text(options.checkpoint()) + std::string(": ") +
            absl::StrJoin(options.partition_checkpoints(), ", ", add_mode));
  agree(processes, "deferred_batch_norm" + of, yes_or_no(options.deferred_batch_norm()));
  // With another number of threads an operator may add up in another order.
  agree(processes,
        "GPipeOptions::cpu_threads_per_stage (unless it is given, the share of one of this "
        "process's workers)" +
            of,
        std::to_string(cpu_threads_per_stage));
  const Ablation& ablation = options.ablation();
  agree(processes, "the ablation" + of,
        std::string(yes_or_no(ablation.direct_skips)) + yes_or_no(ablation.early_recomputes));
}

void add_terms(const StepOptions& options, CallTerms& terms) {
  terms.same.emplace_back("StepOptions::reduction",
                          options.reduction() == LossReduction::kSum ? "kSum" : "kMean");
  terms.same.emplace_back("StepOptions::keep_outputs", yes_or_no(options.keep_outputs()));
  terms.same.emplace_back("StepOptions::check_finite", yes_or_no(options.check_finite()));
  terms.same.emplace_back("whether StepOptions have a schedule", yes_or_no(options.has_schedule()));
}

CallBegin begin_together(Processes& processes, const std::string& name, const CallTerms& terms,
                         int64_t first) {
  std::vector<CallTerms> of_ranks;
  for (const std::string& bytes :
       exchange_long(processes, "the begin of " + name, terms.to_bytes())) {
    of_ranks.push_back(CallTerms::from_bytes(bytes));
  }
  if (const auto differs = difference(of_ranks)) found_by_all(name + ": " + *differs);
  CallBegin begin;
  try {
    begin.rows = rows_of(of_ranks, first);
  } catch (const std::invalid_argument& error) {
    found_by_all(name + ": " + error.what());
  }
  begin.seed = of_ranks.front().seed;
  return begin;
}

uint64_t shared_seed(Processes* processes, const std::string& name) {
  CallTerms own;
  own.seed = draw_step_seed();
  if (processes == nullptr) return own.seed;
  return CallTerms::from_bytes(exchange_long(*processes, name, own.to_bytes()).front()).seed;
}

void agree_on_schedule(Processes& processes, const Schedule& schedule) {
  agree(processes, "the schedule", schedule.to_text());
}

CallLosses end_together(Processes& processes, const std::string& name,
                        const std::optional<CallLosses>& losses, int64_t last) {
  std::string own;
  if (losses) {
    std::vector<double> numbers = losses->values;
    numbers.push_back(losses->total);
    own.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double));
  }
  // Another process may compute for long yet; all are in this call.
  const std::string bytes = exchange_long(processes, "the end of " + name, own, /*is_patient=*/true)
                                .at(static_cast<size_t>(last));
  CallLosses all;
  if (bytes.empty()) return all;  // of a forward
  all.values.resize(bytes.size() / sizeof(double));
  std::memcpy(all.values.data(), bytes.data(), all.values.size() * sizeof(double));
  all.total = all.values.back();
  all.values.pop_back();
  return all;
}

}  // namespace gpipe::internal

#include "gpipe/internal/call/call_agreement.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gpipe/internal/operators/random_streams.h"
#include "gpipe/internal/run/pipeline.h"
#include "gpipe/internal/tensors/bits_hash.h"
#include "gpipe/internal/tensors/value.h"
#include "gpipe/runtime/bytes.h"
#include "gpipe/runtime/warning_log.h"
#include "gpipe/schedule/first_difference.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr size_t kLongestText = 500'000;  // longer texts are compared by their hash

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return c10::str(tensor.dtype(), tensor.sizes());
}

// A line for each layer: the layer with its parameters and buffers.
std::string text_of(const torch::nn::Sequential& module) {
  std::string text;
  const auto children = module->named_children();
  size_t index = 0;
  for (const torch::nn::AnyModule& layer : *module) {
    text += children[index++].key() + ": " + readable_type(layer);
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

// The values that the processes of the last stages give, in the order of their replicas.
// `of_ranks`: [rank] bytes of values.
template <typename T>
std::vector<T> of_last_stages(const World& world, const std::vector<std::string>& of_ranks,
                              int64_t last) {
  std::vector<T> all;
  for (int64_t replica = 0; replica < world.replicas(); ++replica) {
    const std::string& bytes = of_ranks.at(static_cast<size_t>(world.rank_of(replica, last)));
    for (const T& value : from_bytes<std::vector<T>>(bytes)) all.push_back(value);
  }
  return all;
}

// Tells all processes what layers have registered. If one process cannot take over the news, all
// processes refuse them.
void take_news(Processes& processes, const std::string& name, const std::vector<std::string>& news,
               LateRegistrations& registrations) {
  const auto is_empty = [](const std::string& text) { return text.empty(); };
  if (std::all_of(news.begin(), news.end(), is_empty)) return;
  LateRegistrations::Names names;
  std::string why_not;
  try {
    names = registrations.take(news);
  } catch (const c10::Error& error) {
    why_not = error.what_without_backtrace();
  }
  const std::vector<std::string> all = exchange_long(
      processes, "what layers have registered in " + name, why_not, /*is_patient=*/false);
  const auto first = std::find_if_not(all.begin(), all.end(), is_empty);
  if (first != all.end()) {
    found_by_all(absl::StrCat(
        name, ": a layer has registered a parameter or a buffer in a forward, which rank ",
        first - all.begin(), " cannot register in its copy of the layer: ", *first,
        ". Register it, with its shape, when the layer is made"));
  }
  registrations.know(std::move(names));
}

// Returns what each process gives, by rank. The exchange also tells all processes what layers have
// registered.
std::vector<std::string> exchange_with_news(Processes& processes, const std::string& name,
                                            const std::string& exchange_name,
                                            const std::string& own, bool is_patient,
                                            LateRegistrations& registrations) {
  std::vector<std::string> given;
  std::vector<std::string> news;
  for (const std::string& bytes :
       exchange_long(processes, exchange_name, to_bytes(own, registrations.news()), is_patient)) {
    auto both = from_bytes<std::pair<std::string, std::string>>(bytes, exchange_name);
    given.push_back(std::move(both.first));
    news.push_back(std::move(both.second));
  }
  take_news(processes, name, news, registrations);
  return given;
}

const char* yes_or_no(bool value) { return value ? "yes" : "no"; }

}  // namespace

void agree_on_pipeline(Processes& processes, const std::string& name,
                       const torch::nn::Sequential& module, const GPipeOptions& options,
                       const Placement& placement, c10::DeviceType device,
                       int64_t cpu_threads_per_stage) {
  const std::string suffix = " of " + name;
  const auto add_mode = [](std::string* out, Checkpoint mode) { out->append(to_text(mode)); };
  const std::string layers = text_of(module);
  const Ablation& ablation = options.ablation();
  processes.agree(
      "the making" + suffix,
      fields_text(
          {{"World::grid" + suffix,
            absl::StrCat(options.world().replicas(), ", ", options.world().processes_each())},
           {"the balance" + suffix, absl::StrJoin(options.balance(), ", ")},
           {"chunks" + suffix, std::to_string(options.chunks())},
           {"groups" + suffix, std::to_string(options.groups())},
           {"shared_inputs" + suffix, absl::StrJoin(options.shared_inputs(), ", ")},
           {"the layers" + suffix,
            layers.size() <= kLongestText ? layers : "hash " + hash_of(layers)},
           {"the placement" + suffix, placement.to_text()},
           {"the checkpoint modes" + suffix,
            to_text(options.checkpoint()) + std::string(": ") +
                absl::StrJoin(options.partition_checkpoints(), ", ", add_mode)},
           {"deferred_batch_norm" + suffix, yes_or_no(options.deferred_batch_norm())},
           // If replicas ran on different types of devices, their weights would drift apart. If the
           // user has forgotten the device of a stage, the stage would be slow.
           {"the type of GPipeOptions::devices" + suffix,
            c10::DeviceTypeName(device, /*lower_case=*/true)},
           // With another number of threads an operator may add up in another order.
           {"GPipeOptions::cpu_threads_per_stage (unless it is given, the share of one of this "
            "process's workers)" +
                suffix,
            std::to_string(cpu_threads_per_stage)},
           {"the ablation" + suffix, std::string(yes_or_no(ablation.direct_skips)) +
                                         yes_or_no(ablation.early_recomputes)}}));
}

void add_terms(const StepOptions& options, CallTerms& terms) {
  terms.same.emplace_back("StepOptions::reduction",
                          options.reduction() == LossReduction::kSum ? "kSum" : "kMean");
  terms.same.emplace_back("StepOptions::weight", options.weight() ? "given" : "not given");
  terms.same.emplace_back("StepOptions::keep_outputs", yes_or_no(options.keep_outputs()));
  terms.same.emplace_back("StepOptions::check_finite", yes_or_no(options.check_finite()));
  terms.same.emplace_back("StepOptions::loss_scale",
                          absl::StrFormat("%.17g", options.loss_scale()));
  terms.same.emplace_back("whether StepOptions have a schedule", yes_or_no(options.has_schedule()));
}

CallBegin agree_at_begin(const World& world, const std::string& name, const CallTerms& terms,
                         int64_t first, int64_t chunks) {
  Processes& processes = *world.processes();
  std::vector<CallTerms> of_ranks;
  for (const std::string& bytes :
       exchange_long(processes, "the begin of " + name, to_bytes(terms))) {
    of_ranks.push_back(from_bytes<CallTerms>(bytes, "the terms of a call"));
  }
  if (const auto differs = difference(of_ranks)) found_by_all(name + ": " + *differs);
  CallBegin begin;
  try {
    begin.rows = rows_of(of_ranks, world, first, chunks);
  } catch (const std::invalid_argument& error) {
    found_by_all(name + ": " + error.what());
  }
  begin.seed = of_ranks.front().seed;
  static std::atomic<bool> told{false};
  const std::string text = told ? "" : zero_grads_text(of_ranks);
  if (!text.empty() && !told.exchange(true)) log_warning(name + ": " + text);
  begin.changed_tied_parameters = changed_tied_parameters(of_ranks);
  for (CallTerms& of_rank : of_ranks)
    begin.trained_tied_parameters.push_back(std::move(of_rank.trained_tied_parameters));
  return begin;
}

uint64_t shared_seed(Processes* processes, const std::string& name) {
  const uint64_t own = draw_step_seed();
  if (processes == nullptr) return own;
  return from_bytes<uint64_t>(processes->exchange(name, to_bytes(own), false).front(), "a seed");
}

void agree_on_schedule(const World& world, const std::string& name, const Schedule& schedule) {
  Processes& processes = *world.processes();
  const std::string exchange_name = "the schedule of " + name;
  const std::vector<std::string> hashes =
      exchange_long(processes, exchange_name, hash_of(schedule.to_text()));
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const int64_t first = rank - rank % world.processes_each();
    if (hashes[static_cast<size_t>(rank)] == hashes[static_cast<size_t>(first)]) continue;
    // Schedules may be long, so only the two ranks that differ send theirs, after the difference
    // was found.
    const bool is_asked = processes.rank() == rank || processes.rank() == first;
    const std::vector<std::string> texts =
        exchange_long(processes, exchange_name + ", in full", is_asked ? schedule.to_text() : "");
    const auto schedule_of = [&](int64_t of_rank) {
      return Schedule::from_text(texts[static_cast<size_t>(of_rank)]);
    };
    found_by_all(name + ": the schedule must be the same on all ranks" +
                 (world.replicas() == 1 ? ": " : " of a replica: ") +
                 first_difference(schedule_of(first), "on rank " + std::to_string(first),
                                  schedule_of(rank), "on rank " + std::to_string(rank)));
  }
}

void agree_on_values(const World& world, const std::string& name,
                     const torch::OrderedDict<std::string, at::Tensor>& named) {
  using Hashes = std::vector<std::pair<std::string, uint64_t>>;  // by name
  Hashes own;
  for (const auto& parameter : named) {
    if (!parameter.value().defined() || parameter.value().is_meta()) continue;
    own.emplace_back(parameter.key(), hash_of(parameter.key(), parameter.value()));
  }
  const std::vector<std::string> all = exchange_long(*world.processes(), name, to_bytes(own));
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const int64_t first = rank % world.processes_each();
    const auto here = from_bytes<Hashes>(all[static_cast<size_t>(rank)], name);
    const auto there = from_bytes<Hashes>(all[static_cast<size_t>(first)], name);
    const auto differs = std::mismatch(here.begin(), here.end(), there.begin(), there.end());
    if (differs.first == here.end() && differs.second == there.end()) continue;
    // One of the lists may end first: its process has no values for the parameters behind.
    const std::string& parameter =
        differs.first != here.end() ? differs.first->first : differs.second->first;
    found_by_all(name + ": " + text::in_quotes(parameter) + " has other values on rank " +
                 std::to_string(rank) + " than on rank " + std::to_string(first) +
                 ", and replicas begin with the same values: call torch::manual_seed with the "
                 "same seed on all ranks before the model is made, or load the same checkpoint");
  }
}

void agree_after_failed_update(const World& world, const std::string& name, Pipeline& pipeline,
                               const torch::nn::Module& model) {
  if (!pipeline.replicas_may_differ()) return;
  agree_on_values(world, name + ", after a ZeroOptimizer::step that failed",
                  model.named_parameters());
  pipeline.set_replicas_may_differ(false);
}

std::vector<double> weights_of_all(const World& world, const std::string& name,
                                   const std::vector<double>& own, int64_t last) {
  return of_last_stages<double>(
      world, exchange_long(*world.processes(), "the weights of " + name, to_bytes(own)), last);
}

CallLosses agree_at_end(const World& world, const std::string& name,
                        const std::optional<CallLosses>& losses, int64_t last,
                        LateRegistrations& registrations) {
  std::vector<std::pair<double, double>> own;  // a loss and its share
  for (size_t i = 0; losses && i < losses->values.size(); ++i) {
    own.emplace_back(losses->values[i], losses->shares[i]);
  }
  // This exchange waits without a limit, because another process may compute for long. All
  // processes are in this call.
  const std::vector<std::string> of_ranks =
      exchange_with_news(*world.processes(), name, "the end of " + name, to_bytes(own),
                         /*is_patient=*/true, registrations);
  CallLosses all;
  for (const auto& [loss, share] :
       of_last_stages<std::pair<double, double>>(world, of_ranks, last)) {
    all.values.push_back(loss);
    all.shares.push_back(share);
  }
  return all;
}

void agree_on_names(const World& world, const std::string& name, const std::string& arguments,
                    LateRegistrations& registrations) {
  const std::string what = "the arguments of " + name;
  const std::vector<std::string> all = exchange_with_news(*world.processes(), name, what, arguments,
                                                          /*is_patient=*/false, registrations);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    found_by_all(absl::StrCat(what, " must be the same on all ranks: rank 0 has '", all[0],
                              "', rank ", rank, " has '", all[rank], "'"));
  }
}

}  // namespace gpipe::internal

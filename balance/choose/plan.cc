#include "balance/choose/plan.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/choose/corrected_limits.h"
#include "balance/choose/default_chunks.h"
#include "balance/choose/plan_offloads.h"
#include "balance/choose/training.h"
#include "balance/costs/autocast.h"
#include "balance/costs/first_rows.h"
#include "balance/costs/profile_checks.h"
#include "balance/costs/profiler.h"
#include "balance/cut/partition.h"
#include "balance/cut/pieces.h"
#include "balance/memory/caching_allocator.h"
#include "balance/memory/device_room.h"
#include "balance/memory/param_scale.h"
#include "gpipe/batch_size.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/pipeline_setup.h"
#include "meta/meta_scope.h"
#include "text/counted.h"

namespace gpipe::balance {
namespace {

// If nothing fits: the number of further candidates whose memory is planned, and the bisection
// steps that find how much memory one needs.
constexpr size_t kMostNearest = 5;
constexpr int kBisections = 8;
constexpr size_t kMostOthers = 10;

// Plans one model.
class PipelinePlanner {
 public:
  PipelinePlanner(const torch::nn::Sequential& model, const Tensors& sample,
                  const PlanOptions& options)
      : model_(model), sample_(sample), options_(options) {
    TORCH_CHECK_VALUE(!model.is_empty() && !model->is_empty(),
                      "the model has no layers, so there is nothing to plan");
    TORCH_CHECK_VALUE(options.devices() >= 1, "devices must be at least 1, got ",
                      options.devices());
    TORCH_CHECK_VALUE(options.memory() >= 0, "memory must be at least 0 bytes, got ",
                      options.memory());
    TORCH_CHECK_VALUE(!sample.empty(),
                      "the sample has no tensors; give a mini-batch of the model's inputs");
    rows_ = batch_size(sample, "sample tensor", options.shared_inputs());
    TORCH_CHECK_VALUE(rows_ > 0, "the sample has no rows; give a mini-batch of the model's inputs");
    on_meta_ = device_of(model, sample, c10::kCPU).is_meta();
    if (on_meta_) {
      memory_model_ = model;
    } else if (options.make()) {
      const MetaScope scope;
      memory_model_ = options.make()();
    }
    check_offloads();
    autocast_ = autocast_name(memory_model_ ? options.device_type()
                                            : device_of(model, sample, c10::kCPU).type());
    set_up_problem();
  }

  // What the rooms without LibTorch refuse is a c10::ValueError here. The exceptions of users' code
  // are passed on as they are.
  PlanReport run() {
    try {
      return choose();
    } catch (const std::invalid_argument& error) {
      if (in_users_code_) throw;
      TORCH_CHECK_VALUE(false, error.what());
    }
  }

 private:
  PlanReport choose() {
    correct_by_plans(problem_.limits, kMostPlans, [&](const std::vector<int64_t>& limits) {
      problem_.limits = limits;
      return attempt(/*least=*/false);
    });
    if (!report_ && memory_model_) {
      // With reduced limits the search continues towards less memory and may find a candidate that
      // fits.
      for (int64_t& limit : problem_.limits) limit = std::min(limit, options_.memory() / 4);
      (void)attempt(/*least=*/true);
    }
    if (options_.machine().host_bandwidth > 0) add_offloads();
    if (!report_) nothing_fits(*nearest_);
    return *std::move(report_);
  }

  // Searches, and plans the memory of what the search finds. Sets report_ if that fits. Returns the
  // errors of the profile on the devices that the plan exceeds; none if correcting them is of no
  // use. `least`: whether the search looks for the least memory.
  PredictionErrors attempt(bool least) {
    tell("searching");
    PlanSearch search = search_plan(problem_);
    if (!search.best.fits() && !memory_model_) {
      consider(search.best, memory_of_profile(search.best));
      return std::nullopt;
    }
    // The profile may be wrong about a small excess and about which candidate is nearest. So if
    // nothing fits by the profile, the memory of several candidates is planned.
    std::vector<PlanCandidate> candidates = {search.best};
    if (!search.best.fits()) add_nearest(search.others, candidates);
    Memory memory;
    for (size_t k = 0; k < candidates.size(); ++k) {
      memory = memory_of(candidates[k]);
      if (!fits(memory)) {
        consider(candidates[k], memory);
        continue;
      }
      if (!search.best.fits()) search.others.clear();  // the others do not fit, either
      // The alternatives change the candidate that was nearest by the profile, or were made under
      // reduced limits: they do not belong to the candidate that fits.
      if (k > 0 || least) search.alternatives.clear();
      search.best = candidates[k];
      search.best.excess = 0;
      found_ = search;
      found_live_ = memory.live;
      report_ = report(std::move(search), memory);
      return std::nullopt;
    }
    if (!search.best.fits()) return std::nullopt;
    std::vector<PredictionError> errors;
    for (size_t d = 0; d < memory.needed.size(); ++d) {
      if (memory.needed[d] <= options_.memory()) continue;
      errors.push_back({d, memory.needed[d] - search.best.memory[d], /*exceeds=*/true});
    }
    return errors;
  }

  // Replaces the choice by one with offloads: by itself if the least memory is wanted, otherwise by
  // a faster one that does not fit without.
  void add_offloads() {
    tell("offloads");
    std::vector<std::vector<PlanCandidate>> candidates;  // as offloaded() gives each
    const double more_time = options_.least_memory().value_or(0.0);
    const bool least = report_ && options_.least_memory();
    if (least) {
      candidates.push_back(offloaded(problem_, found_.best, more_time));
    } else if (options_.memory() > 0) {
      PlanProblem unlimited = problem_;
      unlimited.limits.clear();
      PlanSearch all = search_plan(unlimited);
      const double step = report_ ? report_->plan.step : std::numeric_limits<double>::infinity();
      candidates = offloaded_candidates(problem_, all, more_time, step, options_.memory(),
                                        static_cast<size_t>(kMostPlans));
      if (!report_) {
        candidates.push_back(offloaded(problem_, nearest_->candidate, more_time));
        all.others.clear();  // they may not fit
        found_ = std::move(all);
      }
    }
    for (std::vector<PlanCandidate>& choices : candidates) {
      std::optional<Planned> lowest = lowest_of(std::move(choices), more_time);
      if (!lowest) continue;
      if (!fits(lowest->memory)) {
        if (!report_) consider(lowest->candidate, lowest->memory);
        continue;
      }
      if (least && most(lowest->memory.live) >= most(found_live_)) continue;
      PlanSearch search = found_;
      if (report_ && !least) search.others.insert(search.others.begin(), found_.best);
      search.alternatives.clear();  // they change another choice
      search.best = std::move(lowest->candidate);
      report_ = report(std::move(search), lowest->memory);
      return;
    }
    if (!report_) return;
    report_->no_offloads =
        least ? "within the limits of time and of the host's memory none lowers the memory"
        : options_.memory() == 0
            ? "there is no limit of memory that they would have to keep"
            : "it fits without, and no faster choice was found to fit with them";
  }

  // If nothing fits, adds the candidates whose memory is planned, the nearest first. For each
  // number of micro-batches the nearest candidate is added, and then the nearest of all. The fewest
  // micro-batches are always among them, as the profile does not know that a single micro-batch's
  // gradients are not added to others.
  static void add_nearest(const std::vector<PlanCandidate>& others,
                          std::vector<PlanCandidate>& candidates) {
    std::vector<size_t> firsts;  // the first candidate of each number of micro-batches
    std::vector<size_t> rest;
    std::set<size_t> chunkings = {candidates.front().cut};
    for (size_t k = 0; k < others.size(); ++k) {
      (chunkings.insert(others[k].cut).second ? firsts : rest).push_back(k);
    }
    const auto fewest = std::min_element(firsts.begin(), firsts.end(), [&](size_t a, size_t b) {
      return others[a].schedule->micro_batches() < others[b].schedule->micro_batches();
    });
    if (fewest != firsts.end()) std::rotate(firsts.begin(), fewest, fewest + 1);
    firsts.insert(firsts.end(), rest.begin(), rest.end());
    firsts.resize(std::min(kMostNearest, firsts.size()));
    std::sort(firsts.begin(), firsts.end());
    for (const size_t k : firsts) candidates.push_back(others[k]);
  }

  // [device] The bytes of a candidate.
  struct Memory {
    std::vector<int64_t> live;
    std::vector<int64_t> reserved;  // -1: not planned
    std::vector<int64_t> needed;    // bytes that the device must have
    std::optional<MemoryPlan> plan;
  };

  struct Planned {
    PlanCandidate candidate;
    Memory memory;
  };

  // A candidate that does not fit, and what it needs.
  struct Nearest {
    PlanCandidate candidate;
    int64_t device = 0;  // the device that needs most
    int64_t bytes = 0;
  };

  void consider(const PlanCandidate& candidate, const Memory& memory) {
    Nearest needs = least_for(candidate, memory);
    if (!nearest_ || needs.bytes < nearest_->bytes) nearest_ = std::move(needs);
  }

  void check_offloads() const {
    const double bandwidth = options_.machine().host_bandwidth;
    TORCH_CHECK_VALUE(bandwidth == 0 || options_.device_type() != c10::kCPU,
                      "machine.host_bandwidth is ", bandwidth,
                      ", but the plan is for CPUs, whose memory is the host's; leave it out, or "
                      "plan for CUDA devices");
    TORCH_CHECK_VALUE(bandwidth == 0 || memory_model_, "machine.host_bandwidth is ", bandwidth,
                      ", but only a plan of the memory tells what offloads are worth, not a "
                      "profile; give `make`, too, or a model on the meta device");
    TORCH_CHECK_VALUE(options_.host_memory() >= 0, "host_memory must be at least 0 bytes, got ",
                      options_.host_memory());
    TORCH_CHECK_VALUE(bandwidth > 0 || options_.host_memory() == 0,
                      "host_memory was given, but offloads need to know the link to the host; "
                      "give machine.host_bandwidth");
    if (!options_.least_memory()) return;
    TORCH_CHECK_VALUE(bandwidth > 0,
                      "least_memory was given, but offloads need to know the link to the host; "
                      "give machine.host_bandwidth");
    TORCH_CHECK_VALUE(*options_.least_memory() >= 0 && std::isfinite(*options_.least_memory()),
                      "least_memory must be finite and at least 0, got ", *options_.least_memory());
  }

  void tell(const std::string& note) {
    if (!options_.progress()) return;
    in_users_code_ = true;
    options_.progress()(note);
    in_users_code_ = false;
  }

  void set_up_problem() {
    problem_.devices = options_.devices();
    if (options_.memory() > 0) {
      problem_.limits.assign(static_cast<size_t>(options_.devices()), options_.memory());
    }
    if (!options_.checkpoints().empty()) problem_.checkpoints = options_.checkpoints();
    problem_.schedules = options_.schedules();
    problem_.stages_per_device = options_.stages_per_device();
    problem_.machine = options_.machine();
    problem_.machine.param_scale = param_scale(options_.optimizer(), options_.zero_grad());
    problem_.budget = options_.budget();
    if (options_.progress()) problem_.progress = [this](const std::string& note) { tell(note); };
    const std::vector<int64_t> all_pieces = internal::pieces_of(model_);
    for (const LayerRange& range : joined_layers(all_pieces)) {
      problem_.machine.keep_together.push_back(range);
    }
    const auto pieces = static_cast<int64_t>(all_pieces.size());
    TORCH_CHECK_VALUE(options_.devices() <= pieces, options_.devices(),
                      " devices, but the model has ", pieces,
                      " layers that may be separated, and a device needs one; give ", pieces,
                      " devices or fewer");
    // from the number of micro-batches to the chunks that make them
    std::map<int64_t, int64_t> known;
    for (const int64_t count : chunks_to_try(options_.chunks(), *model_, rows_)) {
      known.emplace(chunk_sizes(rows_, count).micro_batches, count);
    }
    for (const auto& [micro_batches, count] : known) add_chunking(count);
  }

  void add_chunking(int64_t chunks) {
    const ChunkSizes sizes = chunk_sizes(rows_, chunks);
    Chunking chunking;
    chunking.chunks = chunks;
    chunking.sizes.assign(static_cast<size_t>(sizes.micro_batches), 1.0);
    const int64_t last = rows_ - sizes.rows * (sizes.micro_batches - 1);
    chunking.sizes.back() = static_cast<double>(last) / static_cast<double>(sizes.rows);
    chunking.profile = profile_of(sizes.rows);
    problem_.chunkings.push_back(std::move(chunking));
  }

  Profile profile_of(int64_t rows) {
    for (const Profile& profile : options_.profiles()) {
      if (profile.batch_rows != rows) continue;
      TORCH_CHECK_VALUE(profile.layers.size() == model_->size(), "a profile of ",
                        profile.layers.size(), " layers was given for a model of ", model_->size());
      if (profile.autocast) check_autocast(rows, *profile.autocast);
      check_deferred(profile);
      if (profile.shared_inputs) {
        std::vector<int64_t> shared = options_.shared_inputs();
        std::sort(shared.begin(), shared.end());
        TORCH_CHECK_VALUE(*profile.shared_inputs == shared,
                          "a profile was given that shares the inputs (",
                          absl::StrJoin(*profile.shared_inputs, ","),
                          ") between micro-batches, the options share (",
                          absl::StrJoin(shared, ","), "); give the options of the profile");
      }
      return profile;
    }
    const std::string note =
        absl::StrFormat("%s micro-batches of %d rows", on_meta_ ? "counting" : "measuring", rows);
    tell(note);
    if (on_meta_) {
      NominalDevice speed = options_.speed();
      speed.type = options_.device_type();
      return profile_on_meta(model_, first_rows(sample_, rows, options_.shared_inputs()), speed,
                             options_.shared_inputs(), options_.deferred_batch_norm());
    }
    check_autocast(rows, autocast_name(device_of(model_, sample_, c10::kCPU).type()));
    return profile(model_, sample_,
                   ProfileOptions()
                       .micro_batch_rows(rows)
                       .shared_inputs(options_.shared_inputs())
                       .deferred_batch_norm(options_.deferred_batch_norm())
                       .timeout(options_.timeout())
                       .cpu_threads(options_.cpu_threads())
                       .after_each_layer([&] { tell(note); }));
  }

  // Throws if a profile's guard, `autocast`, differs from that of the memory plan, autocast_.
  void check_autocast(int64_t rows, const std::string& autocast) const {
    if (autocast == autocast_) return;
    const std::string type = c10::DeviceTypeName(
        memory_model_ ? options_.device_type() : device_of(model_, sample_, c10::kCPU).type(),
        /*lower_case=*/true);
    TORCH_CHECK_VALUE(
        false, "the profile of micro-batches of ", rows, " rows is one ", under_autocast(autocast),
        ", but the plan is made ", under_autocast(autocast_), " (for devices of type ", type,
        "): its times and bytes are those of other types of numbers; ",
        autocast.empty()
            ? absl::StrCat("call plan() without that guard")
            : absl::StrCat("call plan() inside a guard of autocast to ", autocast,
                           " for that type (--autocast=", autocast, " in the command)"),
        ", or make the profile ", under_autocast(autocast_));
  }

  void check_deferred(const Profile& profile) const {
    const bool is = profile.deferred_batch_norm;
    if (is == options_.deferred_batch_norm()) return;
    TORCH_CHECK_VALUE(
        false, "the profile of micro-batches of ", profile.batch_rows, " rows was made with",
        is ? "" : "out", " deferred batch norms, but the plan with", is ? "out" : "",
        " them: its forwards have ", is ? "" : "not ", "gathered moments; ",
        is ? "give PlanOptions::deferred_batch_norm(true) (--deferred_batch_norm in the command)"
           : "leave PlanOptions::deferred_batch_norm (--deferred_batch_norm in the command) out",
        ", or make the profile again");
  }

  static Memory memory_of_profile(const PlanCandidate& candidate) {
    Memory memory;
    memory.live = memory.needed = candidate.memory;
    memory.reserved.assign(candidate.memory.size(), -1);
    return memory;
  }

  Memory memory_of(const PlanCandidate& candidate) {
    Memory memory = memory_of_profile(candidate);
    const size_t devices = candidate.memory.size();
    if (!memory_model_) return memory;
    ++memory_plans_;
    const std::string note = absl::StrCat("planning memory, plan ", memory_plans_);
    tell(note);
    in_users_code_ = true;  // the layers, the loss and the optimizer
    memory.plan = memory_plan(
        *memory_model_, sample_, options_.targets(),
        options_.loss() ? options_.loss() : LossFn(sum_of_first_output),
        MemoryPlanOptions(candidate.balance)
            .chunks(candidate.chunks)
            .shared_inputs(options_.shared_inputs())
            .deferred_batch_norm(options_.deferred_batch_norm())
            .partition_checkpoints(candidate.checkpoints)
            .schedule([schedule = *candidate.schedule](int64_t, int64_t) { return schedule; })
            .device_of_stage(candidate.schedule->placement().worker_of_stage())
            .optimizer(options_.optimizer())
            .zero_grad(options_.zero_grad())
            .device_type(options_.device_type())
            .progress([&](int64_t, int64_t) {
              if (options_.progress()) options_.progress()(note);
            }));
    in_users_code_ = false;
    for (size_t d = 0; d < devices; ++d) {
      const DeviceMemory& device = memory.plan->devices[d];
      memory.live[d] = device.peak.bytes;
      memory.reserved[d] = device.reserved;
      memory.needed[d] = bytes_without_limit(*memory.plan, d);
      if (options_.memory() == 0) continue;
      const std::optional<int64_t> within = bytes_within(*memory.plan, d, options_.memory());
      if (!within) continue;
      memory.needed[d] = *within;
      if (options_.device_type() != c10::kCPU) memory.reserved[d] = *within;
    }
    return memory;
  }

  // Returns, of the choices that offloaded() gave, the one whose predicted peak is the lowest, or a
  // faster one whose memory plan is as low: a prediction may be lower where the plan is not. Faster
  // ones are planned in steps that grow, while they are as low, so not all of them are planned. One
  // that fits is never given up for one that does not. Where the first needs more of the host's
  // memory than it may, choices with fewer offloads take the place of all. None if nothing is
  // gained then.
  std::optional<Planned> lowest_of(std::vector<PlanCandidate> choices, double more_time) {
    if (choices.empty()) return std::nullopt;
    const int64_t limit = options_.host_memory();
    const auto allowed = [&](const Memory& memory) {
      return limit == 0 || most(memory.plan->pinned) <= limit;
    };
    Planned lowest{choices.front(), memory_of(choices.front())};
    if (!allowed(lowest.memory)) {
      choices =
          offloaded(problem_, lowest.candidate, more_time,
                    cells_within(*lowest.candidate.schedule, lowest.memory.plan->pinned, limit));
      if (choices.empty()) return std::nullopt;
      lowest = {choices.front(), memory_of(choices.front())};
      if (!allowed(lowest.memory)) return std::nullopt;
    }
    size_t as_low = 0, higher = choices.size();  // indices
    for (size_t stride = 1; as_low + 1 < higher;) {
      const size_t next = std::min(as_low + stride, higher - 1);
      Memory memory = memory_of(choices[next]);
      if (allowed(memory) && most(memory.live) <= most(lowest.memory.live) &&
          (fits(memory) || !fits(lowest.memory))) {
        lowest = {choices[next], std::move(memory)};
        as_low = next;
        stride *= 2;
      } else {
        higher = next;
        stride = 1;
      }
    }
    return lowest;
  }

  // Finds the least memory with which a candidate runs. This may be less than the allocator would
  // reserve, because the allocator gives back what it has cached before it runs out.
  Nearest least_for(const PlanCandidate& candidate, const Memory& memory) const {
    Nearest nearest;
    nearest.candidate = candidate;
    const auto worst = std::max_element(memory.needed.begin(), memory.needed.end());
    nearest.device = worst - memory.needed.begin();
    nearest.bytes = *worst;
    if (!memory.plan || options_.device_type() == c10::kCPU) return nearest;
    int64_t too_little = most(memory.live) - 1;
    for (int k = 0; k < kBisections && nearest.bytes - too_little > 1; ++k) {
      const int64_t capacity = too_little + (nearest.bytes - too_little) / 2;
      const std::vector<int64_t> reserved = peak_reserved(memory.plan->trace, capacity);
      if (*std::min_element(reserved.begin(), reserved.end()) < 0) {
        too_little = capacity;
        continue;
      }
      nearest.device = std::max_element(reserved.begin(), reserved.end()) - reserved.begin();
      nearest.bytes = most(reserved);
    }
    return nearest;
  }

  bool fits(const Memory& memory) const {
    return options_.memory() == 0 || most(memory.needed) <= options_.memory();
  }

  static int64_t most(const std::vector<int64_t>& bytes) {
    return *std::max_element(bytes.begin(), bytes.end());
  }

  std::string text_of(const PlanCandidate& candidate) const {
    const int64_t cells = offloaded_cells(*candidate.schedule);
    return absl::StrFormat("%d micro-batches; %s%s; balance %s; checkpoint %s",
                           candidate.schedule->micro_batches(), candidate.schedule_name,
                           cells > 0 ? absl::StrCat(" with ", cells, " cells on the host") : "",
                           absl::StrJoin(candidate.balance, ", "),
                           absl::StrJoin(names_of(candidate.checkpoints), ", "));
  }

  [[noreturn]] void nothing_fits(const Nearest& nearest) const {
    TORCH_CHECK_VALUE(false, "no allowed configuration fits on ",
                      text::counted(options_.devices(), "device"), " of ",
                      bytes_text(options_.memory()), "; the closest (", text_of(nearest.candidate),
                      ") needs ", bytes_text(nearest.bytes), " on device ", nearest.device,
                      "; give devices of at least that (", nearest.bytes,
                      " bytes), more devices, fewer rows, or more to choose from");
  }

  PlanReport report(PlanSearch search, const Memory& memory) {
    const PlanCandidate& best = search.best;
    const Chunking& chunking = problem_.chunkings[best.cut];
    PlanReport report;
    report.plan.profiled_on = chunking.profile.device;
    report.plan.autocast = autocast_;  // the profile's, if the profile has one
    report.plan.deferred_batch_norm = options_.deferred_batch_norm();
    report.plan.rows = rows_;
    report.plan.balance = best.balance;
    report.plan.chunks = best.chunks;
    report.plan.shared_inputs = options_.shared_inputs();
    report.plan.checkpoints = best.checkpoints;
    report.plan.schedule_name = best.schedule_name;
    report.plan.schedule = *best.schedule;
    report.plan.step = best.step;
    report.plan.lower_bound = std::numeric_limits<double>::infinity();
    for (const Chunking& other : problem_.chunkings) {
      report.plan.lower_bound = std::min(
          report.plan.lower_bound,
          step_lower_bound(other.profile, other.sizes, options_.devices(), problem_.machine));
    }
    report.plan.devices.clear();
    for (size_t d = 0; d < memory.live.size(); ++d) {
      report.plan.devices.push_back(
          {options_.memory(), memory.live[d], memory.reserved[d], best.memory[d]});
    }
    report.memory_planned = memory.plan.has_value();
    if (memory.plan) report.uncertain = memory.plan->uncertain;
    if (memory.plan) report.pinned = memory.plan->pinned;
    report.others = std::move(search.others);
    if (report.others.size() > kMostOthers) report.others.resize(kMostOthers);
    report.alternatives = std::move(search.alternatives);
    report.rows_of_profile = chunking.profile.batch_rows;
    report.examined = search.examined;
    report.exhaustive = search.exhaustive;
    report.memory_plans = memory_plans_;
    report.explanation =
        explain(chunking.profile, best.balance,
                explain_options(problem_, best.cut, *best.schedule, best.checkpoints));
    if (options_.device_type() == c10::kCPU) {
      // The CPU has another allocator; what CUDA's would reserve is not needed there.
      for (PlannedDevice& device : report.plan.devices) device.reserved = -1;
    }
    report.proof = check_plan(report.plan, chunking.profile, chunking.sizes, problem_.machine,
                              memory.plan ? &memory.plan->trace : nullptr);
    const double wait = report.proof.reload_wait + report.proof.offload_wait;
    if (options_.least_memory().value_or(0.0) == 0.0 && wait > kNoWait * report.plan.step) {
      report.proof.problems.push_back(
          absl::StrCat("schedule: actions wait ", wait, " s for the host"));
    }
    if (!report.proof.problems.empty()) {
      throw std::logic_error("the plan does not hold when it is checked: " +
                             absl::StrJoin(report.proof.problems, "; ") + "; please report this");
    }
    for (const Uncertainty& each : report.uncertain) {
      if (each.range) continue;
      report.proof.not_checked.push_back("the memory of " + each.operators + ": " + each.why);
    }
    return report;
  }

  const torch::nn::Sequential model_;
  const Tensors& sample_;
  const PlanOptions& options_;
  int64_t rows_ = 0;
  bool on_meta_ = false;
  std::string autocast_;  // the autocast guard of the plan, as in Profile
  std::optional<torch::nn::Sequential> memory_model_;
  PlanProblem problem_;
  std::optional<PlanReport> report_;
  std::optional<Nearest> nearest_;
  // The choice without offloads, and what its devices hold; of no use without a report.
  PlanSearch found_;
  std::vector<int64_t> found_live_;
  int64_t memory_plans_ = 0;
  bool in_users_code_ = false;  // still true if that has thrown
};

}  // namespace

PlanReport plan(const torch::nn::Sequential& model, const Tensors& sample,
                const PlanOptions& options) {
  return PipelinePlanner(model, sample, options).run();
}

}  // namespace gpipe::balance

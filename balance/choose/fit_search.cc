#include "balance/choose/fit_search.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "balance/choose/corrected_limits.h"
#include "balance/choose/default_chunks.h"
#include "balance/choose/fit_memory.h"
#include "balance/choose/fitting_cut.h"
#include "balance/costs/first_rows.h"
#include "balance/costs/profile.h"
#include "balance/cut/move_cuts.h"
#include "balance/cut/partition.h"
#include "balance/cut/pieces.h"
#include "balance/memory/device_room.h"
#include "balance/step/cut_costs.h"
#include "balance/step/explain.h"
#include "gpipe/batch_size.h"
#include "gpipe/chunk_sizes.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "gpipe/schedule/schedule.h"
#include "meta/meta_scope.h"
#include "text/counted.h"
#include "text/memory_size.h"

namespace gpipe::balance {
namespace {

// A cut whose predicted memory exceeds a device by more than this share is not planned: plans and
// predictions differ by less.
constexpr double kHopeless = 0.15;
// The same share after a plan has corrected the limits. It is smaller, because predictions are
// nearer to plans then.
constexpr double kHopelessAfterPlan = 0.02;
// If nothing fits, the fit that exceeds the devices least is searched for. The number of candidates
// whose memory is planned then, the number of cuts of each, and the number of cuts next to the
// nearest.
constexpr size_t kMostNearest = 6;
constexpr int kMostNearestCuts = 2;
constexpr int64_t kMostNextTo = 18;
// The precision, as a share of a device's room, of the bytes that a device needs.
constexpr double kNeededShare = 1.0 / 256;

// Makes meta tensors of the same shapes and types.
Tensors on_meta(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      result.emplace_back();
      continue;
    }
    result.push_back(at::empty(tensor.sizes(), tensor.options().device(at::kMeta)));
  }
  return result;
}

// Makes a mini-batch of `rows` rows. Each tensor has storage of its own, as in a real mini-batch.
Tensors smaller(const Tensors& tensors, int64_t rows, const std::vector<int64_t>& shared) {
  Tensors result;
  for (const at::Tensor& part : first_rows(tensors, rows, shared)) {
    result.push_back(part.defined() ? at::empty(part.sizes(), part.options()) : part);
  }
  return result;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) bytes += tensor.numel() * static_cast<int64_t>(tensor.itemsize());
  }
  return bytes;
}

int64_t rows_of(const Tensors& inputs, const std::vector<int64_t>& shared) {
  const int64_t rows = batch_size(inputs, "input", shared);
  TORCH_CHECK_VALUE(rows > 0, "the mini-batch has no rows; give inputs with at least one");
  return rows;
}

// A number of micro-batches and a checkpoint mode.
struct Candidate {
  int64_t chunks = 1;  // as given to the pipeline
  int64_t rows = 1;    // rows of a micro-batch
  int64_t micro_batches = 1;
  Checkpoint checkpoint = Checkpoint::kNever;
  double step = 0;  // predicted seconds of a step for the best cut without limits
};

// A search for one model.
class FitSearch {
 public:
  // `scale`: bytes that training needs for each byte of a parameter.
  FitSearch(const Training& training, const std::vector<int64_t>& device_bytes,
            const FitOptions& options, double scale, std::string name, FewLayers few_layers)
      : training_(training),
        options_(options),
        scale_(scale),
        name_(std::move(name)),
        inputs_(on_meta(training.inputs)),
        targets_(on_meta(training.targets)),
        batch_(rows_of(inputs_, training.shared_inputs)),
        model_(make(training)),
        pieces_(internal::pieces_of(model_)),
        keep_together_(joined_layers(pieces_)) {
    for (const int64_t bytes : device_bytes) room_.push_back(bytes - options.margin());
    if (few_layers == FewLayers::kRefused) check_layers();
    room_.resize(std::min(room_.size(), pieces_.size()));
    for (const at::Tensor& parameter : model_->parameters()) {
      state_ += static_cast<double>(bytes_of({parameter})) * scale;
    }
    for (const at::Tensor& buffer : model_->buffers()) {
      state_ += static_cast<double>(bytes_of({buffer}));
    }
    add_candidates();
    check_schedule();
  }

  // Finds the fit with the shortest predicted step.
  Fit fastest() {
    order_by_step();
    for (const Candidate& candidate : candidates_) {
      if (best_ && !(candidate.step < best_->step)) break;
      try_fastest(candidate);
    }
    if (!best_) try_nearest();
    return result();
  }

  // Tells whether the model fits at all, judged by the first micro-batches. `explain`: also find
  // out how much memory is missing if it certainly does not fit.
  Fit smallest(bool explain) {
    if (!explain && is_hopeless()) return result();
    for (const Candidate& candidate : thriftiest()) {
      try_smallest(candidate, /*whole=*/false, /*at_least=*/explain ? 1 : 0, kMostPlans);
      if (best_ || !nearest_) break;
    }
    return result();
  }

 private:
  static torch::nn::Sequential make(const Training& training) {
    TORCH_CHECK_VALUE(training.make != nullptr,
                      "Training::make is empty; give a function that makes the model");
    TORCH_CHECK_VALUE(training.loss != nullptr,
                      "Training::loss is empty; give the function of outputs and targets");
    const MetaScope scope;
    return training.make();
  }

  void add_candidates() {
    std::vector<Checkpoint> modes = options_.checkpoints();
    if (modes.empty()) modes = {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways};
    for (const int64_t count : chunks_to_try(options_.chunks(), *model_, batch_)) {
      Candidate candidate;
      candidate.chunks = count;
      const ChunkSizes sizes = chunk_sizes(batch_, count);
      candidate.rows = sizes.rows;
      candidate.micro_batches = sizes.micro_batches;
      for (const Checkpoint mode : modes) {
        candidate.checkpoint = mode;
        candidates_.push_back(candidate);
      }
    }
  }

  void report(const std::string& what) const {
    if (options_.progress()) options_.progress()(name_.empty() ? what : name_ + ": " + what);
  }

  // Whether parameters alone need more than all devices have.
  bool is_hopeless() const {
    double room = 0;
    for (const int64_t bytes : room_) room += static_cast<double>(std::max<int64_t>(bytes, 0));
    return state_ > room;
  }

  const Profile& measured(int64_t rows) {
    const auto found = profiles_.find(rows);
    if (found != profiles_.end()) return found->second;
    report(absl::StrFormat("counting with %d rows", rows));
    return profiles_
        .emplace(rows, profile_on_meta(model_, smaller(inputs_, rows, training_.shared_inputs),
                                       options_.speed(), training_.shared_inputs,
                                       options_.deferred_batch_norm()))
        .first->second;
  }

  // Interpolates between two measured profiles. All fields are linear in the rows, except
  // `workspace`, which is the maximum of linear terms.
  Profile profile(int64_t rows) {
    if (profiles_.count(rows) > 0) return profiles_.at(rows);
    if (candidates_.size() < 2) return measured(rows);
    int64_t least = rows;
    int64_t most = rows;
    for (const Candidate& candidate : candidates_) {
      least = std::min(least, candidate.rows);
      most = std::max(most, candidate.rows);
    }
    if (rows == least || rows == most) return measured(rows);
    const Profile& low = measured(least);
    const Profile& high = measured(most);
    return between(low, high, rows);
  }

  ExplainOptions explain_options(const Candidate& candidate) const {
    ExplainOptions options;
    options.chunks = candidate.micro_batches;
    options.checkpoint = candidate.checkpoint;
    if (options_.schedule()) options.schedule = options_.schedule();
    options.param_scale = scale_;
    return options;
  }

  void order_by_step() {
    for (Candidate& candidate : candidates_) {
      const Profile profile = this->profile(candidate.rows);
      const ExplainOptions options = explain_options(candidate);
      const std::vector<int64_t> balance =
          even_cut(profile, static_cast<int64_t>(room_.size()), keep_together_,
                   candidate.checkpoint != Checkpoint::kNever);
      candidate.step = explain(profile, balance, options).step;
    }
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.step < b.step; });
  }

  // The candidates that may take the least memory. Mostly these have the smallest micro-batches and
  // recompute their activations. If activations are small, it is a single micro-batch, as its
  // gradients are not added to others.
  std::vector<Candidate> thriftiest() const {
    const auto order = [](const Candidate& candidate) {
      return candidate.checkpoint == Checkpoint::kAlways       ? 0
             : candidate.checkpoint == Checkpoint::kExceptLast ? 1
                                                               : 2;
    };
    std::vector<Candidate> smallest = candidates_;
    std::stable_sort(smallest.begin(), smallest.end(), [&](const Candidate& a, const Candidate& b) {
      return std::make_pair(a.rows, order(a)) < std::make_pair(b.rows, order(b));
    });
    std::vector<Candidate> result = {smallest.front()};
    if (smallest.size() > 1 && smallest[1].rows == smallest[0].rows) result.push_back(smallest[1]);
    for (const Candidate& candidate : smallest) {
      if (candidate.micro_batches > 1 || candidate.rows == smallest[0].rows) continue;
      result.push_back(candidate);
      break;
    }
    return result;
  }

  // The largest share by which a device's predicted memory and `more` exceed its limit.
  double excess(const Explanation& explanation, const std::vector<int64_t>& limits,
                const std::vector<int64_t>& more = {}) const {
    double most = -1;
    for (size_t d = 0; d < room_.size(); ++d) {
      const int64_t memory = explanation.partitions[d].memory + (more.empty() ? 0 : more[d]);
      most = std::max(most, static_cast<double>(memory - limits[d]) /
                                static_cast<double>(std::max<int64_t>(room_[d], 1)));
    }
    return most;
  }

  void try_fastest(const Candidate& candidate) {
    if (is_hopeless()) return;
    const Profile profile = this->profile(candidate.rows);
    FittingCutOptions options{room_, keep_together_, explain_options(candidate)};
    bool whole = planned_with_all(candidate);
    bool first = true;
    correct_by_plans(
        room_, kMostPlans, [&](const std::vector<int64_t>& limits) -> PredictionErrors {
          options.limits = limits;
          std::optional<std::vector<int64_t>> cut = fastest_fitting_cut(profile, options);
          if (!cut && !first) return std::nullopt;
          // If no cut is predicted to fit, the nearest one is planned, as the prediction may be
          // wrong.
          if (!cut) cut = smallest_cut(profile, options);
          first = false;
          const Explanation explanation = explain(profile, *cut, options.explain);
          if (excess(explanation, limits) > kHopeless) return std::nullopt;
          if (best_ && !(explanation.step < best_->step)) return std::nullopt;
          Planned planned = plan(candidate, explanation, whole);
          if (planned.fit.fits && !whole) {  // the first micro-batches fit: plan all
            whole = true;
            Planned all = plan(candidate, explanation, whole);
            planned.fit = std::move(all.fit);
            planned.errors.insert(planned.errors.end(), all.errors.begin(), all.errors.end());
          }
          if (!planned.fit.fits) return std::move(planned.errors);
          best_ = std::move(planned.fit);
          return std::nullopt;
        });
  }

  // Finds the nearest fit if nothing fits. Predictions know neither the gaps between blocks nor
  // exactly what is needed for a moment. Therefore several candidates are planned, those with the
  // smallest predicted excess first, and then the cuts next to the nearest one of each.
  void try_nearest() {
    std::vector<std::pair<double, Candidate>> by_excess;
    for (const Candidate& candidate : candidates_) {
      const Profile profile = this->profile(candidate.rows);
      const FittingCutOptions options{room_, keep_together_, explain_options(candidate)};
      const std::vector<int64_t> cut = smallest_cut(profile, options);
      by_excess.emplace_back(
          excess(explain(profile, cut, options.explain), room_, added(candidate, profile, cut)),
          candidate);
    }
    std::stable_sort(by_excess.begin(), by_excess.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Candidate> candidates;
    for (const auto& [predicted, candidate] : by_excess) {
      // A single micro-batch is tried in one mode only, because its backward follows its forward:
      // all modes are the same.
      const bool known = candidate.micro_batches == 1 &&
                         std::any_of(candidates.begin(), candidates.end(),
                                     [](const Candidate& c) { return c.micro_batches == 1; });
      if (!known && candidates.size() < kMostNearest) candidates.push_back(candidate);
    }
    for (const Candidate& candidate : candidates) {
      if (!best_) try_smallest(candidate, /*whole=*/true, kMostNearestCuts, kMostNearestCuts);
    }
    const auto nearest_of = [this](const Candidate& candidate) -> const Fit& {
      return nearest_by_.at({candidate.chunks, candidate.checkpoint});
    };
    if (best_) return;
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](const Candidate& a, const Candidate& b) {
                       return excess(nearest_of(a)) < excess(nearest_of(b));
                     });
    const int64_t until = plans_ + kMostNextTo;
    for (const Candidate& candidate : candidates) {
      for (bool nearer = true; nearer;) {
        const Fit from = nearest_of(candidate);
        for (const std::vector<int64_t>& cut :
             cuts_beside(from.balance, pieces_, /*partition=*/fullest(from))) {
          if (plans_ >= until) return;
          if (!planned_.insert({candidate.chunks, candidate.checkpoint, cut}).second) continue;
          const ExplainOptions options = explain_options(candidate);
          Fit found = plan(candidate, explain(profile(candidate.rows), cut, options),
                           /*whole=*/true)
                          .fit;
          if (!found.fits) continue;
          best_ = std::move(found);
          return;
        }
        nearer = excess(nearest_of(candidate)) < excess(from);
      }
    }
  }

  // [partition] The bytes of a further micro-batch's gradients before they are added, at most those
  // of one layer at a time.
  static std::vector<int64_t> added(const Candidate& candidate, const Profile& profile,
                                    const std::vector<int64_t>& cut) {
    std::vector<int64_t> result(cut.size());
    size_t layer = 0;
    for (size_t d = 0; d < cut.size() && candidate.micro_batches > 1; ++d) {
      for (int64_t k = 0; k < cut[d]; ++k, ++layer) {
        result[d] = std::max(result[d], profile.layers[layer].parameters);
      }
    }
    return result;
  }

  // Plans the smallest cuts. The first `at_least` cuts are planned even if they are predicted to be
  // far from fitting; further ones only if they nearly fit.
  void try_smallest(const Candidate& candidate, bool whole, int at_least, int at_most) {
    const Profile profile = this->profile(candidate.rows);
    const FittingCutOptions options{room_, keep_together_, explain_options(candidate)};
    int k = 0;  // the number of cuts before
    correct_smallest_cut(profile, options, at_most,
                         [&](const Explanation& explanation,
                             const std::vector<int64_t>& limits) -> PredictionErrors {
                           const double hopeless = k == 0 ? kHopeless : kHopelessAfterPlan;
                           if (k++ >= at_least && excess(explanation, limits) > hopeless)
                             return std::nullopt;
                           Planned planned = plan(candidate, explanation, whole);
                           if (!planned.fit.fits) return std::move(planned.errors);
                           best_ = std::move(planned.fit);
                           return std::nullopt;
                         });
  }

  // The number of micro-batches that a plan needs. Under 1F1B a stage keeps no more micro-batches
  // than there are stages, so further ones only enlarge the mini-batch.
  int64_t enough() const { return static_cast<int64_t>(room_.size()) + 2; }

  bool planned_with_all(const Candidate& candidate) const {
    return options_.schedule() || candidate.micro_batches <= enough();
  }

  struct Planned {
    Fit fit;
    std::vector<PredictionError> errors;  // of each device
  };

  // Plans the cut with all micro-batches or with enough() of them. Remembers the nearest fit of
  // those that do not fit.
  Planned plan(const Candidate& candidate, const Explanation& explanation, bool whole) {
    const bool all = whole || planned_with_all(candidate);
    const int64_t rows = all ? batch_ : enough() * candidate.rows;
    const Tensors inputs = smaller(inputs_, rows, training_.shared_inputs);
    const Tensors targets = smaller(targets_, rows, /*shared=*/{});

    Planned planned;
    Fit& fit = planned.fit;
    fit.balance = explanation.balance();
    planned_.insert({candidate.chunks, candidate.checkpoint, fit.balance});
    fit.chunks = candidate.chunks;
    fit.checkpoint = candidate.checkpoint;
    fit.step = explanation.step;
    fit.room = room_;
    const std::string note =
        absl::StrFormat("plan %d: %d micro-batches, %s", ++plans_, candidate.micro_batches,
                        to_text(candidate.checkpoint));
    report(note);
    fit.plan = memory_plan(model_, inputs, targets, training_.loss,
                           memory_options(fit, training_.shared_inputs, options_)
                               .chunks(all ? candidate.chunks : enough())
                               .progress([&](int64_t, int64_t) { report(note); }));

    std::vector<int64_t> left_out(room_.size());
    left_out.front() += bytes_of(inputs_) - bytes_of(inputs);
    left_out.back() += bytes_of(targets_) - bytes_of(targets);
    fit.fits = true;
    for (size_t d = 0; d < room_.size(); ++d) {
      DeviceMemory& device = fit.plan.devices[d];
      const int64_t without_limit = bytes_without_limit(fit.plan, d);
      const int64_t room = room_[d] - left_out[d];
      device.reserved = bytes_within(fit.plan, d, room).value_or(-1);
      device.peak.bytes += left_out[d];
      device.peak.by_use[static_cast<size_t>(MemoryUse::kData)] += left_out[d];
      if (device.reserved >= 0) {
        device.reserved += left_out[d];
        fit.needed.push_back(device.reserved);
      } else {
        fit.fits = false;
        const auto precision = std::max<int64_t>(
            1, static_cast<int64_t>(kNeededShare * static_cast<double>(room_[d])));
        fit.needed.push_back(left_out[d] + least_room(fit.plan, d, std::max<int64_t>(room, 0),
                                                      without_limit, precision));
      }
      // If the plan fits, only its live bytes count, because the allocator gives cached memory back
      // before it runs out of room. If it does not fit, the room that it would need counts.
      const bool exceeds = device.reserved < 0;
      const int64_t actual = exceeds ? fit.needed[d] : device.peak.bytes;
      planned.errors.push_back({d, actual - explanation.partitions[d].memory, exceeds});
    }
    // The caller needs nothing of the trace but the names of the turns.
    fit.plan.trace.blocks.clear();
    fit.plan.trace.events.clear();
    if (fit.fits) return planned;
    if (!nearest_ || excess(fit) < excess(*nearest_)) nearest_ = fit;
    const auto [known, is_first] =
        nearest_by_.emplace(std::make_pair(candidate.chunks, candidate.checkpoint), fit);
    if (!is_first && excess(fit) < excess(known->second)) known->second = fit;
    return planned;
  }

  void check_layers() const {
    TORCH_CHECK_VALUE(pieces_.size() >= room_.size(), room_.size(),
                      " devices were given, but the model has ", model_->size(), " layers",
                      pieces_.size() < model_->size() ? ", of which " : "",
                      pieces_.size() < model_->size() ? absl::StrCat(pieces_.size()) : "",
                      pieces_.size() < model_->size() ? " may be separated" : "",
                      "; a device needs at least one: give fewer devices");
  }

  // Throws for a schedule with several stages on a device. Each would be planned as if it had the
  // whole device. All candidates have the same stages, so one of them is enough.
  void check_schedule() const {
    if (!options_.schedule()) return;
    const Schedule schedule =
        options_.schedule()(static_cast<int64_t>(room_.size()), candidates_.front().micro_batches);
    TORCH_CHECK_VALUE(schedule.workers() == schedule.stages(), "the schedule has ",
                      schedule.stages(), " stages on ", text::counted(schedule.workers(), "device"),
                      ", and fit() plans one stage on each device; give a schedule like that "
                      "(1f1b or zb-h1, say), or call plan() (#include \"balance/plan.h\"), which "
                      "also puts several stages on a device");
  }

  static int64_t excess(const Fit& fit) {
    int64_t most = std::numeric_limits<int64_t>::min();
    for (size_t d = 0; d < fit.room.size(); ++d) {
      most = std::max(most, fit.needed[d] - fit.room[d]);
    }
    return most;
  }

  // The device that is exceeded most.
  static size_t fullest(const Fit& fit) {
    size_t worst = 0;
    for (size_t d = 1; d < fit.room.size(); ++d) {
      if (fit.needed[d] - fit.room[d] > fit.needed[worst] - fit.room[worst]) worst = d;
    }
    return worst;
  }

  Fit result() {
    Fit result = best_ ? std::move(*best_) : nearest_ ? std::move(*nearest_) : Fit();
    result.plans = plans_;
    result.room = room_;
    if (!result.fits) result.limit = limit_of(result);
    return result;
  }

  std::string limit_of(const Fit& fit) const {
    std::string text;
    if (is_hopeless()) {
      const auto state = static_cast<int64_t>(std::llround(state_));
      const text::MemoryUnit unit = text::memory_unit(state);
      text = absl::StrFormat(
          "parameters, gradients, optimizer state and buffers take %s %s, all devices together "
          "have room for %s",
          text::in_unit(state, unit, 2), unit.name,
          text::in_unit(std::accumulate(room_.begin(), room_.end(), int64_t{0}), unit, 2));
      if (fit.plan.devices.empty()) return text;
      text += "; ";
    }
    if (fit.plan.devices.empty()) return "as predicted, a device lacks more than 15% of its room";
    const size_t worst = fullest(fit);
    const DeviceMemory& device = fit.plan.devices[worst];
    const auto at_peak = [&](MemoryUse use) { return device.peak.of(use); };
    const text::MemoryUnit unit = text::memory_unit(fit.needed[worst]);
    const auto shown = [&unit](int64_t bytes) { return text::in_unit(bytes, unit, 2); };
    // The missing memory is shown in a unit of its own, because it may be far smaller than the
    // other sizes.
    const int64_t lacking = fit.needed[worst] - fit.room[worst];
    const text::MemoryUnit own_unit = text::memory_unit(lacking);
    text += absl::StrFormat(
        "device %d needs %s %s but has room for %s, %s %s too little: parameters %s, gradients %s, "
        "optimizer state %s, activations %s, workspace %s, other %s, gaps %s",
        worst, shown(fit.needed[worst]), unit.name, shown(fit.room[worst]),
        text::in_unit(lacking, own_unit, 2), own_unit.name, shown(at_peak(MemoryUse::kParameters)),
        shown(at_peak(MemoryUse::kGradients)), shown(at_peak(MemoryUse::kOptimizerState)),
        shown(at_peak(MemoryUse::kActivations) + at_peak(MemoryUse::kReceived)),
        shown(at_peak(MemoryUse::kWorkspace)),
        shown(at_peak(MemoryUse::kBuffers) + at_peak(MemoryUse::kData)),
        shown(std::max<int64_t>(fit.needed[worst] - device.peak.bytes, 0)));
    return text;
  }

  const Training& training_;
  const FitOptions& options_;
  const double scale_;
  const std::string name_;
  const Tensors inputs_;
  const Tensors targets_;
  const int64_t batch_;
  torch::nn::Sequential model_;
  const std::vector<int64_t> pieces_;
  const std::vector<LayerRange> keep_together_;
  std::vector<int64_t> room_;  // [device]
  double state_ = 0;           // bytes that no cut changes
  std::vector<Candidate> candidates_;
  std::map<int64_t, Profile> profiles_;  // by the rows of a micro-batch
  std::optional<Fit> best_;
  std::optional<Fit> nearest_;
  std::map<std::pair<int64_t, Checkpoint>, Fit> nearest_by_;  // chunks and mode
  std::set<std::tuple<int64_t, Checkpoint, std::vector<int64_t>>> planned_;
  int64_t plans_ = 0;
};

}  // namespace

Fit fastest_fit(const Training& training, const std::vector<int64_t>& device_bytes,
                const FitOptions& options, double scale, const std::string& name,
                FewLayers few_layers) {
  return FitSearch(training, device_bytes, options, scale, name, few_layers).fastest();
}

Fit smallest_fit(const Training& training, const std::vector<int64_t>& device_bytes,
                 const FitOptions& options, double scale, const std::string& name, bool explain) {
  return FitSearch(training, device_bytes, options, scale, name, FewLayers::kLeaveDevices)
      .smallest(explain);
}

}  // namespace gpipe::balance

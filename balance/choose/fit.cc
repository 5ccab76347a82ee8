#include "balance/choose/fit.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "balance/choose/default_chunks.h"
#include "balance/choose/fit_memory.h"
#include "balance/choose/fitting_cut.h"
#include "balance/costs/first_rows.h"
#include "balance/costs/profile.h"
#include "balance/cut/partition.h"
#include "balance/memory/caching_allocator.h"
#include "balance/memory/device_room.h"
#include "balance/memory/param_scale.h"
#include "balance/step/explain.h"
#include "gpipe/batch_size.h"
#include "gpipe/cut_sizes.h"
#include "gpipe/internal/layer_runs/layer_runs.h"
#include "meta/meta_scope.h"
#include "text/memory_size.h"

namespace gpipe::balance {
namespace {

// How often a cut is corrected after a plan.
constexpr int kMostPlans = 6;
// A cut whose predicted memory exceeds a device by more than this share is not planned: plans and
// predictions differ by less.
constexpr double kHopeless = 0.15;
// The same share after a plan has corrected the prediction.
constexpr double kHopelessAfterPlan = 0.02;
// If nothing fits: the number of candidates whose memory is planned to find the nearest, the number
// of cuts of each, and the number of cuts next to the nearest.
constexpr size_t kMostNearest = 6;
constexpr int kMostNearestCuts = 2;
constexpr int64_t kMostNextTo = 18;
// The precision, as a share of a device's room, of the bytes that a device needs.
constexpr double kNeededShare = 1.0 / 256;

int64_t sum(const std::vector<int64_t>& values) {
  int64_t result = 0;
  for (const int64_t value : values) result += value;
  return result;
}

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

// Gives each tensor storage of its own, as a real smaller mini-batch has.
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

// Returns the least room in which a device can run through the trace, to `precision` bytes. `low`
// bytes must be too few, `high` must be enough.
int64_t least_room(const MemoryTrace& trace, size_t device, int64_t low, int64_t high,
                   int64_t precision) {
  MemoryTrace own;
  own.devices = trace.devices;
  own.turns = trace.turns;
  own.blocks = trace.blocks;
  for (const MemoryEvent& event : trace.events) {
    if (trace.blocks[static_cast<size_t>(event.block)].device == static_cast<int32_t>(device)) {
      own.events.push_back(event);
    }
  }
  while (high - low > precision) {
    const int64_t middle = low + (high - low) / 2;
    (peak_reserved(own, middle)[device] < 0 ? low : high) = middle;
  }
  return high;
}

// A number of micro-batches and a checkpoint mode.
struct Candidate {
  int64_t chunks = 1;  // as given to the pipeline
  int64_t rows = 1;    // of a micro-batch
  int64_t micro_batches = 1;
  Checkpoint checkpoint = Checkpoint::kNever;
  double step = 0;  // predicted seconds of a step for the best cut without limits
};

// A search for one model.
class Search {
 public:
  // `scale`: bytes that training needs for each byte of a parameter.
  Search(const Training& training, const std::vector<int64_t>& device_bytes,
         const FitOptions& options, double scale, std::string name)
      : training_(training),
        options_(options),
        scale_(scale),
        name_(std::move(name)),
        inputs_(on_meta(training.inputs)),
        targets_(on_meta(training.targets)),
        batch_(rows_of(inputs_, training.shared_inputs)),
        model_(make(training)),
        pieces_(internal::pieces_of(model_)) {
    for (const int64_t bytes : device_bytes) room_.push_back(bytes - options.margin());
    int64_t layer = 0;
    for (const int64_t piece : pieces_) {
      if (piece > 1) keep_together_.push_back({layer, layer + piece - 1});
      layer += piece;
    }
    for (const at::Tensor& parameter : model_->parameters()) {
      state_ += static_cast<double>(bytes_of({parameter})) * scale;
    }
    for (const at::Tensor& buffer : model_->buffers()) {
      state_ += static_cast<double>(bytes_of({buffer}));
    }
    add_candidates();
  }

  bool has_enough_layers() const { return pieces_.size() >= room_.size(); }

  void check_layers() const {
    TORCH_CHECK_VALUE(has_enough_layers(), room_.size(), " devices were given, but the model has ",
                      model_->size(), " layers",
                      pieces_.size() < model_->size() ? ", of which " : "",
                      pieces_.size() < model_->size() ? absl::StrCat(pieces_.size()) : "",
                      pieces_.size() < model_->size() ? " may be separated" : "",
                      "; a device needs at least one: give fewer devices");
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
    std::vector<int64_t> chunks = options_.chunks();
    if (chunks.empty()) chunks = default_chunks(*model_, batch_);
    std::vector<Checkpoint> modes = options_.checkpoints();
    if (modes.empty()) modes = {Checkpoint::kNever, Checkpoint::kExceptLast, Checkpoint::kAlways};
    for (const int64_t count : chunks) {
      TORCH_CHECK_VALUE(count >= 1 && count <= batch_, "chunks has ", count, ", expected 1 to the ",
                        batch_, " rows of the mini-batch");
      Candidate candidate;
      candidate.chunks = count;
      const CutSizes cut = cut_sizes(batch_, count);
      candidate.rows = cut.rows;
      candidate.micro_batches = cut.micro_batches;
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
      std::vector<double> costs;
      for (const LayerProfile& layer : profile.layers) {
        costs.push_back(layer.backward +
                        layer.forward * (candidate.checkpoint == Checkpoint::kNever ? 1 : 2));
      }
      PartitionOptions cut;
      cut.keep_together = keep_together_;
      const std::vector<int64_t> balance =
          partition(costs, static_cast<int64_t>(room_.size()), cut);
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
    for (int k = 0; k < kMostPlans; ++k) {
      std::optional<std::vector<int64_t>> cut = fastest_fitting_cut(profile, options);
      if (!cut && k > 0) return;
      if (!cut) cut = smallest_cut(profile, options);  // the prediction may be wrong
      const Explanation explanation = explain(profile, *cut, options.explain);
      if (excess(explanation, options.limits) > kHopeless) return;
      if (best_ && !(explanation.step < best_->step)) return;
      Fit found = plan(candidate, explanation, whole, options.limits);
      if (found.fits && !whole) {  // the first micro-batches fit: plan all
        whole = true;
        found = plan(candidate, explanation, whole, options.limits);
      }
      if (!found.fits) continue;
      best_ = std::move(found);
      return;
    }
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
      // All modes are the same for a single micro-batch: its backward follows its forward.
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
        for (const std::vector<int64_t>& cut : next_to(fullest(from), from.balance)) {
          if (plans_ >= until) return;
          if (!planned_.insert({candidate.chunks, candidate.checkpoint, cut}).second) continue;
          std::vector<int64_t> limits = room_;
          const ExplainOptions options = explain_options(candidate);
          Fit found = plan(candidate, explain(profile(candidate.rows), cut, options),
                           /*whole=*/true, limits);
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

  // The cuts in which one end of the partition is moved by a piece, outwards or inwards. A
  // partition with fewer layers may need more memory, as the gaps between its blocks change.
  std::vector<std::vector<int64_t>> next_to(size_t partition,
                                            const std::vector<int64_t>& cut) const {
    std::vector<std::vector<int64_t>> result;
    const auto move = [&](size_t from, size_t to, int64_t layers) {
      if (cut[from] == layers) return;
      result.push_back(cut);
      result.back()[from] -= layers;
      result.back()[to] += layers;
    };
    int64_t begin = 0;
    size_t j = 0;           // the partition of the piece
    int64_t past = cut[0];  // where that partition ends
    int64_t first = 0;      // where that partition begins
    for (const int64_t piece : pieces_) {
      if (begin == past) {
        first = past;
        past += cut[++j];
      }
      const int64_t end = begin + piece;
      const auto is_end = [&](size_t a, size_t b) { return a == partition || b == partition; };
      if (begin == first && j > 0 && is_end(j, j - 1)) move(j, j - 1, piece);
      if (end == past && j + 1 < cut.size() && is_end(j, j + 1)) move(j, j + 1, piece);
      begin = end;
    }
    return result;
  }

  // Plans the smallest cuts. The first `at_least` cuts are planned even if they are predicted to be
  // far from fitting; further ones only if they nearly fit.
  void try_smallest(const Candidate& candidate, bool whole, int at_least, int at_most) {
    const Profile profile = this->profile(candidate.rows);
    FittingCutOptions options{room_, keep_together_, explain_options(candidate)};
    std::vector<std::vector<int64_t>> tried;
    for (int k = 0; k < at_most; ++k) {
      const std::vector<int64_t> cut = smallest_cut(profile, options);
      if (std::find(tried.begin(), tried.end(), cut) != tried.end()) return;
      const Explanation explanation = explain(profile, cut, options.explain);
      const double hopeless = k == 0 ? kHopeless : kHopelessAfterPlan;
      if (k >= at_least && excess(explanation, options.limits) > hopeless) return;
      tried.push_back(cut);
      Fit found = plan(candidate, explanation, whole, options.limits);
      if (!found.fits) continue;
      best_ = std::move(found);
      return;
    }
  }

  // The number of micro-batches that a plan needs. Under 1F1B a stage keeps no more micro-batches
  // than there are stages, so further ones only enlarge the mini-batch.
  int64_t enough() const { return static_cast<int64_t>(room_.size()) + 2; }

  bool planned_with_all(const Candidate& candidate) const {
    return options_.schedule() || candidate.micro_batches <= enough();
  }

  // Plans the cut with all micro-batches or with enough() of them, and corrects the limits by the
  // error of the prediction. Remembers the nearest fit of those that do not fit.
  Fit plan(const Candidate& candidate, const Explanation& explanation, bool whole,
           std::vector<int64_t>& limits) {
    const bool all = whole || planned_with_all(candidate);
    const int64_t rows = all ? batch_ : enough() * candidate.rows;
    const Tensors inputs = smaller(inputs_, rows, training_.shared_inputs);
    const Tensors targets = smaller(targets_, rows, /*shared=*/{});

    Fit fit;
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
        fit.needed.push_back(left_out[d] + least_room(fit.plan.trace, d, std::max<int64_t>(room, 0),
                                                      without_limit, precision));
      }
      const int64_t predicted = explanation.partitions[d].memory;
      // The allocator would give back some of its cached memory, so only the live bytes count if it
      // fits.
      const int64_t actual = device.reserved < 0 ? fit.needed[d] : device.peak.bytes;
      const int64_t limit = room_[d] - (actual - predicted);
      limits[d] = device.reserved < 0 ? std::min(limits[d], limit) : limit;
    }
    // The caller only needs the names of the turns.
    fit.plan.trace.blocks.clear();
    fit.plan.trace.events.clear();
    if (fit.fits) return fit;
    if (!nearest_ || excess(fit) < excess(*nearest_)) nearest_ = fit;
    const auto [known, is_first] =
        nearest_by_.emplace(std::make_pair(candidate.chunks, candidate.checkpoint), fit);
    if (!is_first && excess(fit) < excess(known->second)) known->second = fit;
    return fit;
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
          text::in_unit(state, unit, 2), unit.name, text::in_unit(sum(room_), unit, 2));
      if (fit.plan.devices.empty()) return text;
      text += "; ";
    }
    if (fit.plan.devices.empty()) return "as predicted, a device lacks more than 15% of its room";
    const size_t worst = fullest(fit);
    const DeviceMemory& device = fit.plan.devices[worst];
    const auto at_peak = [&](MemoryUse use) { return device.peak.of(use); };
    const text::MemoryUnit unit = text::memory_unit(fit.needed[worst]);
    const auto shown = [&unit](int64_t bytes) { return text::in_unit(bytes, unit, 2); };
    // It may be far smaller than the others.
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
  std::vector<LayerRange> keep_together_;
  std::vector<int64_t> room_;  // [device]
  double state_ = 0;           // bytes that no cut changes
  std::vector<Candidate> candidates_;
  std::map<int64_t, Profile> profiles_;  // by rows
  std::optional<Fit> best_;
  std::optional<Fit> nearest_;
  std::map<std::pair<int64_t, Checkpoint>, Fit> nearest_by_;  // chunks and mode
  std::set<std::tuple<int64_t, Checkpoint, std::vector<int64_t>>> planned_;
  int64_t plans_ = 0;
};

void check(const std::vector<int64_t>& device_bytes, const FitOptions& options) {
  TORCH_CHECK_VALUE(!device_bytes.empty(), "no devices were given; give the bytes of each");
  TORCH_CHECK_VALUE(options.margin() >= 0, "margin must be at least 0 bytes, got ",
                    options.margin());
  for (size_t d = 0; d < device_bytes.size(); ++d) {
    TORCH_CHECK_VALUE(device_bytes[d] > 0, "device ", d, " has ", device_bytes[d],
                      " bytes; give numbers above 0");
    TORCH_CHECK_VALUE(device_bytes[d] > options.margin(), "device ", d, " has ", device_bytes[d],
                      " bytes, all of which the margin of ", options.margin(), " takes");
  }
}

}  // namespace

Fit fit(const Training& training, const std::vector<int64_t>& device_bytes,
        const FitOptions& options) {
  check(device_bytes, options);
  Search search(training, device_bytes, options,
                param_scale(options.optimizer(), options.zero_grad()), "");
  search.check_layers();
  return search.fastest();
}

Largest largest(const Family& family, int64_t most, const std::vector<int64_t>& device_bytes,
                const FitOptions& options) {
  check(device_bytes, options);
  TORCH_CHECK_VALUE(family != nullptr, "the family is empty; give a function of its members");
  TORCH_CHECK_VALUE(most >= 1, "most must be at least 1, the first member, got ", most);
  const double scale = param_scale(options.optimizer(), options.zero_grad());
  int64_t plans = 0;
  const auto name = [](int64_t member) { return absl::StrCat("member ", member); };
  const auto try_member = [&](int64_t member, bool explain) {
    const Training training = family(member);
    Search search(training, device_bytes, options, scale, name(member));
    Fit fit;
    if (!search.has_enough_layers()) {
      fit.fits = true;
      return fit;
    }
    fit = search.smallest(explain);
    plans += fit.plans;
    return fit;
  };

  // What fits and what does not.
  int64_t fits = 0;
  int64_t over = 1;
  Fit of_over;
  const auto try_next = [&](int64_t member) {
    Fit fit = try_member(member, /*explain=*/false);
    const bool does = fit.fits;
    if (!does) of_over = std::move(fit);  // the last that fails is `over` in the end
    return does;
  };
  while (over <= most && try_next(over)) {
    fits = over;
    over = over <= most / 2 ? 2 * over : fits == most ? most + 1 : most;
  }
  while (over - fits > 1) {
    const int64_t middle = fits + (over - fits) / 2;
    (try_next(middle) ? fits : over) = middle;
  }

  Largest result;
  result.next_fit = std::move(of_over);
  // One that was refused without a plan may fit, looked at more closely.
  for (; over <= most && result.next_fit.plan.devices.empty(); fits = over++) {
    result.next_fit = try_member(over, /*explain=*/true);
    if (!result.next_fit.fits) break;
    result.next_fit = Fit();
  }
  // All micro-batches may take more than the first ones.
  for (; fits > 0; over = fits--) {
    const Training training = family(fits);
    Search search(training, device_bytes, options, scale, name(fits));
    search.check_layers();
    Fit found = search.fastest();
    plans += found.plans;
    if (found.fits) {
      result.member = fits;
      result.fit = std::move(found);
      break;
    }
    result.next_fit = std::move(found);
  }
  if (over <= most) {
    result.next = over;
  } else {
    result.next_fit = Fit();
  }
  result.fit.plans = plans;
  return result;
}

MemoryPlanOptions memory_options(const Fit& fit, const std::vector<int64_t>& shared_inputs,
                                 const FitOptions& options) {
  return MemoryPlanOptions(fit.balance)
      .chunks(fit.chunks)
      .shared_inputs(shared_inputs)
      .checkpoint(fit.checkpoint)
      .deferred_batch_norm(options.deferred_batch_norm())
      .schedule(options.schedule())
      .optimizer(options.optimizer())
      .zero_grad(options.zero_grad());
}

}  // namespace gpipe::balance

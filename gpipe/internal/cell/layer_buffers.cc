#include "gpipe/internal/cell/layer_buffers.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/internal/tensors/set_version.h"
#include "text/shown.h"

namespace gpipe::internal {
namespace {

constexpr char kHint[] =
    ". Let the layer leave it alone where gpipe::is_recomputing() is true, or use "
    "Checkpoint::kNever for this partition";

constexpr char kTorn[] =
    " was changed by a forward, and a layer of another stage has the same buffer, or one in the "
    "same memory, so that its value would depend on which stage runs first. Give each stage a "
    "buffer of its own, "
    "or keep these layers in one partition";

bool is_plain_on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == c10::kStrided && !tensor.is_quantized();
}

at::Tensor copy_of(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  const at::Tensor alias = tensor.detach();
  return tensor.layout() == c10::kStrided ? alias.clone(at::MemoryFormat::Contiguous)
                                          : alias.clone();
}

bool have_same_form(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.layout() == b.layout() &&
         a.device() == b.device() && a.sizes() == b.sizes();
}

// Whether two plain tensors on the CPU have the same bits.
bool have_same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!have_same_form(a, b)) return false;
  const c10::NoGradGuard no_grad;
  const at::Tensor left = a.detach().resolve_conj().resolve_neg().contiguous();
  const at::Tensor right = b.detach().resolve_conj().resolve_neg().contiguous();
  return left.nbytes() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

bool has_few_bytes(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided &&
         tensor.numel() * static_cast<int64_t>(tensor.element_size()) <= LayerBuffers::kSmallBytes;
}

// The number of owners of the tensor and of its memory. Graphs that have saved the tensor or a view
// of it are among them.
size_t owners_of(const at::Tensor& tensor) {
  return tensor.use_count() + (tensor.has_storage() ? tensor.storage().use_count() : 0);
}

// The elements of `tensor` that an expanded tensor, such as `buffer`, has memory for.
at::Tensor without_repeats(at::Tensor tensor, const at::Tensor& buffer) {
  if (buffer.layout() != c10::kStrided) return tensor;
  for (int64_t k = 0; k < buffer.dim(); ++k) {
    if (buffer.stride(k) == 0 && buffer.size(k) > 1) tensor = tensor.narrow(k, 0, 1);
  }
  return tensor;
}

// Whether the value can be written to the memory that the buffer has.
bool fits(const at::Tensor& buffer, const at::Tensor& value) {
  if (!have_same_form(buffer, value)) return false;
  if (at::has_internal_overlap(buffer) != at::MemOverlap::Yes) return true;
  return at::equal(without_repeats(value, buffer).expand_as(value), value);
}

// Sets the buffer to the value. If other tensors have the buffer's memory, too, the memory stays
// the same; if the value does not fit into it, this throws c10::Error. `name` is called only for
// the error's text.
template <typename Name>
void put(const at::Tensor& buffer, const at::Tensor& value, const Name& name) {
  const c10::NoGradGuard no_grad;
  // A tensor that was made in inference mode may be written to only in inference mode.
  std::optional<c10::InferenceMode> inference;
  if (buffer.is_inference() && !c10::InferenceMode::is_enabled()) inference.emplace();
  if (have_same_form(buffer, value) && is_plain_on_cpu(buffer) && have_same_bits(buffer, value)) {
    return;
  }
  if (fits(buffer, value)) {
    without_repeats(buffer, buffer).copy_(without_repeats(value, buffer));
    return;
  }
  TORCH_CHECK(!buffer.has_storage() || buffer.storage().use_count() == 1, name(),
              " has changed its form (shape, type or strides) since, and shares its memory with "
              "another tensor, so that it cannot be set to its former value for a recompute "
              "without losing the other one",
              kHint);
  buffer.set_data(copy_of(value));
}

}  // namespace

std::vector<at::Tensor> LayerBuffers::registered(const std::vector<Layer>& layers) {
  std::vector<at::Tensor> all;
  for (const Layer& layer : layers) {
    // apply() is used instead of modules(), because making a list takes three quarters of the time,
    // and this runs around each forward and recompute.
    static_cast<const torch::nn::Module&>(*layer.module.ptr())
        .apply([&](const torch::nn::Module& module) {
          for (at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
            all.push_back(std::move(buffer));
          }
        });
  }
  return all;
}

void LayerBuffers::know(const std::vector<Layer>& layers, const Others& others) {
  if (known_) return;
  known_ = true;
  questions_.resize(layers.size());
  const std::vector<Entry> former = std::exchange(entries_, {});  // kept, so that no address recurs
  absl::flat_hash_map<const c10::TensorImpl*, const Entry*> former_of;
  for (const Entry& entry : former) former_of.emplace(entry.buffer.unsafeGetTensorImpl(), &entry);
  registered_ = registered(layers);
  absl::flat_hash_set<const c10::TensorImpl*> seen;
  for (size_t k = 0; k < layers.size(); ++k) {
    for (const auto& module : layers[k].module.ptr()->modules()) {
      for (const at::Tensor& buffer : module->buffers(/*recurse=*/false)) {
        if (!buffer.defined() || !seen.insert(buffer.unsafeGetTensorImpl()).second) continue;
        const auto found = former_of.find(buffer.unsafeGetTensorImpl());
        Entry entry = found == former_of.end() ? Entry() : *found->second;
        entry.buffer = buffer;
        if (entry.handle == nullptr) entry.handle = std::make_shared<const at::Tensor>(buffer);
        if (begins_ && found != former_of.end() && !(mark_of(buffer) == entry.left)) {
          ++entry.changes;
        }
        entry.layer = k;
        entry.is_shared = others.is_shared(buffer);
        entry.is_fixed = entry.is_shared && !others.on_one_thread;
        entries_.push_back(std::move(entry));
      }
    }
  }
  begins_ = false;
}

// Notices that a forward has registered or replaced a buffer.
void LayerBuffers::know_again(const std::vector<Layer>& layers) {
  if (!known_) return;
  const std::vector<at::Tensor> now = registered(layers);
  const auto are_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  known_ = std::equal(now.begin(), now.end(), registered_.begin(), registered_.end(), are_same);
}

void LayerBuffers::check_registered(const std::vector<Layer>& layers) const {
  const std::vector<at::Tensor> now = registered(layers);
  if (now.size() != registered_.size()) return;  // a new buffer was registered
  for (size_t k = 0; k < now.size(); ++k) {
    const at::Tensor& former = registered_[k];
    const bool same = now[k].is_same(former) ||
                      (now[k].defined() && former.defined() && is_plain_on_cpu(now[k]) &&
                       is_plain_on_cpu(former) && have_same_bits(now[k], former));
    TORCH_CHECK(same, "a recompute has replaced a buffer", kHint);
  }
}

BufferMark LayerBuffers::mark_of(const at::Tensor& buffer) {
  BufferMark mark;
  mark.version = version_of(buffer);
  if (buffer.has_storage()) {
    mark.memory = buffer.storage().getWeakStorageImpl();
    mark.offset = buffer.storage_offset();
  }
  mark.elements = buffer.layout() == c10::kStrided ? buffer.numel() : 0;
  return mark;
}

std::string LayerBuffers::name_of(const Entry& entry, const std::vector<Layer>& layers) {
  const Layer& layer = layers[entry.layer];
  for (const auto& item : layer.module.ptr()->named_buffers()) {
    if (!item.value().is_same(entry.buffer)) continue;
    return absl::StrCat("the buffer ", text::in_quotes(absl::StrCat(layer.name, ".", item.key())),
                        " (layer ", layer.index, ")");
  }
  return "a buffer of " + layer_text(layer);
}

bool LayerBuffers::is_small(const at::Tensor& buffer) {
  return is_plain_on_cpu(buffer) && has_few_bytes(buffer);
}

bool LayerBuffers::is_as_left(const BufferValue& value) {
  return mark_of(*value.buffer) == value.after &&
         (!value.value_after.defined() || have_same_bits(*value.buffer, value.value_after));
}

bool LayerBuffers::may_need_graph(const std::vector<BufferValue>& kept) {
  return std::any_of(kept.begin(), kept.end(),
                     [](const BufferValue& each) { return each.is_first; });
}

bool LayerBuffers::may_use_graph(const std::vector<BufferValue>& kept,
                                 const std::vector<SavedBuffer>& saved) {
  return std::all_of(kept.begin(), kept.end(), [&](const BufferValue& each) {
    const auto is_same = [&](const SavedBuffer& other) { return other.buffer == each.buffer; };
    return !each.is_held || is_as_left(each) || std::any_of(saved.begin(), saved.end(), is_same);
  });
}

bool LayerBuffers::is_compared(const Entry& entry) {
  if (entry.habit == Habit::kByOperators || entry.buffer.is_meta()) return false;
  return entry.is_shared || has_few_bytes(entry.buffer) || entry.unchanged < kForgottenAfter;
}

at::Tensor LayerBuffers::copy_now(Entry& entry) {
  const BufferMark mark = mark_of(entry.buffer);
  const bool is_true = entry.copy.defined() && entry.copy_mark == mark &&
                       (!is_small(entry.buffer) || have_same_bits(entry.buffer, entry.copy));
  if (!is_true) {
    entry.copy = copy_of(entry.buffer);
    entry.copy_mark = mark;
  }
  return entry.copy;
}

bool LayerBuffers::is_changed(Entry& entry, const Later& later) const {
  const bool is_marked = !(mark_of(entry.buffer) == entry.mark);
  if (!entry.start.defined()) return is_marked;
  if (!is_marked && !is_small(entry.buffer)) return false;
  if (is_plain_on_cpu(entry.buffer)) return !have_same_bits(entry.buffer, entry.start);
  if (entry.habit == Habit::kChanged || !have_same_form(entry.buffer, entry.start) ||
      entry.buffer.layout() != c10::kStrided || entry.buffer.is_quantized()) {
    return true;
  }
  const c10::NoGradGuard no_grad;
  if (entry.habit != Habit::kRewritten) {
    // A comparison would make a thread wait for the device. So a buffer that is written to and has
    // a copy counts as changed, whatever its value. A buffer that two stages have must not change,
    // so the values are compared at its first write, once.
    return !entry.is_shared || !at::equal(entry.buffer.detach(), entry.start);
  }
  later(entry.buffer.detach().ne(entry.start).any());
  return false;
}

void LayerBuffers::begin_forward(const std::vector<Layer>& layers, const Others& others,
                                 bool compares) {
  know(layers, others);
  for (Entry& entry : entries_) {
    entry.mark = mark_of(entry.buffer);
    entry.fewest_owners = std::min(entry.fewest_owners, owners_of(entry.buffer));
    const PhaseQuestions& asked = questions_of(entry);
    const bool is_left_alone = asked.checkpointing || asked.recomputing;
    const bool has_start = (compares || entry.is_shared) && !is_left_alone && is_compared(entry);
    entry.start = has_start ? copy_now(entry) : at::Tensor();
    entry.is_open = true;
  }
}

void LayerBuffers::note_questions(size_t position, const PhaseQuestions& questions) {
  if (!known_) return;
  questions_[position].checkpointing |= questions.checkpointing;
  questions_[position].recomputing |= questions.recomputing;
}

bool LayerBuffers::is_left_alone(Entry& entry, const Others& others) const {
  if (entry.habit != Habit::kByOperators && others.is_updated(entry.buffer)) {
    entry.habit = Habit::kByOperators;
  }
  const PhaseQuestions& asked = questions_of(entry);
  return asked.checkpointing || asked.recomputing || entry.habit == Habit::kByOperators;
}

void LayerBuffers::note_change(Entry& entry, const at::Tensor& start) {
  ++entry.changes;
  entry.unchanged = 0;
  entry.was_changed = true;
  entry.habit = start.defined() ? Habit::kChanged : Habit::kUnknown;
}

void LayerBuffers::fail_forward(const Others& others) noexcept {
  for (Entry& entry : entries_) {
    if (!std::exchange(entry.is_open, false)) continue;
    entry.left = mark_of(entry.buffer);
    bool changed = false;
    try {
      // The run has failed, so this may wait for the device.
      const Later now = [&](const at::Tensor& differs) { changed = differs.item<bool>(); };
      if (!is_left_alone(entry, others) && is_changed(entry, now)) changed = true;
    } catch (...) {  // counts as a change; the forward's own error tells more
      changed = true;
    }
    const at::Tensor start = std::exchange(entry.start, at::Tensor());
    if (!changed) continue;
    if (entry.is_shared && start.defined()) entry.is_torn = true;
    note_change(entry, start);
  }
}

std::optional<std::vector<BufferValue>> LayerBuffers::end_forward(const std::vector<Layer>& layers,
                                                                  const Others& others,
                                                                  const Later& later, bool trains) {
  bool is_known = true;
  const Entry* torn = nullptr;
  std::vector<BufferValue> kept;
  for (Entry& entry : entries_) {
    entry.left = mark_of(entry.buffer);
    const size_t owners = owners_of(entry.buffer);
    entry.fewest_owners = std::min(entry.fewest_owners, owners);
    entry.is_held = owners > entry.fewest_owners;
    const at::Tensor start = entry.start;
    if (is_left_alone(entry, others)) {
      entry.start = entry.copy = at::Tensor();
      entry.is_open = false;
      continue;
    }
    const bool is_marked = !(entry.left == entry.mark);
    const bool changed = is_changed(entry, later);
    entry.start = at::Tensor();
    entry.is_open = false;
    if (changed && start.defined() && entry.is_shared) {
      entry.is_torn = true;
      torn = &entry;
      continue;
    }
    const bool was_changed = entry.was_changed;
    const int64_t changes = entry.changes;
    if (changed) {
      note_change(entry, start);
      is_known = is_known && start.defined();  // if not, only the next forward has a copy
    } else if (trains) {
      entry.was_changed = false;
      ++entry.unchanged;
      if (is_marked && entry.habit == Habit::kUnknown) entry.habit = Habit::kRewritten;
      if (!is_compared(entry)) entry.copy = at::Tensor();
    }
    if (entry.is_fixed || !trains) continue;
    BufferValue value;
    value.is_held = entry.is_held;
    value.buffer = entry.handle;
    value.value = start;
    value.changes = changes;
    value.is_first = changed && !was_changed;
    value.after = entry.left;
    if (value.is_first && is_small(entry.buffer)) value.value_after = copy_of(entry.buffer);
    kept.push_back(std::move(value));
  }
  TORCH_CHECK(torn == nullptr, name_of(*torn, layers), kTorn);
  know_again(layers);
  if (!is_known || !known_) return std::nullopt;
  return kept;
}

std::vector<BufferHandle> LayerBuffers::held() const {
  std::vector<BufferHandle> held;
  for (const Entry& entry : entries_) {
    if (entry.is_held && !entry.is_fixed) held.push_back(entry.handle);
  }
  return held;
}

std::vector<SavedBuffer> LayerBuffers::saved(const std::vector<BufferHandle>& held) {
  std::vector<SavedBuffer> saved;
  if (held.empty()) return saved;
  for (Entry& entry : entries_) {
    const PhaseQuestions& asked = questions_of(entry);
    const bool is_left_alone = asked.checkpointing || asked.recomputing;
    if (is_left_alone || !is_compared(entry) || (entry.changes == 0 && !entry.copy.defined()) ||
        std::none_of(held.begin(), held.end(),
                     [&](const BufferHandle& each) { return each->is_same(entry.buffer); })) {
      continue;
    }
    saved.push_back({entry.handle, copy_now(entry), mark_of(entry.buffer), entry.changes,
                     entry.found.defined()});
  }
  return saved;
}

void LayerBuffers::begin_saved(const std::vector<Layer>& layers,
                               const std::vector<SavedBuffer>& saved, const Others& others) {
  know_again(layers);
  know(layers, others);
  std::vector<const SavedBuffer*> sets;
  // All buffers are copied before the first one is set, because they may have memory in common.
  for (const SavedBuffer& each : saved) {
    const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.buffer.is_same(*each.buffer);
    });
    const bool is_marked = !(mark_of(*each.buffer) == each.mark);
    if (entry == entries_.end() || (!is_marked && !is_small(*each.buffer))) continue;
    const bool has_its_value = is_plain_on_cpu(*each.buffer)
                                   ? have_same_bits(*each.buffer, each.value)
                                   : entry->habit == Habit::kRewritten;
    if (!is_marked && has_its_value) continue;
    // A buffer that only a hook or the caller has changed is left as it is, as in a recompute. A
    // buffer that forwards rewrite with the same value is set, because the graph expects its former
    // version counter.
    if (!each.is_put_back && entry->changes == each.changes && !has_its_value) continue;
    sets.push_back(&each);
    replaced_.push_back({&*entry, copy_now(*entry), version_of(*each.buffer), 0});
  }
  try {
    for (size_t k = 0; k < sets.size(); ++k) {
      put(*sets[k]->buffer, sets[k]->value, [&] { return name_of(*replaced_[k].entry, layers); });
    }
  } catch (...) {
    end_saved(layers, /*failed=*/true);
    throw;
  }
  for (size_t k = 0; k < sets.size(); ++k) {
    set_version(*sets[k]->buffer, sets[k]->mark.version);
    replaced_[k].version_of_set = version_of(*sets[k]->buffer);
  }
}

void LayerBuffers::end_saved(const std::vector<Layer>& layers, bool failed) {
  const std::vector<Replaced> replaced = std::exchange(replaced_, {});
  const Entry* twice = nullptr;
  for (const Replaced& each : replaced) {
    if (version_of(each.entry->buffer) != each.version_of_set) twice = each.entry;
  }
  for (const Replaced& each : replaced) {
    try {
      put(each.entry->buffer, each.value, [&] { return name_of(*each.entry, layers); });
    } catch (...) {  // after a failure, the earlier error tells more
      if (!failed) throw;
    }
  }
  for (const Replaced& each : replaced) {
    set_version(each.entry->buffer, each.version);
    each.entry->left = mark_of(each.entry->buffer);
  }
  TORCH_CHECK(failed || twice == nullptr, "a backward has changed ", name_of(*twice, layers),
              ", which was set to what the micro-batch's graph has saved, so that the change would "
              "be lost. Let the layer compute with a clone() of it, or do not change it in a "
              "backward");
}

void LayerBuffers::begin_recompute(const std::vector<Layer>& layers,
                                   const std::vector<BufferValue>& kept, const Others& others) {
  know_again(layers);
  know(layers, others);
  // All buffers are copied before the first one is set, because they may have memory in common.
  for (Entry& entry : entries_) {
    TORCH_CHECK(!entry.is_torn || !entry.is_shared, name_of(entry, layers), kTorn);
    entry.found = at::Tensor();
    const bool is_left_alone = questions_of(entry).checkpointing || !is_compared(entry);
    entry.start = is_left_alone ? at::Tensor() : copy_now(entry);
  }
  std::vector<std::pair<Entry*, at::Tensor>> puts;
  size_t next = 0;  // `kept` is in the order of the entries
  for (Entry& entry : entries_) {
    const BufferValue* value = nullptr;
    for (size_t k = 0; k < kept.size() && value == nullptr; ++k) {
      const size_t place = (next + k) % kept.size();
      if (!kept[place].buffer->is_same(entry.buffer)) continue;
      value = &kept[place];
      next = place + 1;
    }
    // A buffer that no forward has changed is left as it is, because a hook or the caller may have
    // changed it.
    const PhaseQuestions& asked = questions_of(entry);
    if (value == nullptr || value->changes == entry.changes || asked.checkpointing ||
        asked.recomputing || entry.habit == Habit::kByOperators) {
      continue;
    }
    TORCH_CHECK(value->value.defined(), name_of(entry, layers),
                " was changed by the forward of a later micro-batch, and by none before, or "
                "between forward and backward, so its value in this micro-batch's forward is not "
                "known",
                kHint);
    TORCH_CHECK(!value->is_first || !is_as_left(*value), name_of(entry, layers),
                " was filled by this micro-batch's forward, whose graph cannot be used because it "
                "has saved another buffer that was changed since, so it is not known whether the "
                "layer wants it filled or not",
                kHint);
    if (!entry.start.defined()) entry.start = copy_now(entry);
    // Writing a value that is already there would spoil what a graph has saved.
    const bool is_there = is_plain_on_cpu(entry.buffer) ? have_same_bits(entry.start, value->value)
                                                        : entry.start.is_same(value->value);
    if (!is_there) puts.emplace_back(&entry, value->value);
  }
  for (auto& [entry, value] : puts) {
    entry->found = std::exchange(entry->start, value);
    put(entry->buffer, value, [entry = entry, &layers] { return name_of(*entry, layers); });
  }
  for (Entry& entry : entries_) {
    entry.mark = mark_of(entry.buffer);
    entry.is_open = true;
  }
}

void LayerBuffers::check_recompute(const std::vector<Layer>& layers, const Later& later) {
  check_registered(layers);
  for (Entry& entry : entries_) {
    const PhaseQuestions& asked = questions_of(entry);
    if (asked.checkpointing || !is_changed(entry, later)) continue;
    const bool has_start = entry.start.defined();
    if (!has_start) entry.unchanged = 0;  // so that the next forward makes a copy
    entry.is_open = has_start;
    // The other stage may have changed a shared buffer; the next forward compares its value.
    if (!has_start && entry.is_fixed) continue;
    TORCH_CHECK(has_start && !asked.recomputing && !entry.is_shared, "a recompute has changed ",
                name_of(entry, layers), " once more", kHint);
    if (!entry.found.defined()) entry.found = entry.start;
  }
  for (Entry& entry : entries_) {
    entry.start = at::Tensor();
    entry.is_open = false;
    if (entry.found.defined()) entry.mark = mark_of(entry.buffer);
  }
}

void LayerBuffers::fail_recompute(Entry& entry, const std::vector<Layer>& layers) {
  const bool is_marked = !(mark_of(entry.buffer) == entry.mark);
  if (entry.found.defined() || entry.is_fixed || questions_of(entry).checkpointing) return;
  if (entry.start.defined()) {
    if (is_marked || is_small(entry.buffer)) entry.found = entry.start;
  } else if (is_marked) {
    entry.unchanged = 0;  // so that the next forward makes a copy
    lost_ = name_of(entry, layers);
  }
}

void LayerBuffers::end_recompute(const std::vector<Layer>& layers, bool failed) {
  lost_.clear();
  // If know() has not been called since this run began, no recompute has begun in it. Entry::left
  // stays, because know() has yet to compare with it.
  if (begins_) return;
  const Entry* twice = nullptr;
  for (Entry& entry : entries_) {
    if (std::exchange(entry.is_open, false)) fail_recompute(entry, layers);
    entry.start = at::Tensor();
    if (entry.found.defined() && !(mark_of(entry.buffer) == entry.mark)) twice = &entry;
  }
  for (Entry& entry : entries_) {
    if (!entry.found.defined()) continue;
    const at::Tensor found = std::exchange(entry.found, at::Tensor());
    try {
      put(entry.buffer, found, [&] { return name_of(entry, layers); });
    } catch (...) {  // after a failure, the earlier error tells more
      if (!failed) throw;
    }
  }
  for (Entry& entry : entries_) entry.left = mark_of(entry.buffer);
  TORCH_CHECK(failed || twice == nullptr, "a backward has changed ", name_of(*twice, layers),
              ", which its recompute has set to what the micro-batch's forward had seen, so that "
              "the change would be lost",
              kHint);
}

}  // namespace gpipe::internal

// LayerBuffers: the buffers of a stage's layers around a recompute, which reads what its forward
// read and leaves what it found.
//
// A layer may write its buffers in its forward: a counter, an average kept by hand, the vectors of
// a power iteration. A recompute that did so again would move them twice, and would begin from what
// later micro-batches have left. So a checkpointed cell keeps the buffers as they were before its
// forward; its recompute begins with these, if forwards have changed them since, and afterwards the
// buffers are put back. Cells between which nothing changes share one copy. What a forward changes
// is learned from the forwards themselves: from version counters and memory, and where there is a
// copy, from values.
//
// A change that the forward before did not make may be of a cache, which is filled when it is first
// needed, or grows, and whose layer remembers that in a member. With the former value put back the
// layer would use an empty cache. So such a cell keeps the graph of its forward, and its backward
// takes it, unless it has saved a buffer that was changed since.
//
// A buffer that layers of two stages have registered must not change: nobody may set it while the
// other stage runs.
//
// Left alone are the updates of norms that operators make (operators/batch_norm.h), and the buffers
// of a layer that asks is_checkpointing() or is_recomputing(): it takes care of them itself, and
// only what it changes in a recompute, though it has asked about that, is an error.
//
// Not seen are writes to large buffers that LibTorch does not count (data(), set_data() to and fro,
// a raw pointer), a state that no registered buffer holds, and that a graph has saved a member
// which is a view of a buffer: such a graph does not count as one that holds it, and autograd's
// version counters alone tell that the buffer was changed since.
#ifndef GPIPE_INTERNAL_CELL_LAYER_BUFFERS_H_
#define GPIPE_INTERNAL_CELL_LAYER_BUFFERS_H_

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/model/layer.h"

namespace gpipe::internal {

// What tells that a buffer was written to.
struct BufferMark {
  int64_t version = 0;
  const void* memory = nullptr;
  int64_t offset = 0;
  int64_t elements = 0;
  bool operator==(const BufferMark& other) const {
    return version == other.version && memory == other.memory && offset == other.offset &&
           elements == other.elements;
  }
};

// A buffer around a forward.
struct BufferValue {
  at::Tensor buffer;
  at::Tensor value;        // before it, in memory that nobody writes to; undefined: not known
  int64_t changes = 0;     // forwards that had changed it before
  bool is_first = false;   // it has changed the buffer, and the forward before had not
  bool is_held = false;    // its graph has saved the buffer, or a view of it
  BufferMark after;        // behind it
  at::Tensor value_after;  // the same of a small one that it was the first to change
};

// A stage's buffers. Requirements: forwards and recomputes do not overlap; each begins with its
// begin_...() and ends with its end_...(), or with the next begin_...().
//
// Thread-safety: none; only one thread at a time works on a stage.
class LayerBuffers {
 public:
  // Small buffers on the CPU are compared by value, whatever their version counters say.
  static constexpr int64_t kSmallBytes = 4096;
  // Of a larger one, on whatever device, that so many forwards in turn have not changed, e.g. a
  // cache that is full, there is no copy any more.
  static constexpr int64_t kForgottenAfter = 64;

  // What an accelerator alone knows yet, a bool tensor: whether a buffer that forwards write to,
  // and leave as it was, was changed this time.
  using Later = std::function<void(const at::Tensor& differs)>;

  // Before the first forward or recompute of a run. Modules may have been replaced since.
  void begin_run() { known_ = false; }

  // Which buffers are not this stage's own.
  struct Others {
    // Whether operators have updated it in the forward, as running statistics.
    std::function<bool(const at::Tensor&)> is_updated;
    // Whether a stage on another thread has it, too; the same in the whole run.
    std::function<bool(const at::Tensor&)> is_shared;
  };

  // Around each forward of a stage that may be checkpointed, also one that is not. `trains`: it
  // records gradients. What other forwards leave alone, as an evaluation does, says nothing of
  // those that train.
  void begin_forward(const std::vector<Layer>& layers, const Others& others);
  // The layer at that position has run.
  void note_questions(size_t position, const PhaseQuestions& questions);
  // What the cell must keep for its recompute. nullopt: it cannot be recomputed, because the
  // forward has registered a buffer, or changed one of whose former value there is no copy. Throws
  // c10::Error for a change of a buffer that another stage has, too: which of them comes first is a
  // matter of time.
  std::optional<std::vector<BufferValue>> end_forward(const std::vector<Layer>& layers,
                                                      const Others& others, const Later& later,
                                                      bool trains);

  // `kept`: what end_forward() gave. Whether the forward's graph must be kept, because it may serve
  // instead of a recompute; and whether it does, because no buffer that it has saved was written to
  // since.
  static bool may_need_graph(const std::vector<BufferValue>& kept);
  static bool may_use_graph(const std::vector<BufferValue>& kept);

  // `kept`: what end_forward() gave. Throws c10::Error for a buffer of which it is not known what
  // it must begin with.
  void begin_recompute(const std::vector<Layer>& layers, const std::vector<BufferValue>& kept,
                       const Others& others);
  // When the layers are done. Throws c10::Error that names a buffer that was changed and cannot be
  // put back.
  void check_recompute(const std::vector<Layer>& layers, const Later& later);
  // When the cell's backward is done, which may need what the recompute has left. Throws c10::Error
  // for a buffer that the backward has changed, too. With `failed` it throws nothing.
  void end_recompute(const std::vector<Layer>& layers, bool failed);

 private:
  enum class Habit : uint8_t {
    kUnknown,      // no forward has written to it, as far as is known
    kRewritten,    // forwards write the value that it has
    kChanged,      // forwards change it
    kByOperators,  // operators do, as running statistics
  };
  struct Entry {
    at::Tensor buffer;
    size_t layer;    // position
    bool is_shared;  // as in Others
    Habit habit = Habit::kUnknown;
    int64_t changes = 0;       // forwards that have changed it
    int64_t unchanged = 0;     // forwards since, that train
    bool was_changed = false;  // by the last forward
    at::Tensor copy;           // of its value at copy_mark; nobody writes to it; undefined: none
    BufferMark copy_mark;
    BufferMark mark;    // at the begin
    size_t owners = 0;  // of it and of its memory, at the begin of a forward
    at::Tensor start;   // its value at the begin, if that is compared; undefined: it is not
    at::Tensor found;   // of a recompute: what to put back; undefined: nothing
  };

  void know(const std::vector<Layer>& layers, const Others& others);
  void know_again(const std::vector<Layer>& layers);
  static bool is_compared(const Entry& entry);
  // Its value now, in memory of its own; the last copy, where that is still true.
  static at::Tensor copy_now(Entry& entry);
  const PhaseQuestions& questions_of(const Entry& entry) const { return questions_[entry.layer]; }
  static BufferMark mark_of(const at::Tensor& buffer);
  static bool is_as_left(const BufferValue& value);
  // "the buffer '1.count' of layer 4 ('1')"
  static std::string name_of(const Entry& entry, const std::vector<Layer>& layers);
  // Whether its value is another one than at the begin.
  bool is_changed(Entry& entry, const Later& later) const;
  static bool is_small(const at::Tensor& buffer);
  // What the layers' modules have registered, as often as they have.
  static std::vector<at::Tensor> registered(const std::vector<Layer>& layers);
  // Throws c10::Error if a recompute has registered other tensors in place of those of its begin.
  void check_registered(const std::vector<Layer>& layers) const;

  bool known_ = false;  // the following are those of this run
  std::vector<at::Tensor> registered_;
  std::vector<Entry> entries_;
  std::vector<PhaseQuestions> questions_;  // [position]
};

// Ends a recompute with its block, also where that is left by an exception.
class PutBuffersBack {
 public:
  PutBuffersBack(LayerBuffers& buffers, const std::vector<Layer>& layers)
      : buffers_(buffers), layers_(layers) {}
  ~PutBuffersBack() {
    if (!done_) buffers_.end_recompute(layers_, /*failed=*/true);
  }
  PutBuffersBack(const PutBuffersBack&) = delete;
  PutBuffersBack& operator=(const PutBuffersBack&) = delete;

  // Throws as LayerBuffers::end_recompute().
  void finish() {
    done_ = true;
    buffers_.end_recompute(layers_, /*failed=*/false);
  }

 private:
  LayerBuffers& buffers_;
  const std::vector<Layer>& layers_;
  bool done_ = false;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_LAYER_BUFFERS_H_

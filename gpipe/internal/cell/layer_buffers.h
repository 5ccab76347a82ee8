// LayerBuffers: saves and restores the buffers of a stage's layers around a recompute, which reads
// what its forward read and leaves what it found.
//
// A layer may write its buffers in its forward: a counter, an average kept by hand, the vectors of
// a power iteration. A recompute that did so again would move them twice, and would begin from what
// later micro-batches have left. So a checkpointed cell keeps the buffers as they were before its
// forward; its recompute begins with these, if forwards have changed them since, and afterwards the
// buffers are put back. Cells between which nothing changes share one copy. What a forward changes
// is learned from the forwards themselves: from version counters and memory, and where there is a
// copy, from values.
//
// A buffer that a forward changes, and the previous forward did not, may be a cache: it is filled
// when it is first needed, or grows, and its layer remembers that in a member. If the former value
// were put back, the layer would use an empty cache. So such a cell keeps the graph of its forward,
// and its backward uses it, unless it has saved a buffer that was changed since.
//
// A buffer that layers of two stages have registered must not change: nobody may set it while the
// other stage runs.
//
// Two kinds of buffers are left alone: those of norms, which operators update
// (operators/batch_norm.h), and those of a layer that asks is_checkpointing() or is_recomputing().
// Such a layer takes care of them itself. Only a change in a recompute, although the layer asked
// is_recomputing(), is an error.
//
// Not noticed are writes to large buffers that LibTorch does not count (data(), set_data() and
// back, a raw pointer), state that no registered buffer holds, another tensor that some forwards
// register in place of a buffer and others do not, and a graph that has saved a member
// which is a view of a buffer: such a graph does not count as one that holds the buffer, and only
// autograd's version counters tell that the buffer was changed since.
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

// The marks that show that a buffer was written to.
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
  at::Tensor value;        // before the forward; nobody writes to it; undefined: not known
  int64_t changes = 0;     // forwards that had changed it before
  bool is_first = false;   // the forward has changed the buffer, and the previous one had not
  bool is_held = false;    // the forward's graph has saved the buffer, or a view of it
  BufferMark after;        // after the forward
  at::Tensor value_after;  // the value after the forward, if it is small and is_first
};

// A stage's buffers. Requirements: forwards and recomputes do not overlap; each begins with its
// begin_...() and ends with its end_...() or fail_...(), or with the next begin_...().
//
// Thread-safety: none; only one thread at a time works on a stage.
class LayerBuffers {
 public:
  // Small buffers on the CPU are compared by value, whatever their version counters say.
  static constexpr int64_t kSmallBytes = 4096;
  // A larger buffer, on any device, that so many forwards in a row have not changed (e.g. a cache
  // that is full) is not copied any more.
  static constexpr int64_t kForgottenAfter = 64;

  // Gets an answer that only an accelerator knows yet, as a bool tensor: whether a buffer that
  // forwards write to without changing its value was changed this time.
  using Later = std::function<void(const at::Tensor& differs)>;

  // Called before the first forward or recompute of a run. Modules may have been replaced since.
  void begin_run() { known_ = false; }

  // How others use a buffer.
  struct Others {
    // Whether operators have updated it in the forward, as running statistics.
    std::function<bool(const at::Tensor&)> is_updated;
    // Whether a stage on another thread has it, too; the same in the whole run.
    std::function<bool(const at::Tensor&)> is_shared;
  };

  // begin_forward() and end_forward() are called around each forward of a stage that may be
  // checkpointed, even if this one is not. `trains`: the forward records gradients. A buffer that
  // other forwards, such as an evaluation, leave alone may still change in those that train.
  void begin_forward(const std::vector<Layer>& layers, const Others& others);
  // Called when the layer at that position has run.
  void note_questions(size_t position, const PhaseQuestions& questions);
  // Returns what the cell must keep for its recompute. nullopt: it cannot be recomputed, because
  // the forward has registered a buffer, or changed one without a copy of its former value. Throws
  // c10::Error for a change of a buffer that another stage has, too: its value would depend on
  // timing.
  std::optional<std::vector<BufferValue>> end_forward(const std::vector<Layer>& layers,
                                                      const Others& others, const Later& later,
                                                      bool trains);

  // Called if begin_forward(), the layers or end_forward() have thrown: counts what the forward has
  // changed all the same. So a recompute of an earlier forward begins with what that one had seen.
  void fail_forward(const Others& others) noexcept;

  // `kept`: the result of end_forward(). may_need_graph(): whether the forward's graph must be
  // kept, because it may replace the recompute. may_use_graph(): whether it can replace it, because
  // no buffer that it has saved was written to since.
  static bool may_need_graph(const std::vector<BufferValue>& kept);
  static bool may_use_graph(const std::vector<BufferValue>& kept);

  // `kept`: the result of end_forward(). Throws c10::Error for a buffer whose value at the start of
  // the recompute is not known.
  void begin_recompute(const std::vector<Layer>& layers, const std::vector<BufferValue>& kept,
                       const Others& others);
  // Called when the layers are done. Throws c10::Error that names a buffer that was changed and
  // cannot be put back.
  void check_recompute(const std::vector<Layer>& layers, const Later& later);
  // When the cell's backward is done, which may need what the recompute has left. Throws c10::Error
  // for a buffer that the backward has changed, too. With `failed` it throws nothing. It also puts
  // back what the layers had changed before one of them threw.
  void end_recompute(const std::vector<Layer>& layers, bool failed);
  // The buffer that a recompute had changed before it threw, and that could not be put back. Empty
  // if there is none.
  const std::string& lost() const { return lost_; }

 private:
  enum class Habit : uint8_t {
    kUnknown,      // no forward has written to it, as far as is known
    kRewritten,    // forwards write the value that it has
    kChanged,      // forwards change it
    kByOperators,  // operators change it, as running statistics
  };
  struct Entry {
    at::Tensor buffer;
    size_t layer;          // position
    bool is_shared;        // as in Others
    bool is_open = false;  // layers may have changed it since begin_...(), and nobody has looked
    bool is_torn = false;  // a forward has changed it, although is_shared
    Habit habit = Habit::kUnknown;
    int64_t changes = 0;       // forwards that have changed it
    int64_t unchanged = 0;     // forwards that train since the last change
    bool was_changed = false;  // by the last forward
    at::Tensor copy;           // its value at copy_mark; nobody writes to it; undefined: none
    BufferMark copy_mark;
    BufferMark mark;    // at the start
    size_t owners = 0;  // number of owners of it and of its memory, at the start of a forward
    at::Tensor start;   // its value at the start, if that is compared; undefined: it is not
    at::Tensor found;   // recompute: the value to put back; undefined: none
  };

  void know(const std::vector<Layer>& layers, const Others& others);
  void know_again(const std::vector<Layer>& layers);
  static bool is_compared(const Entry& entry);
  // The buffer's value now, in memory of its own: the last copy, if that is still true.
  static at::Tensor copy_now(Entry& entry);
  const PhaseQuestions& questions_of(const Entry& entry) const { return questions_[entry.layer]; }
  static BufferMark mark_of(const at::Tensor& buffer);
  static bool is_as_left(const BufferValue& value);
  // "the buffer '1.count' of layer 4 ('1')"
  static std::string name_of(const Entry& entry, const std::vector<Layer>& layers);
  // Whether the layer takes care of the buffer itself, or operators do.
  bool is_left_alone(Entry& entry, const Others& others) const;
  // Notes that a forward, at whose start the buffer had the value `start`, has changed it.
  static void note_change(Entry& entry, const at::Tensor& start);
  // Ends what begin_recompute() began, if check_recompute() was not reached.
  void fail_recompute(Entry& entry, const std::vector<Layer>& layers);
  // Whether the buffer's value differs from that at the start.
  bool is_changed(Entry& entry, const Later& later) const;
  static bool is_small(const at::Tensor& buffer);
  // The buffers that the layers' modules have registered, each as often as they have.
  static std::vector<at::Tensor> registered(const std::vector<Layer>& layers);
  // Throws c10::Error if a recompute has registered other tensors in place of those at its start.
  void check_registered(const std::vector<Layer>& layers) const;

  std::string lost_;
  bool known_ = false;  // the following belong to this run
  std::vector<at::Tensor> registered_;
  std::vector<Entry> entries_;
  std::vector<PhaseQuestions> questions_;  // [position]
};

// Ends a recompute at the end of its scope, even if an exception leaves it.
class PutBuffersBack {
 public:
  PutBuffersBack(LayerBuffers& buffers, const std::vector<Layer>& layers)
      : buffers_(buffers), layers_(layers) {}
  ~PutBuffersBack() {
    if (!done_) buffers_.end_recompute(layers_, /*failed=*/true);
  }
  PutBuffersBack(const PutBuffersBack&) = delete;
  PutBuffersBack& operator=(const PutBuffersBack&) = delete;

  // Throws what LayerBuffers::end_recompute() throws.
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

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
// A graph may wait while other forwards run: that of a cell without a checkpoint, one that was made
// early, or one whose backward has run its first half. It expects the buffers that it has saved as
// they were then. So those that forwards change are kept (SavedBuffer). For the backward they are
// set together with their version counters, if they have changed meanwhile.
//
// A buffer that layers of two stages have registered must not change: what the stages read would
// depend on the order in which they run, and nobody may set the buffer while another thread runs
// the other stage. So the values of such a buffer are always compared.
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
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/checkpoint_phase.h"
#include "gpipe/internal/model/layer.h"

namespace gpipe::internal {

// The marks that show that a buffer was written to.
struct BufferMark {
  using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;
  int64_t version = 0;
  // It keeps the address of a storage that was freed, so that no other one gets this address.
  Memory memory{c10::intrusive_ptr<c10::StorageImpl>()};
  int64_t offset = 0;
  int64_t elements = 0;
  bool operator==(const BufferMark& other) const {
    return version == other.version && memory == other.memory && offset == other.offset &&
           elements == other.elements;
  }
};

// How all cells of a stage have a buffer: together they are one owner of it, however many they are.
using BufferHandle = std::shared_ptr<const at::Tensor>;

// A buffer around a forward.
struct BufferValue {
  BufferHandle buffer;
  at::Tensor value;        // the value before the forward; never written to; undefined: not known
  int64_t changes = 0;     // how many forwards had changed it before
  bool is_first = false;   // the forward has changed the buffer, and the previous one had not
  bool is_held = false;    // the forward's graph may have saved the buffer, or a view of it
  BufferMark after;        // the marks after the forward
  at::Tensor value_after;  // the value after the forward, if it is small and is_first
};

// A buffer that a graph has saved, as the graph expects it.
struct SavedBuffer {
  BufferHandle buffer;
  at::Tensor value;  // nobody writes to it
  BufferMark mark;
  int64_t changes = 0;       // how many forwards had changed it
  bool is_put_back = false;  // the recompute has changed it, and it gets its former value back
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
  // Another pipeline or the caller may have run the layers; a buffer that was written to in between
  // counts as changed.
  void begin_run() {
    known_ = false;
    begins_ = true;
  }

  // How others use a buffer.
  struct Others {
    // Whether operators have updated it in the forward, as running statistics.
    std::function<bool(const at::Tensor&)> is_updated;
    // Whether another stage has it, too; the same in the whole run.
    std::function<bool(const at::Tensor&)> is_shared;
    // Whether all stages run on one thread, so that a shared buffer may be set for a while.
    bool on_one_thread = false;
  };

  // begin_forward() and end_forward() are called around each forward of a stage that may be
  // checkpointed, even if this one is not, and around all that train. `compares`: false for a stage
  // that is never checkpointed, where the version counters are enough, except for shared buffers.
  // `trains`: the forward records gradients. A buffer that other forwards, such as an evaluation,
  // leave alone may still change in those that train.
  void begin_forward(const std::vector<Layer>& layers, const Others& others, bool compares = true);
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

  // The buffers that the graph of the forward which has just ended may have saved.
  std::vector<BufferHandle> held() const;
  // The buffers in `held` that forwards change, with their present values, for a graph that waits.
  // After a recompute this is called before end_recompute(). `held`: what held() returned after the
  // cell's forward.
  std::vector<SavedBuffer> saved(const std::vector<BufferHandle>& held);
  // begin_saved() and end_saved() are called around the backward of a graph that has waited, or
  // around the rest of it. Throws c10::Error if a buffer cannot be set.
  void begin_saved(const std::vector<Layer>& layers, const std::vector<SavedBuffer>& saved,
                   const Others& others);
  // Sets the buffers to what begin_saved() found. Throws c10::Error for a buffer that the backward
  // has changed, unless the backward has failed.
  void end_saved(const std::vector<Layer>& layers, bool failed);

  // `kept`: the result of end_forward(). may_need_graph(): whether the forward's graph must be
  // kept, because it may replace the recompute. may_use_graph(): whether the graph can replace the
  // recompute, because each buffer that it has saved is in `saved` or was not written to since.
  static bool may_need_graph(const std::vector<BufferValue>& kept);
  static bool may_use_graph(const std::vector<BufferValue>& kept,
                            const std::vector<SavedBuffer>& saved);

  // `kept`: the result of end_forward(). Throws c10::Error for a buffer whose value at the start of
  // the recompute is not known.
  void begin_recompute(const std::vector<Layer>& layers, const std::vector<BufferValue>& kept,
                       const Others& others);
  // Called when the layers are done. Throws c10::Error that names a buffer that was changed and
  // cannot be put back.
  void check_recompute(const std::vector<Layer>& layers, const Later& later);
  // Called when the cell's backward is done, which may need what the recompute has left. Puts the
  // buffers back, also those that layers had changed before one of them threw. Throws c10::Error
  // for a buffer that the backward has changed, too; with `failed` it throws nothing.
  void end_recompute(const std::vector<Layer>& layers, bool failed);
  // The buffer that a recompute had changed before it threw, and that could not be put back. Empty
  // if there is none.
  const std::string& lost() const { return lost_; }

 private:
  enum class Habit : uint8_t {
    kUnknown,      // no forward has written to the buffer, as far as is known
    kRewritten,    // forwards write the value that the buffer has already
    kChanged,      // forwards change the buffer
    kByOperators,  // operators change the buffer, as running statistics
  };
  struct Entry {
    at::Tensor buffer;
    BufferHandle handle;
    size_t layer;          // the position of its layer
    bool is_shared;        // as in Others
    bool is_fixed;         // is_shared, and another thread may read it at any time: nobody sets it
    bool is_open = false;  // layers may have changed it since begin_...(), and nobody has looked
    bool is_torn = false;  // a forward has changed it, although is_shared
    Habit habit = Habit::kUnknown;
    int64_t changes = 0;       // how many forwards have changed it
    int64_t unchanged = 0;     // how many training forwards have not, since the last change
    bool was_changed = false;  // the last forward has changed it
    at::Tensor copy;           // its value at copy_mark; nobody writes to it; undefined: none
    BufferMark copy_mark;
    BufferMark mark;  // at the start
    BufferMark left;  // at the end of the last forward or recompute
    // The fewest owners of it and of its memory that were ever seen. A graph is one, unless it has
    // taken the place of another one during a forward: so the number before it tells less.
    size_t fewest_owners = std::numeric_limits<size_t>::max();
    bool is_held = false;  // the graph of the last forward may have saved it, or a view of it
    at::Tensor start;      // its value at the start, if that is compared; undefined: it is not
    at::Tensor found;      // recompute: the value to put back; undefined: none
  };

  // A buffer that a graph's backward has set, and what comes back afterwards.
  struct Replaced {
    Entry* entry;
    at::Tensor value;
    int64_t version;         // the version counter that comes back
    int64_t version_of_set;  // the version counter after the value was set
  };

  void know(const std::vector<Layer>& layers, const Others& others);
  void know_again(const std::vector<Layer>& layers);
  static bool is_compared(const Entry& entry);
  // The buffer's value now, in memory of its own: the last copy, if that is still true.
  static at::Tensor copy_now(Entry& entry);
  const PhaseQuestions& questions_of(const Entry& entry) const { return questions_[entry.layer]; }
  static BufferMark mark_of(const at::Tensor& buffer);
  static bool is_as_left(const BufferValue& value);
  // A text like "the buffer '1.count' (layer 1)".
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
  // The buffers that the layers' modules have registered, each as often as it is registered.
  static std::vector<at::Tensor> registered(const std::vector<Layer>& layers);
  // Throws c10::Error if a recompute has registered other tensors in place of those at its start.
  void check_registered(const std::vector<Layer>& layers) const;

  std::vector<Replaced> replaced_;
  std::string lost_;
  bool begins_ = false;  // a run has begun, and know() has not looked yet
  bool known_ = false;   // the following members belong to this run
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

// Sets the buffers that a waiting graph has saved, until the end of its scope.
class SavedBuffersScope {
 public:
  SavedBuffersScope(LayerBuffers& buffers, const std::vector<Layer>& layers,
                    const std::vector<SavedBuffer>& saved, const LayerBuffers::Others& others)
      : buffers_(buffers), layers_(layers), done_(saved.empty()) {
    if (!done_) buffers_.begin_saved(layers_, saved, others);
  }
  ~SavedBuffersScope() {
    if (!done_) buffers_.end_saved(layers_, /*failed=*/true);
  }
  SavedBuffersScope(const SavedBuffersScope&) = delete;
  SavedBuffersScope& operator=(const SavedBuffersScope&) = delete;

  // Throws what LayerBuffers::end_saved() throws.
  void finish() {
    if (!std::exchange(done_, true)) buffers_.end_saved(layers_, /*failed=*/false);
  }

 private:
  LayerBuffers& buffers_;
  const std::vector<Layer>& layers_;
  bool done_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_CELL_LAYER_BUFFERS_H_

// Action: one piece of work of a worker, for one stage and one micro-batch.
//
// An action is a forward, a backward, or one half of a split backward; or it moves what a cell
// keeps to the host or back. It says nothing about when or where it runs; a `Schedule` puts actions
// in order.
#ifndef GPIPE_SCHEDULE_ACTION_H_
#define GPIPE_SCHEDULE_ACTION_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <tuple>

namespace gpipe {

// A cell's backward is either one kBackward, or two halves: a kInputGradient, for which the
// previous stage waits, and later a kWeightGradient, for which only the optimizer waits.
//
// kOffload and kReload are where the device's memory of what a cell keeps goes and comes back
// (docs/design/offload.md). The copy to the host begins as soon as the cell has run: kOffload is
// where its memory goes, and waits until the copy is done. The copy to the device begins at
// kReload, and the cell's next action waits for it.
enum class ActionKind : uint8_t {
  kForward,         // "F"
  kBackward,        // "B"
  kInputGradient,   // "I"
  kWeightGradient,  // "W"
  kOffload,         // "O"
  kReload,          // "L"
};

inline constexpr int kActionKinds = 6;

// Whether an action of that kind computes. The others move memory.
constexpr bool computes(ActionKind kind) { return kind <= ActionKind::kWeightGradient; }

// The letter that stands for `kind` in texts and drawings. Throws std::invalid_argument for a
// number that is not one of the kinds. Every function that writes an action does so, too, except
// <<.
char letter(ActionKind kind);
// Writes the letter. For a number that is not one of the kinds it writes "ActionKind(9)": << is for
// debugging, and never throws.
std::ostream& operator<<(std::ostream& out, ActionKind kind);

// A plain value; every function is thread-safe.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int32_t stage = 0;
  int32_t micro_batch = 0;

  // Letter, stage, dot, micro-batch: "F0.3" is the forward of stage 0 for micro-batch 3. Reserved,
  // and refused with a message that says so: the letters G (gather of parameters), R (reduction of
  // gradients) and C (the loss, or criterion), and a third number (the slice of a sequence):
  // "F0.3.1".
  std::string to_text() const;
  // The inverse of to_text(). Throws std::invalid_argument for anything that to_text() would not
  // have written.
  static Action from_text(std::string_view text);

  friend bool operator==(const Action& a, const Action& b) {
    return a.kind == b.kind && a.stage == b.stage && a.micro_batch == b.micro_batch;
  }
  friend bool operator!=(const Action& a, const Action& b) { return !(a == b); }
  friend bool operator<(const Action& a, const Action& b) {
    return std::tie(a.kind, a.stage, a.micro_batch) < std::tie(b.kind, b.stage, b.micro_batch);
  }
  // Writes to_text().
  friend std::ostream& operator<<(std::ostream& out, const Action& action);
};

}  // namespace gpipe

template <>
struct std::hash<gpipe::Action> {
  size_t operator()(const gpipe::Action& action) const noexcept {
    const uint64_t cell = (static_cast<uint64_t>(static_cast<uint32_t>(action.stage)) << 32) |
                          static_cast<uint32_t>(action.micro_batch);
    return std::hash<uint64_t>{}(cell * gpipe::kActionKinds + static_cast<uint64_t>(action.kind));
  }
};

#endif  // GPIPE_SCHEDULE_ACTION_H_

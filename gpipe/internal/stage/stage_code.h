// StageCode: the code of a stage (its layers, and the loss behind them), what it is called, and
// which of it runs or ran last.
#ifndef GPIPE_INTERNAL_STAGE_STAGE_CODE_H_
#define GPIPE_INTERNAL_STAGE_STAGE_CODE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/runtime/running_code.h"

namespace gpipe::internal {

// Code has a position: that of a layer in the stage, the number of layers for the loss, and -1 for
// no known layer.
//
// Thread-safety: none; only one thread at a time works on a stage. RunningCode says what others may
// ask.
class StageCode {
 public:
  StageCode(int64_t stage, const std::vector<Layer>& layers);

  int64_t stage() const { return stage_; }
  int64_t loss() const { return static_cast<int64_t>(names_.size()) - 2; }
  bool is_layer(int64_t position) const { return position >= 0 && position < loss(); }
  // A text like "stage 1", "layer 5 ('relu')", or "the loss function".
  const std::string& name_of(int64_t position) const { return names_[position + 1]; }

  // The code at that position runs from now on.
  void enter(int64_t position) {
    position_ = position;
    running_.enter(static_cast<size_t>(position));
  }
  // From now on no layer is blamed for an error until the next layer runs.
  void leave() { position_ = -1; }

  // The position of the code that runs, or ran last. A walk through a graph writes to it, too.
  int64_t& position() { return position_; }
  int64_t position() const { return position_; }
  const std::string& current() const { return name_of(position_); }
  bool runs_layer() const { return is_layer(position_); }
  // During each action of the stage a RunningCode::Action of this object lives.
  RunningCode& running() { return running_; }

 private:
  int64_t stage_;
  std::vector<std::string> names_;  // the stage's name, its layers', and the loss's
  int64_t position_ = -1;
  RunningCode running_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_STAGE_STAGE_CODE_H_

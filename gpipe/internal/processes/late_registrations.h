// LateRegistrations: tells the processes that have a layer on meta what it registers after the
// pipeline was made, for example in a forward.
//
// All processes number, hash and save the parameters of the whole model, so all must have the same
// names. This class keeps them the same.
#ifndef GPIPE_INTERNAL_PROCESSES_LATE_REGISTRATIONS_H_
#define GPIPE_INTERNAL_PROCESSES_LATE_REGISTRATIONS_H_

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/processes/stage_map.h"
#include "gpipe/world.h"

namespace gpipe::internal {

// Thread-safety: none; the calls of a pipeline follow one another.
class LateRegistrations {
 public:
  // The layers must be the same in all processes. In a single process nothing is recorded.
  LateRegistrations(const std::vector<std::vector<Layer>>& partitions, const StageMap& stage_map,
                    const World& world);

  // The tensors of this process's layers that other processes do not know. Empty if there are none.
  std::string news() const;

  // Registers in the layers of other processes what those processes have registered: tensors of the
  // same shapes and types on meta, under the same names, and one tensor under several names where
  // the other process has that. `news`: by rank, of all processes. Throws FoundByAll, and changes
  // nothing, if a layer has lost something that it had, or has registered something else in another
  // replica: other names, shapes or types, or a parameter with other values.
  //
  // Throws c10::Error if LibTorch refuses a name here, which it may in this process alone: a layer
  // may have registered an undefined tensor under it. So nothing counts as known by all until
  // know(), which gets what take() has returned.
  using Names = std::map<size_t, std::vector<std::string>>;  // [layer], only layers that changed
  Names take(const std::vector<std::string>& news);
  void know(Names names);

 private:
  struct Known {
    std::string key;
    std::shared_ptr<torch::nn::Module> module;
    bool is_here = false;
    std::vector<std::string> names;  // as all processes know them
  };

  std::vector<Known> layers_;
  int64_t processes_each_ = 1;
  bool has_replicas_ = false;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_LATE_REGISTRATIONS_H_

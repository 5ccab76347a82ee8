// DeviceTies: parameters that stages on several devices use, and the copies that these have.
#ifndef GPIPE_INTERNAL_RUN_DEVICE_TIES_H_
#define GPIPE_INTERNAL_RUN_DEVICE_TIES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/internal/processes/ties.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/runtime/run_lock.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {

// The parameter itself is on the device of its first use, and the only one that callers know of:
// optimizers update it, and it alone has a .grad. Each further device has a copy, which only layers
// see (TiedLayer), and only while a run lasts.
//
// Thread-safety: none; runs follow one another.
class DeviceTies {
 public:
  using Partitions = std::vector<const std::vector<Layer>*>;

  // `devices`: [stage]. Throws c10::ValueError for a layer that cannot be given a copy, and for one
  // module in stages on two devices that needs one.
  DeviceTies(const std::vector<std::vector<Layer>>& partitions, std::vector<c10::Device> devices);

  // One run at a time, also of several pipelines whose layers take copies in the same model: during
  // a run a layer has those of the run's pipeline.
  RunLock& run_lock() const { return *run_lock_; }

  // None: nothing else here has an effect.
  const std::vector<Tie>& ties() const { return ties_; }
  const std::vector<TieEdge>& edges() const { return edges_; }

  // Called after a run. Throws c10::Error if users' code has added to the .grad of a copy, which
  // nobody else sees: it is dropped. And, unless the run `records` (ModelState::check_parameters
  // says so then), if layers have changed a parameter, whose copies have the values of before.
  void check_run(bool records);

  // Called before a forward, before its model_state() is taken: the copies get the parameters'
  // values. Each time, for not all changes can be seen. What is put on the current streams from now
  // on may use them.
  void refresh(Transfers& transfers);

  std::vector<ModelState::Tied> in_model() const;

  // The streams of a run, one for each device. What is put on them is ordered behind whatever has
  // used or written the copies, in runs of other threads, too.
  void begin_run(const std::vector<c10::Stream>& streams) const;
  void end_run(const std::vector<c10::Stream>& streams);

  // While it lives, the layers use the copies of their devices.
  class Scope {
   public:
    Scope(const DeviceTies& ties, const Partitions& partitions);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    void restore() noexcept;

    struct Former {
      std::shared_ptr<torch::nn::Module> module;
      TiedLayer* layer;
      std::vector<at::Tensor> parameters;
    };
    std::vector<Former> formers_;
  };

 private:
  struct Copy {
    size_t tie;
    c10::Device device;
    at::Tensor tensor;  // undefined until the first refresh()
    // Of the parameter, when the copy got its values.
    int64_t version = 0;
    const c10::StorageImpl* storage = nullptr;
    std::shared_ptr<c10::Event> used;  // written, or read by a run, last; null: not yet
  };
  std::vector<Tie> find_ties(const std::vector<std::vector<Layer>>& partitions) const;
  void check_layers(const std::vector<std::vector<Layer>>& partitions) const;
  static void note_use(Copy& copy, const c10::Stream& stream);
  // The copy of the stage's device, or the parameter itself.
  const at::Tensor& used_in(size_t stage, const at::Tensor& parameter) const;

  std::vector<c10::Device> devices_;
  std::shared_ptr<RunLock> run_lock_;
  std::vector<Tie> ties_;
  std::vector<TieEdge> edges_;
  std::vector<Copy> copies_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_DEVICE_TIES_H_

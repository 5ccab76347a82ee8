// TiedOverDevices: parameters that stages on several devices use, and their copies on these
// devices.
#ifndef GPIPE_INTERNAL_RUN_TIED_OVER_DEVICES_H_
#define GPIPE_INTERNAL_RUN_TIED_OVER_DEVICES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/model/model_state.h"
#include "gpipe/internal/processes/tied_parameters.h"
#include "gpipe/internal/tensors/transfer.h"
#include "gpipe/runtime/run_lock.h"
#include "tied/tied_layer.h"

namespace gpipe::internal {

// The parameter itself is on the device of its first use. Callers know only this tensor: optimizers
// update it, and it alone has a .grad. Each further device has a copy, which only layers see
// (TiedLayer), and only while a run lasts.
//
// Thread-safety: none; runs follow one another.
class TiedOverDevices {
 public:
  using Partitions = std::vector<const std::vector<Layer>*>;

  // `devices`: [stage]. Throws c10::ValueError for a layer that needs a copy and cannot be given
  // one, and for a module that needs a copy and is in stages on two devices.
  TiedOverDevices(const std::vector<std::vector<Layer>>& partitions,
                  std::vector<c10::Device> devices);

  // Allows one run at a time, also of several pipelines that give copies to the same layers: during
  // a run a layer has the copies of the run's pipeline.
  RunLock& run_lock() const { return run_lock_; }

  // If there are no parameters, the other functions have no effect.
  const std::vector<TiedParameter>& parameters() const { return parameters_; }
  const std::vector<TiedEdge>& edges() const { return edges_; }

  // Called after a run. Throws c10::Error if users' code has added to the .grad of a copy: no other
  // code sees that gradient, so it is dropped. Unless the run `records`, it also throws if layers
  // have changed a parameter, because its copies have the old values. (If the run records,
  // ModelState::check_parameters reports that.)
  void check_run(bool records);

  // Gives the parameters' values to the copies. Called before each forward, because not all changes
  // of parameters can be noticed, and before its model_state() is taken. Work that is put on the
  // current streams from now on may use the copies.
  void refresh(Transfers& transfers);

  std::vector<ModelState::Tied> in_model() const;

  // Called at the start and the end of a run with its streams, one for each device. Work on these
  // streams is ordered behind all work that has read or written the copies, also in runs of other
  // threads.
  void begin_run(const std::vector<c10::Stream>& streams) const;
  void end_run(const std::vector<c10::Stream>& streams);

  // While the scope lives, the layers use the copies of their devices.
  class Scope {
   public:
    Scope(const TiedOverDevices& tied_over_devices, const Partitions& partitions);
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
    size_t parameter;
    c10::Device device;
    at::Tensor tensor;  // undefined until the first refresh()
    // The parameter's version and storage when the copy got its values.
    int64_t version = 0;
    const c10::StorageImpl* storage = nullptr;
    std::shared_ptr<c10::Event>
        used;  // recorded after the last write, or the last read by a run; null: none yet
  };
  std::vector<TiedParameter> find_parameters(
      const std::vector<std::vector<Layer>>& partitions) const;
  void check_layers(const std::vector<std::vector<Layer>>& partitions) const;
  static void note_use(Copy& copy, const c10::Stream& stream);
  // The copy of the stage's device, or the parameter itself.
  const at::Tensor& used_in(size_t stage, const at::Tensor& parameter) const;

  std::vector<c10::Device> devices_;
  mutable RunLock run_lock_;
  std::vector<TiedParameter> parameters_;
  std::vector<TiedEdge> edges_;
  std::vector<Copy> copies_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_TIED_OVER_DEVICES_H_

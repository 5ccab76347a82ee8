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

  // None: nothing else here has an effect.
  const std::vector<Tie>& ties() const { return ties_; }
  const std::vector<TieEdge>& edges() const { return edges_; }

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
  void check_layers(const std::vector<std::vector<Layer>>& partitions) const;
  static void note_use(Copy& copy, const c10::Stream& stream);
  // The copy of the stage's device, or the parameter itself.
  const at::Tensor& used_in(size_t stage, const at::Tensor& parameter) const;

  std::vector<c10::Device> devices_;
  std::vector<Tie> ties_;
  std::vector<TieEdge> edges_;
  std::vector<Copy> copies_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_RUN_DEVICE_TIES_H_

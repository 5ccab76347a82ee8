// LocalParameters: those parameters of a pipeline over several processes that are in this process.
// Functions that get a list of tensors ask it whether the list may be only a part of the model.
#ifndef GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_
#define GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace gpipe::internal {

// A LocalParameters lives as long as the pipeline over several processes whose parameters it knows.
//
// A LocalParameters refers to the parameters, and does not own them. So no thread walks modules
// while another thread registers something in them.
//
// Thread-safety: safe.
class LocalParameters {
 public:
  LocalParameters();
  ~LocalParameters();
  LocalParameters(const LocalParameters&) = delete;
  LocalParameters& operator=(const LocalParameters&) = delete;

  // Takes the parameters that are here now. The list is empty if no other process has any.
  void know(const std::vector<at::Tensor>& parameters);

  // Whether `tensors` has all parameters that this process has of a pipeline over several
  // processes. If the caller has chosen a part of them, for example to clip each layer by itself,
  // the result is false.
  static bool are_all_in(const std::vector<at::Tensor>& tensors);

 private:
  // While a weak pointer exists, no other tensor gets the address.
  using Pointer = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<Pointer> here_;  // guarded by the mutex of all LocalParameters
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_

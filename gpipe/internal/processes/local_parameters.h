// LocalParameters: the parameters of a pipeline over several processes that are in this process.
// For functions that get a list of tensors and cannot see that it is only a part.
#ifndef GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_
#define GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace gpipe::internal {

// A pipeline over several processes, from its making to its end.
//
// It refers to the parameters, and does not own them. So no thread walks modules while another
// thread registers something in them.
//
// Thread-safety: safe.
class LocalParameters {
 public:
  LocalParameters();
  ~LocalParameters();
  LocalParameters(const LocalParameters&) = delete;
  LocalParameters& operator=(const LocalParameters&) = delete;

  // Takes the parameters that are here now. Give an empty list if no other process has any.
  void know(const std::vector<at::Tensor>& parameters);

  // Whether `tensors` has all parameters that this process has of such a pipeline. A caller may
  // also choose a part of them, to clip each layer by itself, for example: then the result is
  // false.
  static bool are_all_in(const std::vector<at::Tensor>& tensors);

 private:
  // While there is such a pointer, no other tensor gets the address.
  using Pointer = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<Pointer> here_;  // guarded by a mutex of all
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_

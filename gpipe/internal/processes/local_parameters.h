// LocalParameters: the parameters that this process has of a pipeline over several processes, for
// functions that get a list of tensors and cannot see that it is only a part.
#ifndef GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_
#define GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace gpipe::internal {

// A pipeline over several processes, from its making to its end.
//
// Thread-safety: safe; `list` is called by any thread that asks are_all_in().
class LocalParameters {
 public:
  // `list`: the parameters that are here; empty where no other process has any.
  explicit LocalParameters(std::function<std::vector<at::Tensor>()> list);
  ~LocalParameters();
  LocalParameters(const LocalParameters&) = delete;
  LocalParameters& operator=(const LocalParameters&) = delete;

  // Whether `tensors` has all parameters that this process has of such a pipeline. A caller may
  // also choose a part of them, to clip each layer by itself, for example: then the result is
  // false.
  static bool are_all_in(const std::vector<at::Tensor>& tensors);

 private:
  std::function<std::vector<at::Tensor>()> list_;
};

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_PROCESSES_LOCAL_PARAMETERS_H_

// Autocast, KeepsGenerator: scopes that change a mode, or keep a state, as long as they live.
#ifndef COMMON_MODES_H_
#define COMMON_MODES_H_

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

namespace examples {

// While this object lives, and if `bfloat16` is true, operators that gain from bfloat16 compute in
// it. Parameters and their gradients stay as they are (docs/guide/12-mixed-precision.md).
class Autocast {
 public:
  Autocast(at::DeviceType device, bool bfloat16);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool on_;
};

// Puts the state of the random generator back when it is destroyed. So what is drawn while this
// object lives does not affect the training: a run that validates more often, or is stopped and
// resumed, has the same dropout.
class KeepsGenerator {
 public:
  KeepsGenerator();
  ~KeepsGenerator();
  KeepsGenerator(const KeepsGenerator&) = delete;
  KeepsGenerator& operator=(const KeepsGenerator&) = delete;

 private:
  at::Tensor state_;
};

}  // namespace examples

#endif  // COMMON_MODES_H_

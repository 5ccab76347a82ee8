// FakeGenerator: a generator of random numbers for the fake devices. It draws the same numbers as a
// CPU generator with the same seed.
#ifndef GPIPE_TESTING_FAKE_ACCELERATOR_GENERATOR_H_
#define GPIPE_TESTING_FAKE_ACCELERATOR_GENERATOR_H_

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/GeneratorImpl.h>

#include <cstdint>

namespace gpipe::testing::fake {

// It wraps a CPU generator, because LibTorch treats a generator of the CPU's class as one of the
// CPU, whatever its device is.
//
// Thread-safety: as in LibTorch, the caller holds the generator's mutex.
class FakeGenerator final : public c10::GeneratorImpl {
 public:
  explicit FakeGenerator(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_offset(uint64_t offset) override;  // throws c10::Error, as a CPU generator does
  uint64_t get_offset() const override;       // throws c10::Error, too
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The generator from which kernels draw.
  at::Generator& on_cpu() { return cpu_; }

  // Whether a graph that is being recorded may draw from this generator, as
  // register_generator_state() of LibTorch's CUDA graphs says. Graphs may always draw from a
  // device's default generator.
  void set_recordable(bool recordable) { recordable_ = recordable; }
  bool is_recordable() const { return recordable_; }

 private:
  FakeGenerator* clone_impl() const override;

  at::Generator cpu_;
  bool recordable_ = false;
};

// Requirements: the device exists.
const at::Generator& default_generator(c10::DeviceIndex device);

}  // namespace gpipe::testing::fake

#endif  // GPIPE_TESTING_FAKE_ACCELERATOR_GENERATOR_H_

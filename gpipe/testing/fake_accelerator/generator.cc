#include "gpipe/testing/fake_accelerator/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DispatchKeySet.h>

#include <vector>

#include "gpipe/testing/fake_accelerator/runtime.h"

namespace gpipe::testing::fake {

FakeGenerator::FakeGenerator(c10::DeviceIndex device)
    : GeneratorImpl({c10::kPrivateUse1, device},
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      cpu_(at::detail::createCPUGenerator()) {}

void FakeGenerator::set_current_seed(uint64_t seed) { cpu_.set_current_seed(seed); }
uint64_t FakeGenerator::current_seed() const { return cpu_.current_seed(); }
uint64_t FakeGenerator::seed() { return cpu_.seed(); }
void FakeGenerator::set_offset(uint64_t offset) { cpu_.set_offset(offset); }
uint64_t FakeGenerator::get_offset() const { return cpu_.get_offset(); }
void FakeGenerator::set_state(const c10::TensorImpl& state) {
  cpu_.unsafeGetGeneratorImpl()->set_state(state);
}
c10::intrusive_ptr<c10::TensorImpl> FakeGenerator::get_state() const {
  return cpu_.unsafeGetGeneratorImpl()->get_state();
}

FakeGenerator* FakeGenerator::clone_impl() const {
  auto* copy = new FakeGenerator(device().index());  // LibTorch owns it
  copy->cpu_ = cpu_.clone();
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  // The generators are never destroyed, because LibTorch may ask for one until the process ends.
  static const auto& all = *[] {
    auto* generators = new std::vector<at::Generator>;
    for (int i = 0; i < kDevices; ++i) {
      generators->push_back(at::make_generator<FakeGenerator>(static_cast<c10::DeviceIndex>(i)));
      static_cast<FakeGenerator*>(generators->back().unsafeGetGeneratorImpl())
          ->set_recordable(true);
    }
    return generators;
  }();
  return all.at(static_cast<size_t>(device));
}

}  // namespace gpipe::testing::fake

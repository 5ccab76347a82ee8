#include "gpipe/testing/fake_accelerator/backend.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "gpipe/testing/fake_accelerator/generator.h"

namespace gpipe::testing::fake {
namespace {

// Each thread has a current device of its own, as with a driver.
thread_local int current_device = 0;
thread_local int current_streams[kDevices] = {};

std::atomic<bool> made_current[kDevices] = {};

int index_of(c10::Device device) { return device.index() < 0 ? current_device : device.index(); }

void check_index(int index) {
  TORCH_CHECK(index >= 0 && index < kDevices, "there are ", kDevices, " fake devices, not number ",
              index);
}

// Each kernel runs on a single thread, because many streams share the CPU and the result of a
// kernel must not depend on its number of threads. LibTorch's at::set_num_threads() would set the
// default of other threads as well.
void compute_on_one_thread() {
  (void)at::get_num_threads();  // the first call sets this thread's number
  using SetThreads = void (*)(int);
  static const auto set_threads =
      reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  TORCH_INTERNAL_ASSERT(set_threads != nullptr, "LibTorch without OpenMP");
  set_threads(1);
  TORCH_INTERNAL_ASSERT(at::get_num_threads() == 1);
}

// Each stream's thread runs this function before anything else.
void prepare_thread() {
  compute_on_one_thread();
  // Kernels are CPU kernels, so they run below autograd.
  static thread_local const at::AutoDispatchBelowADInplaceOrView below;
  // A kernel must not run while static objects of LibTorch are destroyed. The handler is registered
  // here and not earlier because the last registered is called first, and few static objects are
  // made from now on. A forked child has no threads to end.
  static std::once_flag once;
  std::call_once(once, [] {
    static const pid_t owner = getpid();
    std::atexit([] {
      if (getpid() == owner) runtime().shut_down();
    });
  });
}

OutOfMemoryObserver& out_of_memory_observer() {
  static auto& observer = *new OutOfMemoryObserver;
  return observer;
}

class DeviceMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device here = device(current_device);
    if (bytes == 0) return {nullptr, nullptr, &release, here};
    try {
      void* block = fake::allocator().allocate(current_stream(here), bytes);
      return {block, block, &release, here};
    } catch (const fake::Allocator::Short& error) {
      if (out_of_memory_observer()) {
        out_of_memory_observer()(here, error.asked, error.free, error.total);
      }
      TORCH_CHECK_WITH(OutOfMemoryError, false, here, " is out of memory: ", error.asked,
                       " bytes were asked for, and ", error.free, " of ", error.total, " are free");
    }
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    runtime().launch(current_stream(device(current_device)),
                     {"lazy clone",
                      Task::Kind::kKernel,
                      {{Footprint(from, bytes), false}, {Footprint(to, bytes), true}},
                      [=] { std::memcpy(to, from, bytes); },
                      {}});
  }

 private:
  static void release(void* block) {
    if (block != nullptr) fake::allocator().free(block);
  }
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::kCPU};
    void* block = fake::allocator().allocate_pinned(bytes);
    return {block, block, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void release(void* block) {
    if (block != nullptr) fake::allocator().free(block);
  }
};

DeviceMemory device_memory;
PinnedMemory pinned_memory;

// Notes what calls of events do on CUDA in c10: they make their device current, and then the former
// device again.
void make_current_and_back(c10::Device here) {
  made_current[index_of(here)] = true;
  made_current[current_device] = true;
}

class GuardImpl final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceType static_type = c10::kPrivateUse1;

  c10::DeviceType type() const override { return static_type; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Device getDevice() const override { return device(current_device); }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.is_privateuseone(), "no fake device: ", device);
    check_index(index_of(device));
    uncheckedSetDevice(device);
    made_current[current_device] = true;
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = index_of(device);
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device former = getDevice();
    setDevice(device);
    return former;
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream_of(current_stream(device));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream_of({index_of(device), 0});
  }
  // Streams of the pool are given out in turn, as LibTorch gives out those of CUDA.
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    static std::atomic<unsigned> next[kDevices];
    const int index = index_of(device);
    check_index(index);
    return stream_of({index, 1 + static_cast<int>(next[index]++ % (kStreams - 1))});
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return getStreamFromGlobalPool(device, false);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream former = getStream(stream.device());
    const StreamId id = id_of(stream);
    current_streams[id.device] = id.number;
    return former;
  }
  bool queryStream(const c10::Stream& stream) const override {
    return runtime().is_idle(id_of(stream));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    runtime().synchronize(id_of(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    runtime().synchronize_device(device);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
              const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) *event = new Event;  // destroyEvent() deletes it
    make_current_and_back(stream.device());
    *static_cast<Event*>(*event) = runtime().record(id_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    make_current_and_back(stream.device());
    runtime().wait(id_of(stream), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || runtime().query(*static_cast<Event*>(event));
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) runtime().synchronize(*static_cast<Event*>(event));
  }
  void destroyEvent(void* event, const c10::DeviceIndex index) const noexcept override {
    if (event == nullptr) return;
    make_current_and_back(device(index));
    delete static_cast<Event*>(event);
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get() != nullptr) allocator().record(data.get(), id_of(stream));
  }
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(current_device);
  }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    check_index(device);
    current_device = device;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex former = getCurrentDevice();
    if (device >= 0) setCurrentDevice(device);
    return former;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? getCurrentDevice() : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<FakeGenerator>(device < 0 ? getCurrentDevice() : device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* address) const override { return allocator().is_pinned(address); }
};

// `Process` is never destroyed, because tensors in static objects may be freed after everything
// else.
struct Process {
  Runtime runtime{&prepare_thread};
  Allocator allocator{runtime};
};

Process& process() {
  static Process& instance = *new Process;
  return instance;
}

[[maybe_unused]] const bool registered = [] {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new Hooks);  // LibTorch keeps it
  return true;
}();

}  // namespace

REGISTER_ALLOCATOR(c10::kPrivateUse1, &device_memory);
C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

void observe_out_of_memory(OutOfMemoryObserver observer) {
  out_of_memory_observer() = std::move(observer);
}

Runtime& runtime() { return process().runtime; }
Allocator& allocator() { return process().allocator; }
c10::Allocator* device_allocator() { return &device_memory; }

bool was_made_current(int device) {
  check_index(device);
  return made_current[device];
}

c10::Device device(int number) {
  check_index(number);
  return c10::Device(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(number));
}

StreamId current_stream(c10::Device device) {
  const int index = index_of(device);
  check_index(index);
  return {index, current_streams[index]};
}

StreamId id_of(c10::Stream stream) {
  TORCH_CHECK(stream.device_type() == c10::kPrivateUse1, "no stream of a fake device: ", stream);
  return {stream.device_index(), static_cast<int>(stream.id())};
}

c10::Stream stream_of(StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, device(id.device), id.number);
}

}  // namespace gpipe::testing::fake

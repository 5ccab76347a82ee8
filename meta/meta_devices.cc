#include "meta/meta_devices.h"

#include <ATen/RedispatchFunctions.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/resize_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <optional>

#include "interception/allocations.h"
#include "interception/interception.h"

namespace gpipe {
namespace {

thread_local c10::DeviceIndex index_of_this_thread = -1;

// The guard of meta devices. Nothing runs on them, so all work that was put there counts as done.
struct MetaDevices final : c10::impl::NoOpDeviceGuardImpl<c10::kMeta> {
  c10::Device getDevice() const override { return {c10::kMeta, index_of_this_thread}; }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    index_of_this_thread = device.index();
  }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device former = getDevice();
    uncheckedSetDevice(device);
    return former;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(kMostMetaDevices);
  }

  c10::Stream getStream(c10::Device device) const noexcept override { return stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return stream(device);
  }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return stream(device);
  }
  c10::Stream exchangeStream(c10::Stream former) const noexcept override { return former; }

  void record(void** event, const c10::Stream& /*stream*/, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    static char recorded;
    *event = &recorded;  // not null, so it counts as an event that was recorded
  }
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  void synchronizeEvent(void* /*event*/) const override {}
  void synchronizeDevice(c10::DeviceIndex /*device*/) const override {}

 private:
  static c10::Stream stream(c10::Device device) {
    return c10::Stream(c10::Stream::DEFAULT,
                       device.has_index() ? device : c10::Device(c10::kMeta, index_of_this_thread));
  }
};

// LibTorch's kernel for ranges accepts `meta`, but takes `meta:1` for a device with values. So the
// range is made on `meta`, and only its shape is used.
template <typename Make>
at::Tensor& shape_only(at::Tensor& out, const Make& make) {
  at::Tensor elsewhere;
  {
    const PlainMetaScope plain;
    elsewhere = at::empty({0}, out.options());
    make(elsewhere);
  }
  out.resize_(elsewhere.sizes());
  return out;
}

at::Tensor& arange(c10::DispatchKeySet keys, const at::Scalar& start, const at::Scalar& end,
                   const at::Scalar& step, at::Tensor& out) {
  const auto make = [&](at::Tensor& result) {
    at::redispatch::arange_outf(internal::after_interception(keys), start, end, step, result);
  };
  if (out.is_meta()) return shape_only(out, make);
  make(out);
  return out;
}

at::Tensor& range(c10::DispatchKeySet keys, const at::Scalar& start, const at::Scalar& end,
                  const at::Scalar& step, at::Tensor& out) {
  const auto make = [&](at::Tensor& result) {
    at::redispatch::range_outf(internal::after_interception(keys), start, end, step, result);
  };
  if (out.is_meta()) return shape_only(out, make);
  make(out);
  return out;
}

at::Tensor& linspace(c10::DispatchKeySet keys, const at::Scalar& start, const at::Scalar& end,
                     int64_t steps, at::Tensor& out) {
  if (out.is_meta()) {
    out.resize_({steps});
    return out;
  }
  return at::redispatch::linspace_outf(internal::after_interception(keys), start, end, steps, out);
}

at::Tensor& logspace(c10::DispatchKeySet keys, const at::Scalar& start, const at::Scalar& end,
                     int64_t steps, double base, at::Tensor& out) {
  if (out.is_meta()) {
    out.resize_({steps});
    return out;
  }
  return at::redispatch::logspace_outf(internal::after_interception(keys), start, end, steps, base,
                                       out);
}

// LibTorch enlarges a meta tensor without asking the meta allocator. Many kernels (abs, pow, erf,
// moments) begin with an empty result and enlarge it; without this function no observer would see
// the memory of such results.
const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef sizes,
                         std::optional<at::MemoryFormat> format) {
  c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
  const auto before = storage->sym_nbytes().maybe_as_int();
  at::native::resize__symint(self, sizes, format);
  const auto after = storage->sym_nbytes().maybe_as_int();
  if (!before || !after || *after <= *before) return self;
  const c10::DeviceGuard guard(storage->device());
  storage->set_data_ptr_noswap(
      c10::GetAllocator(c10::kMeta)->allocate(static_cast<size_t>(*after)));
  return self;
}

void add_ranges(torch::Library& aten) {
  aten.impl("arange.start_out", &arange);
  aten.impl("range.out", &range);
  aten.impl("linspace.out", &linspace);
  aten.impl("logspace.out", &logspace);
}

}  // namespace

PlainMetaScope::PlainMetaScope()
    : former_(c10::impl::VirtualGuardImpl(c10::kMeta).exchangeDevice(c10::Device(c10::kMeta))) {}

PlainMetaScope::~PlainMetaScope() { c10::impl::VirtualGuardImpl(c10::kMeta).setDevice(former_); }

void install_meta_devices() {
  static const bool installed = [] {
    internal::install_allocators();
    static const internal::Interceptor ranges(&add_ranges);
    // The library is never unregistered, because threads may outlive static destruction.
    static auto* const aten = new torch::Library(torch::Library::IMPL, "aten",
                                                 c10::DispatchKey::Meta, __FILE__, __LINE__);
    aten->impl("resize_", &resize);
    // LibTorch keeps this pointer until the process ends.
    c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::kMeta)] = new MetaDevices;
    return true;
  }();
  (void)installed;
}

}  // namespace gpipe

#include "gpipe/testing/fake_accelerator/copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>

#include <string>

#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/tensors.h"

namespace gpipe::testing::fake {
namespace {

Task copy_task(const std::string& name, Task::Kind kind, const at::Tensor& from,
               const at::Tensor& to) {
  return {name,
          kind,
          {access_of(from, /*write=*/false), access_of(to, /*write=*/true)},
          // The task gets aliases, because a stream's thread must neither keep nor free a host
          // tensor.
          [x = alias_on_cpu(from), y = alias_on_cpu(to)] { y.copy_(x); },
          {}};
}

void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  const StreamId source = current_stream(from.device());
  if (from.device() == to.device()) {
    runtime().launch(source, copy_task("copy", Task::Kind::kKernel, from, to));
    return;
  }
  const StreamId target = current_stream(to.device());
  runtime().throw_error(target.device);
  runtime().wait(source, runtime().record(target));
  runtime().launch(source, copy_task("copy between devices", Task::Kind::kCopy, from, to));
  runtime().wait(target, runtime().record(source));
}

// Whether a copy of one run of bytes is enough, so that no kernel is needed.
bool same_layout(const at::Tensor& from, const at::Tensor& to) {
  if (from.dtype() != to.dtype() || !from.is_non_overlapping_and_dense()) return false;
  for (int64_t d = 0; d < from.dim(); ++d) {
    if (from.size(d) > 1 && from.stride(d) != to.stride(d)) return false;
  }
  return true;
}

// Copies between host and device if both tensors have the same layout.
void copy_bytes(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool from_host = from.is_cpu();
  const at::Tensor& host = from_host ? from : to;
  const StreamId stream = current_stream((from_host ? to : from).device());
  const bool pinned = host.is_pinned();
  const bool waits = !non_blocking || !pinned;
  const std::string what = from_host ? "copy from the host" : "copy to the host";
  if (!waits) allocator().record(host.const_data_ptr(), stream);
  runtime().launch(stream, copy_task(what, Task::Kind::kCopy, from, to));
  if (!waits) return;
  runtime().synchronize(stream, Wait::kImplied,
                        what + (non_blocking ? ", of memory that is not pinned" : ", blocking"));
}

}  // namespace

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (to.numel() == 0) return to;
  const at::Tensor source = from.expand_as(to);
  if (is_fake(source) && is_fake(to)) {
    copy_between_devices(source, to);
  } else if (same_layout(source, to)) {
    copy_bytes(source, to, non_blocking);
  } else if (is_fake(to)) {
    // The host converts the values into memory that is not pinned, and the device applies the
    // strides.
    const at::Tensor packed = source.to(to.scalar_type()).contiguous();
    if (!packed.is_same(source)) {
      runtime().host_access("conversion by the host", access_of(source, /*write=*/false));
    }
    const at::Tensor target =
        to.is_contiguous() ? to : at::empty_like(to, at::MemoryFormat::Contiguous);
    copy_bytes(packed, target, non_blocking);
    if (!target.is_same(to)) to.copy_(target, non_blocking);
  } else {
    // The device makes the values contiguous, and the host converts them and applies the strides.
    const at::Tensor packed = source.contiguous();
    const at::Tensor target =
        to.is_contiguous() && to.dtype() == source.dtype()
            ? to
            : at::empty_like(to, to.options().dtype(source.dtype()), at::MemoryFormat::Contiguous);
    copy_bytes(packed, target, non_blocking);
    if (!target.is_same(to)) {
      runtime().host_access("conversion by the host", access_of(to, /*write=*/true));
      to.copy_(target);
    }
  }
  return to;
}

c10::Scalar value_of(const at::Tensor& tensor) {
  const StreamId stream = current_stream(tensor.device());
  runtime().launch(stream,
                   {"item", Task::Kind::kCopy, {access_of(tensor, /*write=*/false)}, nullptr, {}});
  runtime().synchronize(stream, Wait::kImplied, "item");
  return alias_on_cpu(tensor).item();
}

}  // namespace gpipe::testing::fake

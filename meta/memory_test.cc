// Tests that the tensors that a model keeps have as many bytes on meta as on the CPU: outputs,
// tensors saved by autograd, gradients.

#include <ATen/Functions.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/transformerlayer.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "meta/meta_kernels.h"
#include "meta/testing/same_on_meta.h"
#include "models/amoebanetd.h"
#include "models/resnet.h"
#include "models/unet.h"

namespace gpipe {
namespace {

using testing::Trial;
using torch::nn::Sequential;
namespace nn = torch::nn;

// Counts the bytes that tensors of one device hold.
class Counter : public c10::Allocator {
 public:
  int64_t bytes() const { return bytes_; }

 protected:
  explicit Counter(c10::DeviceType device) { c10::SetAllocator(device, this, /*priority=*/255); }
  std::atomic<int64_t> bytes_ = 0;
};

// Counts the bytes of meta tensors, which have no memory.
class MetaCounter final : public Counter {
 public:
  MetaCounter() : Counter(c10::kMeta) {}

  c10::DataPtr allocate(size_t bytes) override {
    bytes_ += static_cast<int64_t>(bytes);
    return {nullptr, new Piece{this, static_cast<int64_t>(bytes)}, &release, c10::kMeta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  struct Piece {
    MetaCounter* counter;
    int64_t bytes;
  };
  static void release(void* context) {
    auto* const piece = static_cast<Piece*>(context);
    piece->counter->bytes_ -= piece->bytes;
    delete piece;
  }
};

// Counts the bytes of CPU tensors. Some code of LibTorch expects that the context of a block is its
// memory, so the size is kept in front of the memory.
class CPUCounter final : public Counter {
 public:
  CPUCounter() : Counter(c10::kCPU) {}

  c10::DataPtr allocate(size_t bytes) override {
    char* const memory = static_cast<char*>(std::aligned_alloc(kFront, rounded(bytes) + kFront));
    *reinterpret_cast<size_t*>(memory) = bytes;
    bytes_ += static_cast<int64_t>(bytes);
    return {memory + kFront, memory + kFront, &release, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  static CPUCounter& only() {
    static auto* const counter = new CPUCounter;
    return *counter;
  }

 private:
  static constexpr size_t kFront = 64;
  static size_t rounded(size_t bytes) { return (bytes + kFront - 1) / kFront * kFront; }
  static void release(void* data) {
    char* const memory = static_cast<char*>(data) - kFront;
    only().bytes_ -= static_cast<int64_t>(*reinterpret_cast<size_t*>(memory));
    std::free(memory);
  }
};

const Counter& counter(bool on_meta) {
  static auto* const meta = new MetaCounter;
  if (on_meta) return *meta;
  return CPUCounter::only();
}

using Make = std::function<Sequential()>;

struct Bytes {
  int64_t built, after_forward, after_backward;

  bool operator==(const Bytes& other) const {
    return built == other.built && after_forward == other.after_forward &&
           after_backward == other.after_backward;
  }
  friend std::ostream& operator<<(std::ostream& stream, const Bytes& bytes) {
    return stream << bytes.built << " built, " << bytes.after_forward << " after forward, "
                  << bytes.after_backward << " after backward";
  }
};

Bytes measure(bool on_meta, const Make& make, at::IntArrayRef sizes, bool evaluate) {
  const Counter& device = counter(on_meta);
  const int64_t before = device.bytes();
  Bytes bytes;
  Trial trial(on_meta);
  Sequential model = trial.module(make);
  model->train(!evaluate);
  const at::Tensor input = trial.leaf(sizes);
  bytes.built = device.bytes() - before;
  at::Tensor output = model->forward(input);
  bytes.after_forward = device.bytes() - before;
  output = output.sum();
  output.backward();
  bytes.after_backward = device.bytes() - before;
  return bytes;
}

struct MemoryCase {
  const char* name;
  Make make;
  std::vector<int64_t> sizes;
};

const MemoryCase kCases[] = {
    {"convolutions",
     [] {
       return Sequential(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), nn::BatchNorm2d(8),
                         nn::ReLU(), nn::MaxPool2d(2), nn::Conv2d(8, 8, 3),
                         nn::ReLU(nn::ReLUOptions(true)),
                         nn::ConvTranspose2d(nn::ConvTranspose2dOptions(8, 4, 2).stride(2)));
     },
     {4, 3, 32, 32}},
    {"norms",
     [] {
       return Sequential(nn::LayerNorm(nn::LayerNormOptions({16})), nn::Linear(16, 32), nn::GELU(),
                         nn::Dropout(0.5), nn::SiLU(), nn::LogSigmoid(), nn::Softmax(1));
     },
     {8, 16}},
    {"transformer",
     [] {
       return Sequential(nn::TransformerEncoderLayer(
           nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(64).dropout(0.1)));
     },
     {5, 3, 16}},
    {"ResNet",
     [] {
       return models::resnet(models::ResNetOptions({1, 2}).num_classes(5).base_planes(4));
     },
     {2, 3, 32, 32}},
    {"U-Net",
     [] { return models::unet(models::UNetOptions().depth(2).num_convs(2).base_channels(4)); },
     {2, 3, 32, 32}},
    {"AmoebaNet-D",
     [] {
       return models::amoebanetd(
           models::AmoebaNetDOptions().num_layers(3).num_filters(16).num_classes(5));
     },
     {2, 3, 224, 224}},
};

TEST(MemoryOnMeta, IsThatOfTheCPU) {
  install_meta_kernels();
  for (const auto& [name, make, sizes] : kCases) {
    for (const bool evaluate : {false, true}) {
      SCOPED_TRACE(c10::str(name, evaluate ? " in evaluation" : ""));
      const Bytes real = measure(/*on_meta=*/false, make, sizes, evaluate);
      EXPECT_EQ(measure(/*on_meta=*/true, make, sizes, evaluate), real);
      EXPECT_GT(real.after_forward, real.built);
    }
  }
}

}  // namespace
}  // namespace gpipe

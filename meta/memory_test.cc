// What a model keeps on meta has the bytes that it has on the CPU: outputs, what autograd saved,
// gradients.

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

// Counts the bytes that tensors of one device hold. The memory itself is `memory`'s, if there is
// one.
class Counter final : public c10::Allocator {
 public:
  Counter(c10::DeviceType device, c10::Allocator* memory) : device_(device), memory_(memory) {
    c10::SetAllocator(device, this, /*priority=*/255);
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = memory_ != nullptr ? memory_->allocate(bytes) : c10::DataPtr();
    void* const data = memory.get();
    bytes_ += static_cast<int64_t>(bytes);
    return {data, new Piece{this, static_cast<int64_t>(bytes), std::move(memory)}, &release,
            device_};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    if (memory_ != nullptr) default_copy_data(to, from, bytes);
  }

  int64_t bytes() const { return bytes_; }

 private:
  struct Piece {
    Counter* counter;
    int64_t bytes;
    c10::DataPtr memory;
  };

  static void release(void* context) {
    auto* const piece = static_cast<Piece*>(context);
    piece->counter->bytes_ -= piece->bytes;
    delete piece;
  }

  c10::DeviceType device_;
  c10::Allocator* memory_;
  int64_t bytes_ = 0;
};

const Counter& counter(bool on_meta) {
  static auto* const cpu = new Counter(c10::kCPU, c10::GetAllocator(c10::kCPU));
  static auto* const meta = new Counter(c10::kMeta, nullptr);
  return on_meta ? *meta : *cpu;
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

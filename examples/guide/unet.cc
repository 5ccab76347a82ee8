// The program of chapter 11: skips, and a U-Net from start to end.

#include "models/unet.h"

#include <torch/torch.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "examples/guide/guide.h"
#include "gpipe/gpipe.h"
#include "skip/skip.h"

namespace {

namespace nn = torch::nn;

// [stash]
// #include "skip/skip.h"
struct StashImpl : torch::nn::Module, gpipe::skip::Skippable {
  StashImpl() : Skippable(/*stashes=*/{"skip"}, /*pops=*/{}) {}
  torch::Tensor forward(torch::Tensor x) {
    stash("skip", x);
    return x;
  }
};
TORCH_MODULE(Stash);
// [/stash]

// [pop]
struct PopCatImpl : torch::nn::Module, gpipe::skip::Skippable {
  PopCatImpl() : Skippable(/*stashes=*/{}, /*pops=*/{"skip"}) {}
  // (N, C, H, W) -> (N, C + skip's C, H, W)
  torch::Tensor forward(torch::Tensor x) { return torch::cat({x, pop("skip")}, /*dim=*/1); }
};
TORCH_MODULE(PopCat);
// [/pop]

// [convolutions]
void push_convolutions(torch::nn::Sequential& model, int64_t in, int64_t out) {
  model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
  model->push_back(torch::nn::InstanceNorm2d(out));
  model->push_back(torch::nn::LeakyReLU());
}
// [/convolutions]

// [unet]
// (N, 1, H, W) -> (N, 1, H, W), for H and W that are multiples of 2^depth.
torch::nn::Sequential small_unet(int64_t depth, int64_t channels) {
  std::vector<gpipe::skip::Namespace> levels(depth);  // each is different from all others
  torch::nn::Sequential model;
  int64_t in = 1;
  for (int64_t level = 0; level < depth; ++level) {
    push_convolutions(model, in, channels << level);
    model->push_back(gpipe::skip::isolate(Stash(), levels[level]));
    model->push_back(torch::nn::MaxPool2d(2));
    in = channels << level;
  }
  push_convolutions(model, in, in);
  for (int64_t level = depth - 1; level >= 0; --level) {
    const auto twice = torch::nn::UpsampleOptions().scale_factor(std::vector<double>{2, 2});
    model->push_back(torch::nn::Upsample(twice));
    model->push_back(gpipe::skip::isolate(PopCat(), levels[level]));
    push_convolutions(model, 2 * (channels << level),
                      level > 0 ? channels << (level - 1) : channels);
  }
  model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, 1, 1)));
  return model;
}
// [/unet]

// Images with a bright square each on noise, and masks of the squares.
std::pair<torch::Tensor, torch::Tensor> squares(int64_t rows) {
  const torch::Tensor masks = torch::zeros({rows, 1, 32, 32});
  for (int64_t n = 0; n < rows; ++n) {
    const int64_t top = torch::randint(24, {1}).item<int64_t>();
    const int64_t left = torch::randint(24, {1}).item<int64_t>();
    masks[n][0].slice(0, top, top + 8).slice(1, left, left + 8).fill_(1);
  }
  return {masks + 0.5 * torch::randn({rows, 1, 32, 32}), masks};
}

torch::Tensor mask_loss(torch::Tensor logits, torch::Tensor masks) {
  return torch::nn::functional::binary_cross_entropy_with_logits(logits, masks);
}

const guide::Chapter kSkips("11", [] {
  torch::manual_seed(0);
  // [unet_train]
  auto model = small_unet(/*depth=*/2, /*channels=*/8);
  gpipe::GPipe pipe(model, gpipe::GPipeOptions({9, 6, 9}).chunks(4));
  torch::optim::Adam optimizer(pipe->parameters(), 0.01);
  for (int step = 0; step < 30; ++step) {
    auto [images, masks] = squares(16);  // (16, 1, 32, 32) both
    optimizer.zero_grad();
    pipe->step({images}, {masks}, mask_loss);
    optimizer.step();
  }
  // [/unet_train]
  pipe->eval();
  auto [images, masks] = squares(16);
  torch::NoGradGuard no_grad;
  const torch::Tensor guessed = pipe->forward(images) > 0;
  const double right = guessed.eq(masks > 0.5).to(torch::kFloat).mean().item<double>();
  std::cout << "pixels that are right: " << right << "\n";
  guide::expect(right > 0.97, "the U-Net finds the squares");

  // [unet_routes]
  std::cout << pipe->routes();
  // [/unet_routes]
  guide::expect(pipe->routes().size() == 4, "two activations and two skips cross the cuts");

  // The same layers in the plain model.
  guide::expect(pipe->sequential()->forward(images).allclose(pipe->forward(images), 1e-4, 1e-5),
                "the same layers work without a pipeline");
  // [zoo]
  // #include "models/unet.h"
  auto big = gpipe::models::unet(gpipe::models::UNetOptions().depth(5).base_channels(64));
  // [/zoo]
  guide::expect(big->size() == 241, "U-Net (5, 64) has 241 layers");
});

const guide::Answer kRoutes("11.1", [](std::ostream& out) {
  for (const std::vector<int64_t>& balance : {std::vector<int64_t>{9, 6, 9}, {8, 8, 8}, {12, 12}}) {
    torch::manual_seed(0);
    gpipe::GPipe pipe(small_unet(2, 8), balance);
    int64_t skips = 0;
    const gpipe::Routes routes = pipe->routes();
    for (int64_t stage = 0; stage < routes.stages(); ++stage) {
      for (const gpipe::RouteId id : routes.outgoing(stage)) {
        if (!routes.skip(id)) continue;
        out << "skip from partition " << routes[id].source_stage << " to "
            << routes[id].target_stage << "; ";
        ++skips;
      }
    }
    out << skips << " in all, balance";
    for (const int64_t layers : balance) out << " " << layers;
    out << "\n";
  }
});

const guide::Answer kNotIsolated("11.2", [](std::ostream& out) {
  nn::Sequential model(Stash(), Stash(), nn::Conv2d(nn::Conv2dOptions(1, 1, 1)), PopCat(),
                       PopCat());
  out << guide::message_of([&] { gpipe::GPipe(model, {2, 3}); }) << "\n";
});

// [residual]
struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(int64_t width) {
    linear = register_module("linear", torch::nn::Linear(width, width));
  }
  torch::Tensor forward(torch::Tensor x) { return x + linear(x).relu(); }
  torch::nn::Linear linear = nullptr;
};
// [/residual]

const guide::Answer kForgotten("11.3", [](std::ostream& out) {
  struct ForgetfulImpl : torch::nn::Module, gpipe::skip::Skippable {
    ForgetfulImpl() : Skippable({"skip"}, {}) {}
    torch::Tensor forward(torch::Tensor x) { return x; }
  };
  nn::Sequential model(std::make_shared<ForgetfulImpl>(), PopCat());
  gpipe::GPipe pipe(model, {1, 1});
  out << guide::message_of([&] { pipe->forward(torch::ones({1, 1, 2, 2})); }) << "\n";
  guide::expect(ResidualImpl(4).forward(torch::ones({2, 4})).size(1) == 4,
                "a sum within one layer needs no skip");
});

}  // namespace

#include "gpipe/optim/muon.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/optim/fused.h"
#include "gpipe/saving/saving.h"
#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/cpu_options.h"
#include "gpipe/testing/torch_seed.h"

namespace gpipe {
namespace {

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::optim::OptimizerParamGroup;

at::Tensor matrix(int64_t rows, int64_t columns) {
  return (torch::arange(rows * columns).to(at::kFloat).view({rows, columns}) * 0.37).sin();
}

// The parameters that torch.optim.Muon of Python's torch 2.15.0 computes for matrix(3, 2) and
// matrix(2, 5) in three steps with the gradients (2 + step) * cos(parameter) and lr 0.1.
struct Golden {
  MuonScale scale;
  bool nesterov;
  std::vector<float> tall;
  std::vector<float> wide;
};
const std::vector<Golden>& golden() {
  static const auto* const values = new std::vector<Golden>{
      {MuonScale::kOriginal,
       true,
       {-0.102556802F, 0.18891871F, 0.392827153F, 0.950291932F, 1.02615941F, 0.705838382F},
       {-0.162052274F, 0.223425612F, 0.594017684F, 0.868766665F, 0.98520273F, 0.957917094F,
        0.757613659F, 0.426879168F, 0.0400618501F, -0.326746464F}},
      {MuonScale::kOriginal,
       false,
       {-0.103037633F, 0.187028885F, 0.397128075F, 0.946931243F, 1.02351856F, 0.707297385F},
       {-0.16204837F, 0.223620936F, 0.593640745F, 0.868229091F, 0.984713852F, 0.957155883F,
        0.757068694F, 0.426683903F, 0.0402473956F, -0.326957315F}},
      {MuonScale::kMatchRmsAdamW,
       true,
       {-0.0283890516F, 0.30451414F, 0.581346035F, 0.891340137F, 0.981928587F, 0.87065959F},
       {-0.0731690079F, 0.293704152F, 0.627194405F, 0.868837416F, 0.975122929F, 0.944153607F,
        0.766076624F, 0.471989393F, 0.114432F, -0.24763158F}},
      {MuonScale::kMatchRmsAdamW,
       false,
       {-0.0281204544F, 0.303579062F, 0.583507061F, 0.889919281F, 0.979281962F, 0.872823238F},
       {-0.0731690079F, 0.293790638F, 0.627020121F, 0.86814189F, 0.974656582F, 0.943346977F,
        0.765313208F, 0.472072423F, 0.115124673F, -0.247028857F}},
      {MuonScale::kSpectralUnclamped,
       true,
       {-0.102556802F, 0.18891871F, 0.392827153F, 0.950291932F, 1.02615941F, 0.705838382F},
       {-0.102243803F, 0.270516008F, 0.616471648F, 0.869057059F, 0.97858572F, 0.948634863F,
        0.763409317F, 0.457733154F, 0.0907238126F, -0.27320376F}},
      {MuonScale::kSpectralUnclamped,
       false,
       {-0.103037633F, 0.187028885F, 0.397128075F, 0.946931243F, 1.02351856F, 0.707297385F},
       {-0.10322953F, 0.270268977F, 0.616354883F, 0.868614316F, 0.97853291F, 0.948607624F,
        0.763076007F, 0.457115591F, 0.0903532431F, -0.273826271F}},
  };
  return *values;
}

// The products are in bfloat16, whose last bits depend on the processor. So the tolerance is one
// such bit of a step, and a step is about 0.1.
TEST(Muon, IsThatOfPython) {
  for (const Golden& one : golden()) {
    std::vector<at::Tensor> parameters = {matrix(3, 2).requires_grad_(),
                                          matrix(2, 5).requires_grad_()};
    Muon optimizer(parameters, MuonOptions(0.1).adjust_lr(one.scale).nesterov(one.nesterov));
    for (int64_t step = 0; step < 3; ++step) {
      for (at::Tensor& parameter : parameters) {
        parameter.mutable_grad() = parameter.detach().cos() * static_cast<double>(2 + step);
      }
      optimizer.step();
    }
    const at::Tensor tall = parameters[0].detach().flatten() - torch::tensor(one.tall);
    const at::Tensor wide = parameters[1].detach().flatten() - torch::tensor(one.wide);
    EXPECT_LT(tall.abs().max().item<double>(), 1e-3);
    EXPECT_LT(wide.abs().max().item<double>(), 1e-3);
    RecordProperty("largest difference", std::to_string(std::max(tall.abs().max().item<double>(),
                                                                 wide.abs().max().item<double>())));
  }
}

TEST(Muon, WithoutMomentumAStepIsNearlyOrthogonal) {
  const at::Tensor parameter = torch::zeros({6, 4}).requires_grad_();
  Muon optimizer({parameter},
                 MuonOptions(1).momentum(0).weight_decay(0).adjust_lr(MuonScale::kMatchRmsAdamW));
  testing::manual_seed(3);
  const at::Tensor gradient = torch::randn({6, 4});
  parameter.mutable_grad() = gradient;
  optimizer.step();
  const at::Tensor step = -parameter.detach() / (0.2 * std::sqrt(6.0));
  const at::Tensor singular = std::get<1>(torch::svd(step));
  EXPECT_GT(singular.min().item<double>(), 0.6);
  EXPECT_LT(singular.max().item<double>(), 1.3);
  EXPECT_GT((step * gradient).sum().item<double>(), 0) << "it goes along the gradient";
}

TEST(Muon, ItsGroupsOfAdamWAreFusedAdamW) {
  testing::manual_seed(1);
  const at::Tensor start = torch::randn({5});
  const at::Tensor here = start.clone().requires_grad_();
  const at::Tensor there = start.clone().requires_grad_();
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{},
                      std::make_unique<MuonOptions>(MuonOptions(0.1)));  // a group may be empty
  groups.emplace_back(std::vector<at::Tensor>{here},
                      std::make_unique<MuonOptions>(MuonOptions(0.01).kind(MuonKind::kAdamW)));
  Muon muon(std::move(groups));
  FusedAdamW adamw({there}, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  for (int64_t step = 0; step < 4; ++step) {
    here.mutable_grad() = here.detach().sin();
    there.mutable_grad() = there.detach().sin();
    muon.step();
    adamw.step();
    ASSERT_THAT(here.detach(), EqualsBitwise(there.detach())) << step;
  }
}

GPipe pipeline() {
  testing::manual_seed(5);
  return GPipe(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)),
               testing::cpu_options({1, 1}).chunks(2));
}

Muon muon_of(GPipe& pipe) {
  return Muon(muon_groups(
      pipe->local_named_parameters(),
      [](const std::string& name, const at::Tensor& parameter) {
        return parameter.dim() == 2 && name != "1.weight";
      },
      MuonOptions(0.02), MuonOptions(0.003)));
}

void train(GPipe& pipe, Muon& optimizer, int64_t steps) {
  const at::Tensor input = torch::arange(15).to(at::kFloat).view({5, 3}) / 10;
  for (int64_t k = 0; k < steps; ++k) {
    optimizer.zero_grad();
    pipe->step({input}, {torch::ones({5, 2})},
               [](const at::Tensor& output, const at::Tensor& target) {
                 return torch::nn::functional::mse_loss(output, target);
               });
    optimizer.step();
  }
}

TEST(Muon, GoesOnFromACheckpoint) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/muon";
  GPipe pipe = pipeline();
  Muon optimizer = muon_of(pipe);
  EXPECT_EQ(optimizer.param_groups()[0].params().size(), 1U);
  EXPECT_EQ(optimizer.param_groups()[1].params().size(), 3U);
  train(pipe, optimizer, 3);
  save_checkpoint(pipe, optimizer, {3, 15}, path);
  train(pipe, optimizer, 2);
  GPipe resumed = pipeline();
  Muon second = muon_of(resumed);
  EXPECT_EQ(load_checkpoint(resumed, second, path).step, 3);
  train(resumed, second, 2);
  EXPECT_EQ(resumed->parameter_hash(), pipe->parameter_hash());
}

TEST(Muon, RefusesWhatIsOutOfBoundsOrNoMatrix) {
  const at::Tensor fine = torch::ones({2, 2}).requires_grad_();
  EXPECT_THAT([] { Muon({torch::ones({3}).requires_grad_()}); },
              ThrowsMessage<c10::ValueError>(HasSubstr("shape [3]")));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const MuonOptions& wrong :
       {MuonOptions(-1), MuonOptions(nan), MuonOptions().momentum(-0.1),
        MuonOptions().weight_decay(-1), MuonOptions().ns_steps(100), MuonOptions().ns_steps(-1),
        MuonOptions().betas({1.0, 0.9}), MuonOptions().eps(nan)}) {
    EXPECT_THROW(Muon({fine}, wrong), c10::ValueError);
  }
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{fine},
                      std::make_unique<torch::optim::AdamWOptions>());
  EXPECT_THAT([&] { Muon muon(std::move(groups)); },
              ThrowsMessage<c10::ValueError>(HasSubstr("options of another optimizer")));
  EXPECT_THROW(muon_groups(pipeline()->local_named_parameters(), nullptr), c10::ValueError);
  // If one parameter is refused, step() changes no other one either.
  const at::Tensor complex = torch::ones({2, 2}, at::kComplexFloat).requires_grad_();
  fine.mutable_grad() = torch::ones({2, 2});
  complex.mutable_grad() = torch::ones_like(complex);
  Muon optimizer({fine, complex});
  EXPECT_THROW(optimizer.step(), c10::ValueError);
  EXPECT_THAT(fine.detach(), EqualsBitwise(torch::ones({2, 2})));
}

}  // namespace
}  // namespace gpipe

#include "balance/costs/check_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/testing/bitwise.h"
#include "gpipe/testing/function_layer.h"
#include "meta/meta_scope.h"
#include "skip/skip.h"

namespace gpipe::balance {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;

using testing::EqualsBitwise;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using torch::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

auto of_tensor(std::function<Tensor(Tensor)> f) {
  return testing::layer<Tensor, Tensor>(std::move(f));
}

// Two linear layers around a layer that computes `f`.
nn::Sequential around(const std::function<Tensor(Tensor)>& f) {
  return nn::Sequential(nn::Linear(4, 4), of_tensor(f), nn::Linear(4, 3));
}

// Each problem as a text like "1 kValues".
std::vector<std::string> kinds(const std::vector<RowProblem>& problems) {
  static const char* const kNames[] = {"shape", "throws", "values", "norm"};
  std::vector<std::string> lines;
  for (const RowProblem& problem : problems) {
    lines.push_back(std::to_string(problem.layer) + " " + kNames[static_cast<int>(problem.kind)]);
    EXPECT_THAT(problem.text, StartsWith("layer " + std::to_string(problem.layer)));
    EXPECT_THAT(problem.text, ::testing::Not(HasSubstr("\n")));
  }
  return lines;
}

TEST(CheckRows, FindsNothingInACorrectModel) {
  const nn::Sequential model(nn::Linear(4, 8), nn::ReLU(nn::ReLUOptions(/*inplace=*/true)),
                             nn::Dropout(0.5), nn::Linear(8, 3), nn::LogSoftmax(1));
  for (const int64_t rows : {2, 3, 4, 8, 33}) {
    EXPECT_THAT(kinds(check_rows(model, {torch::randn({rows, 4})})), IsEmpty()) << rows;
  }
}

TEST(CheckRows, FindsAMaskOfTheMiniBatchsSize) {
  const Tensor mask = torch::ones({4, 4}).tril();
  const auto problems =
      check_rows(around([=](Tensor x) { return mask.matmul(x); }), {torch::randn({4, 4})});
  ASSERT_THAT(kinds(problems), ElementsAre("1 throws"));
  EXPECT_THAT(problems[0].text,
              AllOf(HasSubstr("takes all 4 rows and throws with rows 0 to 1 of 4"),
                    HasSubstr("{N, N} mask"), HasSubstr("shared_inputs")));
  // A mask that is cut to the given rows mixes them all the same, since it adds rows to others.
  EXPECT_THAT(kinds(check_rows(around([=](Tensor x) {
                                 const int64_t n = x.size(0);
                                 return torch::ones({n, n}).triu().matmul(x);
                               }),
                               {torch::randn({4, 4})})),
              ElementsAre("1 values"));
}

// If there are as many rows as features, the output of all rows has the right shape in spite of the
// transpose. Only fewer rows show it.
TEST(CheckRows, FindsAForgottenTranspose) {
  for (const int64_t rows : {4, 6}) {
    const auto problems =
        check_rows(nn::Sequential(nn::Linear(4, 4), of_tensor([](Tensor x) { return x.t(); })),
                   {torch::randn({rows, 4})});
    ASSERT_THAT(kinds(problems), ElementsAre("1 shape"));
    EXPECT_THAT(problems[0].text, AllOf(HasSubstr(rows == 4 ? "shape [4, 2] for rows 0 to 1 of 4"
                                                            : "shape [4, 6] for all 6 rows"),
                                        HasSubstr("transpose")));
  }
}

TEST(CheckRows, FindsWhatGoesOverTheMiniBatch) {
  const std::vector<std::function<Tensor(Tensor)>> functions = {
      [](Tensor x) { return x - x.mean(0, true); },
      [](Tensor x) { return torch::softmax(x, 0); },
      [](Tensor x) { return x / static_cast<double>(x.size(0)); },
      [](Tensor x) { return x.flip(0); },
      [](Tensor x) { return std::get<0>(x.sort(0)); },
      [](Tensor x) { return x.cumsum(0); }};
  for (size_t k = 0; k < functions.size(); ++k) {
    for (const int64_t rows : {2, 5}) {
      const auto problems = check_rows(around(functions[k]), {torch::randn({rows, 4})});
      ASSERT_THAT(kinds(problems), ElementsAre("1 values")) << k;
      EXPECT_THAT(problems[0].text, HasSubstr("without the other rows"));
    }
  }
  EXPECT_THAT(kinds(check_rows(around([](Tensor x) { return x.mean(0); }), {torch::randn({3, 4})})),
              ElementsAre("1 shape"));
}

TEST(CheckRows, NamesAllLayersThatMixRowsAndNoneBehindThem) {
  const auto mean = of_tensor([](Tensor x) { return x - x.mean(0, true); });
  const nn::Sequential model(nn::Linear(4, 4), mean, nn::Linear(4, 4),
                             of_tensor([](Tensor x) { return x.flip(0); }), nn::Linear(4, 4));
  EXPECT_THAT(kinds(check_rows(model, {torch::randn({4, 4})})),
              ElementsAre("1 values", "3 values"));
}

TEST(CheckRows, TellsBatchNormsApart) {
  nn::Sequential model(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Linear(4, 3));
  const auto problems = check_rows(model, {torch::randn({4, 4})});
  ASSERT_THAT(kinds(problems), ElementsAre("1 norm"));
  EXPECT_THAT(problems[0].text, HasSubstr("deferred_batch_norm"));
  model->eval();
  EXPECT_THAT(kinds(check_rows(model, {torch::randn({4, 4})})), IsEmpty());
  nn::Sequential without(nn::Linear(4, 4),
                         nn::BatchNorm1d(nn::BatchNormOptions(4).track_running_stats(false)));
  without->eval();
  EXPECT_THAT(kinds(check_rows(without, {torch::randn({4, 4})})), ElementsAre("1 norm"));
}

TEST(CheckRows, LeavesModelAndGeneratorsAsTheyWere) {
  torch::manual_seed(3);
  nn::Sequential model(nn::Linear(4, 4), nn::Dropout(0.5), nn::BatchNorm1d(4),
                       of_tensor([](Tensor x) { return x + torch::randn_like(x); }));
  model[1]->eval();
  const Tensor counter = model->register_buffer("counter", torch::zeros({}));
  model->push_back(of_tensor([=](Tensor x) mutable {
    counter.add_(1);
    return x;
  }));
  model->parameters()[0].mutable_grad() = torch::ones({4, 4});
  std::vector<Tensor> before;
  for (const Tensor& tensor : model->parameters()) before.push_back(tensor.detach().clone());
  for (const Tensor& tensor : model->buffers()) before.push_back(tensor.clone());
  const Tensor input = torch::randn({4, 4}, torch::requires_grad());
  torch::manual_seed(7);
  const Tensor want = torch::rand({5});
  torch::manual_seed(7);
  // Layer 3 draws random numbers in evaluation, too, so its values are not compared.
  EXPECT_THAT(kinds(check_rows(model, {input})), ElementsAre("2 norm"));
  EXPECT_THAT(torch::rand({5}), EqualsBitwise(want));
  size_t k = 0;
  for (const Tensor& tensor : model->parameters()) EXPECT_THAT(tensor, EqualsBitwise(before[k++]));
  for (const Tensor& tensor : model->buffers()) EXPECT_THAT(tensor, EqualsBitwise(before[k++]));
  EXPECT_TRUE(model[0]->is_training());
  EXPECT_FALSE(model[1]->is_training());
  EXPECT_TRUE(model[2]->is_training());
  EXPECT_TRUE(model->parameters()[0].grad().defined());
  EXPECT_FALSE(input.grad().defined());
}

TEST(CheckRows, TakesTuplesAndSharedInputs) {
  const auto attend = [](bool shared_only) {
    return nn::Sequential(
        testing::layer<Pair, Pair>([](Pair x) { return Pair(std::get<0>(x) * 2, std::get<1>(x)); }),
        testing::layer<Pair, Tensor>([shared_only](Pair x) {
          const Tensor& mask = std::get<1>(x);
          return std::get<0>(x).matmul(shared_only ? mask : mask.t().matmul(mask));
        }));
  };
  const Tensor input = torch::randn({4, 3});
  EXPECT_THAT(kinds(check_rows(attend(true), {input, torch::randn({3, 3})}, {1})), IsEmpty());
  // The mask is not shared here: its rows belong to the mini-batch, and layer 1 adds up over them.
  EXPECT_THAT(kinds(check_rows(attend(false), {input, torch::randn({4, 3})})),
              ElementsAre("1 values"));
}

struct StashImpl : nn::Module, skip::Skippable {
  StashImpl() : Skippable({"s"}, {}) {}
  Tensor forward(Tensor x) {
    stash("s", x);
    return x;
  }
};
struct PopImpl : nn::Module, skip::Skippable {
  explicit PopImpl(bool mixes) : Skippable({}, {"s"}), mixes(mixes) {}
  Tensor forward(Tensor x) {
    const Tensor s = pop("s");
    return x + (mixes ? s.mean(0, true) : s);
  }
  bool mixes;
};

TEST(CheckRows, FollowsSkips) {
  for (const bool mixes : {false, true}) {
    nn::Sequential model;
    model->push_back(nn::Linear(4, 4));
    model->push_back(std::make_shared<StashImpl>());
    model->push_back(nn::ReLU(nn::ReLUOptions(true)));
    model->push_back(std::make_shared<PopImpl>(mixes));
    const auto found = kinds(check_rows(model, {torch::randn({5, 4})}));
    if (mixes) {
      EXPECT_THAT(found, ElementsAre("3 values"));
    } else {
      EXPECT_THAT(found, IsEmpty());
    }
  }
}

TEST(CheckRows, ShapesAreCheckedOnMeta) {
  const MetaScope meta;
  const nn::Sequential model(nn::Linear(4, 4), of_tensor([](Tensor x) { return x.t(); }));
  EXPECT_THAT(kinds(check_rows(model, {torch::empty({4, 4}, torch::kMeta)})),
              ElementsAre("1 shape"));
}

std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(CheckRows, RefusesWhatCannotBeCutAndNamesALayerThatThrows) {
  const nn::Sequential model(nn::Linear(4, 4), of_tensor([](Tensor x) { return x.view({7}); }));
  EXPECT_THAT(message([&] {
                check_rows(model, {torch::randn({1, 4})});
              }),
              HasSubstr("a mini-batch of 1 rows; give at least 2"));
  EXPECT_THAT(message([&] {
                check_rows(model, {torch::randn({2, 4})});
              }),
              AllOf(HasSubstr("layer 1"), HasSubstr("throws with all 2 rows: ")));
  EXPECT_TRUE(model->is_training());
}

}  // namespace
}  // namespace gpipe::balance

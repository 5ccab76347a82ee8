#include "gpipe/internal/cell/layer_buffers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/internal/model/layer.h"
#include "gpipe/internal/tensors/alias.h"
#include "gpipe/testing/device.h"

namespace gpipe::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSmall = 4;
constexpr int64_t kLarge = LayerBuffers::kSmallBytes;  // elements of four bytes each

// A layer that does to its buffer what a test says.
struct Holder : torch::nn::Module {
  explicit Holder(int64_t elements)
      : buffer(register_buffer("buffer", at::zeros({elements}).to(testing::device()))) {}
  at::Tensor forward(at::Tensor value) { return value; }
  at::Tensor buffer;
};

// One stage with one layer.
class Stage {
 public:
  explicit Stage(int64_t elements, bool is_shared = false) : holder(new Holder(elements)) {
    const torch::nn::Sequential model(holder);
    layers = partitions_of(model, {1}).front();
    others.is_updated = [](const at::Tensor&) { return false; };
    others.is_shared = [is_shared](const at::Tensor&) { return is_shared; };
  }

  using Kept = std::optional<std::vector<BufferValue>>;

  Kept forward(const std::function<void(at::Tensor&)>& body, bool trains = true) {
    buffers.begin_forward(layers, others);
    run(body);
    return buffers.end_forward(layers, others, later(), trains);
  }
  void failing_forward(const std::function<void(at::Tensor&)>& body,
                       const PhaseQuestions& questions = {}) {
    buffers.begin_forward(layers, others);
    run(body);
    buffers.note_questions(0, questions);
    buffers.fail_forward(others);
  }
  void recompute(const Kept& kept, const std::function<void(at::Tensor&)>& body) {
    PutBuffersBack put_back(buffers, layers);
    buffers.begin_recompute(layers, *kept, others);
    run(body);
    buffers.check_recompute(layers, later());
    put_back.finish();
  }
  double value() const { return testing::on_host(holder->buffer)[0].item<double>(); }
  int64_t version() const { return version_of(holder->buffer); }

  std::shared_ptr<Holder> holder;
  std::vector<Layer> layers;
  LayerBuffers::Others others;
  LayerBuffers buffers;

 private:
  void run(const std::function<void(at::Tensor&)>& body) {
    const c10::NoGradGuard no_grad;
    body(holder->buffer);
  }
  static LayerBuffers::Later later() {
    return [](const at::Tensor& differs) { EXPECT_FALSE(testing::on_host(differs).item<bool>()); };
  }
};

void count(at::Tensor& buffer) { buffer.add_(1); }
void read(at::Tensor&) {}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

TEST(LayerBuffersTest, AGraphThatWaitsFindsWhatItHasSaved) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    at::Tensor graph;  // owns the buffer, like a node that has saved it
    (void)stage.forward([&](at::Tensor& buffer) { count(graph = buffer); });
    const int64_t version = stage.version();
    const std::vector<SavedBuffer> saved = stage.buffers.saved(stage.buffers.held());
    ASSERT_EQ(saved.size(), 1);
    {
      SavedBuffersScope scope(stage.buffers, stage.layers, saved, stage.others);
      EXPECT_EQ(stage.version(), version);
      scope.finish();
    }
    (void)stage.forward(count);
    (void)stage.forward(count);
    for (const bool fails : {false, true}) {
      {
        SavedBuffersScope scope(stage.buffers, stage.layers, saved, stage.others);
        EXPECT_EQ(stage.value(), 1);
        EXPECT_EQ(stage.version(), version);
        if (!fails) scope.finish();
      }
      EXPECT_EQ(stage.value(), 3);
      EXPECT_EQ(stage.version(), version + 2);
    }
    SavedBuffersScope scope(stage.buffers, stage.layers, saved, stage.others);
    stage.holder->buffer.add_(10);
    EXPECT_THAT(error_of([&] { scope.finish(); }),
                AllOf(HasSubstr("a backward has changed the buffer"), HasSubstr("clone()")));
    EXPECT_EQ(stage.value(), 3);
  }
}

TEST(LayerBuffersTest, AGraphThatWaitsFindsTheVersionOfABufferThatForwardsRewrite) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  at::Tensor graph;
  const auto rewrite = [](at::Tensor& buffer) { buffer.zero_(); };
  (void)stage.forward([&](at::Tensor& buffer) { rewrite(graph = buffer); });
  const int64_t version = stage.version();
  const std::vector<SavedBuffer> saved = stage.buffers.saved(stage.buffers.held());
  (void)stage.forward(rewrite);
  SavedBuffersScope scope(stage.buffers, stage.layers, saved, stage.others);
  EXPECT_EQ(stage.version(), version);
  scope.finish();
  EXPECT_EQ(stage.version(), version + 1);
}

// As a layer does that keeps its last output until it has made the next one.
TEST(LayerBuffersTest, AGraphThatTakesThePlaceOfAFormerOneHoldsWhatItHasSaved) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  at::Tensor graph;
  (void)stage.forward(count);
  EXPECT_TRUE(stage.buffers.held().empty());
  std::vector<Stage::Kept> cells;
  for (int k = 0; k < 2; ++k) {
    cells.push_back(stage.forward([&](at::Tensor& buffer) {
      graph = at::Tensor();
      count(graph = buffer);
    }));
    EXPECT_EQ(stage.buffers.held().size(), 1) << k;
  }
  graph = at::Tensor();
  // The cells that wait have the buffer, too, but no graph of theirs has it.
  cells.push_back(stage.forward(count));
  EXPECT_TRUE(stage.buffers.held().empty());
}

// The address of the memory that the first set_data() has freed may come back, and neither counts.
TEST(LayerBuffersTest, ABufferInNewMemoryThatHasTheAddressOfTheFormerOneIsChanged) {
  Stage stage(kLarge);
  stage.buffers.begin_run();
  const auto replace = [](at::Tensor& buffer) {
    for (int k = 0; k < 8; ++k) buffer.set_data(buffer + 1);
  };
  (void)stage.forward(replace);
  const Stage::Kept kept = stage.forward(replace);
  (void)stage.forward(replace);
  double seen = 0;
  stage.recompute(kept, [&](at::Tensor&) { seen = stage.value(); });
  EXPECT_EQ(seen, 8);
  EXPECT_EQ(stage.value(), 24);
}

// As a hook that counts in a buffer which forwards leave alone.
TEST(LayerBuffersTest, WhatNoForwardHasChangedStaysAsItIsForAGraphThatWaits) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  at::Tensor graph;
  (void)stage.forward(count);
  (void)stage.forward([&](at::Tensor& buffer) { graph = buffer; });
  const std::vector<SavedBuffer> saved = stage.buffers.saved(stage.buffers.held());
  stage.holder->buffer.add_(1);
  SavedBuffersScope scope(stage.buffers, stage.layers, saved, stage.others);
  stage.holder->buffer.add_(1);
  scope.finish();
  EXPECT_EQ(stage.value(), 3);
}

TEST(LayerBuffersTest, ARecomputeBeginsWithWhatItsForwardSawAndIsPutBack) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    (void)stage.forward(count);  // from now on the buffer is known to change
    const Stage::Kept second = stage.forward(count);
    const Stage::Kept third = stage.forward(count);
    ASSERT_TRUE(second && third) << elements;
    double seen = -1;
    for (const auto& [kept, want] : {std::pair(third, 2.0), std::pair(second, 1.0)}) {
      stage.recompute(kept, [&](at::Tensor& buffer) {
        seen = testing::on_host(buffer)[0].item<double>();
        count(buffer);
      });
      EXPECT_EQ(seen, want) << elements;
      EXPECT_EQ(stage.value(), 3) << elements;
    }
  }
}

TEST(LayerBuffersTest, AFailedRecomputeIsPutBackToo) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  (void)stage.forward(count);
  const Stage::Kept kept = stage.forward(count);
  EXPECT_THAT(error_of([&] {
                stage.recompute(kept, [](at::Tensor& buffer) {
                  count(buffer);
                  TORCH_CHECK(false, "boom");
                });
              }),
              HasSubstr("boom"));
  EXPECT_EQ(stage.value(), 2);
}

// The buffer still has the forward's value, so it is not set before the recompute. What the failed
// recompute has changed is put back all the same.
TEST(LayerBuffersTest, WhatAFailedRecomputeHasChangedForTheFirstTimeIsPutBackToo) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    const Stage::Kept kept = stage.forward(read);
    EXPECT_NE(error_of([&] {
                stage.recompute(kept, [](at::Tensor& buffer) {
                  count(buffer);
                  TORCH_CHECK(false, "boom");
                });
              }),
              "");
    EXPECT_EQ(stage.value(), 0) << elements;
    EXPECT_EQ(stage.buffers.lost(), "");
    stage.recompute(kept, read);
  }
}

TEST(LayerBuffersTest, WhatAFailedRecomputeHasChangedAndCannotPutBackIsNamed) {
  Stage stage(kLarge);
  stage.buffers.begin_run();
  Stage::Kept kept;
  for (int64_t k = 0; k <= LayerBuffers::kForgottenAfter; ++k) kept = stage.forward(read);
  const auto fail = [&](const std::function<void(at::Tensor&)>& body) {
    return error_of([&] {
      stage.recompute(kept, [&](at::Tensor& buffer) {
        body(buffer);
        TORCH_CHECK(false, "boom");
      });
    });
  };
  EXPECT_THAT(fail(count), HasSubstr("boom"));
  EXPECT_EQ(stage.buffers.lost(), "the buffer '0.buffer' (layer 0)");
  EXPECT_THAT(fail(read), HasSubstr("boom"));
  EXPECT_EQ(stage.buffers.lost(), "");
}

// A layer may change its buffer before a later layer throws. This change counts, so the recompute
// of an earlier forward begins with the former value.
TEST(LayerBuffersTest, WhatAFailedForwardHasChangedIsPutBackToo) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    (void)stage.forward(count);
    const Stage::Kept kept = stage.forward(read);
    stage.failing_forward(count);
    double seen = 0;
    stage.recompute(kept, [&](at::Tensor&) { seen = stage.value(); });
    EXPECT_EQ(seen, 1) << elements;
    EXPECT_EQ(stage.value(), 2) << elements;
  }
}

TEST(LayerBuffersTest, WhatAFailedForwardHasChangedAndNobodyKnowsIsAnError) {
  Stage stage(kLarge);
  stage.buffers.begin_run();
  Stage::Kept kept;
  for (int64_t k = 0; k <= LayerBuffers::kForgottenAfter; ++k) kept = stage.forward(read);
  ASSERT_FALSE(kept->front().value.defined());
  stage.failing_forward(read);
  stage.recompute(kept, read);
  stage.failing_forward(count);
  EXPECT_THAT(error_of([&] { stage.recompute(kept, read); }),
              HasSubstr("the buffer '0.buffer' (layer 0) was changed by the forward of a later"));
}

TEST(LayerBuffersTest, AFailedForwardOfALayerThatAsksIsLeftAlone) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  const Stage::Kept kept = stage.forward(read);
  PhaseQuestions asked;
  asked.recomputing = true;
  stage.failing_forward(count, asked);
  stage.recompute(kept, read);
  EXPECT_EQ(stage.value(), 1);
}

TEST(LayerBuffersTest, AForwardThatChangesALargeBufferForTheFirstTimeCannotBeRecomputed) {
  Stage stage(kLarge);
  stage.buffers.begin_run();
  Stage::Kept kept;
  for (int64_t k = 0; k < LayerBuffers::kForgottenAfter; ++k) kept = stage.forward(read);
  EXPECT_FALSE(stage.forward(count));
  EXPECT_TRUE(stage.forward(count));
  EXPECT_EQ(error_of([&] { stage.recompute(kept, read); }), "");  // `kept` has the buffer's value
  for (int64_t k = 0; k <= LayerBuffers::kForgottenAfter; ++k) kept = stage.forward(read);
  EXPECT_FALSE(stage.forward(count));
  EXPECT_THAT(error_of([&] { stage.recompute(kept, read); }),
              HasSubstr("was changed by the forward of a later micro-batch"));
}

// A layer may remember in a member that its cache is filled. So the cache is not emptied for a
// recompute; the backward uses the graph of the forward that has filled the cache.
TEST(LayerBuffersTest, ACacheThatIsFilledOnceStaysFilled) {
  Stage stage(kSmall);
  at::Tensor saved;
  stage.buffers.begin_run();
  const auto fill = [](at::Tensor& buffer) { buffer.fill_(7); };
  const Stage::Kept kept = stage.forward(fill);
  ASSERT_TRUE(kept);
  EXPECT_TRUE(LayerBuffers::may_need_graph(*kept));
  EXPECT_TRUE(LayerBuffers::may_use_graph(*kept, {}));
  const Stage::Kept later = stage.forward([&](at::Tensor& buffer) {
    count(buffer);
    saved = buffer.view(-1);  // as a graph would
  });
  EXPECT_FALSE(LayerBuffers::may_need_graph(*later));
  EXPECT_TRUE(LayerBuffers::may_use_graph(*kept, {}));   // the graph has not saved the buffer
  EXPECT_TRUE(LayerBuffers::may_use_graph(*later, {}));  // nobody has written since
  (void)stage.forward(count);
  EXPECT_FALSE(LayerBuffers::may_use_graph(*later, {}));
}

TEST(LayerBuffersTest, WhatIsFilledWhileAnotherOneChangesIsNotGuessed) {
  Stage stage(kSmall);
  const at::Tensor cache =
      stage.holder->register_buffer("cache", at::zeros({kSmall}).to(testing::device()));
  at::Tensor saved;
  stage.buffers.begin_run();
  const Stage::Kept kept = stage.forward([&](at::Tensor& buffer) {
    cache.fill_(7);
    count(buffer);
    saved = buffer.view(-1);
  });
  (void)stage.forward(count);
  ASSERT_FALSE(LayerBuffers::may_use_graph(*kept, {}));
  EXPECT_THAT(error_of([&] { stage.recompute(kept, count); }),
              HasSubstr("the buffer '0.cache' (layer 0) was filled by this micro-batch's forward"));
}

TEST(LayerBuffersTest, ABufferThatAForwardRegistersKeepsTheGraph) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  EXPECT_FALSE(stage.forward([&](at::Tensor&) {
    stage.holder->register_buffer("late", at::zeros({kSmall}).to(testing::device()));
  }));
  EXPECT_TRUE(stage.forward(count));
}

// The buffer changes between two runs as if another pipeline had run the layers.
TEST(LayerBuffersTest, WhatChangesBetweenRunsIsPutBackAroundARecompute) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    const Stage::Kept kept = stage.forward(read);
    {
      const c10::NoGradGuard no_grad;
      stage.holder->buffer.fill_(5);
    }
    stage.buffers.begin_run();
    stage.recompute(kept, [&](at::Tensor&) { EXPECT_EQ(stage.value(), 0); });
    EXPECT_EQ(stage.value(), 5);
    const Stage::Kept later = stage.forward(read);
    stage.buffers.begin_run();
    stage.recompute(later, [&](at::Tensor&) { EXPECT_EQ(stage.value(), 5); });
  }
}

// The first backward of a run may belong to a micro-batch that still has its graph, so it
// recomputes nothing. A later recompute must notice the change between the runs all the same.
TEST(LayerBuffersTest, ABackwardWithoutARecomputeHidesNoChangeBetweenRuns) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    const Stage::Kept kept = stage.forward(read);
    {
      const c10::NoGradGuard no_grad;
      stage.holder->buffer.fill_(5);
    }
    stage.buffers.begin_run();
    PutBuffersBack(stage.buffers, stage.layers).finish();
    stage.recompute(kept, [&](at::Tensor&) { EXPECT_EQ(stage.value(), 0) << elements; });
    EXPECT_EQ(stage.value(), 5) << elements;
  }
}

// The layer writes to the buffer through `base`, which has the same memory. The buffer keeps this
// memory when it is set for a recompute and put back.
TEST(LayerBuffersTest, AnExpandedBufferKeepsTheMemoryThatItHasInCommon) {
  Stage stage(kSmall);
  const at::Tensor base = at::zeros({1}).to(testing::device());
  const at::Tensor alias = stage.holder->register_buffer("alias", base.expand({2, kSmall}));
  const auto value = [&] { return testing::on_host(alias)[1][1].item<double>(); };
  const auto count_base = [&](at::Tensor&) { at::Tensor(base).add_(1); };
  stage.buffers.begin_run();
  (void)stage.forward(count_base);
  const Stage::Kept second = stage.forward(count_base);
  const Stage::Kept third = stage.forward(count_base);
  for (const auto& [kept, want] : {std::pair(third, 2.0), std::pair(second, 1.0)}) {
    stage.recompute(kept, [&, want = want](at::Tensor& buffer) {
      EXPECT_EQ(value(), want);
      count_base(buffer);
      EXPECT_EQ(value(), want + 1);
    });
    EXPECT_EQ(value(), 3);
    EXPECT_EQ(testing::on_host(base)[0].item<double>(), 3);
  }
}

TEST(LayerBuffersTest, ABufferOfAnotherFormThatHasMemoryInCommonIsNamed) {
  Stage stage(1);
  const at::Tensor base = at::zeros({8}).to(testing::device());
  const auto grow = [&](at::Tensor& buffer) {
    buffer.set_data(base.narrow(0, 0, buffer.size(0) + 1));
  };
  stage.buffers.begin_run();
  (void)stage.forward(grow);
  const Stage::Kept kept = stage.forward(grow);
  (void)stage.forward(grow);
  EXPECT_THAT(error_of([&] { stage.recompute(kept, grow); }),
              AllOf(HasSubstr("the buffer '0.buffer' (layer 0) has changed its form"),
                    HasSubstr("kNever")));
  EXPECT_EQ(stage.holder->buffer.size(0), 4);
}

TEST(LayerBuffersTest, AnExpandedBufferIsPutBack) {
  Stage stage(kSmall);
  const auto count_expanded = [](at::Tensor& buffer) {
    buffer.set_data((buffer.narrow(0, 0, 1) + 1).expand({kSmall}));
  };
  count_expanded(stage.holder->buffer);
  stage.buffers.begin_run();
  const Stage::Kept first = stage.forward(count_expanded);
  const Stage::Kept second = stage.forward(count_expanded);
  EXPECT_EQ(stage.value(), 3);
  stage.recompute(second, [&](at::Tensor& buffer) {
    EXPECT_EQ(stage.value(), 2);
    count_expanded(buffer);
  });
  EXPECT_EQ(stage.value(), 3);
}

// No forward has changed the buffer, but a hook or the caller may have changed it within the run.
// So its value stays.
TEST(LayerBuffersTest, WhatNoForwardHasChangedIsLeft) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  const Stage::Kept kept = stage.forward(read);
  {
    const c10::NoGradGuard no_grad;
    stage.holder->buffer.fill_(5);
  }
  stage.recompute(kept, read);
  EXPECT_EQ(stage.value(), 5);
}

TEST(LayerBuffersTest, ALargeCacheIsNotCopiedForEver) {
  Stage stage(kLarge);
  stage.buffers.begin_run();
  (void)stage.forward(count);
  const auto copies = [&](int64_t forwards) {
    stage.buffers.begin_run();
    int64_t copies = 0;
    for (int64_t k = 0; k < forwards; ++k) {
      const Stage::Kept kept = stage.forward(read);
      copies += kept->front().value.defined() ? 1 : 0;
    }
    return copies;
  };
  EXPECT_EQ(copies(LayerBuffers::kForgottenAfter), LayerBuffers::kForgottenAfter);
  EXPECT_EQ(copies(4), 0);
  // A buffer that changes again is copied again.
  EXPECT_FALSE(stage.forward(count));
  EXPECT_TRUE(stage.forward(count)->front().value.defined());
}

// A layer may change a buffer in training only. Evaluations, however many, must not make the buffer
// count as unchanged.
TEST(LayerBuffersTest, WhatAnEvaluationLeavesAloneStillChangesInTraining) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    (void)stage.forward(count);
    for (int64_t k = 0; k <= LayerBuffers::kForgottenAfter; ++k) {
      (void)stage.forward(read, /*trains=*/false);
    }
    const Stage::Kept kept = stage.forward(count);
    ASSERT_TRUE(kept) << elements;
    EXPECT_FALSE(LayerBuffers::may_need_graph(*kept)) << elements;
    (void)stage.forward(count, /*trains=*/false);  // the layer also counts in evaluation
    double seen = 0;
    stage.recompute(kept, [&](at::Tensor& buffer) {
      seen = testing::on_host(buffer)[0].item<double>();
      count(buffer);
    });
    EXPECT_EQ(seen, 1) << elements;
    EXPECT_EQ(stage.value(), 3) << elements;
  }
}

TEST(LayerBuffersTest, AFewBytesAreCopiedAlwaysOnWhateverDevice) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  for (int64_t k = 0; k <= LayerBuffers::kForgottenAfter; ++k) (void)stage.forward(read);
  EXPECT_TRUE(stage.forward(count));
}

TEST(LayerBuffersTest, ARecomputeDoesNotWriteWhatIsThere) {
  for (const int64_t elements : {kSmall, kLarge}) {
    Stage stage(elements);
    stage.buffers.begin_run();
    (void)stage.forward(count);
    const Stage::Kept kept = stage.forward(read);
    const int64_t version = stage.version();
    for (int k = 0; k < 2; ++k) stage.recompute(kept, read);  // twice, as with retain_graph
    EXPECT_EQ(stage.version(), version) << elements;
  }
}

TEST(LayerBuffersTest, WhatTwoStagesHaveMustNotChange) {
  Stage stage(kSmall, /*is_shared=*/true);
  stage.buffers.begin_run();
  EXPECT_THAT(error_of([&] { (void)stage.forward(count); }),
              HasSubstr("the buffer '0.buffer' (layer 0) was changed by a forward"));
}

// After a forward has changed a buffer of two stages, earlier forwards cannot be recomputed any
// more, whether a layer or the check has ended the forward.
TEST(LayerBuffersTest, WhatTwoStagesHaveAndAForwardHasChangedCannotBePutBack) {
  for (const bool layer_throws : {false, true}) {
    Stage stage(kSmall, /*is_shared=*/true);
    stage.buffers.begin_run();
    const Stage::Kept kept = stage.forward(read);
    if (layer_throws) {
      stage.failing_forward(count);
    } else {
      EXPECT_NE(error_of([&] { (void)stage.forward(count); }), "");
    }
    EXPECT_THAT(error_of([&] { stage.recompute(kept, read); }),
                HasSubstr("the buffer '0.buffer' (layer 0) was changed by a forward"))
        << layer_throws;
  }
}

// A forward may write to a buffer of two stages if the value stays the same. On an accelerator the
// thread waits for the comparison after the first write only; the results of later comparisons are
// read when the device has them.
TEST(LayerBuffersTest, WhatTwoStagesHaveMayBeFilledWithWhatItHas) {
  Stage stage(kSmall, /*is_shared=*/true);
  stage.buffers.begin_run();
  const auto fill = [](at::Tensor& buffer) { buffer.copy_(buffer.clone()); };
  for (int k = 0; k < 3; ++k) EXPECT_TRUE(stage.forward(fill)) << k;
}

TEST(LayerBuffersTest, ALayerThatAsksIsLeftAloneAndHeldToIt) {
  Stage stage(kSmall);
  stage.buffers.begin_run();
  PhaseQuestions asked;
  asked.recomputing = true;
  stage.buffers.begin_forward(stage.layers, stage.others);
  stage.buffers.note_questions(0, asked);
  const Stage::Kept kept =
      stage.buffers.end_forward(stage.layers, stage.others, {}, /*trains=*/true);
  stage.recompute(kept, read);
  EXPECT_THAT(error_of([&] { stage.recompute(kept, count); }),
              HasSubstr("a recompute has changed the buffer '0.buffer' (layer 0) once more"));
}

}  // namespace
}  // namespace gpipe::internal

#include "gpipe/internal/processes/tied_over_processes.h"

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/placement.h"
#include "gpipe/testing/processes_of_two.h"

namespace gpipe::internal {
namespace {

// The first of two processes. Its messages arrive, unless the other process `fails`.
class FakeProcesses final : public testing::ProcessesOfTwo {
 public:
  void move(const std::vector<Parcel>& /*sends*/,
            const std::vector<Parcel>& /*receives*/) override {
    if (fails) throw std::runtime_error("the other process has failed");
  }

  bool fails = false;
};

// Shares the changed parameters in a call that succeeds.
void share(TiedOverProcesses& copies) {
  copies.share(copies.changed());
  copies.note_shared();
}

// The copies of a process that owns the parameter.
TiedOverProcesses copies_of(const at::Tensor& parameter,
                            const std::shared_ptr<FakeProcesses>& processes) {
  return TiedOverProcesses({{"a.weight", parameter, {0, 1}}},
                           StageMap(Placement::one_each(2), 0, 2),
                           /*stages=*/2, World(processes, 0, 2), c10::kCPU);
}

TEST(TiedOverProcesses, AreSharedFirstAndWhenTheOwnersMayHaveChanged) {
  const auto processes = std::make_shared<FakeProcesses>();
  at::Tensor parameter = at::ones({3});
  TiedOverProcesses copies = copies_of(parameter, processes);
  EXPECT_EQ(copies.changed(), "1");
  share(copies);
  EXPECT_EQ(copies.changed(), "0");
  parameter.mul_(2);
  EXPECT_EQ(copies.changed(), "1");
  share(copies);
  EXPECT_EQ(copies.changed(), "0");
  TiedOverProcesses::note_gradients();  // an optimizer may write into data()
  EXPECT_EQ(copies.changed(), "1");
}

// Two pipelines have the same layers: one trains, the other evaluates. If the trained one has run,
// the other one must share the parameter again.
TEST(TiedOverProcesses, AreSharedAfterARunOfAnotherPipeline) {
  const auto processes = std::make_shared<FakeProcesses>();
  at::Tensor parameter = at::ones({3});
  TiedOverProcesses trained = copies_of(parameter, processes);
  TiedOverProcesses evaluated = copies_of(parameter, processes);
  TiedOverProcesses::note_gradients();
  share(trained);
  share(evaluated);
  EXPECT_EQ(evaluated.changed(), "0");
  TiedOverProcesses::note_gradients();
  share(trained);
  EXPECT_EQ(trained.changed(), "0");
  EXPECT_EQ(evaluated.changed(), "1");
}

// If a share failed, the values may have arrived in some of the other processes. So the parameter
// counts as changed, even if it has its former values again.
TEST(TiedOverProcesses, WhoseShareFailedAreSharedAgainAlsoWithTheValuesOfBefore) {
  const auto processes = std::make_shared<FakeProcesses>();
  at::Tensor parameter = at::ones({3});
  TiedOverProcesses copies = copies_of(parameter, processes);
  share(copies);
  const at::Tensor before = parameter.detach();
  parameter.set_data(at::ones({3}) * 2);
  processes->fails = true;
  EXPECT_THROW(copies.share(copies.changed()), std::runtime_error);
  parameter.set_data(before);
  EXPECT_EQ(copies.changed(), "1");
  processes->fails = false;
  share(copies);
  EXPECT_EQ(copies.changed(), "0");
}

// Until note_shared(), another process may have failed before it took the values that were sent. So
// the parameter still counts as changed.
TEST(TiedOverProcesses, AreSharedAgainAfterACallThatFailedBehindTheShare) {
  const auto processes = std::make_shared<FakeProcesses>();
  at::Tensor parameter = at::ones({3});
  TiedOverProcesses copies = copies_of(parameter, processes);
  copies.share(copies.changed());
  EXPECT_EQ(copies.changed(), "1");
  share(copies);
  EXPECT_EQ(copies.changed(), "0");
}

// If the run records, ModelState::check_parameters reports the change, so check_run() does not.
TEST(TiedOverProcesses, ALayersChangeInPlaceIsRefused) {
  const auto processes = std::make_shared<FakeProcesses>();
  at::Tensor parameter = at::ones({3});
  TiedOverProcesses copies = copies_of(parameter, processes);
  copies.share("1");
  EXPECT_NO_THROW(copies.check_run(/*records=*/false));
  parameter.mul_(2);
  EXPECT_NO_THROW(copies.check_run(/*records=*/true));
  EXPECT_THROW(copies.check_run(/*records=*/false), c10::Error);
}

}  // namespace
}  // namespace gpipe::internal

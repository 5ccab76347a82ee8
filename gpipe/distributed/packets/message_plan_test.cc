#include "gpipe/distributed/packets/message_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "gpipe/schedule/named_schedule.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::distributed {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAreArray;

TEST(MessagePlan, IsOfWhatLeavesAProcess) {
  // Workers 0 and 1 are in one process and worker 2 in another. Only packets between the two
  // processes are messages. There is a skip from stage 0 to stage 2.
  const Program program = compile(Schedule::one_f_one_b(3, 2), Routes::create(3, {{0, 2, "skip"}}));
  MessagePlan plan(program, {5, 5, 7});
  EXPECT_THAT(plan.awaited(0),
              ElementsAre(1, 3));  // the gradients of the skip, not of the activation
  EXPECT_THAT(plan.awaited(2), ElementsAre(0, 1, 2, 3));
  std::set<int32_t> tags;
  int messages = 0;
  for (int32_t worker = 0; worker < 3; ++worker) {
    for (int32_t slot = 0; slot < program.slots[static_cast<size_t>(worker)]; ++slot) {
      const Message& message = plan.message(worker, slot);
      if (message.from < 0) continue;
      ++messages;
      EXPECT_EQ(message.to, worker == 2 ? 7 : 5);
      EXPECT_EQ(message.from, worker == 2 ? 5 : 7);
      EXPECT_EQ(message.tag % 2, worker == 2 ? 0 : 1);
      EXPECT_EQ(message.second_tag % 2, message.tag % 2);
      EXPECT_TRUE(tags.insert(message.tag).second);
      EXPECT_TRUE(tags.insert(message.second_tag).second);
      EXPECT_EQ(message.capacity, MessagePlan::kFirstCapacity);
    }
  }
  EXPECT_EQ(messages, 8);
}

// In a V schedule worker 1 sends both activations and gradients to worker 0. in_order() must have
// them in the order of the actions of worker 1.
TEST(MessagePlan, KnowsTheOrderInWhichAnEdgesMessagesAreSent) {
  const Schedule schedule = schedule_by_name("zb-v", 4, 3);
  const Program program = compile(schedule, Routes::create(4));
  MessagePlan plan(program, {5, 7});
  ASSERT_EQ(plan.edges().size(), 2);
  for (int32_t number = 0; number < 2; ++number) {
    const Edge& edge = plan.edge(number);
    EXPECT_EQ(edge.from, edge.from_worker == 0 ? 5 : 7);
    EXPECT_EQ(edge.to, edge.to_worker == 0 ? 5 : 7);
    std::vector<int32_t> sent;
    for (const Step& step : program.workers[static_cast<size_t>(edge.from_worker)]) {
      for (const Step::Send& send : step.sends) {
        if (send.worker == edge.to_worker) sent.push_back(send.slot);
      }
    }
    EXPECT_EQ(plan.in_order(number), sent);
    EXPECT_THAT(plan.awaited(edge.to_worker), UnorderedElementsAreArray(sent));
    for (const int32_t slot : sent) EXPECT_EQ(plan.message(edge.to_worker, slot).edge, number);
  }
}

TEST(MessagePlan, MakesRoomForWhatWasWanted) {
  const Program program = compile(Schedule::gpipe(2, 4), Routes::create(2));
  MessagePlan plan(program, {0, 1});
  plan.message(1, 0).wanted = 100;
  plan.message(1, 1).wanted = 128;
  plan.message(1, 2).wanted = MessagePlan::kGreatestCapacity + 1;
  plan.learn();
  EXPECT_EQ(plan.message(1, 0).capacity, 128);
  EXPECT_EQ(plan.message(1, 1).capacity, 128);
  EXPECT_EQ(plan.message(1, 2).capacity, MessagePlan::kFirstCapacity);
  EXPECT_EQ(plan.message(1, 3).capacity, MessagePlan::kFirstCapacity);
  plan.message(1, 0).wanted = 10000;
  plan.message(1, 1).wanted = 1;
  plan.learn();
  EXPECT_EQ(plan.message(1, 0).capacity, 10048);
  EXPECT_EQ(plan.message(1, 1).capacity, 64);
}

TEST(MessagePlan, NothingLeavesOneProcess) {
  const Program program = compile(Schedule::gpipe(2, 1), Routes::create(2));
  MessagePlan plan(program, {3, 3});
  EXPECT_THAT(plan.awaited(0), IsEmpty());
  EXPECT_EQ(plan.message(1, 0).from, -1);
  EXPECT_THROW(MessagePlan(program, {0}), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::distributed

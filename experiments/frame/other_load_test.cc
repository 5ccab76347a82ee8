#include "experiments/frame/other_load.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "machine/cores.h"

namespace gpipe::experiments {
namespace {

TEST(NoteOtherLoad, SaysWhatOthersHadAndThatOnce) {
  const OtherLoad load;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  Outcome outcome;
  outcome.settings["other_load"] = 0.75;
  outcome.settings["disturbed"] = true;
  note_other_load(load, outcome);
  EXPECT_EQ(outcome.settings["cores"], machine::usable_cores());
  EXPECT_GE(outcome.settings["other_load"], 0.75) << "the worst of several rounds counts";
  EXPECT_EQ(outcome.note, "")
      << "the note was already told in an earlier round ('disturbed' is set)";
}

}  // namespace
}  // namespace gpipe::experiments

// PipelineSetup: how a model is run as a pipeline: what a diagnosis may advise to change.
#ifndef DIAGNOSE_PIPELINE_SETUP_H_
#define DIAGNOSE_PIPELINE_SETUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A schedule that a diagnosis may try or name.
struct ScheduleChoice {
  std::string name;  // for people, e.g. "1f1b"
  ScheduleGenerator make;
};

// The values of GPipeOptions and StepOptions:
//   GPipeOptions(setup.balance).chunks(setup.chunks).partition_checkpoints(setup.checkpoints)
//   StepOptions().schedule(setup.schedule.make)
struct PipelineSetup {
  std::vector<int64_t> balance;
  int64_t chunks = 1;
  std::vector<Checkpoint> checkpoints;  // by partition
  ScheduleChoice schedule;
  // Whether a skip goes straight from the stage that stashes it to the one that pops it:
  // Ablation::direct_skips. It is never advised to change this.
  bool direct_skips = true;
};

}  // namespace gpipe

#endif  // DIAGNOSE_PIPELINE_SETUP_H_

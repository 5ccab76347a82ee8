// PipelineSetup: how a model is run as a pipeline: the settings that commands have flags for, and
// that a diagnosis may advise to change. This header also turns parts of a setup into text, and
// reads them from text. gpipe/setup.h makes a pipeline's options of a setup.
#ifndef GPIPE_PIPELINE_SETUP_H_
#define GPIPE_PIPELINE_SETUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/checkpoint.h"
#include "gpipe/placement.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A schedule and its name: one that a command was given, or that a diagnosis may try or name.
// Default: that of a step without options.
struct ScheduleChoice {
  std::string name = "1f1b";  // for people
  ScheduleGenerator make = Schedule::one_f_one_b;

  // Where the schedule has its stages, whatever the number of micro-batches. For a named schedule
  // that is placement_by_name(). Throws what `make` throws for this number of stages.
  Placement placement(int64_t stages) const { return make(stages, 1).placement(); }
};

// Values of GPipeOptions and StepOptions.
struct PipelineSetup {
  std::vector<int64_t> balance;
  int64_t chunks = 1;
  std::vector<Checkpoint> checkpoints;  // [partition]
  ScheduleChoice schedule = {};
  // Whether a skip goes straight from the stage that stashes it to the one that pops it:
  // Ablation::direct_skips. A diagnosis never advises to change this, nor the next one.
  bool direct_skips = true;
  std::vector<int64_t> shared_inputs = {};  // the inputs that are not cut

  int64_t stages() const { return static_cast<int64_t>(balance.size()); }
  // Throws what `schedule` throws, and std::invalid_argument if it gives one of another size.
  Schedule schedule_for(int64_t micro_batches) const;
  // Sets the same mode for all partitions of the balance.
  void checkpoint_all(Checkpoint mode) { checkpoints.assign(balance.size(), mode); }
};

// The schedule of that name (schedule_by_name()). Throws std::invalid_argument for an unknown name,
// and suggests the one that was probably meant: "`given`: there is no schedule ...".
ScheduleChoice choice_by_name(const std::string& name, const std::string& given);

// The mode of that text (to_text(Checkpoint)). Throws std::invalid_argument for any other text, and
// suggests the mode that was probably meant: "`given`: give always, except_last or never".
Checkpoint checkpoint_by_name(const std::string& name, const std::string& given);

// The text of each mode.
std::vector<std::string> names_of(const std::vector<Checkpoint>& modes);

// The modes as text: "never" if all partitions have this mode, otherwise the mode of each, like
// "always,never".
std::string to_text(const std::vector<Checkpoint>& modes, const char* separator = ",");

// The setup as text for people: "chunks 4, balance [20, 31], checkpoint never, 1f1b".
std::string to_text(const PipelineSetup& setup);

}  // namespace gpipe

#endif  // GPIPE_PIPELINE_SETUP_H_

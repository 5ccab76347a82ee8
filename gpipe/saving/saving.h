// save_checkpoint, load_checkpoint: a training run on the disk, to go on under any balance.
#ifndef GPIPE_SAVING_SAVING_H_
#define GPIPE_SAVING_SAVING_H_

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <optional>
#include <string>

#include "gpipe/gpipe.h"
#include "gpipe/grad_scaler.h"
#include "gpipe/zero_optimizer.h"

namespace gpipe {

// How far a run is. A value type.
struct Progress {
  int64_t step = 0;  // steps of the optimizer
  int64_t rows = 0;  // rows of the data that were trained on: where to go on
  // The state of LibTorch's generator on the CPU, from which each step takes its seed; [bytes],
  // uint8. Saved if it is undefined: the state at that moment.
  at::Tensor generator = {};
  // What else must be the same where the run goes on, in the program's own words; UTF-8, the same
  // in all processes. The library only keeps it: read_progress() gives it back before anything is
  // made or changed.
  std::string settings = {};
  // Of a run in float16: GradScaler::state(), the same in all processes; load() it to go on.
  std::optional<GradScalerState> grad_scaler = std::nullopt;
};

// Writes the folder `path`, with three files that any reader of safetensors reads:
//   model.safetensors      parameters and buffers, under the names that they have in the plain
//                          model; a tied weight once, under its first name
//   optimizer.safetensors  states, "0.weight/exp_avg"; groups, options and numbers, such as steps,
//                          are JSON in the metadata
//   progress.safetensors   the generator's state; step, rows, settings, and the sizes and CRC-32 of
//                          all files in the metadata
// Over several processes (GPipeOptions::world) all of them call this with the same path on one file
// system, and each writes its part: model-00001-of-00004.safetensors, the optimizer's likewise, and
// an index in Hugging Face's form. Each has an optimizer of its local_parameters(), with the same
// groups and options; or a ZeroOptimizer, whose states are in one file of each process. Of replicas
// the first writes what all of them have. The generator is that of rank 0.
// A checkpoint that is there is replaced as a whole: after a crash, or a full disk, the old one is
// there, and of several writers at the same time one is the last. Its owner and access rights stay.
// What a crash has left, PATH.draft-NUMBER, the next call removes. Any optimizer whose states are
// tensors and numbers: all of LibTorch's but LBFGS. Takes memory for a copy of the optimizer's
// states. Not during a step.
//
// Throws c10::ValueError for a path that is empty, a file, a mount point, the current folder or a
// folder with anything else in it, for an optimizer that has other parameters than the pipeline,
// for negative numbers, for a state that is none of the generator, and for tensors that safetensors
// does not have (sparse ones, complex128); c10::NotImplementedError for LBFGS; std::runtime_error
// with the path and the reason where it cannot be written.
void save_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                     const std::string& path);
void save_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const Progress& progress,
                     const std::string& path);

// Finds before a training what save_checkpoint would find after it: throws what that throws for the
// path alone, c10::ValueError for one that can hold no checkpoint, std::runtime_error for one in a
// folder that is not there. Writes nothing, so it does not see what the rights and the room on the
// disk allow. Each process may call it by itself.
//
// Returns whether there is a folder that a checkpoint would replace: an old checkpoint, or one with
// nothing in it.
bool check_checkpoint_path(const std::string& path);

// Whether there is a checkpoint to go on from: a folder with anything in it. Whether that is one,
// and whole, load_checkpoint says. Each process may call it by itself.
//
// Example:
//   if (gpipe::has_checkpoint(path)) progress = gpipe::load_checkpoint(pipe, optimizer, path);
bool has_checkpoint(const std::string& path);

// Reads such a folder, under whatever balance, placement, devices, number of processes and replicas
// it was written, with or without ZeroOptimizer, and whatever those of `pipe` are: tensors go to
// where the parameters are. Over several processes all of them call this, and each reads what it
// has. It may be replaced meanwhile: all that is read is of one checkpoint. Everything is checked
// before the first value is changed. LibTorch's generator on the CPU has the saved state
// afterwards, so the run goes on with the bits that it would have had (docs/guide/16-saving.md says
// what else must be the same).
//
// Throws c10::ValueError for a parameter, buffer, state or option that is missing, left over, or of
// another shape or type, and for an optimizer of another type or other groups; std::runtime_error
// with the path and the reason for files that cannot be read, are damaged, or do not belong
// together. Nothing is changed then, unless the disk fails between two readings of a file.
//
// Example:
//   gpipe::save_checkpoint(pipe, optimizer, {step, rows}, "run/last");
//   ...
//   const gpipe::Progress progress = gpipe::load_checkpoint(pipe, optimizer, "run/last");
Progress load_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const std::string& path);
Progress load_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const std::string& path);

// How far the run of such a folder was, and with which settings (empty if it was saved without).
// Changes nothing, and looks at none of the large files. Each process may call it by itself.
//
// Throws c10::ValueError for an empty path; std::runtime_error with the path and the reason if
// there is no checkpoint, or its progress is damaged.
Progress read_progress(const std::string& path);

}  // namespace gpipe

#endif  // GPIPE_SAVING_SAVING_H_

// save_checkpoint, load_checkpoint, load_weights: save a training run to the disk, and resume it,
// or take its weights alone, under any balance.
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
  int64_t rows = 0;  // rows of the data that were trained on: where to resume
  // The state of LibTorch's generator on the CPU, from which each step takes its seed; [bytes],
  // uint8. If it is undefined, the present state is saved.
  at::Tensor generator = {};
  // Other facts that must be the same when the run is resumed, in the program's own words; UTF-8,
  // the same in all processes. The library only keeps this text: read_progress() returns it before
  // anything is made or changed.
  std::string settings = {};
  // For a run in float16: GradScaler::state(), the same in all processes; load() it to go on.
  std::optional<GradScalerState> grad_scaler = std::nullopt;
};

// Writes the folder `path`, with three files that any reader of safetensors reads:
//   model.safetensors      parameters and buffers, under the names that they have in the plain
//                          model; a tied weight once, under its first name
//   optimizer.safetensors  states, "0.weight/exp_avg"; groups, options and numbers, such as steps,
//                          are JSON in the metadata
//   progress.safetensors   the generator's state; step, rows, settings, and the sizes and CRC-32 of
//                          all files in the metadata
//
// Over several processes (GPipeOptions::world), all of them call this with the same path on one
// file system, and each writes its part: model-00001-of-00004.safetensors, the same for the
// optimizer, and an index in Hugging Face's form. Each process has an optimizer of its
// local_parameters(), with the same groups and options, or a ZeroOptimizer, whose states are in one
// file of each process. The first replica writes what all replicas have. The saved generator is
// that of rank 0.
//
// An old checkpoint is replaced as a whole: after a crash, or if the disk is full, the old one is
// still there. If several writers write at the same time, the last one's stays. The owner and
// access rights of the old one stay. The next call removes the draft that a crash has left
// (PATH.draft-NUMBER).
//
// The optimizer may be any whose states are tensors and numbers: all of LibTorch's except LBFGS.
// Must not be called during a step.
//
// Throws c10::ValueError for a path that is empty, a file, a mount point, the current folder or a
// folder with anything else in it, for an optimizer that has other parameters than the pipeline,
// for negative numbers, for a `generator` that is not a valid state, and for tensors that
// safetensors does not have (sparse ones, complex128); c10::NotImplementedError for LBFGS;
// std::runtime_error with the path and the reason if the checkpoint cannot be written.
void save_checkpoint(GPipe& pipe, torch::optim::Optimizer& optimizer, const Progress& progress,
                     const std::string& path);
void save_checkpoint(GPipe& pipe, ZeroOptimizer& optimizer, const Progress& progress,
                     const std::string& path);

// Checks the path of a checkpoint before a training, with the errors that save_checkpoint would
// throw after it: c10::ValueError for a path that cannot hold a checkpoint, std::runtime_error for
// one in a folder that does not exist. Writes nothing, so it does not see whether the rights and
// the room on the disk suffice. Each process may call it by itself.
//
// Returns whether there is a folder that a checkpoint would replace: an old checkpoint, or an empty
// folder.
bool check_checkpoint_path(const std::string& path);

// Whether there is a checkpoint to resume from: a folder with anything in it. load_checkpoint
// checks whether that is a complete checkpoint. Each process may call it by itself.
//
// Example:
//   if (gpipe::has_checkpoint(path)) progress = gpipe::load_checkpoint(pipe, optimizer, path);
bool has_checkpoint(const std::string& path);

// Reads the folder of a checkpoint. The balance, placement, devices, numbers of processes and
// replicas, and the use of ZeroOptimizer may differ from those of the run that wrote it: tensors go
// to where the parameters are. Over several processes all of them call this, and each reads its own
// part of the model. The folder may be replaced meanwhile: all that is read belongs to one
// checkpoint. Everything is checked before the first value is changed. LibTorch's generator on the
// CPU has the saved state afterwards, so the run goes on with the bits that it would have had
// (docs/guide/16-saving.md says what else must be the same).
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

// Reads the parameters and buffers of a checkpoint alone, for inference, or to begin another
// training from them. Any optimizer may have written it. LibTorch's generator stays as it is.
// Otherwise as load_checkpoint, with its errors.
//
// Example:
//   gpipe::load_weights(pipe, "run/best");
//   pipe->eval();
Progress load_weights(GPipe& pipe, const std::string& path);

// Reads from the folder of a checkpoint how far the run was, and its settings (empty if it was
// saved without). Changes nothing, and reads none of the large files. Each process may call it by
// itself.
//
// Throws c10::ValueError for an empty path; std::runtime_error with the path and the reason if
// there is no checkpoint, or its progress is damaged.
Progress read_progress(const std::string& path);

}  // namespace gpipe

#endif  // GPIPE_SAVING_SAVING_H_

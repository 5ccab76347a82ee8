// profile_file: profiles as JSON files, so that a model is measured once and its profile used
// often.
//
//   {"format": "gpipe profile", "version": 2, "units": "seconds, bytes", "model": "unet:5,64",
//    "device": "NVIDIA A100", "batch_rows": 4, "input": 1769472,
//    "layers": [{"name": "0", "forward": 0.0012, "backward": 0.0031, "parameters": 7168,
//                "buffers": 0, "kept": 37748736, "workspace": 0, "output": 37748736,
//                "input_gradient": 0.0016, "weight_gradient": 0.0019, "waiting": 37748736}],
//    "skips": [{"from": 0, "to": 7, "bytes": 37748736}],
//    "shared_inputs": []}
//
// "autocast": "bfloat16" is present only if autocast was enabled, "deferred_batch_norm": true only
// if batch norms were deferred. Files of version 1 have neither "autocast" nor "shared_inputs".
// They are still read, and both fields are then unknown.
//
// The last three fields of a layer describe a split backward. Older files lack all three:
// split_backward() (balance/costs/profile.h) says what is assumed then.
#ifndef BALANCE_COSTS_PROFILE_FILE_H_
#define BALANCE_COSTS_PROFILE_FILE_H_

#include <string>

#include "balance/costs/profile.h"

namespace gpipe::balance {

struct SavedProfile {
  std::string model;  // a name for people and programs, e.g. "unet:5,64"; may be empty
  Profile profile;
};

// Writes a profile file's text. Numbers keep all their digits. Throws std::invalid_argument for a
// profile that cannot have been measured (check_profile).
std::string to_json(const SavedProfile& saved);

// The inverse. Unknown fields are ignored. Throws std::invalid_argument with a message that begins
// with `file` and names the field: for a text that is not valid JSON, not a profile or of another
// version, and for a field that is missing, of a wrong type or impossible.
SavedProfile profile_from_json(const std::string& text, const std::string& file);

// Writes a profile file, replacing an existing file as a whole. Throws std::runtime_error if it
// cannot be written, otherwise as to_json().
void save_profile(const std::string& path, const SavedProfile& saved);

// Reads a profile file. Throws std::invalid_argument if it cannot be read, otherwise as
// profile_from_json().
SavedProfile load_profile(const std::string& path);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILE_FILE_H_

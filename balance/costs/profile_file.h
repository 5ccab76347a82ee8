// Profile files: a profile as JSON, so that it is measured once and used often.
//
//   {"format": "gpipe profile", "version": 2, "units": "seconds, bytes", "model": "unet:5,64",
//    "device": "NVIDIA A100", "batch_rows": 4, "input": 1769472,
//    "layers": [{"name": "0", "forward": 0.0012, "backward": 0.0031, "parameters": 7168,
//                "buffers": 0, "kept": 37748736, "workspace": 0, "output": 37748736,
//                "input_gradient": 0.0016, "weight_gradient": 0.0019, "waiting": 37748736}],
//    "skips": [{"from": 0, "to": 7, "bytes": 37748736}],
//    "shared_inputs": []}
//
// "autocast": "bfloat16" is there only where it was enabled, "deferred_batch_norm": true only where
// batch norms were deferred. Files of version 1 say
// neither autocast nor shared inputs, and are still read: then both are unknown.
//
// The last three of a layer are of a backward that is split. They are missing together in files
// that are older than that: split_backward() (balance/costs/profile.h) says what is taken instead.
#ifndef BALANCE_COSTS_PROFILE_FILE_H_
#define BALANCE_COSTS_PROFILE_FILE_H_

#include <string>

#include "balance/costs/profile.h"

namespace gpipe::balance {

struct SavedProfile {
  std::string model;  // a name for people and programs, e.g. "unet:5,64"; may be empty
  Profile profile;
};

// The text of such a file. Numbers keep all their digits. Throws std::invalid_argument for a
// profile that cannot have been measured (check_profile).
std::string to_json(const SavedProfile& saved);

// The inverse. Fields that this version does not know are ignored. Throws std::invalid_argument
// that begins with `file` and names the field, for a text that is no JSON, no profile, of another
// version, and for a field that is missing, of a wrong kind or impossible.
SavedProfile profile_from_json(const std::string& text, const std::string& file);

// Replaces the file as a whole. Throws std::runtime_error if it cannot be written, otherwise as
// to_json() does.
void save_profile(const std::string& path, const SavedProfile& saved);

// Throws std::invalid_argument if the file cannot be read, otherwise as profile_from_json() does.
SavedProfile load_profile(const std::string& path);

}  // namespace gpipe::balance

#endif  // BALANCE_COSTS_PROFILE_FILE_H_

// ProcessSetting: a setting of the whole process by which LibTorch's operators compute.
//
// All threads have these settings, so workers need not take them over. But what is computed again,
// or replayed, under other settings than the first time would have other values.
#ifndef GPIPE_INTERNAL_THREADS_PROCESS_SETTINGS_H_
#define GPIPE_INTERNAL_THREADS_PROCESS_SETTINGS_H_

#include <cstdint>
#include <vector>

namespace gpipe::internal {

struct ProcessSetting {
  const char* name;  // the function that sets it, for messages
  int64_t value;
  bool only_cuda = false;      // whether it changes nothing on other devices
  bool operators_set = false;  // whether operators also set it, at their first use in the process
};

// The settings as they are now, always in the same order: the default type, and those that choose
// kernels and their precision.
std::vector<ProcessSetting> process_settings();

// Takes over the values of settings that operators may have set meanwhile.
void take_what_operators_set(std::vector<ProcessSetting>& settings);

// The name of the first setting that differs; null if all are the same. `on_cuda`: whether settings
// that only CUDA uses count.
const char* first_change(const std::vector<ProcessSetting>& before,
                         const std::vector<ProcessSetting>& now, bool on_cuda);

}  // namespace gpipe::internal

#endif  // GPIPE_INTERNAL_THREADS_PROCESS_SETTINGS_H_

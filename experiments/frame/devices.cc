#include "experiments/frame/devices.h"

#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <algorithm>
#include <cctype>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace gpipe::experiments {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 6 &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::vector<c10::Device> parse_devices(const std::string& text, int64_t cuda_devices) {
  std::vector<c10::Device> devices;
  if (text.empty()) {
    for (int64_t i = 0; i < cuda_devices; ++i) {
      devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(i));
    }
    return devices;
  }
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::string name(absl::StripAsciiWhitespace(part));
    std::string number;
    if (is_number(name)) number = name;
    if (name.rfind("cuda:", 0) == 0) number = name.substr(5);
    if (name == "cuda") number = "0";
    if (name == "cpu") {
      devices.emplace_back(c10::kCPU);
      continue;
    }
    TORCH_CHECK_VALUE(is_number(number), "--devices=", text, ": '", name,
                      "' is not a device; give a list such as cpu,cpu or cuda:0,cuda:1");
    const int64_t index = std::stoll(number);
    TORCH_CHECK_VALUE(index < cuda_devices, "--devices=", text, ": there is no CUDA device ", index,
                      "; this machine has ", cuda_devices);
    devices.emplace_back(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  }
  return devices;
}

std::vector<c10::Device> parse_devices(const std::string& text) {
  return parse_devices(text, static_cast<int64_t>(torch::cuda::device_count()));
}

std::string to_text(const std::vector<c10::Device>& devices) {
  std::string text;
  for (const c10::Device& device : devices) text += (text.empty() ? "" : ",") + device.str();
  return text;
}

}  // namespace gpipe::experiments

// ProcessesOfTwo: claims to be the first of two processes, but runs no other process. Tests
// override the functions that they need.
#ifndef GPIPE_TESTING_PROCESSES_OF_TWO_H_
#define GPIPE_TESTING_PROCESSES_OF_TWO_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/internal/processes/processes.h"
#include "gpipe/schedule/program.h"

namespace gpipe::testing {

class ProcessesOfTwo : public internal::Processes {
 public:
  explicit ProcessesOfTwo(int64_t rank = 0) : rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return 2; }
  int64_t next_number() override { return 0; }
  void take_number() override {}
  std::unique_ptr<Call> begin_call() override { return nullptr; }
  // By default the other process answers with the same value.
  std::vector<std::string> exchange(const std::string& /*name*/, const std::string& value,
                                    bool /*is_patient*/) override {
    return {value, value};
  }
  void agree(const std::string& /*name*/, const std::string& /*value*/) override {}
  void move(const std::vector<Parcel>& /*sends*/,
            const std::vector<Parcel>& /*receives*/) override {}
  std::unique_ptr<Run> begin_run(const Program& /*program*/,
                                 const std::vector<int64_t>& /*process_of_worker*/,
                                 std::shared_ptr<Messages>& /*messages*/,
                                 std::function<std::string(int64_t)> /*layer*/,
                                 c10::Device /*device*/) override {
    return nullptr;
  }

 private:
  const int64_t rank_;
};

}  // namespace gpipe::testing

#endif  // GPIPE_TESTING_PROCESSES_OF_TWO_H_

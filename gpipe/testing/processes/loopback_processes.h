// LoopbackProcesses: for tests, a single process whose workers communicate as if each were a
// process.
#ifndef GPIPE_TESTING_PROCESSES_LOOPBACK_PROCESSES_H_
#define GPIPE_TESTING_PROCESSES_LOOPBACK_PROCESSES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/distributed/packets/device_link.h"
#include "gpipe/distributed/packets/device_links.h"
#include "gpipe/distributed/packets/message_plan.h"
#include "gpipe/internal/processes/processes.h"

namespace gpipe::distributed {

// LoopbackProcesses is the only process of its World. Within a run each worker is a rank of its
// own: packets between workers become bytes, and move over a MemoryNetwork when their receiver has
// asked for them.
//
// If `kind` is given, tensors between stages on a device go by links of that kind, as long as there
// are enough streams for the links. All pipelines are on one device.
//
// Example:
//   const World world(std::make_shared<LoopbackProcesses>(), /*rank=*/0, /*size=*/1);
class LoopbackProcesses final : public internal::Processes {
 public:
  explicit LoopbackProcesses(const LinkKind* kind = nullptr);
  ~LoopbackProcesses() override;

  // None, so that packets leave this process wherever they go.
  int64_t rank() const override { return -1; }
  int64_t size() const override { return 1; }
  int64_t next_number() override { return number_; }
  void take_number() override { ++number_; }
  std::unique_ptr<Call> begin_call() override;
  std::vector<std::string> exchange(const std::string& name, const std::string& value,
                                    bool is_patient) override;
  void agree(const std::string& name, const std::string& value) override;
  void move(const std::vector<Parcel>& sends, const std::vector<Parcel>& receives) override;
  std::unique_ptr<Run> begin_run(const Program& program,
                                 const std::vector<int64_t>& process_of_worker,
                                 std::shared_ptr<Messages>& messages,
                                 std::function<std::string(int64_t stage)> current_layer,
                                 c10::Device device) override;

  // The number of messages between workers so far.
  int64_t moved() const { return moved_; }
  // How often the processes have compared or exchanged values so far: a round trip each.
  int64_t round_trips() const { return round_trips_; }

 private:
  class LoopbackRun;

  bool connect_links(const MessagePlan& plan, c10::Device device);

  const LinkKind* const kind_;
  std::vector<std::unique_ptr<DeviceLinks>> links_;  // [worker]
  int64_t number_ = 0;
  int64_t moved_ = 0;
  int64_t round_trips_ = 0;
};

}  // namespace gpipe::distributed

#endif  // GPIPE_TESTING_PROCESSES_LOOPBACK_PROCESSES_H_

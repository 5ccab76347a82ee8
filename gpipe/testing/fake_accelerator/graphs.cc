// Graphs on the fake accelerator, behind gpipe/internal/graphs/device_graph.h. It has no header:
// linking registers it.

#include <memory>
#include <utility>
#include <vector>

#include "gpipe/internal/graphs/device_graph.h"
#include "gpipe/testing/fake_accelerator/backend.h"
#include "gpipe/testing/fake_accelerator/generator.h"

namespace gpipe::testing::fake {
namespace {

// FakePool is a user of its pool, which would otherwise die with the pool's last graph.
struct FakePool final : internal::GraphPool {
  FakePool() : number(allocator().make_pool()) { allocator().use_pool(number); }
  ~FakePool() override { allocator().release_pool(number); }
  FakePool(const FakePool&) = delete;
  FakePool& operator=(const FakePool&) = delete;

  const int64_t number;
};

class FakeGraph final : public internal::DeviceGraph {
 public:
  FakeGraph(c10::Device device, std::shared_ptr<internal::GraphPool> pool,
            std::vector<at::Generator> generators)
      : device_(device), pool_(std::move(pool)), generators_(std::move(generators)) {
    // As in LibTorch, the generators' seeds are on the device, in memory of the stream that is
    // current when the graph is made. begin() and each replay write them.
    if (!generators_.empty()) seeds_ = device_allocator()->allocate(kSeedBytes);
  }
  ~FakeGraph() override {
    if (uses_pool_) allocator().release_pool(pool());
  }
  FakeGraph(const FakeGraph&) = delete;
  FakeGraph& operator=(const FakeGraph&) = delete;

  void begin() override {
    stream_ = current_stream(device_);
    touch_seeds(stream_, "seeds of a recording", /*write=*/true);
    allocator().begin_pool(stream_, pool());
    uses_pool_ = true;
    runtime().begin_recording(stream_);
    set_recordable(true);
  }
  void end() override {
    leave();
    tasks_ = runtime().end_recording(stream_);
  }
  void abort() noexcept override {
    try {
      end();
    } catch (const RecordingError&) {  // the recording has failed, and is dropped in any case
    }
    tasks_.clear();
  }
  void replay() override {
    const StreamId stream = current_stream(device_);
    touch_seeds(stream, "seeds of a replay", /*write=*/true);
    runtime().replay(stream, tasks_);
    touch_seeds(stream, "draws of a replay", /*write=*/false);
  }

 private:
  int64_t pool() const { return static_cast<const FakePool&>(*pool_).number; }
  void leave() {
    set_recordable(false);
    allocator().end_pool(stream_);
  }
  void touch_seeds(StreamId stream, const char* what, bool write) {
    if (!seeds_) return;
    runtime().launch(stream,
                     {what,
                      Task::Kind::kUpkeep,
                      {{Footprint(static_cast<const char*>(seeds_.get()), kSeedBytes), write}},
                      [] {},
                      {}});
  }
  void set_recordable(bool recordable) {
    for (const at::Generator& generator : generators_) {
      static_cast<FakeGenerator*>(generator.unsafeGetGeneratorImpl())->set_recordable(recordable);
    }
  }

  const c10::Device device_;
  const std::shared_ptr<internal::GraphPool> pool_;
  const std::vector<at::Generator> generators_;
  StreamId stream_;
  bool uses_pool_ = false;
  std::vector<Task> tasks_;
  static constexpr size_t kSeedBytes = 16;
  c10::DataPtr seeds_;
};

class FakeGraphs final : public internal::GraphDevice {
 public:
  std::shared_ptr<internal::GraphPool> make_pool(c10::Device /*device*/) override {
    return std::make_shared<FakePool>();
  }
  std::unique_ptr<internal::DeviceGraph> make_graph(
      c10::Device device, std::shared_ptr<internal::GraphPool> pool,
      std::vector<at::Generator> generators) override {
    return std::make_unique<FakeGraph>(device, std::move(pool), std::move(generators));
  }
};

[[maybe_unused]] const bool registered = [] {
  // Registered until the process ends.
  internal::register_graph_device(c10::kPrivateUse1, new FakeGraphs);
  return true;
}();

}  // namespace
}  // namespace gpipe::testing::fake

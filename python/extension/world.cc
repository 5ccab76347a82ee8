#include "python/extension/world.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "gpipe/distributed/any_rank.h"
#include "gpipe/distributed/from_rank_0.h"
#include "gpipe/internal/processes/processes.h"
#include "gpipe/runtime/interruption.h"
#include "gpipe/world.h"
#include "python/extension/calling.h"
#include "python/extension/exceptions.h"
#include "python/extension/gil.h"

namespace gpipe::python {
namespace {

namespace py = pybind11;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// To connect may take minutes if processes never come, and Ctrl-C must end that wait. So another
// thread connects. If this thread is interrupted, it leaves the other one to itself.
std::unique_ptr<HeldWorld> from_environment(double rendezvous_limit, double silence_limit,
                                            double call_limit, bool announce) {
  WorldOptions options;
  options.rendezvous_limit = milliseconds(rendezvous_limit);
  options.silence_limit = milliseconds(silence_limit);
  options.call_limit = milliseconds(call_limit);
  options.announce = announce;
  return std::make_unique<HeldWorld>(without_gil([&] {
    auto connecting = std::make_shared<std::packaged_task<World()>>(
        [options] { return World::from_environment(options); });
    std::future<World> connected = connecting->get_future();
    std::thread([connecting] { (*connecting)(); }).detach();
    while (connected.wait_for(internal::kInterruptionPeriod) != std::future_status::ready) {
      check_signals();
    }
    return connected.get();
  }));
}

py::bytes bytes_from_rank_0(const HeldWorld& self, const py::object& make) {
  const Held function(make);
  return without_gil([&] {
    return from_rank_0(self.world, [&] {
      return calling([&] { return std::string(py::bytes(function.get()())); });
    });
  });
}

}  // namespace

void fail_call(const World& world, const std::exception_ptr& error) {
  if (world.size() == 1) return;
  without_gil([&] {
    try {
      internal::in_call(world.processes().get(), [&]() -> bool { std::rethrow_exception(error); });
    } catch (const std::exception&) {
      // The caller has an error of its own. If another process has failed, too, this call is over.
    }
  });
}

HeldWorld::~HeldWorld() {
  without_gil([this] { world = World(); });
}

void define_world(py::module_& module) {
  py::class_<HeldWorld>(module, "World")
      .def_static("from_environment", &from_environment, py::arg("rendezvous_limit"),
                  py::arg("silence_limit"), py::arg("call_limit"), py::arg("announce"))
      .def("grid",
           [](const HeldWorld& self, int64_t replicas, int64_t processes) {
             return std::make_unique<HeldWorld>(self.world.grid(replicas, processes));
           })
      .def_property_readonly("rank", [](const HeldWorld& self) { return self.world.rank(); })
      .def_property_readonly("size", [](const HeldWorld& self) { return self.world.size(); })
      .def_property_readonly("local_rank",
                             [](const HeldWorld& self) { return self.world.local_rank(); })
      .def_property_readonly("replicas",
                             [](const HeldWorld& self) { return self.world.replicas(); })
      .def_property_readonly("replica", [](const HeldWorld& self) { return self.world.replica(); })
      .def_property_readonly("process", [](const HeldWorld& self) { return self.world.process(); })
      .def("rows",
           [](const HeldWorld& self, int64_t rows, int64_t chunks) {
             const RowRange range = self.world.rows(rows, chunks);
             return std::pair(range.begin, range.end);
           })
      .def("any_rank",
           [](const HeldWorld& self, bool here) {
             return without_gil([&] { return any_rank(self.world, here); });
           })
      .def("from_rank_0", &bytes_from_rank_0)
      .def("fail_call", [](const HeldWorld& self, const std::string& text) {
        fail_call(self.world, std::make_exception_ptr(std::runtime_error(text)));
      });
}

}  // namespace gpipe::python

// Environment: which launcher started this process, and what it says about the others.
//
// Launchers tell each process its number, how many there are and where the first one is, each in
// environment variables of its own. This reads them without opening or resolving anything: that is
// what comes after.
#ifndef GPIPE_DISTRIBUTED_MEET_ENVIRONMENT_H_
#define GPIPE_DISTRIBUTED_MEET_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::distributed {

// In the order in which they are looked for.
enum class Launcher {
  kGPipe,     // //gpipe/distributed:launch: torchrun's variables, and GPIPE_LAUNCHER
  kTorchrun,  // RANK, WORLD_SIZE, ...; also where somebody has set them by hand
  kOpenMpi,   // OMPI_COMM_WORLD_RANK, ...
  kMpich,     // PMI_RANK, ...: MPICH's and Intel's mpiexec
  kSlurm,     // SLURM_PROCID, ...: srun
  kNone,      // one process
};

// Names the launcher.
std::string to_text(Launcher launcher);

// What each process knows. A value.
//
// Guarantees: 0 <= rank < size, 0 <= local_rank < local_size <= size; an address and a port from 1
// to 65535, but for kNone, whose port is 0: any.
struct Environment {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0;
  int64_t size = 1;
  // Among the processes of this machine.
  int64_t local_rank = 0;
  int64_t local_size = 1;
  // Where the store is that all processes meet at. A name must not be resolved to find out where to
  // listen: Debian maps a host's own name to 127.0.1.1, where no other machine comes.
  std::string master_address;
  int64_t master_port = 0;
  // The launcher runs the store, and rank 0 is a client like the others.
  bool store_is_the_launchers = false;
  // How often the launcher has started the processes again. Its store keeps what those before
  // wrote.
  int64_t restarts = 0;
  // Where the launcher wants to read why this process failed; empty if nowhere.
  std::string error_file;
  // The network interface by which processes meet, by name (eth0) or address: GPIPE_INTERFACE.
  // 127.0.0.1 if all are on this machine, which stands for its loopback address also where that is
  // ::1 alone (addresses.h); otherwise empty if not chosen: the one that reaches
  // master_address.
  std::string interface;
  // The way between the devices of processes: GPIPE_DEVICE_LINKS, "host" if it is not set.
  std::string device_links = "host";
  // Where each of these values is from: "rank" -> "RANK". For to_text().
  std::map<std::string, std::string> sources;

  // Whether all processes are on this machine.
  bool is_one_machine() const { return local_size == size; }
};

// One line: what was recognised, and each value with the variable that it is from.
std::string to_text(const Environment& environment);

// The same in short, for the log of a run in which nothing is wrong: what has started it, and where
// it listens. `master`, `own`: as choose_addresses() has found them, the first with its port.
std::string announcement(const Environment& environment, const std::string& master,
                         const std::string& own);

// Where a process gets its time from.
struct CoreSource {
  std::string host;
  std::string group;  // machine::quota_group(); empty: it has no quota
  int64_t cores = 0;  // of the machine, or as many as the quota gives
};

// A warning, if processes that share their cores have more threads together than there are, and
// nobody chose that; else empty. `sources`: by rank. `threads`: of an operator in each process.
std::string too_many_threads(const std::vector<CoreSource>& sources, int64_t threads,
                             bool is_chosen);

// The value of an environment variable; no value if it is not set.
using Variable = std::function<std::optional<std::string>(const std::string& name)>;

// What the variables say. Throws std::invalid_argument, which names the variable, its value and
// what to do, for whatever does not fit together.
Environment read_environment(const Variable& variable);
Environment read_environment(const std::map<std::string, std::string>& variables);
// Those of this process.
Environment environment_of_this_process();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_ENVIRONMENT_H_

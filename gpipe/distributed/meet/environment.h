// Environment: which launcher started this process, and what it says about the others.
//
// Launchers tell each process its rank, the number of processes and the address of rank 0. Each
// launcher has its own environment variables for that. This file only reads them: it opens no
// connection and resolves no name, which addresses.h and session.h do.
#ifndef GPIPE_DISTRIBUTED_MEET_ENVIRONMENT_H_
#define GPIPE_DISTRIBUTED_MEET_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "machine/cores.h"

namespace gpipe::distributed {

// The launchers, in the order in which they are looked for.
enum class Launcher {
  kGPipe,     // //gpipe/distributed:launch: torchrun's variables, and GPIPE_LAUNCHER
  kTorchrun,  // RANK, WORLD_SIZE, ...; also if the user has set them by hand
  kOpenMpi,   // OMPI_COMM_WORLD_RANK, ...
  kMpich,     // PMI_RANK, ...: MPICH's and Intel's mpiexec
  kSlurm,     // SLURM_PROCID, ...: srun
  kNone,      // one process
};

// Names the launcher.
std::string to_text(Launcher launcher);

// The settings that each process gets from its launcher. A value.
//
// Guarantees: 0 <= rank < size, 0 <= local_rank < local_size <= size; an address, and a port from 1
// to 65535, except for kNone, whose port 0 stands for any free port.
struct Environment {
  Launcher launcher = Launcher::kNone;
  int64_t rank = 0;
  int64_t size = 1;
  // The rank among the processes of this machine, and their number.
  int64_t local_rank = 0;
  int64_t local_size = 1;
  // The host of the store through which all processes meet. A name must not be resolved to find
  // where to listen: Debian maps a host's own name to 127.0.1.1, which other machines cannot reach.
  std::string master_address;
  int64_t master_port = 0;
  // The launcher runs the store, and rank 0 is a client like the others.
  bool store_is_the_launchers = false;
  // How often the launcher has started the processes again, by its own count. torchrun's count
  // differs between machines, and does not change when a machine comes or leaves.
  int64_t restarts = 0;
  // The file in which the launcher reads why this process failed; empty if there is none.
  std::string error_file;
  // The network interface through which processes meet, by name (eth0) or address: GPIPE_INTERFACE.
  // If that is not set and all processes are on this machine: 127.0.0.1, which stands for the
  // machine's loopback address, even if that is ::1 (addresses.h). If that is not set otherwise:
  // empty, which stands for the interface that reaches master_address.
  std::string interface;
  // How tensors travel between devices of processes: GPIPE_DEVICE_LINKS, "host" if it is not set.
  std::string device_links = "host";
  // The source of each of these values: "rank" -> "RANK". For to_text().
  std::map<std::string, std::string> sources;

  // Whether all processes are on this machine.
  bool is_one_machine() const { return local_size == size; }
};

// The environment as one line: the launcher that was recognized, and each value with the variable
// that it is from.
std::string to_text(const Environment& environment);

// A shorter line for the log of a run without errors: which launcher started it, and where it
// listens. `master`, `own`: as choose_addresses() has found them, `master` with its port.
std::string announcement(const Environment& environment, const std::string& master,
                         const std::string& own);

// The cores that a process may use: those of its machine, and as many as its quotas give.
struct CoreSource {
  std::string host;
  int64_t cores = 0;  // of the machine
  std::vector<machine::Quota> quotas;
};

// A warning if processes that share cores have more threads together than there are cores;
// otherwise empty. `sources`: by rank. `threads`: how many an operator uses in each process.
// `is_chosen`: the user has set `threads`, so there is no warning.
std::string too_many_threads(const std::vector<CoreSource>& sources, int64_t threads,
                             bool is_chosen);

// The value of an environment variable; no value if it is not set.
using Variable = std::function<std::optional<std::string>(const std::string& name)>;

// Reads the settings from variables. Throws std::invalid_argument, which names the variable, its
// value and what to do, if values are invalid or contradict each other.
Environment read_environment(const Variable& variable);
Environment read_environment(const std::map<std::string, std::string>& variables);
// Reads the settings from the variables of this process.
Environment environment_of_this_process();

}  // namespace gpipe::distributed

#endif  // GPIPE_DISTRIBUTED_MEET_ENVIRONMENT_H_

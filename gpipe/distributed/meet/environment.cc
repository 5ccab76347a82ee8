#include "gpipe/distributed/meet/environment.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "gpipe/distributed/meet/slurm_lists.h"
#include "text/quoted.h"

namespace gpipe::distributed {
namespace {

using internal::quoted;

constexpr const char* kLoopback = "127.0.0.1";

// Reads the variables, and reports a mistake in one of them.
class Reader {
 public:
  // `advice` ends every message.
  Reader(const Variable& variable, std::string advice)
      : variable_(variable), advice_(std::move(advice)) {}

  std::optional<std::string> get(const std::string& name) const { return variable_(name); }
  bool has(const std::string& name) const { return get(name).has_value(); }

  // A variable with its value, for messages, like "RANK='4'".
  std::string shown(const std::string& name) const {
    const std::optional<std::string> value = get(name);
    return value ? name + "=" + quoted(*value) : name + " (not set)";
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument(what + ". " + advice_);
  }

  // `beside`: the variable by which the launcher was recognized.
  std::string required(const std::string& name, const std::string& beside) const {
    std::optional<std::string> value = get(name);
    if (!value) refuse(name + " is not set, but " + shown(beside) + " is");
    return *value;
  }

  int64_t number(const std::string& name, const std::string& beside, int64_t least,
                 int64_t most = std::numeric_limits<int32_t>::max()) const {
    const std::string text = required(name, beside);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::invalid_argument || end != text.data() + text.size()) {
      refuse(shown(name) + " is not a whole number");
    }
    if (error != std::errc() || value < least || value > most) {
      refuse(shown(name) + " is not from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return value;
  }

 private:
  const Variable& variable_;
  std::string advice_;
};

// The names of the variables in which a launcher tells these four numbers.
struct Names {
  std::string rank, size, local_rank, local_size;
};

void read_rank(const Reader& read, const Names& names, Environment& environment) {
  environment.rank = read.number(names.rank, names.size, 0);
  environment.size = read.number(names.size, names.rank, 1);
  if (environment.rank >= environment.size) {
    read.refuse(read.shown(names.rank) + " is not below " + read.shown(names.size) +
                ": ranks count from 0");
  }
  environment.sources["rank"] = names.rank;
  environment.sources["size"] = names.size;
}

void check_local_rank(const Reader& read, const Names& names, Environment& environment) {
  if (environment.local_rank >= environment.local_size) {
    read.refuse(read.shown(names.local_rank) + " is not below " + read.shown(names.local_size) +
                ", the processes of this machine");
  }
  if (environment.local_size > environment.size) {
    read.refuse(read.shown(names.local_size) + " processes of this machine are more than " +
                read.shown(names.size) + ", those of all");
  }
  environment.sources["local_rank"] = names.local_rank;
  environment.sources["local_size"] = names.local_size;
}

void read_local_rank(const Reader& read, const Names& names, Environment& environment) {
  environment.local_rank = read.number(names.local_rank, names.rank, 0);
  environment.local_size = read.number(names.local_size, names.rank, 1);
  check_local_rank(read, names, environment);
}

// A port number that all processes of a job derive from the job's name. It is below the ports that
// systems assign by themselves.
int64_t port_of_job(std::string_view job) {
  uint32_t hash = 2166136261U;  // FNV-1a: std::hash may differ from machine to machine
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  constexpr uint32_t kFirst = 20000;
  constexpr uint32_t kPorts = 12000;
  return kFirst + hash % kPorts;
}

// The address as inet_ntop() writes it, if it is an IPv6 address, possibly in brackets as in URLs;
// otherwise the text itself.
std::string canonical(const std::string& address) {
  const bool in_brackets = address.size() > 2 && address.front() == '[' && address.back() == ']';
  const std::string bare = in_brackets ? address.substr(1, address.size() - 2) : address;
  in6_addr v6{};
  char text[INET6_ADDRSTRLEN];
  if (inet_pton(AF_INET6, bare.c_str(), &v6) != 1) return address;
  return inet_ntop(AF_INET6, &v6, text, sizeof text);
}

// Reads MASTER_ADDR and MASTER_PORT, if they are set.
void read_given_master(const Reader& read, const std::string& beside, Environment& environment) {
  if (read.has("MASTER_ADDR")) {
    environment.master_address = canonical(read.required("MASTER_ADDR", beside));
    const std::string& address = environment.master_address;
    const auto is_of_an_address = [](char c) {
      return c > ' ' && c < 0x7f && c != '[' && c != ']';
    };
    if (address.empty() || !std::all_of(address.begin(), address.end(), is_of_an_address)) {
      read.refuse(read.shown("MASTER_ADDR") + " is neither an address nor the name of a host");
    }
    environment.sources["master_address"] = "MASTER_ADDR";
  }
  if (read.has("MASTER_PORT")) {
    environment.master_port = read.number("MASTER_PORT", beside, 1, 65535);
    environment.sources["master_port"] = "MASTER_PORT";
  }
}

// Finds where to meet if the launcher does not tell it. `job`: the names of variables whose values
// are the same for all processes of a job, and different for other jobs.
void find_master(const Reader& read, const std::vector<std::string>& job,
                 Environment& environment) {
  if (environment.master_address.empty() && environment.is_one_machine()) {
    environment.master_address = kLoopback;
    environment.sources["master_address"] = "all ranks are on one machine";
  }
  if (environment.master_address.empty()) {
    read.refuse("MASTER_ADDR is not set: the address of rank 0, which all machines must be told");
  }
  if (environment.master_port != 0) return;
  std::string id;
  std::string source;
  for (const std::string& name : job) {
    const std::optional<std::string> value = read.get(name);
    if (!value || value->empty()) continue;
    id += *value + ".";
    source += (source.empty() ? "made of " : " and ") + name;
  }
  if (id.empty()) {
    read.refuse("MASTER_PORT is not set: a port that is free on " + environment.master_address +
                ", the same for all ranks");
  }
  environment.master_port = port_of_job(id);
  environment.sources["master_port"] = source;
}

const char* const kTorchAdvice =
    "Start with torchrun or //gpipe/distributed:launch, which set RANK, WORLD_SIZE, LOCAL_RANK, "
    "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; or set all six; or unset all of them for one "
    "process";

void read_torchrun(const Variable& variable, Environment& environment) {
  const Reader read(variable, kTorchAdvice);
  const Names names{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
  // With TORCHELASTIC_RUN_ID the launcher is torchrun, which itself may have been started by
  // //gpipe/distributed:launch.
  environment.launcher = read.has("GPIPE_LAUNCHER") && !read.has("TORCHELASTIC_RUN_ID")
                             ? Launcher::kGPipe
                             : Launcher::kTorchrun;
  read_rank(read, names, environment);
  read_local_rank(read, names, environment);
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) read.required(name, "RANK");
  read_given_master(read, "RANK", environment);
  if (const auto store = read.get("TORCHELASTIC_USE_AGENT_STORE")) {
    if (*store != "True" && *store != "False") {
      read.refuse(read.shown("TORCHELASTIC_USE_AGENT_STORE") + " is neither True nor False");
    }
    environment.store_is_the_launchers = *store == "True";
    environment.sources["store_is_the_launchers"] = "TORCHELASTIC_USE_AGENT_STORE";
  }
  if (read.has("TORCHELASTIC_RESTART_COUNT")) {
    environment.restarts = read.number("TORCHELASTIC_RESTART_COUNT", "RANK", 0);
    environment.sources["restarts"] = "TORCHELASTIC_RESTART_COUNT";
  }
  if (const auto file = read.get("TORCHELASTIC_ERROR_FILE"); file && !file->empty()) {
    environment.error_file = *file;
    environment.sources["error_file"] = "TORCHELASTIC_ERROR_FILE";
  }
}

void read_open_mpi(const Variable& variable, Environment& environment) {
  const Reader read(variable,
                    "Open MPI's mpirun sets OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, "
                    "OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE; give it the rest "
                    "with -x MASTER_ADDR=HOST -x MASTER_PORT=29500; for one process without it "
                    "unset its variables");
  const Names names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                    "OMPI_COMM_WORLD_LOCAL_SIZE"};
  environment.launcher = Launcher::kOpenMpi;
  read_rank(read, names, environment);
  read_local_rank(read, names, environment);
  read_given_master(read, names.rank, environment);
  const std::string job = read.has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid";
  find_master(read, {job}, environment);
}

void read_mpich(const Variable& variable, Environment& environment) {
  const Reader read(variable,
                    "MPICH's and Intel's mpiexec set PMI_RANK, PMI_SIZE, MPI_LOCALRANKID and "
                    "MPI_LOCALNRANKS; give it the rest with -genv MASTER_ADDR HOST -genv "
                    "MASTER_PORT 29500; for one process without it unset its variables");
  const Names names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
  environment.launcher = Launcher::kMpich;
  read_rank(read, names, environment);
  read_local_rank(read, names, environment);
  read_given_master(read, names.rank, environment);
  find_master(read, {"PMI_JOBID"}, environment);
}

const char* const kSlurmAdvice =
    "Start with srun, which sets SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NODEID, "
    "SLURM_STEP_TASKS_PER_NODE and SLURM_STEP_NODELIST; MASTER_ADDR and MASTER_PORT may be given; "
    "for one process unset SLURM_PROCID";

// The number of Slurm's tasks on this machine.
int64_t slurm_tasks_here(const Reader& read, const std::string& tasks_name, int64_t size) {
  const int64_t node = read.number("SLURM_NODEID", "SLURM_PROCID", 0);
  const std::string list = read.required(tasks_name, "SLURM_PROCID");
  std::vector<int64_t> tasks;
  try {
    tasks = expand_tasks_per_node(list);
  } catch (const std::invalid_argument& error) {
    read.refuse(read.shown(tasks_name) + " is not a list of numbers of tasks: " + error.what());
  }
  if (std::accumulate(tasks.begin(), tasks.end(), int64_t{0}) != size) {
    read.refuse(read.shown(tasks_name) + " does not add up to " + read.shown("SLURM_NTASKS"));
  }
  if (node >= static_cast<int64_t>(tasks.size())) {
    read.refuse(read.shown("SLURM_NODEID") + " is not one of the nodes of " +
                read.shown(tasks_name));
  }
  return tasks[static_cast<std::size_t>(node)];
}

// Slurm's task 0 is on the first node of its step.
void find_slurm_master(const Reader& read, Environment& environment) {
  if (!environment.master_address.empty() || environment.is_one_machine()) return;
  if (const auto list = read.get("SLURM_STEP_NODELIST")) {
    try {
      environment.master_address = expand_host_list(*list).front();
    } catch (const std::invalid_argument& error) {
      read.refuse(read.shown("SLURM_STEP_NODELIST") + " is not a list of hosts: " + error.what());
    }
    environment.sources["master_address"] = "the first of SLURM_STEP_NODELIST";
    return;
  }
  // Without a list of nodes the master is the node on which srun was called. In a batch script that
  // is the first node.
  if (const auto address = read.get("SLURM_LAUNCH_NODE_IPADDR"); address && !address->empty()) {
    environment.master_address = *address;
    environment.sources["master_address"] = "SLURM_LAUNCH_NODE_IPADDR";
  }
}

void read_slurm(const Variable& variable, Environment& environment) {
  const Reader read(variable, kSlurmAdvice);
  const Names names{
      "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
      read.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE"};
  environment.launcher = Launcher::kSlurm;
  read_rank(read, names, environment);
  // A process in a batch script sees the number of the job's tasks, but is one process if srun has
  // not started it.
  if (environment.size > 1 && !read.has("SLURM_STEP_ID")) {
    read.refuse(read.shown("SLURM_NTASKS") +
                ": the job has more tasks than this one process, which srun has not started "
                "(SLURM_STEP_ID is not set)");
  }
  if (read.has("SLURM_STEP_NUM_TASKS") &&
      read.number("SLURM_STEP_NUM_TASKS", names.rank, 1) != environment.size) {
    read.refuse(read.shown("SLURM_NTASKS") + " are not the tasks that srun has started, " +
                read.shown("SLURM_STEP_NUM_TASKS"));
  }
  if (environment.size > 1) {
    environment.local_rank = read.number(names.local_rank, names.rank, 0);
    environment.local_size = slurm_tasks_here(read, names.local_size, environment.size);
    check_local_rank(read, names, environment);
  }
  read_given_master(read, names.rank, environment);
  find_slurm_master(read, environment);
  find_master(read, {"SLURM_JOB_ID", "SLURM_STEP_ID"}, environment);
}

// Throws if a script has set some of torchrun's variables to other values than the launcher's.
// Scripts often set them themselves.
void check_other_names(const Variable& variable, const Environment& environment) {
  const Reader read(variable, kTorchAdvice);
  const std::pair<const char*, std::pair<const char*, int64_t>> expected[] = {
      {"WORLD_SIZE", {"size", environment.size}},
      {"LOCAL_RANK", {"local_rank", environment.local_rank}},
      {"LOCAL_WORLD_SIZE", {"local_size", environment.local_size}}};
  for (const auto& [name, field] : expected) {
    if (!read.has(name)) continue;
    if (environment.launcher == Launcher::kNone) {
      read.refuse("RANK is not set, but " + read.shown(name) + " is");
    }
    if (read.number(name, name, 0) == field.second) continue;
    const auto source = environment.sources.find(field.first);
    read.refuse(read.shown(name) + " contradicts " + to_text(environment.launcher) +
                ", which says " + std::to_string(field.second) +
                (source == environment.sources.end() ? "" : " (" + source->second + ")"));
  }
}

void read_interface(const Variable& variable, Environment& environment) {
  const Reader read(variable,
                    "Give the name or the address of one of this machine's interfaces (ip -brief "
                    "address lists them), or unset GPIPE_INTERFACE");
  if (auto interface = read.get("GPIPE_INTERFACE")) {
    *interface = canonical(*interface);
    const auto is_of_a_name = [](char c) { return c > ' ' && c < 0x7f && c != '/'; };
    in6_addr ignored;
    const bool address = inet_pton(AF_INET, interface->c_str(), &ignored) == 1 ||
                         inet_pton(AF_INET6, interface->c_str(), &ignored) == 1;
    if (!address && (interface->empty() || interface->size() >= IFNAMSIZ ||
                     !std::all_of(interface->begin(), interface->end(), is_of_a_name))) {
      read.refuse(read.shown("GPIPE_INTERFACE") + " is neither an interface's name nor an address");
    }
    environment.interface = *interface;
    environment.sources["interface"] = "GPIPE_INTERFACE";
  } else if (environment.is_one_machine()) {
    environment.interface = kLoopback;
    environment.sources["interface"] = "all ranks are on one machine";
  }
}

void read_links(const Variable& variable, Environment& environment) {
  const Reader read(variable, "Or unset GPIPE_DEVICE_LINKS: tensors then go by way of the host");
  const std::optional<std::string> links = read.get("GPIPE_DEVICE_LINKS");
  if (!links || links->empty()) return;
  environment.device_links = *links;
  environment.sources["device_links"] = "GPIPE_DEVICE_LINKS";
  if (*links == "host" || environment.size == 1) return;
  const auto blocking = read.get("CUDA_LAUNCH_BLOCKING");
  if (blocking && !blocking->empty() && *blocking != "0") {
    read.refuse(read.shown("CUDA_LAUNCH_BLOCKING") + " with " + read.shown("GPIPE_DEVICE_LINKS") +
                " would wait forever: a process would wait for each kernel that it launches, and "
                "one that sends ends only when the other process receives, which it is told to do "
                "after the launch. Unset CUDA_LAUNCH_BLOCKING");
  }
  const std::optional<std::string> queues = read.get("CUDA_DEVICE_MAX_CONNECTIONS");
  if (!queues || queues->empty()) return;
  const std::string both =
      read.shown("CUDA_DEVICE_MAX_CONNECTIONS") + " with " + read.shown("GPIPE_DEVICE_LINKS");
  int64_t count = 0;
  const auto [end, error] = std::from_chars(queues->data(), queues->data() + queues->size(), count);
  if (error != std::errc() || end != queues->data() + queues->size() || count < 1 || count > 32) {
    read.refuse(read.shown("CUDA_DEVICE_MAX_CONNECTIONS") +
                " is not a number of queues from 2 to 32, which links need. Set " +
                "CUDA_DEVICE_MAX_CONNECTIONS=32");
  }
  if (count == 1) {
    read.refuse(both +
                " could wait forever: all streams of a GPU would share one queue, so a stage would "
                "wait behind a message that another process receives only after that stage. Set "
                "CUDA_DEVICE_MAX_CONNECTIONS=32");
  }
}

// Whether Slurm's own PMI, and not MPICH's mpiexec, has set the PMI_ variables. Slurm does so under
// srun, and says less in them. With mpiexec inside a Slurm job the number of tasks differs, because
// srun has started one helper for each machine.
bool is_slurms_pmi(const Variable& variable) {
  const auto size = variable("PMI_SIZE");
  const auto tasks = variable("SLURM_NTASKS");
  return variable("SLURM_PROCID").has_value() && size.has_value() && size == tasks;
}

// The text with "?" in place of line breaks and other control characters. Paths and other texts
// that the user has chosen may contain them.
std::string on_one_line(std::string text) {
  const auto breaks = [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; };
  std::replace_if(text.begin(), text.end(), breaks, '?');
  return text;
}

}  // namespace

std::string to_text(Launcher launcher) {
  switch (launcher) {
    case Launcher::kGPipe:
      return "//gpipe/distributed:launch";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI's mpirun";
    case Launcher::kMpich:
      return "mpiexec";
    case Launcher::kSlurm:
      return "srun";
    case Launcher::kNone:
      break;
  }
  return "no launcher";
}

std::string to_text(const Environment& environment) {
  const auto source = [&](const char* field) {
    const auto found = environment.sources.find(field);
    return found == environment.sources.end() ? std::string() : " (" + found->second + ")";
  };
  const auto value = [&](const char* field, const std::string& shown) {
    return on_one_line(shown + source(field));
  };
  if (environment.launcher == Launcher::kNone) {
    return "started by no launcher: one process, interface " +
           value("interface", environment.interface);
  }
  std::string text = "started by " + to_text(environment.launcher) + ": rank " +
                     value("rank", std::to_string(environment.rank)) + " of " +
                     value("size", std::to_string(environment.size)) + ", on this machine " +
                     value("local_rank", std::to_string(environment.local_rank)) + " of " +
                     value("local_size", std::to_string(environment.local_size)) + ", store of " +
                     (environment.store_is_the_launchers ? "the launcher" : "rank 0") +
                     source("store_is_the_launchers") + " at " +
                     value("master_address", environment.master_address) + " port " +
                     value("master_port", std::to_string(environment.master_port)) +
                     ", interface " +
                     (environment.interface.empty() ? "the one that reaches it"
                                                    : value("interface", environment.interface));
  if (environment.sources.count("device_links") != 0) {
    text += ", between devices " + value("device_links", environment.device_links);
  }
  if (environment.restarts != 0) {
    text += ", restart " + value("restarts", std::to_string(environment.restarts));
  }
  if (!environment.error_file.empty()) {
    text += ", errors to " + value("error_file", environment.error_file);
  }
  return text;
}

std::string announcement(const Environment& environment, const std::string& master,
                         const std::string& own) {
  const auto chosen = environment.sources.find("interface");
  std::string text = "started by " + to_text(environment.launcher) + ": rank " +
                     std::to_string(environment.rank) + " of " + std::to_string(environment.size) +
                     ", " + std::to_string(environment.local_size) + " on this machine; " +
                     (environment.store_is_the_launchers ? "the launcher's store" : "the store") +
                     " is at " + master + ", this rank listens on " + own +
                     (chosen == environment.sources.end() ? "" : " (" + chosen->second + ")");
  if (environment.sources.count("device_links") != 0) {
    text += ", between devices " + environment.device_links;
  }
  if (environment.restarts != 0) text += ", restart " + std::to_string(environment.restarts);
  return on_one_line(text);
}

std::string too_many_threads(const std::vector<CoreSource>& sources, int64_t threads,
                             bool is_chosen) {
  if (is_chosen || threads == 1) return "";
  // Cores that several processes share: those of a machine, or those that a quota gives to a group
  // of processes. The keys are host and group; the group is "" for the whole machine.
  struct Shared {
    int64_t cores = 0;
    int64_t processes = 0;
  };
  std::map<std::pair<std::string, std::string>, Shared> all;
  for (const CoreSource& source : sources) {
    const auto count = [&](const std::string& group, int64_t cores) {
      Shared& shared = all[{source.host, group}];
      shared.cores = cores;
      ++shared.processes;
    };
    count("", source.cores);
    for (const machine::Quota& quota : source.quotas) {
      count(quota.group, machine::within_quota(source.cores, quota.cores));
    }
  }
  const auto share = [](const Shared& shared) {
    return std::max<int64_t>(shared.cores / shared.processes, 1);
  };
  // The warning is about the machine or quota that leaves the fewest cores for each process.
  const auto least = std::min_element(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return share(a.second) < share(b.second);
  });
  if (least == all.end() || threads <= share(least->second)) return "";
  const auto& [place, shared] = *least;
  const bool is_quota = !place.second.empty();
  return (shared.processes == 1
              ? std::string("the process")
              : "each of the " + std::to_string(shared.processes) + " processes") +
         (!is_quota               ? ""
          : shared.processes == 1 ? " with a quota of time"
                                  : " that share a quota of time") +
         " on " + quoted(place.first) + " has " + std::to_string(threads) +
         " threads per operator, and there " +
         (shared.cores == 1 ? "is 1 core" : "are " + std::to_string(shared.cores) + " cores") +
         ": set OMP_NUM_THREADS=" + std::to_string(share(shared)) + " (the bits depend on it, too)";
}

Environment read_environment(const Variable& variable) {
  Environment environment;
  if (variable("RANK")) {
    read_torchrun(variable, environment);
  } else {
    if (variable("OMPI_COMM_WORLD_RANK") || variable("OMPI_COMM_WORLD_SIZE")) {
      read_open_mpi(variable, environment);
    } else if ((variable("PMI_RANK") || variable("PMI_SIZE")) && !is_slurms_pmi(variable)) {
      read_mpich(variable, environment);
    } else if (variable("SLURM_PROCID")) {
      read_slurm(variable, environment);
    } else {
      environment.master_address = kLoopback;
    }
    check_other_names(variable, environment);
  }
  read_interface(variable, environment);
  read_links(variable, environment);
  return environment;
}

Environment read_environment(const std::map<std::string, std::string>& variables) {
  return read_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Environment environment_of_this_process() {
  return read_environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

}  // namespace gpipe::distributed

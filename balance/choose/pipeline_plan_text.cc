// The text and the JSON of a PipelinePlan.

#include <charconv>
#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "balance/choose/pipeline_plan.h"
#include "balance/costs/parsed_json.h"
#include "command/files.h"
#include "gpipe/pipeline_setup.h"

namespace gpipe::balance {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "gpipe plan";
constexpr int64_t kVersion = 1;
constexpr char kUnits[] = "seconds, bytes";

// Prints all digits, so that the number can be read back exactly.
std::string text_of(double value) { return absl::StrFormat("%.17g", value); }

// Reads the lines of a plan's text, one field after the other.
class Lines {
 public:
  Lines(std::string_view text, std::string file) : rest_(text), file_(std::move(file)) {}

  [[noreturn]] void fail(const std::string& expected) const {
    throw std::invalid_argument(file_ + ", line " + std::to_string(number_) + ": expected " +
                                expected);
  }
  // Returns what follows `name` in the next line that is not empty.
  std::string field(const std::string& name) {
    next();
    if (line_ == name) return "";
    if (line_.rfind(name + " ", 0) != 0) fail("'" + name + " ...', got '" + line_ + "'");
    return line_.substr(name.size() + 1);
  }
  // Whether the next line begins with the word `name`.
  bool is_next(const std::string& name) {
    const std::string_view rest = rest_;
    const int64_t number = number_;
    next();
    const bool is = line_.rfind(name + " ", 0) == 0;
    rest_ = rest;
    number_ = number;
    return is;
  }
  int64_t count(const std::string& text) const {
    int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end) fail("a whole number, got '" + text + "'");
    return value;
  }
  double number(const std::string& text) const {
    std::istringstream in(text);
    double value = 0;
    if (!(in >> value) || in.peek() != std::char_traits<char>::eof()) {
      fail("a number, got '" + text + "'");
    }
    return value;
  }
  static std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> result;
    for (std::string word; in >> word;) result.push_back(word);
    return result;
  }
  const std::string& rest() {
    line_ = std::string(rest_);
    return line_;
  }

 private:
  void next() {
    for (;;) {
      if (rest_.empty()) {
        ++number_;
        fail("more lines; the plan is not whole");
      }
      const size_t end = rest_.find('\n');
      line_ = std::string(rest_.substr(0, end));
      rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
      ++number_;
      if (!line_.empty() && line_.back() == '\r') line_.pop_back();
      if (!line_.empty() && line_.front() != '#') return;
    }
  }

  std::string_view rest_;
  std::string file_;
  std::string line_;
  int64_t number_ = 0;
};

Schedule schedule_from(const std::string& text, const std::string& file) {
  try {
    return Schedule::from_text(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(file + ": the schedule: " + error.what());
  }
}

// Replaces line breaks by spaces.
std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  return text;
}

// Throws for a number that is not an int64_t. The JSON library would cut 32.9 to 32 and wrap a
// number that is too large to -1.
void check_whole(const Json& number) {
  const bool fits =
      number.is_number_integer() &&
      (!number.is_number_unsigned() ||
       number.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (!fits) throw std::invalid_argument("expected a whole number, got " + number.dump());
}

}  // namespace

std::string plan_to_text(const PipelinePlan& plan) {
  check_plan_value(plan, "the plan cannot be written: ");
  std::string text = std::string(kFormat) + " " + std::to_string(kVersion) + "\n";
  const auto line = [&](const std::string& name, const std::string& value) {
    text += name + (value.empty() ? "" : " " + value) + "\n";
  };
  line("model", one_line(plan.model));
  line("profiled_on", one_line(plan.profiled_on));
  if (!plan.autocast.empty()) line("autocast", one_line(plan.autocast));
  if (plan.deferred_batch_norm) line("deferred_batch_norm", "true");
  line("rows", std::to_string(plan.rows));
  line("balance", absl::StrJoin(plan.balance, " "));
  line("chunks", std::to_string(plan.chunks));
  if (!plan.shared_inputs.empty()) line("shared_inputs", absl::StrJoin(plan.shared_inputs, " "));
  line("checkpoints", absl::StrJoin(names_of(plan.checkpoints), " "));
  line("schedule", one_line(plan.schedule_name));
  line("step", text_of(plan.step));
  line("lower_bound", text_of(plan.lower_bound));
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const PlannedDevice& device = plan.devices[d];
    line("device",
         absl::StrCat(d, " limit ", device.limit, " live ", device.live, " reserved ",
                      device.reserved,
                      device.predicted < 0 ? "" : absl::StrCat(" predicted ", device.predicted)));
  }
  return text + plan.schedule.to_text();
}

PipelinePlan plan_from_text(std::string_view text, const std::string& file) {
  Lines lines(text, file);
  if (lines.count(lines.field(kFormat)) != kVersion) {
    lines.fail("version " + std::to_string(kVersion) + "; make the plan again");
  }
  PipelinePlan plan;
  plan.model = lines.field("model");
  plan.profiled_on = lines.field("profiled_on");
  if (lines.is_next("autocast")) plan.autocast = lines.field("autocast");
  if (lines.is_next("deferred_batch_norm")) {
    const std::string value = lines.field("deferred_batch_norm");
    if (value != "true") lines.fail("true or no such line, got '" + value + "'");
    plan.deferred_batch_norm = true;
  }
  plan.rows = lines.count(lines.field("rows"));
  plan.balance.clear();
  for (const std::string& word : Lines::words(lines.field("balance"))) {
    plan.balance.push_back(lines.count(word));
  }
  plan.chunks = lines.count(lines.field("chunks"));
  if (lines.is_next("shared_inputs")) {
    for (const std::string& word : Lines::words(lines.field("shared_inputs"))) {
      plan.shared_inputs.push_back(lines.count(word));
    }
  }
  plan.checkpoints.clear();
  for (const std::string& word : Lines::words(lines.field("checkpoints"))) {
    try {
      plan.checkpoints.push_back(checkpoint_by_name(word, word));
    } catch (const std::invalid_argument&) {
      lines.fail("always, except_last or never, got '" + word + "'");
    }
  }
  plan.schedule_name = lines.field("schedule");
  plan.step = lines.number(lines.field("step"));
  plan.lower_bound = lines.number(lines.field("lower_bound"));
  plan.devices.clear();
  while (lines.is_next("device")) {
    const std::vector<std::string> words = Lines::words(lines.field("device"));
    const bool predicted = words.size() == 9 && words[7] == "predicted";
    if ((words.size() != 7 && !predicted) || words[0] != std::to_string(plan.devices.size()) ||
        words[1] != "limit" || words[3] != "live" || words[5] != "reserved") {
      lines.fail("'device " + std::to_string(plan.devices.size()) +
                 " limit BYTES live BYTES reserved BYTES'");
    }
    plan.devices.push_back({lines.count(words[2]), lines.count(words[4]), lines.count(words[6]),
                            predicted ? lines.count(words[8]) : -1});
  }
  plan.schedule = schedule_from(lines.rest(), file);
  check_plan_value(plan, file + ": ");
  return plan;
}

std::string plan_to_json(const PipelinePlan& plan) {
  check_plan_value(plan, "the plan cannot be written: ");
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"units", kUnits},
               {"model", one_line(plan.model)},
               {"profiled_on", one_line(plan.profiled_on)},
               {"rows", plan.rows},
               {"balance", plan.balance},
               {"chunks", plan.chunks}};
  if (!plan.autocast.empty()) json["autocast"] = one_line(plan.autocast);
  if (plan.deferred_batch_norm) json["deferred_batch_norm"] = true;
  if (!plan.shared_inputs.empty()) json["shared_inputs"] = plan.shared_inputs;
  json["checkpoints"] = names_of(plan.checkpoints);
  json["schedule_name"] = plan.schedule_name;
  json["placement"] = plan.placement().worker_of_stage();  // for people: the schedule contains it
  json["step"] = plan.step;
  json["lower_bound"] = plan.lower_bound;
  Json& devices = json["devices"] = Json::array();
  for (const PlannedDevice& device : plan.devices) {
    devices.push_back(
        {{"limit", device.limit}, {"live", device.live}, {"reserved", device.reserved}});
    if (device.predicted >= 0) devices.back()["predicted"] = device.predicted;
  }
  json["schedule"] = plan.schedule.to_text();
  return json_text(json);
}

PipelinePlan plan_from_json(const std::string& text, const std::string& file) {
  const Json json = parsed_json(text, file);
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    throw std::invalid_argument(file + " is JSON, but not a plan: \"format\" is not \"" + kFormat +
                                "\"");
  }
  if (json.value("version", Json()) != kVersion) {
    throw std::invalid_argument(file + " is not of version " + std::to_string(kVersion) +
                                "; make the plan again");
  }
  if (json.value("units", Json(kUnits)) != kUnits) {
    throw std::invalid_argument(file + ": units are not \"" + kUnits + "\"");
  }
  PipelinePlan plan;
  std::optional<std::string> schedule;
  std::optional<std::vector<int64_t>> placement;
  const char* name = "";
  try {
    const auto get = [&](const Json& object, const char* field, auto& value) {
      name = field;
      const Json& given = object.at(field);
      using Value = std::decay_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, int64_t>) {
        check_whole(given);
      } else if constexpr (std::is_same_v<Value, std::vector<int64_t>>) {
        for (const Json& each : given) check_whole(each);
      }
      given.get_to(value);
    };
    get(json, "model", plan.model);
    get(json, "profiled_on", plan.profiled_on);
    if (json.contains("autocast")) get(json, "autocast", plan.autocast);
    if (json.contains("deferred_batch_norm")) {
      get(json, "deferred_batch_norm", plan.deferred_batch_norm);
    }
    get(json, "rows", plan.rows);
    get(json, "balance", plan.balance);
    get(json, "chunks", plan.chunks);
    if (json.contains("shared_inputs")) get(json, "shared_inputs", plan.shared_inputs);
    std::vector<std::string> modes;
    get(json, "checkpoints", modes);
    plan.checkpoints.clear();
    for (const std::string& mode : modes) {
      plan.checkpoints.push_back(checkpoint_by_name(mode, "'" + mode + "'"));
    }
    get(json, "schedule_name", plan.schedule_name);
    if (json.contains("placement")) get(json, "placement", placement.emplace());
    get(json, "step", plan.step);
    get(json, "lower_bound", plan.lower_bound);
    name = "devices";
    plan.devices.clear();
    for (const Json& item : json.at("devices")) {
      PlannedDevice& device = plan.devices.emplace_back();
      get(item, "limit", device.limit);
      get(item, "live", device.live);
      get(item, "reserved", device.reserved);
      if (item.contains("predicted")) get(item, "predicted", device.predicted);
    }
    get(json, "schedule", schedule.emplace());
  } catch (const std::exception& error) {  // a field is missing or has another type
    throw std::invalid_argument(file + ": " + name + ": " + error.what());
  }
  plan.schedule = schedule_from(*schedule, file);
  check_plan_value(plan, file + ": ");
  if (placement && *placement != plan.placement().worker_of_stage()) {
    throw std::invalid_argument(file + ": placement: it differs from the schedule's (" +
                                absl::StrJoin(plan.placement().worker_of_stage(), " ") + ")");
  }
  return plan;
}

PipelinePlan load_plan(const std::string& path) {
  const std::string text = command::read_given_file(path);
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  return is_json ? plan_from_json(text, path) : plan_from_text(text, path);
}

}  // namespace gpipe::balance

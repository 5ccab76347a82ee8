// FlagSet: the flags of one command. read_flags: parses them and Abseil's flags, with this
// project's messages for mistakes. Without LibTorch.
#ifndef GPIPE_COMMAND_FLAGS_H_
#define GPIPE_COMMAND_FLAGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>

#include "absl/flags/marshalling.h"
#include "command/flag_values.h"

namespace gpipe::command {

// The result of reading a command line.
enum class Request {
  kRun,
  kNothing,  // --help or --version: the answer was written to `out`
};

// A flag of a FlagSet, or one that is defined with ABSL_FLAG.
struct Flag {
  std::string help;
  std::string value;  // the default, as text
  bool is_bool = false;
  std::string kind;  // what it takes, for messages: "a whole number"
  // Sets the value. Returns false for a text of which no value can be made, with the reason if it
  // is not that the text is not of the flag's kind. Throws std::invalid_argument for wrong values.
  std::function<bool(const std::string& text, std::string* why)> set;
};

// The type of a flag that may be left out, without the std::optional.
template <typename Value>
struct TypeGiven {
  using Type = Value;
};
template <typename Value>
struct TypeGiven<std::optional<Value>> {
  using Type = Value;
};

// The flags of one command, beside those that the program defines with ABSL_FLAG. Commands of one
// program may have flags of the same name that differ in type, default or range.
//
// Each flag sets a variable, which has the default before and must outlive the reading.
class FlagSet {
 public:
  // Adds --`name`, of any type that a flag of Abseil may have.
  template <typename Value>
  void add(const std::string& name, Value& value, const std::string& help) {
    using Given = typename TypeGiven<Value>::Type;
    flags_[name] = {help, absl::UnparseFlag(value), std::is_same_v<Given, bool>,
                    std::is_same_v<Given, int64_t>    ? "a whole number"
                    : std::is_same_v<Given, uint64_t> ? "a whole number from 0 on"
                    : std::is_same_v<Given, double>   ? "a number"
                    : std::is_same_v<Given, bool>     ? "true or false"
                                                      : "another value",
                    [&value](const std::string& text, std::string* why) {
                      return absl::ParseFlag(text, &value, why);
                    }};
  }

  // Adds an int64_t or a double, or one of them that may be left out, from `least` to `most`.
  template <typename Value, typename Given = typename TypeGiven<Value>::Type>
  void add(const std::string& name, Value& value, std::common_type_t<Given> least,
           std::common_type_t<Given> most, const std::string& help) {
    add(name, value, help);
    flags_[name].set = [=, &value, set = flags_[name].set](const std::string& text,
                                                           std::string* why) {
      if (!set(text, why)) return false;
      const std::optional<Given> given = value;
      if constexpr (std::is_same_v<Given, double>) {
        at_least(name.c_str(), *given, least, most);
      } else {
        in_range(name.c_str(), *given, least, most);
      }
      return true;
    };
  }

  // Adds a flag whose value `parse` makes of a text. It throws std::invalid_argument, with the name
  // of the flag, for a wrong text. `text`: the default, as text.
  template <typename Value, typename Parse>
  void parsed(const std::string& name, Value& value, const Parse& parse, const std::string& help,
              const std::string& text = "") {
    flags_[name] = {help, text, false, "", [&value, parse](const std::string& given, std::string*) {
                      value = parse(given);
                      return true;
                    }};
  }

  // Adds a name that is not a flag but that users may try, and why: "there is no flag --`name`:
  // `why`".
  void absent(const std::string& name, const std::string& why) { absent_[name] = why; }

 private:
  friend Request read_flags(int argc, const char* const* argv, const std::string& usage,
                            const std::string& version, std::ostream& out, const FlagSet& flags);

  std::map<std::string, Flag> flags_;
  std::map<std::string, std::string> absent_;
};

// Sets the program's flags (ABSL_FLAG) and `flags` from "--name=value", "--name value", "--name"
// and "--noname" (booleans). The answer to --help begins with `usage`, the answer to --version is
// `version`. Unlike absl::ParseCommandLine it does not end the process and has no --flagfile.
// Throws std::invalid_argument for an unknown flag, a wrong value and any other word; the message
// suggests the closest flag, or says why a flag is absent. Flags before the mistake are then set.
// Throws std::logic_error if the program defines a flag of `flags`.
Request read_flags(int argc, const char* const* argv, const std::string& usage,
                   const std::string& version, std::ostream& out, const FlagSet& flags = {});

}  // namespace gpipe::command

#endif  // GPIPE_COMMAND_FLAGS_H_

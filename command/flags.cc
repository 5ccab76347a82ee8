#include "command/flags.h"

#include <cstddef>
#include <map>
#include <optional>
#include <stdexcept>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "command/wrap.h"
#include "command/wrong_value.h"
#include "text/closest.h"
#include "text/shown.h"

namespace gpipe::command {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kIndent = 6;  // columns before the text that explains a flag

// The flags that this project defines, without those of Abseil.
std::map<std::string, absl::CommandLineFlag*> own_flags() {
  std::map<std::string, absl::CommandLineFlag*> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::StrContains(flag->Filename(), "absl/")) flags[std::string(name)] = flag;
  }
  return flags;
}

// The values that flags have before the command line is read: their defaults, which a program may
// have set.
std::map<std::string, std::string> values_of(
    const std::map<std::string, absl::CommandLineFlag*>& flags) {
  std::map<std::string, std::string> values;
  for (const auto& [name, flag] : flags) values[name] = flag->CurrentValue();
  return values;
}

void print_help(std::ostream& out, const std::string& usage,
                const std::map<std::string, std::string>& defaults) {
  out << wrap_lines(usage, kColumns) << "\nFlags:\n";
  for (const auto& [name, flag] : own_flags()) {
    const std::string& value = defaults.at(name);
    out << "  --" << name;
    // The default value is shown, unless it stands for something else: then the flag's own text has
    // "Default:".
    const bool told = absl::StrContains(flag->Help(), "Default:");
    if (!value.empty() && !told) out << "  (" << value << ")";
    out << "\n";
    out << wrap(std::string(flag->Help()), kColumns, kIndent, kIndent);
  }
  out << "  --help, --version\n";
}

std::string suggestion(const std::string& name) {
  std::vector<std::string> names = {"help", "version"};
  for (const auto& [known, flag] : own_flags()) names.push_back(known);
  const std::string meant = text::closest(name, names);
  return meant.empty() ? "; --help lists the flags" : "; did you mean --" + meant + "?";
}

// Removes the dashes of "--name=value" or "-name=value". Returns false if there are no dashes, or
// if nothing follows them.
bool strip_dashes(std::string& argument) {
  const std::size_t name = argument.find_first_not_of('-');
  if (name == std::string::npos || name < 1 || name > 2) return false;
  argument.erase(0, name);
  return true;
}

[[noreturn]] void refuse_word(std::string word) {
  const std::string given = text::quoted(word) + " is not a flag";
  for (const std::string dash : {"\u2013", "\u2014", "\u2212"}) {
    if (word.rfind(dash, 0) != 0) continue;
    word.erase(0, dash.size());  // text editors turn "--" into such dashes
    throw std::invalid_argument(given + ": its dash is not the one of the keyboard" +
                                suggestion(word.substr(0, word.find('='))));
  }
  throw std::invalid_argument(given + suggestion(word.substr(0, word.find('='))));
}

bool is_whole_number(const absl::CommandLineFlag& flag) {
  return flag.IsOfType<int64_t>() || flag.IsOfType<std::optional<int64_t>>();
}

bool is_unsigned(const absl::CommandLineFlag& flag) {
  return flag.IsOfType<uint64_t>() || flag.IsOfType<std::optional<uint64_t>>();
}

void set(absl::CommandLineFlag& flag, const std::string& value) {
  // An empty value mostly comes from an empty shell variable. To get the default, the user leaves
  // the flag out.
  if (value.empty()) {
    throw std::invalid_argument(flag_text(flag.Name(), "") +
                                " has no value; give one, or leave the flag out");
  }
  std::string error;
  if (flag.ParseFrom(value, &error)) return;
  // What the AbslParseFlag() of one of this project's types says stands behind Abseil's sentence.
  absl::string_view why = error;
  if (absl::ConsumePrefix(&why, absl::StrCat("Illegal value '", value, "' specified for flag '",
                                             flag.Name(), "'; "))) {
    throw wrong_value(flag.Name(), value, why);
  }
  throw wrong_value(flag.Name(), value,
                    "give " + (is_whole_number(flag)   ? "a whole number"
                               : is_unsigned(flag)     ? "a whole number from 0 on"
                               : flag.IsOfType<bool>() ? "true or false"
                                                       : "another value: " + error));
}

}  // namespace

Request read_flags(int argc, const char* const* argv, const std::string& usage,
                   const std::string& version, std::ostream& out, const AbsentFlags& absent) {
  const std::map<std::string, absl::CommandLineFlag*> flags = own_flags();
  const std::map<std::string, std::string> defaults = values_of(flags);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    std::string name = argument;
    if (!strip_dashes(name)) refuse_word(argument);
    if (name == "help" || name == "h" || name.rfind("help=", 0) == 0) {
      print_help(out, usage, defaults);
      return Request::kNothing;
    }
    if (name == "version" || name == "v") {
      out << version << "\n";
      return Request::kNothing;
    }
    const std::size_t equals = name.find('=');
    const bool has_value = equals != std::string::npos;
    const std::string value = has_value ? name.substr(equals + 1) : "";
    name = name.substr(0, equals);
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      const auto negated = name.rfind("no", 0) == 0 ? flags.find(name.substr(2)) : flags.end();
      if (has_value || negated == flags.end() || !negated->second->IsOfType<bool>()) {
        if (const auto why = absent.find(name); why != absent.end()) {
          throw std::invalid_argument("there is no flag --" + text::shown(name) + ": " +
                                      why->second + "; --help lists the flags");
        }
        throw std::invalid_argument("there is no flag --" + text::shown(name) + suggestion(name));
      }
      set(*negated->second, "false");
    } else if (has_value) {
      set(*flag->second, value);
    } else if (flag->second->IsOfType<bool>()) {
      set(*flag->second, "true");
    } else if (i + 1 < argc) {
      set(*flag->second, argv[++i]);
    } else {
      throw std::invalid_argument("--" + name + " needs a value: --" + name + "=...");
    }
  }
  return Request::kRun;
}

}  // namespace gpipe::command

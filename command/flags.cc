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
#include "command/wrap.h"
#include "command/wrong_value.h"
#include "text/closest.h"
#include "text/shown.h"

namespace gpipe::command {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kIndent = 6;  // columns before the text that explains a flag

using Flags = std::map<std::string, Flag>;

Flag of_abseil(absl::CommandLineFlag& flag) {
  const bool is_bool = flag.IsOfType<bool>();
  std::string kind;
  if (flag.IsOfType<int64_t>() || flag.IsOfType<std::optional<int64_t>>()) kind = "a whole number";
  if (flag.IsOfType<uint64_t>() || flag.IsOfType<std::optional<uint64_t>>()) {
    kind = "a whole number from 0 on";
  }
  if (flag.IsOfType<double>() || flag.IsOfType<std::optional<double>>()) kind = "a number";
  if (is_bool) kind = "true or false";
  return {flag.Help(), flag.CurrentValue(), is_bool, kind,
          [&flag, kind](const std::string& text, std::string* why) {
            if (flag.ParseFrom(text, why)) return true;
            // What the AbslParseFlag() of one of this project's types says stands behind Abseil's
            // sentence.
            const std::string sentence =
                absl::StrCat("Illegal value '", text, "' specified for flag '", flag.Name(), "'; ");
            *why = absl::StartsWith(*why, sentence) ? why->substr(sentence.size())
                   : kind.empty()                   ? "give another value: " + *why
                                                    : "";
            return false;
          }};
}

// Adds the flags that this project defines, without those of Abseil.
Flags with_own_flags(Flags flags) {
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::StrContains(flag->Filename(), "absl/")) continue;
    if (!flags.emplace(name, of_abseil(*flag)).second) {
      throw std::logic_error(absl::StrCat("the flag --", name, " of ", flag->Filename(),
                                          " has the name of a flag of the command: rename it"));
    }
  }
  return flags;
}

void print_help(std::ostream& out, const std::string& usage, const Flags& flags) {
  out << wrap_lines(usage, kColumns) << "\nFlags:\n";
  for (const auto& [name, flag] : flags) {
    out << "  --" << name;
    // The default value is shown, unless it stands for something else: then the flag's own text has
    // "Default:".
    const bool told = absl::StrContains(flag.help, "Default:");
    if (!flag.value.empty() && !told) out << "  (" << flag.value << ")";
    out << "\n";
    out << wrap(flag.help, kColumns, kIndent, kIndent);
  }
  out << "  --help, --version\n";
}

std::string suggestion(const std::string& name, const Flags& flags) {
  std::vector<std::string> names = {"help", "version"};
  for (const auto& [known, flag] : flags) names.push_back(known);
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

[[noreturn]] void refuse_word(std::string word, const Flags& flags) {
  const std::string given = text::quoted(word) + " is not a flag";
  for (const std::string dash : {"\u2013", "\u2014", "\u2212"}) {
    if (word.rfind(dash, 0) != 0) continue;
    word.erase(0, dash.size());  // text editors turn "--" into such dashes
    throw std::invalid_argument(given + ": its dash is not the one of the keyboard" +
                                suggestion(word.substr(0, word.find('=')), flags));
  }
  throw std::invalid_argument(given + suggestion(word.substr(0, word.find('=')), flags));
}

void set(const std::string& name, const Flag& flag, const std::string& value) {
  // An empty value mostly comes from an empty shell variable. To get the default, the user leaves
  // the flag out.
  if (value.empty()) {
    throw std::invalid_argument(flag_text(name, "") +
                                " has no value; give one, or leave the flag out");
  }
  std::string why;
  if (flag.set(value, &why)) return;
  throw wrong_value(name, value, why.empty() ? "give " + flag.kind : why);
}

}  // namespace

Request read_flags(int argc, const char* const* argv, const std::string& usage,
                   const std::string& version, std::ostream& out, const FlagSet& set_of_command) {
  const Flags flags = with_own_flags(set_of_command.flags_);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    std::string name = argument;
    if (!strip_dashes(name)) refuse_word(argument, flags);
    if (name == "help" || name == "h" || name.rfind("help=", 0) == 0) {
      print_help(out, usage, flags);
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
      if (has_value || negated == flags.end() || !negated->second.is_bool) {
        const auto why = set_of_command.absent_.find(name);
        throw std::invalid_argument("there is no flag --" + text::shown(name) +
                                    (why == set_of_command.absent_.end()
                                         ? suggestion(name, flags)
                                         : ": " + why->second + "; --help lists the flags"));
      }
      set(negated->first, negated->second, "false");
    } else if (has_value) {
      set(name, flag->second, value);
    } else if (flag->second.is_bool) {
      set(name, flag->second, "true");
    } else if (i + 1 < argc) {
      set(name, flag->second, argv[++i]);
    } else {
      throw std::invalid_argument("--" + name + " needs a value: --" + name + "=...");
    }
  }
  return Request::kRun;
}

}  // namespace gpipe::command

#include "examples/guide/guide.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace guide {
namespace {

// Numbers are ordered such that chapters come before problems, and 9 before 10.
using Number = std::pair<int, std::string>;
Number number_of(const std::string& text) {
  const size_t dot = text.find('.');
  return {std::stoi(text.substr(0, dot)), dot == std::string::npos ? "" : text.substr(dot + 1)};
}
std::string text_of(const Number& number) {
  return std::to_string(number.first) + (number.second.empty() ? "" : "." + number.second);
}

struct Problem {
  std::function<void(std::ostream&)> print;
  Answer::Kind kind;
};
std::map<Number, std::function<void()>>& chapters() {
  static std::map<Number, std::function<void()>> all;
  return all;
}
std::map<Number, Problem>& problems() {
  static std::map<Number, Problem> all;
  return all;
}

// Runs `call`. Returns whether it threw nothing.
bool attempt(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    return true;
  } catch (const c10::Error& error) {
    std::cerr << what << ": " << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << what << ": " << error.what() << "\n";
  }
  return false;
}

int check() {
  int failed = 0;
  for (const auto& [number, run] : chapters()) {
    std::cout << "chapter " << text_of(number) << std::endl;
    failed += attempt("chapter " + text_of(number), run) ? 0 : 1;
  }
  for (const auto& entry : problems()) {
    const Problem& problem = entry.second;
    if (problem.kind == Answer::Kind::kMeasured) continue;
    const std::string number = text_of(entry.first);
    std::cout << "answer " << number << ":" << std::endl;
    failed += attempt("answer " + number, [&] { problem.print(std::cout); }) ? 0 : 1;
  }
  if (chapters().empty() && problems().empty()) {
    std::cerr << "there is nothing to check\n";
    return 1;
  }
  return failed == 0 ? 0 : 1;
}

int print(const std::vector<std::string>& numbers) {
  for (const std::string& number : numbers) {
    const auto found = std::find_if(problems().begin(), problems().end(), [&](const auto& entry) {
      return text_of(entry.first) == number;
    });
    if (found == problems().end()) {
      std::cerr << "there is no problem " << number << "; without arguments all are listed\n";
      return 2;
    }
    // If there are several problems, says which lines answer which of them.
    if (numbers.size() > 1) std::cout << number << ":" << std::endl;
    if (!attempt(number, [&, &problem = found->second] { problem.print(std::cout); })) return 1;
  }
  return 0;
}

}  // namespace

Chapter::Chapter(const std::string& number, std::function<void()> run) {
  if (!chapters().emplace(number_of(number), std::move(run)).second) {
    throw std::logic_error("chapter " + number + " is there twice");
  }
}

Answer::Answer(const std::string& number, std::function<void(std::ostream&)> print, Kind kind) {
  if (!problems().emplace(number_of(number), Problem{std::move(print), kind}).second) {
    throw std::logic_error("problem " + number + " is there twice");
  }
}

void expect(bool holds, const std::string& what) {
  if (!holds) throw std::logic_error("it does not hold that " + what);
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  throw std::logic_error("nothing was thrown");
}

}  // namespace guide

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // The numbers in the chapters are the CPU's. LibTorch looks at this when it first asks for GPUs.
  setenv("CUDA_VISIBLE_DEVICES", "", /*overwrite=*/1);
  if (arguments == std::vector<std::string>{"--check"}) return guide::check();
  if (arguments.empty() || arguments.front() == "--help") {
    std::cout << "Answers:";
    for (const auto& entry : guide::problems()) std::cout << " " << guide::text_of(entry.first);
    std::cout << "\n";
    return 0;
  }
  return guide::print(arguments);
}

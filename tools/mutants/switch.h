// Switch: turns a mutant on at run time.
//
// mutants.py pastes it into the files that it changes; nothing else includes it.
//   GPIPE_MUTANT       the number of the mutant that is switched on
//   GPIPE_MUTANT_SEEN  a file with one byte for each mutant: 1 where its place was reached
#ifndef TOOLS_MUTANTS_SWITCH_H_
#define TOOLS_MUTANTS_SWITCH_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

struct GPipeMutantSwitch {
  int number = -1;
  volatile char* seen =
      nullptr;  // shared memory: it outlives a crash, and forked children add to it
  long size = 0;

  GPipeMutantSwitch() {
    if (const char* text = std::getenv("GPIPE_MUTANT")) number = std::atoi(text);
    const char* path = std::getenv("GPIPE_MUTANT_SEEN");
    const int file = path == nullptr ? -1 : ::open(path, O_RDWR);
    if (file < 0) return;
    struct stat status;
    if (::fstat(file, &status) == 0) {
      size = status.st_size;
      void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
      if (memory != MAP_FAILED) seen = static_cast<char*>(memory);
    }
    ::close(file);
  }
};

inline bool gpipe_mutant(int number) {
  static const GPipeMutantSwitch chosen;
  if (chosen.seen != nullptr && number < chosen.size) chosen.seen[number] = 1;
  return number == chosen.number;
}

#endif  // TOOLS_MUTANTS_SWITCH_H_

#include "balance/cut/cuts.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

namespace gpipe::balance::internal {
namespace {

using Time = __int128;  // below 2^124

// Returns the last place up to which `sums` grows by at most `most` from `begin` on.
size_t last_within(const std::vector<int64_t>& sums, size_t begin, int64_t most) {
  const auto from = sums.begin() + static_cast<std::ptrdiff_t>(begin);
  const auto past = std::partition_point(
      from, sums.end(), [least = *from, most](int64_t sum) { return sum - least <= most; });
  return static_cast<size_t>(past - sums.begin()) - 1;
}

// The blocks of a problem, with a limit of their time, `most`.
class Blocks {
 public:
  Blocks(const CutProblem& problem, Time most)
      : problem_(problem), has_transfers_(!problem.send.empty()), most_(most) {
    for (int64_t slowness : problem.slowness) {
      capacity_.push_back(
          static_cast<int64_t>(std::min<Time>(most / slowness, problem.cost.back())));
    }
  }

  size_t count() const { return problem_.slowness.size(); }
  size_t last_place() const { return problem_.cost.size() - 1; }
  bool has_transfers() const { return has_transfers_; }
  int64_t capacity(size_t j) const { return capacity_[j]; }
  int64_t cost(size_t place) const { return problem_.cost[place]; }
  int64_t send(size_t place) const { return problem_.send[place]; }

  int64_t weight(size_t begin, size_t end) const {
    return problem_.cost[end] - problem_.cost[begin];
  }

  int64_t layers(size_t begin, size_t end) const {
    return problem_.layers[end] - problem_.layers[begin];
  }

  Time time(size_t j, size_t begin, size_t end) const {
    const Time work = Time{problem_.slowness[j]} * weight(begin, end);
    if (!has_transfers_) return work;
    return work + transfer_time(begin, problem_.send[end]);
  }

  // The time of transfers of a block that begins at `begin` and sends `send`.
  Time transfer_time(size_t begin, int64_t send) const {
    return Time{problem_.transfer_slowness} * (problem_.receive[begin] + send);
  }

  // A lower bound of time() for blocks of that weight whose end sends `send` or more.
  Time least_time(size_t j, size_t begin, int64_t weight, int64_t send) const {
    return Time{problem_.slowness[j]} * weight + transfer_time(begin, send);
  }

  // The part of time() that depends on the end: time() less a constant that depends on the begin.
  Time time_of_end(size_t j, size_t end) const {
    return Time{problem_.slowness[j]} * problem_.cost[end] +
           Time{problem_.transfer_slowness} * problem_.send[end];
  }
  // The largest time_of_end() of a block whose time() is within the limit.
  Time most_of_end(size_t j, size_t begin) const {
    return most_ + Time{problem_.slowness[j]} * problem_.cost[begin] -
           Time{problem_.transfer_slowness} * problem_.receive[begin];
  }

  // Whether the block keeps the limits of weight and size. If not, no block that contains it does.
  bool fits(size_t j, size_t begin, size_t end) const {
    return weight(begin, end) <= capacity_[j] &&
           problem_.size[end] - problem_.size[begin] <= problem_.size_limit[j];
  }

  // The last end of a block that begins at `begin` and fits; `begin` if there is none.
  size_t furthest(size_t j, size_t begin) const {
    return std::min(last_within(problem_.cost, begin, capacity_[j]),
                    last_within(problem_.size, begin, problem_.size_limit[j]));
  }

  // Whether a block that fits also keeps the time limit with its transfers.
  bool in_time(size_t j, size_t begin, size_t end) const {
    return !has_transfers_ || time(j, begin, end) <= most_;
  }

 private:
  const CutProblem& problem_;
  const bool has_transfers_;
  const Time most_;
  std::vector<int64_t> capacity_;  // [block] the largest weight within the time limit
};

// A set of places. `flags` covers the places from `first` on.
struct Places {
  size_t first = 0;
  std::vector<char> flags;

  bool empty() const { return flags.empty(); }
  size_t end() const { return first + flags.size(); }
  bool has(size_t place) const { return place >= first && place < end() && flags[place - first]; }

  // Adds a place; places must be added in ascending order.
  void add(size_t place) {
    if (flags.empty()) first = place;
    flags.resize(place - first);
    flags.push_back(1);
  }
};

// Returns the places where block j can end if it begins at one of `begins`. Leaves out ends from
// which the later blocks cannot reach the end, because there are too few layers or because the rest
// costs more than `later` allows. Only cheap checks are made for this.
Places reach(const Blocks& blocks, size_t j, const Places& begins, Time later) {
  Places ends;
  const Time needed = blocks.cost(blocks.last_place()) - later;
  const bool is_last = j + 1 == blocks.count();
  const size_t past = blocks.last_place() + 1 - (blocks.count() - 1 - j);
  // The begins that may be the best for this or a later end, the best at the front. Compared with
  // the begins behind it in the queue, a begin takes less time to any end and stops fitting
  // earlier.
  std::vector<size_t> queue;
  size_t front = 0;
  for (size_t end = begins.first + 1; end < past; ++end) {
    if (begins.has(end - 1)) {
      while (queue.size() > front &&
             (!blocks.has_transfers() ||
              blocks.time(j, end - 1, end) <= blocks.time(j, queue.back(), end))) {
        queue.pop_back();
      }
      queue.push_back(end - 1);
    }
    while (front < queue.size() && !blocks.fits(j, queue[front], end)) ++front;
    if (front == queue.size()) {
      if (end >= begins.end()) break;
      continue;
    }
    if (is_last && end != blocks.last_place()) continue;
    if (blocks.cost(end) >= needed && blocks.in_time(j, queue[front], end)) ends.add(end);
  }
  return ends;
}

// Returns where each block can begin, and as the last element where the last block can end. Empty
// if no cut keeps the limits.
std::vector<Places> reach_the_end(const Blocks& blocks) {
  std::vector<Time> later(blocks.count());
  for (size_t j = blocks.count() - 1; j > 0; --j) later[j - 1] = later[j] + blocks.capacity(j);
  std::vector<Places> reached(blocks.count() + 1);
  reached[0].add(0);
  for (size_t j = 0; j < blocks.count(); ++j) {
    reached[j + 1] = reach(blocks, j, reached[j], later[j]);
    if (reached[j + 1].empty()) return {};
  }
  return reached;
}

// Decides between cuts of the same longest time.
struct Unevenness {
  // The sum of weight x time, below 2^186: high * 2^64 + low.
  unsigned __int128 high = 0;
  uint64_t low = 0;
  uint64_t squared_layers = 0;

  void add(int64_t weight, Time time, int64_t layers) {
    using Wide = unsigned __int128;
    const auto factor = static_cast<Wide>(weight);
    const Wide lower = factor * static_cast<uint64_t>(time);
    const Wide sum = Wide{low} + static_cast<uint64_t>(lower);
    low = static_cast<uint64_t>(sum);
    high += factor * static_cast<uint64_t>(time >> 64) + (lower >> 64) + (sum >> 64);
    squared_layers += static_cast<uint64_t>(layers) * static_cast<uint64_t>(layers);
  }

  friend bool operator<(const Unevenness& a, const Unevenness& b) {
    return std::tie(a.high, a.low, a.squared_layers) < std::tie(b.high, b.low, b.squared_layers);
  }
};

// Finds the best end of each block for each place where it can begin, from the last block to the
// first.
class MostEven {
 public:
  // `reached` is reach_the_end(blocks) and must not be empty.
  MostEven(const Blocks& blocks, const std::vector<Places>& reached)
      : blocks_(blocks), reached_(reached), ends_{{blocks.last_place(), {}}} {}

  std::vector<int64_t> cuts() {
    std::vector<std::vector<Choice>> choices(blocks_.count());
    for (size_t j = blocks_.count(); j-- > 0;) choices[j] = choose(j);
    std::vector<int64_t> cuts;
    size_t place = 0;
    for (const std::vector<Choice>& of_block : choices) {
      const auto choice =
          std::lower_bound(of_block.begin(), of_block.end(), place,
                           [](const Choice& choice, size_t place) { return choice.begin < place; });
      place = choice->end;
      cuts.push_back(static_cast<int64_t>(place));
    }
    return cuts;
  }

 private:
  struct Choice {
    uint32_t begin;
    uint32_t end;
  };

  // A place, and the unevenness of the best way to cut everything behind it.
  struct Way {
    size_t place;
    Unevenness unevenness;
  };

  // A place where the block can begin, and the range of ends_ that fit (at least one).
  struct Begin {
    size_t place;
    size_t first;
    size_t last;
    size_t chosen = kNone;
    Unevenness unevenness = {};
  };

  static constexpr size_t kNone = static_cast<size_t>(-1);

  std::vector<Choice> choose(size_t j) {
    find_begins(j);
    if (blocks_.has_transfers()) {
      bound_groups(j);
      size_t guess = 0;  // neighboring begins mostly have the same best end
      for (Begin& begin : begins_) guess = search_end(j, &begin, guess);
    } else if (!begins_.empty()) {
      choose_ends(j, 0, begins_.size(), 0, ends_.size() - 1);
    }
    std::vector<Choice> choices;
    std::vector<Way> ways;
    for (const Begin& begin : begins_) {
      if (begin.chosen == kNone) continue;
      choices.push_back(
          {static_cast<uint32_t>(begin.place), static_cast<uint32_t>(ends_[begin.chosen].place)});
      ways.push_back({begin.place, begin.unevenness});
    }
    ends_ = std::move(ways);
    return choices;
  }

  void find_begins(size_t j) {
    begins_.clear();
    size_t first = 0;
    size_t past = 0;
    for (size_t place = reached_[j].first; place < reached_[j].end(); ++place) {
      if (!reached_[j].has(place)) continue;
      while (first < ends_.size() && ends_[first].place <= place) ++first;
      past = std::max(past, first);
      while (past < ends_.size() && blocks_.fits(j, place, ends_[past].place)) ++past;
      if (first < past) begins_.push_back({place, first, past - 1});
    }
  }

  // Chooses the ends of the begins in [from, to), whose best ends lie in [first, last]. Without
  // transfers a later begin never has an earlier best end. So each result halves the search for the
  // begins before and behind it.
  void choose_ends(size_t j, size_t from, size_t to, size_t first, size_t last) {
    const size_t middle = from + (to - from) / 2;
    Begin& begin = begins_[middle];
    choose_end(j, &begin, std::max(first, begin.first), std::min(last, begin.last));
    if (from < middle) choose_ends(j, from, middle, first, begin.chosen);
    if (middle + 1 < to) choose_ends(j, middle + 1, to, begin.chosen, last);
  }

  // With transfers, ends are not monotonic. But no end in a group of 2^level neighboring ends is
  // better than a bound: the group's smallest weight, its smallest transfer and the best way behind
  // it, as if one end had all three. A group whose bound is not better than the best known end is
  // left out.
  struct Group {
    int64_t send;       // the smallest of the group
    Time time_of_end;   // the smallest Blocks::time_of_end()
    Unevenness behind;  // the smallest; squared_layers is the smallest on its own
  };
  // smaller groups are not bounded: their ends are compared one by one
  static constexpr size_t kLowest = 3;

  void bound_groups(size_t j) {
    groups_.clear();
    std::vector<Group> level;
    for (size_t k = 0; k < ends_.size(); ++k) {
      const Way& way = ends_[k];
      const Group group{blocks_.send(way.place), blocks_.time_of_end(j, way.place), way.unevenness};
      if (k % (size_t{1} << kLowest) == 0) {
        level.push_back(group);
      } else {
        level.back() = joined(level.back(), group);
      }
    }
    while (true) {
      groups_.push_back(level);
      if (level.size() <= 1) return;
      std::vector<Group> next;
      for (size_t k = 0; k < level.size(); k += 2) {
        next.push_back(k + 1 < level.size() ? joined(level[k], level[k + 1]) : level[k]);
      }
      level = std::move(next);
    }
  }

  static Group joined(const Group& a, const Group& b) {
    Group both{std::min(a.send, b.send), std::min(a.time_of_end, b.time_of_end),
               std::min(a.behind, b.behind)};
    both.behind.squared_layers = std::min(a.behind.squared_layers, b.behind.squared_layers);
    return both;
  }

  // Chooses the same as choose_end() for begin->first to begin->last. Returns the chosen end, or
  // `guess` if there is none.
  size_t search_end(size_t j, Begin* begin, size_t guess) const {
    const size_t likely = std::min(std::max(guess, begin->first), begin->last);
    consider(j, begin, likely);
    search_group(j, begin, groups_.size() - 1, 0);
    return begin->chosen == kNone ? guess : begin->chosen;
  }

  void search_group(size_t j, Begin* begin, size_t level, size_t number) const {
    const size_t width = size_t{1} << (kLowest + level);
    const size_t first = std::max(number * width, begin->first);
    const size_t last = std::min(number * width + width - 1, begin->last);
    if (first > last) return;
    const Group& group = groups_[level][number];
    if (group.time_of_end > blocks_.most_of_end(j, begin->place)) return;
    if (begin->chosen != kNone) {
      const size_t nearest = ends_[first].place;
      const int64_t weight = blocks_.weight(begin->place, nearest);
      Unevenness bound = group.behind;
      bound.add(weight, blocks_.least_time(j, begin->place, weight, group.send),
                blocks_.layers(begin->place, nearest));
      if (begin->unevenness < bound) return;
      if (first > begin->chosen && !(bound < begin->unevenness)) return;
    }
    if (level == 0) {
      for (size_t k = first; k <= last; ++k) consider(j, begin, k);
      return;
    }
    search_group(j, begin, level - 1, 2 * number);
    if (2 * number + 1 < groups_[level - 1].size()) {
      search_group(j, begin, level - 1, 2 * number + 1);
    }
  }

  // Chooses end k if it is better than the chosen end, or as good and before it.
  void consider(size_t j, Begin* begin, size_t k) const {
    const size_t end = ends_[k].place;
    if (!blocks_.in_time(j, begin->place, end)) return;
    Unevenness unevenness = ends_[k].unevenness;
    unevenness.add(blocks_.weight(begin->place, end), blocks_.time(j, begin->place, end),
                   blocks_.layers(begin->place, end));
    if (begin->chosen != kNone && !(unevenness < begin->unevenness) &&
        (k >= begin->chosen || begin->unevenness < unevenness)) {
      return;
    }
    begin->chosen = k;
    begin->unevenness = unevenness;
  }

  // Chooses the first of the best ends from `first` to `last`.
  void choose_end(size_t j, Begin* begin, size_t first, size_t last) const {
    for (size_t k = first; k <= last; ++k) consider(j, begin, k);
  }

  const Blocks& blocks_;
  const std::vector<Places>& reached_;
  std::vector<Way> ends_;                   // ends of the block, ascending
  std::vector<Begin> begins_;               // begins of the block, ascending
  std::vector<std::vector<Group>> groups_;  // [level][number] groups of ends_, only with transfers
};

int64_t largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// A time limit that every cut keeps.
Time enough_time(const CutProblem& problem) {
  return Time{largest(problem.slowness)} * problem.cost.back() +
         Time{problem.transfer_slowness} * (largest(problem.receive) + largest(problem.send));
}

bool possible(const CutProblem& problem, Time most) {
  return !reach_the_end(Blocks(problem, most)).empty();
}

// possible() without transfer times and with empty blocks allowed: much quicker, and never false if
// possible() is true.
bool nearly_possible(const CutProblem& problem, Time most) {
  const Blocks blocks(problem, most);
  size_t place = 0;
  for (size_t j = 0; j < blocks.count(); ++j) place = blocks.furthest(j, place);
  return place == blocks.last_place();
}

// Returns the smallest possible time in (none, some]; `some` must be possible and `none`
// impossible.
template <typename Possible>
Time least_time(Time none, Time some, Possible possible) {
  while (none + 1 < some) {
    const Time middle = none + (some - none) / 2;
    (possible(middle) ? some : none) = middle;
  }
  return some;
}

}  // namespace

std::optional<std::vector<int64_t>> best_cuts(const CutProblem& problem) {
  const Time enough = enough_time(problem);
  if (!possible(problem, enough)) return std::nullopt;
  // Most often the quick search already has the answer.
  const Time least =
      least_time(-1, enough, [&](Time most) { return nearly_possible(problem, most); });
  Time most = least;
  if (!possible(problem, least)) {
    most = least_time(least, enough, [&](Time most) { return possible(problem, most); });
  }
  const Blocks blocks(problem, most);
  const std::vector<Places> reached = reach_the_end(blocks);
  return MostEven(blocks, reached).cuts();
}

int64_t missing_size(const CutProblem& problem) {
  const Time most = enough_time(problem);
  const int64_t all = problem.size.back();
  int64_t too_little = 0;
  int64_t enough = all;
  while (too_little + 1 < enough) {
    const int64_t middle = too_little + (enough - too_little) / 2;
    CutProblem larger = problem;
    for (int64_t& limit : larger.size_limit) limit = std::min(limit, all - middle) + middle;
    (possible(larger, most) ? enough : too_little) = middle;
  }
  return enough;
}

}  // namespace gpipe::balance::internal
